"""What a step launches on a GPU: our kernels, a library's matrix products, and copies of inputs and
answers. Nothing else."""

from __future__ import annotations

import importlib
import pkgutil
import re
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.profiler import ProfilerActivity, profile

import kernels
from nanoserve.v1 import worker_pb2
from tests.tiny_llama import tiny_llama
from tests.worker.step_messages import int32, int64, new_row
from worker.__main__ import parse
from worker.ledger import Ledger
from worker.runner import TorchRunner
from worker.start import make_executor

pytestmark = pytest.mark.gpu

# cuBLAS and cuBLASLt on Hopper: nvjet_*, names with gemm or gemv, and the sum of a split product.
PRODUCT = re.compile(r"^nvjet_|gemm|gemv|splitKreduce_kernel", re.IGNORECASE)
# Columns up (HtoD), answers down (DtoH), and what a split product clears first.
COPY = re.compile(r"^Memcpy (HtoD|DtoH) |^Memset ")


PART = 100  # tokens of a prompt's first chunk, which does not sample


def our_kernels() -> set[str]:
    """Names of all Triton kernels of the package."""
    import triton

    names = [m.name for m in pkgutil.iter_modules(kernels.__path__) if not m.ispkg]
    modules = [importlib.import_module(f"kernels.{name}") for name in names]
    return {
        name
        for module in modules
        for name, value in vars(module).items()
        if name.endswith("_kernel") and isinstance(value, triton.JITFunction)
    }


def launched(work: Callable[[], None]) -> list[str]:
    """What runs on the device during `work`, by name, in order."""
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA, ProfilerActivity.CPU]) as profiler:
        work()
        torch.cuda.synchronize()
    device = torch.autograd.DeviceType.CUDA
    events = [event for event in profiler.events() if event.device_type == device]
    return [event.name for event in sorted(events, key=lambda event: event.time_range.start)]


class Rows:
    """20 rows with a prompt of 300 tokens each in the pool, of a small bf16 model."""

    def __init__(self, folder: Path, *more: str) -> None:
        flags = (
            f"--model {folder} --device cuda --num-blocks 1000 --block-size 16 --max-rows 24 "
            "--max-model-len 2000 --max-step-tokens 8000"
        )
        runner = make_executor(parse([*flags.split(), *more]))
        assert isinstance(runner, TorchRunner)
        runner.warm_up()
        self.runner, self.ledger = runner, Ledger(runner.geometry, check_slots=True)
        self.step_id = 0
        new = [
            new_row(row, f"{row}", range(300), range(1 + 20 * row, 21 + 20 * row))
            for row in range(20)
        ]
        self.run(dict.fromkeys(range(20), 300), dict.fromkeys(range(20), 300), new)

    def run(self, lens: dict[int, int], contexts: dict[int, int], new: Sequence = ()) -> None:
        self.step_id += 1
        slots = [
            20 * 16 * row + 16 + position
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
            samples=np.array([contexts[row] != PART for row in lens], np.uint8).tobytes(),
        )
        for pending in self.runner.launch(self.ledger.admit(step)):
            pending.wait()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama(
        tmp_path_factory.mktemp("wide"),
        hidden_size=2048,
        intermediate_size=4096,
        num_attention_heads=32,
        num_key_value_heads=8,
        head_dim=64,
        vocab_size=20000,
        max_position_embeddings=4096,
        torch_dtype="bfloat16",
    )


EXTRAS = [
    "clear_counts_kernel", "count_tokens_kernel", "penalize_kernel", "best_of_stretch_kernel",
    "best_of_line_kernel", "scatter_kernel", "top_of_stretch_kernel", "top_of_line_kernel",
]  # fmt: skip


@pytest.mark.parametrize("flags", [(), ("--no-cuda-graphs",)])
def test_penalties_and_log_probabilities_are_launched_after_a_step_that_has_them(
    folder: Path, flags: tuple[str, ...]
) -> None:
    """And before that the step is what it is without them."""
    rows, blocks = Rows(folder, *flags), range(401, 421)
    sampling = worker_pb2.SamplingParams(repetition_penalty=1.5)
    asks = new_row(20, "asks", range(250), blocks, sampling=sampling, top_logprobs=5)
    rows.run({20: 250}, {20: 250}, [asks])
    steps = [
        dict.fromkeys(range(20), 301),
        dict.fromkeys(range(19), 302) | {20: 251},
    ]
    plain, more = (
        [
            name
            for name in launched(lambda step=step: rows.run(dict.fromkeys(step, 1), step))
            if not COPY.search(name)
        ]
        for step in steps
    )
    assert not set(plain) & {*EXTRAS[:3], *EXTRAS[6:]}
    assert more == plain + EXTRAS


@pytest.mark.parametrize("flags", [(), ("--no-cuda-graphs",), ("--batch-invariant",)])
def test_a_step_launches_our_kernels_and_matrix_products_alone(
    folder: Path, flags: tuple[str, ...]
) -> None:
    """With --batch-invariant, and of a few rows, the products are ours too."""
    rows, invariant = Rows(folder, *flags), "--batch-invariant" in flags
    ours = our_kernels()
    extra = [new_row(20 + i, f"{20 + i}", range(250), range(401 + 20 * i, 421 + 20 * i))
             for i in range(2)]  # fmt: skip
    decodes = dict.fromkeys(range(20), 1)
    steps: dict[str, tuple] = {
        "decode": (decodes, dict.fromkeys(range(20), 301)),
        "one decode": ({0: 1}, {0: 302}),
        "mixed": (
            dict.fromkeys(range(1, 20), 1) | {20: 250, 21: PART},
            dict.fromkeys(range(1, 20), 302) | {20: 250, 21: PART},
            extra,
        ),
        "chunk": ({21: 250 - PART}, {21: 250}),
    }
    for name, step in steps.items():
        names = launched(lambda step=step: rows.run(*step))
        strange = [n for n in names if n not in ours and not PRODUCT.search(n)]
        assert not [n for n in strange if not COPY.search(n)], name
        attention = {"decode_kernel", "prefill_kernel"}
        if invariant:
            attention = {f"invariant_{name}" for name in attention}
        elif torch.cuda.get_device_capability()[0] == 9:
            attention = {"hopper_decode_kernel", "prefill_kernel"}
        assert attention & set(names), name
        assert {"gather_rows_kernel", "step_tokens_kernel", "best_of_line_kernel"} <= set(names)
        products = [n for n in names if PRODUCT.search(n) and n not in ours]
        few = {"skinny_product_kernel", "add_norm_kernel"}
        if invariant:
            assert not products, name
            assert not few & set(names)
        elif name == "decode":
            assert not products
            assert few <= set(names)
        else:
            assert len(products) >= 5 or name == "one decode", name
            if name == "mixed":
                # Those of the draws' two products, and of the first layer's with 4096 inputs, which
                # is in parts.
                assert names.count("add_norm_kernel") == 3
        print(name, len(names), sorted(set(names)))
