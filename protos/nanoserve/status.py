"""What a server serves and how loaded it is."""

from __future__ import annotations

from dataclasses import dataclass, fields

from nanoserve.v1 import inference_pb2 as pb


@dataclass(frozen=True, slots=True)
class ServerStatus:
    """The fields of GetStatusResponse; inference.proto tells each one's meaning."""

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
    return ServerStatus(**values)
