"""The cross-entropy of few passes is the plain one, in value and gradient."""

import pytest
import torch

from regard.kernels import cross_entropy as kernels
from regard.kernels.choose import watched
from regard.kernels.cross_entropy import cross_entropy, plain


@pytest.fixture(autouse=True)
def few(monkeypatch):
    """So few numbers at once that rows come in several parts, the last a short one."""
    monkeypatch.setattr(kernels, "CACHED", 3 * 17)


@pytest.mark.parametrize("rows", [1, 3, 7, 11])
@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.6])
@pytest.mark.parametrize("ignore", [0, -1])
@pytest.mark.parametrize("scale", [1.0, 1e3])
def test_it_is_the_definition(rows, smoothing, ignore, scale):
    logits = (scale * torch.randn(rows, 17, dtype=torch.float64)).requires_grad_()
    wanted = torch.randint(0, 17, (rows,))
    wanted[::4] = ignore
    found = []
    for way in (cross_entropy, plain):
        loss = way(logits, wanted, smoothing, ignore)
        (gradient,) = torch.autograd.grad(loss / 13, logits)
        found.append((loss.detach(), gradient))
    for mine, other in zip(*found, strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-12, atol=1e-12)


def test_impossible_words_cost_nothing_where_none_wants_them():
    logits = torch.randn(5, 17, dtype=torch.float64)
    logits[:, 3] = -torch.inf
    logits.requires_grad_()
    wanted = torch.tensor([1, 2, 0, 16, 5])
    loss = cross_entropy(logits, wanted, 0.0, 0)
    torch.testing.assert_close(loss, plain(logits, wanted, 0.0, 0))
    (gradient,) = torch.autograd.grad(loss, logits)
    assert gradient.isfinite().all()
    assert (gradient[:, 3] == 0).all()
    assert (gradient[2] == 0).all()


@pytest.mark.takes("cross_entropy")  # torch multiplies junk by zero
def test_junk_in_ignored_rows_reaches_nothing():
    logits = torch.randn(4, 17, dtype=torch.float64)
    logits[1] = torch.nan
    logits.requires_grad_()
    loss = cross_entropy(logits, torch.tensor([1, 0, 2, 3]), 0.1, 0)
    (gradient,) = torch.autograd.grad(loss, logits)
    assert loss.isfinite()
    assert gradient.isfinite().all()


def test_no_rows_cost_nothing():
    logits = torch.zeros(0, 17, requires_grad=True)
    cross_entropy(logits, torch.zeros(0, dtype=torch.long), 0.1, 0).backward()
    assert logits.grad.shape == (0, 17)


@pytest.mark.takes("cross_entropy")
def test_it_is_taken_where_logits_learn():
    logits, wanted = torch.randn(3, 17), torch.tensor([1, 2, 3])
    with watched() as answers:
        for learns in (True, False):
            cross_entropy(logits.requires_grad_(learns), wanted, 0.1, 0)
    assert (answers["cross_entropy"].taken, len(answers["cross_entropy"].against)) == (1, 1)
