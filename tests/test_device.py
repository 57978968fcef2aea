"""Memory that waits for the next tensors changes none of them."""

import pytest
import torch

from regard.device import memory_kept


def test_tensors_are_as_ever_within_and_after():
    values = torch.arange(1 << 22, dtype=torch.float32)
    with memory_kept():
        sums = {(values * 2).sum().item() for _ in range(3)}
    assert sums == {(values * 2).sum().item()}


def test_it_ends_with_its_block_whatever_happens():
    with pytest.raises(KeyError), memory_kept():
        raise KeyError
    with memory_kept(), memory_kept():
        pass
