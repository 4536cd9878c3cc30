"""What a card draws, as nvidia-smi tells it."""

from __future__ import annotations

import sys
import time

import pytest

from kernels.bench.power import PowerMeter, Sample


def test_a_line_of_nvidia_smi_is_watts_clock_and_limit() -> None:
    assert Sample.parse("693.45, 1515, 700.00\n", at=2.0) == Sample(2.0, 693.45, 1515.0, 700.0)


def printing(*lines: str) -> tuple[str, ...]:
    text = "".join(f"{line}\n" for line in lines)
    program = f"import time; print({text!r}, end='', flush=True); time.sleep(60)"
    return sys.executable, "-c", program


def test_what_was_seen_since_a_moment_is_its_medians() -> None:
    lines = ["100.0, 1980, 700.0", "690.0, 1500, 700.0", "700.0, 1400, 700.0"]
    with PowerMeter(printing(*lines)) as meter:
        deadline = time.monotonic() + 60
        while len(meter.samples) < 3:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        assert meter.since(0.0) == Sample(0.0, 690.0, 1500.0, 700.0)
        meter.samples[0] = Sample(0.0, 0.0, 0.0, 0.0)  # long ago
        later = meter.since(meter.samples[1].at)
        assert (later.watts, later.mhz) == (695.0, 1450.0)


def test_no_sample_is_an_error() -> None:
    with PowerMeter(printing()) as meter, pytest.raises(RuntimeError, match="told no power"):
        meter.since(time.monotonic())
