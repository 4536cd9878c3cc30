"""The measurements, one after the other."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from deploy.bench.batching.loads import Asked, Mix, run_burst, seven_behind_one
from deploy.bench.batching.policies import ROWS, Bill, Policy, bill
from deploy.bench.batching.recording import Recording
from deploy.bench.batching.servers import SCHEDULER, RecordedWorker
from deploy.bench.batching.throughput import BatchRate
from deploy.bench.ready import free_address

SEVEN, ARRIVING, BACKLOG = "seven short behind one", "mix, arriving", "mix, all at once"
BLOCK = 16  # tokens, the worker's default
# Of what the decode rate at a batch of ROWS could serve: a static batch holds this rate too,
# so that its latencies are those of its batches and not of an endless queue.
SHARE_OF_RATE = 0.2
ALL_AT_ONCE = 1e6  # requests a second
# How long a static batch that is not full waits. A full one never does: the first is long
# enough for all of a burst to get in, the second, in decode steps, is for single arrivals.
BURST_WAIT = 2.0  # seconds
WAIT_STEPS = 4


@dataclass(frozen=True, slots=True)
class Sizes:
    """What is measured. Lengths in tokens."""

    batches: tuple[int, ...]
    prompt: int
    output: int
    rounds: int
    mix: Mix
    # One client or front end is the limit from some 20,000 tokens a second on.
    clients: int = 1  # processes that send the bursts
    frontends: int = 0  # of the scheduler, for the bursts


class Measurements:
    """Runs them on workers that `worker_flags` start, beside --max-rows and --num-blocks."""

    def __init__(
        self, sizes: Sizes, worker_flags: Sequence[str], show: Callable[[str], None]
    ) -> None:
        self._sizes = sizes
        self._worker_flags = worker_flags
        self._show = show
        self.rates: list[BatchRate] = []
        self.bills: list[Bill] = []

    def run(self) -> None:
        self._measure_rates()
        fits_one = -(-(self._sizes.mix.most_tokens - 1) // BLOCK)
        self._compare_policies(ROWS * fits_one)
        for rows in (4, 2, 1):
            self._measure_pool(rows * fits_one)

    @property
    def _reference_batch(self) -> int:
        """The measured batch size nearest to ROWS."""
        return min(self._sizes.batches, key=lambda batch: abs(batch - ROWS))

    def _measure_rates(self) -> None:
        sizes = self._sizes
        most = max(sizes.batches)
        blocks = most * -(-(sizes.prompt + sizes.output) // BLOCK)
        flags = (*SCHEDULER, "--frontends", str(sizes.frontends))
        listen = free_address() if sizes.frontends else None
        with (
            self._worker(most, blocks) as worker,
            worker.scheduler(flags, listen=listen) as address,
        ):
            self._show("warming up")
            run_burst(address, most, sizes.prompt, 8, 0, sizes.clients)
            for number in range(1, sizes.rounds + 1):
                for batch in sizes.batches:
                    self._show(f"round {number} of {sizes.rounds}, {batch} at once")
                    clients = min(batch, sizes.clients)
                    run = run_burst(address, batch, sizes.prompt, sizes.output, number, clients)
                    self.rates.append(BatchRate.of(run, batch, number))

    def _compare_policies(self, pool: int) -> None:
        mix, reference = self._sizes.mix, self._reference_batch
        decode = statistics.median(r.decode for r in self.rates if r.batch == reference)
        arriving = mix.asked(SHARE_OF_RATE * decode / mix.mean_output)
        wait = WAIT_STEPS * reference / decode
        with self._worker(ROWS, pool) as worker:
            self._warm_up(worker)
            for number in range(1, self._sizes.rounds + 1):
                for policy in Policy:
                    self._bill(worker, SEVEN, seven_behind_one(), policy, number=number)
            for policy in Policy:
                self._bill(worker, ARRIVING, arriving, policy, wait)
            for policy in (Policy.CONTINUOUS, Policy.STATIC):
                self._bill(worker, BACKLOG, mix.asked(ALL_AT_ONCE), policy)

    def _measure_pool(self, pool: int) -> None:
        with self._worker(ROWS, pool) as worker:
            self._warm_up(worker)
            self._bill(worker, BACKLOG, self._sizes.mix.asked(ALL_AT_ONCE), Policy.CONTINUOUS)

    def _warm_up(self, worker: RecordedWorker) -> None:
        recordings: list[Recording] = []
        with worker.recorded_scheduler(SCHEDULER, recordings) as address:
            run_burst(address, ROWS, 16, 4, 0)

    def _bill(
        self,
        worker: RecordedWorker,
        load: str,
        asked: Sequence[Asked],
        policy: Policy,
        wait: float = BURST_WAIT,
        number: int = 1,
    ) -> None:
        self._show(f"{load}: {policy.value}")
        self.bills.append(bill(worker, load, asked, policy, wait, number))

    def _worker(self, rows: int, pool: int) -> RecordedWorker:
        shape = ("--max-rows", str(rows), "--num-blocks", str(pool + 1))
        return RecordedWorker((*shape, "--block-size", str(BLOCK), *self._worker_flags))
