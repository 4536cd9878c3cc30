"""The line that a call ends with, in both formats, whatever the call holds."""

from __future__ import annotations

import asyncio
import io
import json
import logging
import re
from collections.abc import Iterator

import pytest

from nanoserve.v1.inference_pb2 import Chat, ChatMessage, GenerateRequest, TokenIds
from scheduler.api.call_log import log, log_call
from scheduler.api.call_record import CallRecord
from scheduler.log_format import HumanFormatter, JsonFormatter
from tests.scheduler.api.scripted_engine import ScriptedEngine
from tests.waiting import until

FINISHED = CallRecord(
    request_id="r1",
    outcome="stop",
    status="OK",
    prompt_tokens=5,
    output_tokens=4,
    total_seconds=0.75,
    queue_seconds=0.25,
    first_token_seconds=0.5,
    last_token_seconds=0.7,
    token_seconds=0.06666,
    preemptions=1,
    recomputed_tokens=11,
    cached_tokens=2,
)
REFUSED = CallRecord("no id", "invalid", "INVALID_ARGUMENT", 0, 0, 0.001, error='why: "x"')
HOSTILE = 'a"b\\c\n2026 INFO fake: x=1\r\x1b[31m\x00 \u2028🌶\udcff'


class Lines:
    """What the log's handler wrote."""

    def __init__(self, formatter: logging.Formatter) -> None:
        self.stream = io.StringIO()
        self.handler = logging.StreamHandler(self.stream)
        self.handler.setFormatter(formatter)

    @property
    def all(self) -> list[str]:
        return self.stream.getvalue().split("\n")[:-1]

    @property
    def objects(self) -> list[dict]:
        return [json.loads(line) for line in self.all]


@pytest.fixture(params=[HumanFormatter, JsonFormatter])
def lines(request) -> Iterator[Lines]:
    yield from listening(request.param())


@pytest.fixture
def json_lines() -> Iterator[Lines]:
    yield from listening(JsonFormatter())


def listening(formatter: logging.Formatter) -> Iterator[Lines]:
    lines, level = Lines(formatter), log.level
    log.addHandler(lines.handler)
    log.setLevel(logging.INFO)
    yield lines
    log.removeHandler(lines.handler)
    log.setLevel(level)


@pytest.mark.parametrize("lines", [HumanFormatter], indirect=True)
def test_for_people_it_is_one_line_of_names_and_values(lines):
    log_call(FINISHED)
    log_call(REFUSED)
    times, texts = zip(*(line.split(" ", 1) for line in lines.all), strict=True)
    assert all(re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", time) for time in times)
    assert texts == (
        "INFO scheduler.api.call_log: request ended request_id=r1 outcome=stop status=OK "
        "prompt_tokens=5 cached_tokens=2 output_tokens=4 queue_ms=250.0 first_token_ms=500.0 "
        "token_ms=66.66 total_ms=750.0 preemptions=1 recomputed_tokens=11",
        'INFO scheduler.api.call_log: request ended request_id="no id" outcome=invalid '
        "status=INVALID_ARGUMENT prompt_tokens=0 cached_tokens=0 output_tokens=0 total_ms=1.0 "
        'preemptions=0 recomputed_tokens=0 error="why: \\"x\\""',
    )


def test_as_json_it_is_one_object_with_numbers(json_lines):
    log_call(FINISHED)
    (line,) = json_lines.objects
    assert line.pop("time").endswith("Z")
    assert line == {
        "level": "info",
        "logger": "scheduler.api.call_log",
        "message": "request ended",
        "request_id": "r1",
        "outcome": "stop",
        "status": "OK",
        "prompt_tokens": 5,
        "output_tokens": 4,
        "queue_ms": 250.0,
        "first_token_ms": 500.0,
        "token_ms": 66.66,
        "total_ms": 750.0,
        "preemptions": 1,
        "recomputed_tokens": 11,
        "cached_tokens": 2,
    }


def test_nothing_in_a_call_makes_a_second_line_or_a_control_character(lines):
    log_call(CallRecord(HOSTILE, "stop", "OK", 1, 1, 0.1, error=HOSTILE, output=HOSTILE))
    (line,) = lines.all
    assert line.isascii()
    assert line.isprintable()


def test_text_comes_back_whole_out_of_json(json_lines):
    prompt = [{"role": "user", "content": HOSTILE}]
    log_call(CallRecord(HOSTILE, "stop", "OK", 1, 1, 0.1, prompt=prompt, output=HOSTILE))
    (line,) = json_lines.objects
    assert (line["request_id"], line["prompt"], line["output"]) == (HOSTILE, prompt, HOSTILE)


def test_an_id_that_was_refused_for_its_length_is_cut(json_lines):
    log_call(CallRecord("x" * 1_000_000, "invalid", "INVALID_ARGUMENT", 0, 0, 0.1))
    assert json_lines.objects[0]["request_id"] == "x" * 128


def test_a_traceback_is_part_of_its_object():
    lines = Lines(JsonFormatter())
    logger = logging.Logger("test_call_log")  # not seen by pytest, which cannot tell it
    logger.addHandler(lines.handler)
    try:
        raise ValueError(HOSTILE)
    except ValueError:
        logger.exception("failed: %s", HOSTILE)
    (line,) = lines.objects
    assert line["message"] == f"failed: {HOSTILE}"
    assert "Traceback" in line["exception"]
    assert "ValueError" in line["exception"]


@pytest.mark.parametrize("log_text", [False, True])
async def test_no_text_is_logged_unless_asked_for(serve, json_lines, smollm2_reference, log_text):
    """Of whatever end, and not in what a chat template says of the messages it refuses."""
    ids = [*smollm2_reference.encode("answer").ids, *[5] * 100]
    engine = ScriptedEngine(ids, step_seconds=0.005)
    served = await serve(engine, log_text=log_text)
    await served.generate(text="secret", max_tokens=2)
    await served.generate(chat=Chat(messages=[ChatMessage(role="user", content="secret")]))
    await served.error(text="secret", temperature=-1)
    tokenizer = served.server._service._model.tokenizer
    tokenizer.encode_chat, whole = refuse_chat, tokenizer.encode_chat
    try:
        await served.error(chat=Chat(messages=[ChatMessage(role="user", content="secret")]))
    finally:
        tokenizer.encode_chat = whole
    call = served.stub.Generate(GenerateRequest(text="secret"))
    await call.read()
    call.cancel()
    await until(lambda: len(json_lines.all) == 5)
    for line in json_lines.all:
        assert ("secret" in line) is log_text
    assert any("answer" in line for line in json_lines.all) is log_text


def refuse_chat(messages) -> list[int]:
    from scheduler.api.chat_template import ChatTemplateError

    raise ChatTemplateError(f"the model's chat template refuses it: {messages[0]['content']}")


async def test_each_call_of_a_server_has_its_line(serve, json_lines):
    served = await serve(ScriptedEngine([5, 5, 2]))
    calls = [
        served.generate(token_ids=TokenIds(ids=[i]), request_id=f"call {i}") for i in range(40)
    ]
    await asyncio.gather(*calls)
    assert sorted(line["request_id"] for line in json_lines.objects) == sorted(
        f"call {i}" for i in range(40)
    )
    assert {line["output_tokens"] for line in json_lines.objects} == {3}


def test_without_the_level_no_line_is_made(lines):
    log.setLevel(logging.WARNING)
    log_call(FINISHED)
    assert lines.all == []
