"""The Llama forward over a ragged batch: a step's tokens on one axis, K/V in the paged pool."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import torch

from kernels import Ops
from worker.kv_pool import KVPool
from worker.model.config import ModelConfig
from worker.model.rope import cos_sin_table
from worker.model.weights import LayerWeights, LlamaWeights
from worker.step_inputs import StepInputs

# (q [t, heads, head_dim], K pool, V pool of one layer, out=None) -> [t, heads, head_dim]
Attention = Callable[..., torch.Tensor]


def _beside(side: torch.cuda.Stream | None) -> AbstractContextManager[object]:
    """The stream `side`, after all that the current one has."""
    if side is None:
        return nullcontext()
    side.wait_stream(torch.cuda.current_stream())
    return torch.cuda.stream(side)


class Llama:
    """A loaded Llama: pre-norm layers of attention and SwiGLU on a residual stream."""

    def __init__(
        self, config: ModelConfig, weights: LlamaWeights, ops: Ops, device: torch.device | str
    ) -> None:
        self.config = config
        self.weights = weights
        self.ops = ops
        self.device = torch.device(device)
        self._cos_sin = cos_sin_table(config, device)
        self._scale = config.head_dim**-0.5

    @property
    def dtype(self) -> torch.dtype:
        return self.weights.embedding.dtype

    @torch.inference_mode()
    def forward(self, inputs: StepInputs, pool: KVPool) -> torch.Tensor:
        """Writes the K/V of the step's t tokens into `pool`; returns the logits [m, vocab], in the
        model's dtype or fp32, that follow the m tokens of `inputs.sample_tokens`."""
        tokens, sampled = inputs.token_ids.shape[0], inputs.sample_tokens.shape[0]
        attended, residual = self.body(inputs, pool)
        if not sampled:
            return residual.new_empty((0, self.config.vocab_size))
        if sampled < tokens:
            # Of the others nothing is read any more.
            attended = self.ops.gather_rows(attended, inputs.sample_tokens)
            residual = self.ops.gather_rows(residual, inputs.sample_tokens)
        return self.tail(attended, residual)

    def body(self, inputs: StepInputs, pool: KVPool) -> tuple[torch.Tensor, torch.Tensor]:
        """All that every token needs: (attended [t, heads * head_dim], residual [t, hidden]), after
        and before the last layer's attention. If nothing is sampled, `attended` is anything: the
        K/V is written, which is all that such a step is for."""
        attend = self._attention(inputs, pool)
        residual, samples = self.embed(inputs.token_ids), inputs.sample_tokens.shape[0] > 0
        return self.layers(
            residual, inputs.positions, inputs.slot_mapping, attend, pool, samples=samples
        )

    def embed(self, token_ids: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
        """[t, hidden] of ids [t]."""
        return self.ops.gather_rows(self.weights.embedding, token_ids, out)

    def layers(
        self,
        residual: torch.Tensor,
        positions: torch.Tensor,
        slot_mapping: torch.Tensor,
        attend: Attention,
        pool: KVPool,
        *,
        samples: bool = True,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """`body` of embedded tokens [t, hidden]; positions int32 [t], slot_mapping int64 [t]."""
        ops, config, layers = self.ops, self.config, self.weights.layers
        for layer, (k_pool, v_pool) in zip(layers, pool.layers, strict=True):
            qkv = ops.norm_qkv(
                residual, layer.input_norm, config.rms_norm_eps, layer.qkv, layer.qkv_bias
            )
            residual = ops.summed(residual)
            attended = ops.rope_and_write_kv(
                qkv,
                positions,
                self._cos_sin,
                slot_mapping,
                k_pool,
                v_pool,
                config.num_heads,
            )
            last = layer is layers[-1]
            if not last or samples:
                attended = attend(attended, k_pool, v_pool)
            attended = attended.reshape(-1, config.query_size)
            if not last:
                residual = self._after_attention(layer, attended, residual)
        return attended, residual

    def tail(self, attended: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        """What follows `body`, for some of its lines or all: logits [m, vocab]."""
        residual = self._after_attention(self.weights.layers[-1], attended, residual)
        eps = self.config.rms_norm_eps
        return self.ops.logits(residual, self.weights.final_norm, eps, self.weights.head)

    def _after_attention(
        self, layer: LayerWeights, attended: torch.Tensor, residual: torch.Tensor
    ) -> Any:
        """The residual for the next norm."""
        ops = self.ops
        residual = ops.add_linear(attended, layer.out, layer.out_bias, residual)
        activated = ops.norm_gated_linear(
            residual, layer.post_norm, self.config.rms_norm_eps, layer.gate_up, layer.gate_up_bias
        )
        return ops.add_linear(activated, layer.down, layer.down_bias, ops.summed(residual))

    def _attention(self, inputs: StepInputs, pool: KVPool) -> Attention:
        """What attends in every layer of this step: decodes by the decode kernel, chunks by the
        prefill kernel. What all layers share is prepared once."""
        decodes = inputs.decode_rows.shape[0]
        if not inputs.prefill_rows.shape[0]:
            return self._decode(inputs, pool)
        if not decodes:
            return self._prefill(inputs, pool)
        decode, prefill = self._decode(inputs, pool), self._prefill(inputs, pool)
        side = inputs.decode_stream

        def attend(q: torch.Tensor, k_pool: torch.Tensor, v_pool: torch.Tensor) -> torch.Tensor:
            out = torch.empty_like(q)
            with _beside(side):
                decode(q[:decodes], k_pool, v_pool, out=out[:decodes])
            prefill(q, k_pool, v_pool, out=out)
            if side is not None:
                torch.cuda.current_stream().wait_stream(side)
            return out

        return attend

    def _decode(self, inputs: StepInputs, pool: KVPool) -> Attention:
        return self.decode_attention(inputs, self.plan_decodes(inputs, pool))

    def plan_decodes(self, inputs: StepInputs, pool: KVPool) -> Any:
        """What all layers of a step of these decodes share."""
        return self.ops.plan_decode(
            pool.layers[0][0],
            inputs.block_tables,
            inputs.decode_rows,
            inputs.decode_context_lens,
            total_context=inputs.decode_context,
        )

    def decode_attention(self, inputs: StepInputs, plan: Any) -> Attention:
        """What attends for the decodes in every layer, by the plan for them."""
        return partial(
            self.ops.paged_attention_decode,
            block_tables=inputs.block_tables,
            rows=inputs.decode_rows,
            context_lens=inputs.decode_context_lens,
            scale=self._scale,
            max_context_len=inputs.max_context_len,
            plan=plan,
        )

    def _prefill(self, inputs: StepInputs, pool: KVPool) -> Attention:
        shared = {
            "block_tables": inputs.block_tables,
            "rows": inputs.prefill_rows,
            "query_starts": inputs.prefill_starts,
            "context_lens": inputs.prefill_context_lens,
        }
        return partial(
            self.ops.paged_attention_prefill,
            **shared,
            scale=self._scale,
            max_context_len=inputs.max_context_len,
            plan=self.ops.plan_prefill(
                pool.layers[0][0],
                **shared,
                num_heads=self.config.num_heads,
                most_tokens=inputs.token_ids.shape[0],
            ),
        )
