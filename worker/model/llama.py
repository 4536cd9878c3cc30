"""The Llama forward over a ragged batch: a step's tokens on one axis, K/V in the paged pool."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch

from kernels import Ops
from worker.kv_pool import KVPool
from worker.model.config import ModelConfig
from worker.model.rope import cos_sin_table
from worker.model.weights import LlamaWeights
from worker.step_inputs import StepInputs

# (q [t, heads, head_dim], K pool, V pool of one layer, out=None) -> [t, heads, head_dim]
Attention = Callable[..., torch.Tensor]


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
        model's dtype, that follow the m tokens of `inputs.sample_tokens`."""
        ops, config, layers = self.ops, self.config, self.weights.layers
        tokens, sampled = inputs.token_ids.shape[0], inputs.sample_tokens.shape[0]
        attend = self._attention(inputs, pool)
        rope_plan = ops.plan_rope(inputs.positions, self._cos_sin, inputs.slot_mapping)
        eps = config.rms_norm_eps
        residual = ops.gather_rows(self.weights.embedding, inputs.token_ids)
        for layer, (k_pool, v_pool) in zip(layers, pool.layers, strict=True):
            qkv = ops.norm_linear(residual, layer.input_norm, eps, layer.qkv, layer.qkv_bias)
            q = ops.rope_and_write_kv(
                qkv,
                inputs.positions,
                self._cos_sin,
                inputs.slot_mapping,
                k_pool,
                v_pool,
                config.num_heads,
                plan=rope_plan,
            )
            if layer is layers[-1] and not sampled:
                # The K/V is written, which is all that this step is for.
                return residual.new_empty((0, config.vocab_size))
            attended = attend(q, k_pool, v_pool).reshape(tokens, config.query_size)
            if layer is layers[-1] and sampled < tokens:
                # Of the others nothing is read any more.
                attended = ops.gather_rows(attended, inputs.sample_tokens)
                residual = ops.gather_rows(residual, inputs.sample_tokens)
            residual = ops.add_linear(attended, layer.out, layer.out_bias, residual)
            activated = ops.norm_gated_linear(
                residual, layer.post_norm, eps, layer.gate_up, layer.gate_up_bias
            )
            residual = ops.add_linear(activated, layer.down, layer.down_bias, residual)
        return ops.norm_linear(residual, self.weights.final_norm, eps, self.weights.head)

    def _attention(self, inputs: StepInputs, pool: KVPool) -> Attention:
        """What attends in every layer of this step: the leading decodes by the decode kernel, the
        rest by the prefill kernel. What all layers share is prepared once."""
        decodes, sequences = inputs.num_decodes, inputs.rows.shape[0]
        if decodes == sequences:
            return self._decode(inputs, pool)
        if decodes == 0:
            return self._prefill(inputs, pool)
        decode, prefill = self._decode(inputs, pool), self._prefill(inputs, pool)

        def attend(q: torch.Tensor, k_pool: torch.Tensor, v_pool: torch.Tensor) -> torch.Tensor:
            # A decode has one token, so the sequences' border is the tokens' border too.
            out = torch.empty_like(q)
            decode(q[:decodes], k_pool, v_pool, out=out[:decodes])
            prefill(q[decodes:], k_pool, v_pool, out=out[decodes:])
            return out

        return attend

    def _decode(self, inputs: StepInputs, pool: KVPool) -> Attention:
        rows = inputs.rows[: inputs.num_decodes]
        context_lens = inputs.context_lens[: inputs.num_decodes]
        tables = inputs.block_tables
        return partial(
            self.ops.paged_attention_decode,
            block_tables=tables,
            rows=rows,
            context_lens=context_lens,
            scale=self._scale,
            max_context_len=inputs.max_context_len,
            plan=self.ops.plan_decode(
                pool.layers[0][0], tables, rows, context_lens, inputs.decode_context
            ),
        )

    def _prefill(self, inputs: StepInputs, pool: KVPool) -> Attention:
        decodes, tables = inputs.num_decodes, inputs.block_tables
        rows, context_lens = inputs.rows[decodes:], inputs.context_lens[decodes:]
        return partial(
            self.ops.paged_attention_prefill,
            block_tables=tables,
            rows=rows,
            query_starts=inputs.prefill_starts,
            context_lens=context_lens,
            scale=self._scale,
            max_query_len=inputs.max_query_len,
            max_context_len=inputs.max_context_len,
            plan=self.ops.plan_prefill(
                pool.layers[0][0], tables, rows, inputs.prefill_starts, context_lens
            ),
        )
