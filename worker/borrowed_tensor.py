"""Tensors over memory that others own: what a captured graph leaves where others will write."""

from __future__ import annotations

from dataclasses import dataclass

import torch

_TYPES = {2: "<i2", 4: "<i4"}  # by bytes of an item


def borrowed(tensor: torch.Tensor) -> torch.Tensor:
    """The same place on a GPU, which this tensor does not keep from being used again: whoever reads
    it must know that nothing else has been written there. On a CPU the tensor itself."""
    if tensor.device.type != "cuda":
        return tensor
    place = _Place(tensor.data_ptr(), tuple(tensor.shape), _TYPES[tensor.element_size()])
    return torch.as_tensor(place, device=tensor.device).view(tensor.dtype)


@dataclass(frozen=True, slots=True)
class _Place:
    """A contiguous tensor of whole numbers: the protocol has no bfloat16."""

    pointer: int
    shape: tuple[int, ...]
    typestr: str

    @property
    def __cuda_array_interface__(self) -> dict[str, object]:
        data = (self.pointer, False)  # not for reading only
        return {"shape": self.shape, "typestr": self.typestr, "data": data, "version": 3}
