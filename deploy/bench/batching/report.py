"""What was measured, as files and as text."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image

from deploy.bench.batching import csv_files
from deploy.bench.batching.history import Moment, replay
from deploy.bench.batching.loads import LONG, SHORT
from deploy.bench.batching.measure import ARRIVING, BACKLOG, SEVEN, Sizes
from deploy.bench.batching.plots.block_tables import plot_block_tables
from deploy.bench.batching.plots.occupancy import plot_occupancy
from deploy.bench.batching.plots.short_rows import plot_short_rows
from deploy.bench.batching.plots.throughput import plot_throughput
from deploy.bench.batching.policies import Bill, Policy
from deploy.bench.batching.throughput import BatchRate, Curve


def write_report(
    folder: Path, sizes: Sizes, rates: Sequence[BatchRate], bills: Sequence[Bill], title: str
) -> str:
    """Writes the CSV files and the pictures; returns the figures as text."""
    csv_files.write_rates(folder / "throughput.csv", rates)
    csv_files.write_bills(folder / "policies.csv", bills)
    csv_files.write_requests(folder / "requests.csv", bills)
    csv_files.write_occupancy(folder / "occupancy.csv", bills)
    curve = Curve.of(rates)
    _draw(folder, sizes, curve, bills, title)
    for picture in folder.glob("*.png"):
        _shrink(picture)
    return "\n".join((_rates_text(curve), "", *map(_bill_text, bills)))


def _draw(folder: Path, sizes: Sizes, curve: Curve, bills: Sequence[Bill], title: str) -> None:
    bursts = f"bursts of equal requests, prompt {sizes.prompt}, {sizes.output} output tokens"
    plot_throughput(curve, f"{title}; {bursts}", folder / "throughput.png")
    seven = [_median_round(bills, policy) for policy in Policy]
    arriving = [bill for bill in bills if bill.load == ARRIVING]
    what = f"{title}\nOn 8 rows: one request of 32 tokens and seven of 4; a mix of short and long"
    plot_short_rows(seven, arriving, what, folder / "short_rows.png")
    backlog = [bill for bill in bills if bill.load == BACKLOG]
    static = next(bill for bill in backlog if bill.policy is Policy.STATIC)
    continuous = [bill for bill in backlog if bill.policy is Policy.CONTINUOUS]
    what = f"{title}; {sizes.mix.requests} requests of the mix at once, 8 rows, by pool size"
    plot_occupancy(static, continuous, what, folder / "pool_occupancy.png")
    _draw_tables(folder / "block_tables_static.png", static, _inside_longest_batch(static), title)
    tight = continuous[1]
    _draw_tables(folder / "block_tables_continuous.png", tight, _beside_a_prompt(tight), title)


def _shrink(picture: Path) -> None:
    """To a palette: few colours are in it, and it is kept in the repository."""
    with Image.open(picture) as image:
        image.convert("RGB").quantize(256).save(picture, optimize=True)


def _median_round(bills: Sequence[Bill], policy: Policy) -> Bill:
    rounds = [bill for bill in bills if bill.load == SEVEN and bill.policy is policy]
    return sorted(rounds, key=lambda bill: bill.seconds)[len(rounds) // 2]


def _draw_tables(path: Path, bill: Bill, index: int, title: str) -> None:
    moment, dead = _moment(bill, index)
    question = f"{bill.policy.value.capitalize()} batching: block tables over the shared pool"
    if dead:
        question += f"; {len(dead)} of {len(moment.rows)} rows compute for nobody"
    legend = (
        "Filled: K/V in the pool, in its row's colour. Dashed: reserved, not written yet. "
        "Black: written by this step. Grey: free."
    )
    what = f"{title}; {bill.load}, step {index + 1} of {len(bill.recording.steps)}\n{legend}"
    plot_block_tables(bill.recording, moment, dead, question, what, path)


def _inside_longest_batch(bill: Bill) -> int:
    """A step a third into the batch that took most."""
    steps = bill.recording.steps
    starts = [i for i, step in enumerate(steps) if step.new_rows]
    lengths = np.diff([*starts, len(steps)])
    longest = int(np.argmax(lengths))
    return starts[longest] + int(lengths[longest]) // 3


def _beside_a_prompt(bill: Bill) -> int:
    """A step near the middle in which decodes run beside a prompt, if there is one."""
    steps = bill.recording.steps
    middle = len(steps) // 2
    mixed = [i for i, step in enumerate(steps) if step.query_lens.count(1) > 2]
    mixed = [i for i in mixed if max(steps[i].query_lens) > 1] or [middle]
    return min(mixed, key=lambda i: abs(i - middle))


def _moment(bill: Bill, index: int) -> tuple[Moment, set[int]]:
    """A moment of its own, and the rows that compute for nobody in it."""
    output_lens = {served.timeline.request_id: served.work.useful for served in bill.requests}
    sampled = dict.fromkeys(output_lens, 0)
    for i, moment in enumerate(replay(bill.recording)):
        names = {row: held.request_id for row, held in moment.rows.items()}
        if i == index:
            break
        for row, samples in zip(moment.step.rows, moment.step.samples, strict=True):
            sampled[names[row]] += samples
    return moment, {row for row in names if sampled[names[row]] >= output_lens[names[row]]}


def _rates_text(curve: Curve) -> str:
    lines = [f"{'batch':>6}{'tokens/s':>10}{'step ms':>9}{'speed-up':>10}{'of ideal':>10}"]
    columns = zip(curve.batches, curve.decode, curve.speed_up, curve.efficiency, strict=True)
    for batch, rate, gain, share in columns:
        step = 1e3 * batch / rate
        lines.append(f"{batch:>6}{rate:>10.1f}{step:>9.1f}{gain:>9.2f}x{share:>10.0%}")
    lines.append(f"knee (half of ideal): {curve.knee}; last size with a gain: {curve.last_gain}")
    return "\n".join(lines)


def _bill_text(bill: Bill) -> str:
    short, own = bill.latencies(SHORT), bill.over_own_work(SHORT)
    return (
        f"{bill.load}; {bill.policy.value}; {bill.pool} blocks: {bill.issued} issued, "
        f"{bill.useful} useful ({bill.wasted:.1%} wasted), {bill.dead:.1%} of row time dead, "
        f"{bill.useful / bill.seconds:.0f} tokens/s; short p50 {np.median(short):.2f} s "
        f"({np.median(own):.1f} x own work), long p50 {np.median(bill.latencies(LONG)):.2f} s; "
        f"{bill.preemptions} preemptions" + (f" VOID: {bill.void}" if bill.void else "")
    )
