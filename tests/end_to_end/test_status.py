"""Status, stream and picture of real servers at work: they tell the same as the books."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from grpc_health.v1 import health_pb2

from deploy.local.servers import Servers
from nanoserve import BlockOwner, Client, Generation, ServerStatus
from tests.end_to_end.servers import running, start, wait_for_health
from tests.protos.command import nanoserve
from tests.waiting import SECONDS, wait_for

NUM_BLOCKS, BLOCK_SIZE = 64, 64
# They live for a minute, unless they are cancelled: longer than any command takes to start.
PROMPT_LENS, OUTPUT_TOKENS, STEP_MS = (6, 11, 70), 1000, 60


@pytest.fixture(scope="module")
def servers() -> Iterator[Servers]:
    flags = ("--num-blocks", str(NUM_BLOCKS), "--block-size", str(BLOCK_SIZE), "--max-rows", "3")
    with running(simulate=True, worker=(*flags, "--step-ms", str(STEP_MS))) as servers:
        yield servers


def generation(client: Client, length: int) -> Generation:
    return client.generate(
        token_ids=list(range(1, length + 1)),
        max_tokens=OUTPUT_TOKENS,
        ignore_eos=True,
        request_id=f"of-{length}",
    )


@contextlib.contextmanager
def three_at_work(client: Client) -> Iterator[None]:
    """Three requests with a row each, and one that waits for one of theirs."""
    with contextlib.ExitStack() as streams:
        for length in PROMPT_LENS:
            next(streams.enter_context(generation(client, length)))
        streams.enter_context(generation(client, 2))
        wait_for(lambda: client.status().waiting_requests == 1, "the last one waits")
        yield
    wait_for(lambda: client.status().running_requests == 0, "all are gone")


def everything(client: Client) -> ServerStatus:
    return client.status(rows=True, block_map=True, latencies=True)


def test_rows_and_block_map_agree_with_each_other_and_with_the_requests(servers: Servers) -> None:
    with Client(servers.address) as client:
        with three_at_work(client):
            status = everything(client)
        assert {row.request_id: row.prompt_tokens for row in status.rows} == {
            f"of-{length}": length for length in PROMPT_LENS
        }
        assert [row.row for row in status.rows] == [0, 1, 2]
        owned = Counter(status.block_owners)
        assert status.block_owners[0] == BlockOwner.SCRATCH
        assert owned.pop(BlockOwner.SCRATCH) == 1
        unheld = owned.pop(BlockOwner.FREE) + owned.pop(BlockOwner.CACHED, 0)
        assert unheld == NUM_BLOCKS - 1 - sum(row.blocks for row in status.rows)
        assert owned == {row.row: row.blocks for row in status.rows}
        for row in status.rows:
            # Up to six steps in flight are counted already.
            ahead = row.computed_tokens - (row.prompt_tokens + row.output_tokens - 1)
            assert 0 <= ahead <= 6
            assert row.blocks == -(-row.computed_tokens // BLOCK_SIZE)
            assert 1 <= row.output_tokens <= row.max_tokens == OUTPUT_TOKENS
            assert row.running_seconds > 0
        assert status.missing_reason == ""
        wait_for(lambda: everything(client).rows == (), "all are gone")
        status = everything(client)
        owned = Counter(status.block_owners)
        # At least the first block of the longest prompt is full.
        assert owned.pop(BlockOwner.CACHED) == status.cached_blocks >= 1
        assert owned.pop(BlockOwner.FREE) == status.free_blocks - status.cached_blocks
        assert owned == {BlockOwner.SCRATCH: 1}
        assert status.free_blocks == NUM_BLOCKS - 1


def test_the_latencies_of_an_interval_are_those_of_its_tokens(servers: Servers) -> None:
    with Client(servers.address) as client:
        before = everything(client)
        began = time.monotonic()
        client.generate(token_ids=[5, 6], max_tokens=13, ignore_eos=True).collect()
        took = time.monotonic() - began
        after = everything(client)
    assert before.time_to_first_token is not None
    assert after.time_to_first_token is not None
    assert after.time_to_first_token.since(before.time_to_first_token).count == 1
    assert before.inter_token_latency is not None
    assert after.inter_token_latency is not None
    between = after.inter_token_latency.since(before.inter_token_latency)
    assert between.count == 12
    assert between.mean is not None
    # When the first token is seen, the worker has been sent at most six steps.
    assert (13 - 6) * STEP_MS / 1000 <= 12 * between.mean <= took


def test_a_watch_sees_the_rows_come_on(servers: Servers) -> None:
    with (
        Client(servers.address) as client,
        three_at_work(client),
        client.watch_status(0.2, rows=True) as watch,
    ):

        def tokens() -> int:
            rows = next(watch).rows
            assert len(rows) == 3
            return sum(row.output_tokens for row in rows)

        def more_than(least: int) -> int:
            """Of the next status; 0 if there are no more."""
            count = tokens()
            assert count >= least
            return count if count > least else 0

        count = tokens()
        for _ in range(3):
            count = wait_for(lambda least=count: more_than(least), "there are more")


def test_top_draws_them(servers: Servers) -> None:
    with Client(servers.address) as client, three_at_work(client):
        flags = ("--once", "--interval", "0.3", "--address", servers.address)
        done = nanoserve("top", *flags, PYTHONUTF8="1")
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    (pool,) = (line for line in lines if line.startswith("#") and "scratch" not in line)
    assert {"A", "B", "C", "·"} < set(pool)
    assert len(pool) == NUM_BLOCKS
    assert any("3 of 3 running · 1 waiting" in line for line in lines)
    assert [line.split()[:2] for line in lines[-3:]] == [
        [letter, f"of-{length}"] for letter, length in zip("ABC", PROMPT_LENS, strict=True)
    ]


def test_rows_are_told_of_although_the_worker_hangs(servers: Servers) -> None:
    """The engine's loop turns while it waits for a worker."""
    worker = servers.child("worker").pid
    with Client(servers.address) as client, three_at_work(client):
        os.kill(worker, signal.SIGSTOP)
        try:
            status = everything(client)
        finally:
            os.kill(worker, signal.SIGCONT)
    assert len(status.rows) == 3
    assert status.missing_reason == ""


def test_without_a_worker_a_status_comes_with_the_reason(tmp_path: Path) -> None:
    address = f"unix:{tmp_path}/s"
    link = ("--worker", f"unix:{tmp_path}/none", "--listen", address, "--metrics-listen", "off")
    scheduler = start("scheduler", "--no-tokenizer", *link)
    try:
        wait_for_health(address, health_pb2.HealthCheckResponse.NOT_SERVING)
        with Client(address) as client:
            status = everything(client)
        assert (status.ready, status.rows, status.block_owners) == (False, (), ())
        assert status.missing_reason == "no worker has connected yet"
    finally:
        scheduler.stop(SECONDS, threading.Event())
