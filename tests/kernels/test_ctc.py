"""The CTC loss: its recursion, torch's own function and a sum over all alignments are equal, gradients too."""

import math
from itertools import groupby, product

import pytest
import torch
from torch import Tensor

from regard.kernels.choose import capturable, takes
from regard.kernels.ctc import ctc_loss, plain

BLANK, SIZE = 0, 5
TIMES = torch.tensor([7, 3, 4, 6])
TOKENS = torch.tensor([3, 2, 1, 4])
TARGETS = torch.tensor([[2, 2, 4, 1], [1, 3, 3, 3], [4, 4, 4, 4], [1, 2, 1, 1]])  # junk after `TOKENS`


def both_ways(log_probs: Tensor, *arguments: object) -> Tensor:
    """The loss as a captured update computes it."""
    with capturable():
        assert takes("ctc_both_ways", log_probs.detach().requires_grad_())
        return ctc_loss(log_probs.requires_grad_() if log_probs.is_leaf else log_probs, *arguments)


FUNCTIONS = [
    plain,
    pytest.param(ctc_loss, marks=pytest.mark.takes("ctc")),
    pytest.param(both_ways, marks=pytest.mark.takes("ctc_both_ways")),
]


def make_logits(seed: int = 0) -> Tensor:
    return torch.randn(4, 7, SIZE, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def enumerate_alignments(log_probs: Tensor, target: list[int]) -> float:
    """Graves et al. 2006, eq. 3: the sum over all paths that give the target without repeats and blanks."""
    total = 0.0
    for path in product(range(log_probs.shape[1]), repeat=len(log_probs)):
        if [token for token, _ in groupby(path) if token != BLANK] == target:
            total += float(sum(log_probs[time, token] for time, token in enumerate(path)).exp())
    return total


def test_the_recursion_is_the_sum_over_all_alignments():
    log_probs = make_logits()[:, :5].log_softmax(-1)
    times = TIMES.clamp(max=5)
    losses = plain(log_probs, times, TARGETS, TOKENS, BLANK)
    for row in range(4):
        target = TARGETS[row, : TOKENS[row]].tolist()
        total = enumerate_alignments(log_probs[row, : times[row]], target)
        assert float(losses[row]) == pytest.approx(-math.log(total), rel=1e-10)


@pytest.mark.parametrize("function", FUNCTIONS)
def test_losses_and_gradients_equal_those_of_torch(function):
    assert function is not ctc_loss or takes("ctc", make_logits())
    given, expected = make_logits(1).requires_grad_(), make_logits(1).requires_grad_()
    scale = torch.tensor([1.0, 2.0, 0.5, 3.0], dtype=torch.float64)
    losses = function(given.log_softmax(-1), TIMES, TARGETS, TOKENS, BLANK)
    torchs = torch.nn.functional.ctc_loss(
        expected.log_softmax(-1).transpose(0, 1), TARGETS, TIMES, TOKENS, BLANK, reduction="none"
    )
    (losses * scale).sum().backward()
    (torchs * scale).sum().backward()
    torch.testing.assert_close(losses, torchs, rtol=0.0, atol=1e-10)
    torch.testing.assert_close(given.grad, expected.grad, rtol=0.0, atol=1e-10)


@pytest.mark.parametrize("function", FUNCTIONS)
def test_a_target_that_is_too_long_adds_nothing(function):
    """Two equal tokens need a blank between them: 2 2 4 needs four positions."""
    logits = make_logits(2).requires_grad_()
    losses = function(logits.log_softmax(-1), torch.tensor([3, 2, 1, 5]), TARGETS, TOKENS, BLANK)
    losses.sum().backward()
    assert losses.gt(0).tolist() == [False, True, True, True]
    assert losses[0] == 0
    assert not logits.grad[0].any()
    assert logits.grad.isfinite().all()


@pytest.mark.parametrize("function", FUNCTIONS)
def test_junk_at_padding_changes_nothing(function):
    log_probs = make_logits(3).log_softmax(-1)
    junk, targets = log_probs.clone(), TARGETS.clone()
    for row in range(4):
        junk[row, TIMES[row] :] = -50.0
        targets[row, TOKENS[row] :] = 1
    before = function(log_probs, TIMES, TARGETS, TOKENS, BLANK)
    assert torch.equal(before, function(junk, TIMES, targets, TOKENS, BLANK))


def test_an_empty_target_is_blanks_alone():
    log_probs = make_logits(4).log_softmax(-1)
    losses = plain(log_probs, TIMES, TARGETS, torch.zeros(4, dtype=torch.long), BLANK)
    assert float(losses[1]) == pytest.approx(-float(log_probs[1, :3, BLANK].sum()), rel=1e-12)


@pytest.mark.takes("ctc_both_ways")
def test_an_empty_target_has_a_gradient_for_blanks_alone():
    log_probs = make_logits(4).log_softmax(-1).requires_grad_()
    losses = both_ways(log_probs, TIMES, TARGETS, torch.zeros(4, dtype=torch.long), BLANK)
    losses.sum().backward()
    expected = torch.zeros_like(log_probs)
    for row in range(4):
        expected[row, : TIMES[row], BLANK] = -1.0
    torch.testing.assert_close(log_probs.grad, expected, rtol=0.0, atol=1e-12)


@pytest.mark.takes("ctc_both_ways")
@pytest.mark.parametrize("seed", range(5))
def test_both_ways_give_the_gradient_of_the_recursion(seed):
    """With respect to any log-probabilities, also those that do not sum to one; rows that fill up a batch add none."""
    generator = torch.Generator().manual_seed(seed)
    times, tokens = torch.tensor([11, 9, 1, 0, 5, 11]), torch.tensor([4, 6, 1, 0, 0, 2])
    targets = torch.randint(1, SIZE, (6, 7), generator=generator)
    given = torch.randn(6, 11, SIZE, generator=generator, dtype=torch.float64).requires_grad_()
    other = given.detach().clone().requires_grad_()
    scale = torch.rand(6, generator=generator, dtype=torch.float64)
    losses, expected = (
        function(values, times, targets, tokens, BLANK) for function, values in ((both_ways, given), (plain, other))
    )
    (losses * scale).sum().backward()
    (expected * scale).sum().backward()
    torch.testing.assert_close(losses[times > 0], expected[times > 0], rtol=0.0, atol=1e-10)
    torch.testing.assert_close(given.grad[times > 0], other.grad[times > 0], rtol=0.0, atol=1e-10)
    assert given.grad.isfinite().all()
    for row in range(6):
        assert not given.grad[row, times[row] :].any()


@pytest.mark.takes("ctc")
def test_captured_updates_do_not_use_the_function_of_torch():
    log_probs = make_logits().log_softmax(-1)
    assert takes("ctc", log_probs)
    with capturable():
        assert not takes("ctc", log_probs)
        losses = ctc_loss(log_probs, TIMES, TARGETS, TOKENS, BLANK)
    assert torch.equal(losses, plain(log_probs, TIMES, TARGETS, TOKENS, BLANK))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.takes("ctc_both_ways")
def test_a_cuda_graph_holds_the_loss_and_its_gradient():
    given = make_logits(6).float().cuda().requires_grad_()
    arguments = TIMES.cuda(), TARGETS.cuda(), TOKENS.cuda(), BLANK

    def compute() -> Tensor:
        given.grad = None
        losses = ctc_loss(given.log_softmax(-1), *arguments)
        losses.sum().backward()
        return losses

    side, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    with capturable():
        with torch.cuda.stream(side):
            compute()
        torch.cuda.synchronize()
        with torch.cuda.graph(graph, stream=side):
            losses = compute()
    graph.replay()
    expected = make_logits(6).requires_grad_()
    right = plain(expected.log_softmax(-1), TIMES, TARGETS, TOKENS, BLANK)
    right.sum().backward()
    torch.testing.assert_close(losses.cpu().double(), right, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(given.grad.cpu().double(), expected.grad, rtol=1e-5, atol=1e-5)
