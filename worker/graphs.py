"""The CUDA graphs of a worker: a step of decodes is one launch, one with prompts is two."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

import torch

from worker.batch import StepBatch
from worker.captured_step import CapturedStep
from worker.decode_graphs import DecodeGraphs, graph_sizes
from worker.geometry import Geometry
from worker.graph_capture import GraphCapture, Result
from worker.kv_pool import KVPool
from worker.mixed_graphs import MixedGraphs, token_sizes
from worker.model.llama import Llama
from worker.model.memory_profile import scratch_pool
from worker.rows import Rows
from worker.staging import LANDING_BYTES

log = logging.getLogger(__name__)


class StepGraphs:
    """The graphs for a worker's limits, which read a step at the start of `landing`."""

    def __init__(
        self, model: Llama, pool: KVPool, rows: Rows, landing: torch.Tensor, geometry: Geometry
    ) -> None:
        self._device = model.device
        sizes = graph_sizes(geometry.max_rows)
        self.decodes = DecodeGraphs(model, pool, rows, landing, sizes)
        tokens = token_sizes(geometry.max_step_tokens)
        self.mixed = MixedGraphs(model, pool, rows, landing, tokens, sizes)

    def step_of(self, batch: StepBatch) -> CapturedStep | None:
        """How to run `batch`, or None if no graph takes it."""
        return self.decodes.step_of(batch) or self.mixed.step_of(batch)

    def capture(self) -> None:
        """Captures all and tells what that took."""
        start = time.monotonic()
        before = torch.cuda.mem_get_info(self._device)[0]
        capture = GraphCapture(self._device)
        self.mixed.capture(capture, self.mixed.token_sizes, self.mixed.draw_sizes)
        self.decodes.capture(capture, self.decodes.sizes)
        taken = before - torch.cuda.mem_get_info(self._device)[0]
        log.info(
            "captured graphs of %d counts of decodes, up to %d, and of %d counts of tokens, up to "
            "%d, in %.1f s; they take %.2f GiB",
            len(self.decodes.sizes), self.decodes.sizes[-1],
            len(self.mixed.token_sizes), self.mixed.token_sizes[-1],
            time.monotonic() - start, taken / 2**30,
        )  # fmt: skip

    def launch_once(self) -> None:
        """What `capture` captures, kernel by kernel."""

        def run(step: Callable[[], Result]) -> tuple[None, Result]:
            with torch.inference_mode():
                return None, step()

        self.mixed.capture(run, self.mixed.token_sizes, self.mixed.draw_sizes)
        self.decodes.capture(run, self.decodes.sizes)

    def capture_largest(self) -> int:
        """Captures the largest graph of each kind; returns the most of any kind that there are."""
        capture = GraphCapture(self._device)
        self.mixed.capture(capture, self.mixed.token_sizes[-1:], self.mixed.draw_sizes[-1:])
        self.decodes.capture(capture, self.decodes.sizes[-1:])
        return max(map(len, (self.decodes.sizes, self.mixed.token_sizes)))


def graph_bytes(model: Llama, geometry: Geometry) -> int:
    """Device memory that the graphs of a worker will take with their rows, by a trial: the memory
    of the largest, which the others share, and each one's own upkeep."""
    device = model.device
    torch.cuda.empty_cache()
    free, reserved = torch.cuda.mem_get_info(device)[0], torch.cuda.memory_reserved(device)
    graphs = _on_scratch(model, geometry)
    count = graphs.capture_largest()
    torch.cuda.empty_cache()
    shared = torch.cuda.memory_reserved(device) - reserved
    upkeep = max(0, free - torch.cuda.mem_get_info(device)[0] - shared)
    del graphs
    torch.cuda.empty_cache()
    return shared + upkeep * count


def launch_once(model: Llama, geometry: Geometry) -> None:
    """All kernels that the graphs of a worker will have."""
    _on_scratch(model, geometry).launch_once()


def _on_scratch(model: Llama, geometry: Geometry) -> StepGraphs:
    """With rows of its own, and a pool of the scratch block alone."""
    rows = Rows(geometry, model.device, model.ops)
    landing = torch.empty(LANDING_BYTES, dtype=torch.uint8, device=model.device)
    return StepGraphs(model, scratch_pool(model, geometry.block_size), rows, landing, geometry)
