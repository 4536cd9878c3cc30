"""Runs checked steps on the model: the host only enqueues."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch

from worker.batch import StepBatch
from worker.captured_step import CapturedStep
from worker.draw_extras import DrawExtras, RowExtras
from worker.executor import Pending
from worker.geometry import Geometry
from worker.graphs import StepGraphs
from worker.inputs import input_columns, make_inputs
from worker.kv_pool import KVPool
from worker.model.llama import Llama
from worker.results import CpuClock, LoggedDraws, ResultBuffer
from worker.rows import Rows
from worker.sampler import sample, sample_extras
from worker.staging import Staging
from worker.step import CheckedStep, token_positions
from worker.step_inputs import StepInputs

if TYPE_CHECKING:
    from worker.cpu_graphs import CpuGraphs

log = logging.getLogger(__name__)


class TorchRunner:
    """An Executor (worker/executor.py) over a Llama and its pool.

    On CUDA `launch` never waits for the device: columns go up through a ring of pinned buffers
    and tokens come down through another. With `cuda_graphs` most steps are a launch or two.
    """

    def __init__(
        self, model: Llama, pool: KVPool, geometry: Geometry, cuda_graphs: bool = False
    ) -> None:
        self.geometry = geometry
        self._model = model
        self._pool = pool
        self._rows = Rows(geometry, model.device, model.ops)
        self._row_extras = RowExtras(geometry.max_rows)
        depth = geometry.max_steps_in_flight
        self._staging = Staging(model.device, depth)
        self._results: list[CpuClock | ResultBuffer] = [CpuClock()]
        if model.device.type == "cuda":
            count = (depth + 1) * geometry.max_decode_steps
            self._results = [ResultBuffer(geometry.max_rows, model.device) for _ in range(count)]
        self._next_result = 0
        self._nothing = torch.empty(0, dtype=torch.int32, device=model.device)
        self._cuda_graphs = cuda_graphs
        self._graphs: StepGraphs | None = None  # until the warm-up
        self._cpu_graphs: CpuGraphs | None = None
        if model.device.type == "cpu":  # compiled kernels are none of a GPU's worker
            from worker.cpu_graphs import CpuGraphs

            self._cpu_graphs = CpuGraphs(model, pool)

    @torch.inference_mode()
    def launch(self, step: CheckedStep) -> Sequence[Pending]:
        batch, changes = StepBatch.of(step), self._rows.changes(step)
        self._row_extras.apply(step)
        if extras := self._row_extras.of(batch):
            changes |= extras.columns(batch)
        if self._graphs and (captured := self._graphs.step_of(batch)):
            columns = {"frames": captured.frames} | changes  # the frame lands first
            if self._staging.fits(columns):
                return self._replay(captured, columns, len(batch.sample_rows), extras)
        on_device = self._staging.upload(input_columns(batch) | changes)
        self._rows.apply(on_device)
        return [self._repetition(batch, on_device, k, extras) for k in range(step.decode_steps)]

    def _replay(
        self,
        captured: CapturedStep,
        columns: Mapping[str, np.ndarray],
        draws: int,
        extras: DrawExtras | None,
    ) -> Sequence[Pending]:
        on_device = self._staging.upload(columns)
        self._rows.apply(on_device)
        pendings = []
        for k in range(len(captured.frames)):
            result = self._result()
            if k:
                captured.place.copy_(on_device["frames"][k])
            sampled, logprobs = captured.replay(), None
            if extras:
                logits = captured.logits
                logprobs = self._sample_extras(extras, logits, sampled, on_device, k)
            pendings.append(result.finish(sampled, draws, logprobs))
        return pendings

    def warm_up(self) -> None:
        """Runs decodes and chunks on the scratch block, which also compiles what kernels of
        these shapes need. Raises RuntimeError if the logits are not finite."""
        log.info("warming up")
        for lens in self._warm_up_shapes():
            for pending in self.launch(_scratch_step(lens, self.geometry.block_size)):
                if pending.wait().non_finite is not None:
                    raise RuntimeError(
                        "a first forward gave logits that are not finite: the weights are "
                        "damaged, or the dtype is too narrow for them"
                    )
        if self._cuda_graphs:
            landing = self._staging.landing
            graphs = StepGraphs(self._model, self._pool, self._rows, landing, self.geometry)
            graphs.capture()
            self._graphs = graphs

    def _warm_up_shapes(self) -> list[list[int]]:
        """Query lengths of the warm-up's steps. On a GPU large steps take other kernels."""
        geometry = self.geometry
        shapes = [[1], [1] * min(geometry.max_rows, 16)]
        for size in (16, 160) if self._model.device.type == "cuda" else (16,):
            chunk = min(geometry.max_model_len, geometry.max_step_tokens, size)
            shapes.append([chunk])
            if geometry.max_rows > 1 and chunk < geometry.max_step_tokens:
                shapes.append([1, chunk])
        return shapes

    def _result(self) -> CpuClock | ResultBuffer:
        """The next place for a result, its clock started."""
        result, before = self._results[self._next_result], self._results[self._next_result - 1]
        self._next_result = (self._next_result + 1) % len(self._results)
        result.start(before)
        return result

    def _repetition(
        self,
        batch: StepBatch,
        columns: Mapping[str, torch.Tensor],
        k: int,
        extras: DrawExtras | None,
    ) -> Pending:
        result = self._result()
        if not batch.slots.shape[1]:  # a step that only changes rows
            result.computed()
            return result.finish(self._nothing, 0)
        inputs = make_inputs(batch, columns, self._rows, self._model.ops, k)
        logits = self._forward(inputs)
        result.computed()
        if not len(batch.sample_rows):
            return result.finish(self._nothing, 0)
        positions = columns["sample_positions"][k]
        sampled = sample(self._model.ops, self._rows, logits, columns["sample_rows"], positions)
        logprobs = None
        if extras:
            logprobs = self._sample_extras(extras, logits, sampled, columns, k)
        return result.finish(sampled, len(sampled), logprobs)

    def _forward(self, inputs: StepInputs) -> torch.Tensor:
        if self._cpu_graphs is not None and self._cpu_graphs.suits(inputs):
            return self._cpu_graphs.forward(inputs)
        return self._model.forward(inputs, self._pool)

    def _sample_extras(
        self,
        extras: DrawExtras,
        logits: torch.Tensor,
        sampled: torch.Tensor,
        columns: Mapping[str, torch.Tensor],
        k: int,
    ) -> LoggedDraws | None:
        packed = sample_extras(self._model.ops, self._rows, extras, logits, sampled, columns, k)
        return None if packed is None else LoggedDraws(extras, packed)


def _scratch_step(lens: list[int], block_size: int) -> CheckedStep:
    """Prompts in rows 0, 1, ... whose tables name the scratch block only, with all that a draw can
    have."""
    query_lens = np.array(lens, np.int32)
    rows = np.arange(len(lens), dtype=np.int32)
    empty = np.zeros(0, np.int32)
    return CheckedStep(
        step_id=0,
        decode_steps=1,
        new_rows=rows,
        new_prompt_lens=query_lens,
        new_temperatures=np.zeros(len(lens), np.float32),
        new_seeds=np.zeros(len(lens), np.uint64),
        new_penalties=np.ones((len(lens), 3), np.float32),
        new_top_logprobs=np.ones_like(rows),
        token_rows=empty,
        token_positions=empty,
        token_ids=empty,
        block_rows=rows,
        block_indices=np.zeros_like(rows),
        block_ids=np.zeros_like(rows),
        rows=rows,
        query_lens=query_lens,
        context_lens=query_lens,
        slots=(token_positions(query_lens, query_lens) % block_size).astype(np.int64)[None],
        sampling=np.arange(len(lens)),
    )
