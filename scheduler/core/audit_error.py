"""What an audit that finds something raises."""

from __future__ import annotations

from typing import NoReturn


class AuditError(Exception):
    """An invariant is broken; the message names the rule and who breaks it."""


def fail(rule: str, detail: str) -> NoReturn:
    raise AuditError(f"{rule}: {detail}")
