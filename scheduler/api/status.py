"""The engine's status as clients see it."""

from __future__ import annotations

from functools import cached_property

from nanoserve.v1 import inference_pb2
from scheduler.api.health import STUCK_SECONDS
from scheduler.core.front_end import EngineStatus, LatencyCounts, Snapshot

StatusRequest = inference_pb2.GetStatusRequest | inference_pb2.WatchStatusRequest


def status_response(
    status: EngineStatus, model: str, draining: bool, uptime_seconds: float, now: float
) -> inference_pb2.GetStatusResponse:
    """`now` is time.monotonic(), seconds."""
    reason = _reason(status, draining, now - status.loop_turned_at)
    response = inference_pb2.GetStatusResponse(
        ready=not reason,
        reason=reason,
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
        recomputed_tokens=status.recomputed_tokens,
        worker_restarts=status.worker_restarts,
        cached_blocks=status.cached_blocks,
        prefix_queries=status.prefix_queries,
        prefix_hits=status.prefix_hits,
    )
    if status.limits is not None:
        response.max_model_len = status.limits.max_model_len
        response.vocab_size = status.limits.vocab_size
        response.max_rows = status.limits.max_rows
        response.block_size = status.limits.block_size
        response.usable_blocks = status.limits.usable_blocks
    return response


def _reason(status: EngineStatus, draining: bool, still_seconds: float) -> str:
    """Why not ready, as health has it; empty if ready."""
    if draining:
        return "the server is draining"
    if still_seconds >= STUCK_SECONDS:
        return f"the engine's loop has stood still for {still_seconds:.0f} s"
    return "" if status.ready else status.reason or "the engine is not ready"


class SnapshotFields:
    """A snapshot as fields of a status, each made when it is first asked for and then copied
    to every status that shares the snapshot."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot

    def add_to(self, response: inference_pb2.GetStatusResponse, asked: StatusRequest) -> None:
        if asked.include_rows:
            response.MergeFrom(self._rows)
        if asked.include_block_map:
            response.MergeFrom(self._block_owners)
        if asked.include_latencies:
            response.MergeFrom(self._latencies)

    @cached_property
    def _rows(self) -> inference_pb2.GetStatusResponse:
        taken = self._snapshot
        columns = (
            taken.rows,
            taken.prompt_tokens,
            taken.computed_tokens,
            taken.output_tokens,
            taken.max_tokens,
            taken.blocks,
            taken.seconds,
        )
        lists = (taken.request_ids, *(column.tolist() for column in columns))
        response = inference_pb2.GetStatusResponse()
        for name, row, prompt, computed, output, most, blocks, seconds in zip(*lists, strict=True):
            response.rows.add(
                row=row,
                request_id=name,
                prompt_tokens=prompt,
                computed_tokens=computed,
                output_tokens=output,
                max_tokens=most,
                blocks=blocks,
                running_seconds=seconds,
            )
        return response

    @cached_property
    def _block_owners(self) -> inference_pb2.GetStatusResponse:
        owners = self._snapshot.block_owners
        values = [] if owners is None else owners.tolist()
        return inference_pb2.GetStatusResponse(block_owners=values)

    @cached_property
    def _latencies(self) -> inference_pb2.GetStatusResponse:
        return inference_pb2.GetStatusResponse(
            time_to_first_token=_histogram(self._snapshot.first_token),
            inter_token_latency=_histogram(self._snapshot.inter_token),
        )


def _histogram(counted: LatencyCounts) -> inference_pb2.LatencyHistogram:
    return inference_pb2.LatencyHistogram(
        bounds_seconds=counted.bounds.tolist(),
        counts=counted.counts.tolist(),
        sum_seconds=counted.sum,
    )
