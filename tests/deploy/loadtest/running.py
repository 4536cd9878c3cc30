"""Carries out orders in the test's own event loop."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import numpy as np

from deploy.loadtest.generator import Generator
from deploy.loadtest.grpc_target import GrpcTarget
from deploy.loadtest.openai_target import OpenAITarget
from deploy.loadtest.orders import Order, Scheduled, Setup, Start
from deploy.loadtest.plan import LoadPlan, Nanoserve
from deploy.loadtest.timeline import Timeline
from tests.waiting import SECONDS

VOCAB = 100


def at_once(count: int) -> Scheduled:
    return Scheduled(0, np.arange(count), np.zeros(count))


async def carry_out(
    plan: LoadPlan, order: Order, during: Callable[[Generator], object] = lambda _: None
) -> list[Timeline]:
    """The order's timelines, by index; times are from its start. `during` is called once
    it runs, and awaited if it can be."""
    is_ours = isinstance(plan.target, Nanoserve)
    target = GrpcTarget(plan.target, plan) if is_ours else OpenAITarget(plan.target, plan)
    await target.open()
    try:
        origin = time.monotonic()
        generator = Generator(Setup(plan, VOCAB, "test", origin), target)
        generator.prepare(order)
        running = asyncio.create_task(generator.run(order, Start(origin, origin)))
        await asyncio.sleep(0)
        if asyncio.iscoroutine(waiting := during(generator)):
            await waiting
        timelines = await asyncio.wait_for(running, SECONDS)
    finally:
        await target.close()
    return sorted(timelines, key=lambda timeline: timeline.index)
