"""`--batch-invariant` on a GPU: logits bit for bit, and tokens of a worker."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch

from deploy.model.random_llama import SHAPES, write_random_llama
from scheduler.link.encoder import encode_step
from tests.player import Player, load_llama
from tests.tiny_llama import tiny_llama
from tests.worker.toy_scheduler import ToyRequest, ToyScheduler, random_requests
from worker.__main__ import parse
from worker.ledger import Ledger
from worker.model.invariance import NotInvariantError, check_invariance
from worker.model.llama import Llama
from worker.runner import TorchRunner
from worker.start import make_executor

BF16 = torch.bfloat16
LENGTH = 330  # positions in two of attention's splits


def test_a_cpu_takes_the_flag_and_has_nothing_to_do(tmp_path: Path) -> None:
    runner = make_executor(parse(["--model", str(tiny_llama(tmp_path)), "--batch-invariant"]))
    assert isinstance(runner, TorchRunner)
    assert runner._model.ops.face == "cpu"


def test_the_flag_is_off_unless_it_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not parse(["--model", "folder"]).batch_invariant
    monkeypatch.setenv("NANOSERVE_BATCH_INVARIANT", "true")
    assert parse(["--model", "folder"]).batch_invariant


@pytest.fixture(scope="module", params=["small", "1b"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random Llama in bf16; of the small one's products one is in stretches."""
    folder = tmp_path_factory.mktemp(request.param)
    if request.param == "1b":
        return write_random_llama(folder, SHAPES["1b"] | {"num_hidden_layers": 4}, 0, "cuda")
    return tiny_llama(
        folder,
        hidden_size=1024,
        intermediate_size=8192,
        num_attention_heads=16,
        num_key_value_heads=4,
        head_dim=64,
        vocab_size=5000,
        max_position_embeddings=2048,
        torch_dtype="bfloat16",
    )


@pytest.fixture(scope="module")
def model(folder: Path) -> Llama:
    return load_llama(folder, BF16, "cuda", max_model_len=2048, batch_invariant=True)


def ids_of(seed: int, count: int, model: Llama) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, model.config.vocab_size, (count,), generator=generator).tolist()


def in_chunks(model: Llama, ids: list[int], size: int) -> torch.Tensor:
    """Logits [len(ids), vocab] at every position of a prompt cut into chunks of `size`."""
    player = Player(model, [len(ids)], 16)
    chunks = [ids[start : start + size] for start in range(0, len(ids), size)]
    return torch.cat([player.step({0: chunk}) for chunk in chunks])


def differs(model: Llama) -> set[str]:
    """The ways to compute a prompt's logits that give other bits than the whole prompt alone."""
    ids = ids_of(0, LENGTH, model)
    whole = in_chunks(model, ids, LENGTH)
    ways = {f"chunks of {size}": in_chunks(model, ids, size) for size in (7, 64)}
    ways["decodes alone"] = in_chunks(model, ids, 1)
    strangers = {row: ids_of(row, 1 + row % 40, model) for row in range(1, 256)}
    player = Player(model, [LENGTH, *(len(row) + LENGTH for row in strangers.values())], 16)
    # Chunks beside 255 prompts, then decodes beside 255 decodes.
    first = player.step({0: ids[:100], **strangers})
    order = Player.order({0: ids[:100], **strangers})
    before = sum(len(strangers[row]) for row in order[: order.index(0)])
    together = [first[before : before + 100]]
    for position in range(100, LENGTH):
        decodes = {0: ids[position : position + 1]}
        decodes |= {row: [position] for row in strangers}
        together.append(player.step(decodes, [0]))
    ways["among 255 strangers"] = torch.cat(together)
    return {way for way, logits in ways.items() if not torch.equal(logits, whole)}


@pytest.mark.gpu
@pytest.mark.timeout(300)
def test_logits_have_the_same_bits_however_they_are_computed(model: Llama) -> None:
    assert differs(model) == set()


@pytest.mark.gpu
@pytest.mark.timeout(300)
def test_without_the_flag_they_do_not(folder: Path, model: Llama) -> None:
    usual = load_llama(folder, BF16, "cuda", max_model_len=2048)
    assert differs(usual) >= {"decodes alone", "among 255 strangers"}
    with pytest.raises(NotInvariantError):
        check_invariance(usual, 16)
    check_invariance(model, 16)


def outputs(runner: TorchRunner, requests: list[ToyRequest], seed: int, preempt: float) -> list:
    """Every request's tokens, when all run at a time in steps of random sequences and chunks."""
    scheduler = ToyScheduler(runner.geometry, 0, random.Random(seed), 70, preempt)
    scheduler.waiting = list(requests)
    ledger = Ledger(runner.geometry, check_slots=True)
    while scheduler.busy:
        plan = scheduler.plan()
        (pending,) = runner.launch(ledger.admit(encode_step(plan)))
        scheduler.answer(plan.step_id, pending.wait().tokens)
    return [request.output for request in requests]


@pytest.mark.gpu
@pytest.mark.timeout(300)
@pytest.mark.parametrize("graphs", [True, False], ids=["graphs", "no graphs"])
def test_a_worker_gives_a_request_the_same_tokens_in_any_company(
    tmp_path: Path, graphs: bool
) -> None:
    """Whatever its chunks, and computed again after it was taken away; in bf16."""
    folder = tiny_llama(tmp_path, torch_dtype="bfloat16", max_position_embeddings=1024)
    flags = (
        f"--model {folder} --device cuda --batch-invariant --num-blocks 2000 --max-rows 24 "
        "--max-step-tokens 512"
    )
    runner = make_executor(parse([*flags.split(), *([] if graphs else ["--no-cuda-graphs"])]))
    assert isinstance(runner, TorchRunner)
    runner.warm_up()

    def requests() -> list[ToyRequest]:
        return random_requests(random.Random(1), 20, 256, 400)

    together = outputs(runner, requests(), 2, preempt=0.02)
    alone = [outputs(runner, [request], 3, preempt=0.0)[0] for request in requests()]
    assert together == alone
    assert len({tuple(tokens) for tokens in alone}) > 10
