"""The forward against transformers on the default model, on the CPU."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
import transformers

from deploy.model.fetch import fetch
from nanoserve.v1 import worker_pb2
from tests.player import Player, greedy, load_llama
from tests.worker.model.smollm2_prompts import twenty_prompts
from tests.worker.step_messages import int32, int64, new_row
from worker.executor import StepOutput
from worker.geometry import Geometry
from worker.kv_pool import KVPool
from worker.ledger import Ledger
from worker.model.llama import Llama
from worker.runner import TorchRunner

# The first use gets and converts the model, and cores are shared.
pytestmark = pytest.mark.timeout(600)

NEW_TOKENS = 64


@pytest.fixture(scope="module")
def folder() -> Path:
    return fetch()


@pytest.fixture(scope="module")
def prompts(folder: Path) -> list[list[int]]:
    return twenty_prompts(folder)


def reference(folder: Path, dtype: torch.dtype) -> transformers.LlamaForCausalLM:
    return transformers.LlamaForCausalLM.from_pretrained(folder, dtype=dtype).eval()


@pytest.fixture(scope="module")
def theirs(folder: Path) -> transformers.LlamaForCausalLM:
    """transformers' own, in fp32."""
    return reference(folder, torch.float32)


@pytest.fixture(scope="module")
def ours(folder: Path) -> Llama:
    """In fp32."""
    return load_llama(folder)


@pytest.fixture(scope="module")
def outputs(ours: Llama, prompts: list[list[int]]) -> list[list[int]]:
    """Our greedy tokens."""
    return greedy(ours, prompts, NEW_TOKENS, block_size=16)


def logits_of(
    model: transformers.LlamaForCausalLM, rows: Sequence[Sequence[int]]
) -> list[torch.Tensor]:
    with torch.no_grad():
        return [model(torch.tensor([ids])).logits[0] for ids in rows]


@pytest.fixture(scope="module")
def their_logits(
    theirs: transformers.LlamaForCausalLM, prompts: list[list[int]], outputs: list[list[int]]
) -> list[torch.Tensor]:
    """At each token of the prompts and of our outputs but the last."""
    return logits_of(theirs, [ids + new[:-1] for ids, new in zip(prompts, outputs, strict=True)])


def test_64_greedy_tokens_of_20_prompts_equal_transformers_in_fp32(
    their_logits: list[torch.Tensor], prompts: list[list[int]], outputs: list[list[int]]
) -> None:
    """After the same tokens the same is the most likely one, so theirs are the same throughout."""
    assert len(prompts) == 20
    assert all(len(tokens) == NEW_TOKENS for tokens in outputs)
    for ids, tokens, logits in zip(prompts, outputs, their_logits, strict=True):
        assert tokens == logits[len(ids) - 1 :].argmax(-1).tolist()


def played(model: Llama, prompts: list[list[int]]) -> torch.Tensor:
    """Our logits of every position of each prompt: a chunk, then three decodes."""
    player = Player(model, [len(ids) for ids in prompts], block_size=16)
    rows: list[list[torch.Tensor]] = [[] for _ in prompts]
    for first, last in ((0, -3), (-3, -2), (-2, -1), (-1, None)):
        chunks = {row: ids[first:last] for row, ids in enumerate(prompts)}
        order = Player.order(chunks)
        logits = player.step(chunks).split([len(chunks[row]) for row in order])
        for row, part in zip(order, logits, strict=True):
            rows[row].append(part.float())
    return torch.cat([part for parts in rows for part in parts])


@torch.no_grad()
def test_fp32_logits_of_20_prompts_equal_transformers_within_1e_4(
    folder: Path,
    theirs: transformers.LlamaForCausalLM,
    ours: Llama,
    prompts: list[list[int]],
) -> None:
    exact = torch.cat(logits_of(reference(folder, torch.float64), prompts))
    their, our = torch.cat(logits_of(theirs, prompts)), played(ours, prompts)
    assert our.shape == (sum(len(ids) for ids in prompts), theirs.config.vocab_size)
    # Other processors round otherwise: where transformers itself lies farther than 1e-4 from fp64,
    # ours may be as far.
    own = (their - exact).abs().max().item()
    limit = max(1e-4, own)
    farthest = (our - their).abs().max().item(), (our - exact).abs().max().item(), own
    print("from transformers {:.2e}, from fp64 {:.2e}; transformers {:.2e}".format(*farthest))
    assert farthest[0] <= limit
    assert farthest[1] <= limit


class Worker:
    """A runner of the model, whose rows' blocks are their own."""

    BLOCK, BLOCKS, ROWS = 16, 10, 4

    def __init__(self, model: Llama) -> None:
        config = model.config
        self.geometry = Geometry(
            device="cpu", max_model_len=self.BLOCK * self.BLOCKS, block_size=self.BLOCK,
            num_blocks=1 + self.ROWS * self.BLOCKS, max_rows=self.ROWS, max_step_tokens=300,
            max_steps_in_flight=2, max_decode_steps=1, fingerprint="", dtype="float32",
            vocab_size=config.vocab_size, num_layers=config.num_layers, bytes_per_block=1,
            num_kv_heads=config.num_kv_heads, head_dim=config.head_dim,
        )  # fmt: skip
        pool = (
            config.num_layers, self.geometry.num_blocks, self.BLOCK, config.num_kv_heads,
            config.head_dim,
        )  # fmt: skip
        self.runner = TorchRunner(
            model, KVPool(*(torch.full(pool, torch.nan) for _ in range(2))), self.geometry
        )
        self.ledger = Ledger(self.geometry, check_slots=True)
        self.step_id = 0

    def run(
        self, lens: dict[int, int], contexts: dict[int, int], samples: bytes, new: Sequence = ()
    ) -> StepOutput:
        self.step_id += 1
        slots = [
            self.BLOCK * (1 + self.BLOCKS * row) + position
            for row, length in lens.items()
            for position in range(contexts[row] - length, contexts[row])
        ]
        step = worker_pb2.Step(
            step_id=self.step_id,
            new_rows=new,
            rows=int32(*lens),
            query_lens=int32(*lens.values()),
            context_lens=int32(*(contexts[row] for row in lens)),
            slot_mapping=int64(*slots),
            samples=samples,
        )
        (pending,) = self.runner.launch(self.ledger.admit(step))
        return pending.wait()

    def row(self, row: int, tokens: Sequence[int], **fields: object) -> worker_pb2.NewRow:
        blocks = range(1 + self.BLOCKS * row, 1 + self.BLOCKS * (row + 1))
        return new_row(row, f"{row}", tokens, blocks, **fields)


@pytest.mark.parametrize(
    ("penalty", "wanted"), [(1.5, [198, 3725, 2]), (1.0, [216, 39, 216, 40, 216, 41, 216, 33])]
)
def test_a_repetition_penalty_counts_prompt_and_output(
    folder: Path, ours: Llama, penalty: float, wanted: list[int]
) -> None:
    """Of the output alone it would give 216 39 198 3725 2."""
    prompt = transformers.AutoTokenizer.from_pretrained(folder).encode("1 2 3 4 5 6")
    worker = Worker(ours)
    sampling = worker_pb2.SamplingParams(repetition_penalty=penalty)
    new, length, output = [worker.row(2, prompt, sampling=sampling)], len(prompt), []
    for context in range(len(prompt), len(prompt) + len(wanted)):
        output += worker.run({2: length}, {2: context}, b"\1", new).tokens.tolist()
        new, length = [], 1
    assert output == wanted


@torch.no_grad()
def test_log_probabilities_are_those_of_transformers_logits_within_1e_4(
    theirs: transformers.LlamaForCausalLM, ours: Llama, prompts: list[list[int]]
) -> None:
    """Of greedy, penalized and drawn tokens, prompts in one chunk and in two."""
    some, count, worker = [prompts[i] for i in (0, 5, -1, -3)], 8, Worker(ours)
    settings = [{}, {"repetition_penalty": 1.5}, {"temperature": 1.0, "seed": 3}, {}]
    new = [
        worker.row(row, ids, sampling=worker_pb2.SamplingParams(**how), top_logprobs=5 * row)
        for row, (ids, how) in enumerate(zip(some, settings, strict=True))
    ]
    lens = {row: len(ids) for row, ids in enumerate(some)}
    first = {0: 7, 1: lens[1], 2: lens[2], 3: 2}
    outputs = {row: list[int]() for row in lens}
    found: dict[int, list[tuple[int, list[int], list[float]]]] = {row: [] for row in lens}

    def take(output: StepOutput, rows: Sequence[int]) -> None:
        assert output.logprobs is not None
        begin = 0
        for i, n in enumerate(output.logprobs.counts.tolist()):
            part = slice(begin, begin := begin + n)
            ids, values = output.logprobs.ids[part].tolist(), output.logprobs.values[part]
            found[rows[i]].append((len(some[rows[i]]) + len(outputs[rows[i]]), ids, values))
        for row, token in zip(rows, output.tokens.tolist(), strict=True):
            outputs[row].append(token)

    take(worker.run(first, first, b"\0\1\1\0", new), [1, 2])
    take(worker.run({0: lens[0] - 7, 3: lens[3] - 2}, lens, b"\1\1"), [0, 3])
    for k in range(1, count):
        take(worker.run(dict.fromkeys(lens, 1), {r: n + k for r, n in lens.items()}, b"\1" * 4),
             list(lens))  # fmt: skip
    farthest = 0.0
    for row, prompt in enumerate(some):
        exact = theirs(torch.tensor([prompt + outputs[row]])).logits[0].log_softmax(-1)
        assert len(found[row]) == count
        for (position, ids, values), token in zip(found[row], outputs[row], strict=True):
            likely = exact[position - 1]
            assert ids[0] == token
            assert len(set(ids[1:])) == 5 * row
            # By place: which of two tokens is first is open where they are equal but for rounding.
            for wanted in (likely[ids], torch.cat((likely[token, None], likely.topk(5 * row)[0]))):
                gap = (wanted - torch.from_numpy(values)).abs().max()
                farthest = max(farthest, float(gap))
    print(f"farthest from transformers: {farthest:.1e}")
    assert farthest < 1e-4


@torch.no_grad()
def test_bf16_errors_are_at_most_those_of_transformers_by_a_fifth(
    folder: Path, their_logits: list[torch.Tensor], prompts: list[list[int]]
) -> None:
    chosen = (0, 1, -2, -1)
    some = [prompts[i] for i in chosen]
    exact = torch.cat([their_logits[i][: len(prompts[i])] for i in chosen])
    their = (torch.cat(logits_of(reference(folder, torch.bfloat16), some)).float() - exact).abs()
    our = (played(load_llama(folder, torch.bfloat16), some) - exact).abs()
    print(f"max {our.max():.3f} / {their.max():.3f}, mean {our.mean():.4f} / {their.mean():.4f}")
    assert their.mean() > 1e-3  # the comparison is between roundings, not between zeros
    assert our.max() <= 1.2 * their.max()
    assert our.mean() <= 1.2 * their.mean()
