"""A request's prompt, made into token ids away from the event loop."""

from __future__ import annotations

import asyncio
import os
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from nanoserve.v1 import inference_pb2
from scheduler.api.chat_template import ChatTemplateError
from scheduler.api.errors import CallError, invalid
from scheduler.api.tokenizer import Tokenizer
from scheduler.api.validation import check_chat, check_prompt, check_text_size
from scheduler.core.front_end import FailureKind, Limits


class PromptEncoder:
    """Encodes on a few threads, so that megabytes of text stop neither running streams
    nor health checks."""

    def __init__(self, tokenizer: Tokenizer | None) -> None:
        self._tokenizer = tokenizer
        threads = min(4, os.cpu_count() or 1)
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="encode")

    async def encode(
        self, request: inference_pb2.GenerateRequest, max_tokens: int | None, limits: Limits
    ) -> np.ndarray:
        """The prompt's ids, int32 [n], checked against `limits`. Raises CallError."""
        field = request.WhichOneof("prompt")
        if field is None:
            raise invalid("prompt", "missing; give one of text, token_ids and chat")
        if field == "token_ids":
            return self._check_ids(request, max_tokens, limits)
        if self._tokenizer is None:
            raise invalid(field, "the server has no tokenizer; send token_ids")
        loop = asyncio.get_running_loop()
        work = self._encode_text if field == "text" else self._encode_chat
        return await loop.run_in_executor(
            self._pool, work, self._tokenizer, request, max_tokens, limits
        )

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)

    @staticmethod
    def _check_ids(
        request: inference_pb2.GenerateRequest, max_tokens: int | None, limits: Limits
    ) -> np.ndarray:
        return check_prompt("token_ids.ids", request.token_ids.ids, max_tokens, limits)

    @staticmethod
    def _encode_text(
        tokenizer: Tokenizer,
        request: inference_pb2.GenerateRequest,
        max_tokens: int | None,
        limits: Limits,
    ) -> np.ndarray:
        text = request.text
        check_text_size("text", len(text.encode()), tokenizer.longest_token, limits)
        return check_prompt("text", tokenizer.encode_text(text), max_tokens, limits)

    @staticmethod
    def _encode_chat(
        tokenizer: Tokenizer,
        request: inference_pb2.GenerateRequest,
        max_tokens: int | None,
        limits: Limits,
    ) -> np.ndarray:
        check_chat(request.chat)
        # A role is never empty, so that each message counts even without content.
        size = sum(
            len(message.role.encode()) + len(message.content.encode())
            for message in request.chat.messages
        )
        check_text_size("chat", size, tokenizer.longest_token, limits)
        messages = [
            {"role": message.role, "content": message.content} for message in request.chat.messages
        ]
        try:
            ids = tokenizer.encode_chat(messages)
        except ChatTemplateError as error:
            raise CallError(FailureKind.INVALID, f"chat: {error}", "chat") from error
        return check_prompt("chat", ids, max_tokens, limits)
