import subprocess
import sys
from inspect import signature

import pytest

import kernels
from kernels import cpu, paged_attention_decode, paged_attention_prefill, reference


def test_auto_is_the_cpu_face_on_a_cpu() -> None:
    assert kernels.ops("cpu").face == "cpu"
    assert kernels.ops("cpu", "reference").face == "reference"


def test_a_cpu_does_not_import_triton() -> None:
    code = "import sys, kernels; kernels.ops('cpu'); sys.exit('triton' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_the_paged_read_takes_no_mask_on_any_face() -> None:
    # Rows and their lengths say what is visible; a mask of rows by context could only disagree.
    read = {"q", "k_pool", "v_pool", "block_tables", "rows", "context_lens", "scale"}
    others = {"max_context_len", "plan", "out"}
    ragged = {"query_starts"}
    for module in (reference, cpu, paged_attention_decode):
        assert set(signature(module.paged_attention_decode).parameters) == read | others
    for module in (reference, cpu, paged_attention_prefill):
        parameters = set(signature(module.paged_attention_prefill).parameters)
        assert parameters == read | others | ragged


@pytest.mark.parametrize(
    ("device", "face", "message"),
    [
        ("cpu", "fast", "face 'fast' is not one of"),
        ("meta", "auto", "device meta is not supported: use cpu or cuda"),
        ("cuda", "cpu", "face 'cpu' does not run on cuda"),
        ("cpu", "triton", "face 'triton' needs a GPU"),
    ],
)
def test_what_cannot_run_is_refused(device: str, face: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        kernels.ops(device, face)


@pytest.mark.parametrize("head_dim", [16, 32, 64, 80, 96, 128, 256])
@pytest.mark.parametrize("block_size", [1, 8, 16, 24, 32, 64])
def test_the_promised_shapes_are_supported_on_every_face(head_dim: int, block_size: int) -> None:
    for face in ("reference", "cpu", "triton"):
        kernels.check_supported(head_dim, block_size, face)


@pytest.mark.parametrize(
    ("head_dim", "block_size", "face", "message"),
    [
        (40, 16, "triton", r"head_dim 40 is not one of \(16, 32, 64, 80, 96, 128, 256\)"),
        (64, 48, "triton", r"block_size 48 is not one of \(1, 8, 16, 24, 32, 64\)"),
        (33, 16, "cpu", "head_dim 33 is not an even number from 2 to 512"),
        (514, 16, "cpu", "head_dim 514 is not an even number from 2 to 512"),
        (64, 0, "cpu", "block_size 0 is not from 1 to 1024"),
    ],
)
def test_other_shapes_are_refused_with_the_allowed_values(
    head_dim: int, block_size: int, face: str, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        kernels.check_supported(head_dim, block_size, face)
