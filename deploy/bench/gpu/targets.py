"""What the rows are held against, as data: another server's figures, and what is to be reached.

vLLM 0.24.0 (torch 2.11.0+cu130) on one H200 of this kind, 2026-11-29: offline `LLM.generate`,
random weights in bfloat16, max_model_len 8192, prefix caching off, greedy, ignore_eos, random
prompt ids, all else as it comes (FlashAttention 3, torch.compile, CUDA graphs, asynchronous
scheduling, an engine process of its own). No tokenizer and no network: an upper bound of what it
serves. Medians; `best` is that of several starts, since 1B is bound by its host and varies from one
to the next. A step is (T(256 tokens) - T(1 token)) / 255, prompt 512.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Target:
    """In the unit of its row. `vllm` None: not measured there."""

    reach: float
    aim: float
    vllm: float | None = None
    best: float | None = None  # vLLM's


# By the key of a row (rows.py).
TARGETS = {
    "1b decode 1": Target(0.85, 0.72, 2.04, 1.54),
    "1b decode 32": Target(1.2, 1.0, 2.54, 1.98),
    "1b decode 256": Target(3.0, 2.6, 5.19, 4.32),
    "8b decode 1": Target(3.95, 3.7, 4.86),
    "8b decode 32": Target(5.2, 4.8, 5.76),
    "8b decode 256": Target(12.2, 11.2, 14.06),
    "1b mixed512": Target(48_000, 56_000, 33_450, 38_100),
    "8b mixed512": Target(10_000, 10_800, 9_208),
    "1b prefill": Target(260_000, 290_000, 257_500),
    "8b prefill": Target(43_000, 46_000, 42_500),
    "1b first token": Target(4.5, 3.5, 6.7),
    "8b first token": Target(15, 13.5, 16.2),
    "1b start warm": Target(8, 5, 11),
    "1b start cold": Target(30, 15, 70, 43),
    "1b text": Target(97, 100),
    "8b text": Target(97, 100),
    # Percent of the read bandwidth.
    "attention 64 64 4096": Target(86, 92),
    "attention 128 64 4096": Target(92, 96),
    "attention 64 256 640": Target(78, 85),
    "attention 128 256 640": Target(86, 90),
    # Microseconds.
    "attention 64 1 640": Target(5.3, 4),
    "attention 64 1 8192": Target(8.7, 7),
}
