"""Requests that crash or hang the worker, with real processes and a supervisor."""

from __future__ import annotations

import pytest

from nanoserve import Client, NanoserveError
from tests.end_to_end.servers import supervised
from worker.simulated_tokens import expected_tokens

VOCAB = 1000
POISON = 999


@pytest.mark.parametrize(
    "fault", [("--crash-tokens",), ("--step-timeout", "1", "--hang-tokens")], ids=["crash", "hang"]
)
def test_a_poisonous_request_fails_alone_and_the_others_get_their_tokens(
    fault: tuple[str, ...],
) -> None:
    # Nobody else's output may turn poisonous.
    worker = ("--vocab-size", str(VOCAB), "--avoid-tokens", str(POISON), "--step-ms", "5")
    with (
        supervised(simulate=True, worker=(*worker, *fault, str(POISON))) as servers,
        Client(servers.address) as client,
    ):
        prompts = [[i, 7, i] for i in range(6)]
        prompts[3][1] = POISON
        streams = [
            client.generate(token_ids=prompt, max_tokens=80, temperature=0, timeout=90)
            for prompt in prompts
        ]
        for i, (prompt, stream) in enumerate(zip(prompts, streams, strict=True)):
            if i == 3:
                with pytest.raises(NanoserveError, match="ended 3 times in a row") as failed:
                    stream.collect()
                assert failed.value.code.name == "INTERNAL"
                continue
            right = expected_tokens(prompt, 80, VOCAB, avoid=frozenset({POISON}))
            assert list(stream.collect().token_ids) == right
        status = client.status()
    assert status.free_blocks == status.usable_blocks
    assert status.output_tokens == 5 * 80
