"""What a replay found: the first difference in full, how many there are, and times."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from nanoserve.v1 import worker_pb2
from worker.recording import FATAL_ENDS
from worker.replay_times import ReplayTimes
from worker.step import CheckedStep


@dataclass(frozen=True, slots=True)
class StepRun:
    """A step that ran here."""

    step: CheckedStep
    request_ids: Sequence[str]  # of its sequences
    results: Sequence[worker_pb2.StepResult]


@dataclass(slots=True)
class ReplayReport:
    """Told of each step, then of each recorded result, in the recording's order."""

    start: worker_pb2.RecordingStart
    incarnations: int = 0
    steps: int = 0  # run, but for synthetic ones
    synthetic: int = 0
    refusals: int = 0
    tokens: int = 0  # compared
    different_tokens: int = 0
    logprobs: int = 0  # compared
    different_logprobs: int = 0
    first_difference: str = ""
    end: worker_pb2.RecordingEnd | None = None
    cut_off: str = ""
    times: ReplayTimes = field(default_factory=ReplayTimes)
    # By incarnation and step id: those whose recorded results are yet to come.
    _open: dict[tuple[int, int], StepRun] = field(default_factory=dict)
    _fatal_step: tuple[int, int] | None = None
    _fatal_text: str = ""
    _fatal_unanswered: int = 0  # its repetitions without a recorded result

    @property
    def is_different(self) -> bool:
        return bool(self.first_difference or self._fatal_difference)

    def ran(self, recorded: worker_pb2.RecordedStep, run: StepRun) -> None:
        step = recorded.step
        if recorded.HasField("refusal"):
            was = recorded.refusal.message
            self._differs(f"step {step.step_id}: was refused ({was}), and runs here")
        elif recorded.synthetic:
            self.synthetic += 1
        else:
            self.steps += 1
            self._open[step.incarnation, step.step_id] = run

    def refused(self, recorded: worker_pb2.RecordedStep, refusal: worker_pb2.Refusal) -> None:
        self.refusals += 1
        name = f"step {recorded.step.step_id}"
        if not recorded.HasField("refusal"):
            self._differs(f"{name}: ran, and is refused here ({refusal.message})")
        elif recorded.refusal != refusal:
            was = recorded.refusal.message
            self._differs(
                f"{name}: was refused ({was}), and is for another reason here ({refusal.message})"
            )

    def fatal(self, step: worker_pb2.Step, error: BaseException) -> None:
        """`step` ended the run."""
        self._fatal_step = step.incarnation, step.step_id
        self._fatal_text = f"{type(error).__name__}: {error}"
        self._fatal_unanswered = max(step.decode_steps, 1)

    def compare(self, recorded: worker_pb2.RecordedResult) -> None:
        was = recorded.result
        key = recorded.incarnation, was.step_id
        if key == self._fatal_step:
            self._fatal_unanswered -= 1
        if not (run := self._open.get(key)) or was.sub_step >= len(run.results):
            return  # it was refused here, which is told already, or was never run
        here = run.results[was.sub_step]
        self._compare_tokens(run, was, here)
        if not self.start.token_ids_zeroed:
            self._compare_logprobs(was, here)
        self.times.add(was.sub_step, run.step, was.times, here.times)
        if was.sub_step + 1 == run.step.decode_steps:
            del self._open[key]

    def _compare_tokens(
        self, run: StepRun, was: worker_pb2.StepResult, here: worker_pb2.StepResult
    ) -> None:
        tokens, flags = _columns(was)
        own_tokens, own_flags = _columns(here)
        if len(tokens) != len(own_tokens) or len(flags) != len(own_flags):
            self._differs(
                f"step {was.step_id}: had {len(tokens)} tokens, has {len(own_tokens)} here"
            )
            return
        if self.start.token_ids_zeroed:
            return
        self.tokens += len(tokens)
        wrong = np.flatnonzero((tokens != own_tokens) | (flags != own_flags))
        if not len(wrong):
            return
        i = int(wrong[0])
        sequence = int(run.step.sampling[i])
        self._differs(
            f"step {was.step_id}, sequence {sequence} (row {run.step.rows[sequence]}, request "
            f"{run.request_ids[sequence]!r}), position "
            f"{run.step.context_lens[sequence] + was.sub_step}: "
            f"token {_token(tokens[i], flags[i])} was recorded, "
            f"{_token(own_tokens[i], own_flags[i])} comes here"
        )
        self.different_tokens += len(wrong)

    def _compare_logprobs(self, was: worker_pb2.StepResult, here: worker_pb2.StepResult) -> None:
        """By place: which of two tokens is first is open where they are equal but for rounding, and
        the sampled ones are compared already."""
        places = was.logprob_samples, was.logprob_counts
        values, own_values = _float32(was.logprobs), _float32(here.logprobs)
        if places != (here.logprob_samples, here.logprob_counts) or len(values) != len(own_values):
            self._differs(
                f"step {was.step_id}: had {len(values)} log-probabilities of "
                f"{len(was.logprob_samples) // 4} tokens, has {len(own_values)} of "
                f"{len(here.logprob_samples) // 4} here"
            )
            return
        self.logprobs += len(values)
        # So that two of -inf are equal and a NaN is equal to nothing.
        near = (values == own_values) | (np.abs(values - own_values) <= self._tolerance)
        wrong = np.flatnonzero(~near)
        if len(wrong):
            i = int(wrong[0])
            self._differs(
                f"step {was.step_id}: log-probability {i} of {len(values)} was {values[i]}, is "
                f"{own_values[i]} here"
            )
            self.different_logprobs += len(wrong)

    @property
    def _tolerance(self) -> float:
        """For log-probabilities: other chunks and batches round otherwise."""
        return 1e-3 if self.start.worker.model.dtype == "float32" else 0.25

    def _differs(self, text: str) -> None:
        self.first_difference = self.first_difference or text

    @property
    def _fatal_difference(self) -> str:
        """How the end of one run is not that of the other; empty if it is."""
        was = FATAL_ENDS.get(self.end.reason) if self.end else None
        if self._fatal_step and (not self._fatal_unanswered or not was):
            return f"step {self._fatal_step[1]} is fatal here, and was not"
        if was and not self._fatal_step:
            hint = ""
            if self.start.token_ids_zeroed:
                hint = "; it may depend on the tokens, which are zeroed: see --dump-prompts"
            return f"the worker {was}, and does not here{hint}"
        return ""

    def lines(self) -> Iterator[str]:
        """For people; the verdict last."""
        yield from self._about()
        yield from self.times.lines()
        if self._fatal_step:
            yield f"step {self._fatal_step[1]} is fatal: {self._fatal_text}"
        if self.first_difference:
            yield f"first difference: {self.first_difference}"
            yield f"different tokens: {self.different_tokens} of {self.tokens}"
            if self.logprobs:
                yield f"different log-probabilities: {self.different_logprobs} of {self.logprobs}"
        if self._fatal_difference:
            yield f"another end: {self._fatal_difference}"
        yield "different" if self.is_different else f"equal{self._what_was_equal}"

    @property
    def _what_was_equal(self) -> str:
        if self.start.token_ids_zeroed:
            return ", as far as checks tell: tokens were not compared"
        text = ": the same tokens, flags and refusals"
        if self.logprobs:
            text += f", {self.logprobs} log-probabilities within {self._tolerance:g}"
        return text + (", and the same end" if self._fatal_step else "")

    def _about(self) -> Iterator[str]:
        worker = self.start.worker
        yield (
            f"recorded on {worker.device} in {worker.model.dtype} with "
            + (" ".join(self.start.arguments) or "no flags")
        )
        counts = [
            f"incarnations: {self.incarnations}",
            f"steps: {self.steps}",
            f"refused: {self.refusals}",
        ]
        if self.synthetic:
            counts.append(f"synthetic, to compute what was in the pool: {self.synthetic}")
        if self._open:
            counts.append(f"without a recorded answer: {len(self._open)}")
        yield "; ".join(counts)
        if self.start.token_ids_zeroed:
            yield "token ids are zeroed: checks and times can be compared, tokens cannot"
        if self.cut_off:
            yield f"{self.cut_off}: replayed up to the last whole message"
        elif self.end is None:
            yield "the recording has no end: its worker was killed, or runs still"
        else:
            yield f"it ends because {_because(self.end)}"


def _because(end: worker_pb2.RecordingEnd) -> str:
    kind = FATAL_ENDS.get(end.reason)
    return f"the worker {kind}: {end.message}" if kind else end.message


def _columns(result: worker_pb2.StepResult) -> tuple[np.ndarray, np.ndarray]:
    """Tokens int32 [m] and flags uint8 [m]. Bytes of a damaged file that make no token are none."""
    tokens = np.frombuffer(result.tokens[: len(result.tokens) // 4 * 4], "<i4")
    flags = np.frombuffer(result.flags, "u1") if result.flags else np.zeros(len(tokens), np.uint8)
    return tokens, flags


def _float32(data: bytes) -> np.ndarray:
    return np.frombuffer(data[: len(data) // 4 * 4], "<f4")


def _token(token: np.integer, flags: np.integer) -> str:
    return f"{token} (flags {flags})" if flags else str(token)
