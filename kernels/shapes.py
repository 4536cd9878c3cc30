"""The shapes that the kernels are right for, checked once at a worker's start."""

TRITON_HEAD_DIMS = (16, 32, 64, 80, 96, 128, 256)
TRITON_BLOCK_SIZES = (1, 8, 16, 24, 32, 64)
TORCH_MAX_HEAD_DIM = 512
TORCH_MAX_BLOCK_SIZE = 1024


def check_supported(head_dim: int, block_size: int, face: str) -> None:
    """Raise ValueError, naming the allowed values, unless `face` serves these shapes.

    `face` is a resolved name: "reference", "cpu" or "triton" (`Ops.face`).
    """
    if face == "triton":
        if head_dim not in TRITON_HEAD_DIMS:
            raise ValueError(f"head_dim {head_dim} is not one of {TRITON_HEAD_DIMS}")
        if block_size not in TRITON_BLOCK_SIZES:
            raise ValueError(f"block_size {block_size} is not one of {TRITON_BLOCK_SIZES}")
        return
    if head_dim % 2 or not 2 <= head_dim <= TORCH_MAX_HEAD_DIM:
        raise ValueError(
            f"head_dim {head_dim} is not an even number from 2 to {TORCH_MAX_HEAD_DIM}"
        )
    if not 1 <= block_size <= TORCH_MAX_BLOCK_SIZE:
        raise ValueError(f"block_size {block_size} is not from 1 to {TORCH_MAX_BLOCK_SIZE}")
