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
    UnauthenticatedError,
    UnavailableError,
)
from nanoserve.latency import LatencyHistogram
from nanoserve.output import (
    Chunk,
    Completion,
    FinishReason,
    TokenLogprobs,
    TopLogprob,
    Usage,
)
from nanoserve.request import GenerateOptions, Message
from nanoserve.status import BlockOwner, RunningRow, ServerStatus
from nanoserve.status_watch import AsyncStatusWatch, StatusWatch

__all__ = [
    "AsyncClient",
    "AsyncGeneration",
    "AsyncStatusWatch",
    "BlockOwner",
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
    "LatencyHistogram",
    "Message",
    "NanoserveError",
    "OverloadedError",
    "RunningRow",
    "ServerError",
    "ServerStatus",
    "StatusWatch",
    "TokenLogprobs",
    "TopLogprob",
    "UnauthenticatedError",
    "UnavailableError",
    "Usage",
]
