"""The linear layer equals torch's in value and gradient, whether or not the gradient is computed transposed."""

import pytest
import torch
from torch.nn import functional

from regard.kernels.choose import count_answers
from regard.kernels.linear import Linear, linear


@pytest.mark.parametrize("shape", [(5,), (5, 3), (2, 5, 3)])
@pytest.mark.parametrize(("in_dim", "out_dim"), [(7, 7), (7, 11), (11, 7), (3, 40)])
@pytest.mark.parametrize("biased", [True, False])
def test_values_and_gradients_equal_the_definition(shape, in_dim, out_dim, biased):
    states = torch.randn(*shape, in_dim, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(out_dim, in_dim, dtype=torch.float64, requires_grad=True)
    bias = torch.randn(out_dim, dtype=torch.float64, requires_grad=True) if biased else None
    inputs = [tensor for tensor in (states, weight, bias) if tensor is not None]
    output_gradient = torch.randn(*shape, out_dim, dtype=torch.float64)
    results = []
    for function in (linear, functional.linear):
        result = function(states, weight, bias)
        results.append((result, *torch.autograd.grad(result, inputs, output_gradient)))
    for actual, expected in zip(*results, strict=True):
        torch.testing.assert_close(actual, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("shape", [(1,), (1, 1), (1, 1, 1)])
@pytest.mark.parametrize("biased", [True, False])
def test_a_single_row_equals_the_definition(shape, biased):
    states, weight = torch.randn(*shape, 7, dtype=torch.float64), torch.randn(5, 7, dtype=torch.float64)
    bias = torch.randn(5, dtype=torch.float64) if biased else None
    for layout in (weight, weight.t().contiguous().t()):
        with torch.no_grad():
            actual, expected = linear(states, layout, bias), functional.linear(states, weight, bias)
        torch.testing.assert_close(actual, expected, rtol=1e-12, atol=1e-12)


def test_states_may_need_no_gradient():
    layer = Linear(7, 11)
    layer(torch.randn(5, 7)).sum().backward()
    assert layer.weight.grad.shape == (11, 7)
    torch.testing.assert_close(layer.bias.grad, torch.full((11,), 5.0))


def test_under_autocast_the_result_is_in_half_precision():
    layer = Linear(7, 11)
    with torch.autocast("cpu", torch.bfloat16):
        assert layer(torch.randn(5, 7)).dtype == torch.bfloat16


@pytest.mark.takes("one_row", "linear_gradient")
def test_both_twins_run():
    layer = Linear(7, 11)
    with count_answers() as answers:
        layer(torch.randn(5, 7))
        with torch.no_grad():
            layer(torch.randn(1, 7))
    assert answers["linear_gradient"].taken == answers["one_row"].taken == 1
