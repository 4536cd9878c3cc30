"""What all front ends together have counted."""

from __future__ import annotations

import dataclasses

from scheduler.core.front_end import CallTotals, FailureKind


class SummedTotals:
    """The last report of each front end, those that have died included."""

    def __init__(self) -> None:
        self._living: dict[int, CallTotals] = {}
        self._dead = CallTotals()

    def report(self, number: int, totals: CallTotals) -> None:
        """Takes the place of what front end `number` reported before."""
        self._living[number] = totals

    def leave(self, number: int, unfinished: int) -> None:
        """Front end `number` will report no more. `unfinished` calls ended with it: to their
        clients the server was unavailable."""
        add(self._dead, self._living.pop(number, CallTotals()))
        if unfinished:
            add(self._dead, CallTotals(outcomes={FailureKind.UNAVAILABLE.value: unfinished}))

    def sum(self) -> CallTotals:
        """A fresh object."""
        result = CallTotals()
        for totals in (self._dead, *self._living.values()):
            add(result, totals)
        return result


def add(to: CallTotals, totals: CallTotals) -> None:
    """Every count of `totals` onto that of `to`, whatever counts there are."""
    for field in dataclasses.fields(CallTotals):
        value = getattr(totals, field.name)
        if isinstance(value, dict):
            counts = getattr(to, field.name)
            for name, count in value.items():
                counts[name] = counts.get(name, 0) + count
        else:
            setattr(to, field.name, getattr(to, field.name) + value)
