"""`python -m deploy.secrets`: what a deployment needs to listen safely.

init DIR makes a CA, certificates and a token; run again it does nothing where all is there.
token NAME prints a token, once, and adds its hash to the scheduler's file; a server that runs
takes both up by itself. To take a token back, remove its line.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from deploy.secrets.folder import RENEW_DAYS, SecretsFolder
from deploy.secrets.tokens import add_token

_EXIT_FAILED = 1


def main(arguments: list[str] | None = None) -> int:
    args = _parser().parse_args(arguments)
    try:
        if args.command == "token":
            print(add_token(args.hashes, args.name, replace=args.replace))
        else:
            _init(args)
    except (OSError, ValueError) as error:
        print(f"deploy.secrets: {error}", file=sys.stderr)
        return _EXIT_FAILED
    return 0


def _init(args: argparse.Namespace) -> None:
    folder = SecretsFolder(args.dir, lambda line: print(f"{args.dir}: {line}", file=sys.stderr))
    folder.make(args.host, args.worker_host, renew=args.renew)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m deploy.secrets",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND", dest="command")
    init = commands.add_parser("init", help="make the folder of secrets, or what it lacks")
    init.add_argument("dir", type=Path, metavar="DIR")
    hosts = "may be given several times; localhost, 127.0.0.1 and ::1 are always in"
    init.add_argument(
        "--host",
        action="append",
        default=[],
        help=f"a name or IP address that clients dial; {hosts}",
    )
    init.add_argument(
        "--worker-host",
        action="append",
        default=[],
        metavar="HOST",
        help=f"a name or IP address that the scheduler dials; {hosts}",
    )
    init.add_argument(
        "--renew",
        action="store_true",
        help=f"make anew what ends within {RENEW_DAYS:g} days, too",
    )
    token = commands.add_parser("token", help="make a token and print it")
    token.add_argument("name", metavar="NAME", help="whose it is; in the file only")
    token.add_argument("--hashes", type=Path, required=True, metavar="FILE")
    token.add_argument(
        "--replace", action="store_true", help="NAME has one, which shall be good no more"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
