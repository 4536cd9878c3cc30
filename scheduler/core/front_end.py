"""What the engine and its front ends say to each other.

Everything here is plain data without callbacks, so that a front end may live in
another process than the engine. A front end names each of its calls by a
`handle`, an integer of its own that it never uses twice; the engine answers with
the same handle. For each submitted handle the engine sends exactly one final
event: a `Finished` or a `Failure`.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from scheduler.core.logprobs import Logprobs
from scheduler.core.penalties import NO_PENALTIES, Penalties


class FailureKind(enum.Enum):
    """Why a request failed. The front end turns it into a gRPC status."""

    INVALID = "invalid"  # can never work: field, value and limit in the message
    DUPLICATE_ID = "duplicate id"  # request_id is running or waiting
    QUEUE_FULL = "queue full"  # retry later
    NO_ROOM = "no room"  # a new worker's pool is too small for it
    DEADLINE = "deadline"  # its deadline passed
    CANCELLED = "cancelled"  # the client cancelled or went away
    UNAVAILABLE = "unavailable"  # no worker yet, worker away too long, or draining
    INTERNAL = "internal"  # the request itself made a step fail


class FinishReason(enum.Enum):
    """Why an output ended well."""

    STOP = "stop"  # an end token, a stop token or a stop string
    LENGTH = "length"  # max_tokens, or no room for more in the model or the pool


@dataclass(frozen=True, slots=True)
class Submission:
    """A request, checked by the front end against everything it knows.

    `max_tokens` None means as many as the model and the pool have room for.
    `deadline` is on `time.monotonic()`, seconds. `arrival` likewise. `trace_parent` is
    a W3C traceparent, for logs and spans only; empty if there is none. `top_logprobs`: of how
    many of the most likely tokens log-probabilities come beside each token's own; None: none
    come at all.
    """

    handle: int
    request_id: str
    prompt_ids: np.ndarray  # int32 [n]
    max_tokens: int | None
    temperature: float
    seed: int | None
    stop_ids: frozenset[int]
    arrival: float
    deadline: float | None = None
    trace_parent: str = ""
    penalties: Penalties = NO_PENALTIES
    top_logprobs: int | None = None


@dataclass(frozen=True, slots=True)
class Abort:
    """Ends a request from the front end's side; unknown handles are ignored.

    With reason STOP, `output_tokens` is the number of tokens up to and with the
    one that completed a stop string: it sets the usage, and the request ends with
    a `Finished` of reason STOP. With any other reason it ends with a
    `Failure` of that kind.
    """

    handle: int
    reason: FailureKind | FinishReason
    output_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class RequestUsage:
    """What a request used until it ended. Times are seconds from its arrival."""

    prompt_tokens: int
    output_tokens: int
    queue_seconds: float  # to the first step planned with it, or to its end without one
    first_token_seconds: float | None  # None: it made none
    total_seconds: float
    preemptions: int
    recomputed_tokens: int = 0  # computed once more after preemptions
    cached_tokens: int = 0  # of the prompt, found in the prefix cache and not computed


@dataclass(frozen=True, slots=True)
class Finish:
    """How a request ended well."""

    reason: FinishReason
    stop_token: int | None  # the token that stopped it, if one did
    usage: RequestUsage


@dataclass(frozen=True, slots=True)
class Finished:
    """The last event of a request that ended well. Its tokens came before it, in
    this batch or in earlier ones."""

    handle: int
    finish: Finish


@dataclass(frozen=True, slots=True)
class Failure:
    """The last event of a request that failed."""

    handle: int
    kind: FailureKind
    message: str
    field: str = ""  # the request field at fault, for INVALID
    retry_after: float | None = None  # seconds, for QUEUE_FULL
    usage: RequestUsage | None = None  # None: the engine never took it


@dataclass(frozen=True, slots=True)
class SnapshotRequest:
    """Asks for a `Snapshot`, which comes with the same handle."""

    handle: int
    block_map: bool = False  # with `block_owners`


FREE_BLOCK = -1
SCRATCH_OWNER = -2
CACHED_BLOCK = -3


@dataclass(frozen=True, slots=True)
class LatencyCounts:
    """Durations observed since the engine's start, counted by range."""

    bounds: np.ndarray  # float64 [n]: seconds, rising
    counts: np.ndarray  # int64 [n + 1]: at or below each bound and above the one before
    sum: float  # seconds, of all


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Every running row, all of the same moment. Shapes: r rows, ascending."""

    handle: int
    request_ids: list[str]  # [r]
    rows: np.ndarray  # int32 [r]
    prompt_tokens: np.ndarray  # int32 [r]
    computed_tokens: np.ndarray  # int32 [r]: in the pool once every step sent has run
    output_tokens: np.ndarray  # int32 [r]: accepted
    max_tokens: np.ndarray  # int32 [r]: most output tokens
    blocks: np.ndarray  # int32 [r]: held
    seconds: np.ndarray  # float64 [r]: since the request's first step was planned
    first_token: LatencyCounts  # from arrival to the first token
    inter_token: LatencyCounts  # between tokens of one request
    # int32 [num_blocks]: the row that holds each block (one of them if several do),
    # FREE_BLOCK, CACHED_BLOCK or SCRATCH_OWNER. None if not asked for, or without a worker.
    block_owners: np.ndarray | None = None


@dataclass(slots=True)
class CallTotals:
    """What a front end counts of its calls, from its start on. Every call that came counts
    once in `outcomes`, when it has ended."""

    # By "stop", "length" or a FailureKind's value.
    outcomes: dict[str, int] = field(default_factory=dict)
    # Of the outcomes, the calls that were never taken, by FailureKind's value.
    refusals: dict[str, int] = field(default_factory=dict)
    prompt_tokens: int = 0  # of calls that got a token
    output_tokens: int = 0  # passed on to clients
    cached_tokens: int = 0  # of the prompts of calls that ended well, as their clients were told
    # Calls of any method without a good token. They are in no other count.
    unauthenticated: int = 0


@dataclass(frozen=True, slots=True)
class Limits:
    """What the front end checks requests against; known once a worker connected."""

    max_model_len: int
    vocab_size: int
    max_rows: int
    block_size: int
    usable_blocks: int

    @property
    def max_request_tokens(self) -> int:
        """Most tokens (prompt plus output) of one request. The last token sampled
        needs no slot, so the pool has room for one more than it has slots."""
        return min(self.max_model_len, self.usable_blocks * self.block_size + 1)


@dataclass(frozen=True, slots=True)
class EngineStatus:
    """The engine at one moment, for health and GetStatus. Totals since start."""

    ready: bool
    reason: str  # if not ready: what it waits for
    limits: Limits | None
    worker_incarnation: int
    worker_device: str
    running: int
    waiting: int
    free_blocks: int
    steps_in_flight: int
    steps: int
    prompt_tokens: int
    output_tokens: int
    discarded_tokens: int
    preemptions: int
    recomputed_tokens: int
    worker_restarts: int
    loop_turned_at: float  # time.monotonic() of the engine loop's last turn
    expected_wait: float = 0.0  # seconds that a request that comes would wait for its first step
    cached_blocks: int = 0  # of the free ones
    prefix_queries: int = 0  # prompt tokens looked up in the prefix cache, and found
    prefix_hits: int = 0


@dataclass(frozen=True, slots=True)
class EventBatch:
    """All events of one turn of the engine: one wake-up of the front end.

    Tokens come as two columns of one length, so that the engine touches no object
    for a row that just goes on: token_ids[i] is the next token of handles[i]. A
    handle may stand there more than once. The tokens come before the ends. `logprobs`
    belong to the tokens; None: nobody in this batch asked for any.
    """

    handles: np.ndarray  # int64 [m]
    token_ids: np.ndarray  # int32 [m]
    ends: list[Finished | Failure] = field(default_factory=list)
    snapshots: list[Snapshot] = field(default_factory=list)
    logprobs: Logprobs | None = None


class FrontEnd(Protocol):
    """What the engine needs of a front end. Called in turns of its loop, by
    one thread at a time, which may be one that called the engine: must not block and must not
    raise."""

    def deliver(self, batch: EventBatch) -> None: ...

    def status_changed(self, status: EngineStatus) -> None:
        """Readiness or limits changed."""
        ...


class EnginePort(Protocol):
    """What a front end needs of the engine. Callable from any thread; none waits
    for anything, but each may take as long as a turn of the engine's loop."""

    def submit(self, submission: Submission) -> None: ...

    def abort(self, abort: Abort) -> None: ...

    def status(self) -> EngineStatus: ...

    def ask_snapshot(self, request: SnapshotRequest) -> None: ...

    def report(self, totals: CallTotals) -> None:
        """The front end's totals so far, for the engine to sum up with others'. The object
        stays the front end's own, which goes on counting in it."""
        ...

    def drain(self, deadline: float) -> None:
        """Refuses new requests; what is unfinished at `deadline`
        (time.monotonic()) fails with UNAVAILABLE."""
        ...
