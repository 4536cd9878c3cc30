"""What a result may say of log-probabilities: what the step asked for, and nothing else."""

from __future__ import annotations

import numpy as np
import pytest

from nanoserve.v1 import worker_pb2
from scheduler.link.logprobs import result_logprobs

VOCAB = 50


def int32(*values: int) -> bytes:
    return np.array(values, "<i4").tobytes()


def float32(*values: float) -> bytes:
    return np.array(values, "<f4").tobytes()


# Of four sampled tokens the second asked for two of the most likely, the fourth for none.
COUNTS = np.array([0, 3, 0, 1])
RIGHT = {
    "logprob_samples": int32(1, 3),
    "logprob_counts": int32(3, 1),
    "logprob_ids": int32(6, 49, 0, 8),
    "logprobs": float32(-1.5, 0.0, -np.inf, -0.25),
}


def result(**columns: bytes) -> worker_pb2.StepResult:
    return worker_pb2.StepResult(step_id=7, tokens=int32(5, 6, 7, 8), **(RIGHT | columns))


def test_the_columns_of_a_right_result_are_taken_as_they_are() -> None:
    found = result_logprobs(result(), COUNTS, VOCAB)
    assert found is not None
    assert found.by_token(4) == [
        None,
        (int32(6, 49, 0), float32(-1.5, 0.0, -np.inf)),
        None,
        (int32(8), float32(-0.25)),
    ]


def test_a_token_that_means_nothing_has_none() -> None:
    flagged = result(
        flags=b"\0\1\0\0",
        logprob_samples=int32(3),
        logprob_counts=int32(1),
        logprob_ids=int32(8),
        logprobs=float32(-0.25),
    )
    found = result_logprobs(flagged, COUNTS, VOCAB)
    assert found is not None
    assert found.by_token(4) == [None, None, None, (int32(8), float32(-0.25))]
    both = dict.fromkeys(RIGHT, b"")
    assert result_logprobs(result(flags=b"\0\1\0\1", **both), COUNTS, VOCAB) is None


@pytest.mark.parametrize("counts", [None, np.zeros(4, np.int64)])
def test_where_nobody_asked_nothing_is_right(counts: np.ndarray | None) -> None:
    nothing = worker_pb2.StepResult(step_id=7, tokens=int32(5, 6, 7, 8))
    assert result_logprobs(nothing, counts, VOCAB) is None
    with pytest.raises(ValueError, match="the result of step 7 has"):
        result_logprobs(result(), counts, VOCAB)


@pytest.mark.parametrize(
    ("columns", "why"),
    [
        (dict.fromkeys(RIGHT, b""), r"has \[\] log-probabilities of the tokens \[\], must be"),
        ({"flags": b"\0\1\0\0"}, r"of the tokens \[1, 3\], must be \[1\] of \[3\]"),
        ({"logprob_samples": int32(3, 1)}, r"of the tokens \[3, 1\], must be \[3, 1\] of \[1, 3\]"),
        ({"logprob_samples": int32(1, 2)}, r"of the tokens \[1, 2\], must be"),
        ({"logprob_samples": int32(1, 4)}, r"of the tokens \[1, 4\], must be"),
        ({"logprob_counts": int32(2, 2)}, r"has \[2, 2\] log-probabilities of the tokens"),
        ({"logprob_samples": int32(1)}, "of 4 and 8 bytes, must be 4 for each entry"),
        ({"logprob_samples": b"abc", "logprob_counts": b"abc"}, "of 3 and 3 bytes, must be 4"),
        ({"logprobs": float32(-1.5, 0.0, -1.0)}, "of 16 and 12 bytes, must be 4 for each entry"),
        (
            {"logprob_ids": int32(6, 49, 0), "logprobs": float32(-1, -1, -1)},
            "has 3 log-probabilities, must be 4",
        ),
        ({"logprob_ids": int32(6, VOCAB, 0, 8)}, "of token 50, must be below 50 and not negative"),
        ({"logprob_ids": int32(6, -1, 0, 8)}, "of token 4294967295, must be below 50"),
        (
            {"logprob_ids": int32(49, 6, 0, 8)},
            r"begins with the log-probabilities of \[49, 8\], must be of the sampled tokens",
        ),
        ({"logprobs": float32(-1.5, np.nan, -1, -1)}, "the log-probability nan, must be at most 0"),
        ({"logprobs": float32(-1.5, -1, 0.5, -1)}, "the log-probability 0.5, must be at most 0"),
    ],
)
def test_a_wrong_column_raises_and_says_which(columns: dict[str, bytes], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        result_logprobs(result(**columns), COUNTS, VOCAB)
