"""How long the device had nothing to do before a step."""

from __future__ import annotations

import time

import pytest
import torch

from tests.worker.running_worker import small_geometry
from tests.worker.step_messages import first_step, int32, int64, second_step
from worker.ledger import Ledger
from worker.results import CpuClock, ResultBuffer
from worker.simulate import SimulatedExecutor, SimulationOptions

MS = 1_000_000


class Clock:
    """Stands for the module `time`."""

    def __init__(self) -> None:
        self.ns = 0

    def monotonic_ns(self) -> int:
        return self.ns

    def sleep(self, seconds: float) -> None:
        self.ns += round(seconds * 1e9)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr("worker.simulate.time", clock)
    monkeypatch.setattr("worker.results.time", clock)
    return clock


def test_a_simulated_device_is_idle_from_a_steps_end_to_the_next_ones_launch(clock: Clock) -> None:
    executor = SimulatedExecutor(small_geometry(), SimulationOptions(step_ms=2.0))
    ledger = Ledger(executor.geometry, check_slots=True)
    third = second_step(0, rows=int32(3), query_lens=int32(1), context_lens=int32(7))
    third.step_id, third.slot_mapping, third.samples = 3, int64(38), b"\1"
    idle = []
    for step, launched_ms in ((first_step(), 0), (second_step(), 1), (third, 10)):
        clock.ns = launched_ms * MS
        (pending,) = executor.launch(ledger.admit(step))
        idle.append(pending.wait().idle_ns)
    # The second waits for the first, which ends at 2 ms, and ends at 4 ms.
    assert idle == [None, 0, 6 * MS]


def test_a_cpu_is_idle_from_a_results_end_to_the_next_ones_start(clock: Clock) -> None:
    result = CpuClock()
    outputs = []
    for started_ms, computed_ms, done_ms in ((1, 4, 5), (5, 7, 8), (20, 21, 21)):
        clock.ns = started_ms * MS
        result.start(result)
        clock.ns = computed_ms * MS
        result.computed()
        clock.ns = done_ms * MS
        outputs.append(result.finish(torch.zeros(1, dtype=torch.int32), 1).wait())
    assert [output.idle_ns for output in outputs] == [None, 0, 12 * MS]
    assert [output.device_ns for output in outputs] == [3 * MS, 2 * MS, 1 * MS]


@pytest.mark.gpu
def test_a_cuda_device_is_idle_while_nothing_is_queued_whenever_the_results_are_read() -> None:
    device = torch.device("cuda")
    ring = [ResultBuffer(4, device) for _ in range(3)]
    sampled = torch.zeros(2, dtype=torch.int32, device=device)

    def launch(i: int) -> None:
        ring[i].start(ring[i - 1])
        torch.cuda._sleep(50_000_000)  # cycles: some 25 ms
        ring[i].computed()
        ring[i].finish(sampled, 2)

    launch(0)
    launch(1)  # queued behind the first
    torch.cuda.synchronize()
    time.sleep(0.05)
    launch(2)
    first, second = ring[0].pending, ring[1].pending
    assert first is not None
    assert second is not None
    launch(0)  # the first's buffer, whose events the second's time must not depend on
    third = ring[2].pending
    assert third is not None
    assert first.wait().idle_ns is None
    idle_ns = second.wait().idle_ns
    assert idle_ns is not None
    assert 0 <= idle_ns < MS
    idle_ns = third.wait().idle_ns
    assert idle_ns is not None
    assert idle_ns >= 50 * MS
    assert first.wait().device_ns > 5 * MS
