"""The soak's own parts: a schedule that repeats, a judge that sees what is wrong."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import math
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import grpc
import pytest

from deploy.soak import report
from deploy.soak.absences import Absences
from deploy.soak.client import Answer, Call, Outcome, ask
from deploy.soak.faults import KINDS, schedule
from deploy.soak.questions import (
    CRASH_ID,
    HANG_ID,
    PENALTIES,
    Question,
    SimulatedQuestions,
    TextQuestions,
)
from deploy.soak.recovery import Recoveries, Recovery
from deploy.soak.relay import Relay
from deploy.soak.run import Result
from deploy.soak.server import Server
from deploy.soak.stand import Memory
from nanoserve import Chunk, FinishReason, NanoserveError, TokenLogprobs, TopLogprob
from tests.waiting import SECONDS

RIGHT = Answer((1, 2, 3), "abc")


def its_logprobs(token_id: int, off: float = 0.0) -> TokenLogprobs:
    """Of a token and two of the most likely ones."""
    top = (TopLogprob(7, -0.5 + off), TopLogprob(token_id, -1.5 + off))
    return TokenLogprobs(-1.5 + off, top)


LOGPROBS = tuple(its_logprobs(token_id) for token_id in (1, 2, 3))


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


def outcome(
    question: Question,
    *chunks: Chunk,
    code: grpc.StatusCode | None = None,
    call: Call | None = None,
    right: Answer = RIGHT,
) -> Outcome:
    client = ScriptedClient(*chunks, code=code)
    return asyncio.run(ask(client, question, lambda _: right, call or Call()))  # type: ignore[arg-type]


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


def with_logprobs(*logprobs: TokenLogprobs) -> Chunk:
    return replace(chunk(1, 2, 3, text="abc", end=True), logprobs=logprobs)


def test_log_probabilities_must_be_those_of_an_undisturbed_run() -> None:
    exact = replace(RIGHT, logprobs=LOGPROBS)
    assert not outcome(READ, with_logprobs(*LOGPROBS), right=exact).complaint
    swapped = TokenLogprobs(-1.5, LOGPROBS[2].top[::-1])
    for wrong in (
        LOGPROBS[:2],
        (*LOGPROBS[1:], LOGPROBS[0]),
        (*LOGPROBS[:2], its_logprobs(3, 1e-5)),
        (*LOGPROBS[:2], its_logprobs(4)),
        (*LOGPROBS[:2], replace(LOGPROBS[2], top=())),
        (*LOGPROBS[:2], replace(LOGPROBS[2], logprob=math.nan)),
        (*LOGPROBS[:2], swapped),
    ):
        done = outcome(READ, with_logprobs(*wrong), right=exact)
        assert done.mismatch
        assert "log-probabilities" in done.complaint
    assert outcome(READ, with_logprobs(*LOGPROBS)).mismatch, "nobody asked for them"


def test_log_probabilities_of_a_model_may_differ_by_the_tolerance() -> None:
    near = replace(RIGHT, logprobs=LOGPROBS, tolerance=1e-4)
    off = [its_logprobs(token_id, -9e-5) for token_id in (1, 2, 3)]
    assert not outcome(READ, with_logprobs(*off), right=near).complaint
    for wrong in (its_logprobs(3, 1.1e-4), its_logprobs(4, 1e-6)):
        assert outcome(READ, with_logprobs(*off[:2], wrong), right=near).mismatch


def test_log_probabilities_before_an_early_end_are_compared_as_far_as_they_go() -> None:
    exact, cancel = replace(RIGHT, logprobs=LOGPROBS), Question(0, "cancel", cancel_after=2)
    two = replace(chunk(1, 2, text="a"), logprobs=LOGPROBS[:2])
    assert not outcome(cancel, two, right=exact).complaint
    assert outcome(cancel, replace(two, logprobs=LOGPROBS[:1]), right=exact).mismatch


def test_a_call_that_fails_ends_twice_or_never_says_so_is_complained_about() -> None:
    whole = chunk(1, 2, 3, text="abc", end=True)
    assert "UNAVAILABLE" in outcome(READ, code=CODE.UNAVAILABLE).complaint
    assert "2 messages" in outcome(READ, whole, chunk(end=True)).complaint
    assert "0 messages" in outcome(READ, chunk(1, 2, 3, text="abc")).complaint


@pytest.mark.parametrize("behaviour", ["read", "cancel", "deadline", "malformed", "crash"])
def test_a_call_that_lost_its_scheduler_is_right_and_asked_again(behaviour: str) -> None:
    question = Question(0, behaviour, timeout=5, cancel_after=3)
    half = chunk(1, 2, text="ab")
    lost = outcome(question, half, code=CODE.UNAVAILABLE, call=Call(was_away=lambda _: True))
    assert lost == Outcome(behaviour, "UNAVAILABLE", 2)
    assert lost.is_to_be_retried
    there = outcome(question, half, code=CODE.UNAVAILABLE)
    assert there.complaint
    assert not there.is_to_be_retried
    other = outcome(question, half, code=CODE.INTERNAL, call=Call(was_away=lambda _: True))
    assert not other.is_to_be_retried


def test_a_wrong_token_before_its_scheduler_was_lost_is_a_mismatch() -> None:
    away = Call(was_away=lambda _: True)
    done = outcome(READ, chunk(1, 9, text="ab"), code=CODE.UNAVAILABLE, call=away)
    assert done.mismatch
    assert not done.is_to_be_retried


def test_tokens_without_text_are_a_half_matched_stop_string() -> None:
    call = Call()
    call.took(chunk(1, text="a"))
    assert not call.holds_back
    call.took(chunk(2))
    assert call.holds_back
    call.took(chunk(3, text="bc", end=True))
    assert not call.holds_back


def test_an_absence_touches_calls_of_its_address_and_time_only() -> None:
    absences = Absences()
    absences.began("a", 100.0)
    assert absences.touch("a", 90.0, 100.5)
    assert absences.touch("a", 101.0, 500.0), "it is not over"
    absences.ended("a", 110.0)
    assert not absences.touch("a", 90.0, 99.0)
    assert absences.touch("a", 105.0, 106.0)
    assert absences.touch("a", 112.0, 113.0), "its client may not have found it yet"
    assert not absences.touch("a", 120.0, 121.0)
    assert not absences.touch("b", 105.0, 106.0)


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
    question = Question(0, behaviour, timeout=60.0)
    assert outcome(question, code=code) == Outcome(behaviour, code.name, 0)
    assert outcome(question, code=CODE.UNKNOWN).complaint
    if behaviour != "deadline":
        assert outcome(question, chunk(1, 2, 3, text="abc", end=True)).complaint


def test_the_same_seed_makes_the_same_faults_and_another_one_others() -> None:
    faults = schedule(7, 200, 4.0)
    assert faults == schedule(7, 200, 4.0) != schedule(8, 200, 4.0)
    assert {fault.kind for fault in schedule(7, 1000, 4.0)} == set(KINDS)
    assert all(a.at + a.seconds <= b.at for a, b in itertools.pairwise(faults))
    assert faults[-1].at < 180


def test_the_last_processes_of_a_long_soak_live_long_enough_to_judge_their_memory() -> None:
    faults = schedule(7, 1800, 4.0)
    assert faults == schedule(7, 1800, 4.0)
    last = {KINDS[fault.kind].ends: fault.at for fault in faults}
    assert 500 < last["scheduler"] < 600
    assert 800 < last["worker"] < 900
    assert 1500 < last[""] < 1620
    assert schedule(7, 1800, 4.0, kinds=["kill"])[-1].at < 900


def test_the_same_seed_asks_the_same_questions() -> None:
    one, same, other = (SimulatedQuestions(seed, 50, 60.0) for seed in (1, 1, 2))
    first = [repr(one.question(i, 0)) for i in range(300)]
    assert first == [repr(same.question(i, 59)) for i in range(300)]
    assert first != [repr(other.question(i, 0)) for i in range(300)]
    poison = [i for i in range(300) if one.question(i, 0).behaviour in ("crash", "hang")]
    assert poison == [49, 99, 149, 199, 249, 299]
    for i in poison:
        assert one.question(i, 0).options["token_ids"][-1] in (CRASH_ID, HANG_ID)
        assert one.question(i, 61).behaviour not in ("crash", "hang")


def test_half_of_the_random_requests_have_penalties_and_half_ask_for_log_probabilities() -> None:
    questions = SimulatedQuestions(1, 50)
    options = [questions.question(i, 0).options for i in range(300)]
    penalized = [set(PENALTIES) <= one.keys() for one in options]
    asked = [one.get("top_logprobs") for one in options]
    assert 120 < sum(penalized) < 180
    assert 120 < asked.count(None) < 180
    assert {0, 1, 5} < set(asked)
    both = sum(p and top is not None for p, top in zip(penalized, asked, strict=True))
    assert 50 < both < 100


def test_half_of_the_random_prompts_begin_like_others() -> None:
    questions = SimulatedQuestions(1, 50)
    prompts = [questions.question(i, 0).options["token_ids"] for i in range(300)]
    begins = Counter(tuple(prompt[:16]) for prompt in prompts)
    assert 100 < sum(count for count in begins.values() if count > 10) < 200


def test_every_text_question_is_one_whose_answer_is_known() -> None:
    questions = TextQuestions(3, 20)
    added = questions.add_stops(lambda question: f"an answer to {question.options['prompt']}")
    known = {question.key for question in questions.distinct()}
    assert {question.key for question in added} < known
    extra = [question for question in questions.distinct() if "top_logprobs" in question.options]
    assert all(set(PENALTIES) <= question.options.keys() for question in extra)
    assert len(extra) == len(known) / 2
    assert len(added) == len(known) - len(added)
    assert all(7 <= question.options["max_tokens"] <= 20 for question in questions.distinct())
    for i in range(200):
        question = questions.question(i, 0)
        assert question.behaviour == "malformed" or question.key in known


def test_a_stop_string_made_of_an_answer_is_in_it_or_differs_at_its_end() -> None:
    questions = TextQuestions(3, 20)
    added = questions.add_stops(lambda _: "abcdefghi")
    assert [question.options["stop"] for question in added[:2]] == [["def"], ["bcdefghi!?"]]


def a_worker(starts: int, started_at: float, listening_at: float | None) -> Server:
    worker = SimpleNamespace(starts=starts, started_at=started_at, listening_at=listening_at)
    return cast(Server, worker)


def test_a_pause_is_from_the_kill_to_a_token_less_the_workers_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 100.0
    monkeypatch.setattr("deploy.soak.recovery.time.monotonic", lambda: now)
    worker = a_worker(1, 0.0, 5.0)
    recoveries = Recoveries(worker)
    calls = [Call(began=1.0, tokens=[1]) for _ in range(3)]
    recoveries.killed(set(calls), tokens=600)
    now = 100.1
    recoveries.got_tokens(calls[0])
    assert recoveries.done == [], "it was on its way at the kill"
    vars(worker).update(starts=2, started_at=100.2, listening_at=107.2)
    now = 107.5
    recoveries.got_tokens(Call())
    assert recoveries.done == [], "that stream was not open then"
    recoveries.got_tokens(calls[0])
    assert recoveries.done == [Recovery(pytest.approx(0.5), 600)]
    now = 109.2
    recoveries.ended(calls[1])
    recoveries.got_tokens(calls[2])
    assert recoveries.done == [Recovery(pytest.approx(0.5), 600, pytest.approx(2.0))]
    assert recoveries.done[0].tokens_per_second == pytest.approx(300)
    recoveries.got_tokens(calls[0])
    assert len(recoveries.done) == 1


async def test_a_relay_passes_bytes_holds_them_and_cuts(tmp_path: Path) -> None:
    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(100):
            writer.write(data)
        writer.close()

    target, listen = f"{tmp_path}/target", f"{tmp_path}/listen"
    server = await asyncio.start_unix_server(echo, target)
    async with Relay(listen, target) as relay, asyncio.timeout(SECONDS):
        reader, writer = await asyncio.open_unix_connection(listen)
        writer.write(b"one")
        assert await reader.read(100) == b"one"
        holding = asyncio.create_task(relay.hold(1000))
        await asyncio.sleep(0)
        writer.write(b"two")
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(reader.read(100), 0.05)
        holding.cancel()
        assert await reader.read(100) == b"two"
        await relay.hold(0.01)
        writer.write(b"three")
        assert await reader.read(100) == b"three"
        relay.cut()
        with contextlib.suppress(ConnectionResetError):
            assert await reader.read(100) == b""
        writer.close()
    server.close()


def memory(ages: list[float], rss: list[int], born: float = 0.0) -> list[Memory]:
    return [Memory(a, "scheduler", 1, born, a, r, 9) for a, r in zip(ages, rss, strict=True)]


def test_growth_compares_the_end_with_what_was_after_five_minutes() -> None:
    ages = [float(age) for age in range(0, 901, 10)]
    assert report.growth(memory(ages, [100] * len(ages)), "scheduler") == 1.0
    assert report.growth(memory(ages, [round(age) for age in ages]), "scheduler") == 890 / 310
    assert report.growth(memory(ages[:50], [100] * 50), "scheduler") is None
    before = memory(ages, [50] * len(ages), born=-2000.0)
    assert report.growth([*before, *memory(ages, [100] * len(ages))], "scheduler") == 1.0
    assert report.growth([*before, *memory(ages[:50], [100] * 50)], "scheduler") is None
    assert report.growth([], "worker") is None


def test_a_process_that_grew_and_one_that_lived_too_short_are_complained_about() -> None:
    ages = [float(age) for age in range(0, 901, 10)]
    grew = Result(1800.0, memory=memory(ages, [round(100 + age / 10) for age in ages]))
    report.judge_growth(grew)
    assert ["grew to 1.4" in grew.complaints[0], "no worker lived" in grew.complaints[1]] == [
        True
    ] * 2
    short = Result(60.0, memory=memory(ages[:7], [100] * 7))
    report.judge_growth(short)
    assert short.complaints == []


def test_the_json_has_a_line_for_each_fault() -> None:
    value = {"a": {"faults": [{"at": 1.0, "kind": "kill"}, {"at": 2.0, "kind": "cut"}]}, "b": []}
    text = report.lines(value)
    assert json.loads(text) == value
    assert len(text.splitlines()) == 9
