"""One event of OpenAI's streaming API, and how its tokens are counted.

The rule: a chunk's tokens are its `token_ids` if it has them (vLLM with
`return_token_ids`), else the entries of its `logprobs` if it has them, else one if it has
text (or a reasoning text), else none. So without ids or logprobs a server that joins tokens
into one chunk is undercounted, and one that holds a token's text back is counted late; the
total is checked against the usage that the server states.
"""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from deploy.loadtest.target import Failed
from deploy.loadtest.timeline import PROTOCOL


class Chunk(NamedTuple):
    tokens: int
    text: str
    finished: bool  # it has a finish reason
    prompt_tokens: int | None
    output_tokens: int | None
    cached_tokens: int | None = None  # of the prompt


def read_chunk(data: str) -> Chunk:
    """Raises Failed for an error event, and for what is no chunk."""
    try:
        chunk = json.loads(data)
        if error := chunk.get("error"):
            message = error.get("message") if isinstance(error, dict) else error
            raise Failed(_error_status(error), str(message))
        choices = chunk.get("choices") or ({},)
        choice, usage = choices[0], chunk.get("usage") or {}
        text = _text(choice)
        return Chunk(
            _count(choice, text),
            text,
            choice.get("finish_reason") is not None,
            usage.get("prompt_tokens"),
            usage.get("completion_tokens"),
            (usage.get("prompt_tokens_details") or {}).get("cached_tokens"),
        )
    except (ValueError, AttributeError, LookupError, TypeError):
        raise Failed(PROTOCOL, f"not a chunk: {data:.200}") from None


def _text(choice: dict[str, Any]) -> str:
    """Of a completion, or of a chat with what comes before its answer."""
    delta = choice.get("delta") or {}
    parts = (choice.get("text"), delta.get("reasoning_content"), delta.get("content"))
    return "".join(part for part in parts if part)


def _count(choice: dict[str, Any], text: str) -> int:
    if (ids := choice.get("token_ids")) is not None:
        return len(ids)
    logprobs = choice.get("logprobs") or {}
    entries = logprobs.get("content") or logprobs.get("tokens")
    return len(entries) if entries else int(bool(text))


def _error_status(error: Any) -> str:
    code = error.get("code") if isinstance(error, dict) else None
    return f"HTTP {code}" if isinstance(code, int) else "INTERNAL"
