"""What the Grafana dashboard asks and how it shows it, read from its JSON."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

DASHBOARD = Path(__file__).with_name("grafana") / "dashboards/nanoserve.json"
_RATE_INTERVAL = "$__rate_interval"


@dataclass(frozen=True, slots=True)
class Query:
    """One line or more of a panel. `legend` may have labels in it, as {{label}}."""

    expression: str
    legend: str

    def over(self, seconds: float) -> str:
        """The expression, with rates over as many seconds."""
        return self.expression.replace(_RATE_INTERVAL, f"{round(1000 * seconds)}ms")

    def name(self, labels: Mapping[str, str]) -> str:
        """What the legend calls the series with these labels."""
        return re.sub(r"{{\s*(\w+)\s*}}", lambda found: labels.get(found[1], ""), self.legend)


@dataclass(frozen=True, slots=True)
class Panel:
    title: str
    unit: str  # Grafana's name for it
    axis: str  # what the axis counts, where the unit does not tell
    queries: tuple[Query, ...]


def read_panels(path: Path = DASHBOARD) -> list[Panel]:
    """All that show queries, in the order of the file."""
    panels = json.loads(path.read_text())["panels"]
    return [_panel(panel) for panel in panels if "targets" in panel]


def _panel(panel: dict) -> Panel:
    shown = panel["fieldConfig"]["defaults"]
    queries = (Query(target["expr"], target["legendFormat"]) for target in panel["targets"])
    axis = shown.get("custom", {}).get("axisLabel", "")
    return Panel(panel["title"], shown["unit"], axis, tuple(queries))
