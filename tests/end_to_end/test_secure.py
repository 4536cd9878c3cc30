"""A deployment as `python -m deploy.secrets init` makes it: TLS, tokens and mutual TLS, with
front ends in processes of their own."""

from __future__ import annotations

import re
import ssl
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from deploy.local.child import Child
from deploy.local.stop_signals import Unasked
from deploy.secrets.__main__ import main as secrets
from nanoserve import Client, NanoserveError, UnauthenticatedError
from tests.end_to_end.servers import start
from tests.protos.command import nanoserve
from tests.waiting import SECONDS, wait_for


@dataclass
class Deployment:
    root: Path
    worker: Child
    scheduler: Child
    address: str
    metrics: str

    @property
    def ca(self) -> Path:
        return self.root / "client/ca.pem"

    @property
    def token(self) -> str:
        return (self.root / "client/token").read_text().strip()

    def client(self) -> Client:
        return Client(self.address, tls_ca=self.ca, token=self.token)

    def is_ready(self) -> bool:
        try:
            with self.client() as client:
                return client.status().ready
        except NanoserveError:
            return False

    def logs(self) -> str:
        return "\n".join([*self.worker.lines, *self.scheduler.lines])


def tls(root: Path, name: str, prefix: str = "") -> list[str]:
    return [f"--{prefix}tls-cert={root}/{name}.pem", f"--{prefix}tls-key={root}/{name}-key.pem"]


def line_of(child: Child, pattern: str) -> str:
    def found() -> re.Match[str] | None:
        return next(filter(None, (re.search(pattern, line) for line in child.lines)), None)

    wait_for(lambda: found() is not None, f"{pattern} was logged: {child.lines}")
    return found()[1]


@contextmanager
def deployed(root: Path, *flags: str) -> Iterator[Deployment]:
    assert secrets(["init", str(root)]) == 0
    children: list[Child] = []
    try:
        own = [*tls(root / "worker", "tls"), f"--tls-client-ca={root}/worker/ca.pem"]
        off = "--metrics-listen=off"
        children.append(
            start("worker", "--simulate", "--listen=127.0.0.1:0", "--step-ms=20", off, *own)
        )
        worker_address = line_of(children[0], r"listening on (\S+)")
        link = [*tls(root / "scheduler", "worker-tls", "worker-"), f"--worker={worker_address}"]
        link.append(f"--worker-tls-ca={root}/scheduler/ca.pem")
        public = [*tls(root / "scheduler", "tls"), "--listen=127.0.0.1:0"]
        public.append(f"--token-hashes={root}/scheduler/token-hashes")
        more = ["--no-tokenizer", "--metrics-listen=127.0.0.1:0", *flags]
        children.append(start("scheduler", *public, *link, *more))
        address = line_of(children[1], r"listening on (\S+)")
        metrics = line_of(children[1], r"metrics at (\S+)")
        deployment = Deployment(root, children[0], children[1], address, metrics)
        wait_for(deployment.is_ready, f"it is ready: {deployment.logs()}")
        yield deployment
    finally:
        statuses = [child.stop(SECONDS, Unasked().asked_twice) for child in reversed(children)]
    assert statuses == [0] * len(statuses)


@pytest.mark.parametrize("front_ends", ["0", "2"])
def test_it_serves_who_has_ca_and_token_and_takes_new_secrets_while_it_runs(
    tmp_path: Path, front_ends: str
) -> None:
    with deployed(tmp_path / "secrets", f"--frontends={front_ends}") as it:
        with it.client() as client:
            assert len(client.generate(token_ids=[1], max_tokens=5).collect().token_ids) == 5
        with Client(it.address, tls_ca=it.ca) as stranger, pytest.raises(UnauthenticatedError):
            stranger.status()
        wait_for(lambda: "unauthenticated_calls_total 1.0" in scraped(it), "it was counted")

        host, _, port = it.address.rpartition(":")
        old_token, before = it.token, ssl.get_server_certificate((host, int(port)))
        with it.client() as client, client.generate(token_ids=[1], max_tokens=2000) as stream:
            next(stream)
            for name in ("scheduler/tls.pem", "scheduler/token-hashes", "client/token"):
                (it.root / name).unlink()
            assert secrets(["init", str(it.root)]) == 0
            # Whichever front end accepts: each reads its files itself.
            for _ in range(4):
                assert ssl.get_server_certificate((host, int(port))) != before
            assert len(next(stream).token_ids) > 0
            with pytest.raises(UnauthenticatedError):
                client.status()
        assert it.token != old_token
        assert it.is_ready()
        for secret in (old_token, it.token):
            assert secret not in it.logs()


def test_the_command_works_by_its_environment_alone(tmp_path: Path) -> None:
    with deployed(tmp_path / "secrets") as it:
        environment = {
            "NANOSERVE_ADDRESS": it.address,
            "NANOSERVE_TLS_CA": str(it.ca),
            "NANOSERVE_TOKEN_FILE": str(it.root / "client/token"),
        }
        done = nanoserve("status", **environment)
        assert (done.returncode, done.stderr) == (0, "")
        assert re.search(r"ready +yes", done.stdout)
        without = nanoserve("status", **(environment | {"NANOSERVE_TOKEN_FILE": ""}))
        assert (without.returncode, without.stdout, without.stderr) == (
            1,
            "",
            "nanoserve: UNAUTHENTICATED: no token: send the metadata 'authorization: Bearer TOKEN' "
            "(nanoserve: --token-file or NANOSERVE_TOKEN)\n",
        )


def scraped(it: Deployment) -> str:
    with urllib.request.urlopen(it.metrics, timeout=SECONDS) as answer:
        return answer.read().decode()
