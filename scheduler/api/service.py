"""InferenceService: validates, converts, submits, streams."""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from dataclasses import dataclass

import grpc
import numpy as np

from nanoserve.v1 import inference_pb2, inference_pb2_grpc
from scheduler.api.call_record import Call
from scheduler.api.call_records import CallRecords
from scheduler.api.errors import CallError
from scheduler.api.method_handlers import decoded
from scheduler.api.output_stream import OutputStream
from scheduler.api.output_text import OutputText
from scheduler.api.prompt import PromptEncoder
from scheduler.api.status_calls import StatusCalls
from scheduler.api.tokenizer import Tokenizer
from scheduler.api.tracing import NoSpans
from scheduler.api.validation import Parameters, check_parameters
from scheduler.core.admission import RETRY_SECONDS, retry_after, too_long_a_wait
from scheduler.core.front_end import (
    Abort,
    EnginePort,
    EventBatch,
    Failure,
    FailureKind,
    FinishReason,
    Limits,
    Submission,
)

log = logging.getLogger(__name__)

INTERNAL_ERROR = "internal error; see the server's log"

_Context = grpc.aio.ServicerContext[inference_pb2.GenerateRequest, inference_pb2.GenerateResponse]
_StatusContext = grpc.aio.ServicerContext[
    inference_pb2.GetStatusRequest, inference_pb2.GetStatusResponse
]
_WatchContext = grpc.aio.ServicerContext[
    inference_pb2.WatchStatusRequest, inference_pb2.WatchStatusResponse
]


@dataclass(frozen=True)
class ServedModel:
    """What the front end knows of the model. `tokenizer` None: token ids only."""

    name: str
    tokenizer: Tokenizer | None
    end_ids: frozenset[int]


# The generated base has no types.
class InferenceService(inference_pb2_grpc.InferenceServiceServicer):  # type: ignore[misc]
    """Runs on one event loop; `deliver` is its only entry for the engine's events."""

    def __init__(
        self,
        model: ServedModel,
        engine: EnginePort,
        max_request_seconds: float,
        max_queue: int | None = None,
        records: CallRecords | None = None,
        max_queue_wait: float | None = None,
        first_handle: int = 1,
    ) -> None:
        """`max_queue` and `max_queue_wait` (seconds) are the engine's; None leaves it to the
        engine to refuse. `records` None counts calls and tells nobody of them. Handles count up
        from `first_handle`."""
        self._model = model
        self._engine = engine
        self._max_request_seconds = max_request_seconds
        self._max_queue = max_queue
        self._max_queue_wait = max_queue_wait
        self._records = records or CallRecords(NoSpans(), ())
        self._num_encoding = 0
        self._encoder = PromptEncoder(model.tokenizer)
        self._streams: dict[int, OutputStream] = {}
        self._handles = itertools.count(first_handle)
        self._status = StatusCalls(engine, model.name, self._handles)
        self._draining = False
        self._num_calls = 0
        self._idle = asyncio.Event()
        self._idle.set()
        engine.report(self._records.totals)

    def deliver(self, batch: EventBatch) -> None:
        """Hands out a batch of the engine's events. Called on the event loop."""
        streams = self._streams
        handles, token_ids = batch.handles.tolist(), batch.token_ids.tolist()
        logprobs = (
            batch.logprobs.by_token(len(handles)) if batch.logprobs else itertools.repeat(None)
        )
        for handle, token_id, its_logprobs in zip(handles, token_ids, logprobs, strict=False):
            stream = streams.get(handle)
            if stream is None:
                continue
            try:
                matched = stream.push(token_id, its_logprobs)
            except Exception:
                self._fail(stream)
                continue
            if matched:
                self._engine.abort(Abort(handle, FinishReason.STOP, stream.num_tokens))
        for event in batch.ends:
            self._records.answered(event)
            stream = streams.get(event.handle)
            if stream is None:
                continue
            try:
                stream.end(event)
            except Exception:
                self._fail(stream)
        for snapshot in batch.snapshots:
            self._status.deliver(snapshot)

    def readiness_changed(self) -> None:
        """Tells those who watch the status. Called on the event loop."""
        self._status.readiness_changed()

    def start_draining(self) -> None:
        """New calls get UNAVAILABLE from now on."""
        self._draining = True
        self._status.start_draining()

    async def wait_idle(self, deadline: float) -> bool:
        """Waits until no call is running, at most until `deadline` (time.monotonic())."""
        try:
            async with asyncio.timeout_at(deadline):
                await self._idle.wait()
        except TimeoutError:
            return False
        return True

    def fail_all(self, message: str) -> None:
        """Ends every running call with UNAVAILABLE, whatever the engine does."""
        for stream in self._streams.values():
            if not stream.ended:
                stream.end(Failure(stream.handle, FailureKind.UNAVAILABLE, message))

    def end_watches(self) -> None:
        """Ends the calls that have no end of their own, once the server has drained."""
        self._status.end_watches()

    def close(self) -> None:
        self._encoder.close()
        self._records.flush()

    def _fail(self, stream: OutputStream) -> None:
        """Ends one call whose text cannot be made; the batch's other tokens go on. To be
        called where the exception is handled."""
        log.exception("request %r failed in the front end", stream.request_id)
        stream.end(Failure(stream.handle, FailureKind.INTERNAL, INTERNAL_ERROR))
        self._engine.abort(Abort(stream.handle, FailureKind.INTERNAL))

    # A request is None if it could not be decoded.

    async def GetStatus(
        self, request: inference_pb2.GetStatusRequest | None, context: _StatusContext
    ) -> inference_pb2.GetStatusResponse:
        try:
            return await self._status.get(decoded(request, inference_pb2.GetStatusRequest))
        except CallError as error:
            await context.abort(error.code, error.message, error.trailing_metadata())

    async def WatchStatus(
        self, request: inference_pb2.WatchStatusRequest | None, context: _WatchContext
    ) -> None:
        try:
            request = decoded(request, inference_pb2.WatchStatusRequest)
            await self._status.watch(request, context.write)
        except CallError as error:
            await context.abort(error.code, error.message, error.trailing_metadata())

    async def Generate(
        self, request: inference_pb2.GenerateRequest | None, context: _Context
    ) -> None:
        self._num_calls += 1
        self._idle.clear()
        call = self._records.open(request, context.invocation_metadata())
        try:
            request = decoded(request, inference_pb2.GenerateRequest)
            await self._generate_until_deadline(request, context, call)
        except CallError as error:
            self._records.close(call, error)
            await context.abort(error.code, error.message, error.trailing_metadata())
        except Exception:
            if context.done():
                return  # the client went away while a message was on its way to it
            log.exception("request %r failed in the front end", call.request_id)
            self._records.close(call, CallError(FailureKind.INTERNAL, INTERNAL_ERROR))
            await context.abort(grpc.StatusCode.INTERNAL, INTERNAL_ERROR)
        finally:
            self._records.close(call)
            self._num_calls -= 1
            if not self._num_calls:
                self._idle.set()

    async def _generate_until_deadline(
        self, request: inference_pb2.GenerateRequest, context: _Context, call: Call
    ) -> None:
        remaining = context.time_remaining()
        seconds = self._max_request_seconds if remaining is None else remaining
        call.deadline = call.arrival + seconds
        call.deadline_is_the_clients = remaining is not None
        if seconds <= 0:
            raise _expired(call, seconds)
        try:
            async with asyncio.timeout_at(call.deadline):
                await self._generate(request, context, call)
        except TimeoutError:
            raise _expired(call, seconds) from None

    async def _generate(
        self, request: inference_pb2.GenerateRequest, context: _Context, call: Call
    ) -> None:
        limits = self._limits()
        parameters = check_parameters(request, limits, self._model.tokenizer is not None)
        call.request_id = parameters.request_id
        prompt_ids = await self._encode(request, parameters.max_tokens, limits)
        call.prompt_tokens = len(prompt_ids)
        end_ids = frozenset() if parameters.ignore_eos else self._model.end_ids
        submission = Submission(
            handle=next(self._handles),
            request_id=parameters.request_id,
            prompt_ids=prompt_ids,
            max_tokens=parameters.max_tokens,
            temperature=parameters.temperature,
            seed=parameters.seed,
            stop_ids=end_ids | parameters.stop_token_ids,
            arrival=call.arrival,
            deadline=call.deadline,
            trace_parent=call.trace.trace_parent,
            penalties=parameters.penalties,
            top_logprobs=parameters.top_logprobs,
        )
        await self._stream(submission, parameters, context, call)

    def _limits(self) -> Limits:
        """What to check a request against. Raises CallError while it cannot run."""
        if self._draining:
            raise CallError(FailureKind.UNAVAILABLE, "the server is draining; use another one")
        status = self._engine.status()
        if status.limits is None:
            message = f"the server is not ready: {status.reason}"
            raise CallError(FailureKind.UNAVAILABLE, message)
        return status.limits

    async def _encode(
        self, request: inference_pb2.GenerateRequest, max_tokens: int | None, limits: Limits
    ) -> np.ndarray:
        """The prompt's ids, int32 [n]. Raises CallError, and spends no time on encoding what the
        engine is sure to refuse for its full queue."""
        status = self._engine.status()
        ahead = status.running + status.waiting + self._num_encoding
        if self._max_queue is not None and ahead >= limits.max_rows + self._max_queue:
            message = (
                f"{ahead} requests are running, waiting or being encoded, and the limit is "
                f"{limits.max_rows + self._max_queue} ({limits.max_rows} rows and a queue of "
                f"{self._max_queue}); try again later"
            )
            raise CallError(FailureKind.QUEUE_FULL, message, retry_after=RETRY_SECONDS)
        wait, most = status.expected_wait, self._max_queue_wait
        if most is not None and wait > most:
            message = too_long_a_wait(wait, most)
            raise CallError(FailureKind.QUEUE_FULL, message, retry_after=retry_after(wait, most))
        self._num_encoding += 1
        try:
            return await self._encoder.encode(request, max_tokens, limits)
        finally:
            self._num_encoding -= 1

    async def _stream(
        self, submission: Submission, parameters: Parameters, context: _Context, call: Call
    ) -> None:
        """Submits, and writes messages until the last; leaves nothing behind in the engine
        however it ends."""
        # First of all, as the engine can begin meanwhile. Its events come by way of the loop.
        self._engine.submit(submission)
        handle, stream = submission.handle, None
        try:
            stream = self._streams[handle] = self._output(submission, parameters)
            self._records.submitted(call, stream)
            finished = False
            while not finished:
                response = await stream.next()
                finished = bool(response.finish_reason)
                await context.write(response)
                self._records.passed_on(call, response)
        finally:
            self._streams.pop(handle, None)
            if stream is None or not stream.ended:
                departure = call.departure(time.monotonic())
                self._engine.abort(Abort(handle, departure.kind))

    def _output(self, submission: Submission, parameters: Parameters) -> OutputStream:
        shown = parameters.include_special_tokens
        tokenizer, prompt_ids = self._model.tokenizer, submission.prompt_ids
        text = OutputText(tokenizer, prompt_ids, parameters.stop, shown)
        return OutputStream(submission, text)


def _expired(call: Call, seconds: float) -> CallError:
    if call.deadline_is_the_clients:
        return CallError(FailureKind.DEADLINE, "the call's deadline passed")
    message = f"the server's maximum of {seconds:g} seconds passed; set a deadline for more"
    return CallError(FailureKind.DEADLINE, message)
