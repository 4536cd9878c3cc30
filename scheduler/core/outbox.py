"""Collects the events of one turn of the engine for its front end."""

from __future__ import annotations

import numpy as np

from scheduler.core.front_end import EventBatch, Failure, FailureKind, Finished, Snapshot


class Outbox:
    def __init__(self) -> None:
        self._handles: list[np.ndarray] = []
        self._token_ids: list[np.ndarray] = []
        self._ends: list[Finished | Failure] = []
        self._snapshots: list[Snapshot] = []

    def tokens(self, handles: np.ndarray, token_ids: np.ndarray) -> None:
        """One more token for each handle. Shapes: [m] and [m]."""
        self._handles.append(handles)
        self._token_ids.append(token_ids)

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
            np.concatenate([np.empty(0, np.int64), *self._handles]),
            np.concatenate([np.empty(0, np.int32), *self._token_ids]),
            self._ends,
            self._snapshots,
        )
        self._handles, self._token_ids, self._ends, self._snapshots = [], [], [], []
        return batch
