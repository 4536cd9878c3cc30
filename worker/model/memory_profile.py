"""How much of a GPU's memory the K/V pool may take."""

from __future__ import annotations

import torch

from worker.inputs import StepInputs
from worker.kv_pool import KVPool, cpu_pool_bytes
from worker.model.llama import Llama


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
    run_largest_step(model, max_rows, max_step_tokens, block_size)
    torch.cuda.synchronize(model.device)
    free, total = torch.cuda.mem_get_info(model.device)
    others = total - free - torch.cuda.memory_reserved(model.device)
    peak = torch.cuda.max_memory_allocated(model.device)
    torch.cuda.empty_cache()
    return max(0, int(total * utilization) - others - peak)


def run_largest_step(
    model: Llama, max_rows: int, max_step_tokens: int, block_size: int
) -> torch.Tensor:
    """Runs a step of `max_step_tokens` tokens over `max_rows` sequences that all sample, and
    returns its logits [max_rows, vocab] as fp32, which is how the sampler reads them.

    All tables and slots point to one scratch block.
    """
    config, device = model.config, model.device
    shape = (config.num_layers, 1, block_size, config.num_kv_heads, config.head_dim)
    pool = KVPool(*(torch.zeros(shape, dtype=model.dtype, device=device) for _ in range(2)))
    rows = min(max_rows, max_step_tokens)
    starts = torch.linspace(0, max_step_tokens, rows + 1).int()
    lens = starts.diff().clamp(max=config.max_model_len)
    longest = int(lens.max())
    starts = torch.cat((torch.zeros(1, dtype=torch.int32), lens.cumsum(0).int()))
    tokens = int(starts[-1])

    def zeros(*size: int, dtype: torch.dtype = torch.int32) -> torch.Tensor:
        return torch.zeros(size, dtype=dtype, device=device)

    inputs = StepInputs(
        token_ids=zeros(tokens),
        positions=zeros(tokens),
        slot_mapping=zeros(tokens, dtype=torch.int64),
        rows=torch.arange(rows, dtype=torch.int32, device=device),
        query_starts=starts.to(device),
        context_lens=lens.int().to(device),
        block_tables=zeros(rows, -(-longest // block_size)),
        sample_tokens=(starts[1:].long() - 1).to(device),
        num_decodes=0,
        max_query_len=longest,
        max_context_len=longest,
    )
    return model.forward(inputs, pool).float()
