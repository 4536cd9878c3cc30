"""How much of a GPU's memory the K/V pool may take."""

from __future__ import annotations

import torch

from worker.kv_pool import KVPool, cpu_pool_bytes
from worker.model.llama import Llama
from worker.new_rows import MAX_TOP_LOGPROBS
from worker.step_inputs import StepInputs


def pool_bytes(
    model: Llama, *, max_rows: int, max_step_tokens: int, block_size: int, utilization: float
) -> int:
    """Bytes for the pool when neither --num-blocks nor --kv-memory is given.

    On a GPU: `utilization` (0 to 1) of the card, less what is in use by others and what this
    process needs for the largest step. On a CPU: `cpu_pool_bytes`.
    """
    if model.device.type != "cuda":
        return cpu_pool_bytes()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats(model.device)
    run_largest_steps(model, max_rows, max_step_tokens, block_size)
    torch.cuda.synchronize(model.device)
    free, total = torch.cuda.mem_get_info(model.device)
    others = total - free - torch.cuda.memory_reserved(model.device)
    peak = torch.cuda.max_memory_allocated(model.device)
    torch.cuda.empty_cache()
    return max(0, int(total * utilization) - others - peak)


def run_largest_steps(
    model: Llama, max_rows: int, max_step_tokens: int, block_size: int
) -> list[torch.Tensor]:
    """Runs the two steps that need most memory: `max_step_tokens` prompt tokens over `max_rows`
    sequences, and a decode of `max_rows` sequences one of which may be as long as the model allows.

    All sample, with penalties and log-probabilities. Returns the logits of each [rows, vocab] as
    fp32, which is how the sampler reads them. All tables and slots point to one scratch block.
    """
    config, pool = model.config, scratch_pool(model, block_size)
    rows = min(max_rows, max_step_tokens)
    borders = torch.arange(rows + 1) * max_step_tokens // rows
    prompts = borders.diff().clamp(max=config.max_model_len)
    longest = int(prompts.max())
    found = []
    for lens, decodes, longest_context in (
        (prompts, 0, longest),
        (torch.ones(max_rows, dtype=torch.int64), max_rows, config.max_model_len),
    ):
        inputs = _inputs(model, lens, decodes, longest_context, block_size)
        logits = model.forward(inputs, pool)
        for lines in sorted({1, len(logits)}):  # of a few other kernels are launched than of many
            _sample_extras(model, logits[:lines])
        found.append(logits.float())
    return found


def _sample_extras(model: Llama, logits: torch.Tensor) -> None:
    """All that a draw can have, for every line, as `worker.sampler.sample_extras`."""
    config, ops, device = model.config, model.ops, model.device
    lines = torch.arange(len(logits), device=device)
    row, position = torch.zeros_like(lines, dtype=torch.int32), torch.ones_like(lines).int()
    tokens = torch.zeros((1, config.max_model_len + 1), dtype=torch.int32, device=device)
    penalties = torch.ones((1, 3), device=device)
    cold = torch.zeros(1, device=device)
    scores = ops.penalize(
        logits, lines, row, position, tokens, row[:1], penalties, max_position=1
    )  # fmt: skip
    sampled = ops.sample(scores, row, position, cold, cold.long(), tokens)
    ops.top_logprobs(logits, lines, sampled, min(MAX_TOP_LOGPROBS, config.vocab_size))


def scratch_pool(model: Llama, block_size: int) -> KVPool:
    """A pool of the scratch block alone, of zeros."""
    config = model.config
    shape = (config.num_layers, 1, block_size, config.num_kv_heads, config.head_dim)
    return KVPool(*(torch.zeros(shape, dtype=model.dtype, device=model.device) for _ in range(2)))


def _inputs(
    model: Llama, lens: torch.Tensor, num_decodes: int, longest_context: int, block_size: int
) -> StepInputs:
    """A step of sequences of `lens` new tokens each, in block 0, that have no others."""
    device = model.device
    sequences, tokens = lens.shape[0], int(lens.sum())
    starts = torch.cat((torch.zeros(1, dtype=torch.int64), lens.cumsum(0)))
    rows = torch.arange(sequences, dtype=torch.int32, device=device)
    context_lens = lens.int().to(device)

    def zeros(*size: int, dtype: torch.dtype = torch.int32) -> torch.Tensor:
        return torch.zeros(size, dtype=dtype, device=device)

    return StepInputs(
        token_ids=zeros(tokens),
        positions=zeros(tokens),
        slot_mapping=zeros(tokens, dtype=torch.int64),
        decode_rows=rows[:num_decodes],
        decode_context_lens=context_lens[:num_decodes],
        prefill_rows=rows[num_decodes:],
        prefill_context_lens=context_lens[num_decodes:],
        prefill_starts=starts[num_decodes:].int().to(device),
        block_tables=zeros(sequences, -(-longest_context // block_size)),
        sample_tokens=(starts[1:] - 1).to(device),
        max_context_len=longest_context,
        decode_context=num_decodes * longest_context,
    )
