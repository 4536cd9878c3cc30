"""Who may reach the clients' port: what must be given beyond this machine."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from typing import Self

from nanoserve.reloaded import all_or_none
from scheduler.api.address import check_address


@dataclass(frozen=True)
class Protection:
    """Files: the server's certificate and key, and the hashes of the tokens that let clients in.
    `insecure`: whoever runs it has said that it may do without. Raises FileError."""

    tls_cert: str | None = None
    tls_key: str | None = None
    token_hashes: str | None = None
    insecure: bool = False

    def __post_init__(self) -> None:
        self.is_encrypted  # noqa: B018  (raises for one without the other)

    @classmethod
    def of(cls, flags: argparse.Namespace) -> Self:
        return cls(flags.tls_cert, flags.tls_key, flags.token_hashes, flags.insecure)

    @property
    def is_encrypted(self) -> bool:
        return all_or_none(("--tls-cert", self.tls_cert), ("--tls-key", self.tls_key))

    def check(self, listen: str) -> None:
        """Raises AddressError if clients of other machines could come unasked or be overheard."""
        missing = [] if self.is_encrypted else ["--tls-cert", "--tls-key"]
        if not self.token_hashes:
            missing.append("--token-hashes")
        unprotected = ""
        if missing and not self.insecure:
            names = " and ".join(filter(None, (", ".join(missing[:-1]), missing[-1])))
            unprotected = (
                f"without {names}: give them (python -m deploy.secrets init "
                "makes the files), use 127.0.0.1, or say --insecure"
            )
        check_address("--listen", listen, unprotected)
