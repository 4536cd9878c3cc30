"""The flags that say which server to talk to, and how; shared by all commands."""

from __future__ import annotations

import argparse
import os

from nanoserve.access import Access, access_from
from nanoserve.channel import DEFAULT_ADDRESS
from nanoserve.client import Client


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--address",
        help="the server, HOST:PORT or unix:PATH "
        f"(default: $NANOSERVE_ADDRESS, else {DEFAULT_ADDRESS})",
    )
    parser.add_argument(
        "--tls-ca",
        metavar="FILE",
        help="encrypt, and trust servers whose certificate is signed by the CA in this PEM file; "
        "system: by a public one (default: $NANOSERVE_TLS_CA, else no encryption)",
    )
    # No --token: every user of the machine can read a command line.
    parser.add_argument(
        "--token-file",
        metavar="FILE",
        help="holds the token that the server wants "
        "(default: $NANOSERVE_TOKEN, else the file $NANOSERVE_TOKEN_FILE, else no token)",
    )


def access(args: argparse.Namespace) -> Access:
    """Raises ValueError."""
    return access_from(os.environ, args.address, args.tls_ca, args.token_file)


def connect(args: argparse.Namespace) -> Client:
    """To the server of `args.access`."""
    return client_of(args.access)


def client_of(access: Access) -> Client:
    return Client(access.address, tls_ca=access.tls_ca, token=access.token)
