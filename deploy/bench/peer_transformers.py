"""The same batches through transformers' `generate`, in this process: the yardstick."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM


class Peer:
    """A model in bfloat16 on the CPU."""

    def __init__(self, folder: Path, threads: int) -> None:
        torch.set_num_threads(threads)
        self._model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).eval()

    def seconds(self, prompts: Sequence[Sequence[int]], max_tokens: int) -> float:
        """Of one greedy `generate` of exactly `max_tokens` tokens for prompts of one length."""
        ids = torch.tensor(prompts)
        start = time.perf_counter()
        with torch.inference_mode():
            output = self._model.generate(
                input_ids=ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=max_tokens,
                min_new_tokens=max_tokens,
                do_sample=False,
                pad_token_id=0,
            )
        if output.shape[1] != ids.shape[1] + max_tokens:
            raise RuntimeError(f"transformers made {output.shape[1] - ids.shape[1]} tokens")
        return time.perf_counter() - start
