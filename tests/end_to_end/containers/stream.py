"""Calls to the deployment, each in a process of its own on the deployment's host."""

from __future__ import annotations

import json
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

from tests.end_to_end.containers.deployment import ADDRESS
from tests.end_to_end.containers.engine import ROOT, SCRIPT, environment

PROMPT = [3, 1, 4, 1, 5]
# Sampled, since greedy tokens of random weights run in circles, in which a slip is not seen.
SAMPLED = {"token_ids": PROMPT, "temperature": 1.0, "seed": 11, "ignore_eos": True}
PROCESS = Path(__file__).with_name("client_process.py")


class Stream:
    """`secrets`: the folder with ca.pem and token; None: the client knows neither."""

    def __init__(
        self, secrets: Path | None, count: int, token: bool = True, **options: object
    ) -> None:
        variables = {"NANOSERVE_ADDRESS": ADDRESS, "PYTHONPATH": f"{ROOT}/protos"}
        if secrets:
            variables["NANOSERVE_TLS_CA"] = str(secrets / "ca.pem")
            if token:
                variables["NANOSERVE_TOKEN_FILE"] = str(secrets / "token")
        given = json.dumps({**SAMPLED, "max_tokens": count, **options})
        self._process = subprocess.Popen(
            ["bash", str(SCRIPT), "in", sys.executable, str(PROCESS), given],
            env={**environment(), **variables},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        self._out, self._errors = self._process.stdout, self._process.stderr
        self._times: list[float] = []
        self._ids: list[int] = []

    def _read_line(self) -> bool:
        """False at the end of the output."""
        line = self._out.readline()
        if line:
            time, ids = json.loads(line)
            self._times.append(time)
            self._ids += ids
        return bool(line)

    def read(self, count: int) -> None:
        """Returns once `count` ids have come."""
        while len(self._ids) < count:
            assert self._read_line(), self.error()

    @property
    def is_open(self) -> bool:
        return self._process.poll() is None

    def ended(self) -> int:
        """The exit status, once the call has ended in some way."""
        while self._read_line():
            pass
        return self._process.wait(timeout=30)

    def rest(self) -> list[int]:
        """All ids, once the call has ended well."""
        status = self.ended()
        assert status == 0, self._errors.read()
        return self._ids

    def error(self) -> str:
        """What it says of a call that fails."""
        status = self.ended()
        error = self._errors.read()
        assert status == 1, error
        return error

    @property
    def longest_gap(self) -> float:
        """Seconds between two chunks."""
        return max(after - before for before, after in pairwise(self._times))
