"""What the engine says of itself after every turn."""

from __future__ import annotations

from scheduler.core.front_end import EngineStatus
from scheduler.core.incarnation import Incarnation
from scheduler.core.queue_wait import QueueWait
from scheduler.core.totals import Totals


def take_status(
    worker: Incarnation | None, totals: Totals, queue_wait: QueueWait, reason: str, now: float
) -> EngineStatus:
    """`reason`: why it is not ready; empty if it is."""
    waiting = len(worker.ledger.waiting) if worker else 0
    return EngineStatus(
        ready=not reason,
        reason=reason,
        limits=worker.limits if worker else None,
        worker_incarnation=worker.info.incarnation if worker else 0,
        worker_device=worker.info.device if worker else "",
        running=worker.ledger.num_running if worker else 0,
        waiting=waiting,
        free_blocks=worker.ledger.allocator.num_free if worker else 0,
        steps_in_flight=len(worker.window) if worker else 0,
        steps=totals.steps,
        prompt_tokens=totals.prompt_tokens,
        output_tokens=totals.output_tokens,
        discarded_tokens=totals.discarded_tokens,
        preemptions=totals.preemptions,
        recomputed_tokens=totals.recomputed_tokens,
        worker_restarts=totals.worker_restarts,
        loop_turned_at=now,
        expected_wait=queue_wait.expected(waiting, now),
        cached_blocks=worker.ledger.allocator.num_cached if worker else 0,
        prefix_queries=totals.prefix_queries,
        prefix_hits=totals.prefix_hits,
    )
