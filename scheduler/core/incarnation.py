"""All that lives as long as one incarnation of the worker does."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from scheduler.core.config import EngineConfig
from scheduler.core.front_end import Failure, FailureKind, Limits
from scheduler.core.ledger import Ledger
from scheduler.core.planner import Planner
from scheduler.core.policy import Policy
from scheduler.core.request import Request
from scheduler.core.statistics import Statistics
from scheduler.core.window import Window
from scheduler.core.worker_link import WorkerInfo

log = logging.getLogger(__name__)


@dataclass(slots=True)
class Incarnation:
    """The worker as it told of itself, and the books of its pool."""

    info: WorkerInfo
    limits: Limits
    ledger: Ledger
    planner: Planner
    window: Window


def begin(
    info: WorkerInfo, config: EngineConfig, policy: Policy, statistics: Statistics
) -> Incarnation:
    """Opens the books of an empty pool."""
    budget = config.step_tokens_on(info.device, info.max_step_tokens)
    limits = Limits(
        max_model_len=info.max_model_len,
        vocab_size=info.vocab_size,
        # A step always has room for one token of each row.
        max_rows=min(info.max_rows, budget),
        block_size=info.block_size,
        usable_blocks=info.num_blocks - 1,
    )
    ledger = Ledger(
        info.num_blocks,
        info.block_size,
        limits.max_rows,
        limits.max_request_tokens,
        statistics,
        policy.hold,
        config.prefix_cache,
    )
    planner = Planner(policy, budget, info.incarnation, info.last_executed_step)
    window = Window(
        min(config.depth_on(info.device), info.max_steps_in_flight),
        min(config.decode_steps, info.max_decode_steps),
    )
    _tell(config, info, limits, budget, window)
    return Incarnation(info, limits, ledger, planner, window)


def _tell(
    config: EngineConfig, info: WorkerInfo, limits: Limits, budget: int, window: Window
) -> None:
    log.info(
        "up to %d rows, %d tokens a step, %d steps in flight of up to %d decodes each; "
        "%d blocks of %d tokens",
        limits.max_rows,
        budget,
        window.depth,
        window.decode_steps,
        limits.usable_blocks,
        limits.block_size,
    )
    for name, wanted, used in (
        ("max_step_tokens", config.max_step_tokens, budget),
        ("pipeline_depth", config.pipeline_depth, window.depth),
        ("decode_steps", config.decode_steps, window.decode_steps),
        ("max_rows", info.max_rows, limits.max_rows),
    ):
        if wanted is not None and used < wanted:
            reason = "max_step_tokens" if name == "max_rows" else "the worker's limit"
            log.warning("%s is %d, lowered to %d by %s", name, wanted, used, reason)


def carry_over(requests: list[Request], to: Incarnation, now: float) -> list[Failure]:
    """Queues the requests of a lost incarnation, in order, to be recomputed from their
    tokens; fails those that a smaller pool has no room for."""
    most = to.limits.max_request_tokens
    failures = []
    for request in requests:
        if request.submission.max_tokens is None:
            request.limit = most
        needed = max(request.limit, len(request.tokens) + 1)
        to.ledger.enqueue(request)
        if needed > most:
            to.ledger.end(request)
            message = (
                f"request {request.request_id} needs room for {needed} tokens, but the new "
                f"worker has room for {most}"
            )
            usage = request.usage(now)
            failures.append(Failure(request.handle, FailureKind.NO_ROOM, message, usage=usage))
    return failures
