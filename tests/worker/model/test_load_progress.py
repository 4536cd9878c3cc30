"""What a person sees of a load."""

import logging

import pytest

from worker.model import load_progress
from worker.model.load_progress import LoadProgress


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Its one item is the time."""
    now = [100.0]
    monkeypatch.setattr(load_progress.time, "monotonic", lambda: now[0])
    return now


def play(clock: list[float], shown: bool = True) -> None:
    with LoadProgress(2_000_000_000, shown, interval=2.0) as progress:
        for seconds, count in ((1.9, 100_000_000), (0.1, 400_000_000), (1, 1), (9, 1_499_999_999)):
            clock[0] += seconds
            progress.add(count)


def test_without_a_terminal_the_share_is_logged_at_most_every_interval(
    clock: list[float], caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    caplog.set_level(logging.INFO)
    play(clock)
    assert caplog.messages == ["weights: 25 % of 2.00 GB", "weights: 100 % of 2.00 GB"]
    assert capsys.readouterr().err == ""


def test_a_terminal_gets_a_bar_and_no_lines(
    caplog: pytest.LogCaptureFixture,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    caplog.set_level(logging.INFO)
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    with LoadProgress(2_000_000_000, True, interval=0) as progress:
        progress.add(2_000_000_000)
    assert caplog.messages == []
    assert "weights: 100%" in capsys.readouterr().err


def test_nothing_is_shown_where_nobody_looks(
    clock: list[float], caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    caplog.set_level(logging.INFO)
    play(clock, shown=False)
    assert caplog.messages == []
    assert capsys.readouterr().err == ""
