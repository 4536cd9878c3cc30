"""A client as a process of its own, which may run in another network namespace: prints a line
for each chunk, with the time (seconds, monotonic) and its ids, and ends with 1 and the error's
code if the call fails. The argument: the options of Client.generate, as JSON."""

from __future__ import annotations

import json
import os
import sys
import time

from nanoserve import Client, NanoserveError
from nanoserve.access import access_from


def main(options: str) -> int:
    access = access_from(os.environ)
    try:
        with Client(access.address, tls_ca=access.tls_ca, token=access.token) as client:
            for chunk in client.generate(timeout=120, **json.loads(options)):
                print(json.dumps([time.monotonic(), list(chunk.token_ids)]), flush=True)
    except NanoserveError as error:
        print(error.code.name, error.message, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
