from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2_grpc
from tokenizers import Tokenizer as HuggingFaceTokenizer

from deploy.model.fetch import fetch
from nanoserve.v1 import inference_pb2_grpc
from nanoserve.v1.inference_pb2 import GenerateRequest, GenerateResponse
from scheduler.api import shared_snapshots
from scheduler.api.model_folder import ModelFolder
from scheduler.api.server import ApiServer, ServerConfig
from scheduler.api.service import ServedModel
from scheduler.api.tokenizer import Tokenizer
from tests.scheduler.api import small_tokenizers
from tests.scheduler.api.scripted_engine import ScriptedEngine
from tests.scheduler.api.small_tokenizers import write_folder
from tests.waiting import SECONDS


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


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """With an engine whose thread the machine keeps waiting; clients are left waiting for less."""
    monkeypatch.setattr(shared_snapshots, "ANSWER_SECONDS", SECONDS)


@pytest.fixture
async def serve(smollm2: Tokenizer) -> AsyncIterator[Callable[..., Awaitable[Served]]]:
    """Starts servers for scripted engines on free ports; stops them at the end."""
    started: list[Served] = []

    async def start(engine: ScriptedEngine, tokenizer=smollm2, **config: float) -> Served:
        model = ServedModel("tiny", tokenizer, frozenset([2]))
        config = ServerConfig(listen="127.0.0.1:0", **config)
        server = ApiServer(config, model, engine)
        await server.start()
        served = Served(server, engine)
        started.append(served)
        return served

    yield start
    for served in started:
        await served.channel.close()
        await served.server.stop()


class Served:
    """A running server with a client's channel to it."""

    def __init__(self, server: ApiServer, engine: ScriptedEngine) -> None:
        self.server = server
        self.engine = engine
        self.channel = grpc.aio.insecure_channel(server.address)
        self.stub = inference_pb2_grpc.InferenceServiceStub(self.channel)
        self.health = health_pb2_grpc.HealthStub(self.channel)

    async def generate(self, timeout: float = SECONDS, **fields: object) -> list[GenerateResponse]:
        request = GenerateRequest(**fields)
        return [response async for response in self.stub.Generate(request, timeout=timeout)]

    async def error(self, timeout: float = SECONDS, **fields: object) -> grpc.aio.AioRpcError:
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await self.generate(timeout, **fields)
        return raised.value
