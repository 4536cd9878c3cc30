"""Debian's Prometheus, for a test: it scrapes, and answers queries."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import threading
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from deploy.local.child import Child
from tests.waiting import SECONDS, wait_for

MISSING = [name for name in ("prometheus", "promtool") if not shutil.which(name)]

# Jobs by name, each with one target.
_CONFIG = """
global:
  scrape_interval: 500ms
scrape_configs:
"""
_JOB = """
- job_name: {job}
  static_configs:
  - targets: ["{target}"]
"""


class Prometheus:
    def __init__(self, address: str) -> None:
        self._address = address

    def series(self, expression: str) -> list[tuple[dict[str, str], float]]:
        """Labels and value of each series of an instant query."""
        query = urllib.parse.urlencode({"query": expression})
        url = f"http://{self._address}/api/v1/query?{query}"
        with urllib.request.urlopen(url, timeout=SECONDS) as response:
            result = json.load(response)["data"]["result"]
        return [(one["metric"], float(one["value"][1])) for one in result]

    def query(self, expression: str) -> dict[str, float]:
        """The values of an instant query, by job."""
        result = self.series(expression)
        values = {labels.get("job", ""): value for labels, value in result}
        assert len(values) == len(result), f"{expression} has several series of one job"
        return values


@contextmanager
def prometheus(folder: Path, targets: dict[str, str]) -> Iterator[Prometheus]:
    """Scrapes `targets`, HOST:PORT by job, twice a second, until the block ends."""
    jobs = (_JOB.format(job=job, target=target) for job, target in targets.items())
    config = folder / "prometheus.yml"
    config.write_text(_CONFIG + "".join(jobs))
    command = ["prometheus", f"--config.file={config}", f"--storage.tsdb.path={folder / 'data'}"]
    process = subprocess.Popen(
        [*command, "--web.listen-address=127.0.0.1:0"], stderr=subprocess.PIPE, text=True
    )
    lines: list[str] = []
    reader = threading.Thread(target=lambda: lines.extend(process.stderr or ()), daemon=True)
    reader.start()
    try:
        wait_for(lambda: any("Server is ready" in line for line in lines), "it is ready")
        # Said by another of its threads, maybe later.
        pattern = r'"Listening on" address=(\S+)'
        (address,) = wait_for(lambda: re.findall(pattern, "".join(lines)), "it says where")
        yield Prometheus(address)
    finally:
        process.kill()
        process.wait()
        reader.join(10)


def metrics_of(child: Child) -> str:
    """HOST:PORT, once the log tells it."""
    found: list[str] = []

    def told() -> bool:
        found.extend(re.findall(r"metrics at http://(\S+)/metrics", "\n".join(child.lines)))
        return bool(found)

    wait_for(told, f"the {child.name} tells where its metrics are")
    return found[0]


def lint(text: str) -> str:
    """What promtool finds wrong with a text of metrics."""
    command = ["promtool", "check", "metrics"]
    done = subprocess.run(command, input=text, capture_output=True, text=True, timeout=SECONDS)
    return f"{done.stdout}{done.stderr}" + (f"exit {done.returncode}" if done.returncode else "")
