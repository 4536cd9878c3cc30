from __future__ import annotations

import pytest

from deploy.loadtest.measures import NO_TOKENS, Measures, Outcome, measure
from tests.deploy.loadtest.timelines import timeline


def milliseconds(measures: Measures) -> dict[str, object]:
    """Of every latency, without the last digits of float seconds."""

    def exact(seconds: float | None) -> float | None:
        return None if seconds is None else round(1000 * seconds, 9)

    return {
        "first_token": exact(measures.first_token),
        "first_text": exact(measures.first_text),
        "gaps": [exact(gap) for gap in measures.gaps.tolist()],
        "per_token": exact(measures.per_token),
        "end_to_end": exact(measures.end_to_end),
    }


def test_tokens_in_one_message_share_the_gap_since_the_message_before() -> None:
    measures = measure(timeline((50, 1), (110, 3), (130, 1), end=131))
    assert milliseconds(measures) == {
        "first_token": 50,
        "first_text": 50,
        "gaps": [20, 20, 20, 20],
        "per_token": 20,
        "end_to_end": 131,
    }
    assert (measures.outcome, measures.tokens) == (Outcome.OK, 5)


def test_tokens_of_the_first_message_have_no_gap() -> None:
    measures = measure(timeline((50, 2), (110, 3), end=111))
    assert milliseconds(measures)["gaps"] == [20, 20, 20]
    assert milliseconds(measures)["per_token"] == 20
    assert measures.tokens == 5


def test_the_first_token_is_the_first_id_and_the_first_text_is_apart() -> None:
    empty, id_only, text = (10, 0), (30, 1, False), (50, 1, True)
    measures = measure(timeline(empty, id_only, text, (60, 0), end=60))
    assert milliseconds(measures) == {
        "first_token": 30,
        "first_text": 50,
        "gaps": [20],
        "per_token": 20,
        "end_to_end": 60,
    }


def test_a_message_without_ids_neither_ends_nor_starts_a_gap() -> None:
    measures = measure(timeline((50, 1), (60, 0, True), (90, 2), (200, 0), end=200))
    assert milliseconds(measures)["gaps"] == [20, 20]


def test_gaps_differ_where_messages_do_and_the_time_per_token_is_their_mean() -> None:
    measures = measure(timeline((10, 1), (20, 1), (80, 2), (81, 1), end=82))
    assert milliseconds(measures)["gaps"] == [10, 30, 30, 1]
    assert milliseconds(measures)["per_token"] == 17.75


@pytest.mark.parametrize("ids", [1, 7])
def test_one_message_gives_no_gap_and_no_time_per_token(ids: int) -> None:
    measures = measure(timeline((50, ids), (51, 0), end=51))
    assert milliseconds(measures) == {
        "first_token": 50,
        "first_text": 50,
        "gaps": [],
        "per_token": None,
        "end_to_end": 51,
    }
    assert (measures.outcome, measures.tokens) == (Outcome.OK, ids)


@pytest.mark.parametrize("messages", [[], [(10, 0), (20, 0, True)]])
def test_a_stream_without_a_token_is_a_failure_and_gives_no_sample(messages: list) -> None:
    measures = measure(timeline(*messages, end=30))
    assert (measures.outcome, measures.status) == (Outcome.FAILED, NO_TOKENS)
    assert milliseconds(measures) == {
        "first_token": None,
        "first_text": None,
        "gaps": [],
        "per_token": None,
        "end_to_end": None,
    }


def test_times_count_from_the_schedule_and_not_from_the_send() -> None:
    measures = measure(timeline((150, 1), (170, 1), end=171, planned=100, sent=140))
    assert milliseconds(measures)["first_token"] == 50
    assert milliseconds(measures)["first_text"] == 50
    assert milliseconds(measures)["end_to_end"] == 71


@pytest.mark.parametrize(
    ("status", "cancelled", "outcome"),
    [
        ("UNAVAILABLE", False, Outcome.FAILED),
        ("HTTP 503", False, Outcome.FAILED),
        ("CONNECT", False, Outcome.FAILED),
        ("PROTOCOL", False, Outcome.FAILED),
        ("CANCELLED", False, Outcome.FAILED),
        ("CANCELLED", True, Outcome.CANCELLED),
        ("UNFINISHED", False, Outcome.UNFINISHED),
        ("NOT_SENT", False, Outcome.UNFINISHED),
        ("NOT_DUE", False, Outcome.UNFINISHED),
    ],
)
def test_a_request_that_did_not_end_well_keeps_its_tokens_and_has_no_end_to_end_time(
    status: str, cancelled: bool, outcome: Outcome
) -> None:
    measures = measure(timeline((50, 1), (70, 1), end=80, status=status, cancelled=cancelled))
    assert (measures.outcome, measures.status) == (outcome, status)
    assert milliseconds(measures) == {
        "first_token": 50,
        "first_text": 50,
        "gaps": [20],
        "per_token": 20,
        "end_to_end": None,
    }
