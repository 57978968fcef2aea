"""`topk` by blocks returns what torch's topk returns."""

import pytest
import torch

from regard.kernels import choose
from regard.kernels.topk import BLOCK, topk


@pytest.fixture(autouse=True)
def no_least_size(monkeypatch):
    """Let small inputs take the fast path too."""
    monkeypatch.setattr(choose, "LEAST_SORTED", 0)


@pytest.mark.parametrize("classes", [1, 7, BLOCK, 10 * BLOCK, 10 * BLOCK + 3, 125 * BLOCK - 1])
@pytest.mark.parametrize("count", [1, 2, 10])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_values_and_indices_equal_the_definition(classes, count, dtype):
    values = torch.randn(5, classes, dtype=dtype)
    values[1] = values[1].sort().values
    values[2] = values[2].sort(descending=True).values
    count = min(count, classes)
    best, indices = topk(values, count)
    expected = values.topk(count)
    assert torch.equal(best, expected.values)
    assert torch.equal(indices, expected.indices)


def test_minus_infinity_comes_last_and_nan_first():
    values = torch.full((2, 10 * BLOCK + 3), -torch.inf)
    values[0, [5, 77, 642]] = torch.tensor([1.0, 2.0, 3.0])
    values[1, 300] = torch.nan
    best, indices = topk(values, 4)
    assert indices[0, :3].tolist() == [642, 77, 5]
    assert best[0, 3] == -torch.inf
    assert best[1, 0].isnan()
    assert indices[1, 0] == 300


@pytest.mark.takes("topk")
def test_the_twin_runs_if_there_are_enough_blocks():
    with choose.count_answers() as answers:
        topk(torch.randn(5, 10 * BLOCK), 2)
        topk(torch.randn(5, 10 * BLOCK), 5)
    assert answers["topk"].taken == 1
    assert answers["topk"].against == {"there are too few numbers": 1}
