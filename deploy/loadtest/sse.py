"""Server-sent events: the lines of a stream."""

from __future__ import annotations


class EventReader:
    """Takes bytes as they come, gives the data of whole events. Lines end in LF, CR LF or
    CR; comments and fields other than data are skipped (the WHATWG HTML standard, section
    9.2)."""

    def __init__(self) -> None:
        self._line = bytearray()
        self._data: list[str] = []
        self._skip_lf = False

    def feed(self, received: bytes) -> list[str]:
        """Data of the events that `received` completes."""
        if not received:
            return []
        after_cr, self._skip_lf = self._skip_lf, received.endswith(b"\r")
        if after_cr:
            received = received.removeprefix(b"\n")
        self._line += received.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        *lines, rest = self._line.split(b"\n")
        self._line = bytearray(rest)
        return [
            event
            for line in lines
            if (event := self._take(line.decode(errors="replace"))) is not None
        ]

    def _take(self, line: str) -> str | None:
        if not line:
            data, self._data = self._data, []
            return "\n".join(data) if data else None
        name, _, value = line.partition(":")
        if name == "data":
            self._data.append(value.removeprefix(" "))
        return None
