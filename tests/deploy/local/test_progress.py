"""What a person sees while the servers start."""

from __future__ import annotations

import pytest

from deploy.local.progress import Progress


@pytest.fixture(autouse=True)
def no_time_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("deploy.local.progress.time.monotonic", lambda: 100.0)


def test_a_pipe_gets_a_line_per_interval_without_the_log_prefix(
    capsys: pytest.CaptureFixture[str],
) -> None:
    progress = Progress("starting", interval=0)
    progress.show("2026-11-29T21:27:34.355Z INFO worker.model.loader: loading 272 tensors")
    progress.show("")
    patient = Progress("starting", interval=1000)
    patient.show("never shown")
    progress.end("ready")
    assert capsys.readouterr().err == "starting: 0 s, loading 272 tensors\nstarting: 0 s\nready\n"


def test_a_terminal_gets_one_line_redrawn_when_it_changes_and_no_wider_than_it_is(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "20")
    progress = Progress("starting")
    progress.show("loading a file with a long name")
    progress.show("loading a file with a long name")
    progress.end("ready")
    assert capsys.readouterr().err == "\r\x1b[Kstarting: 0 s, load\r\x1b[Kready\n"
