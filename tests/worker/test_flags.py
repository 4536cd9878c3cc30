"""Which flags go together."""

from __future__ import annotations

import pytest

from worker.__main__ import parse


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
