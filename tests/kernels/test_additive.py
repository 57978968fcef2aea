"""The additive attention kernel equals `attend` in values and gradients, inside and outside of a loop."""

import contextlib

import pytest
import torch

from regard.attention import attend
from regard.attention.scores import Additive
from regard.kernels.choose import definitions_only
from regard.kernels.cpu import additive
from regard.kernels.linear import one_gradient


def attend_in_loop(block, queries, keys):
    """Attend three times in a loop; return the loss, the last weights and all gradients."""
    torch.manual_seed(3)
    score = Additive(query_dim=6, key_dim=7, dim=5).double()
    states = torch.randn(4, keys, 7, dtype=torch.float64, requires_grad=True)
    query = start = torch.randn(4, 1, queries, 6, dtype=torch.float64, requires_grad=True)
    mask = torch.rand(4, keys) > 0.3
    mask[0], mask[-1] = True, False  # the first row sees all keys, the last row none
    projected, values = score.project(states).unsqueeze(1), states.unsqueeze(1) * 1.0
    weights_factor = torch.randn(4, 1, queries, keys, dtype=torch.float64)
    total = torch.zeros((), dtype=torch.float64)
    with block():
        for _ in range(3):
            attended = attend(query, projected, values, score=score, mask=mask[:, None, None], cleared=True)
            query = torch.tanh(attended.context[..., :6] + query)
            total = total + query.square().sum() + (attended.weights * weights_factor).sum()
    return [total, attended.weights, *torch.autograd.grad(total, [states, start, *score.parameters()])]


@pytest.mark.parametrize("block", [one_gradient, contextlib.nullcontext])
@pytest.mark.parametrize(("queries", "keys"), [(1, 1), (1, 9), (5, 4)])
@pytest.mark.parametrize("cached", [1, 60, 1 << 18])
def test_values_and_gradients_equal_the_definition(block, queries, keys, cached, monkeypatch):
    monkeypatch.setattr(additive, "CACHED", cached)  # blocks of one row, of a few, of all
    fast = attend_in_loop(block, queries, keys)
    with definitions_only():
        defined = attend_in_loop(contextlib.nullcontext, queries, keys)
    for actual, expected in zip(fast, defined, strict=True):
        torch.testing.assert_close(actual, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.takes("additive_attention")
def test_each_step_of_a_loop_runs_the_kernel(monkeypatch):
    calls = []
    forward = additive.forward
    monkeypatch.setattr(additive, "forward", lambda *inputs: calls.append(1) or forward(*inputs))
    attend_in_loop(one_gradient, 1, 9)
    assert len(calls) == 3


def test_a_loss_on_the_weights_alone_reaches_the_states():
    score = Additive(query_dim=6, key_dim=7, dim=5)
    states, query = torch.randn(2, 3, 7, requires_grad=True), torch.randn(2, 1, 1, 6)
    with one_gradient():
        attended = attend(query, score.project(states).unsqueeze(1), states.unsqueeze(1), score=score, cleared=True)
    attended.weights[..., 0].sum().backward()
    assert states.grad.abs().sum() > 0
