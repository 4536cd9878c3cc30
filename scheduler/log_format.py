"""How the scheduler's log looks: a line for people, or a JSON object a line.

A record may carry a dict of values as `fields` (logging's `extra`).
"""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime

from scheduler.log_writer import BackgroundHandler

FORMATS = ("human", "json")


def start_logging(level: str, form: str, front_end: int | None = None) -> None:
    """On stderr. `level` in lower case, `form` one of FORMATS. `front_end`: the number of the
    front end whose process this is, for each line to tell."""
    handler = BackgroundHandler(sys.stderr)
    formatter = JsonFormatter if form == "json" else HumanFormatter
    handler.setFormatter(formatter(front_end))
    logging.basicConfig(level=level.upper(), handlers=[handler])


def timestamp(record: logging.LogRecord) -> str:
    """RFC 3339, UTC, milliseconds."""
    moment = datetime.fromtimestamp(record.created, UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


class HumanFormatter(logging.Formatter):
    """`TIME LEVEL [front-end-N] LOGGER: message name=value ...`; a value with anything but
    printable ASCII without spaces is written as JSON."""

    def __init__(self, front_end: int | None = None) -> None:
        part = "" if front_end is None else f"front-end-{front_end} "
        super().__init__(f"%(asctime)s %(levelname)s {part}%(name)s: %(message)s")

    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:  # noqa: ARG002
        return timestamp(record)

    def formatMessage(self, record: logging.LogRecord) -> str:
        line = super().formatMessage(record)
        values: dict[str, object] = getattr(record, "fields", {})
        return " ".join([line, *(f"{name}={_shown(value)}" for name, value in values.items())])


class JsonFormatter(logging.Formatter):
    """One object a line, in ASCII, with `time`, `level`, `logger` and `message`, and in the
    process of a front end its number as `front_end`."""

    def __init__(self, front_end: int | None = None) -> None:
        super().__init__()
        self._part = {} if front_end is None else {"front_end": front_end}

    def format(self, record: logging.LogRecord) -> str:
        values = {
            "time": timestamp(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            **self._part,
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
