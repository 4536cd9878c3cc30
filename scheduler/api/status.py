"""The engine's status as clients see it."""

from __future__ import annotations

from nanoserve.v1 import inference_pb2
from scheduler.core.front_end import EngineStatus


def status_response(
    status: EngineStatus, model: str, draining: bool, uptime_seconds: float
) -> inference_pb2.GetStatusResponse:
    response = inference_pb2.GetStatusResponse(
        ready=status.ready and not draining,
        reason="the server is draining" if draining else status.reason,
        model=model,
        free_blocks=status.free_blocks,
        running_requests=status.running,
        waiting_requests=status.waiting,
        steps_in_flight=status.steps_in_flight,
        steps=status.steps,
        prompt_tokens=status.prompt_tokens,
        output_tokens=status.output_tokens,
        discarded_tokens=status.discarded_tokens,
        preemptions=status.preemptions,
        worker_incarnation=status.worker_incarnation,
        worker_device=status.worker_device,
        uptime_seconds=uptime_seconds,
    )
    if status.limits is not None:
        response.max_model_len = status.limits.max_model_len
        response.vocab_size = status.limits.vocab_size
        response.max_rows = status.limits.max_rows
        response.block_size = status.limits.block_size
        response.usable_blocks = status.limits.usable_blocks
    return response
