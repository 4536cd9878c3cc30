"""Whether a token's logits have the same bits however it is computed: what `--batch-invariant`
promises, tried on the card and with the weights at hand before a worker serves."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch

from worker.kv_pool import KVPool
from worker.model.llama import Llama
from worker.step_inputs import StepInputs

# More rows than any tile of a product has; the context has three of attention's splits.
_LONGEST = 600
_CUTS = (1, 8, 72)
_BATCHES = (1, 17, 33, 65, 129, 257)  # tokens in a step; each takes tiles of its own


class NotInvariantError(ValueError):
    """Two ways to compute a token gave different bits."""

    def __init__(self, model: Llama, way: str) -> None:
        card = str(model.device)
        if model.device.type == "cuda":
            card = torch.cuda.get_device_name(model.device)
        super().__init__(
            f"batch-invariant: on this device ({card}) the logits of a token {way} are not those "
            "of the same token in a whole prompt: run without --batch-invariant"
        )


def check_invariance(model: Llama, block_size: int) -> None:
    """Computes the last token of a prompt whole, in chunks and decoded, alone and among others.
    Raises NotInvariantError unless all its logits have the same bits."""
    length = min(_LONGEST, model.config.max_model_len)
    row = _Row(model, length, block_size)
    whole = row.chunk(0, length)
    for start, end in pairwise([0, *(cut for cut in _CUTS if cut < length), length]):
        last = row.chunk(start, end)
    if not _same_bits(last, whole):
        raise NotInvariantError(model, "in chunks")
    for batch in _BATCHES:
        logits = row.decodes(batch)
        if not _same_bits(logits, whole.expand_as(logits)):
            raise NotInvariantError(model, f"in a step of {batch} decodes")


def _same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    """NaN is equal to itself here: of damaged weights the warm-up tells."""
    whole_numbers = torch.int32 if one.element_size() == 4 else torch.int16
    return torch.equal(one.view(whole_numbers), other.view(whole_numbers))


class _Row:
    """One prompt of random ids, with a pool of its own."""

    def __init__(self, model: Llama, length: int, block_size: int) -> None:
        self._model, config = model, model.config
        generator = torch.Generator().manual_seed(0)
        ids = torch.randint(0, config.vocab_size, (length,), generator=generator)
        self._ids = ids.int().to(model.device)
        blocks = -(-length // block_size)
        shape = (config.num_layers, 1 + blocks, block_size, config.num_kv_heads, config.head_dim)
        pools = (torch.zeros(shape, dtype=model.dtype, device=model.device) for _ in range(2))
        self._pool = KVPool(*pools)
        self._first_slot = block_size
        self._tables = self._ints(range(1, 1 + blocks))[None]

    def chunk(self, start: int, end: int) -> torch.Tensor:
        """Logits [1, vocab] of the last of the tokens from `start` on, below `end`."""
        return self._forward(range(start, end), decodes=False)

    def decodes(self, count: int) -> torch.Tensor:
        """Logits [count, vocab] of the prompt's last token, decoded `count` times in one step."""
        return self._forward([len(self._ids) - 1] * count, decodes=True)

    def _forward(self, at: Sequence[int], decodes: bool) -> torch.Tensor:
        """Of the tokens at these positions, as decodes or as a chunk."""
        count, context = len(at), at[-1] + 1
        positions, nothing = self._ints(at), self._ints([])
        rows = self._ints([0] * count) if decodes else self._ints([0])
        contexts = self._ints([context] * len(rows))
        inputs = StepInputs(
            token_ids=self._ids[positions],
            positions=positions,
            slot_mapping=positions.long() + self._first_slot,
            decode_rows=rows if decodes else nothing,
            decode_context_lens=contexts if decodes else nothing,
            prefill_rows=nothing if decodes else rows,
            prefill_context_lens=nothing if decodes else contexts,
            prefill_starts=self._ints([count] if decodes else [0, count]),
            block_tables=self._tables,
            sample_tokens=self._ints(range(count) if decodes else [count - 1]).long(),
            max_context_len=context,
            decode_context=count * context if decodes else 0,
        )
        return self._model.forward(inputs, self._pool)

    def _ints(self, values: Sequence[int]) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.int32, device=self._model.device)
