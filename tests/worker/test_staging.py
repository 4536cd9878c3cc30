"""Columns arrive on the device as they were, however many and however large."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from worker.staging import Staging


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_columns_of_every_type_and_size_arrive_unchanged(device: str) -> None:
    """Odd counts, so that every column needs its padding, and one beyond the first buffer."""
    staging, random = Staging(torch.device(device), depth=2), np.random.default_rng(0)
    for size in (1, 3, 0, 300_001, 5, 7, 11):
        columns = {
            "ids": random.integers(0, 2**31, size, dtype=np.int32),
            "slots": random.integers(0, 2**62, (2, size), dtype=np.int64),
            "temperatures": random.random(size, np.float32),
            "wire": np.frombuffer(random.bytes(4 * size), "<i4"),
        }
        tensors = staging.upload(columns)
        assert tensors.keys() == columns.keys()
        for name, column in columns.items():
            assert tensors[name].device.type == device
            assert np.array_equal(tensors[name].cpu().numpy(), column), name


@pytest.mark.gpu
def test_columns_that_fit_land_at_the_same_place_each_time() -> None:
    staging = Staging(torch.device("cuda"), depth=1)
    small = {"frames": np.zeros(6, np.int64), "rows": np.arange(3, dtype=np.int32)}
    large = {"frames": np.arange(staging.landing.numel() // 8 + 1)}
    assert staging.fits(small)
    assert not staging.fits(large)
    for i in range(3):
        small["frames"] = np.arange(i, i + 6)
        place = staging.upload(small)["frames"].data_ptr()
        assert place == staging.landing.data_ptr()
        assert staging.upload(large)["frames"].data_ptr() != place
        assert staging.landing[:48].view(torch.int64).tolist() == list(range(i, i + 6))
