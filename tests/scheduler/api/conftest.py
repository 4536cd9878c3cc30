from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from tokenizers import Tokenizer as HuggingFaceTokenizer

from deploy.model.fetch import fetch
from scheduler.api.model_folder import ModelFolder
from scheduler.api.tokenizer import Tokenizer
from tests.scheduler.api import small_tokenizers
from tests.scheduler.api.small_tokenizers import write_folder


@pytest.fixture(scope="session")
def smollm2_folder() -> Path:
    return fetch()


@pytest.fixture(scope="session")
def smollm2(smollm2_folder: Path) -> Tokenizer:
    return Tokenizer(ModelFolder.read(smollm2_folder))


@pytest.fixture(scope="session")
def smollm2_reference(smollm2_folder: Path) -> HuggingFaceTokenizer:
    return HuggingFaceTokenizer.from_file(str(smollm2_folder / "tokenizer.json"))


@pytest.fixture
def make_tokenizer(tmp_path: Path) -> Callable[..., Tokenizer]:
    """A server's tokenizer from one of the library's, by way of a model folder."""

    def make(tokenizer: HuggingFaceTokenizer, **options: object) -> Tokenizer:
        return Tokenizer(ModelFolder.read(write_folder(tmp_path, tokenizer, **options)))

    return make


@pytest.fixture(scope="session")
def byte_fallback_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_folder(
        tmp_path_factory.mktemp("byte_fallback"),
        small_tokenizers.byte_fallback(),
        template=small_tokenizers.LLAMA_2_TEMPLATE,
        tokenizer_config={"bos_token": "<s>", "eos_token": "</s>"},
    )


@pytest.fixture(scope="session")
def byte_fallback(byte_fallback_folder: Path) -> Tokenizer:
    return Tokenizer(ModelFolder.read(byte_fallback_folder))


@pytest.fixture(scope="session")
def byte_level_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    reference = small_tokenizers.byte_level()
    return write_folder(
        tmp_path_factory.mktemp("byte_level"),
        reference,
        template=small_tokenizers.LLAMA_3_TEMPLATE,
        end_ids=[reference.token_to_id("<|end|>")],
        tokenizer_config={"bos_token": "<|begin|>", "eos_token": "<|end|>"},
    )


@pytest.fixture(scope="session")
def byte_level(byte_level_folder: Path) -> Tokenizer:
    return Tokenizer(ModelFolder.read(byte_level_folder))
