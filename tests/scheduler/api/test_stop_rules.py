"""Stop strings are found wherever tokens and messages are cut."""

from __future__ import annotations

import random

import pytest

from scheduler.api.stop_rules import StopStrings


def first_stop(text: str, strings: list[str]) -> tuple[str, int] | None:
    """The oracle: the shortest beginning of the text that ends with a string, and the
    longest string that it ends with."""
    for end in range(1, len(text) + 1):
        matches = [string for string in strings if text[:end].endswith(string)]
        if matches:
            return max(matches, key=len), end
    return None


def held_back(text: str, strings: list[str]) -> int:
    """The oracle: how long an end of the text is a proper beginning of a string."""
    lengths = range(1, max(map(len, strings)))
    return max(
        (n for n in lengths for s in strings if n < len(s) and text.endswith(s[:n])), default=0
    )


def test_random_strings_are_found_in_random_pieces_as_by_looking_at_each_end():
    rng = random.Random(1)
    found = 0
    for _ in range(3000):
        strings = [
            "".join(rng.choices("ab", k=rng.randint(2, 6))) for _ in range(rng.randint(1, 5))
        ]
        text = "".join(rng.choices("aabc", k=30))
        stops, at, match = StopStrings(strings), 0, None
        while at < len(text) and match is None:
            piece = text[at : at + rng.randint(0, 4)]
            match = stops.push(piece)
            at += len(piece) if match is None else match[1]
            if match is None:
                assert stops.held == held_back(text[:at], strings)
        assert (match and (match[0], at)) == first_stop(text, strings)
        found += match is not None
    assert 1000 < found < 2900


@pytest.mark.parametrize(
    ("strings", "text", "expected"),
    [
        (["END"], "the EN of the END.", ("END", 17)),
        (["aab"], "aaab", ("aab", 4)),
        (["b", "abc"], "abc", ("b", 2)),
        (["bc", "abc"], "abc", ("abc", 3)),
        (["abcd", "bc"], "abcd", ("bc", 3)),
        (["\n\n"], "a\n\nb", ("\n\n", 3)),
        (["🌶"], "a🌶", ("🌶", 2)),
        (["ab", "ab"], "ab", ("ab", 2)),
    ],
)
def test_the_first_to_end_wins_and_of_those_the_longest(strings, text, expected):
    assert StopStrings(strings).push(text) == expected


def test_sixteen_strings_of_the_longest_length_cost_no_more_per_character_than_one():
    """Counted in states visited, not in time."""
    strings = ["a" * 255 + chr(ord("b") + i) for i in range(16)]
    stops = StopStrings(strings)
    assert stops.push("a" * 10_000) is None
    assert stops.held == 255
    assert stops.push("q") == (strings[15], 1)
