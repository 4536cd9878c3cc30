"""Steps and results without what people wrote. An id outside the vocabulary is no token and
stays, so that the checks find what they found."""

from __future__ import annotations

import numpy as np

from nanoserve.v1 import worker_pb2
from worker.geometry import Geometry


def zeroed_step(step: worker_pb2.Step, geometry: Geometry) -> worker_pb2.Step:
    """The step itself if it has no token ids."""
    if not step.new_rows:
        return step
    zeroed = worker_pb2.Step()
    zeroed.CopyFrom(step)
    for new_row in zeroed.new_rows:
        new_row.token_ids = _zeroed(new_row.token_ids, geometry)
    return zeroed


def zeroed_result(result: worker_pb2.StepResult, geometry: Geometry) -> worker_pb2.StepResult:
    zeroed = worker_pb2.StepResult()
    zeroed.CopyFrom(result)
    zeroed.tokens = _zeroed(result.tokens, geometry)
    # A token's log-probability may tell which it was.
    zeroed.logprob_ids = bytes(len(result.logprob_ids))
    zeroed.logprobs = bytes(len(result.logprobs))
    return zeroed


def _zeroed(data: bytes, geometry: Geometry) -> bytes:
    """Bytes that are not a whole number of ids are themselves what the checks refuse."""
    whole = len(data) - len(data) % 4
    ids = np.frombuffer(data[:whole], "<i4")
    kept = np.where((ids >= 0) & (ids < geometry.vocab_size), np.int32(0), ids)
    return kept.tobytes() + bytes(len(data) - whole)
