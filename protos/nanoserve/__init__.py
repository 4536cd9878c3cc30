"""nanoserve: the client of a Llama inference server, and the contract that it speaks.

    from nanoserve import Client

    with Client("127.0.0.1:50051") as client:
        for chunk in client.generate("The capital of France is", max_tokens=16):
            print(chunk.text, end="", flush=True)

`nanoserve.v1` holds the code generated from the protos.
"""

from nanoserve.async_client import AsyncClient, AsyncGeneration
from nanoserve.client import Client, Generation
from nanoserve.errors import (
    CancelledError,
    DeadlineExceededError,
    DuplicateRequestError,
    FieldViolation,
    InvalidRequestError,
    NanoserveError,
    OverloadedError,
    ServerError,
    UnavailableError,
)
from nanoserve.output import Chunk, Completion, FinishReason, Usage
from nanoserve.request import GenerateOptions, Message
from nanoserve.status import ServerStatus

__all__ = [
    "AsyncClient",
    "AsyncGeneration",
    "CancelledError",
    "Chunk",
    "Client",
    "Completion",
    "DeadlineExceededError",
    "DuplicateRequestError",
    "FieldViolation",
    "FinishReason",
    "GenerateOptions",
    "Generation",
    "InvalidRequestError",
    "Message",
    "NanoserveError",
    "OverloadedError",
    "ServerError",
    "ServerStatus",
    "UnavailableError",
    "Usage",
]
