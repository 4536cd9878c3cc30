"""The soak's own parts: a schedule that repeats, a judge that sees what is wrong."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import pytest

from deploy.soak import report
from deploy.soak.client import Answer, Outcome, ask
from deploy.soak.faults import KINDS, schedule
from deploy.soak.questions import CRASH_ID, HANG_ID, Question, SimulatedQuestions, TextQuestions
from deploy.soak.relay import Relay
from deploy.soak.stand import Memory
from nanoserve import Chunk, FinishReason, NanoserveError

RIGHT = Answer((1, 2, 3), "abc")


class ScriptedClient:
    """Stands for AsyncClient: gives these chunks, then fails with `code` if there is one."""

    def __init__(self, *chunks: Chunk, code: grpc.StatusCode | None = None) -> None:
        self._chunks = chunks
        self._code = code

    def generate(self, **_: object) -> ScriptedClient:
        return self

    async def __aenter__(self) -> AsyncIterator[Chunk]:
        return self._run()

    async def __aexit__(self, *_: object) -> None: ...

    async def _run(self) -> AsyncIterator[Chunk]:
        for chunk in self._chunks:
            yield chunk
        if self._code is not None:
            raise NanoserveError(self._code, "why")


def chunk(*ids: int, text: str = "", end: bool = False) -> Chunk:
    return Chunk("r", text, ids, FinishReason.LENGTH if end else None)


def outcome(question: Question, *chunks: Chunk, code: grpc.StatusCode | None = None) -> Outcome:
    client = ScriptedClient(*chunks, code=code)
    return asyncio.run(ask(client, question, lambda _: RIGHT))  # type: ignore[arg-type]


READ = Question(0, "read")
CODE = grpc.StatusCode


def test_the_whole_answer_is_right() -> None:
    done = outcome(READ, chunk(1, text="a"), chunk(2, 3, text="bc", end=True))
    assert done == Outcome("read", "OK", 3)


@pytest.mark.parametrize(
    "chunks",
    [
        [chunk(1, 2, text="abc", end=True)],
        [chunk(1, 2, 2, 3, text="abc", end=True)],
        [chunk(1, 2, 4, text="abc", end=True)],
        [chunk(1, 2, 3, text="ab", end=True)],
    ],
    ids=["lost", "twice", "other", "text"],
)
def test_a_token_lost_repeated_or_changed_or_other_text_is_a_mismatch(chunks: list[Chunk]) -> None:
    assert outcome(READ, *chunks).mismatch


def test_a_wrong_token_before_a_failure_is_a_mismatch_too() -> None:
    cancel = Question(0, "cancel", cancel_after=2)
    assert outcome(cancel, chunk(1, 9, text="a")).mismatch
    assert not outcome(cancel, chunk(1, 2, text="a")).complaint


def test_a_call_that_fails_ends_twice_or_never_says_so_is_complained_about() -> None:
    whole = chunk(1, 2, 3, text="abc", end=True)
    assert "UNAVAILABLE" in outcome(READ, code=CODE.UNAVAILABLE).complaint
    assert "2 messages" in outcome(READ, whole, chunk(end=True)).complaint
    assert "0 messages" in outcome(READ, chunk(1, 2, 3, text="abc")).complaint


@pytest.mark.parametrize(
    ("behaviour", "code"),
    [
        ("malformed", CODE.INVALID_ARGUMENT),
        ("crash", CODE.INTERNAL),
        ("hang", CODE.INTERNAL),
        ("deadline", CODE.DEADLINE_EXCEEDED),
    ],
)
def test_each_behaviour_has_its_own_status(behaviour: str, code: grpc.StatusCode) -> None:
    question = Question(0, behaviour, timeout=0.1)
    assert outcome(question, code=code) == Outcome(behaviour, code.name, 0)
    assert outcome(question, code=CODE.UNKNOWN).complaint
    if behaviour != "deadline":
        assert outcome(question, chunk(1, 2, 3, text="abc", end=True)).complaint


def test_the_same_seed_makes_the_same_faults_and_another_one_others() -> None:
    faults = schedule(7, 200, 4.0)
    assert faults == schedule(7, 200, 4.0) != schedule(8, 200, 4.0)
    assert {fault.kind for fault in faults} == set(KINDS)
    assert all(a.at + a.seconds <= b.at for a, b in itertools.pairwise(faults))
    assert faults[-1].at < 180


def test_the_same_seed_asks_the_same_questions() -> None:
    one, same, other = (SimulatedQuestions(seed, 50) for seed in (1, 1, 2))
    first = [repr(one.question(i)) for i in range(300)]
    assert first == [repr(same.question(i)) for i in range(300)]
    assert first != [repr(other.question(i)) for i in range(300)]
    poison = [i for i in range(300) if one.question(i).behaviour in ("crash", "hang")]
    assert poison == [49, 99, 149, 199, 249, 299]
    for i in poison:
        assert one.question(i).options["token_ids"][-1] in (CRASH_ID, HANG_ID)


def test_every_text_question_is_one_whose_answer_is_known() -> None:
    questions = TextQuestions(3, 20)
    known = {question.key for question in questions.distinct()}
    for i in range(200):
        question = questions.question(i)
        assert question.behaviour == "malformed" or question.key in known


async def test_a_relay_passes_bytes_holds_them_and_cuts(tmp_path: Path) -> None:
    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(100):
            writer.write(data)
        writer.close()

    target, listen = f"{tmp_path}/target", f"{tmp_path}/listen"
    server = await asyncio.start_unix_server(echo, target)
    async with Relay(listen, target) as relay, asyncio.timeout(20):
        reader, writer = await asyncio.open_unix_connection(listen)
        writer.write(b"one")
        assert await reader.read(100) == b"one"
        holding = asyncio.create_task(relay.hold(0.3))
        await asyncio.sleep(0)
        writer.write(b"two")
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(reader.read(100), 0.05)
        await holding
        assert await reader.read(100) == b"two"
        relay.cut()
        with contextlib.suppress(ConnectionResetError):
            assert await reader.read(100) == b""
        writer.close()
    server.close()


def memory(ages: list[float], rss: list[int]) -> list[Memory]:
    return [Memory(a, "scheduler", 1, a, r, 9) for a, r in zip(ages, rss, strict=True)]


def test_growth_compares_the_end_with_what_was_after_five_minutes() -> None:
    ages = [float(age) for age in range(0, 901, 10)]
    assert report.growth(memory(ages, [100] * len(ages)), "scheduler") == 1.0
    assert report.growth(memory(ages, [round(age) for age in ages]), "scheduler") == 890 / 310
    assert report.growth(memory(ages[:50], [100] * 50), "scheduler") is None
    assert report.growth([], "worker") is None
