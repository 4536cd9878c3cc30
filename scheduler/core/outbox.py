"""Collects the events of one turn of the engine for its front end."""

from __future__ import annotations

import numpy as np

from scheduler.core.front_end import EventBatch, Failure, FailureKind, Finished, Snapshot
from scheduler.core.logprobs import Logprobs, joined


class Outbox:
    def __init__(self) -> None:
        self._handles: list[np.ndarray] = []
        self._token_ids: list[np.ndarray] = []
        self._num_tokens = 0
        self._logprobs: list[tuple[int, Logprobs]] = []  # with the number of tokens before theirs
        self._ends: list[Finished | Failure] = []
        self._snapshots: list[Snapshot] = []

    def tokens(self, handles: np.ndarray, token_ids: np.ndarray, logprobs: Logprobs | None) -> None:
        """One more token for each handle, and what log-probabilities they have. Shapes: [m] and
        [m]."""
        self._handles.append(handles)
        self._token_ids.append(token_ids)
        if logprobs is not None:
            self._logprobs.append((self._num_tokens, logprobs))
        self._num_tokens += len(handles)

    def end(self, event: Finished | Failure) -> None:
        self._ends.append(event)

    def fail(self, handle: int, kind: FailureKind, message: str, field: str = "") -> None:
        self.end(Failure(handle, kind, message, field))

    def snapshot(self, snapshot: Snapshot) -> None:
        self._snapshots.append(snapshot)

    def take(self) -> EventBatch | None:
        """All events since the last call; None if there are none."""
        if not self._handles and not self._ends and not self._snapshots:
            return None
        batch = EventBatch(
            _one_column(self._handles, np.int64),
            _one_column(self._token_ids, np.int32),
            self._ends,
            self._snapshots,
            joined(self._logprobs),
        )
        self._handles, self._token_ids, self._ends, self._snapshots = [], [], [], []
        self._num_tokens, self._logprobs = 0, []
        return batch


def _one_column(parts: list[np.ndarray], dtype: type) -> np.ndarray:
    return parts[0] if len(parts) == 1 else np.concatenate([np.empty(0, dtype), *parts])
