"""The steps in flight: how many, in what order, and when one more may be sent."""

from __future__ import annotations

from collections import deque

from scheduler.core.planner import StepInFlight

LOOKAHEAD_SECONDS = 0.004
LOOKAHEAD_SHARE = 0.25
SMOOTHING = 0.2


class StepCost:
    """Predicts how long a step keeps the device, from how long steps of about its
    number of tokens (within a power of two) did."""

    def __init__(self) -> None:
        self._seconds: dict[int, float] = {}

    def predict(self, num_tokens: int) -> float:
        """Seconds; 0 for a size never seen, so that the pipeline fills and learns."""
        return self._seconds.get(num_tokens.bit_length(), 0.0)

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
    """

    def __init__(self, depth: int) -> None:
        self.depth = depth
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
        predicted = [self.cost.predict(step.num_tokens) for step in self.steps]
        lookahead = max(LOOKAHEAD_SECONDS, LOOKAHEAD_SHARE * predicted[0])
        return max(0.0, self._busy_since + sum(predicted) - now - lookahead)

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

    def answered(self, step_id: int, device_seconds: float, now: float) -> StepInFlight:
        """The oldest step, which must be the one answered. Raises ValueError if not."""
        if not self.steps or self.steps[0].step_id != step_id:
            expected = self.steps[0].step_id if self.steps else None
            raise ValueError(f"step {step_id} was answered where {expected} was next")
        step = self.steps.popleft()
        self.cost.learn(step.num_tokens, device_seconds)
        self._busy_since = now
        return step

    def clear(self) -> None:
        self.steps.clear()
