"""The scheduler's link to its worker: connects, resumes and recovers on its own."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence

import grpc

from nanoserve import tls
from nanoserve.channel import tls_options
from nanoserve.connection_trouble import worker_trouble
from nanoserve.v1 import worker_pb2, worker_pb2_grpc
from scheduler.core.worker_link import (
    Connected,
    Disconnected,
    Inbox,
    StepPlan,
    StepRefused,
    WorkerInfo,
)
from scheduler.link.answer import step_answer
from scheduler.link.backoff import Backoff
from scheduler.link.channel_options import CHANNEL_OPTIONS
from scheduler.link.encoder import encode_step
from scheduler.link.step_call import StepCall
from scheduler.link.window import Window

log = logging.getLogger(__name__)

PROTOCOL_VERSION = 1

# A worker answers control calls at once, whatever it computes; one that is stopped never does.
_CONTROL_SECONDS = 5.0

# Between tries that a person must make work: another model, another version, an older epoch.
_SLOW_RETRY_SECONDS = 5.0

_TO_RESET = "a step was refused or answered wrongly"
_GIVEN_UP = "it did not answer in time and was given up"


class ConnectRefused(Exception):
    """The worker is another model's, another version's, or a newer scheduler's."""


class GrpcWorkerLink:
    """WorkerLink (scheduler/core/worker_link.py) over gRPC, to HOST:PORT or unix:PATH.

    One thread connects and then reads answers, so an event of a window can only be posted
    while that window is the current one. `fingerprint` names the model that the worker must
    serve; None takes any. `files`: certificates for mutual TLS, read again for each connection
    where they have changed; None: no encryption.
    """

    def __init__(
        self,
        address: str,
        *,
        fingerprint: str | None = None,
        epoch: int | None = None,
        slow_retry: float = _SLOW_RETRY_SECONDS,
        channel_options: Sequence[tuple[str, int]] = CHANNEL_OPTIONS,
        files: tls.TlsFiles | None = None,
    ) -> None:
        self._address = address
        self._fingerprint = fingerprint
        self._epoch = time.time_ns() if epoch is None else epoch
        self._slow_retry = slow_retry
        self._channel_options = channel_options
        self._files = files
        self._backoff = Backoff()
        self._closed = threading.Event()
        # Held over each change of window and call, so that a step goes out exactly once per call.
        self._lock = threading.Lock()
        self._window = Window()
        self._call: StepCall | None = None
        self._channels: tuple[grpc.Channel, ...] = ()
        self._must_reset = False
        self._reason = ""  # why there is no connection, as last posted
        self._thread = threading.Thread(target=self._run, name="worker-link", daemon=True)

    def start(self, inbox: Inbox) -> None:
        self._inbox = inbox
        if self._files is not None:
            self._files.watch(tls.tell_expiry())
        self._thread.start()

    def send(self, plan: StepPlan) -> None:
        message = encode_step(plan)
        with self._lock:
            if self._window.add(message, plan.logprob_counts) and self._call:
                self._call.put(message)

    def give_up(self) -> None:
        with self._lock:
            self._must_reset = True
            if self._call:
                self._call.cancel()

    def close(self) -> None:
        """Ends the connection and the thread; nothing is posted after it returns."""
        if self._files is not None:
            self._files.close()
        with self._lock:
            self._closed.set()
            for channel in self._channels:
                channel.close()  # cancels what is open on it
        if self._thread.ident is not None:
            self._thread.join()

    def _run(self) -> None:
        while not self._closed.is_set():
            reason, lasting, step_failed = "", False, False
            try:
                self._session()
                # Not at once after a refusal either: what recomputes may be refused again.
                reason = _TO_RESET if self._must_reset else "the end of the stream"
            except ConnectRefused as error:
                reason, lasting = str(error), True
            except grpc.RpcError as error:
                ours = self._must_reset and error.code() is grpc.StatusCode.CANCELLED
                reason = _GIVEN_UP if ours else self._describe(error)
                step_failed = error.code() is grpc.StatusCode.DATA_LOSS
            except Exception as error:
                if not self._closed.is_set():
                    log.exception("the link to %s failed", self._address)
                reason = repr(error)
            if reason and not self._closed.is_set():
                self._wait(reason, lasting=lasting, step_failed=step_failed)

    def _session(self) -> None:
        """One connection, from Connect to the end of the stream, which raises RpcError. Returns
        after an answer that calls for a Reset."""
        with self._channel() as control, self._channel() as steps:
            with self._lock:
                if self._closed.is_set():
                    return
                self._channels = (control, steps)
            info = self._connect(worker_pb2_grpc.WorkerServiceStub(control))
            call = StepCall(steps, self._epoch)
            try:
                self._open(call, info)
                self._read(call, info.vocab_size)
            finally:
                with self._lock:
                    self._call = None
                call.cancel()

    def _channel(self) -> grpc.Channel:
        if self._files is None:
            return grpc.insecure_channel(self._address, self._channel_options)
        credentials = tls.client_credentials(self._files.get())
        options = [*self._channel_options, *tls_options(self._address)]
        return grpc.secure_channel(self._address, credentials, options)

    def _connect(self, stub: worker_pb2_grpc.WorkerServiceStub) -> WorkerInfo:
        request = worker_pb2.ConnectRequest(
            epoch=self._epoch,
            protocol_version=PROTOCOL_VERSION,
            model_fingerprint=self._fingerprint,
        )
        try:
            response = stub.Connect(request, timeout=_CONTROL_SECONDS)
        except grpc.RpcError as error:
            if error.code() is grpc.StatusCode.FAILED_PRECONDITION:
                raise ConnectRefused(self._describe(error)) from None
            raise
        if self._must_reset and response.incarnation == self._window.incarnation:
            stub.Reset(worker_pb2.ResetRequest(epoch=self._epoch), timeout=_CONTROL_SECONDS)
            response = stub.Connect(request, timeout=_CONTROL_SECONDS)
        self._must_reset = False
        return worker_info(response)

    def _open(self, call: StepCall, info: WorkerInfo) -> None:
        """Makes `call` the current one, with the unanswered steps of the same incarnation."""
        with self._lock:
            resumed = info.incarnation == self._window.incarnation
            if not resumed:
                self._window = Window(info.incarnation)
            for message in self._window.send_again():
                call.put(message)
            again = len(self._window)
            self._call = call
        self._reason = ""
        log.info(
            "connected to the worker at %s: incarnation %016x, %s",
            self._address,
            info.incarnation,
            f"{again} steps sent again" if resumed else "a new pool",
        )
        self._inbox.post(Connected(info, resumed))

    def _read(self, call: StepCall, vocab_size: int) -> None:
        for result in call.results():
            if result.HasField("refusal"):
                self._refuse(result)
                return
            try:
                with self._lock:
                    answered = self._window.answered(result.step_id, result.sub_step)
                if answered is None:
                    continue
                answer = step_answer(result, answered[0], vocab_size, answered[1])
            except (LookupError, ValueError) as error:
                log.error("the worker at %s answers wrongly: %s", self._address, error)
                self._must_reset = True
                return
            self._backoff.reset()
            self._inbox.post(answer)

    def _refuse(self, result: worker_pb2.StepResult) -> None:
        refusal = result.refusal
        reason = worker_pb2.RefusalReason.Name(refusal.reason)
        log.error("the worker refused step %d: %s: %s", result.step_id, reason, refusal.message)
        self._must_reset = True
        self._inbox.post(
            StepRefused(
                result.step_id,
                refusal.message,
                refusal.sequence if refusal.HasField("sequence") else None,
                refusal.request_id,
            )
        )

    def _wait(self, reason: str, *, lasting: bool, step_failed: bool) -> None:
        """Until the next try. `lasting` is what only a person can change."""
        delay = self._slow_retry if lasting else self._backoff.next_delay()
        if reason != self._reason:
            self._reason = reason
            log.log(
                logging.ERROR if lasting else logging.WARNING,
                "waiting for the worker at %s (%s); trying again, next in %.2f s",
                self._address,
                reason,
                delay,
            )
            self._inbox.post(Disconnected(reason, step_failed))
        self._closed.wait(delay)

    def _describe(self, error: grpc.RpcError) -> str:
        details, served_before = error.details(), bool(self._window.incarnation)
        reason = worker_trouble(details, served_before=served_before)
        return f"{error.code().name}: {reason or details}"


def worker_info(response: worker_pb2.ConnectResponse) -> WorkerInfo:
    return WorkerInfo(
        incarnation=response.incarnation,
        last_executed_step=response.last_executed_step,
        device=response.device,
        fingerprint=response.model.fingerprint,
        vocab_size=response.model.vocab_size,
        max_model_len=response.model.max_model_len,
        num_blocks=response.pool.num_blocks,
        block_size=response.pool.block_size,
        max_rows=response.limits.max_rows,
        max_step_tokens=response.limits.max_step_tokens,
        max_steps_in_flight=response.limits.max_steps_in_flight,
        max_decode_steps=response.limits.max_decode_steps,
    )
