"""Show what the server serves and how loaded it is.

Exit status 0 if the server is ready, 1 if it is not or does not answer.
"""

from __future__ import annotations

import argparse
import dataclasses
import json

from nanoserve.cli.connection import connect
from nanoserve.cli.figures import duration, share
from nanoserve.cli.row_lines import row_lines
from nanoserve.status import ServerStatus


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print the fields as JSON")
    parser.add_argument(
        "--rows", action="store_true", help="the running requests too, and how far each is"
    )


def run(args: argparse.Namespace) -> int:
    with connect(args) as client:
        status = client.status(rows=args.rows)
    if args.json:
        print(json.dumps(dataclasses.asdict(status), indent=2))
    else:
        print(table(args.access.address, status))
        if args.rows:
            print("", *_rows(status), sep="\n")
    return 0 if status.ready else 1


def table(address: str, status: ServerStatus) -> str:
    """The status as lines of name and value."""
    rows = [
        ("server", address),
        ("ready", "yes" if status.ready else f"no: {status.reason}"),
        ("up", duration(status.uptime_seconds)),
        ("model", status.model or "unnamed"),
        ("worker", _worker(status)),
    ]
    if status.worker_incarnation:
        rows += [
            ("context", f"{status.max_model_len:,} tokens"),
            ("vocabulary", f"{status.vocab_size:,} tokens"),
            ("K/V pool", _pool(status)),
        ]
    if status.prefix_queries:
        rows.append(("prefix cache", _prefixes(status)))
    rows += [
        ("requests", _requests(status)),
        ("steps", f"{status.steps:,} answered, {status.steps_in_flight} in flight"),
        ("tokens", _tokens(status)),
        ("preemptions", f"{status.preemptions:,}"),
    ]
    width = max(len(name) for name, _ in rows)
    return "\n".join(f"{name:<{width}}  {value}" for name, value in rows)


def _rows(status: ServerStatus) -> list[str]:
    return [status.missing_reason] if status.missing_reason else row_lines(status.rows)


def _worker(status: ServerStatus) -> str:
    if not status.worker_incarnation:
        return "none yet"
    return f"{status.worker_device}, incarnation {status.worker_incarnation:016x}"


def _pool(status: ServerStatus) -> str:
    tokens = status.usable_blocks * status.block_size
    return (
        f"{status.free_blocks:,} of {status.usable_blocks:,} blocks free, "
        f"{status.block_size} tokens each ({tokens:,} tokens in all)"
    )


def _prefixes(status: ServerStatus) -> str:
    return (
        f"{status.prefix_hits:,} of {status.prefix_queries:,} prompt tokens found "
        f"({share(status.prefix_hits, status.prefix_queries)}), {status.cached_blocks:,} of the "
        "free blocks kept"
    )


def _requests(status: ServerStatus) -> str:
    room = f" (at most {status.max_rows:,})" if status.max_rows else ""
    return f"{status.running_requests:,} running{room}, {status.waiting_requests:,} waiting"


def _tokens(status: ServerStatus) -> str:
    return (
        f"{status.prompt_tokens:,} prompt, {status.output_tokens:,} output, "
        f"{status.discarded_tokens:,} discarded"
    )
