"""What a soak found: a table, JSON, and a plot of the memory."""

from __future__ import annotations

import json
import statistics
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import Any

from deploy.soak.faults import LONG
from deploy.soak.recovery import Recovery
from deploy.soak.run import Inflicted, Result
from deploy.soak.stand import Memory

# Memory at the end may be this much of that after SETTLED seconds.
MOST_GROWTH = 1.05
MOST_COMPLAINTS = 20  # to be told
SETTLED = 300.0
_SPAN = 30.0  # seconds over which a median is taken


def growth(memory: list[Memory], name: str) -> float | None:
    """Resident memory at the end over that after SETTLED seconds, of the last process of that
    name; None if it did not live twice as long."""
    last = [m for m in memory if m.name == name]
    last = [m for m in last if m.process == last[-1].process]
    if not last or last[-1].age < 2 * SETTLED:
        return None
    early = [m.rss for m in last if SETTLED <= m.age < SETTLED + _SPAN]
    late = [m.rss for m in last if m.age > last[-1].age - _SPAN]
    return statistics.median(late) / statistics.median(early)


def table(name: str, result: Result) -> str:
    kinds = Counter(one.fault.kind for one in result.faults)
    share = result.mismatches / max(1, result.requests)
    lines = [
        f"{name}: {result.requests} requests, {result.tokens} tokens, {result.mismatches} "
        f"mismatches ({share:.2%}), {result.leaks} leaks, {len(result.complaints)} complaints; "
        f"{result.asked_again} times one was asked again, {result.cached_tokens} tokens of prompts "
        f"were found in the prefix cache; {result.penalized_tokens} tokens were made with "
        f"penalties, {result.logprob_tokens} came with log-probabilities"
    ]
    lines += _columns("fault", "times", sorted(kinds.items()))
    met = [(f"with {what}", n) for what, n in _met(result).items()]
    lines += _columns("faults", "times", [("all", len(result.faults)), *met])
    lines += _columns("server", "starts", sorted(result.starts.items()))
    lines += _recoveries(result.recoveries)
    ends = [(f"{behaviour} {status}", n) for (behaviour, status), n in result.outcomes.items()]
    lines += _columns("request", "calls", sorted(ends))
    for one in ("scheduler", "worker"):
        if (grown := growth(result.memory, one)) is not None:
            lines.append(f"  {one}: resident memory at the end {grown:.3f} of that after 5 minutes")
    return "\n".join(lines)


def _met(result: Result) -> dict[str, int]:
    """How many of the faults came upon what."""
    return {
        "steps in flight": sum(one.steps_in_flight > 0 for one in result.faults),
        "a prompt half computed": sum(one.prefilling > 0 for one in result.faults),
        "a stop string half matched": sum(one.half_matched > 0 for one in result.faults),
    }


def _recoveries(recoveries: list[Recovery]) -> list[str]:
    lines = []
    if pauses := [one.pause for one in recoveries]:
        lines.append(
            f"  from a kill of the worker to the next token of an open stream, less the next "
            f"one's start: median {statistics.median(pauses):.2f} s, at most {max(pauses):.2f} s"
        )
    if rates := [one.tokens_per_second for one in recoveries if one.tokens_per_second]:
        lines.append(
            f"  from its listening until all open streams went on, tokens recomputed a second: "
            f"median {statistics.median(rates):,.0f}, {min(rates):,.0f} to {max(rates):,.0f}"
        )
    return lines


def judge_growth(result: Result) -> None:
    """Adds a complaint for a process whose memory grew, or is unknown after a long time."""
    for name in ("scheduler", "worker"):
        grown = growth(result.memory, name)
        if grown is not None and grown > MOST_GROWTH:
            result.complaints.append(f"the {name}'s memory grew to {grown:.3f} of what it was")
        if grown is None and result.seconds >= LONG:
            result.complaints.append(f"no {name} lived long enough to judge its memory")


def as_json(result: Result) -> dict[str, Any]:
    return {
        "requests": result.requests,
        "asked_again": result.asked_again,
        "tokens": result.tokens,
        "cached_tokens": result.cached_tokens,
        "penalized_tokens": result.penalized_tokens,
        "logprob_tokens": result.logprob_tokens,
        "mismatches": result.mismatches,
        "leaks": result.leaks,
        "preemptions": result.preemptions,
        "faults_with": _met(result),
        "starts": result.starts,
        "recoveries": [_rounded(asdict(recovery)) for recovery in result.recoveries],
        "outcomes": {f"{b} {s}": n for (b, s), n in sorted(result.outcomes.items())},
        "faults": [asdict(one.fault) | _rest(one) for one in result.faults],
        "growth": {name: growth(result.memory, name) for name in ("scheduler", "worker")},
        "num_complaints": len(result.complaints),
        "complaints": result.complaints[:MOST_COMPLAINTS],
    }


def _rest(one: Inflicted) -> dict[str, int]:
    """What the fault came upon."""
    return {name: n for name, n in asdict(one).items() if name != "fault"}


def _rounded(values: dict[str, float | None]) -> dict[str, float | None]:
    return {name: None if n is None else round(n, 3) for name, n in values.items()}


def lines(value: Any, indent: int = 0) -> str:
    """JSON in which each element of a list has one line."""
    pad = "\n" + " " * (indent + 1)
    if value and isinstance(value, dict):
        inner = (f"{json.dumps(k)}: {lines(v, indent + 1)}" for k, v in value.items())
        return "{" + pad + ("," + pad).join(inner) + pad[:-1] + "}"
    if value and isinstance(value, list):
        return "[" + pad + ("," + pad).join(map(json.dumps, value)) + pad[:-1] + "]"
    return json.dumps(value)


def plot_memory(path: Path, results: dict[str, Result]) -> None:
    """Resident memory of each process over time, the faults as ticks below."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(
        len(results), 1, figsize=(9, 3.2 * len(results)), squeeze=False, layout="constrained"
    )
    for axis, (name, result) in zip(axes[:, 0], results.items(), strict=True):
        for process, colour in (("scheduler", "#0072B2"), ("worker", "#D55E00")):
            all_of_it = [m for m in result.memory if m.name == process]
            for i, one in enumerate(dict.fromkeys(m.process for m in all_of_it)):
                mine = [m for m in all_of_it if m.process == one]
                axis.plot(
                    [m.at for m in mine],
                    [m.rss / 2**20 for m in mine],
                    color=colour,
                    label=process if not i else None,
                )
        offset = result.memory[0].at if result.memory else 0.0
        times = [offset + one.fault.at for one in result.faults]
        axis.plot(times, [0] * len(times), "|", color="black", markersize=12, label="fault")
        axis.set(title=name, xlabel="seconds", ylabel="resident memory, MiB", ylim=(0, None))
        axis.legend(loc="center right")
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def _columns(head: str, unit: str, rows: list[tuple[str, int]]) -> list[str]:
    if not rows:
        return []
    width = max(len(head), *(len(name) for name, _ in rows))
    return [f"  {head:<{width}}  {unit:>7}"] + [f"  {name:<{width}}  {n:>7}" for name, n in rows]
