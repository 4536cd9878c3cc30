"""Requests that crash or hang the worker, with real processes and a supervisor."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from deploy.local.servers import Servers, ServerSettings
from deploy.local.stop_signals import Unasked
from nanoserve import Client, NanoserveError
from tests.end_to_end.servers import READY_SECONDS
from worker.simulated_tokens import expected_tokens

VOCAB = 1000
POISON = 999


@contextmanager
def supervised(*worker: str) -> Iterator[Servers]:
    """As `make serve` runs them: a worker that ends is started again."""
    settings = ServerSettings(
        model=None,
        listen=None,
        simulate=True,
        worker_args=("--vocab-size", str(VOCAB), "--metrics-listen", "off", *worker),
        scheduler_args=("--no-tokenizer", "--audit", "--metrics-listen", "off"),
        echo=False,
        stop_patience=20.0,
        restart_worker=True,
    )
    stop = threading.Event()

    def supervise(servers: Servers) -> None:
        while not stop.wait(0.05):
            servers.check()

    with Servers(settings, Unasked()) as servers:
        servers.wait_until_ready(READY_SECONDS, lambda _: None)
        supervisor = threading.Thread(target=supervise, args=(servers,))
        supervisor.start()
        try:
            yield servers
        finally:
            stop.set()
            supervisor.join()


@pytest.mark.parametrize(
    "fault", [("--crash-tokens",), ("--step-timeout", "1", "--hang-tokens")], ids=["crash", "hang"]
)
def test_a_poisonous_request_fails_alone_and_the_others_get_their_tokens(
    fault: tuple[str, ...],
) -> None:
    avoid = ("--avoid-tokens", str(POISON))  # nobody else's output may turn poisonous
    with (
        supervised(*avoid, "--step-ms", "5", *fault, str(POISON)) as servers,
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
