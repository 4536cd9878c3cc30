"""What a person may set of the engine."""

from __future__ import annotations

from dataclasses import dataclass

CPU_DEPTH = 2
GPU_DEPTH = 3
CPU_STEP_TOKENS = 512


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """`pipeline_depth` and `max_step_tokens` None take the defaults for the worker's
    device: depth 2 on a CPU and 3 elsewhere; 512 tokens on a CPU, where a longer step
    would hold up every stream, and as many as the worker takes elsewhere. Raises
    ValueError for a value out of range."""

    pipeline_depth: int | None = None
    max_step_tokens: int | None = None
    max_queue: int = 1024  # requests beyond one for each row
    audit: bool = False  # check the books after every turn

    def __post_init__(self) -> None:
        for name, least in (("pipeline_depth", 1), ("max_step_tokens", 1), ("max_queue", 0)):
            value = getattr(self, name)
            if value is not None and value < least:
                raise ValueError(f"{name} is {value}, must be at least {least}")

    def depth_on(self, device: str) -> int:
        return self.pipeline_depth or (CPU_DEPTH if device == "cpu" else GPU_DEPTH)

    def step_tokens_on(self, device: str, worker_limit: int) -> int:
        default = CPU_STEP_TOKENS if device == "cpu" else worker_limit
        return min(self.max_step_tokens or default, worker_limit)
