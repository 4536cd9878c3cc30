"""A CPU's steps of a few decodes: what they launch between embedding and logits is one call."""

from __future__ import annotations

import torch

from kernels.cpu_attention import AttentionPlan
from kernels.cpu_attention_kernel import FIELDS
from kernels.launch_graph import GraphMemory, LaunchGraph, can_capture
from worker.kv_pool import KVPool
from worker.model.llama import Llama
from worker.step_inputs import StepInputs

# Of more, products and attention take so long that what is between them hardly counts.
MOST_DECODES = 64
_ALL_THREADS = 1 << 40  # positions, so that launches are shared out whatever contexts come


class CpuGraphs:
    """A graph for each count of decodes that came, captured when it first does. To be used by one
    thread."""

    def __init__(self, model: Llama, pool: KVPool) -> None:
        self._model, self._pool = model, pool
        weights = model.weights
        products = [p for x in weights.layers for p in (x.qkv, x.out, x.gate_up, x.down)]
        self._can_capture = can_capture(model.ops, [*products, weights.head])
        hidden = weights.embedding.shape[1]
        # What a step brings, where graphs read it.
        self._residual = torch.empty((MOST_DECODES, hidden), dtype=model.dtype)
        self._positions = torch.empty(MOST_DECODES, dtype=torch.int32)
        self._slots = torch.empty(MOST_DECODES, dtype=torch.int64)
        self._items = torch.empty((MOST_DECODES, FIELDS), dtype=torch.int64)
        self._memory = GraphMemory(MOST_DECODES)
        self._graphs: dict[int, tuple[LaunchGraph, torch.Tensor]] = {}  # with its logits

    def suits(self, inputs: StepInputs) -> bool:
        """Whether `forward` is for this step: decodes alone, all of which sample."""
        tokens, decodes = inputs.token_ids.shape[0], inputs.decode_rows.shape[0]
        only_decodes = decodes == tokens == inputs.sample_tokens.shape[0]
        return self._can_capture and only_decodes and 0 < tokens <= MOST_DECODES

    @torch.inference_mode()
    def forward(self, inputs: StepInputs) -> torch.Tensor:
        """As `Llama.forward`; the next call overwrites the logits. Every step has the same block
        tables, at the same place."""
        model, count = self._model, inputs.token_ids.shape[0]
        plan = model.plan_decodes(inputs, self._pool)
        model.embed(inputs.token_ids, out=self._residual[:count])
        self._positions[:count].copy_(inputs.positions)
        self._slots[:count].copy_(inputs.slot_mapping)
        self._items[:count].copy_(plan.items)
        if count in self._graphs:
            graph, logits = self._graphs[count]
            graph.replay()
            return logits
        graph = LaunchGraph(self._memory)
        with graph:
            logits = self._capture(inputs, count)
        self._graphs[count] = graph, logits
        return logits

    def _capture(self, inputs: StepInputs, count: int) -> torch.Tensor:
        model = self._model
        plan = AttentionPlan(self._items[:count], 1, _ALL_THREADS, True)
        attended, residual = model.layers(
            self._residual[:count],
            self._positions[:count],
            self._slots[:count],
            model.decode_attention(inputs, plan),
            self._pool,
        )
        return model.tail(attended, residual)
