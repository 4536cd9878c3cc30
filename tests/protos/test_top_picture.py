"""What `nanoserve top` draws: every figure, in any size, with and without colours."""

from __future__ import annotations

import pytest
from rich.text import Text

from nanoserve.cli.dashboard.glyphs import ASCII, UNICODE, Glyphs, owner_colour, owner_letter
from nanoserve.cli.dashboard.history import History
from nanoserve.cli.dashboard.load_lines import curve
from nanoserve.cli.dashboard.pool_map import blocks_per_cell, pool_map
from nanoserve.cli.dashboard.row_table import bar, row_table
from nanoserve.cli.dashboard.screen import View, picture
from nanoserve.cli.dashboard.size import Size
from nanoserve.status import RunningRow, status_from
from tests.protos.statuses import response, status


def history(*seconds: float, **changed: object) -> History:
    shown = History()
    for second in seconds:
        shown.add(status(second, **changed))
    return shown


def plain(lines: list[Text]) -> list[str]:
    return [line.plain.rstrip() for line in lines]


def styles(line: Text) -> list[str]:
    """Of each character, where one span covers it."""
    found = [""] * len(line.plain)
    for span in line.spans:
        found[span.start : span.end] = [str(span.style)] * (span.end - span.start)
    return found


def test_a_picture_tells_every_figure_in_80_columns() -> None:
    view = View("127.0.0.1:1", history(0, 1, 2), UNICODE, hint="q quits")
    assert plain(picture(view, Size(80, 24))) == [
        "nanoserve  127.0.0.1:1 · tiny · cpu · up 1 min 2 s                        ready",
        "output       100 tokens/s                                     ██        peak 100",
        "prompt       1,000 tokens/s                                   ██      peak 1,000",
        "first token  p50 50.0 ms p90 90.0 ms p99 99.0 ms mean 100 ms   last 2 s",
        "inter-token  p50 20.0 ms p90 28.0 ms p99 29.8 ms mean 20.0 ms  last 2 s",
        "requests     2 of 4 running · 7 waiting · 50 steps/s · 5 preempted",
        "prefix cache 25 % of 2,000 prompt tokens found · 2 blocks kept  last 2 s",
        "K/V pool     ━━━━━───── 48 % held · 16 of 31 blocks free · 16 tokens each",
        "#AAAAAAAAAADDDDD▒▒··············",
        "# scratch  · free  ▒ cached  A-Z a row's                                 q quits",
        "   request   prompt                    output                   blocks     time",
        "A  first     ━━━━━━━━━━━━━━━━ 100/100  ━━━━──────────── 50/200      10   2.50 s",
        "D  second    ━━━───────────── 80/400   ──────────────── 0/10         5  40.0 ms",
    ]


@pytest.mark.parametrize("width", [20, 80, 133])
@pytest.mark.parametrize("height", [1, 5, 12, 24, 60])
@pytest.mark.parametrize("num_blocks", [0, 5, 512, 20_000])
def test_a_picture_never_exceeds_the_terminal(width: int, height: int, num_blocks: int) -> None:
    rows = [row(i, name="n" * (i % 150)) for i in range(70)]
    shown = History()
    for second in range(3):
        owners = [-2, *(i % 70 for i in range(num_blocks))] if num_blocks else []
        shown.add(status(second, reason="because of reasons " * 20, block_owners=owners))
    drawn = picture(View("a" * 90, shown, UNICODE), Size(width, height))
    assert 0 < len(drawn) <= height
    assert all(line.cell_len <= max(width, 1) for line in drawn)
    lines = row_table(rows, width, height, UNICODE)
    assert len(lines) <= height


def row(number: int, name: str = "name", blocks: int = 1) -> RunningRow:
    return RunningRow(number, name, 10, 10, 5, 10, blocks, 1.0)


def test_rows_that_do_not_fit_are_counted() -> None:
    lines = plain(row_table([row(i) for i in range(70)], 80, 5, UNICODE))
    assert [line.split()[0] for line in lines] == ["request", "A", "B", "C", "and"]
    assert lines[-1] == "   and 67 more"
    assert len(row_table([row(i) for i in range(4)], 80, 5, UNICODE)) == 5


def test_long_and_hostile_names_are_cut_and_made_harmless() -> None:
    (line,) = plain(row_table([row(0, name="\x1b[2J" + "x" * 100)], 80, 9, UNICODE))[1:]
    assert "\x1b" not in line
    assert "…" in line
    assert line.endswith("1.00 s")
    assert len(line) <= 80


@pytest.mark.parametrize(
    ("share", "done"), [(0, 0), (0.001, 1), (0.5, 5), (0.96, 9), (0.999, 9), (1, 10)]
)
def test_a_bar_is_full_only_at_the_end_and_begun_as_soon_as_there_is_something(
    share: float, done: int
) -> None:
    assert bar(share, 10, ASCII, "red").plain == "=" * done + "-" * (10 - done)


def test_a_curve_ends_at_the_right_and_is_as_high_as_its_largest_value() -> None:
    assert curve([0, 1, 4, 8], 6, 1, UNICODE) == ["   ▁▄█"]
    assert curve([0, 0.001, 8, 16], 4, 2, UNICODE) == ["   █", " ▁██"]
    assert curve([], 3, 1, UNICODE) == ["   "]
    assert curve([0, 0], 2, 1, UNICODE) == ["  "]


@pytest.mark.parametrize("glyphs", [UNICODE, ASCII])
def test_owners_free_cached_and_scratch_blocks_differ_in_letter_and_in_colour(
    glyphs: Glyphs,
) -> None:
    (line,) = pool_map([-2, 0, 0, -1, -3, 5], 40, 3, glyphs).lines
    assert line.plain == f"{glyphs.scratch}AA{glyphs.free}{glyphs.cached}F"
    assert len(set(line.plain)) == 5
    drawn = styles(line)
    assert drawn[1] == drawn[2] == f"black on {owner_colour(0)}"
    assert len(set(drawn)) == 5


def test_letter_and_colour_together_tell_256_rows_apart() -> None:
    assert len({(owner_letter(i), owner_colour(i)) for i in range(256)}) == 256


@pytest.mark.parametrize(
    ("num_blocks", "num_cells", "expected"),
    [(1, 1, 1), (2, 2, 1), (512, 512, 1), (513, 512, 2), (40_000, 480, 128), (200_000, 480, 512)],
)
def test_a_large_pool_has_as_many_blocks_a_cell_as_it_takes(
    num_blocks: int, num_cells: int, expected: int
) -> None:
    assert blocks_per_cell(num_blocks, num_cells) == expected
    drawn = pool_map([-2, *[-1] * (num_blocks - 1)], num_cells, 1, UNICODE)
    assert drawn.blocks_per_cell == expected
    assert len(drawn.lines) == 1
    assert len(drawn.lines[0]) <= num_cells


def test_a_cell_never_hides_a_block_in_use() -> None:
    """Of four blocks: one held, two held by different rows, three by two, one cached."""
    owners = [-2, -1, 7, -1, -1, 1, 0, -1, -1, 2, 2, 1, -1, -1, -1, -3, -1, -1, -1, -1, -1]
    drawn = pool_map(owners, 6, 1, UNICODE)
    assert drawn.blocks_per_cell == 4
    assert drawn.lines[0].plain == "#hAC▒·"
    assert styles(drawn.lines[0])[1:4] == [
        owner_colour(7),
        f"black on {owner_colour(0)}",
        f"black on {owner_colour(2)}",
    ]


def test_rates_and_latencies_are_of_late_not_since_the_start() -> None:
    shown = history(*range(100, 130))
    assert list(shown.output_rates) == [100.0] * 29
    assert shown.step_rate == 50
    assert shown.window_seconds == 10
    assert shown.first_token is not None
    assert (shown.first_token.count, shown.first_token.mean) == (10, pytest.approx(0.1))
    assert shown.inter_token is not None
    assert shown.inter_token.count == 990


def test_a_server_started_again_begins_a_new_history() -> None:
    shown = history(50, 51, 52, 1)
    assert (list(shown.output_rates), shown.step_rate, shown.window_seconds) == ([], None, 0)
    shown.add(status(2))
    assert list(shown.output_rates) == [100.0]


def test_a_status_without_latencies_shows_none_and_does_not_end_the_window() -> None:
    shown = history(1, 2)
    without = response(3)
    without.ClearField("time_to_first_token")
    shown.add(status_from(without))
    assert shown.first_token is None
    shown.add(status(4))
    assert shown.first_token is not None
    assert shown.first_token.count == 3


@pytest.mark.parametrize(
    ("changed", "trouble", "state", "line"),
    [
        ({}, "", "ready", None),
        ({"ready": False, "reason": "no worker"}, "", "not ready", "no worker"),
        ({}, "the server has drained", "away", "the server has drained"),
        ({"missing_reason": "the engine hangs"}, "", "ready", "the engine hangs"),
    ],
)
def test_what_is_wrong_stands_under_the_heading(
    changed: dict[str, object], trouble: str, state: str, line: str | None
) -> None:
    view = View("here", history(0, 1, **changed), UNICODE, trouble)
    heading, second, *_ = plain(picture(view, Size(80, 24)))
    assert heading.endswith(f" {state}")
    assert second.startswith("output" if line is None else line)


def test_before_the_first_worker_there_is_neither_map_nor_pool() -> None:
    shown = history(
        0,
        1,
        ready=False,
        reason="no worker has connected yet",
        missing_reason="no worker has connected yet",
        block_owners=[],
        rows=[],
        usable_blocks=0,
        max_rows=0,
    )
    lines = plain(picture(View("here", shown, UNICODE), Size(80, 24)))
    assert lines[1] == "no worker has connected yet"
    assert not any("K/V" in line for line in lines)
    assert lines[-1].split() == ["request", "prompt", "output", "blocks", "time"]


def test_before_the_first_status_it_says_what_it_waits_for() -> None:
    assert plain(picture(View("here", History(), UNICODE), Size(80, 24))) == ["waiting for here"]


def test_a_tall_terminal_gets_higher_curves_and_gaps() -> None:
    lines = plain(picture(View("here", history(0, 1), UNICODE), Size(80, 60)))
    assert [line.split("  ")[0] for line in lines if line and line[0] != " "][:3] == [
        "nanoserve",
        "output",
        "prompt",
    ]
    assert lines.index(next(line for line in lines if line.startswith("prompt"))) == 4
    assert lines.count("") >= 2


def test_a_narrow_terminal_still_tells_whether_the_server_is_ready() -> None:
    (heading, *_) = plain(picture(View("a" * 90, history(0, 1), UNICODE), Size(40, 24)))
    assert heading == "nanoserve  aaaaaaaaaaaaaaaaaaaaa  ready"


def test_without_unicode_everything_is_ascii() -> None:
    view = View("here", history(0, 1), ASCII, hint="q quits")
    lines = plain(picture(view, Size(80, 24)))
    assert all(line.isascii() for line in lines)
    assert "#AAAAAAAAAADDDDD%%.............." in lines
