"""Policies under the seven short requests behind a long one, through real processes with a
simulated worker; and what is written of it."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest

from deploy.bench.batching import measure
from deploy.bench.batching.__main__ import main
from deploy.bench.batching.loads import Asked, Mix, seven_behind_one
from deploy.bench.batching.measure import ARRIVING, BACKLOG, SEVEN, Measurements, Sizes
from deploy.bench.batching.policies import Bill, Policy, bill
from deploy.bench.batching.report import write_report
from deploy.bench.batching.servers import RecordedWorker
from deploy.bench.batching.throughput import BatchRate

SIZES = Sizes((1, 2, 8), 4, 4, 2, Mix(8))
RATES = [BatchRate(batch, 1, 10.0 * batch**0.7, 9.0) for batch in SIZES.batches]
WORKER = ("--simulate", "--step-ms", "1", "--max-rows", "8", "--num-blocks", "81")


@pytest.fixture(scope="module")
def bills() -> dict[Policy, Bill]:
    with RecordedWorker(WORKER) as worker:
        return {p: bill(worker, SEVEN, seven_behind_one(), p, 30.0, 1) for p in Policy}


def arriving(of: Bill) -> Bill:
    """As if its requests had come a second after each other."""
    later = (replace(s, asked=replace(s.asked, time=float(i))) for i, s in enumerate(of.requests))
    return replace(of, load=ARRIVING, requests=tuple(later))


@pytest.fixture(scope="module")
def folder(bills: dict[Policy, Bill], tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("batching")
    others = [
        *(arriving(bills[policy]) for policy in Policy),
        *(replace(bills[policy], load=BACKLOG) for policy in (Policy.CONTINUOUS, Policy.STATIC)),
        replace(bills[Policy.CONTINUOUS], load=BACKLOG, round=2),
    ]
    text = write_report(out, SIZES, RATES, [*bills.values(), *others], "a test")
    assert "256 issued, 60 useful (76.6% wasted)" in text
    return out


def lines(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_static_batching_wastes_196_of_256_tokens_and_continuous_none(
    bills: dict[Policy, Bill],
) -> None:
    counts = {policy: (b.issued, b.useful) for policy, b in bills.items()}
    assert counts == {
        Policy.CONTINUOUS: (60, 60),
        Policy.STATIC: (256, 60),
        Policy.STATIC_TOGETHER: (256, 60),
    }
    assert bills[Policy.CONTINUOUS].dead == 0
    assert bills[Policy.STATIC].wasted == 196 / 256
    assert all((b.preemptions, b.recomputed, b.pool) == (0, 0, 80) for b in bills.values())


def test_a_static_batch_computes_and_holds_for_all_until_its_slowest_is_done(
    bills: dict[Policy, Bill],
) -> None:
    for policy in (Policy.STATIC, Policy.STATIC_TOGETHER):
        assert [len(step.rows) for step in bills[policy].recording.steps] == [8] * 32
        # 63 slots for the long one and 35 for each short one, from the first step on.
        held = bills[policy].occupancy.blocks
        assert (held == held[0]).all()
        assert sorted(held[0]) == [3, 3, 3, 3, 3, 3, 3, 4]
        # Four of the steps are the short ones' own, however long each took.
        seconds = bills[policy].recording.durations()
        for served in bills[policy].requests[1:]:
            assert served.work.own_seconds == pytest.approx(seconds[:4].sum())
            assert served.work.dead_seconds == pytest.approx(seconds[4:].sum())


def test_with_ends_held_back_a_short_request_takes_as_long_as_the_long_one(
    bills: dict[Policy, Bill],
) -> None:
    long, *short = bills[Policy.STATIC_TOGETHER].requests
    for served in short:
        assert served.latency > served.work.own_seconds + served.work.dead_seconds
        assert served.work.own_seconds < long.work.own_seconds
        assert served.over_own_work == served.latency / served.work.own_seconds


def test_every_request_and_every_batch_size_has_a_line(folder: Path) -> None:
    assert [x["batch"] for x in lines(folder / "throughput.csv")] == ["1", "2", "8"]
    assert len(lines(folder / "policies.csv")) == 9
    assert len(lines(folder / "requests.csv")) == 9 * 8
    static = [x for x in lines(folder / "occupancy.csv") if x["policy"] == "static"]
    assert len(static) == 3, "one line each, as no row's blocks change"


def test_each_picture_is_there_and_small(folder: Path) -> None:
    sizes = {path.name: path.stat().st_size for path in folder.glob("*.png")}
    assert sorted(sizes) == [
        "block_tables_continuous.png",
        "block_tables_static.png",
        "pool_occupancy.png",
        "short_rows.png",
        "throughput.png",
    ]
    assert all(10_000 < size < 200_000 for size in sizes.values())


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--batches", "0"], "--batches: is '0', must be a number from 1 on"),
        (["--rounds", "x"], "--rounds: is 'x', must be a number from 1 on"),
        (["--output", "7"], "--output: is '7', must be a number from 8 on"),
        (["--mix-requests", "-8"], "--mix-requests"),
        (["--clients", "0"], "--clients: is '0', must be a number from 1 on"),
        (["--frontends", "-1"], "--frontends"),
    ],
)
def test_sizes_that_measure_nothing_are_refused(
    flags: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main(flags)
    assert message in capsys.readouterr().err


class FakeWorker(nullcontext):
    def __init__(self, flags: Sequence[str]) -> None:
        super().__init__(self)
        self.pool = int(flags[flags.index("--num-blocks") + 1]) - 1

    def recorded_scheduler(self, flags: Sequence[str], recordings: list) -> nullcontext:
        return nullcontext("address")

    def scheduler(self, flags: Sequence[str], listen: str | None) -> nullcontext:
        front_ends = int(flags[flags.index("--frontends") + 1])
        return nullcontext("several front ends" if front_ends and listen else "address")


def test_all_policies_get_the_same_load_and_the_pool_shrinks_to_fit_one(
    monkeypatch: pytest.MonkeyPatch, bills: dict[Policy, Bill]
) -> None:
    asked_for: list[tuple[str, Policy, int, float]] = []

    def fake_bill(
        worker: FakeWorker, load: str, asked: list[Asked], policy: Policy, wait: float, number: int
    ) -> Bill:
        asked_for.append((load, policy, worker.pool, wait))
        return bills[policy]

    monkeypatch.setattr(measure, "RecordedWorker", FakeWorker)
    monkeypatch.setattr(measure, "bill", fake_bill)
    bursts: list[tuple] = []
    monkeypatch.setattr(measure, "run_burst", lambda *burst: bursts.append(burst))
    monkeypatch.setattr(BatchRate, "of", lambda _, batch, number: BatchRate(batch, number, 80, 80))
    sizes = replace(SIZES, clients=2, frontends=3)
    measurements = Measurements(sizes, (), lambda _: None)
    measurements.run()
    sent_by = [(address, batch, clients) for address, batch, *_, clients in bursts]
    several = "several front ends"
    warm_up, one = (several, 8, 2), (several, 1, 1)
    assert sent_by[:-4] == [warm_up, *[one, (several, 2, 2), (several, 8, 2)] * 2]
    assert [rate.batch for rate in measurements.rates] == [1, 2, 8, 1, 2, 8]
    loads = [(load, policy, pool) for load, policy, pool, _ in asked_for]
    assert loads == [
        *[(SEVEN, policy, 80) for _ in range(2) for policy in Policy],
        *[(ARRIVING, policy, 80) for policy in Policy],
        *[(BACKLOG, policy, 80) for policy in (Policy.CONTINUOUS, Policy.STATIC)],
        *[(BACKLOG, Policy.CONTINUOUS, pool) for pool in (40, 20, 10)],
    ]
    # Four steps of 8 / 80 seconds.
    assert {wait for load, _, _, wait in asked_for if load == ARRIVING} == {0.4}
