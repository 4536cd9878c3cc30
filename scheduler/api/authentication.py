"""Lets in who has a token, before anything else is done with a call."""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TYPE_CHECKING, Any

import grpc
import grpc.aio

from nanoserve.reloaded import Reloaded
from scheduler.api.caller import CALLER
from scheduler.api.token_hashes import TokenHashes

log = logging.getLogger(__name__)

# Probes of an orchestrator have no token, and learn nothing but whether we are up.
_OPEN = "/grpc.health.v1.Health/"
_SCHEME = "bearer "
_HOW = (
    "send the metadata 'authorization: Bearer TOKEN' (nanoserve: --token-file or NANOSERVE_TOKEN)"
)
NO_TOKEN = f"no token: {_HOW}"
WRONG_TOKEN = (
    "the token is none of this server's: ask its operator for another (python -m deploy.secrets "
    "token makes them)"
)
# Whoever knocks without end must not fill the log.
LOG_SECONDS = 1.0

if TYPE_CHECKING:  # the stubs' class takes parameters, the library's does not
    _Handler = grpc.RpcMethodHandler[Any, Any]
    _Continue = Callable[[grpc.HandlerCallDetails], Awaitable[_Handler | None]]


class TokenCheck(grpc.aio.ServerInterceptor):
    """Ends calls without a good token with UNAUTHENTICATED. `on_refusal` counts them."""

    def __init__(
        self,
        hashes: Reloaded[TokenHashes],
        on_refusal: Callable[[], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._hashes = hashes
        self._on_refusal = on_refusal
        self._clock = clock
        self._unlogged = 0
        self._log_again = 0.0
        # A file that became wrong is told of, whether or not somebody calls.
        hashes.watch(lambda _: None)

    def close(self) -> None:
        self._hashes.close()

    async def intercept_service(
        self, continuation: _Continue, handler_call_details: grpc.HandlerCallDetails
    ) -> _Handler | None:
        if handler_call_details.method.startswith(_OPEN):
            return await continuation(handler_call_details)
        token = _token(handler_call_details.invocation_metadata)
        if token is not None and (owner := self._hashes.get().owner(token)) is not None:
            CALLER.set(owner)
            return await continuation(handler_call_details)
        return self._refusal(NO_TOKEN if token is None else WRONG_TOKEN)

    def _refusal(self, message: str) -> _Handler:
        async def refuse(
            _requests: AsyncIterator[bytes], context: grpc.aio.ServicerContext[bytes, bytes]
        ) -> AsyncIterator[bytes]:
            self._on_refusal()
            self._log(message.partition(":")[0], context.peer())
            await context.abort(grpc.StatusCode.UNAUTHENTICATED, message)
            yield b""  # never: it makes this the stream that such a handler returns

        # Whatever the method takes: a request that nobody waits for is not even read.
        return grpc.stream_stream_rpc_method_handler(refuse)

    def _log(self, reason: str, peer: str) -> None:
        self._unlogged += 1
        if self._clock() < self._log_again:
            return
        log.warning("calls refused: %d, the last from %s: %s", self._unlogged, peer, reason)
        self._unlogged, self._log_again = 0, self._clock() + LOG_SECONDS


def _token(metadata: Any) -> str | None:
    """None: there is none, or it is given in another way."""
    for key, value in metadata or ():
        if key == "authorization" and isinstance(value, str):
            if value[: len(_SCHEME)].lower() == _SCHEME:
                return value[len(_SCHEME) :].strip() or None
            return None
    return None
