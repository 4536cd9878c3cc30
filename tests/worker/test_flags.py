"""Which flags go together."""

from __future__ import annotations

from dataclasses import replace

import pytest

from worker.__main__ import parse
from worker.start import StartError, make_executor, parse_size


@pytest.mark.parametrize(
    ("flag", "value"),
    [
        ("--step-ms", "20"),
        ("--token-us", "0.5"),
        ("--vocab-size", "100"),
        ("--script", "ids.json"),
        ("--avoid-tokens", "2"),
        ("--non-finite-tokens", "2"),
        ("--crash-tokens", "2"),
        ("--hang-tokens", "2,3"),
    ],
)
def test_a_simulations_flag_without_one_is_refused_wherever_it_is_given(
    flag: str,
    value: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    message = f"error: {flag}: of no effect without --simulate\n"
    for arguments in ([flag, value], []):
        with pytest.raises(SystemExit, match="2"):
            parse(["--model", "folder", *arguments])
        assert capsys.readouterr().err.endswith(message)
        monkeypatch.setenv(f"NANOSERVE_{flag[2:].replace('-', '_').upper()}", value)
    parse(["--simulate", flag, value])


@pytest.mark.parametrize(
    ("flag", "value"),
    [
        ("--device", "cpu"),
        ("--dtype", "float32"),
        ("--kv-memory", "1GiB"),
        ("--gpu-memory-utilization", "0.5"),
        ("--no-cuda-graphs", ""),
        ("--batch-invariant", ""),
        ("--threads", "2"),
    ],
)
def test_a_models_flag_is_refused_in_a_simulation(
    flag: str, value: str, capsys: pytest.CaptureFixture[str]
) -> None:
    given = [flag, value] if value else [flag]
    with pytest.raises(SystemExit, match="2"):
        parse(["--simulate", *given])
    assert capsys.readouterr().err.endswith(f"error: {flag}: of no effect with --simulate\n")
    parse(["--model", "folder", *given])


def test_a_simulation_may_have_a_models_configuration_and_a_pool_of_any_size() -> None:
    options = parse(["--simulate", "--model", "m", "--num-blocks", "9", "--block-size", "4"])
    assert (options.num_blocks, options.block_size) == (9, 4)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (
            ["--model", "m", "--kv-memory", "8GB"],
            "--kv-memory is '8GB', must be a number, of bytes or with one of B, KiB, MiB, GiB, TiB",
        ),
        (
            ["--model", "m", "--kv-memory", "8GiB", "--num-blocks", "9"],
            "give either --num-blocks or --kv-memory, not both",
        ),
        (
            ["--model", "m", "--gpu-memory-utilization", "nan"],
            "--gpu-memory-utilization is nan, must be above 0, at most 1",
        ),
        (
            ["--simulate", "--model", "m"],
            "m/config.json does not exist: give a Hugging Face model folder with config.json",
        ),
        (
            ["--simulate", "--vocab-size", "9", "--crash-tokens", "8,9"],
            "--crash-tokens has 9, must be 0 <= id < 9 (vocab_size)",
        ),
        (
            ["--simulate", "--script", "no.json"],
            "script no.json: cannot be read: [Errno 2] No such file or directory: 'no.json'",
        ),
    ],
)
def test_what_needs_no_weights_to_be_seen_is_refused_before_they_are_loaded(
    flags: list[str], message: str
) -> None:
    with pytest.raises(StartError) as refused:
        make_executor(parse(flags))
    assert str(refused.value) == message


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("1000000", 1_000_000),
        ("7B", 7),
        ("3KiB", 3 * 1024),
        ("1.5 MiB", 1_572_864),
        ("8GiB", 8 << 30),
        ("0.5TiB", 1 << 39),
    ],
)
def test_a_size_is_bytes_or_a_multiple_of_a_power_of_1024(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "GiB", "-1GiB", "8GB", "8gib", "1e9", "1,5GiB", "1.GiB"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="must be a number, of bytes or with one of B, KiB"):
        parse_size(text)


@pytest.mark.parametrize("ids", ["x", "1,x", "-1", "1;2"])
def test_what_is_no_list_of_ids_is_refused(ids: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        parse(["--simulate", f"--crash-tokens={ids}"])
    message = f"--crash-tokens: {ids!r} must be token ids, with commas in between\n"
    assert capsys.readouterr().err.endswith(message)


def test_a_model_needs_no_flag_of_a_simulation() -> None:
    assert not parse(["--model", "folder"]).simulate


@pytest.mark.parametrize("flags", [["--simulate"], ["--model", "folder"]])
@pytest.mark.parametrize("length", ["1", "0", "-5"])
def test_a_length_without_room_for_an_output_is_refused(flags: list[str], length: str) -> None:
    with pytest.raises(StartError) as refused:
        make_executor(parse([*flags, "--max-model-len", length]))
    assert str(refused.value) == (
        f"--max-model-len is {length}, must be at least 2: a token of the prompt and one of the "
        "output"
    )


def test_a_prompt_of_one_token_and_one_of_output_is_the_least() -> None:
    geometry = make_executor(parse(["--simulate", "--max-model-len", "2"])).geometry
    assert geometry.max_model_len == 2
    with pytest.raises(ValueError, match="max_model_len is 1, must be 2 <= max_model_len"):
        replace(geometry, max_model_len=1)
