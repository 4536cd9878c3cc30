"""What ends a start, to be told to whoever started us."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from scheduler.api.address import AddressError
from scheduler.api.model_folder import ModelFolderError


class StartError(Exception):
    """The scheduler cannot start; the message says why and what to do."""


@contextmanager
def start_errors() -> Iterator[None]:
    """What is wrong with the flags' values and what they name, as StartError."""
    try:
        yield
    except (AddressError, ModelFolderError, ValueError) as error:
        raise StartError(str(error)) from error
