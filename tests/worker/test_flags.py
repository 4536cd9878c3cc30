"""Which flags go together."""

from __future__ import annotations

from dataclasses import replace

import pytest

from worker.__main__ import parse
from worker.start import StartError, make_executor


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
