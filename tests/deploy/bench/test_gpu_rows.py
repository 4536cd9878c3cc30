"""The table of the GPU bench: shares, gains and verdicts on figures made by hand."""

from __future__ import annotations

import pytest

from deploy.bench.floor import Rates
from deploy.bench.gpu.attention import attention_rows
from deploy.bench.gpu.model_bench import KINDS
from deploy.bench.gpu.rows import HEADER, Row, line
from deploy.bench.gpu.start import log_times
from deploy.bench.gpu.targets import TARGETS


def step(*values: float) -> Row:
    """Reach 0.85, aim 0.72, vLLM 2.04."""
    return Row("1b decode 1", "1B decode step, batch 1", "ms", values, 0.56, 1.25)


def test_a_time_is_the_better_the_less_it_is() -> None:
    row = step(0.9, 0.8, 1.2)
    assert row.value == 0.9
    assert row.gain(0.45) == pytest.approx(0.5)
    values = row.to_json()
    assert values["share_of_floor"] == pytest.approx(0.56 / 0.9)
    assert (values["vllm"], values["reach"], values["aim"]) == (2.04, 0.85, 0.72)
    assert (values["values"], values["gap_p99_ms"]) == ([0.9, 0.8, 1.2], 1.25)


def test_a_rate_is_the_better_the_more_it_is() -> None:
    row = Row("1b mixed512", "1B mixed512", "tok/s", (40_000.0,), 71_000.0)
    assert row.gain(20_000) == pytest.approx(2.0)
    assert row.to_json()["share_of_floor"] == pytest.approx(40 / 71)


@pytest.mark.parametrize(
    ("value", "verdict"), [(0.72, "aim"), (0.73, "reach"), (0.85, "reach"), (0.86, "short")]
)
def test_the_verdict_of_a_time(value: float, verdict: str) -> None:
    assert step(value).verdict == verdict


@pytest.mark.parametrize(
    ("value", "verdict"), [(56_000, "aim"), (48_000, "reach"), (47_999, "short")]
)
def test_the_verdict_of_a_rate(value: float, verdict: str) -> None:
    assert Row("1b mixed512", "", "tok/s", (float(value),)).verdict == verdict


def test_a_row_without_target_has_no_verdict() -> None:
    row = Row("tiny decode 1", "TINY", "ms", (1.0,))
    assert (row.target, row.verdict) == (None, "")
    assert line(row).split() == ["TINY", "1.00", "1.00", "1.00", "ms", *"-------"]


def test_a_line_has_a_cell_under_each_heading() -> None:
    shown = line(step(0.9, 0.8, 1.2))
    cells = [
        "0.900",
        "0.800",
        "1.20",
        "ms",
        "1.25",
        "0.560",
        "62%",
        "2.04",
        "2.27",
        "0.850",
        "0.720",
        "short",
    ]
    assert shown.removeprefix("1B decode step, batch 1").split() == cells
    assert shown.index("short") > HEADER.index("aim")
    assert shown[: HEADER.index("median") + 6].endswith("0.900")


def test_attention_is_told_as_a_share_of_the_read_rate_and_for_one_row_as_its_time() -> None:
    times = [
        {"head_dim": 64, "rows": 64, "context": 4096, "us": 20.0, "bytes": 10_000},
        {"head_dim": 64, "rows": 1, "context": 640, "us": 5.0, "bytes": 1_000},
    ]
    whole, single = attention_rows(times, Rates(1e9, 1.0))
    assert (whole.unit, whole.value, whole.floor) == ("%", pytest.approx(50.0), 100.0)
    assert (single.unit, single.value, single.floor) == ("us", 5.0, pytest.approx(1.0))
    assert (whole.verdict, single.verdict) == ("short", "reach")


def test_every_target_is_of_a_row_that_is_measured_and_its_aim_is_not_easier_than_its_reach() -> (
    None
):
    for key, target in TARGETS.items():
        kind = key.split()[0] if key.startswith("attention") else key.split()[1]
        assert {"first": "first-token"}.get(kind, kind) in KINDS
        unit = "tok/s" if kind in ("mixed512", "prefill") else "ms"
        if kind == "text" or (target.reach > 50 > 10 and key.startswith("attention")):
            unit = "%"
        assert Row(key, "", unit, (target.aim,)).gain(target.reach) >= 1


def test_a_log_is_told_in_seconds_from_the_start() -> None:
    lines = [
        "1970-01-01T00:00:11.500Z INFO worker.model.loader: loading 146 tensors",
        "a line of something else",
        "1970-01-01T00:00:12.250Z WARNING worker: listening on x: y",
    ]
    assert log_times(lines, 10.0) == ((1.5, "loading 146 tensors"), (2.25, "listening on x: y"))
