"""A real Prometheus scrapes both processes: its totals are the clients' own."""

from __future__ import annotations

import asyncio
import random
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from nanoserve import AsyncClient, InvalidRequestError
from tests.end_to_end.prometheus import MISSING, Prometheus, lint, metrics_of, prometheus
from tests.end_to_end.servers import start, wait_for_health
from tests.waiting import SECONDS, wait_for
from worker.simulated_tokens import expected_tokens

pytestmark = pytest.mark.skipif(
    bool(MISSING), reason=f"not installed: {', '.join(MISSING)} (Debian's package prometheus)"
)

SERVING = 1
VOCAB = 200
REQUESTS = 120
TOO_LONG = 7  # requests that are refused
ON = ("--metrics-listen", "127.0.0.1:0")


class Pair:
    """Scheduler and simulated worker, with their metrics on."""

    def __init__(self, folder: Path) -> None:
        self.address, worker = f"unix:{folder}/public.sock", f"unix:{folder}/worker.sock"
        simulation = ("--simulate", "--vocab-size", str(VOCAB), "--step-ms", "1")
        # A small pool, so that requests are preempted and tokens computed again.
        limits = ("--num-blocks", "60", "--block-size", "4", "--max-model-len", "128")
        self.children = {
            "worker": start("worker", *simulation, *limits, "--listen", worker, *ON),
            "scheduler": start(
                "scheduler",
                *("--no-tokenizer", "--worker", worker, "--listen", self.address, *ON),
            ),
        }
        self.targets = {name: metrics_of(child) for name, child in self.children.items()}


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    pair = Pair(tmp_path_factory.mktemp("pair"))
    wait_for_health(pair.address, SERVING)
    yield pair
    for child in pair.children.values():
        child.stop(0, threading.Event())


async def load(address: str) -> Counter[str]:
    """Plays requests of random shape and returns the clients' own totals."""
    totals: Counter[str] = Counter()

    async def one(client: AsyncClient, seed: int) -> None:
        rng = random.Random(seed)
        prompt = [rng.randrange(VOCAB) for _ in range(rng.randint(1, 40))]
        count = rng.randint(1, 40)
        stop = [expected_tokens(prompt, count, VOCAB)[count // 2]] if seed % 3 == 0 else []
        if seed < TOO_LONG:
            count = 1000
        call = client.generate(
            token_ids=prompt, max_tokens=count, temperature=0, stop_token_ids=stop
        )
        try:
            done = await call.collect()
        except InvalidRequestError:
            totals["invalid"] += 1
            return
        assert done.finish_reason is not None
        totals[done.finish_reason.value] += 1
        totals["requests"] += 1
        totals["prompt"] += len(prompt)
        totals["output"] += len(done.token_ids)

    async with AsyncClient(address) as client:
        await asyncio.gather(*(one(client, seed) for seed in range(REQUESTS)))
    return totals


def test_what_prometheus_has_scraped_equals_the_clients_totals(pair: Pair, tmp_path: Path) -> None:
    with prometheus(tmp_path, pair.targets) as server:
        both = dict.fromkeys(pair.targets, 1.0)
        wait_for(lambda: server.query("up") == both, "both are scraped")
        totals = asyncio.run(load(pair.address))
        expected: dict[str, float] = {
            'nanoserve_requests_total{outcome="length"}': totals["length"],
            'nanoserve_requests_total{outcome="stop"}': totals["stop"],
            'nanoserve_requests_total{outcome="invalid"}': totals["invalid"],
            'nanoserve_requests_refused_total{reason="invalid"}': TOO_LONG,
            "nanoserve_prompt_tokens_total": totals["prompt"],
            "nanoserve_generation_tokens_total": totals["output"],
            "nanoserve_time_to_first_token_seconds_count": totals["requests"],
            "nanoserve_inter_token_latency_seconds_count": totals["output"] - totals["requests"],
            "nanoserve_e2e_request_latency_seconds_count": totals["requests"],
            "nanoserve_num_requests_running": 0,
            "nanoserve_num_requests_waiting": 0,
            "nanoserve_steps_in_flight": 0,
        }
        assert settled(server, "scheduler", expected) == expected
        assert totals["stop"] > 10
        assert totals["length"] > 10
        assert scheduler(server, "num_preemptions_total") > 0
        # What the worker ran is what the scheduler was answered.
        sampled = scheduler(server, "discarded_tokens_total") + totals["output"]
        steps = scheduler(server, "steps_total")
        assert scheduler(server, "step_device_idle_seconds_count") == steps - 1
        expected = {
            "nanoserve_worker_steps_total": steps,
            "nanoserve_worker_step_total_seconds_count": steps,
            "nanoserve_worker_step_device_idle_seconds_count": steps - 1,
            "nanoserve_worker_sampled_tokens_total": sampled,
            "nanoserve_worker_computed_tokens_total": scheduler(server, "step_tokens_sum"),
            "nanoserve_worker_connects_total": 1,
            "nanoserve_worker_pool_blocks": 60,
        }
        assert settled(server, "worker", expected) == expected


def test_promtool_finds_nothing_wrong_with_either_text(pair: Pair) -> None:
    for target in pair.targets.values():
        with urllib.request.urlopen(f"http://{target}/metrics", timeout=SECONDS) as response:
            text = response.read().decode()
        assert text.count("# HELP nanoserve_") > 10
        assert lint(text) == ""
    assert lint("# TYPE steps counter\nsteps 1\n") != ""


def scheduler(server: Prometheus, name: str) -> float:
    return server.query(f"nanoserve_{name}")["scheduler"]


def settled(server: Prometheus, job: str, expected: dict[str, float]) -> dict[str, float]:
    """The values of a job for the queries of `expected`, once they are as expected or never
    will be."""
    give_up = time.monotonic() + SECONDS
    while True:
        values = {query: server.query(query).get(job, -1.0) for query in expected}
        if values == expected or time.monotonic() > give_up:
            return values
        time.sleep(0.1)
