"""An HTTP server that plays server-sent events as a test writes them."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Any, Self

from aiohttp import web

Handler = Callable[["Reply"], Awaitable[None]]


class Reply:
    """One request's answer. Bytes go out when they are written."""

    def __init__(self, request: web.Request, body: dict[str, Any]) -> None:
        self.body = body
        self._request = request
        self._response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})

    async def raw(self, data: bytes) -> None:
        if not self._response.prepared:
            await self._response.prepare(self._request)
        await self._response.write(data)

    async def event(self, data: Any) -> None:
        text = data if isinstance(data, str) else json.dumps(data)
        await self.raw(f"data: {text}\n\n".encode())

    async def text(self, text: str, **choice: Any) -> None:
        await self.event({"choices": [{"index": 0, "text": text, "finish_reason": None} | choice]})

    async def end(self, prompt_tokens: int, output_tokens: int) -> None:
        await self.event({"choices": [{"index": 0, "text": "", "finish_reason": "length"}]})
        usage: dict[str, object] = {
            "prompt_tokens": prompt_tokens,
            "completion_tokens": output_tokens,
            "prompt_tokens_details": {"cached_tokens": prompt_tokens - 1},
        }
        await self.event({"choices": [], "usage": usage})
        await self.event("[DONE]")


class SseServer:
    """Answers both endpoints with `handler` and keeps the requests' bodies; with `refusal`,
    a status and a text, answers that instead. `lost` counts answers that a client left."""

    def __init__(self, handler: Handler) -> None:
        self.handler = handler
        self.refusal: tuple[int, str] | None = None
        self.bodies: list[dict[str, Any]] = []
        self.paths: list[str] = []
        self.keys: list[str | None] = []
        self.lost = 0

    async def __aenter__(self) -> Self:
        app = web.Application()
        app.router.add_get("/v1/models", self._models)
        app.router.add_post("/v1/completions", self._answer)
        app.router.add_post("/v1/chat/completions", self._answer)
        # A handler is cancelled when its client goes away.
        self._runner = web.AppRunner(app, handler_cancellation=True)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        host, port = self._runner.addresses[0][:2]
        self.url = f"http://{host}:{port}"
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._runner.cleanup()

    async def _models(self, _request: web.Request) -> web.Response:
        return web.json_response({"data": [{"id": "tiny"}, {"id": "other"}]})

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        self.bodies.append(await request.json())
        self.paths.append(request.path)
        self.keys.append(request.headers.get("Authorization"))
        if self.refusal:
            status, text = self.refusal
            return web.Response(status=status, text=text)
        reply = Reply(request, self.bodies[-1])
        try:
            await self.handler(reply)
        except BaseException:
            self.lost += 1
            raise
        return reply._response
