"""Additive attention that keeps no pairs is the definition, both ways, in a loop and out of one."""

import contextlib

import pytest
import torch

from regard.attention import attend
from regard.attention.scores import Additive
from regard.kernels.choose import definitions_only
from regard.kernels.cpu import additive
from regard.kernels.linear import one_gradient


def looked(block, queries, keys):
    """A loop that looks again and again: what it comes to, and all gradients."""
    torch.manual_seed(3)
    score = Additive(query_dim=6, key_dim=7, dim=5).double()
    states = torch.randn(4, keys, 7, dtype=torch.float64, requires_grad=True)
    query = start = torch.randn(4, 1, queries, 6, dtype=torch.float64, requires_grad=True)
    mask = torch.rand(4, keys) > 0.3
    mask[0], mask[-1] = True, False  # one sees all, one sees nothing
    projected, values = score.project(states).unsqueeze(1), states.unsqueeze(1) * 1.0
    along = torch.randn(4, 1, queries, keys, dtype=torch.float64)
    total = torch.zeros((), dtype=torch.float64)
    with block():
        for _ in range(3):
            seen = attend(query, projected, values, score=score, mask=mask[:, None, None], cleared=True)
            query = torch.tanh(seen.context[..., :6] + query)
            total = total + query.square().sum() + (seen.weights * along).sum()
    return [total, seen.weights, *torch.autograd.grad(total, [states, start, *score.parameters()])]


@pytest.mark.parametrize("block", [one_gradient, contextlib.nullcontext])
@pytest.mark.parametrize(("queries", "keys"), [(1, 1), (1, 9), (5, 4)])
@pytest.mark.parametrize("cached", [1, 60, 1 << 18])
def test_it_is_the_definition(block, queries, keys, cached, monkeypatch):
    monkeypatch.setattr(additive, "CACHED", cached)  # a row at a time, a few, all
    found = looked(block, queries, keys)
    with definitions_only():
        wanted = looked(contextlib.nullcontext, queries, keys)
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)


@pytest.mark.takes("additive_attention")
def test_it_is_taken(monkeypatch):
    taken = []
    forward = additive.forward
    monkeypatch.setattr(additive, "forward", lambda *given: taken.append(1) or forward(*given))
    looked(one_gradient, 1, 9)
    assert len(taken) == 3


def test_a_loss_of_the_weights_alone_is_enough():
    score = Additive(query_dim=6, key_dim=7, dim=5)
    states, query = torch.randn(2, 3, 7, requires_grad=True), torch.randn(2, 1, 1, 6)
    with one_gradient():
        seen = attend(query, score.project(states).unsqueeze(1), states.unsqueeze(1), score=score, cleared=True)
    seen.weights[..., 0].sum().backward()
    assert states.grad.abs().sum() > 0
