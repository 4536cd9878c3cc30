"""A run on disk: what is written is what is read."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import numpy as np
import pytest

from deploy.loadtest.timeline import NOT_SENT, Run, ServerSample, Stage, Timeline


def a_timeline(index: int, planned: float, sent: float | None, **others: object) -> Timeline:
    values: dict[str, object] = {
        "times": np.array([0.5, 0.625], np.float64),
        "token_counts": np.array([1, 0], np.int32),
        "has_text": np.array([False, True]),
        "ended": 0.75,
        "status": "OK",
        "prompt_tokens": 4,
        "output_tokens": 1,
    }
    return Timeline(index=index, planned=planned, sent=sent, **values | others)  # type: ignore[arg-type]


def a_run() -> Run:
    return Run(
        settings={"seed": 7, "machine": {"cores": 2}},
        started_at="2026-01-02T03:04:05Z",
        stages=(Stage(0.25, 1.0, 4.0, None), Stage(1.0, 2.5, 8.0, None)),
        timelines=(
            a_timeline(0, 0.0, 0.5, warm_up=True),
            a_timeline(1, 0.25, 0.3125, group="short", request_id="a"),
            a_timeline(2, 1.0, 1.0, stage=1, cancelled=True, status="CANCELLED"),
            a_timeline(3, 2.0, None, status=NOT_SENT, detail="the run was over"),
        ),
        samples=(ServerSample(0.5, 2, 1, 30, 64, 3),),
        knee=4.0,
    )


@pytest.mark.parametrize("name", ["run.json", "run.json.gz"])
def test_a_saved_run_is_read_back_whole(tmp_path: Path, name: str) -> None:
    run = a_run()
    run.save(tmp_path / name)
    data = (tmp_path / name).read_bytes()
    assert data.startswith(b"\x1f\x8b") == name.endswith(".gz")
    again = Run.load(tmp_path / name)
    for field in ("settings", "started_at", "stages", "samples", "interrupted", "knee"):
        assert getattr(again, field) == getattr(run, field)
    for read, written in zip(again.timelines, run.timelines, strict=True):
        for field in Timeline.__slots__:
            value, expected = getattr(read, field), getattr(written, field)
            if isinstance(expected, np.ndarray):
                assert value.dtype == expected.dtype
                assert value.tolist() == expected.tolist()
            else:
                assert value == expected


def test_lag_is_sent_less_planned_without_warm_up_and_requests_never_sent() -> None:
    assert a_run().lags.tolist() == [0.0625, 0.0]


def test_the_measuring_window_spans_all_stages() -> None:
    assert a_run().seconds == 2.25
    assert [stage.seconds for stage in a_run().stages] == [0.75, 1.5]


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"[]",
        b"{}",
        b'{"format": "other"}',
        b'{"format": "nanoserve-loadtest-1", "stages": []}',
        json.dumps({"format": "nanoserve-loadtest-1", "stages": [{"x": 1}]}).encode(),
    ],
)
@pytest.mark.parametrize("name", ["run.json", "run.json.gz"])
def test_a_file_that_is_no_run_is_refused_by_name(
    tmp_path: Path, name: str, content: bytes
) -> None:
    path = tmp_path / name
    path.write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    with pytest.raises(ValueError, match=r"run\.json(\.gz)? is not a saved load run"):
        Run.load(path)


def test_a_run_without_a_stage_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    a_run().save(path)
    path.write_text(json.dumps(json.loads(path.read_text()) | {"stages": []}))
    with pytest.raises(ValueError, match="it has no stage"):
        Run.load(path)


def test_a_cut_file_is_refused_by_name(tmp_path: Path) -> None:
    a_run().save(tmp_path / "run.json.gz")
    whole = (tmp_path / "run.json.gz").read_bytes()
    (tmp_path / "run.json.gz").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ValueError, match="is not a saved load run"):
        Run.load(tmp_path / "run.json.gz")
