"""The worker's log, line by line."""

from __future__ import annotations

import json
import logging
import re

from worker.log import HumanFormatter, JsonFormatter, rfc_3339


def record(message: str, *arguments: object, error: BaseException | None = None) -> object:
    made = logging.LogRecord(
        "worker.kv_pool",
        logging.WARNING,
        "file.py",
        1,
        message,
        arguments,
        (type(error), error, None) if error else None,
    )
    made.created = 1_795_999_999.9996
    return made


def test_times_are_utc_with_milliseconds_as_rfc_3339_has_them() -> None:
    assert rfc_3339(0) == "1970-01-01T00:00:00.000Z"
    assert rfc_3339(1_795_996_799.25) == "2026-11-29T23:59:59.250Z"


def test_a_line_for_people_has_time_level_logger_and_message() -> None:
    line = HumanFormatter().format(record("%d blocks", 40))  # type: ignore[arg-type]
    assert line == "2026-11-30T00:53:19.999Z WARNING worker.kv_pool: 40 blocks"


def test_a_line_for_programs_is_one_object_whatever_the_message_holds() -> None:
    line = JsonFormatter().format(record('a "quote"\nand a line, %s', "\u00fc"))  # type: ignore[arg-type]
    assert "\n" not in line
    assert json.loads(line) == {
        "time": "2026-11-30T00:53:19.999Z",
        "level": "warning",
        "logger": "worker.kv_pool",
        "message": 'a "quote"\nand a line, \u00fc',
    }


def test_an_exception_is_a_field_of_the_line() -> None:
    line = JsonFormatter().format(record("fatal", error=ValueError("bad")))  # type: ignore[arg-type]
    assert json.loads(line)["exception"] == "ValueError: bad"
    assert re.fullmatch(r"[^\n]+", line)
