"""Trace files."""

from __future__ import annotations

from pathlib import Path

import pytest

from deploy.loadtest.trace import TraceLine, read_trace

EXPECTED = (TraceLine(0, 5, 7, ""), TraceLine(0.5, 1, 2, "chat"), TraceLine(2, 3, 4, ""))


def test_a_csv_trace_is_read_in_order_of_time_from_zero_on(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text(
        "time,prompt_len,output_len,group,more\n12,3,4,,x\n10,5,7,,y\n10.5, 1, 2,chat,\n"
    )
    assert read_trace(path) == EXPECTED


def test_a_jsonl_trace_says_the_same(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text(
        '{"time": 12, "prompt_len": 3, "output_len": 4}\n\n'
        '{"time": 10, "prompt_len": 5, "output_len": 7}\n'
        '{"time": 10.5, "prompt_len": 1, "output_len": 2, "group": "chat"}\n'
    )
    assert read_trace(path) == EXPECTED


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("t.csv", "", "its first line must name time, prompt_len, output_len; no time"),
        ("t.csv", "time,prompt_len\n1,2\n", "no output_len"),
        ("t.csv", "time,prompt_len,output_len\n", "has no requests"),
        ("t.csv", "time,prompt_len,output_len\n1,2,3\n1,x,3\n", "line 3: prompt_len is 'x'"),
        ("t.csv", "time,prompt_len,output_len\n1,2\n", "line 2: output_len is None"),
        ("t.csv", "time,prompt_len,output_len\n1,0,3\n", "line 2: prompt_len is 0, must be a who"),
        ("t.csv", "time,prompt_len,output_len\n1,2,2.5\n", "line 2: output_len is 2.5"),
        ("t.csv", "time,prompt_len,output_len\nnan,2,2\n", "line 2: time is nan"),
        ("t.jsonl", "{}\n", "line 1: time is None, must be a number"),
        ("t.jsonl", "[1]\n", "line 1: must be an object"),
        ("t.jsonl", "{\n", "line 1: "),
    ],
)
def test_a_line_at_fault_is_named(tmp_path: Path, name: str, text: str, message: str) -> None:
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises(ValueError) as refused:  # noqa: PT011
        read_trace(path)
    assert str(path) in str(refused.value)
    assert message in str(refused.value)
