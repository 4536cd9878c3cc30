"""An engine on a fake worker, driven turn by turn on the test's own thread."""

from __future__ import annotations

from collections import defaultdict

import numpy as np

from scheduler.core.config import EngineConfig
from scheduler.core.engine import Engine
from scheduler.core.front_end import (
    Abort,
    EngineStatus,
    EventBatch,
    Failure,
    FailureKind,
    Finish,
    Finished,
    FinishReason,
    Snapshot,
    Submission,
)
from scheduler.core.logprobs import TokenLogprobs
from scheduler.core.penalties import NO_PENALTIES, Penalties
from scheduler.core.policy import Policy
from tests.scheduler.core.fake_worker import FakeWorker, expected_logprobs
from tests.scheduler.logprob_columns import entry_of


class Collector:
    """Implements FrontEnd; checks that nothing comes after a request's end, and that each token
    of those of `asked` comes with its own log-probabilities."""

    def __init__(self) -> None:
        self.asked: dict[int, tuple[list[int], int]] = {}  # prompt, top_logprobs
        self.num_logprobs = 0
        self.tokens: dict[int, list[int]] = defaultdict(list)
        self.ends: dict[int, Finish | Failure] = {}
        self.statuses: list[EngineStatus] = []
        self.snapshots: list[Snapshot] = []

    def deliver(self, batch: EventBatch) -> None:
        handles, tokens = batch.handles.tolist(), batch.token_ids.tolist()
        count = len(handles)
        logprobs = batch.logprobs.by_token(count) if batch.logprobs else [None] * count
        for handle, token, its in zip(handles, tokens, logprobs, strict=True):
            assert handle not in self.ends, "a token came after the end"
            self._check_logprobs(handle, token, its)
            self.tokens[handle].append(token)
        for end in batch.ends:
            assert end.handle not in self.ends, "a request ended twice"
            self.ends[end.handle] = end.finish if isinstance(end, Finished) else end
        self.snapshots += batch.snapshots

    def _check_logprobs(self, handle: int, token: int, found: TokenLogprobs | None) -> None:
        if handle not in self.asked:
            assert found is None, "log-probabilities that nobody asked for"
            return
        assert found is not None, "a token came without its log-probabilities"
        prompt, top = self.asked[handle]
        right = expected_logprobs([*prompt, *self.tokens[handle]], token, top)
        assert entry_of(found) == right
        self.num_logprobs += 1

    def status_changed(self, status: EngineStatus) -> None:
        self.statuses.append(status)


class Harness:
    def __init__(
        self,
        worker: FakeWorker | None = None,
        *,
        connect: bool = True,
        policy: Policy | None = None,
        **config: int,
    ) -> None:
        self.worker = worker or FakeWorker()
        self.front_end = Collector()
        self.now = 0.0
        self.engine = Engine(
            EngineConfig(audit=True, **config),
            self.worker,
            self.front_end,
            policy,
            clock=lambda: self.now,
        )
        self.worker.start(self.engine)
        self.handles = 0
        if connect:
            self.worker.connect()
        self.turn()

    def turn(self) -> None:
        self.engine.turn()

    def submit(
        self,
        prompt: list[int],
        max_tokens: int | None = 4,
        *,
        name: str | None = None,
        seed: int = 0,
        stop_ids: frozenset[int] = frozenset(),
        deadline: float | None = None,
        penalties: Penalties = NO_PENALTIES,
    ) -> int:
        """Three of four requests ask for log-probabilities, by themselves or with one or two of
        the most likely tokens', which the front end checks."""
        self.handles += 1
        top = (0, 1, 2, None)[(self.handles - 1) % 4]
        if top is not None:
            self.front_end.asked[self.handles] = (prompt, top)
        self.engine.submit(
            Submission(
                handle=self.handles,
                request_id=name or f"r{self.handles}",
                prompt_ids=np.array(prompt, np.int32),
                max_tokens=max_tokens,
                temperature=0.0,
                seed=seed,
                stop_ids=stop_ids,
                arrival=self.now,
                deadline=deadline,
                penalties=penalties,
                top_logprobs=top,
            )
        )
        return self.handles

    def abort(
        self,
        handle: int,
        reason: FailureKind | FinishReason = FailureKind.CANCELLED,
        output_tokens: int | None = None,
    ) -> None:
        self.engine.abort(Abort(handle, reason, output_tokens))

    def step(self) -> None:
        """One answer, if any, and one turn."""
        self.worker.answer()
        self.turn()

    def run(self, limit: int = 10_000) -> None:
        """Until nothing is left to do."""
        for _ in range(limit):
            self.turn()
            if not self.worker.answer() and not self.books.num_requests:
                self.turn()
                return
        raise AssertionError("the engine did not come to rest")

    @property
    def books(self):
        assert self.engine.worker is not None
        return self.engine.worker.ledger

    def assert_pool_is_whole(self) -> None:
        allocator = self.books.allocator
        assert allocator.num_free == allocator.num_usable
        assert self.books.rows.num_live == 0
