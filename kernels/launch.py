"""What every Triton launcher needs to know of the process that it runs in."""

import torch
import triton

# The interpreter computes bf16 wrongly and has no tensor cores to feed: kernels that take UPCAST
# turn every operand into fp32 there.
INTERPRETED: bool = triton.knobs.runtime.interpret


def check_device(kind: str) -> None:
    """Raise unless Triton kernels can run on tensors of this device type."""
    if kind == "cuda" and INTERPRETED:
        raise ValueError("TRITON_INTERPRET is set: unset it to run Triton kernels on a GPU")
    if kind == "cpu" and not INTERPRETED:
        raise ValueError(
            "face 'triton' needs a GPU; on a CPU it runs only in Triton's interpreter, for tests: "
            "set TRITON_INTERPRET=1 before kernels are imported, or use face 'cpu'"
        )


def next_power_of_2(n: int) -> int:
    return 1 << max(n - 1, 0).bit_length()


def is_fp32(tensor: torch.Tensor) -> bool:
    return tensor.dtype == torch.float32
