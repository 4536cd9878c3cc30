"""Starts, stops and losses of real processes, in any order."""

from __future__ import annotations

import os
import re
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from grpc_health.v1 import health_pb2

from deploy.local.child import Child
from nanoserve import Chunk, Client, NanoserveError, UnavailableError
from tests.end_to_end.servers import start, wait_for_health
from tests.simulated_logprobs import right_logprobs
from tests.waiting import wait_for
from worker.simulated_tokens import expected_tokens

VOCAB = 1000
PROMPT = list(range(40))
# Tokens of a request that is there until it is cancelled: some minutes at 10 ms a step.
LONG = 15_000
SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
LIVENESS = "nanoserve.liveness"


class Pair:
    """A scheduler and, when asked for, its worker, on unix sockets of a test's own."""

    def __init__(self, folder: Path) -> None:
        self.address = f"unix:{folder}/scheduler.sock"
        self._worker_address = f"unix:{folder}/worker.sock"
        self.children: list[Child] = []

    def start_scheduler(self, *flags: str) -> Child:
        child = start(
            "scheduler",
            *("--no-tokenizer", "--audit", "--listen", self.address),
            *("--worker", self._worker_address, "--metrics-listen", "off", *flags),
        )
        self.children.append(child)
        return child

    def start_worker(self, *flags: str, step_ms: int = 10) -> Child:
        child = start(
            "worker",
            *("--simulate", "--vocab-size", str(VOCAB), "--max-model-len", str(LONG + 100)),
            *("--step-ms", str(step_ms), "--listen", self._worker_address),
            *("--metrics-listen", "off", *flags),
        )
        self.children.append(child)
        return child


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    pair = Pair(tmp_path)
    yield pair
    for child in pair.children:
        child.stop(0, threading.Event())


def test_a_scheduler_without_a_worker_stays_up_and_becomes_ready_by_itself(pair: Pair) -> None:
    scheduler = pair.start_scheduler()
    wait_for_health(pair.address, SERVING, LIVENESS)
    wait_for_health(pair.address, NOT_SERVING)
    with Client(pair.address) as client:
        with pytest.raises(UnavailableError, match="worker"):
            client.generate(token_ids=PROMPT).collect()
        assert not client.status().ready
        assert "worker" in client.status().reason
        pair.start_worker()
        wait_for_health(pair.address, SERVING)
        wait_for_health(pair.address, SERVING, "nanoserve.v1.InferenceService")
        completion = client.generate(token_ids=PROMPT, max_tokens=9, temperature=0).collect()
    assert list(completion.token_ids) == expected_tokens(PROMPT, 9, VOCAB)
    assert scheduler.exit_status is None


@pytest.mark.parametrize("after", [0, 1, 25])
def test_a_killed_worker_is_a_pause_to_open_streams(pair: Pair, after: int) -> None:
    """Greedy and seeded streams, with penalties and without, go on with the very tokens and
    log-probabilities they would have got, none twice and none missing."""
    pair.start_scheduler()
    worker = pair.start_worker()
    wait_for_health(pair.address, SERVING)
    with Client(pair.address) as client:
        penalties = {"repetition_penalty": 1.3, "presence_penalty": -0.5}
        settings = [
            ({"temperature": 0.0}, None),
            ({"temperature": 0.9, "seed": 7}, 0),
            ({"temperature": 0.0, **penalties}, 3),
            ({"temperature": 0.9, "seed": 7, "frequency_penalty": 0.7}, 1),
        ]
        streams = [
            client.generate(token_ids=PROMPT, max_tokens=500, top_logprobs=top, **how)
            for how, top in settings
        ]
        chunks: list[list[Chunk]] = [[] for _ in streams]
        for got, stream in zip(chunks, streams, strict=True):
            while sum(len(chunk.token_ids) for chunk in got) < after:
                got.append(next(stream))
        os.kill(worker.pid, signal.SIGKILL)
        wait_for(lambda: worker.exit_status is not None, "the worker is gone")
        pair.start_worker(step_ms=1)
        for got, stream in zip(chunks, streams, strict=True):
            got.extend(stream)
        status = client.status()
    for got, (how, top) in zip(chunks, settings, strict=True):
        expected = expected_tokens(PROMPT, 500, VOCAB, **how)
        assert [token for chunk in got for token in chunk.token_ids] == expected
        logprobs = tuple(one for chunk in got for one in chunk.logprobs)
        assert logprobs == right_logprobs(PROMPT, expected, VOCAB, top)
    assert status.free_blocks == status.usable_blocks


def test_a_worker_that_stands_still_is_not_ready_and_streams_go_on_after_it(pair: Pair) -> None:
    pair.start_scheduler("--step-timeout", "0.5")
    worker = pair.start_worker()
    wait_for_health(pair.address, SERVING)
    with Client(pair.address) as client:
        stream = client.generate(token_ids=PROMPT, max_tokens=LONG, temperature=0)
        tokens = list(next(stream).token_ids)
        os.kill(worker.pid, signal.SIGSTOP)
        wait_for_health(pair.address, NOT_SERVING)
        wait_for_health(pair.address, SERVING, LIVENESS)
        wait_for(lambda: "did not answer" in client.status().reason, "it says why")
        before = client.status().output_tokens
        os.kill(worker.pid, signal.SIGCONT)
        while len(tokens) < before + 50:
            tokens.extend(next(stream).token_ids)
        wait_for_health(pair.address, SERVING)
        stream.close()
    assert tokens == expected_tokens(PROMPT, len(tokens), VOCAB)


def test_the_next_scheduler_takes_the_worker_over_as_it_is(pair: Pair) -> None:
    first = pair.start_scheduler()
    worker = pair.start_worker()
    wait_for_health(pair.address, SERVING)
    with Client(pair.address) as client:
        stream = client.generate(token_ids=PROMPT, max_tokens=LONG, temperature=0)
        next(stream)
        before = client.status().worker_incarnation
        os.kill(first.pid, signal.SIGKILL)
        with pytest.raises(UnavailableError):
            stream.collect()
    wait_for(lambda: first.exit_status is not None, "the scheduler is gone")
    pair.start_scheduler()
    wait_for_health(pair.address, SERVING)
    with Client(pair.address) as client:
        completion = client.generate(token_ids=PROMPT, max_tokens=60, temperature=0).collect()
        status = client.status()
    assert list(completion.token_ids) == expected_tokens(PROMPT, 60, VOCAB)
    assert status.worker_incarnation != before, "the rows of the dead one's requests are gone"
    assert status.free_blocks == status.usable_blocks
    assert worker.exit_status is None
    assert not any("refused" in line for line in worker.lines), "its rows are gone at once"


def test_a_scheduler_that_comes_back_after_its_successor_is_refused(
    pair: Pair, tmp_path: Path
) -> None:
    old = pair.start_scheduler("--drain-timeout", "0.2")
    pair.start_worker()
    wait_for_health(pair.address, SERVING)
    other = f"unix:{tmp_path}/other.sock"
    with Client(pair.address) as client, Client(other) as other_client:
        lost = client.generate(token_ids=PROMPT, max_tokens=LONG, temperature=0)
        next(lost)
        os.kill(old.pid, signal.SIGSTOP)
        pair.start_scheduler("--listen", other)
        wait_for_health(other, SERVING)
        stream = other_client.generate(token_ids=PROMPT, max_tokens=200, temperature=0)
        tokens = list(next(stream).token_ids)
        os.kill(old.pid, signal.SIGCONT)
        wait_for_health(pair.address, NOT_SERVING)
        wait_for(lambda: "a newer scheduler has" in client.status().reason, "it is refused")
        tokens.extend(stream.collect().token_ids)
        os.kill(old.pid, signal.SIGTERM)
        with pytest.raises(UnavailableError):
            lost.collect()
    assert tokens == expected_tokens(PROMPT, 200, VOCAB)
    wait_for(lambda: old.exit_status is not None, "the older scheduler ended")
    assert old.exit_status == 0


def test_sigterm_lets_running_and_waiting_streams_finish_and_refuses_new_ones(pair: Pair) -> None:
    """Also when the worker dies meanwhile."""
    scheduler, worker = pair.start_scheduler(), pair.start_worker("--max-rows", "1")
    wait_for_health(pair.address, SERVING)
    with Client(pair.address) as client:
        # The first is found running: it takes a quarter of a minute, but with the second worker.
        settings = [(0.0, 1, 1500), (0.9, 7, 60)]
        streams = []
        first: list[int] = []
        for temperature, seed, count in settings:
            options = {"max_tokens": count, "temperature": temperature, "seed": seed}
            streams.append(client.generate(token_ids=PROMPT, **options))
            first = first or list(next(streams[0]).token_ids)
        wait_for(lambda: client.status().waiting_requests == 1, "the other one waits")
        os.kill(scheduler.pid, signal.SIGTERM)
        wait_for_health(pair.address, NOT_SERVING)
        with pytest.raises(UnavailableError):
            client.generate(token_ids=PROMPT).collect()
        os.kill(worker.pid, signal.SIGKILL)
        wait_for(lambda: worker.exit_status is not None, "the worker is gone")
        pair.start_worker("--max-rows", "1", step_ms=1)
        first.extend(streams[0].collect().token_ids)
        second = list(streams[1].collect().token_ids)
    for tokens, (temperature, seed, count) in zip((first, second), settings, strict=True):
        right = expected_tokens(PROMPT, count, VOCAB, temperature=temperature, seed=seed)
        assert tokens == right
    wait_for(lambda: scheduler.exit_status is not None, "the scheduler ended")
    assert scheduler.exit_status == 0


def test_what_outlasts_the_drain_ends_unavailable(pair: Pair) -> None:
    scheduler, _ = pair.start_scheduler("--drain-timeout", "0.3"), pair.start_worker()
    wait_for_health(pair.address, SERVING)
    with Client(pair.address) as client:
        stream = client.generate(token_ids=PROMPT, max_tokens=LONG, temperature=0)
        next(stream)
        os.kill(scheduler.pid, signal.SIGINT)
        with pytest.raises(UnavailableError, match="drain"):
            stream.collect()
    wait_for(lambda: scheduler.exit_status is not None, "the scheduler ended")
    assert scheduler.exit_status == 0


def test_a_second_signal_ends_the_scheduler_at_once(pair: Pair) -> None:
    scheduler, _ = pair.start_scheduler("--drain-timeout", "60"), pair.start_worker()
    wait_for_health(pair.address, SERVING)
    with Client(pair.address) as client:
        stream = client.generate(token_ids=PROMPT, max_tokens=LONG, temperature=0)
        next(stream)
        os.kill(scheduler.pid, signal.SIGTERM)
        wait_for_health(pair.address, NOT_SERVING)
        os.kill(scheduler.pid, signal.SIGTERM)
        wait_for(lambda: scheduler.exit_status is not None, "the scheduler ended")
        with pytest.raises(NanoserveError):
            stream.collect()
    assert scheduler.exit_status != 0


@pytest.mark.parametrize("first", ["scheduler", "worker"])
def test_either_process_may_be_stopped_first(pair: Pair, first: str) -> None:
    servers = {"scheduler": pair.start_scheduler(), "worker": pair.start_worker()}
    wait_for_health(pair.address, SERVING)
    order = [first, "worker" if first == "scheduler" else "scheduler"]
    for name in order:
        os.kill(servers[name].pid, signal.SIGTERM)
        child = servers[name]
        wait_for(lambda child=child: child.exit_status is not None, f"the {name} ended")
        assert child.exit_status == 0


def test_a_worker_that_serves_another_model_is_refused_and_both_are_named(
    pair: Pair, tmp_path: Path
) -> None:
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    for folder, size in ((ours, 300), (theirs, 400)):
        folder.mkdir()
        (folder / "config.json").write_text(f'{{"vocab_size": {size}}}')
    scheduler = pair.start_scheduler("--model", str(ours))
    pair.start_worker("--model", str(theirs))
    wait_for(lambda: "fingerprint" in "\n".join(scheduler.lines), "the log names the models")
    wait_for_health(pair.address, NOT_SERVING)
    assert scheduler.exit_status is None


def test_a_port_in_use_is_refused(pair: Pair) -> None:
    first = pair.start_scheduler("--listen", "127.0.0.1:0")
    listening = re.compile(r"listening on 127\.0\.0\.1:(\d+)")
    found = wait_for(lambda: listening.search("\n".join(first.lines)), "it tells its port")
    port = found[1]
    second = pair.start_scheduler("--listen", f"127.0.0.1:{port}")
    wait_for(lambda: second.exit_status is not None, "the second scheduler ended")
    assert second.exit_status == 1
    assert port in second.tail()
