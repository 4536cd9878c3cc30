"""Rows of the table: what was measured, and how it stands to floor and targets."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import Any

from deploy.bench.gpu.targets import TARGETS, Target

# Units of which more is better; of all others less is.
_RATES = ("tok/s", "%")


@dataclass(frozen=True, slots=True)
class Row:
    """`values`: one for each repetition, in `unit`. Of a row whose values are shares of its floor
    the floor is 100."""

    key: str  # of TARGETS
    title: str
    unit: str
    values: tuple[float, ...]
    floor: float | None = None  # in `unit`; the best there can be
    gap_p99: float | None = None  # milliseconds before a token, over all repetitions

    @property
    def value(self) -> float:
        return statistics.median(self.values)

    @property
    def target(self) -> Target | None:
        return TARGETS.get(self.key)

    def gain(self, other: float) -> float:
        """How many times as good as `other` the median is."""
        return self.value / other if self.unit in _RATES else other / self.value

    @property
    def verdict(self) -> str:
        """ "aim" or "reach", whichever it came to, else "short"; empty without a target."""
        if not self.target:
            return ""
        if self.gain(self.target.aim) >= 1:
            return "aim"
        return "reach" if self.gain(self.target.reach) >= 1 else "short"

    def to_json(self) -> dict[str, Any]:
        target = self.target
        return {
            "key": self.key,
            "unit": self.unit,
            "values": list(self.values),
            "median": self.value,
            "gap_p99_ms": self.gap_p99,
            "floor": self.floor,
            "share_of_floor": None if self.floor is None else self.gain(self.floor),
            "vllm": target.vllm if target else None,
            "reach": target.reach if target else None,
            "aim": target.aim if target else None,
            "verdict": self.verdict,
        }


HEADER = (
    f"{'work':<35} {'median':>8} {'from':>8} {'to':>8}       {'gap p99':>8} {'floor':>8} "
    f"{'share':>5} {'vLLM':>8} {'x':>5} {'reach':>8} {'aim':>8}"
)


def line(row: Row) -> str:
    """For people, under HEADER; "x" is how many times as good as vLLM."""
    vllm, reach, aim = (
        getattr(row.target, name) if row.target else None for name in ("vllm", "reach", "aim")
    )
    cells = (
        f"{row.title:<35} {_number(row.value):>8} {_number(min(row.values)):>8}",
        f"{_number(max(row.values)):>8} {row.unit:<5} {_number(row.gap_p99):>8}",
        f"{_number(row.floor):>8} {_share(row):>5}",
        f"{_number(vllm):>8} {f'{row.gain(vllm):.2f}' if vllm else '-':>5}",
        f"{_number(reach):>8} {_number(aim):>8}  {row.verdict}",
    )
    return " ".join(cells).rstrip()


def _share(row: Row) -> str:
    return "-" if row.floor is None else f"{row.gain(row.floor):.0%}"


def _number(value: float | None) -> str:
    """Three digits or more: 0.912, 13.8, 33,450."""
    if value is None:
        return "-"
    digits = next((3 - i for i, bound in enumerate((1, 10, 100)) if value < bound), 0)
    return f"{value:,.{digits}f}"
