"""The file of a recording: RecordingEntry messages of worker.proto, each after its length."""

from __future__ import annotations

import io
import mmap
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import cast

from google.protobuf import proto
from google.protobuf.message import DecodeError

from nanoserve.v1 import worker_pb2
from worker.geometry import Geometry

FORMAT = "nanoserve recording"
VERSION = 1

Entry = worker_pb2.RecordingEntry

# Ends of a worker that a step was the cause of, and what to call them.
FATAL_ENDS = {
    worker_pb2.RECORDING_END_REASON_CRASHED: "crashed",
    worker_pb2.RECORDING_END_REASON_HUNG: "hung",
}


class RecordingError(Exception):
    """A file that cannot be replayed, in words for the person who has it."""


def start_entry(geometry: Geometry, arguments: Sequence[str], *, zeroed: bool = False) -> Entry:
    return Entry(
        start=worker_pb2.RecordingStart(
            format=FORMAT,
            version=VERSION,
            worker=geometry.description(),
            arguments=arguments,
            token_ids_zeroed=zeroed,
        )
    )


def incarnation_entry(incarnation: int, last_step: int = 0) -> Entry:
    return Entry(
        incarnation=worker_pb2.RecordedIncarnation(incarnation=incarnation, last_step=last_step)
    )


class RecordingFile:
    """A file for its owner only (mode 0600). Raises OSError, FileExistsError for one that is
    there: a recording never takes the place of another."""

    def __init__(self, path: Path) -> None:
        self.path = path
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        self._file = os.fdopen(os.open(path, flags, 0o600), "wb", buffering=0)
        self.size = 0

    def write(self, entries: Iterable[Entry]) -> None:
        """All of them are with the system once this returns."""
        data = io.BytesIO()
        for entry in entries:
            proto.serialize_length_prefixed(entry, data)
        left = data.getbuffer()
        while left:
            written = self._file.write(left) or 0
            self.size += written
            left = left[written:]

    def close(self) -> None:
        self._file.close()


class RecordingReader:
    """Opens a recording; iterate once over what comes after its start. Raises OSError, and
    RecordingError for what is no recording.

    A file that was cut off ends with its last whole message; `cut_off` tells, after the
    iteration, how far that was, and is empty for a file that is whole.
    """

    def __init__(self, path: Path) -> None:
        self.cut_off = ""
        with path.open("rb") as file:
            try:
                self._data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            except ValueError as error:
                raise RecordingError(f"{path} is empty") from error
        try:
            first = self._next()
        except _DAMAGED:
            first = None
        if first is None or first.start.format != FORMAT:
            raise RecordingError(f"{path} is no recording of a worker")
        if first.start.version != VERSION:
            raise RecordingError(
                f"{path} has version {first.start.version} of the format, this worker reads "
                f"{VERSION}: replay it with the release that wrote it"
            )
        self.start = first.start

    def __iter__(self) -> Iterator[Entry]:
        while not self.cut_off:
            begins = self._data.tell()
            try:
                entry = self._next()
            except _DAMAGED:
                entry = Entry()
            if entry is None:
                return
            if entry.WhichOneof("entry") in (None, "start"):
                self.cut_off = (
                    f"the file is cut off or damaged after {begins} of {len(self._data)} bytes"
                )
                return
            yield entry

    def _next(self) -> Entry | None:
        """A mapped file never reads past its end, whatever length the file claims."""
        return proto.parse_length_prefixed(Entry, cast(io.BytesIO, self._data))


_DAMAGED = (DecodeError, EOFError, OverflowError, ValueError)
