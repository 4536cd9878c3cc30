"""A step as captured graphs run it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch


@dataclass(frozen=True, slots=True)
class CapturedStep:
    """What the graphs read of each repetition, where they do, and their launch."""

    frames: np.ndarray  # [k, words]
    place: torch.Tensor  # [words] on the device, of the same type
    replay: Callable[[], torch.Tensor]  # int32, the step's draws first, as `sample`
    logits: (
        torch.Tensor | None
    )  # where `replay` leaves the draws' [m or more, vocab]; None: no draw
