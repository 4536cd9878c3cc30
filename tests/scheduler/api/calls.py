"""What tests of calls have in common."""

from __future__ import annotations

from tests.scheduler.logprob_columns import Entry


def joined(responses) -> tuple[str, list[int]]:
    text = "".join(response.text for response in responses)
    return text, [token_id for response in responses for token_id in response.token_ids]


def joined_logprobs(responses) -> list[Entry]:
    """Of each token, with its id. Each message must have those of its own tokens."""
    entries = []
    for response in responses:
        assert len(response.token_ids) == len(response.logprobs)
        for token_id, its in zip(response.token_ids, response.logprobs, strict=True):
            ids = [token_id, *(one.token_id for one in its.top)]
            entries.append((ids, [its.logprob, *(one.logprob for one in its.top)]))
    return entries
