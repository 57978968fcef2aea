"""Dropout drops the requested share, keeps the expected value, and is seeded by torch's generator."""

import pytest
import torch
from torch.nn import functional

from regard.kernels.choose import LEAST_DROPPED, count_answers
from regard.kernels.dropout import CHOICES, add_dropped, draw_mask, dropout, dropped_values, relu_dropped

SHARES = [0.05, 0.1, 0.3, 0.5, 0.95]
MANY = (257, 1031)  # 264,967 numbers: not a multiple of the four that share one draw of 64 bits


@pytest.mark.takes("dropout")
@pytest.mark.parametrize("share", SHARES)
def test_the_share_is_dropped_and_the_others_are_scaled_up(share):
    result = dropout(torch.ones(MANY), share, training=True)
    kept = result[result != 0]
    assert (kept == kept[0]).all()
    assert kept[0].item() == pytest.approx(CHOICES / (CHOICES - dropped_values(share)), rel=1e-6)
    assert kept[0].item() == pytest.approx(1 / (1 - share), rel=1e-3)
    deviation = (share * (1 - share) / result.numel()) ** 0.5
    assert abs((result == 0).double().mean().item() - share) < 5 * deviation
    assert abs(result.double().mean().item() - 1) < 5 * deviation / (1 - share)


@pytest.mark.parametrize("share", SHARES)
def test_positions_are_dropped_independently(share):
    """Neighbours share one draw of 64 bits; still both are kept with the product of their probabilities."""
    kept = draw_mask(torch.ones(1 << 20), share).kept.double()
    for distance in (1, 2, 3, 4, 1024):
        both = (kept[distance:] * kept[:-distance]).mean().item()
        assert both == pytest.approx((1 - share) ** 2, abs=5e-3)
    for lane in range(4):
        assert kept[lane::4].mean().item() == pytest.approx(1 - share, abs=5e-3)


@pytest.mark.takes("dropout")
def test_the_gradient_has_the_same_mask_and_scale():
    values = torch.randn(MANY, requires_grad=True)
    result = dropout(values, 0.3, training=True)
    output_gradient = torch.randn(MANY)
    (gradient,) = torch.autograd.grad(result, values, output_gradient)
    factors = (result != 0) * (CHOICES / (CHOICES - dropped_values(0.3)))
    torch.testing.assert_close(gradient, output_gradient * factors)
    torch.testing.assert_close(result, values.detach() * factors)


def test_add_dropped_equals_dropout_and_a_sum():
    states, change = torch.randn(MANY, requires_grad=True), torch.randn(MANY, requires_grad=True)
    output_gradient = torch.randn(MANY)
    results = []
    for function in (add_dropped, lambda states, change, *rest: states + dropout(change, *rest)):
        torch.manual_seed(3)
        result = function(states, change, 0.2, True)
        results.append((result, *torch.autograd.grad(result, (states, change), output_gradient)))
    for actual, expected in zip(*results, strict=True):
        torch.testing.assert_close(actual, expected)


@pytest.mark.parametrize("shape", [(7, 5), MANY])
@pytest.mark.parametrize(("share", "training"), [(0.2, True), (0.2, False), (0.0, True)])
def test_relu_dropped_equals_relu_and_dropout(shape, share, training):
    values, output_gradient = torch.randn(shape, requires_grad=True), torch.randn(shape)
    results = []
    for function in (relu_dropped, lambda fresh, *rest: dropout(functional.relu(fresh), *rest)):
        torch.manual_seed(3)
        result = function(values * 1.0, share, training)
        results.append((result, *torch.autograd.grad(result, values, output_gradient)))
    for actual, expected in zip(*results, strict=True):
        torch.testing.assert_close(actual, expected)


@pytest.mark.parametrize("shape", [(7,), MANY])
def test_the_same_seed_gives_the_same_mask(shape):
    results = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        results.append([dropout(torch.ones(shape), 0.5, training=True) for _ in range(3)])
    for first, again in zip(results[0], results[1], strict=True):
        assert torch.equal(first, again)
    for other in (results[0][1], results[2][0]):
        assert not torch.equal(results[0][0], other)


def test_a_restored_generator_state_gives_the_same_mask():
    dropout(torch.ones(MANY), 0.5, training=True)
    state = torch.get_rng_state()
    first = dropout(torch.ones(MANY), 0.5, training=True)
    torch.set_rng_state(state)
    assert torch.equal(first, dropout(torch.ones(MANY), 0.5, training=True))


@pytest.mark.parametrize(("share", "training"), [(0.3, False), (0.0, True), (0.0, False)])
def test_no_random_numbers_are_drawn_if_nothing_is_dropped(share, training):
    values, state = torch.randn(MANY), torch.get_rng_state()
    assert dropout(values, share, training) is values
    assert torch.equal(add_dropped(values, values, share, training), 2 * values)
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize(
    "values",
    [torch.ones(LEAST_DROPPED - 1), torch.ones(MANY, dtype=torch.float64), torch.ones(MANY, dtype=torch.bfloat16)],
)
def test_few_numbers_and_other_dtypes_use_torch_dropout(values):
    torch.manual_seed(5)
    result = dropout(values, 0.3, training=True)
    torch.manual_seed(5)
    assert torch.equal(result, functional.dropout(values, 0.3, training=True))


def test_other_devices_use_torch_dropout():
    assert dropout(torch.ones(MANY, device="meta"), 0.3, training=True).device.type == "meta"


@pytest.mark.takes("dropout", "add_dropped", "relu_dropped")
def test_all_three_twins_run_only_in_training():
    values = torch.ones(MANY)
    with count_answers() as answers:
        for training in (True, False):
            dropout(values, 0.3, training)
            add_dropped(values, values, 0.3, training)
            relu_dropped(values * 1.0, 0.3, training)
    assert [answers[name].taken for name in ("dropout", "add_dropped", "relu_dropped")] == [1, 1, 1]
