"""From the flags of `run` to a plan."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from typing import Any

from deploy.loadtest.arrivals import Arrivals, Burst, Closed, Open, Ramp, Replay
from deploy.loadtest.flags import DEFAULT_SECONDS, add_run_arguments
from deploy.loadtest.goodput import Limits
from deploy.loadtest.lengths import parse_lengths
from deploy.loadtest.plan import Content, LoadPlan, Mixed512, Nanoserve, OpenAI


def plan_from(args: argparse.Namespace) -> LoadPlan:
    """Raises ValueError, naming the flag."""
    _refuse_idle_flags(args)
    requests, seconds = args.requests, args.seconds
    if args.burst and args.workload and requests is None:
        requests = 512
    if requests is None and seconds is None and (args.rate or args.concurrency):
        seconds = DEFAULT_SECONDS
    return LoadPlan(
        target=_target(args),
        arrivals=_arrivals(args),
        content=_content(args),
        requests=requests,
        seconds=seconds,
        seed=args.seed,
        warm_up_requests=args.warm_up_requests,
        warm_up_seconds=args.warm_up_seconds,
        cancel_share=args.cancel,
        slow_share=args.slow_readers,
        slow_gap=args.slow_gap,
        temperature=args.temperature,
        ignore_eos=not args.stop_at_eos,
        think=args.think,
        request_timeout=args.request_timeout,
        drain=args.drain,
        processes=args.processes,
        realtime=args.realtime,
        sample_interval=args.sample_interval,
        vocab_size=args.vocab_size,
        goodput=Limits.parse(args.goodput) if args.goodput else None,
    )


def _refuse_idle_flags(args: argparse.Namespace) -> None:
    """Raises ValueError for a flag that would change nothing."""
    plain = argparse.ArgumentParser()
    add_run_arguments(plain)
    for names, is_of_use, company in _ONLY:
        for name in names:
            if getattr(args, name) != plain.get_default(name) and not is_of_use(args):
                raise ValueError(f"--{name.replace('_', '-')} goes only {company}")


# Flags, when they are of use, and that in words.
_ONLY: tuple[tuple[tuple[str, ...], Callable[[argparse.Namespace], bool], str], ...] = (
    (("ramp_factor", "stage_seconds", "bisections"), lambda a: a.ramp is not None, "with --ramp"),
    (("speed",), lambda a: a.replay, "with --replay"),
    (("cv",), lambda a: (a.rate or a.ramp) is not None, "with --rate and --ramp"),
    (("think",), lambda a: a.concurrency or a.turns > 1, "with --concurrency and --turns"),
    (("slow_gap",), lambda a: a.slow_readers > 0, "with --slow-readers"),
    (("prefixes",), lambda a: a.shared_prefix > 0, "with --shared-prefix"),
    (("endpoint", "model"), lambda a: "://" in a.target, "with an http:// target"),
    (("tls_ca", "token_file"), lambda a: "://" not in a.target, "with a nanoserve target"),
    (("prompt_len", "output_len"), lambda a: a.trace is None, "without --trace"),
    (
        ("prompt_len", "output_len", "text", "trace", "shared_prefix", "turns"),
        lambda a: a.workload is None,
        "without --workload",
    ),
)


def _target(args: argparse.Namespace) -> Nanoserve | OpenAI:
    body = _body(args)
    if not args.target.startswith(("http://", "https://")):
        target = Nanoserve(args.target, args.tls_ca, args.token_file, body)
        target.access()
        return target
    return OpenAI(args.target, args.endpoint, args.model, body)


def _body(args: argparse.Namespace) -> dict[str, Any]:
    try:
        body = json.loads(args.body)
    except ValueError as error:
        raise ValueError(f"--body is {args.body!r}: {error}") from None
    if not isinstance(body, dict):
        raise ValueError(f"--body is {args.body!r}, must be a JSON object")
    return body


def _arrivals(args: argparse.Namespace) -> Arrivals:
    if args.rate is not None:
        return Open(args.rate, args.cv)
    if args.concurrency is not None:
        return Closed(args.concurrency)
    if args.ramp is not None:
        return Ramp(args.ramp, args.ramp_factor, args.stage_seconds, args.cv, args.bisections)
    return Burst() if args.burst else Replay(args.speed)


def _content(args: argparse.Namespace) -> Content | Mixed512:
    if args.workload:
        return Mixed512()
    return Content(
        prompt=_lengths("--prompt-len", args.prompt_len),
        output=_lengths("--output-len", args.output_len),
        text=args.text,
        trace=args.trace,
        prefix=args.shared_prefix,
        prefixes=args.prefixes,
        turns=args.turns,
    )


def _lengths(flag: str, text: str) -> Any:
    try:
        return parse_lengths(text)
    except ValueError as error:
        raise ValueError(f"{flag} {error}") from None
