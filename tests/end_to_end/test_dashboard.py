"""Every query of the Grafana dashboard gives data when a real Prometheus answers it."""

from __future__ import annotations

import json
import math
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from deploy.observe.dashboard import DASHBOARD, read_panels
from nanoserve import Client
from tests.end_to_end.prometheus import MISSING, metrics_of, prometheus
from tests.end_to_end.servers import start, wait_for_health
from tests.waiting import wait_for

ROOT = Path(__file__).resolve().parents[2]
SETTINGS = ROOT / "deploy/observe/grafana/provisioning"
VOCAB = 200
ON = ("--metrics-listen", "127.0.0.1:0")

pytestmark = pytest.mark.skipif(
    bool(MISSING), reason=f"not installed: {', '.join(MISSING)} (Debian's package prometheus)"
)


def queries() -> dict[str, str]:
    """By panel with legend."""
    return {
        f"{panel.title}: {query.legend}": query.over(5)
        for panel in read_panels()
        for query in panel.queries
    }


@contextmanager
def loaded(address: str) -> Iterator[None]:
    """Four clients that ask again and again."""
    stop = threading.Event()

    def ask(number: int) -> None:
        with Client(address) as client:
            while not stop.is_set():
                prompt = [number + 1] * 9
                client.generate(token_ids=prompt, max_tokens=30, temperature=0).collect()

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join()


@contextmanager
def servers(folder: Path) -> Iterator[tuple[str, dict[str, str]]]:
    """The public address, and where the metrics of each are."""
    address, worker = f"unix:{folder}/public.sock", f"unix:{folder}/worker.sock"
    simulated = ("--simulate", "--vocab-size", str(VOCAB), "--step-ms", "2")
    children = {
        "worker": start("worker", *simulated, "--listen", worker, *ON),
        "scheduler": start(
            "scheduler", "--no-tokenizer", "--worker", worker, "--listen", address, *ON
        ),
    }
    try:
        wait_for_health(address, 1)
        yield address, {name: metrics_of(child) for name, child in children.items()}
    finally:
        for child in children.values():
            child.stop(0, threading.Event())


def test_every_query_of_the_dashboard_gives_data_under_load(tmp_path: Path) -> None:
    with (
        servers(tmp_path) as (address, targets),
        prometheus(tmp_path, targets) as server,
        loaded(address),
    ):
        lacking = queries()

        def all_have_data() -> bool:
            for name, query in list(lacking.items()):
                values = server.series(query)
                if values and all(math.isfinite(value) for _, value in values):
                    del lacking[name]
            return not lacking

        wait_for(all_have_data, f"all queries have data; none have {lacking}")
        tokens = queries()["Tokens a second: output"]
        # Of a scrape that came late there is no rate for a while.
        wait_for(lambda: server.query(tokens).get("scheduler", 0) > 100, "it is a rate of tokens")
        assert server.series("nanoserve_no_such_metric") == []


def test_panels_do_not_overlap_and_name_the_data_source_that_is_provisioned() -> None:
    panels = json.loads(DASHBOARD.read_text())["panels"]
    places = [(p["gridPos"]["x"], p["gridPos"]["y"]) for p in panels]
    assert len(set(places)) == len(places) > 10
    source = (SETTINGS / "datasources/prometheus.yaml").read_text()
    assert {p["datasource"]["uid"] for p in panels} == {"prometheus"}
    assert "uid: prometheus\n" in source
