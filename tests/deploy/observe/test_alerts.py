"""The alert rules that are shipped: each fires on its cause, and tells where to look."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
SHIPPED = ROOT / "deploy/observe/prometheus"
CASES = Path(__file__).with_name("alerts.yaml")

needs_promtool = pytest.mark.skipif(
    not shutil.which("promtool"), reason="promtool is not installed (Debian's package prometheus)"
)


def alerts() -> list[str]:
    return re.findall(r"alert: (\w+)", (SHIPPED / "alerts.yml").read_text())


def promtool(*arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["promtool", *arguments], cwd=folder, capture_output=True, text=True, timeout=60
    )


@needs_promtool
def test_promtool_takes_the_configuration_with_its_rules() -> None:
    done = promtool("check", "config", "--lint-fatal", "prometheus.yml", folder=SHIPPED)
    assert done.returncode == 0, done.stderr
    assert f"SUCCESS: {len(alerts())} rules found" in done.stdout


@needs_promtool
def test_each_alert_fires_on_its_cause_and_not_before(tmp_path: Path) -> None:
    shutil.copy(SHIPPED / "alerts.yml", tmp_path)
    shutil.copy(CASES, tmp_path)
    done = promtool("test", "rules", "alerts.yaml", folder=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    rules = (tmp_path / "alerts.yml").read_text()
    (tmp_path / "alerts.yml").write_text(rules.replace("> 30", "> 300"))
    assert promtool("test", "rules", "alerts.yaml", folder=tmp_path).returncode == 1


def test_each_alert_has_a_case_where_it_fires_and_one_where_not() -> None:
    cases = CASES.read_text()
    assert len(alerts()) > 5
    for alert in alerts():
        assert f"alertname: {alert}, exp_alerts: []" in cases
        assert f"alertname: {alert}\n        exp_alerts:\n" in cases


def test_each_alert_is_in_the_runbook() -> None:
    runbook = (ROOT / "deploy/RUNBOOK.md").read_text()
    assert re.findall(r"^\| `(\w+)` \|", runbook, re.MULTILINE) == alerts()
