"""The output head, tied to the embedding or not."""

import json
import logging
from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from tests.player import Player, load_llama
from tests.tiny_llama import ABSENT, tiny_llama
from worker.model.errors import WeightsError
from worker.model.weight_files import INDEX

HEAD, EMBEDDING = "lm_head.weight", "model.embed_tokens.weight"
IDS = [1, 2, 3, 200, 100]


def ours(folder: Path, face: str = "auto") -> torch.Tensor:
    return Player(load_llama(folder, face=face), [len(IDS)]).step({0: IDS})


@torch.no_grad()
def theirs(folder: Path) -> torch.Tensor:
    model = transformers.LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32)
    return model(torch.tensor([IDS])).logits[0]


def store_head(folder: Path, head: torch.Tensor) -> None:
    file = folder / "model.safetensors"
    save_file(load_file(file) | {HEAD: head}, file, metadata={"format": "pt"})


def embedding(folder: Path) -> torch.Tensor:
    return load_file(folder / "model.safetensors")[EMBEDDING].clone()


def test_tied_without_a_head_is_the_embedding_in_one_copy(tmp_path: Path) -> None:
    folder = tiny_llama(tmp_path, tie_word_embeddings=True)
    torch.testing.assert_close(ours(folder), theirs(folder), atol=1e-4, rtol=0)
    weights = load_llama(folder, face="reference").weights
    assert weights.head.data.data_ptr() == weights.embedding.data_ptr()


def test_tied_with_an_equal_head_is_the_embedding_in_one_copy(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tiny_llama(tmp_path, tie_word_embeddings=True)
    store_head(folder, embedding(folder))
    with caplog.at_level(logging.WARNING, logger="worker"):
        torch.testing.assert_close(ours(folder), theirs(folder), atol=1e-4, rtol=0)
    assert [r for r in caplog.records if r.name.startswith("worker")] == []
    weights = load_llama(folder, face="reference").weights
    assert weights.head.data.data_ptr() == weights.embedding.data_ptr()


def test_tied_with_a_different_head_uses_the_head_as_transformers_does_and_warns(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tiny_llama(tmp_path, tie_word_embeddings=True)
    tied = ours(folder)
    store_head(folder, embedding(folder).flip(0))
    with caplog.at_level(logging.WARNING, logger="worker"):
        logits = ours(folder)
    assert [r.message for r in caplog.records if r.name.startswith("worker")] == [
        f"config.json ties {HEAD} (model.safetensors) to {EMBEDDING} (model.safetensors), but "
        f"their values differ: the head is used as stored; set tie_word_embeddings to false"
    ]
    torch.testing.assert_close(logits, theirs(folder), atol=1e-4, rtol=0)
    torch.testing.assert_close(logits, tied.flip(1), atol=1e-4, rtol=0)


@pytest.mark.parametrize("flag", [False, ABSENT])
def test_untied_or_unsaid_without_a_head_is_refused_by_name(tmp_path: Path, flag: object) -> None:
    folder = tiny_llama(tmp_path, tie_word_embeddings=True)
    config = json.loads((folder / "config.json").read_text())
    del config["tie_word_embeddings"]
    if flag is not ABSENT:
        config["tie_word_embeddings"] = flag
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(WeightsError) as error:
        load_llama(folder)
    assert str(error.value) == (
        f"model.safetensors: missing tensor {HEAD} (config.json does not tie it to the embedding)"
    )


@pytest.mark.parametrize("flag", [False, ABSENT])
def test_untied_or_unsaid_with_a_head_uses_it(tmp_path: Path, flag: object) -> None:
    folder = tiny_llama(tmp_path, tie_word_embeddings=flag)
    torch.testing.assert_close(ours(folder), theirs(folder), atol=1e-4, rtol=0)


def test_head_and_embedding_may_lie_in_different_shards(tmp_path: Path) -> None:
    folder = tiny_llama(tmp_path, shard_bytes=60_000)
    files = json.loads((folder / INDEX).read_text())["weight_map"]
    assert files[HEAD] != files[EMBEDDING]
    torch.testing.assert_close(ours(folder), theirs(folder), atol=1e-4, rtol=0)
