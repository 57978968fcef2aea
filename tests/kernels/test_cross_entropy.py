"""The fast cross-entropy equals the plain one in value and gradient."""

import pytest
import torch

from regard.kernels import cross_entropy as kernels
from regard.kernels.choose import count_answers
from regard.kernels.cross_entropy import cross_entropy, plain


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    """Make blocks of three rows, so that a test has several blocks and a shorter last one."""
    monkeypatch.setattr(kernels, "CACHED", 3 * 17)


@pytest.mark.parametrize("rows", [1, 3, 7, 11])
@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.6])
@pytest.mark.parametrize("ignore", [0, -1])
@pytest.mark.parametrize("scale", [1.0, 1e3])
def test_loss_and_gradient_equal_the_definition(rows, smoothing, ignore, scale):
    logits = (scale * torch.randn(rows, 17, dtype=torch.float64)).requires_grad_()
    targets = torch.randint(0, 17, (rows,))
    targets[::4] = ignore
    results = []
    for function in (cross_entropy, plain):
        loss = function(logits, targets, smoothing, ignore)
        (gradient,) = torch.autograd.grad(loss / 13, logits)
        results.append((loss.detach(), gradient))
    for actual, expected in zip(*results, strict=True):
        torch.testing.assert_close(actual, expected, rtol=1e-12, atol=1e-12)


def test_a_logit_of_minus_infinity_is_harmless_if_its_class_is_not_wanted():
    logits = torch.randn(5, 17, dtype=torch.float64)
    logits[:, 3] = -torch.inf
    logits.requires_grad_()
    targets = torch.tensor([1, 2, 0, 16, 5])
    loss = cross_entropy(logits, targets, 0.0, 0)
    torch.testing.assert_close(loss, plain(logits, targets, 0.0, 0))
    (gradient,) = torch.autograd.grad(loss, logits)
    assert gradient.isfinite().all()
    assert (gradient[:, 3] == 0).all()
    assert (gradient[2] == 0).all()


@pytest.mark.takes("cross_entropy")  # the definition, torch's own, multiplies NaN by zero, which is NaN
def test_nan_in_ignored_rows_reaches_neither_loss_nor_gradient():
    logits = torch.randn(4, 17, dtype=torch.float64)
    logits[1] = torch.nan
    logits.requires_grad_()
    loss = cross_entropy(logits, torch.tensor([1, 0, 2, 3]), 0.1, 0)
    (gradient,) = torch.autograd.grad(loss, logits)
    assert loss.isfinite()
    assert gradient.isfinite().all()


def test_zero_rows_give_an_empty_gradient():
    logits = torch.zeros(0, 17, requires_grad=True)
    cross_entropy(logits, torch.zeros(0, dtype=torch.long), 0.1, 0).backward()
    assert logits.grad.shape == (0, 17)


@pytest.mark.takes("cross_entropy")
def test_the_twin_runs_only_if_logits_need_a_gradient():
    logits, targets = torch.randn(3, 17), torch.tensor([1, 2, 3])
    with count_answers() as answers:
        for needs_gradient in (True, False):
            cross_entropy(logits.requires_grad_(needs_gradient), targets, 0.1, 0)
    assert (answers["cross_entropy"].taken, len(answers["cross_entropy"].against)) == (1, 1)
