"""The linear layer is torch's, in value and gradient, whichever way round the gradient is computed."""

import pytest
import torch
from torch.nn import functional

from regard.kernels.choose import watched
from regard.kernels.linear import Linear, linear


@pytest.mark.parametrize("shape", [(5,), (5, 3), (2, 5, 3)])
@pytest.mark.parametrize(("within", "out"), [(7, 7), (7, 11), (11, 7), (3, 40)])
@pytest.mark.parametrize("biased", [True, False])
def test_it_is_the_definition(shape, within, out, biased):
    states = torch.randn(*shape, within, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(out, within, dtype=torch.float64, requires_grad=True)
    bias = torch.randn(out, dtype=torch.float64, requires_grad=True) if biased else None
    asked = [each for each in (states, weight, bias) if each is not None]
    along = torch.randn(*shape, out, dtype=torch.float64)
    found = []
    for way in (linear, functional.linear):
        result = way(states, weight, bias)
        found.append((result, *torch.autograd.grad(result, asked, along)))
    for mine, other in zip(*found, strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("shape", [(1,), (1, 1), (1, 1, 1)])
@pytest.mark.parametrize("biased", [True, False])
def test_one_row_alone_is_no_different(shape, biased):
    states, weight = torch.randn(*shape, 7, dtype=torch.float64), torch.randn(5, 7, dtype=torch.float64)
    bias = torch.randn(5, dtype=torch.float64) if biased else None
    for laid in (weight, weight.t().contiguous().t()):
        with torch.no_grad():
            mine, other = linear(states, laid, bias), functional.linear(states, weight, bias)
        torch.testing.assert_close(mine, other, rtol=1e-12, atol=1e-12)


def test_states_that_learn_nothing_get_no_gradient():
    layer = Linear(7, 11)
    layer(torch.randn(5, 7)).sum().backward()
    assert layer.weight.grad.shape == (11, 7)
    torch.testing.assert_close(layer.bias.grad, torch.full((11,), 5.0))


def test_autocast_goes_to_torch():
    layer = Linear(7, 11)
    with torch.autocast("cpu", torch.bfloat16):
        assert layer(torch.randn(5, 7)).dtype == torch.bfloat16


@pytest.mark.takes("one_row", "linear_gradient")
def test_both_ways_are_taken():
    layer = Linear(7, 11)
    with watched() as answers:
        layer(torch.randn(5, 7))
        with torch.no_grad():
            layer(torch.randn(1, 7))
    assert answers["linear_gradient"].taken == answers["one_row"].taken == 1
