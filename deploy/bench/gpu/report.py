"""What a run found: told as it is found, and as JSON in the end."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from typing import Any

from deploy.bench.floor import Rates
from deploy.bench.gpu.rows import HEADER, Row, line
from deploy.bench.gpu.start import Start


class Report:
    """`values` is the JSON so far."""

    def __init__(self, about: Mapping[str, Any]) -> None:
        self.values: dict[str, Any] = {
            **about,
            "card": {},
            "rows": [],
            "starts": {},
            "errors": [],
        }

    @property
    def failed(self) -> bool:
        return bool(self.values["errors"])

    def card(self, card: dict[str, Any], rates: Rates) -> None:
        self.values["card"] = card
        print(
            f"{card['device']} ({card['state'] or 'no nvidia-smi'}): reads "
            f"{rates.read_bytes / 1e12:.3g} TB/s, multiplies {rates.bf16_operations / 1e12:.3g} "
            "TFLOP/s in bfloat16"
        )
        print(HEADER, flush=True)

    def rows(self, rows: Iterable[Row]) -> None:
        """Takes each as it comes."""
        for row in rows:
            print(line(row), flush=True)
            self.values["rows"].append(row.to_json())

    def starts(self, starts: Mapping[str, Start]) -> None:
        for name, start in starts.items():
            self.values["starts"][name] = start.log
            print(f"{name}: {start.seconds:.1f} s", start.describe(), sep="\n", flush=True)

    def error(self, text: str) -> None:
        self.values["errors"].append(text)
        print(f"bench-gpu: {text}", file=sys.stderr, flush=True)
