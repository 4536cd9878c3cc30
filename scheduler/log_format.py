"""How the scheduler's log looks: a line for people, or a JSON object a line.

A record may carry a dict of values as `fields` (logging's `extra`).
"""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime

FORMATS = ("human", "json")


def start_logging(level: str, form: str) -> None:
    """On stderr. `level` in lower case, `form` one of FORMATS."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if form == "json" else HumanFormatter())
    logging.basicConfig(level=level.upper(), handlers=[handler])


def timestamp(record: logging.LogRecord) -> str:
    """RFC 3339, UTC, milliseconds."""
    moment = datetime.fromtimestamp(record.created, UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


class HumanFormatter(logging.Formatter):
    """`TIME LEVEL LOGGER: message name=value ...`; a value with anything but printable ASCII
    without spaces is written as JSON."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s")

    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:  # noqa: ARG002
        return timestamp(record)

    def formatMessage(self, record: logging.LogRecord) -> str:
        line = super().formatMessage(record)
        values: dict[str, object] = getattr(record, "fields", {})
        return " ".join([line, *(f"{name}={_shown(value)}" for name, value in values.items())])


class JsonFormatter(logging.Formatter):
    """One object a line, in ASCII, with `time`, `level`, `logger` and `message`."""

    def format(self, record: logging.LogRecord) -> str:
        values = {
            "time": timestamp(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            values["exception"] = self.formatException(record.exc_info)
        return json.dumps(values, default=str)


def _shown(value: object) -> str:
    if isinstance(value, str):
        plain = value and all("!" <= character <= "~" for character in value)
        return value if plain and '"' not in value else json.dumps(value)
    return json.dumps(value)
