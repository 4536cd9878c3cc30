"""`python -m deploy.loadtest run`: flags, exit status, what is written."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from deploy.loadtest import run_command
from deploy.loadtest.__main__ import main
from deploy.loadtest.timeline import Run
from tests.deploy.loadtest.test_run import answer
from tests.deploy.loadtest.test_timeline import a_run
from tests.protos.scripted_server import ScriptedServer


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ([], "one of the arguments --rate --concurrency --burst --ramp --replay is required"),
        (["--rate", "1", "--burst"], "--burst: not allowed with argument --rate"),
        (["--rate", "x"], "argument --rate: invalid float value: 'x'"),
        (["--rate", "0"], "rate is 0, must be 0.001 to 100000 arrivals a second"),
        (["--concurrency", "0"], "concurrency is 0, must be 1 to 100000 requests"),
        (["--burst"], "a burst needs requests"),
        (["--rate", "1", "--prompt-len", "x:1"], "--prompt-len 'x:1' is none of N"),
        (["--rate", "1", "--output-len", "0"], "--output-len '0': fixed is 0, must be 1 to"),
        (["--rate", "1", "--cancel", "2"], "cancel-share is 2, must be 0 to 1"),
        (["--rate", "1", "--goodput", "ttft"], "goodput limit 'ttft'"),
        (["http://h", "--rate", "1", "--body", "[1]"], "--body is '[1]', must be a JSON object"),
        (["http://h", "--rate", "1", "--body", "{"], "--body is '{': "),
        (["--rate", "1", "--body", '{"top_q": 5}'], 'has no field named "top_q"'),
        (["--rate", "1", "--body", '{"seed": "x"}'], "body: Failed to parse seed field"),
        (["http://h", "--rate", "1", "--endpoint", "chat"], "endpoint chat takes text"),
        (["--replay"], "a replay needs content with a trace"),
        (["--rate", "1", "--stage-seconds", "9"], "--stage-seconds goes only with --ramp"),
        (["--rate", "1", "--speed", "9"], "--speed goes only with --replay"),
        (["--concurrency", "1", "--cv", "0"], "--cv goes only with --rate and --ramp"),
        (["--rate", "1", "--think", "1"], "--think goes only with --concurrency and --turns"),
        (["--rate", "1", "--slow-gap", "1"], "--slow-gap goes only with --slow-readers"),
        (["--rate", "1", "--prefixes", "2"], "--prefixes goes only with --shared-prefix"),
        (["h:1", "--rate", "1", "--model", "m"], "--model goes only with an http:// target"),
        (
            ["http://h", "--rate", "1", "--tls-ca", "c"],
            "--tls-ca goes only with a nanoserve target",
        ),
        (
            ["h:1", "--rate", "1", "--tls-ca", "/none"],
            "CA file /none: cannot be read: No such file",
        ),
        (["--rate", "1", "--trace", "x", "--output-len", "2"], "--output-len goes only without --"),
        (["--burst", "--workload", "mixed512", "--turns", "2"], "--turns goes only without --work"),
    ],
)
def test_wrong_flags_are_named_and_end_with_status_2(
    flags: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        status = main(["run", *flags])
    except SystemExit as ended:  # argparse's own way
        status = int(ended.code or 0)
    assert status == 2
    assert message in capsys.readouterr().err


def test_help_names_every_flag_with_its_default(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        main(["run", "--help"])
    shown = " ".join(capsys.readouterr().out.split())
    for flag in ("--rate R", "--prompt-len LENGTHS", "--seed N", "--save FILE", "--realtime"):
        assert flag in shown
    assert "(default: 128)" in shown
    assert "(default: 30 for --rate and --concurrency without --requests)" in shown


@pytest.mark.parametrize("flag", ["--trace", "--text"])
def test_a_file_that_is_not_there_is_named(
    flag: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with ScriptedServer(answer) as server:
        missing = str(tmp_path / "missing")
        assert main(["run", server.address, "--rate", "1", flag, missing]) == 1
    assert missing in capsys.readouterr().err


def test_a_server_that_is_not_there_is_status_1(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "127.0.0.1:1", "--rate", "1"]) == 1
    why = "no answer from the server at 127.0.0.1:1: no connection could be made\n"
    assert capsys.readouterr().err.endswith(why)


def test_a_run_is_reported_and_saved(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    saved = tmp_path / "run.json.gz"
    flags = ["--burst", "--requests", "3", "--prompt-len", "5", "--processes", "1"]
    with ScriptedServer(answer) as server:
        status = main(["run", server.address, *flags, "--seed", "4", "--save", str(saved)])
    run = Run.load(saved)
    assert status == (0 if np.percentile(run.lags, 99) <= 0.005 else 1)
    assert [timeline.prompt_tokens for timeline in run.timelines] == [5, 5, 5]
    assert run.settings["seed"] == 4
    shown = capsys.readouterr().out
    assert "seed 4" in shown
    assert main(["report", str(saved)]) == 0
    assert capsys.readouterr().out == shown


@pytest.mark.parametrize(
    ("run", "status"),
    [
        (replace(a_run(), stages=a_run().stages, timelines=a_run().timelines[2:3]), 0),
        (replace(a_run(), timelines=a_run().timelines[:2]), 1),  # its lag is 62 ms
        (replace(a_run(), timelines=a_run().timelines[:1]), 1),  # nothing but warm-up
        (replace(a_run(), timelines=a_run().timelines[2:3], interrupted=True), 130),
    ],
)
def test_the_exit_status_says_whether_a_run_counts(
    run: Run, status: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(run_command, "run_load", lambda *_: run)
    assert main(["run", "--rate", "1"]) == status
    assert capsys.readouterr().out
