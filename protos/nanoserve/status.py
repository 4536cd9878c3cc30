"""What a server serves and how loaded it is."""

from __future__ import annotations

import enum
from dataclasses import dataclass, fields

from nanoserve.latency import LatencyHistogram, histogram_from
from nanoserve.v1 import inference_pb2 as pb


class BlockOwner(enum.IntEnum):
    """What `block_owners` has for a block that no row holds."""

    FREE = -1
    SCRATCH = -2
    CACHED = -3


@dataclass(frozen=True, slots=True)
class RunningRow:
    """The fields of RunningRow in inference.proto, which tells each one's meaning."""

    row: int
    request_id: str
    prompt_tokens: int
    computed_tokens: int
    output_tokens: int
    max_tokens: int
    blocks: int
    running_seconds: float

    @property
    def computed_prompt_tokens(self) -> int:
        """Of `prompt_tokens`, those that have been computed."""
        return min(self.computed_tokens, self.prompt_tokens)


@dataclass(frozen=True, slots=True)
class ServerStatus:
    """The fields of GetStatusResponse; inference.proto tells each one's meaning.

    `rows`, `block_owners` and the latencies are empty, or None, unless they were asked for.
    """

    ready: bool
    reason: str
    model: str
    max_model_len: int
    vocab_size: int
    max_rows: int
    block_size: int
    usable_blocks: int
    free_blocks: int
    running_requests: int
    waiting_requests: int
    steps_in_flight: int
    steps: int
    prompt_tokens: int
    output_tokens: int
    discarded_tokens: int
    preemptions: int
    worker_incarnation: int
    worker_device: str
    uptime_seconds: float
    recomputed_tokens: int
    worker_restarts: int
    missing_reason: str
    rows: tuple[RunningRow, ...]
    block_owners: tuple[int, ...]  # of each block: a row, or a BlockOwner
    time_to_first_token: LatencyHistogram | None
    inter_token_latency: LatencyHistogram | None
    cached_blocks: int
    prefix_queries: int
    prefix_hits: int

    @property
    def max_request_tokens(self) -> int:
        """Most tokens, prompt plus output, of one request; 0 before the first worker.

        The last token sampled is never stored, so the pool has room for one more than
        it has slots.
        """
        if not self.usable_blocks:
            return 0
        return min(self.max_model_len, self.usable_blocks * self.block_size + 1)


def status_from(response: pb.GetStatusResponse) -> ServerStatus:
    """The status that a response carries."""
    values = {field.name: getattr(response, field.name) for field in fields(ServerStatus)}
    values["rows"] = tuple(_row_from(row) for row in response.rows)
    values["block_owners"] = tuple(response.block_owners)
    for name in ("time_to_first_token", "inter_token_latency"):
        values[name] = histogram_from(values[name]) if response.HasField(name) else None
    return ServerStatus(**values)


def _row_from(row: pb.RunningRow) -> RunningRow:
    return RunningRow(**{field.name: getattr(row, field.name) for field in fields(RunningRow)})
