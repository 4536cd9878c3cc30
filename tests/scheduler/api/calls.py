"""What tests of calls have in common."""

from __future__ import annotations

import asyncio
import time


async def until(condition, seconds: float = 5.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "never came true"
        await asyncio.sleep(0.005)


def joined(responses) -> tuple[str, list[int]]:
    text = "".join(response.text for response in responses)
    return text, [token_id for response in responses for token_id in response.token_ids]
