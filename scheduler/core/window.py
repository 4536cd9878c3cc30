"""The steps in flight: how many, in what order, and when one more may be sent."""

from __future__ import annotations

from collections import deque

from scheduler.core.step_in_flight import StepInFlight
from scheduler.core.worker_link import StepAnswer

LOOKAHEAD_SECONDS = 0.004
LOOKAHEAD_SHARE = 0.25
# Of the lookahead, what the repetitions of one step may fill: the other half is on its way
# meanwhile.
REPETITIONS_SHARE = 0.5
SMOOTHING = 0.2


class StepCost:
    """Predicts how long a repetition of a step keeps the device, from how long those of about
    its number of tokens (within a power of two) did."""

    def __init__(self) -> None:
        self._seconds: dict[int, float] = {}

    def predict(self, num_tokens: int) -> float:
        """Seconds; 0 for a size never seen, so that the pipeline fills and learns."""
        return self._seconds.get(num_tokens.bit_length(), 0.0)

    def knows(self, num_tokens: int) -> bool:
        return num_tokens.bit_length() in self._seconds

    def learn(self, num_tokens: int, seconds: float) -> None:
        size = num_tokens.bit_length()
        known = self._seconds.get(size, seconds)
        self._seconds[size] = known + SMOOTHING * (seconds - known)


class Window:
    """The unanswered steps.

    At most `depth` are in flight, and a further one is sent only when the device is
    predicted to run dry within the lookahead: an arrival or a cancel then never waits
    behind several long steps. The lookahead is a few milliseconds or, for slow
    devices, whose predictions are off by more than that, a share of the step.

    That holds with repetitions as well: of a step all but the first fit into the lookahead,
    beside what is in flight when it is sent. For that it is sent later than a single one would
    be. On a device where two repetitions take longer than half of the lookahead none is made.
    """

    def __init__(self, depth: int, decode_steps: int = 1) -> None:
        """`decode_steps`: most repetitions of a step."""
        self.depth = depth
        self.decode_steps = decode_steps
        self.cost = StepCost()
        self.steps: deque[StepInFlight] = deque()
        self._busy_since = 0.0

    def __len__(self) -> int:
        return len(self.steps)

    def wait_before_sending(self, now: float) -> float | None:
        """Seconds until one more step may be sent; None until an answer comes."""
        if len(self.steps) >= self.depth:
            return None
        if not self.steps:
            return 0.0
        further, lookahead, newest = 0.0, self._lookahead, self.steps[-1]
        if self.decode_steps > 1 and newest.only_decodes:
            cost = self.cost.predict(newest.num_tokens)
            further = (self._fitting(REPETITIONS_SHARE * lookahead, cost) - 1) * cost
        return max(0.0, self._left(now) + further - lookahead)

    def repetitions(self, num_rows: int, now: float) -> int:
        """Most repetitions of a step that decodes so many rows and is sent at this moment; 1 for
        a size never seen."""
        if not self.cost.knows(num_rows):
            return 1
        cost, lookahead = self.cost.predict(num_rows), self._lookahead
        beside = lookahead - self._left(now) + cost
        return self._fitting(min(REPETITIONS_SHARE * lookahead, beside), cost)

    def _fitting(self, seconds: float, cost: float) -> int:
        """Repetitions that take at most `seconds` together: 1 to `decode_steps`."""
        if cost * self.decode_steps <= seconds or not cost:
            return self.decode_steps
        return max(1, int(seconds / cost + 1e-6))  # for the rounding

    def _left(self, now: float) -> float:
        """Seconds that the steps in flight are predicted to take from here on."""
        predicted = 0.0
        for step in self.steps:
            predicted += step.unanswered * self.cost.predict(step.num_tokens)
        return max(0.0, self._busy_since + predicted - now) if predicted else 0.0

    @property
    def _lookahead(self) -> float:
        """Seconds."""
        oldest = self.cost.predict(self.steps[0].num_tokens) if self.steps else 0.0
        return max(LOOKAHEAD_SECONDS, LOOKAHEAD_SHARE * oldest)

    def overdue(self, now: float, timeout: float) -> StepInFlight | None:
        """The step being waited for, if that has taken longer than `timeout` seconds."""
        return self.steps[0] if self.steps and now - self._busy_since > timeout else None

    def resumed(self, now: float) -> None:
        """The unanswered steps were sent again: what they are waited for counts anew."""
        self._busy_since = now

    def sent(self, step: StepInFlight, now: float) -> None:
        if not self.steps:
            self._busy_since = now
        self.steps.append(step)

    def answered(self, answer: StepAnswer, now: float) -> StepInFlight:
        """The oldest step, of which this must be the next answer; it stays until it has all of
        them. Raises ValueError for any other."""
        step = self.steps[0] if self.steps else None
        if step is None or step.step_id != answer.step_id:
            expected = step.step_id if step else None
            raise ValueError(f"step {answer.step_id} was answered where {expected} was next")
        if answer.sub_step != len(step.answers):
            raise ValueError(
                f"sub_step {answer.sub_step} of step {step.step_id} was answered where "
                f"{len(step.answers)} was next"
            )
        step.answers.append(answer)
        if not step.unanswered:
            self.steps.popleft()
        times = answer.times_ns
        self.cost.learn(step.num_tokens, (times.device + times.sample) / 1e9)
        self._busy_since = now
        return step
