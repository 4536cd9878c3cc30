"""The GPU bench as it is typed: on this CPU, with a simulated worker behind the real processes."""

from __future__ import annotations

import json
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from deploy.bench import gpu_worker
from deploy.bench.floor import Rates
from deploy.bench.gpu import __main__ as command
from deploy.bench.gpu import card
from deploy.bench.gpu.__main__ import main
from deploy.bench.gpu.attention import attention_rows
from deploy.bench.gpu.measure import ModelRows, Sizes
from deploy.bench.gpu.model_bench import KINDS
from deploy.bench.gpu.targets import TARGETS
from deploy.model.random_llama import write_byte_tokenizer, write_config
from kernels.bench.shape import Shape
from tests.deploy.bench.test_floor import MODEL, RATES
from tests.tiny_llama import tiny_config

SMALL = (
    *("--device", "cpu", "--worker-args=--simulate --step-ms 2", "--streams", "2"),
    *("--prompt", "8", "--output", "16", "--repetitions", "2", "--clients", "1"),
    *("--frontends", "0"),
)
CARD = {
    "device": "a card",
    "state": "",
    "rates": {"read_bytes": 1e9, "bf16_operations": 1e9},
    "attention": [],
    "attention_failure": "",
}


@pytest.fixture
def weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What a simulated worker and a scheduler need of the tiny model, and a card of round
    rates."""
    (tmp_path / "tiny").mkdir()
    write_config(tmp_path / "tiny", tiny_config())
    write_byte_tokenizer(tmp_path / "tiny")
    monkeypatch.setattr(command, "_card", lambda *_: CARD)
    return tmp_path


def test_rows_are_printed_and_written_with_what_they_were_measured_on(
    weights: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    only = ("--only", "tiny", "start", "decode", "first-token", "--frontends", "1")
    repeated = ("--decode-steps", "4")
    assert (
        main([*SMALL, *only, *repeated, "--weights", str(weights), "--json", str(weights / "x")])
        == 0
    )
    report = json.loads((weights / "x").read_text())
    rows = {row["key"]: row for row in report["rows"]}
    assert list(rows) == [
        *("tiny start cold", "tiny start warm", "tiny decode 2", "tiny first token 1 frontends"),
        *("tiny first token", "tiny decode 2 k4"),
    ]
    assert rows["tiny decode 2"]["gap_p99_ms"] >= 1.9  # a step's device time
    assert len(rows["tiny decode 2"]["values"]) == 2
    for key in ("tiny first token", "tiny first token 1 frontends"):
        assert len(rows[key]["values"]) == 20
    assert report["starts"]["tiny warm"][-1][1].startswith("listening on unix:")
    assert report["settings"]["prompt"] == "8"
    assert report["card"] == CARD
    assert rows["tiny decode 2"]["floor"] > 0
    assert len(rows["tiny decode 2 k4"]["values"]) == 2
    shown = capsys.readouterr().out
    assert "TINY decode step, batch 2" in shown
    assert "TINY decode step, batch 2, k to 4" in shown


def test_a_step_of_decodes_takes_what_each_more_token_takes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Steady:
        """A batch whose first tokens come after 10 ms, and each further one 2 ms later."""

        def __init__(self, *_: object) -> None: ...

        def bursts(self, _address: str, tokens: int) -> nullcontext:
            times = SimpleNamespace(end=0.01 + 0.002 * (tokens - 1), gaps=np.full(tokens, 0.002))
            return nullcontext(SimpleNamespace(send=lambda: times))

    monkeypatch.setattr("deploy.bench.gpu.measure.Batch", Steady)
    rows = ModelRows("1b", MODEL, 256, RATES, Sizes((2,), 8, 16, 3, 1), lambda _: None)
    (row,) = rows.decode("address", [2])
    assert (row.key, row.unit) == ("1b decode 2", "ms")
    assert row.values == pytest.approx([2.0] * 3)
    assert row.to_json()["gap_p99_ms"] == pytest.approx(2.0)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--output", "1"], "--output is 1, must be at least 2"),
        (["--repetitions", "0"], "--repetitions is 0, must be at least 1"),
        (["--streams", "1", "0"], "--streams is 0, must be at least 1"),
        (["--frontends", "65"], "--frontends is 65, must be 0 to 64"),
        (["--decode-steps", "0"], "--decode-steps is 0, must be at least 1"),
        (["--only", "2b"], "--only: invalid choice: '2b'"),
    ],
)
def test_what_cannot_be_measured_is_refused(
    flags: list[str], message: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    with pytest.raises(SystemExit) as ended:
        main([*flags, "--json", str(tmp_path / "x")])
    assert ended.value.code == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "x").exists()


def test_a_worker_that_cannot_start_ends_it_with_the_workers_own_words(
    weights: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ("--only", "tiny", "start", *SMALL, "--worker-args=--simulate --block-size 0")
    assert main([*flags, "--weights", str(weights), "--json", str(weights / "x")]) == 1
    assert "block_size is 0" in capsys.readouterr().err
    report = json.loads((weights / "x").read_text())
    assert report["card"] == CARD
    assert "block_size is 0" in report["errors"][0]


def test_attention_alone_needs_no_model(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    times = {"head_dim": 64, "rows": 1, "context": 640, "us": 5.0, "bytes": 1000}
    monkeypatch.setattr(command, "_card", lambda *_: CARD | {"attention": [times]})
    assert main(["--only", "attention", "--json", str(tmp_path / "x")]) == 0
    assert "attention, head_dim 64, 1 x 640" in capsys.readouterr().out


def test_attention_that_fails_is_told_and_keeps_no_other_row_from_being_measured(
    weights: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "_card", lambda *_: CARD | {"attention_failure": "no kernel"})
    flags = ("--only", "tiny", "attention", "start", *SMALL, "--weights", str(weights))
    assert main([*flags, "--json", str(weights / "x")]) == 1
    report = json.loads((weights / "x").read_text())
    assert [row["key"] for row in report["rows"]] == ["tiny start cold", "tiny start warm"]
    assert report["errors"] == ["attention could not be timed:\nno kernel"]
    assert "no kernel" in capsys.readouterr().err


def test_attention_is_timed_at_the_shapes_that_have_targets(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Timed:
        def decode(self, shape: Shape, rows: int, context: int) -> tuple[float, float]:
            print("a table")
            return float(shape.head_dim + rows), 2.0

    monkeypatch.setattr("kernels.bench.gpu.GpuBench", Timed)
    found = card.time_attention()
    assert [one["us"] for one in found] == [128, 192, 320, 384, 65, 65]
    assert found[1]["bytes"] == 4 * 64 * 4096 * 8 * 128
    keys = [row.key for row in attention_rows(found, RATES)]
    assert keys == [key for key in TARGETS if key.startswith("attention")]


def test_the_card_alone_makes_weights_once_and_tells_rates(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ["--weights", str(tmp_path), "--shapes", "tiny", "--device", "cpu"]
    assert card.main(flags) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["device"] == "cpu"
    assert Rates(**found["rates"]).read_bytes > 1e8
    tokenizer = json.loads((tmp_path / "tiny" / "tokenizer.json").read_text())
    assert len(tokenizer["model"]["vocab"]) == 256
    (tmp_path / "tiny" / "model.safetensors").write_bytes(b"kept")
    assert card.main(flags) == 0
    assert (tmp_path / "tiny" / "model.safetensors").read_bytes() == b"kept"


def test_text_is_told_as_the_rate_of_ids_alone() -> None:
    rows = ModelRows("1b", MODEL, 256, RATES, Sizes((256,), 8, 16, 2, 1), lambda _: None)
    row = rows.text([0.002, 0.0025], [0.0019, 0.0021], 256)
    assert (row.unit, row.values) == ("%", (pytest.approx(100.0), pytest.approx(80.0)))
    assert row.key in TARGETS


def test_a_worker_alone_needs_steps_enough_for_its_window(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit):
        gpu_worker.main(["--model", "x", "--output", "12", "--decode-steps", "4"])
    assert "--output 12 at least 16" in capsys.readouterr().err


def test_kinds_are_told_in_the_order_of_the_table() -> None:
    assert KINDS[:3] == ("attention", "start", "decode")
