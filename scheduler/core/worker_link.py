"""What the engine and the link to its worker say to each other.

The engine plans; the link encodes, keeps the window of unanswered steps, and
reconnects. A link posts `LinkEvent`s to the engine's inbox from threads of its
own and never calls into the engine otherwise.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from scheduler.core.logprobs import Logprobs
from scheduler.core.penalties import NO_PENALTIES, Penalties


@dataclass(frozen=True, slots=True)
class WorkerInfo:
    """What Connect told of the worker (see worker.proto for units)."""

    incarnation: int
    last_executed_step: int
    device: str
    fingerprint: str
    vocab_size: int
    max_model_len: int
    num_blocks: int  # scratch block included
    block_size: int
    max_rows: int
    max_step_tokens: int
    max_steps_in_flight: int
    max_decode_steps: int


@dataclass(frozen=True, slots=True)
class NewRow:
    """A request that takes a row with this step."""

    row: int
    request_id: str
    token_ids: np.ndarray  # int32 [n], prompt then output so far
    prompt_len: int
    block_ids: np.ndarray  # int32 [b], may be empty
    temperature: float
    seed: int
    tokens_in_pool: int = 0
    trace_parent: str = ""  # for logs and spans only
    penalties: Penalties = NO_PENALTIES
    top_logprobs: int | None = None  # None: no log-probabilities


@dataclass(frozen=True, slots=True)
class StepPlan:
    """One step as the policy decided it; pure data. The planner fills it, the link
    encodes it. Shapes: s sequences, m of them that sample, t tokens, k decode_steps."""

    step_id: int
    incarnation: int
    free_rows: np.ndarray  # int32 [f]
    new_rows: list[NewRow]
    table_rows: np.ndarray  # int32 [a]
    table_counts: np.ndarray  # int32 [a]
    table_blocks: np.ndarray  # int32 [sum of counts]
    rows: np.ndarray  # int32 [s]
    query_lens: np.ndarray  # int32 [s]
    context_lens: np.ndarray  # int32 [s]
    slot_mapping: np.ndarray  # int64 [t]; with k above 1 [k * s], one repetition after the other
    samples: np.ndarray  # bool [s]
    decode_steps: int = 1
    # int64 [m]: how many log-probabilities come with each sampled token; None: no row of the
    # worker's has any. Not for the wire: the link checks answers with it.
    logprob_counts: np.ndarray | None = None


@dataclass(frozen=True, slots=True)
class Connected:
    """The stream is open. `resumed`: same incarnation as before, and the link has
    sent the unanswered steps again; otherwise the window was dropped and the
    engine must recover every running request."""

    info: WorkerInfo
    resumed: bool


@dataclass(frozen=True, slots=True)
class Disconnected:
    """The worker cannot be reached; the link goes on trying. Changes nothing by
    itself. `reason` is for people. `step_failed`: the worker said that a step did, and
    that it ends of it."""

    reason: str
    step_failed: bool = False


@dataclass(frozen=True, slots=True)
class StepAnswer:
    """The answer to one repetition of a step (one, unless its decode_steps is larger)."""

    step_id: int
    tokens: np.ndarray  # int32 [m], of the sequences that sample, in order
    non_finite: np.ndarray | None  # bool [m], or None if no row was
    times_ns: StepTimes
    bytes_sent: int = 0  # the step on the wire
    bytes_received: int = 0  # this answer
    sub_step: int = 0  # which repetition
    logprobs: Logprobs | None = None  # of the tokens; None: none was asked for


@dataclass(frozen=True, slots=True)
class StepTimes:
    """The worker's durations for a repetition of a step, ns, and the round trip seen here, from
    the sending of the step."""

    queue: int = 0
    input: int = 0
    device: int = 0
    sample: int = 0
    total: int = 0
    round_trip: int = 0
    idle: int | None = None  # None: not told (see worker.proto)


@dataclass(frozen=True, slots=True)
class StepRefused:
    """The worker refused the step and refuses all later ones until the link has called
    Reset, which it does next: a `Connected(resumed=False)` follows. The request at fault
    is that of `sequence`, an index into the step's rows, or else `request_id`; none if
    the worker names nobody."""

    step_id: int
    message: str
    sequence: int | None = None
    request_id: str = ""


LinkEvent = Connected | Disconnected | StepAnswer | StepRefused


class Inbox(Protocol):
    """Where a link posts; callable from any thread, waits for nothing, but may take as long as a
    turn of the engine's loop."""

    def post(self, event: LinkEvent) -> None: ...


class WorkerLink(Protocol):
    """What the engine needs of a link. `send` and `give_up` are called in turns of its loop,
    by one thread at a time, `close` by whoever stops the engine."""

    def start(self, inbox: Inbox) -> None:
        """Starts connecting, for ever, with bounded backoff. Returns at once."""
        ...

    def send(self, plan: StepPlan) -> None:
        """Encodes and queues a step; never blocks. While disconnected the step is
        kept and sent on resumption, or dropped with its incarnation."""
        ...

    def give_up(self) -> None:
        """Ends the stream of a worker that does not answer; it gets a Reset, and with that a
        new incarnation, before it is used again. Never blocks."""
        ...

    def close(self) -> None: ...
