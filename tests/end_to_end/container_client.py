"""A client as a process of its own, which may run in another network namespace: prints a line
with the ids of each chunk, and ends with 1 and the error's code if the call fails."""

from __future__ import annotations

import json
import os
import sys

from nanoserve import Client, NanoserveError
from nanoserve.access import access_from


def main(prompt: str, count: str) -> int:
    access = access_from(os.environ)
    try:
        with Client(access.address, tls_ca=access.tls_ca, token=access.token) as client:
            stream = client.generate(
                token_ids=json.loads(prompt), max_tokens=int(count), temperature=0, timeout=90
            )
            for chunk in stream:
                print(json.dumps(list(chunk.token_ids)), flush=True)
    except NanoserveError as error:
        print(error.code.name, error.message, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
