"""Each call is counted once and told of once, as its client saw it end."""

from __future__ import annotations

import asyncio
import itertools
import random
import time
from collections import Counter
from collections.abc import Callable

import grpc
import numpy as np
import pytest

from nanoserve.v1 import inference_pb2
from nanoserve.v1.inference_pb2 import GenerateRequest, TokenIds
from scheduler.api import server as server_module
from scheduler.api.call_record import Call, CallRecord
from scheduler.api.call_records import CallRecords
from scheduler.api.errors import CallError
from scheduler.api.output_stream import OutputStream
from scheduler.api.output_text import OutputText
from scheduler.api.tracing import NoSpans
from scheduler.core.front_end import Failure, FailureKind, RequestUsage, Submission
from tests.scheduler.api.conftest import Served
from tests.scheduler.api.scripted_engine import ScriptedEngine
from tests.waiting import SECONDS, until

ENDLESS = [5] * 1_000_000
CUT = 777  # in a prompt: its client cuts it off


@pytest.fixture
def recorded(serve) -> Callable:
    """Starts a server; returns it and the list that its records come into."""

    async def start(engine: ScriptedEngine, **config) -> tuple[Served, list[CallRecord]]:
        served = await serve(engine, **config)
        records: list[CallRecord] = []
        served.server._service._records._tell = [records.append]
        return served, records

    return start


async def test_a_finished_call_has_the_engines_account_and_the_tokens_passed_on(recorded):
    served, records = await recorded(ScriptedEngine([5, 6, 7, 2]))
    await served.generate(token_ids=TokenIds(ids=[1, 1, 1]), request_id="r1")
    (record,) = records
    assert (record.request_id, record.outcome, record.status) == ("r1", "stop", "OK")
    assert (record.prompt_tokens, record.output_tokens) == (3, 4)
    assert (record.queue_seconds, record.first_token_seconds) == (0.25, 0.5)
    assert record.token_seconds == pytest.approx((0.75 - 0.5) / 3)
    assert (record.preemptions, record.recomputed_tokens, record.cached_tokens) == (1, 11, 2)
    assert 0 < record.total_seconds < SECONDS
    assert (record.error, record.trace_id, record.prompt, record.output) == ("", "", None, None)
    totals = served.engine.calls
    assert (totals.outcomes, totals.refusals) == ({"stop": 1}, {})
    assert (totals.prompt_tokens, totals.output_tokens) == (3, 4)


async def test_one_token_has_no_gap(recorded):
    served, records = await recorded(ScriptedEngine([2]))
    await served.generate(token_ids=TokenIds(ids=[1]))
    assert (records[0].output_tokens, records[0].token_seconds) == (1, None)


async def test_a_stop_string_found_here_beats_the_engines_length(recorded, smollm2_reference):
    ids = smollm2_reference.encode("one two three four").ids
    served, records = await recorded(ScriptedEngine(ids, tokens_per_turn=4))
    await served.generate(text="x", stop=["two"], max_tokens=4)
    assert (records[0].outcome, records[0].output_tokens) == ("stop", 2)
    assert served.engine.calls.outcomes == {"stop": 1}
    assert served.engine.calls.output_tokens == 2


REFUSED = [
    ({"text": "x", "max_tokens": 0}, "invalid", "INVALID_ARGUMENT"),
    ({"text": "x", "request_id": "twice"}, "duplicate_id", "ALREADY_EXISTS"),
    ({"text": "x", "request_id": "full"}, "queue_full", "RESOURCE_EXHAUSTED"),
    ({"text": "x", "request_id": "away"}, "unavailable", "UNAVAILABLE"),
]


@pytest.mark.parametrize(("fields", "outcome", "status"), REFUSED)
async def test_a_call_that_was_never_taken_is_a_refusal_by_reason(
    recorded, fields, outcome, status
):
    failures = {
        "twice": Failure(0, FailureKind.DUPLICATE_ID, "in use"),
        "full": Failure(0, FailureKind.QUEUE_FULL, "full", retry_after=1.0),
        "away": Failure(0, FailureKind.UNAVAILABLE, "away"),
    }
    served, records = await recorded(ScriptedEngine([2], failures=failures))
    error = await served.error(**fields)
    (record,) = records
    assert (record.outcome, record.status, record.output_tokens) == (outcome, status, 0)
    assert record.error == error.details()
    assert (record.queue_seconds, record.first_token_seconds) == (None, None)
    totals = served.engine.calls
    assert totals.outcomes == totals.refusals == {outcome.replace("_", " "): 1}
    assert (totals.prompt_tokens, totals.output_tokens) == (0, 0)


async def test_a_full_queue_and_a_drain_in_the_front_end_are_refusals(recorded):
    served, _ = await recorded(ScriptedEngine([2]), max_queue=0)
    served.engine.limits = served.engine.limits.__class__(64, 100, 1, 16, 10)
    await served.error(text="x")
    served.server._service.start_draining()
    await served.error(text="x")
    assert served.engine.calls.outcomes == {"queue full": 1, "unavailable": 1}
    assert served.engine.calls.refusals == {"queue full": 1, "unavailable": 1}


async def test_a_failure_of_a_request_that_was_taken_is_no_refusal(recorded):
    usage = RequestUsage(1, 0, 0.1, None, 0.2, 0)
    failures = {"bad": Failure(0, FailureKind.NO_ROOM, "too small", usage=usage)}
    served, records = await recorded(ScriptedEngine([2], failures=failures))
    await served.error(text="x", request_id="bad")
    assert (records[0].outcome, records[0].status) == ("no_room", "RESOURCE_EXHAUSTED")
    assert (records[0].queue_seconds, records[0].first_token_seconds) == (0.1, None)
    assert served.engine.calls.outcomes == {"no room": 1}
    assert served.engine.calls.refusals == {}


async def test_a_cancelled_call_is_told_of_with_the_engines_late_account(recorded):
    engine = ScriptedEngine(ENDLESS, step_seconds=0.002)
    served, records = await recorded(engine)
    call = served.stub.Generate(GenerateRequest(token_ids=TokenIds(ids=[1, 1])))
    await call.read()
    # The client may have a message before its writer is told so.
    await until(lambda: engine.calls.output_tokens)
    engine.freeze()
    call.cancel()
    await until(lambda: engine.calls.outcomes == {"cancelled": 1})
    assert records == []
    engine.thaw()
    await until(lambda: records)
    record = records[0]
    assert (record.outcome, record.status) == ("cancelled", "CANCELLED")
    assert (record.queue_seconds, record.first_token_seconds) == (0.25, 0.5)
    assert record.output_tokens == engine.calls.output_tokens > 0
    assert engine.calls.prompt_tokens == 2
    assert engine.calls.refusals == {}
    assert served.server._service._records._submitted == {}


async def test_a_disconnected_client_has_cancelled(recorded):
    engine = ScriptedEngine(ENDLESS, step_seconds=0.002)
    served, records = await recorded(engine)
    async with grpc.aio.insecure_channel(served.server.address) as channel:
        generate = channel.unary_stream(
            "/nanoserve.v1.InferenceService/Generate",
            request_serializer=GenerateRequest.SerializeToString,
        )
        await generate(GenerateRequest(text="x")).read()
    await until(lambda: records)
    assert engine.calls.outcomes == {"cancelled": 1}


@pytest.mark.parametrize(
    ("clients", "left", "kind"),
    [
        (True, 0.5, FailureKind.DEADLINE),
        (True, -1.0, FailureKind.DEADLINE),
        (True, 5.0, FailureKind.CANCELLED),
        (False, 0.5, FailureKind.CANCELLED),
        (False, 0.0, FailureKind.DEADLINE),
    ],
)
def test_a_client_that_leaves_close_to_its_own_deadline_left_for_it(clients, left, kind):
    call = Call("r", 1000.0, NoSpans().begin(None))
    call.deadline, call.deadline_is_the_clients = 1100.0, clients
    assert call.departure(1100.0 - left).kind is kind


class Deadlines:
    """When calls' deadlines pass at their clients. Here they pass a little later."""

    def __init__(self, engine: ScriptedEngine) -> None:
        self._engine = engine
        self._at: dict[str, float] = {}  # time.monotonic(), by request id

    def begin(self, request_id: str, timeout: float) -> None:
        """The call begins now."""
        self._at[request_id] = time.monotonic() + timeout

    def told(self, record: CallRecord) -> str:
        """The status of the call at its client, as far as it can be known here: a client that
        goes long before its deadline passes here has cancelled, unless the call was long on
        its way."""
        for submission in self._engine.submissions:
            if submission.request_id == record.request_id and record.status == "CANCELLED":
                ours, theirs = submission.deadline, self._at.get(record.request_id)
                if theirs is not None and ours - theirs > 0.02:
                    return "DEADLINE_EXCEEDED"
        return record.status


@pytest.mark.parametrize("timeout", [0.4, 0.8])
async def test_a_clients_deadline_counts_as_one_whoever_notices_it_first(recorded, timeout):
    """The client cancels when its deadline passes, which may come before it passes here. A call
    that expired before it came here was never here."""
    served, records = await recorded(ScriptedEngine(ENDLESS, step_seconds=0.002))
    deadlines = Deadlines(served.engine)
    await served.stub.GetStatus(inference_pb2.GetStatusRequest())  # connected

    async def one(request_id: str) -> grpc.StatusCode:
        deadlines.begin(request_id, timeout)
        prompt = TokenIds(ids=[1])
        error = await served.error(timeout=timeout, token_ids=prompt, request_id=request_id)
        return error.code()

    for first in itertools.count(0, 8):
        codes = await asyncio.gather(*(one(f"{i}") for i in range(first, first + 8)))
        assert {code.name for code in codes} == {"DEADLINE_EXCEEDED"}
        if any(record.outcome == "deadline" for record in records):
            break
        timeout *= 2
    service = served.server._service
    await until(lambda: not service._num_calls and not service._records._submitted)
    assert {deadlines.told(record) for record in records} == {"DEADLINE_EXCEEDED"}
    outcomes = Counter(record.outcome for record in records)
    assert served.engine.calls.outcomes == outcomes
    assert len(served.engine.submissions) <= len(records) <= first + 8
    aborts = Counter(abort.reason.value for abort in served.engine.aborts)
    assert aborts <= outcomes


async def test_the_servers_own_maximum_is_a_deadline(recorded):
    engine = ScriptedEngine(ENDLESS, step_seconds=0.002)
    served, records = await recorded(engine, max_request_seconds=0.2)
    with pytest.raises(grpc.aio.AioRpcError):
        _ = [response async for response in served.stub.Generate(GenerateRequest(text="x"))]
    await until(lambda: records)
    assert records[0].outcome == "deadline"
    assert "maximum of 0.2 seconds" in records[0].error


async def test_a_call_that_a_drain_ends_is_unavailable_and_was_taken(recorded, monkeypatch):
    monkeypatch.setattr(server_module, "_LAST_WORDS_SECONDS", SECONDS)  # for the engine's
    engine = ScriptedEngine(ENDLESS, step_seconds=0.002)
    served, records = await recorded(engine, drain_timeout=0.1)
    running = asyncio.ensure_future(served.error(text="x"))
    await until(lambda: engine.running)
    await served.server.drain()
    await running
    assert (records[0].outcome, records[0].error) == ("unavailable", "the drain ended")
    assert engine.calls.refusals == {}


async def test_a_stuck_engines_calls_are_told_of_when_the_server_stops(recorded):
    engine = ScriptedEngine(ENDLESS, step_seconds=0.002)
    served, records = await recorded(engine, drain_timeout=0.05)
    running = asyncio.ensure_future(served.error(text="x"))
    await until(lambda: engine.running)
    engine.freeze()
    await served.server.drain()
    await running
    assert (engine.calls.outcomes, records) == ({"unavailable": 1}, [])
    await served.server.stop()
    assert [record.outcome for record in records] == ["unavailable"]
    assert records[0].queue_seconds is None


async def test_a_fault_in_the_front_end_is_internal(recorded, smollm2, monkeypatch):
    monkeypatch.setattr(smollm2, "detokenizer", lambda *_: 1 / 0)
    served, records = await recorded(ScriptedEngine([5, 2]))
    await served.error(token_ids=TokenIds(ids=[7]))
    assert (records[0].outcome, records[0].status) == ("internal", "INTERNAL")
    assert served.engine.calls.outcomes == {"internal": 1}


async def test_what_fails_in_telling_harms_neither_the_call_nor_other_listeners(recorded, caplog):
    served, records = await recorded(ScriptedEngine([5, 2]))
    served.server._service._records._tell.insert(0, lambda record: 1 / 0)
    assert (await served.generate(token_ids=TokenIds(ids=[7])))[-1].finish_reason
    assert served.engine.calls.outcomes == {"stop": 1}
    assert len(records) == 1
    assert "was not told" in caplog.text


class BrokenTracer(NoSpans):
    def begin(self, parent):
        raise RuntimeError("a fault in the tracer")


async def test_a_tracer_that_fails_costs_the_trace_only(recorded, caplog):
    served, records = await recorded(ScriptedEngine([5, 2]))
    served.server._service._records._tracer = BrokenTracer()
    assert (await served.generate(token_ids=TokenIds(ids=[7])))[-1].finish_reason
    assert [record.outcome for record in records] == ["stop"]
    assert "a fault in the tracer" in caplog.text


async def test_texts_are_in_the_record_only_where_they_are_logged(recorded, smollm2_reference):
    ids = [*smollm2_reference.encode(" is nice").ids, 2]
    served, records = await recorded(ScriptedEngine(ids), log_text=True)
    await served.generate(text="Paris")
    await served.generate(token_ids=TokenIds(ids=[7, 8]))
    message = inference_pb2.ChatMessage(role="user", content="Hi")
    await served.generate(chat=inference_pb2.Chat(messages=[message]))
    assert [record.prompt for record in records] == [
        "Paris",
        [7, 8],
        [{"role": "user", "content": "Hi"}],
    ]
    assert {record.output for record in records} == {" is nice"}


async def test_totals_equal_what_the_clients_of_a_mixed_run_saw(recorded):
    """Tokens are compared of calls that nobody cut off: of the others some are on the way."""

    def script(submission: Submission) -> list[int]:
        first = submission.prompt_ids[0]
        return ENDLESS if first == CUT else [5] * (first % 40) + [2]

    failures = {f"full {i}": Failure(0, FailureKind.QUEUE_FULL, "full") for i in range(100)}
    served, records = await recorded(ScriptedEngine(script, failures=failures))
    deadlines = Deadlines(served.engine)
    seen: Counter[str] = Counter()
    tokens, prompts, rng = 0, 0, random.Random(1)

    async def one(i: int) -> None:
        nonlocal tokens, prompts
        kind = rng.choice(["stop", "length", "full", "invalid", "cancel", "deadline"])
        first = CUT if kind in ("cancel", "deadline") else rng.randrange(1, 400)
        request = GenerateRequest(token_ids=TokenIds(ids=[first] * (i % 7 + 1)))
        if kind == "length":
            request.max_tokens = rng.randrange(1, 9)
        elif kind == "full":
            request.request_id = f"full {rng.randrange(100)}"
        elif kind == "invalid":
            request.temperature = -1
        timeout = SECONDS
        if kind == "deadline":
            request.request_id, timeout = f"deadline {i}", 1.0
            deadlines.begin(request.request_id, timeout)
        call, got = served.stub.Generate(request, timeout=timeout), 0
        try:
            async for response in call:
                got += len(response.token_ids)
                if kind == "cancel":
                    call.cancel()
        except grpc.aio.AioRpcError:
            pass
        except asyncio.CancelledError:
            assert kind == "cancel"
        code = (await call.code()).name
        seen[code] += 1
        if code in ("OK", "INVALID_ARGUMENT", "RESOURCE_EXHAUSTED"):
            tokens += got
            prompts += i % 7 + 1 if got else 0

    await asyncio.gather(*map(one, range(300)))
    service = served.server._service
    await until(lambda: not service._num_calls and not service._records._submitted)
    # A call that expired before it came here was never here.
    expired = 300 - sum(served.engine.calls.outcomes.values())
    assert len(records) == 300 - expired
    told = Counter(deadlines.told(record) for record in records)
    assert 0 <= expired <= seen["DEADLINE_EXCEEDED"]
    assert len(seen) == 5
    seen["DEADLINE_EXCEEDED"] -= expired
    assert told == +seen
    totals = served.engine.calls
    assert totals.outcomes == Counter(record.outcome.replace("_", " ") for record in records)
    cut = [record for record in records if record.outcome in ("cancelled", "deadline")]
    begun = sum(record.prompt_tokens for record in cut if record.output_tokens)
    assert totals.output_tokens == tokens + sum(record.output_tokens for record in cut)
    assert totals.prompt_tokens == prompts + begun


def late_call(records: CallRecords, handle: int) -> Call:
    """One that the front end ended while the engine has it."""
    call = records.open(GenerateRequest(request_id=str(handle)), ())
    submission = Submission(
        handle, str(handle), np.array([1], np.int32), None, 1.0, None, frozenset(), call.arrival
    )
    records.submitted(call, OutputStream(submission, OutputText(None, (1,), (), False)))
    records.close(call, CallError(FailureKind.CANCELLED, "gone"))
    return call


async def test_an_engine_that_never_answers_is_not_waited_for_for_ever():
    told: list[CallRecord] = []
    records = CallRecords(NoSpans(), [told.append], late_seconds=0.01)
    late_call(records, 1)
    assert told == []
    await until(lambda: told)
    assert (told[0].request_id, told[0].queue_seconds) == ("1", None)
    records.answered(Failure(1, FailureKind.CANCELLED, "at last"))
    records.flush()
    assert len(told) == 1


async def test_not_more_than_so_many_wait_for_the_engine():
    told: list[CallRecord] = []
    records = CallRecords(NoSpans(), [told.append], most_late=3)
    for handle in range(1, 6):
        late_call(records, handle)
    assert [record.request_id for record in told] == ["1", "2"]
    assert len(records._submitted) == len(records._late) == 3
    records.flush()
    assert [record.request_id for record in told] == ["1", "2", "3", "4", "5"]
    assert records._submitted == records._late == {}
    assert records.totals.outcomes == {"cancelled": 5}
