"""Weight files: every tensor is filled exactly once, or the start fails naming file and
tensor."""

import json
import logging
import pickle
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.player import Player, load_llama
from tests.tiny_llama import tiny_llama
from worker.model.errors import WeightsError
from worker.model.weight_files import INDEX

SHARD_BYTES = 60_000
FIRST, SECOND, LAST = (f"model-0000{number}-of-00009.safetensors" for number in (1, 2, 9))
K_PROJ = "model.layers.0.self_attn.k_proj.weight"
NORM = "model.norm.weight"


@pytest.fixture
def single(tmp_path: Path) -> Path:
    return tiny_llama(tmp_path / "single")


@pytest.fixture
def sharded(tmp_path: Path) -> Path:
    folder = tiny_llama(tmp_path / "sharded", shard_bytes=SHARD_BYTES)
    assert len(list(folder.glob("*.safetensors"))) == 9
    return folder


def logits(folder: Path) -> torch.Tensor:
    return Player(load_llama(folder), [5]).step({0: [1, 2, 3, 4, 5]})


def refusal(folder: Path) -> str:
    with pytest.raises(WeightsError) as error:
        load_llama(folder)
    return str(error.value)


def change_tensors(file: Path, **changes: torch.Tensor | None) -> None:
    tensors = load_file(file) | changes
    save_file({name: value for name, value in tensors.items() if value is not None}, file)


def change_index(folder: Path, **changes: str | None) -> None:
    index = json.loads((folder / INDEX).read_text())
    entries = index["weight_map"] | changes
    index["weight_map"] = {name: file for name, file in entries.items() if file is not None}
    (folder / INDEX).write_text(json.dumps(index))


def test_shards_hold_the_same_model_as_a_single_file(single: Path, sharded: Path) -> None:
    assert torch.equal(logits(single), logits(sharded))


def test_a_missing_shard_is_named_with_a_tensor(sharded: Path) -> None:
    (sharded / LAST).unlink()
    assert refusal(sharded) == (f"{LAST} is missing: {INDEX} names it for tensor lm_head.weight")


def test_a_shard_cut_by_32_bytes_is_named_with_the_tensor_that_is_not_whole(
    sharded: Path,
) -> None:
    shard = sharded / LAST
    whole = shard.read_bytes()
    shard.write_bytes(whole[:-32])
    assert refusal(sharded) == (
        f"{LAST} is cut short: it has {len(whole) - 32} of {len(whole)} bytes, so tensor "
        f"lm_head.weight is not whole; get it again"
    )


def test_a_file_with_bytes_after_its_last_tensor_is_refused(single: Path) -> None:
    with (single / "model.safetensors").open("ab") as file:
        file.write(b"more")
    assert refusal(single) == ("model.safetensors has 4 bytes after its last tensor: get it again")


def test_an_empty_shard_is_named(sharded: Path) -> None:
    (sharded / SECOND).write_bytes(b"")
    assert refusal(sharded) == f"{SECOND} is empty: get it again"


def test_a_git_lfs_pointer_is_named(sharded: Path) -> None:
    (sharded / FIRST).write_text(
        "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 49152\n"
    )
    assert refusal(sharded) == (
        f"{FIRST} is a Git LFS pointer, not the weights: run `git lfs pull`"
    )


def test_bytes_that_are_no_safetensors_are_named(single: Path) -> None:
    (single / "model.safetensors").write_bytes(b"\xff" * 100)
    assert refusal(single) == (
        "model.safetensors is no whole safetensors file: its 100 bytes cannot hold the header of "
        "18446744073709551615 bytes that it announces"
    )
    (single / "model.safetensors").write_bytes((4).to_bytes(8, "little") + b"nope")
    assert refusal(single).startswith("model.safetensors has a damaged header: JSONDecodeError")
    save_file({}, single / "model.safetensors")
    assert refusal(single) == "model.safetensors holds no tensor"


def test_a_tensor_that_the_index_names_but_the_shard_lacks_is_named(sharded: Path) -> None:
    file = json.loads((sharded / INDEX).read_text())["weight_map"][K_PROJ]
    change_tensors(sharded / file, **{K_PROJ: None})
    assert refusal(sharded) == (f"{file} does not hold tensor {K_PROJ}, for which {INDEX} names it")


def test_a_tensor_that_nobody_has_is_named(single: Path, sharded: Path) -> None:
    change_tensors(single / "model.safetensors", **{K_PROJ: None, NORM: None})
    assert refusal(single) == f"model.safetensors: missing tensor {K_PROJ}, {NORM}"
    change_index(sharded, **{NORM: None})
    assert refusal(sharded).endswith(f"and 6 more: missing tensor {NORM}")


def test_an_unindexed_copy_with_other_values_is_not_read(
    sharded: Path, caplog: pytest.LogCaptureFixture
) -> None:
    expected = logits(sharded)
    for file in (FIRST, LAST):  # before and after the norm's own shard
        change_tensors(sharded / file, **{NORM: torch.full((64,), 7.0)})
    with caplog.at_level(logging.WARNING):
        assert torch.equal(logits(sharded), expected)
    assert [record.message for record in caplog.records] == [
        f"not read, since {INDEX} does not name it there: {NORM} in {FIRST}, {NORM} in {LAST}"
    ]


def test_a_stray_second_file_is_not_read_where_there_is_an_index(
    sharded: Path, caplog: pytest.LogCaptureFixture
) -> None:
    expected = logits(sharded)
    stray = tiny_llama(sharded.parent / "other", seed=9) / "model.safetensors"
    shutil.copy(stray, sharded / "model.safetensors")
    with caplog.at_level(logging.WARNING):
        assert torch.equal(logits(sharded), expected)
    assert [record.message for record in caplog.records] == [
        f"not read, since {INDEX} does not name it: model.safetensors"
    ]


def test_two_files_without_an_index_are_refused_by_name(single: Path) -> None:
    shutil.copy(single / "model.safetensors", single / "copy.safetensors")
    assert refusal(single) == (
        f"{single} has 2 weight files (copy.safetensors, model.safetensors) and no {INDEX} to say "
        f"which tensor is in which: keep one file or add the index"
    )


def test_a_wrong_shape_is_named_with_the_right_one(sharded: Path) -> None:
    file = json.loads((sharded / INDEX).read_text())["weight_map"][K_PROJ]
    change_tensors(sharded / file, **{K_PROJ: torch.zeros(64, 32)})
    assert refusal(sharded) == (
        f"{file}: tensor {K_PROJ} has shape [64, 32], config.json asks for [32, 64]"
    )


def test_a_type_that_is_not_supported_is_named(single: Path) -> None:
    change_tensors(single / "model.safetensors", **{NORM: torch.zeros(64, dtype=torch.int8)})
    assert refusal(single) == (
        f"model.safetensors: tensor {NORM} has type I8, which is not supported; "
        f"supported are F32, BF16, F16"
    )


class Bomb:
    def __reduce__(self):
        return (pytest.fail, ("a pickle was opened",))


def test_a_pickle_is_never_opened(single: Path, sharded: Path) -> None:
    (single / "model.safetensors").unlink()
    (single / "pytorch_model.bin").write_bytes(pickle.dumps(Bomb()))
    assert refusal(single) == (
        f"{single} has weights as pickles only (pytorch_model.bin), which can run code and are "
        f"never opened: convert them to safetensors"
    )
    (sharded / "pytorch_model.bin").write_bytes(pickle.dumps(Bomb()))
    logits(sharded)
    change_index(sharded, **{NORM: "pytorch_model.bin"})
    assert refusal(sharded) == (
        f"{INDEX}: tensor {NORM} is in pytorch_model.bin; only .safetensors files are opened"
    )


@pytest.mark.parametrize("file", ["../outside.safetensors", "a/../../outside.safetensors"])
def test_an_index_entry_outside_of_the_folder_is_refused(sharded: Path, file: str) -> None:
    save_file({NORM: torch.ones(64)}, sharded.parent / "outside.safetensors")
    change_index(sharded, **{NORM: file})
    assert refusal(sharded) == (
        f"{INDEX}: tensor {NORM} is in {file}, which is outside of the model folder"
    )
    change_index(sharded, **{NORM: str(sharded / FIRST)})
    assert "which is outside of the model folder" in refusal(sharded)


def test_an_index_that_cannot_be_read_is_named(sharded: Path) -> None:
    (sharded / INDEX).write_text("{}")
    assert refusal(sharded) == f"{INDEX} cannot be read: KeyError('weight_map')"
    (sharded / INDEX).write_text('{"weight_map": {}}')
    assert refusal(sharded) == f"{INDEX} names no tensor"


def test_a_folder_without_weights_is_refused(single: Path) -> None:
    (single / "model.safetensors").unlink()
    assert refusal(single) == (
        f"{single} has no weight file: expected model.safetensors or {INDEX}"
    )


def test_files_of_a_cache_that_are_links_are_read(sharded: Path) -> None:
    expected = logits(sharded)
    blobs = sharded.parent / "blobs"
    blobs.mkdir()
    for file in list(sharded.glob("*.safetensors")):
        (sharded / file.name).rename(blobs / file.name)
        file.symlink_to(Path("..") / "blobs" / file.name)
    assert torch.equal(logits(sharded), expected)


def test_a_gap_between_tensors_is_refused(tmp_path: Path, single: Path) -> None:
    header = json.dumps(
        {
            "a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]},
            "b": {"dtype": "F32", "shape": [1], "data_offsets": [8, 12]},
        }
    ).encode()
    (single / "model.safetensors").write_bytes(
        len(header).to_bytes(8, "little") + header + b"\0" * 12
    )
    start = 8 + len(header)
    assert refusal(single) == (
        f"model.safetensors has a damaged header: tensor b starts at byte {start + 8}, "
        f"expected {start + 4}"
    )


def test_a_tensor_that_occurs_twice_in_a_file_is_refused(single: Path) -> None:
    entry = '"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}'
    header = f"{{{entry}, {entry}}}".encode()
    (single / "model.safetensors").write_bytes(
        len(header).to_bytes(8, "little") + header + b"\0" * 4
    )
    assert refusal(single) == (
        "model.safetensors has a damaged header: ValueError('a name occurs twice')"
    )


def test_start_and_end_of_loading_are_logged_and_no_bar_is_drawn_off_a_terminal(
    single: Path, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    from kernels import ops
    from worker.model.config import ModelConfig
    from worker.model.loader import load_weights

    with caplog.at_level(logging.INFO):
        load_weights(
            single, ModelConfig.from_folder(single), torch.float32, "cpu", ops("cpu"), True
        )
    first, last = [record.message for record in caplog.records]
    assert first == f"loading 21 tensors, 0.00 GB, from {single}"
    assert last.startswith("weights loaded in ")
    assert capsys.readouterr() == ("", "")
