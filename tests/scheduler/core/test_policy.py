import numpy as np
import pytest

from scheduler.core.policy import share_out
from tests.scheduler.core.fake_worker import FakeWorker, expected_tokens
from tests.scheduler.core.harness import Harness


@pytest.mark.parametrize(
    ("gaps", "budget", "shares"),
    [
        ([5, 6], 20, [5, 6]),
        ([30], 20, [20]),
        ([30, 4], 20, [16, 4]),
        ([30, 30, 4], 20, [11, 5, 4]),
        ([4, 30, 2], 20, [4, 14, 2]),
        ([30, 30], 1, [1, 0]),
        ([3, 3], 0, [0, 0]),
        ([], 7, []),
    ],
)
def test_a_prompt_that_cannot_finish_leaves_half_to_those_behind(
    gaps: list[int], budget: int, shares: list[int]
) -> None:
    assert share_out(gaps, budget) == shares


def test_shares_never_pass_gap_or_budget_and_waste_none() -> None:
    random = np.random.default_rng(2)
    for _ in range(500):
        gaps = random.integers(1, 50, random.integers(0, 9)).tolist()
        budget = int(random.integers(0, 100))
        shares = share_out(gaps, budget)
        assert all(0 <= share <= gap for share, gap in zip(shares, gaps, strict=True))
        assert sum(shares) == min(budget, sum(gaps))


def test_streams_get_a_token_in_every_step_beside_a_very_long_prompt() -> None:
    """Budget 64 per step, prompt 2,048."""
    worker = FakeWorker(num_blocks=800, max_model_len=2200, max_step_tokens=64)
    harness = Harness(worker, pipeline_depth=2)
    streams = [harness.submit([i, i], 60) for i in range(4)]
    harness.step()
    harness.step()
    long = harness.submit(list(np.arange(2048) % 97), 2)
    short = harness.submit([7, 7, 7], 3)
    harness.run()
    log = worker.step_requests
    first_long = next(i for i, names in enumerate(log) if "r5" in names)
    last_long = max(i for i, names in enumerate(log) if "r5" in names)
    first_short = next(i for i, names in enumerate(log) if "r6" in names)
    assert first_short == first_long, "the short one starts beside the long one"
    for names in log[first_long : first_long + 40]:
        assert {"r1", "r2", "r3", "r4"} <= set(names)
    assert last_long - first_long > 30
    for handle in streams:
        assert len(harness.front_end.tokens[handle]) == 60
    assert len(harness.front_end.tokens[long]) == 2
    assert harness.front_end.tokens[short] == expected_tokens([7, 7, 7], 3)
    assert all(plan.query_lens.sum() <= 64 for plan in worker.log)


def test_decodes_come_first_in_a_step() -> None:
    harness = Harness(FakeWorker(num_blocks=100, max_step_tokens=16), pipeline_depth=1)
    harness.submit([1, 2], 9)
    harness.submit([3, 4], 9)
    harness.step()
    harness.submit(list(range(40)), 3)
    harness.run()
    mixed = [plan for plan in harness.worker.log if plan.query_lens.max() > 1]
    assert any(plan.query_lens.tolist() == [1, 1, 14] for plan in mixed)


def test_the_head_of_the_queue_is_admitted_however_many_small_ones_come() -> None:
    """Nobody passes the head: it waits for those that run, and for nobody else."""
    worker = FakeWorker(num_blocks=65, block_size=4, max_rows=64, max_model_len=256)
    harness = Harness(worker, pipeline_depth=1, max_step_tokens=256)
    running = [harness.submit(list(range(40)), 8) for _ in range(4)]
    harness.step()
    head = harness.submit(list(np.arange(236) % 97), 4)
    small = []
    for i in range(30):
        small.append(harness.submit([i, i, i], 4))
        harness.step()
    harness.run()
    order = [new.request_id for plan in worker.log for new in plan.new_rows]
    assert order[: len(running) + 1] == [f"r{handle}" for handle in [*running, head]]
    for handle in small:
        assert len(harness.front_end.tokens[handle]) == 4


def test_when_a_waiting_head_is_cancelled_the_next_is_looked_at_in_the_same_step() -> None:
    worker = FakeWorker(num_blocks=17, block_size=4)
    harness = Harness(worker, pipeline_depth=1)
    harness.submit(list(range(30)), 20)
    harness.step()
    head = harness.submit(list(range(60)), 1)
    small = harness.submit([1, 2], 2)
    harness.step()
    assert [r.handle for r in harness.books.waiting] == [head, small]
    harness.abort(head)
    harness.step()
    assert "r3" in worker.step_requests[-1]


def test_waiting_requests_hold_no_row() -> None:
    harness = Harness(FakeWorker(max_rows=2), pipeline_depth=1)
    for i in range(6):
        harness.submit([i], 5)
    harness.turn()
    assert harness.books.rows.num_live == 2
    for request in list(harness.books.waiting)[:2]:
        harness.abort(request.handle)
    harness.run()
    assert max(len(names) for names in harness.worker.step_requests) == 2


def test_a_budget_below_max_rows_bounds_the_rows() -> None:
    harness = Harness(FakeWorker(max_rows=8), max_step_tokens=3)
    handles = [harness.submit([i, i, i, i], 6) for i in range(7)]
    harness.run()
    assert max(len(names) for names in harness.worker.step_requests) <= 3
    for i, handle in enumerate(handles):
        assert harness.front_end.tokens[handle] == expected_tokens([i] * 4, 6)
