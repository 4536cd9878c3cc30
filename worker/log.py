"""The log: one record per line on stderr, for people or for programs."""

from __future__ import annotations

import json
import logging
import sys
import threading
from datetime import UTC, datetime

log = logging.getLogger("worker")


def start_logging(level: str, style: str = "human") -> None:
    """`style` is "human" or "json". Warnings and what ends a thread go to the log too."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if style == "json" else HumanFormatter())
    logging.basicConfig(level=level.upper(), handlers=[handler])
    logging.captureWarnings(True)
    threading.excepthook = lambda args: log.error(
        "thread %s failed", args.thread.name if args.thread else "?", exc_info=args.exc_value
    )


def rfc_3339(seconds: float) -> str:
    """Seconds since the Unix epoch as a time in UTC, with milliseconds."""
    time = datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")
    return time.replace("+00:00", "Z")


class HumanFormatter(logging.Formatter):
    """Time, level, logger and message; a traceback on further lines."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s")

    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:
        del datefmt
        return rfc_3339(record.created)


class JsonFormatter(logging.Formatter):
    """An object with time, level, logger and message, and exception if there is one."""

    def format(self, record: logging.LogRecord) -> str:
        fields = {
            "time": rfc_3339(record.created),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            fields["exception"] = self.formatException(record.exc_info)
        return json.dumps(fields)
