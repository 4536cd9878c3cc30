"""What a person may set of the engine."""

from __future__ import annotations

from dataclasses import dataclass

CPU_DEPTH = 2
# On an H200 some 2.8 ms pass from a step's end to the start of the one that its answer lets go, and
# a step of a small model takes 0.8. What longer steps would hold up is bounded by the lookahead.
GPU_DEPTH = 6
CPU_STEP_TOKENS = 512
CPU_STEP_TIMEOUT = 450.0  # seconds
STEP_TIMEOUT = 90.0
LEAST_STUCK_TIMEOUT = 3.0  # an engine with nothing to do turns once a second


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """`pipeline_depth` and `max_step_tokens` None take the defaults for the worker's
    device: depth 2 on a CPU and 6 elsewhere; 512 tokens on a CPU, where a longer step
    would hold up every stream, and as many as the worker takes elsewhere. `step_timeout`:
    seconds after which a worker that owes an answer is given up; None is half as much again
    as the worker's own default, by which it should have ended itself. Raises ValueError for a
    value out of range."""

    pipeline_depth: int | None = None
    max_step_tokens: int | None = None
    max_queue: int = 1024  # requests beyond one for each row
    max_queue_tokens: int | None = None  # of the waiting, together
    max_queue_wait: float | None = None  # seconds that a request may have to wait; None: any
    prefix_cache: bool = True  # share blocks of equal beginnings
    audit: bool = False  # check the books after every turn
    recovery_timeout: float = 300.0  # seconds that requests wait for a worker that is away
    step_timeout: float | None = None
    stuck_timeout: float = 60.0  # seconds that the loop may stand; 0: for ever
    decode_steps: int = 1  # most repetitions of a step that only decodes

    def __post_init__(self) -> None:
        for name, least in (
            ("pipeline_depth", 1),
            ("max_step_tokens", 1),
            ("max_queue", 0),
            ("max_queue_tokens", 1),
            ("decode_steps", 1),
        ):
            value = getattr(self, name)
            if value is not None and value < least:
                raise ValueError(f"{name} is {value}, must be at least {least}")

        for name in ("recovery_timeout", "step_timeout", "max_queue_wait"):
            value = getattr(self, name)
            if value is not None and not 0 < value < 1e6:
                raise ValueError(f"{name} is {value} seconds, must be above 0 and below 1e6")
        if self.stuck_timeout and not LEAST_STUCK_TIMEOUT <= self.stuck_timeout < 1e6:
            raise ValueError(
                f"stuck_timeout is {self.stuck_timeout} seconds, must be 0 or at least "
                f"{LEAST_STUCK_TIMEOUT:g} and below 1e6"
            )

    def step_timeout_on(self, device: str) -> float:
        default = CPU_STEP_TIMEOUT if device == "cpu" else STEP_TIMEOUT
        return default if self.step_timeout is None else self.step_timeout

    def depth_on(self, device: str) -> int:
        return self.pipeline_depth or (CPU_DEPTH if device == "cpu" else GPU_DEPTH)

    def step_tokens_on(self, device: str, worker_limit: int) -> int:
        default = CPU_STEP_TOKENS if device == "cpu" else worker_limit
        return min(self.max_step_tokens or default, worker_limit)
