"""What Prometheus, the dashboard and the load tool see of a deployment under load."""

from __future__ import annotations

from pathlib import Path

from deploy.loadtest.measures import Outcome
from deploy.loadtest.requests import Requests
from deploy.observe.dashboard import read_panels
from tests.end_to_end.containers import effects
from tests.end_to_end.containers.deployment import PROJECT, SCHEDULER, Deployment, wait_until
from tests.end_to_end.containers.engine import docker
from tests.end_to_end.containers.load import Load
from tests.end_to_end.containers.observer import Observer

# Two of the spans that the dashboard takes rates over.
ENOUGH_SECONDS = 40


def test_prometheus_scrapes_the_network_of_the_link_and_takes_the_rules(
    deployment: Deployment, observer: Observer
) -> None:
    link = f'(index .NetworkSettings.Networks "{PROJECT}_link").IPAddress'
    address = docker("inspect", "-f", f"{{{{{link}}}}}", SCHEDULER.name).strip()
    assert f"metrics at http://{address}:9101/metrics" in deployment.compose("logs", "scheduler")
    (group,) = observer.ask("rules")["groups"]
    assert {rule["health"] for rule in group["rules"]} <= {"ok", "unknown"}
    assert len(group["rules"]) > 5


def test_every_query_of_the_dashboard_has_data_under_load_and_every_panel_is_plotted(
    observer: Observer, load: Load, tmp_path: Path
) -> None:
    wait_until(lambda: load.seconds > ENOUGH_SECONDS, "the load has run for a while")
    done = observer.plot(tmp_path, load.seconds / 60)
    assert done.stderr == ""
    assert done.returncode == 0
    pictures = sorted(path.name for path in tmp_path.glob("*.png"))
    assert len(pictures) == len(read_panels()) + 1
    assert all((tmp_path / name).stat().st_size > 10_000 for name in pictures)
    print(f"pictures of the panels: {tmp_path}")
    assert observer.values("rate(nanoserve_generation_tokens_total[20s])")["scheduler"] > 10


def test_no_request_of_the_load_failed(load: Load, tmp_path: Path) -> None:
    run = load.stop(tmp_path)
    outcomes = [request.measures.outcome for request in Requests.of(run).counted]
    count, failed = outcomes.count(Outcome.OK), outcomes.count(Outcome.FAILED)
    effects.note(
        "the four, as a load of 3 requests at a time saw them",
        f"{count} requests ended well, {failed} failed",
    )
    assert failed == 0
    assert count > 20
