"""What tests of calls have in common."""

from __future__ import annotations


def joined(responses) -> tuple[str, list[int]]:
    text = "".join(response.text for response in responses)
    return text, [token_id for response in responses for token_id in response.token_ids]
