"""Compiles the protos to Python; run by `make protos` and by the package's build.

The stubs are made by the oldest grpcio-tools supported (pinned in pyproject.toml), since
generated code works with its own and newer releases of grpcio and protobuf only.
"""

from __future__ import annotations

import sys
from pathlib import Path

PROTOS = Path(__file__).resolve().parent


def generate() -> None:
    """Writes *_pb2.py, *_pb2.pyi and *_pb2_grpc.py beside each proto.

    Raises SystemExit if grpcio-tools is missing or a proto does not compile.
    """
    try:
        from grpc_tools import protoc
    except ImportError:
        sys.exit("the stubs are made by grpcio-tools: run `make install`")
    # Errors name files as a person types them.
    files = sorted(str(path.relative_to(PROTOS)) for path in PROTOS.glob("nanoserve/*/*.proto"))
    include = Path(protoc.__file__).parent / "_proto"
    outputs = [f"--{kind}_out={PROTOS}" for kind in ("python", "pyi", "grpc_python")]
    if protoc.main(["protoc", f"-I{PROTOS}", f"-I{include}", *outputs, *files]) != 0:
        sys.exit("the protos do not compile")


if __name__ == "__main__":
    generate()
