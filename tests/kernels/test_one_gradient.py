"""Within `one_gradient` a loop gives the same results and gradients, with one product for each shared weight."""

import contextlib
import gc
import weakref
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from regard.kernels import linear as kernels
from regard.kernels.linear import linear, one_gradient, weighted_sum

STEPS = 5


def random(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, requires_grad=True)


@pytest.fixture
def shared() -> list[Tensor]:
    """Two matrices with a bias each, values for every row, and the first state of the loop."""
    torch.manual_seed(1)
    return [random(4, 6), random(4), random(6, 4), random(6), random(3, 1, 4, 6), random(3, 1, 1, 6)]


def loop(shared: list[Tensor], block: Callable[[], contextlib.AbstractContextManager[None]]) -> Tensor:
    first, first_bias, second, second_bias, values, state = shared
    total = state.sum()
    with block():
        for _ in range(STEPS):
            weights = torch.softmax(linear(state, first, first_bias), -1)
            state = torch.tanh(linear(weighted_sum(weights, values)[..., :4], second, second_bias))
            total = total + state.square().sum()
    return total


def test_results_and_gradients_equal_those_of_a_plain_loop(shared):
    plain, deferred = (loop(shared, block) for block in (contextlib.nullcontext, one_gradient))
    assert torch.equal(plain, deferred)
    for expected, actual in zip(*(torch.autograd.grad(total, shared) for total in (plain, deferred)), strict=True):
        torch.testing.assert_close(actual, expected, rtol=1e-12, atol=1e-12)


def test_gradients_pass_gradcheck(shared):
    assert torch.autograd.gradcheck(lambda *tensors: loop(list(tensors), one_gradient), shared)


def test_a_backward_pass_for_one_input_leaves_no_record_for_the_next(shared):
    total = loop(shared, one_gradient)
    torch.autograd.grad(total, shared[-1], retain_graph=True)
    expected = torch.autograd.grad(loop(shared, contextlib.nullcontext), shared)
    for _ in range(2):
        actual = torch.autograd.grad(total, shared, retain_graph=True)
        for gradient, wanted in zip(actual, expected, strict=True):
            torch.testing.assert_close(gradient, wanted, rtol=1e-12, atol=1e-12)


@pytest.mark.takes("one_gradient", "summed_linear", "summed_mix")
def test_each_matrix_has_one_gradient_product(shared, monkeypatch):
    compute, rows = kernels._weight_gradient, []
    monkeypatch.setattr(kernels, "_weight_gradient", lambda *inputs: rows.append(len(inputs[0])) or compute(*inputs))
    loop(shared, one_gradient).backward()
    assert rows == [STEPS * 3] * 2


def test_no_reference_cycle_keeps_tensors_of_a_loop_alive(shared):
    gc.collect()
    gc.disable()
    try:
        values = shared[4] * 1.0
        reference = weakref.ref(values)
        total = loop([*shared[:4], values, shared[5]], one_gradient)
        del values
        total.backward()
        del total
        assert reference() is None
    finally:
        gc.enable()


def test_without_gradients_nothing_is_deferred(shared):
    with torch.no_grad(), one_gradient():
        assert not linear(shared[-1], shared[0], None).requires_grad
