"""`python -m deploy.model.fetch`: prints the folder of the asked model, getting it first if needed.

Only the path goes to stdout; progress and errors go to stderr.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
from pathlib import Path

from deploy.model.cache import FetchError, cache_folder
from deploy.model.hub import fetch_from_hub
from deploy.model.smollm2 import fetch_smollm2

DEFAULT = "default"
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")


def fetch(model: str = DEFAULT) -> Path:
    """Folder of `model`: "default", a local Hugging Face folder, or a hub id (owner/name).

    Raises FetchError saying what is wrong and what to do.
    """
    if model == DEFAULT:
        return fetch_smollm2(cache_folder())
    folder = Path(model).expanduser()
    if folder.is_dir():
        if not (folder / "config.json").is_file():
            raise FetchError(
                f"model folder {model} has no config.json: give a Hugging Face model folder"
            )
        return folder.resolve()
    if _HUB_ID.fullmatch(model):
        return fetch_from_hub(model)
    raise FetchError(
        f"model {model!r} is neither a folder nor a hub id: "
        f"give {DEFAULT!r}, the path of a folder with config.json, or owner/name"
    )


def link_to(folder: Path, link: Path) -> None:
    """Makes `link` lead to `folder`, in one step; relative, so that a volume may be mounted
    elsewhere. Raises FetchError if something other than a link is there."""
    if link.exists() and not link.is_symlink():
        raise FetchError(f"--link {link}: is there and is no link: give another path")
    link.parent.mkdir(parents=True, exist_ok=True)
    beside = link.with_name(f".{link.name}-{os.getpid()}")
    beside.symlink_to(os.path.relpath(folder, link.parent.resolve()))
    beside.replace(link)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m deploy.model.fetch", description=__doc__)
    parser.add_argument(
        "--model",
        default=DEFAULT,
        help="'default' (SmolLM2-135M-Instruct), a local folder, or a hub id; default: %(default)s",
    )
    parser.add_argument(
        "--link", type=Path, metavar="PATH", help="a link to make, or to lead to this folder"
    )
    given = parser.parse_args(arguments)
    try:
        folder = fetch(given.model)
        if given.link:
            link_to(folder, given.link)
    except (FetchError, OSError) as error:
        print(f"fetch: {error}", file=sys.stderr)
        return 1
    print(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
