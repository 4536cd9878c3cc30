"""Making CUDA graphs that share their memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import torch

Result = TypeVar("Result")


class GraphCapture:
    """Captures one graph after another. The larger come first: the others fit into their memory.

    What a graph leaves in that memory holds until another graph is replayed.
    """

    def __init__(self, device: torch.device) -> None:
        self._memory = torch.cuda.graph_pool_handle()
        self._stream = torch.cuda.Stream(device)

    def __call__(self, run: Callable[[], Result]) -> tuple[torch.cuda.CUDAGraph, Result]:
        """The graph of the kernels that `run` launches, and what `run` returned. Tensors in it keep
        their memory from the graphs captured later."""
        graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize(self._stream.device)
        with torch.inference_mode(), torch.cuda.stream(self._stream):
            run()  # compiles, and lets libraries choose and make their workspace
            graph.capture_begin(pool=self._memory, capture_error_mode="thread_local")
            result = run()
            graph.capture_end()
        torch.cuda.synchronize(self._stream.device)
        return graph, result
