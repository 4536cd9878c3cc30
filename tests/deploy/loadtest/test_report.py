from __future__ import annotations

import argparse
import csv
import io
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from matplotlib.colors import to_rgb
from matplotlib.image import imread
from rich.console import Console

from deploy.loadtest.compare_report import add_compare_arguments, compare_main
from deploy.loadtest.goodput import Limits
from deploy.loadtest.plots import style
from deploy.loadtest.report import add_report_arguments, report_main
from deploy.loadtest.summary import Summary
from deploy.loadtest.terminal import print_summary
from deploy.loadtest.timeline import Run, ServerSample, Stage
from tests.deploy.loadtest.timelines import timeline

SETTINGS = {
    "target": {"kind": "Nanoserve", "address": "127.0.0.1:50051"},
    "arrivals": {"kind": "Open", "rate": 2.0, "cv": 1.0},
    "content": {"kind": "Mixed512"},
    "seed": 7,
    "goodput": {"kind": "Limits", "ttft": 150.0, "tpot": None, "gap": None, "e2e": None},
}


@pytest.fixture(autouse=True, scope="module")
def _small_pictures() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(style, "_DPI", 40)
        yield


def a_run(lag: float = 1.0, ramp: bool = False, **values: object) -> Run:
    last = int(ramp)
    ok = [
        timeline(
            (planned + 100, 2), (planned + 140, 2), planned=planned, sent=planned + lag,
            end=planned + 141, index=i, stage=last * (planned >= 2000),
            output_tokens=4, cached_tokens=3 * (i % 2), group="ab"[i % 2],
        )
        for i, planned in enumerate((1000, 1500, 2000, 2500))
    ]  # fmt: skip
    others = [
        timeline(planned=2600, end=2601, status="UNAVAILABLE", index=4, group="a", stage=last),
        timeline(planned=2700, end=3000, status="UNFINISHED", index=5, group="a", stage=last),
        timeline((500, 3), planned=200, end=501, index=6, warm_up=True, group="a"),
    ]
    stages = (Stage(1.0, 2.0, 2.0, None), Stage(2.0, 3.0, 4.0, None))
    samples = tuple(ServerSample(t, 3, 1, 40, 80, 0) for t in (1.2, 1.8, 2.2, 2.8))
    run = Run(
        SETTINGS,
        "2026-01-02T03:04:05Z",
        stages if ramp else (Stage(1.0, 3.0, 2.0, None),),
        (*ok, *others),
        samples,
        knee=2.0 if ramp else None,
    )
    return replace(run, **values)


def printed(run: Run, width: int = 80) -> str:
    file = io.StringIO()
    summary = Summary.of(run, Limits.parse(["ttft:150"]))
    print_summary(summary, Console(file=file, width=width))
    return file.getvalue()


def lines_of(text: str) -> list[str]:
    """With one space between words."""
    return [" ".join(line.split()) for line in text.splitlines()]


def report(*words: str) -> int:
    parser = argparse.ArgumentParser()
    add_report_arguments(parser)
    return report_main(parser.parse_args(words))


def compare(*words: str) -> int:
    parser = argparse.ArgumentParser()
    add_compare_arguments(parser)
    return compare_main(parser.parse_args(words))


def saved(run: Run, path: Path) -> str:
    run.save(path)
    return str(path)


def share_of_red(path: Path) -> float:
    """Of the picture's pixels that have a void banner's colour."""
    pixels = imread(path)[..., :3]
    return float(np.isclose(pixels, to_rgb(style.RED), atol=0.01).all(axis=-1).mean())


@pytest.mark.parametrize("ramp", [False, True])
def test_the_terminal_report_fits_80_columns_and_needs_no_colour(ramp: bool) -> None:
    text = printed(a_run(ramp=ramp, lag=9.0))
    assert max(map(len, text.splitlines())) <= 80
    assert "\x1b" not in text
    assert "…" not in text  # nothing was cut


def test_the_terminal_report_has_every_figure_with_its_n() -> None:
    rows = lines_of(printed(a_run()))
    assert "to first token 4 100.0 100.0 100.0 100.0 100.0" in rows
    assert "per output token 4 20.00 20.00 20.00 20.00 20.00" in rows
    assert "gap before a token 8 20.00 20.00 20.00 20.00 20.00" in rows
    assert "end to end 4 141.0 141.0 141.0 141.0 141.0" in rows
    text = " ".join(rows)
    assert "4 ok, 1 failed, 1 unfinished" in text
    assert "failures UNAVAILABLE: 1" in text
    assert "2.00 requests/s (3.00 offered) in a window of 2 s" in text
    assert "8.00 output tokens/s, 28.00 with prompts" in text
    assert "prefix cache 6 of 40 prompt tokens found (15.0 %)" in text
    assert "66.7 % (4 of 6), 2.00 requests/s, within ttft <= 150 ms" in text
    assert "running 3.00 (max 3), waiting 1.00 (max 1), pool 50.0 % used (max 50.0 %)" in text
    assert "Left out: 1 warm-up request." in text
    assert "seed 7" in text
    assert "the p99 of the time to first token would be 292.0 ms" in text


def test_parts_of_a_mix_and_stages_have_a_row_each() -> None:
    rows = lines_of(printed(a_run(ramp=True)))
    assert "2/s 2 2.00 8.00 100 / 100 20.0 / 20.0 100.0 %" in rows
    assert "4/s 4 2.00 8.00 100 / 100 20.0 / 20.0 50.0 %" in rows
    assert "b 2 1.00 4.00 100 / 100 20.0 / 20.0 100.0 %" in rows


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"ramp": True, "knee": 2.0}, "2.00 requests/s: the highest rate that held"),
        ({"ramp": True, "knee": 4.0}, "at least 4.00 requests/s: every rate that was tried held"),
        ({"ramp": True, "knee": None}, "none: no rate that was tried held"),
        ({"knee": 2.0}, "at least 2.00 requests/s: every rate that was tried held"),
    ],
)
def test_the_knee_says_how_much_it_says(values: dict[str, object], said: str) -> None:
    settings = SETTINGS | {"arrivals": {"kind": "Ramp", "first": 2.0}}
    assert f"knee {said}" in lines_of(printed(a_run(settings=settings, **values)))


def test_only_a_ramp_has_a_knee() -> None:
    assert "knee" not in printed(a_run())


def test_a_void_run_says_so_on_the_terminal_and_a_good_one_does_not() -> None:
    assert "VOID" in printed(a_run(lag=9.0))
    assert "the load tool lagged: p99 9.0 ms, limit 5 ms" in printed(a_run(lag=9.0))
    assert "VOID" not in printed(a_run())


def test_text_in_brackets_is_printed_as_it_stands() -> None:
    run = a_run()
    run = replace(run, timelines=(*run.timelines, timeline(end=1, status="[bold]X[/nope]")))
    assert "[bold]X[/nope]: 1" in printed(run)


def test_wrong_usage_is_said() -> None:
    wrong = timeline((1200, 2), planned=1100, end=1300, output_tokens=3, index=9)
    assert "1 of 1 request got another number of ids than the server's usage says: r9" in (
        " ".join(lines_of(printed(a_run(timelines=(wrong,)))))
    )


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """What `report --out` wrote of a good ramp and of a void one."""
    made = {name: tmp_path_factory.mktemp(name) for name in ("good", "void")}
    for (name, folder), lag in zip(made.items(), (1.0, 9.0), strict=True):
        path = saved(a_run(lag=lag, ramp=True), folder.parent / f"{name}.json.gz")
        assert report(path, "--out", str(folder / "out"), "--goodput", "ttft:99") == 0
    return {name: folder / "out" for name, folder in made.items()}


def test_report_writes_json_csv_and_pictures(folders: dict[str, Path]) -> None:
    names = {file.name for file in folders["good"].iterdir()}
    tables = {"report.json", "summary.csv", "requests.csv"}
    assert names == tables | {"latencies.png", "over_time.png", "server.png", "load.png"}
    values = json.loads((folders["good"] / "report.json").read_text())
    assert (values["void"], values["goodput"]["limits"]["ttft"]) == (False, 99.0)
    assert json.loads((folders["void"] / "report.json").read_text())["void"]


def test_the_csv_files_have_the_figures_and_a_line_for_each_request(
    folders: dict[str, Path],
) -> None:
    with (folders["good"] / "requests.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["outcome"] for row in rows] == ["ok"] * 4 + ["failed", "unfinished", "ok"]
    latencies = [rows[0][name] for name in ("first_token", "per_token", "end_to_end")]
    assert latencies == ["0.1", "0.02", "0.141"]
    warm_up = rows[6]
    assert (rows[0]["within_limits"], rows[0]["warm_up"]) == ("False", "False")
    assert (warm_up["within_limits"], warm_up["warm_up"]) == ("", "True")
    with (folders["good"] / "summary.csv").open() as file:
        lines = [(x["scope"], x["name"], x["requests.counted"]) for x in csv.DictReader(file)]
    assert lines == [
        ("run", "", "6"), ("stage", "2", "2"), ("stage", "4", "4"),
        ("group", "a", "4"), ("group", "b", "2"),
    ]  # fmt: skip


def test_every_picture_of_a_void_run_says_so(folders: dict[str, Path]) -> None:
    pictures = [file.name for file in folders["good"].glob("*.png")]
    assert len(pictures) == 4
    for name in pictures:
        red = {kind: share_of_red(folder / name) for kind, folder in folders.items()}
        assert red["void"] - red["good"] > 0.005


def test_goodput_limits_are_the_runs_own_if_none_are_given(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report(saved(a_run(), tmp_path / "run.json"), "--json")
    goodput = json.loads(capsys.readouterr().out)["goodput"]
    assert (goodput["limits"]["ttft"], goodput["good"]) == (150.0, 4)


def test_json_goes_to_the_terminal_when_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report(saved(a_run(lag=9.0), tmp_path / "run.json"), "--json", "--goodput", "e2e:140")
    values = json.loads(capsys.readouterr().out)
    assert (values["void"], values["goodput"]["good"]) == (True, 0)


def test_a_run_without_a_request_has_a_report(tmp_path: Path) -> None:
    empty = a_run(timelines=(), samples=())
    assert "nothing was measured" in printed(empty)
    report(saved(empty, tmp_path / "run.json"), "--out", str(tmp_path))
    assert {file.name for file in tmp_path.glob("*.png")} == {"latencies.png", "over_time.png"}


def test_two_runs_stand_side_by_side_with_ratios_and_a_warning(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.chdir(tmp_path)
    a = saved(a_run(), Path("a.json"))
    other = SETTINGS | {"seed": 8}
    slow = timeline((1200, 1), (1230, 1), planned=1000, end=1231, group="a")
    b = saved(a_run(timelines=(slow,), settings=other), Path("b.json"))
    assert compare(a, b, "--out", "out") == 0
    text = capsys.readouterr().out
    rows = lines_of(text)
    assert max(map(len, text.splitlines())) <= 80
    assert "to first token, p50 100.0 200.0 2.000" in rows
    assert "gap before a token, p99 20.00 30.00 1.500" in rows
    assert "requests/s 2.00 0.50 0.250" in rows
    assert "Warning: their settings differ" in text
    assert "seed 7 -> 8" in rows
    assert {file.name for file in Path("out").iterdir()} == {
        "compare.json",
        "compare.csv",
        "latencies.png",
    }
    compare(a, a)
    assert "Their settings are the same." in capsys.readouterr().out


def test_a_file_that_is_no_run_and_a_limit_that_is_none_are_refused(tmp_path: Path) -> None:
    (tmp_path / "bad.json").write_text("{}")
    with pytest.raises(ValueError, match=r"bad\.json is not a saved load run"):
        report(str(tmp_path / "bad.json"))
    with pytest.raises(ValueError, match="goodput limit 'ttft'"):
        report(saved(a_run(), tmp_path / "run.json"), "--goodput", "ttft")
