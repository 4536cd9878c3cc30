"""A step that is not run, and why."""

from __future__ import annotations

from nanoserve.v1 import worker_pb2


class StepRefused(Exception):
    """Carries what Refusal of worker.proto says; the text names whom it concerns."""

    def __init__(
        self,
        message: str,
        *,
        reason: worker_pb2.RefusalReason = worker_pb2.REFUSAL_REASON_BAD_STEP,
        sequence: int | None = None,
        row: int | None = None,
        request_id: str = "",
    ) -> None:
        whom = []
        if sequence is not None:
            whom.append(f"sequence {sequence}")
        if row is not None:
            whom.append(f"row {row}")
        if request_id:
            whom.append(f"request {request_id!r}")
        super().__init__("; ".join([message, *([", ".join(whom)] if whom else [])]))
        self.reason = reason
        self.sequence = sequence
        self.row = row
        self.request_id = request_id

    def message(self) -> worker_pb2.Refusal:
        return worker_pb2.Refusal(
            reason=self.reason,
            message=str(self),
            sequence=self.sequence,
            row=self.row,
            request_id=self.request_id,
        )
