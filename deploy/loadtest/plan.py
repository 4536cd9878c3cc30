"""What a load run is asked to do. The same plan sends the same requests, bit for bit."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import Any

from google.protobuf import json_format

from deploy.loadtest.arrivals import Arrivals, Burst, Ramp, Replay
from deploy.loadtest.goodput import Limits
from deploy.loadtest.lengths import Fixed, Lengths
from deploy.loadtest.limits import check
from nanoserve.access import Access, access_from
from nanoserve.v1 import inference_pb2 as pb

MOST_REQUESTS = 1_000_000
ENDPOINTS = ("completions", "chat")
_DEFAULT_LENGTH = Fixed(128)


@dataclass(frozen=True, slots=True)
class Nanoserve:
    """A nanoserve scheduler: "host:port" or "unix:PATH". The token itself is no part of a plan,
    which is saved: it is in `token_file` or the environment. `body` is merged into every
    request, as protobuf's JSON of a GenerateRequest."""

    address: str
    tls_ca: str | None = None
    token_file: str | None = None
    body: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.request()

    def request(self) -> pb.GenerateRequest:
        """What `body` says. Raises ValueError."""
        try:
            return json_format.ParseDict(dict(self.body), pb.GenerateRequest())
        except json_format.ParseError as error:
            raise ValueError(f"body: {error}") from None

    def access(self) -> Access:
        """Raises ValueError."""
        return access_from(os.environ, self.address, self.tls_ca, self.token_file)


@dataclass(frozen=True, slots=True)
class OpenAI:
    """A server with OpenAI's streaming API at `url`, without /v1. `model` "" asks the
    server for its first. `body` is merged into every request."""

    url: str
    endpoint: str = "completions"
    model: str = ""
    body: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.url.startswith(("http://", "https://")):
            raise ValueError(f"url is {self.url!r}, must start with http:// or https://")
        if self.endpoint not in ENDPOINTS:
            raise ValueError(f"endpoint is {self.endpoint!r}, must be {' or '.join(ENDPOINTS)}")


Target = Nanoserve | OpenAI


@dataclass(frozen=True, slots=True)
class Content:
    """What is asked. `text` None: random token ids; else slices of that file, one word
    counting as a token. `trace`: lengths and groups are the trace's, over and over.
    `prefix` tokens, one of `prefixes` at random, come first. `turns` > 1 makes
    conversations: each turn's prompt is the one before, its answer, and the turn's own."""

    prompt: Lengths = _DEFAULT_LENGTH
    output: Lengths = _DEFAULT_LENGTH
    text: Path | None = None
    trace: Path | None = None
    prefix: int = 0
    prefixes: int = 1
    turns: int = 1

    def __post_init__(self) -> None:
        check("shared-prefix", self.prefix, 0, 10_000_000, "tokens")
        check("prefixes", self.prefixes, 1, 100_000)
        check("turns", self.turns, 1, 1000)


@dataclass(frozen=True, slots=True)
class Mixed512:
    """512 prompts of 64 to 1024 random ids with outputs of 16 to 512 tokens, always the
    same; over and over if more are asked for. Ids are taken modulo the vocabulary."""


@dataclass(frozen=True, slots=True)
class LoadPlan:
    """One run. `requests` counts measured ones, `seconds` ends the arrivals; at least
    one is needed but for a replay. Raises ValueError, naming field, value and limit."""

    target: Target
    arrivals: Arrivals
    content: Content | Mixed512 = Content()
    requests: int | None = None
    seconds: float | None = None
    seed: int = 0
    warm_up_requests: int = 0  # sent at once and awaited before the schedule starts
    warm_up_seconds: float = 0.0  # arrivals in the schedule's first seconds are not measured
    cancel_share: float = 0.0  # of requests, cancelled after a part of their output
    slow_share: float = 0.0  # of requests, whose reader waits after every message
    slow_gap: float = 0.1  # seconds that it waits
    temperature: float = 0.0
    ignore_eos: bool = True
    think: float = 0.0  # seconds from an answer to the same user's or conversation's next request
    request_timeout: float = 600.0  # seconds, of one request
    drain: float = 60.0  # seconds after the last arrival until what still runs is given up
    processes: int | None = None  # that generate; None: one per core, at most 8
    connections: int = (
        4  # of each over gRPC, in turn: one's window and lock are not to be the limit
    )
    realtime: bool = False  # they come before all else on the machine (SCHED_RR)
    sample_interval: float = 0.5  # seconds between two looks at the server's status; 0: none
    vocab_size: int | None = None  # None: as the server says; 32000 if it does not
    goodput: Limits | None = None  # what a ramp's stages must keep

    def __post_init__(self) -> None:
        for name, (low, high, unit) in _LIMITS.items():
            if (value := getattr(self, name)) is not None:
                check(name.replace("_", "-"), value, low, high, unit)
        if isinstance(self.arrivals, Burst) and self.requests is None:
            raise ValueError("a burst needs requests: how many to send at once")
        if self.requests is None and self.seconds is None and not self.is_bounded_by_arrivals:
            raise ValueError("neither requests nor seconds is given: give one to bound the run")
        self._check_seconds()
        self._check_content()

    def _check_seconds(self) -> None:
        arrivals, seconds = self.arrivals, math.inf if self.seconds is None else self.seconds
        if self.warm_up_seconds >= seconds:
            raise ValueError(
                f"warm-up-seconds is {self.warm_up_seconds:g}, must be less than seconds, "
                f"{seconds:g}: nothing would be measured"
            )
        if isinstance(arrivals, Ramp) and arrivals.stage_seconds > seconds:
            raise ValueError(
                f"seconds is {seconds:g}, must be at least stage-seconds, "
                f"{arrivals.stage_seconds:g}: there would be no stage"
            )
        if self.warm_up_seconds and isinstance(arrivals, Burst | Ramp):
            raise ValueError(
                "warm-up-seconds does not go with burst and ramp: use warm-up-requests"
            )

    def _check_content(self) -> None:
        content, target = self.content, self.target
        has_trace = isinstance(content, Content) and content.trace is not None
        if isinstance(self.arrivals, Replay) and not has_trace:
            raise ValueError("a replay needs content with a trace")
        if isinstance(target, Nanoserve):
            return
        is_text = isinstance(content, Content) and content.text is not None
        if target.endpoint == "chat" and not is_text:
            raise ValueError("endpoint chat takes text, not token ids: give text, a file")
        if target.endpoint != "chat" and isinstance(content, Content) and content.turns > 1:
            raise ValueError(
                f"turns is {content.turns}: conversations with an OpenAI server need endpoint chat"
            )

    @property
    def is_bounded_by_arrivals(self) -> bool:
        return isinstance(self.arrivals, Replay | Ramp)

    @property
    def turns(self) -> int:
        return self.content.turns if isinstance(self.content, Content) else 1

    def settings(self) -> dict[str, Any]:
        """All of it as JSON values; of what has kinds, "kind" names which."""
        values = _to_json(self)
        del values["kind"]
        return values


_LIMITS: dict[str, tuple[float, float, str]] = {
    "requests": (1, MOST_REQUESTS, ""),
    "seconds": (0.1, 86_400, "seconds"),
    "seed": (0, 2**63 - 1, ""),
    "warm_up_requests": (0, 100_000, ""),
    "warm_up_seconds": (0, 86_400, "seconds"),
    "cancel_share": (0, 1, ""),
    "slow_share": (0, 1, ""),
    "slow_gap": (0, 60, "seconds"),
    "think": (0, 3600, "seconds"),
    "temperature": (0, 100, ""),
    "request_timeout": (0.1, 86_400, "seconds"),
    "drain": (0, 86_400, "seconds"),
    "processes": (1, 256, ""),
    "connections": (1, 256, ""),
    "sample_interval": (0, 3600, "seconds"),
    "vocab_size": (1, 2**31 - 1, "ids"),
}


def _to_json(value: Any) -> Any:
    if is_dataclass(value):
        values = {item.name: _to_json(getattr(value, item.name)) for item in fields(value)}
        return {"kind": type(value).__name__, **values}
    if isinstance(value, Mapping):
        return {key: _to_json(item) for key, item in value.items()}
    return str(value) if isinstance(value, Path) else value
