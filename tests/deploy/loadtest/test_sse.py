"""Server-sent events, and how OpenAI chunks are counted."""

from __future__ import annotations

import json
from typing import Any

import pytest

from deploy.loadtest.openai_chunk import Chunk, read_chunk
from deploy.loadtest.sse import EventReader
from deploy.loadtest.target import Failed

STREAM = (
    b": a comment\ndata: one\n\ndata:two\r\ndata:  lines\r\n\r\n\n"
    b"event: x\rdata: caf\xc3\xa9\r\revent: only\n\ndata\n\ndata: not ended\n"
)
EVENTS = ["one", "two\n lines", "café", ""]


def test_events_are_the_same_however_the_bytes_are_cut() -> None:
    for size in range(1, len(STREAM) + 1):
        reader = EventReader()
        parts = (STREAM[i : i + size] for i in range(0, len(STREAM), size))
        assert [event for part in parts for event in reader.feed(part)] == EVENTS


def test_an_event_is_given_with_the_bytes_that_complete_it() -> None:
    reader = EventReader()
    assert reader.feed(b"data: a\n") == []
    assert reader.feed(b"\ndata: b") == ["a"]
    assert reader.feed(b"\n\n") == ["b"]


def completion(**choice: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "finish_reason": None} | choice]}


@pytest.mark.parametrize(
    ("chunk", "expected"),
    [
        (completion(text="a b c"), Chunk(1, "a b c", False, None, None)),
        (completion(text=""), Chunk(0, "", False, None, None)),
        (completion(text="", token_ids=[5]), Chunk(1, "", False, None, None)),
        (completion(text="abc", token_ids=[5, 6, 7]), Chunk(3, "abc", False, None, None)),
        (completion(text="ab", logprobs={"tokens": ["a", "b"]}), Chunk(2, "ab", False, None, None)),
        (completion(delta={"role": "assistant"}), Chunk(0, "", False, None, None)),
        (completion(delta={"role": "assistant", "content": ""}), Chunk(0, "", False, None, None)),
        (completion(delta={"content": "hi"}), Chunk(1, "hi", False, None, None)),
        (completion(delta={"reasoning_content": "hm"}), Chunk(1, "hm", False, None, None)),
        (
            completion(delta={"content": "hi"}, logprobs={"content": [{}, {}]}),
            Chunk(2, "hi", False, None, None),
        ),
        (completion(delta={}, finish_reason="stop"), Chunk(0, "", True, None, None)),
        (completion(text="z", finish_reason="length"), Chunk(1, "z", True, None, None)),
        (
            {"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 9}},
            Chunk(0, "", False, 3, 9),
        ),
        (
            {
                "choices": [],
                "usage": {
                    "prompt_tokens": 30,
                    "completion_tokens": 9,
                    "prompt_tokens_details": {"cached_tokens": 16},
                },
            },
            Chunk(0, "", False, 30, 9, 16),
        ),
    ],
)
def test_tokens_are_ids_else_logprobs_else_one_for_a_text(chunk: Any, expected: Chunk) -> None:
    assert read_chunk(json.dumps(chunk)) == expected


@pytest.mark.parametrize(
    ("data", "status"),
    [
        ('{"error": {"message": "full", "code": 503}}', "HTTP 503"),
        ('{"error": {"message": "full", "code": "x"}}', "INTERNAL"),
        ('{"error": "full"}', "INTERNAL"),
        ("nothing", "PROTOCOL"),
        ("[]", "PROTOCOL"),
        ('{"choices": [1]}', "PROTOCOL"),
    ],
)
def test_an_error_event_and_what_is_no_chunk_fail_the_request(data: str, status: str) -> None:
    with pytest.raises(Failed) as failed:
        read_chunk(data)
    assert failed.value.status == status
