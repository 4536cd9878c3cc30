"""A server with OpenAI's HTTP streaming API: /v1/completions and /v1/chat/completions."""

from __future__ import annotations

import asyncio
import json
import os
import resource
from typing import Any

import aiohttp

from deploy.loadtest.openai_chunk import Chunk, read_chunk
from deploy.loadtest.plan import LoadPlan, OpenAI
from deploy.loadtest.record import Record
from deploy.loadtest.sse import EventReader
from deploy.loadtest.target import CONNECT_SECONDS, Failed
from deploy.loadtest.timeline import PROTOCOL
from deploy.loadtest.workload import Request

KEY_VARIABLE = "OPENAI_API_KEY"
_PATHS = {"completions": "/v1/completions", "chat": "/v1/chat/completions"}
_HEADERS = {"Content-Type": "application/json", "Accept": "text/event-stream"}
_SLOW_READ_BYTES = 1024  # buffered for a slow reader before the connection pushes back
_DETAIL_CHARACTERS = 300


class OpenAITarget:
    def __init__(self, target: OpenAI, plan: LoadPlan) -> None:
        self._target = target
        self._plan = plan
        self._base = target.url.rstrip("/").removesuffix("/v1")
        self._model = target.model
        self._session: aiohttp.ClientSession | None = None

    async def open(self) -> None:
        _allow_many_connections()
        key = os.environ.get(KEY_VARIABLE)
        self._session = session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=300),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_SECONDS),
            headers={"Authorization": f"Bearer {key}"} if key else {},
        )
        if not self._model:
            self._model = await self._first_model(session)

    async def _first_model(self, session: aiohttp.ClientSession) -> str:
        url = f"{self._base}/v1/models"
        try:
            async with session.get(url, timeout=aiohttp.ClientTimeout(30)) as response:
                await check_status(response)
                return str((await response.json())["data"][0]["id"])
        except (aiohttp.ClientError, TimeoutError) as error:
            raise Failed("CONNECT", f"{url}: {error or 'timed out'}") from None
        except (ValueError, LookupError, TypeError):
            raise Failed(PROTOCOL, f"{url} names no model: give --model") from None

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()

    def encode(self, request: Request, history: list[Any], _request_id: str) -> bytes:
        body: dict[str, Any] = {
            "model": self._model,
            "max_tokens": request.output_len,
            "temperature": self._plan.temperature,
            "seed": request.seed,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if self._plan.ignore_eos:
            body["ignore_eos"] = True
        if self._target.endpoint == "chat":
            roles = ("user", "assistant")
            said = enumerate([*history, request.prompt])
            body["messages"] = [{"role": roles[i % 2], "content": text} for i, text in said]
        else:
            body["prompt"] = request.prompt
        return json.dumps(body | dict(self._target.body)).encode()

    def begin(self, payload: bytes, record: Record) -> SseExchange:
        url = self._base + _PATHS[self._target.endpoint]
        return SseExchange(self._session, url, payload, record, self._plan)


class SseExchange:
    """One request, in a task of its own."""

    def __init__(
        self,
        session: aiohttp.ClientSession,
        url: str,
        payload: bytes,
        record: Record,
        plan: LoadPlan,
    ) -> None:
        self._record = record
        self._timeout = plan.request_timeout
        self._slow_gap = plan.slow_gap if record.request.is_slow else 0.0
        small = {"read_bufsize": _SLOW_READ_BYTES} if self._slow_gap else {}
        post = session.post(url, data=payload, headers=_HEADERS, **small)
        self._task = asyncio.create_task(self._run(post))

    def cancel(self) -> None:
        self._task.cancel()  # which closes the connection

    async def _run(self, post: Any) -> None:
        # Nothing else runs from here to the write, unless a connection has to be made.
        self._record.mark_sent()
        try:
            await self._exchange(post)
            self._record.end("OK")
        except Failed as failure:
            self._record.end(failure.status, failure.detail)
        except Exception as error:  # a library's surprise ends the request, not the run
            self._record.end("INTERNAL", f"in the load tool: {error!r}")

    async def _exchange(self, post: Any) -> None:
        try:
            async with asyncio.timeout(self._timeout), post as response:
                await check_status(response)
                await self._read(response)
        except TimeoutError:
            raise Failed("DEADLINE_EXCEEDED", f"not ended after {self._timeout:g} s") from None
        except aiohttp.ClientConnectorError as error:
            raise Failed("CONNECT", str(error)) from None
        except aiohttp.ClientError as error:
            raise Failed("UNAVAILABLE", f"the connection broke: {error!r}") from None

    async def _read(self, response: aiohttp.ClientResponse) -> None:
        record, reader = self._record, EventReader()
        async for received in response.content.iter_any():
            for data in reader.feed(received):
                if data == "[DONE]":
                    self._check_finished("[DONE] came")
                    return
                self._take(read_chunk(data))
                if record.has_enough:
                    record.end("CANCELLED", cancelled=True)
                    return
                if self._slow_gap:
                    await asyncio.sleep(self._slow_gap)
        self._check_finished("the stream ended")

    def _take(self, chunk: Chunk) -> None:
        record = self._record
        record.finished = record.finished or chunk.finished
        record.message(chunk.tokens, bool(chunk.text))
        if record.answer is not None and chunk.text:
            record.answer.append(chunk.text)
        if chunk.output_tokens is not None:
            record.prompt_tokens = chunk.prompt_tokens or record.prompt_tokens
            record.cached_tokens = chunk.cached_tokens
            record.output_tokens = chunk.output_tokens

    def _check_finished(self, what: str) -> None:
        if not self._record.finished:
            raise Failed(PROTOCOL, f"{what} without a finish reason")


async def check_status(response: aiohttp.ClientResponse) -> None:
    if response.status != 200:
        text = (await response.text(errors="replace"))[:_DETAIL_CHARACTERS]
        raise Failed(f"HTTP {response.status}", text)


def _allow_many_connections() -> None:
    """One file descriptor per open stream: as many as the system lets us have."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
