"""The twins of a recurrence that a GPU's graphs need, against the plain one, values and gradients, in float64."""

from itertools import product

import pytest
import torch

from regard.kernels.choose import capturable, count_answers
from regard.layers.recurrence import CELLS, Recurrence
from regard.types import Recurrent

LENGTHS = (7, 4, 1)
KINDS = [(cell, None) for cell in CELLS] + [("lstm", 20)]


def told(outputs: torch.Tensor, state: Recurrent) -> list[torch.Tensor]:
    return [outputs, state.hidden] + ([] if state.cell is None else [state.cell])


def agree(recurrence: Recurrence, *twins) -> None:
    """Both give the same, and pass the same back to every weight."""
    found, passed_back = [], []
    for twin in twins:
        recurrence.zero_grad()
        found.append(told(*twin()))
        sum((each * torch.arange(each.numel()).view_as(each).sin()).sum() for each in found[-1]).backward()
        passed_back.append([parameter.grad.clone() for parameter in recurrence.parameters()])
    for mine, others in zip(found[0] + passed_back[0], found[1] + passed_back[1], strict=True):
        torch.testing.assert_close(mine, others, rtol=0.0, atol=1e-10)


@pytest.mark.parametrize(("kind", "layers", "both", "bias"), list(product(KINDS, (1, 2), (True, False), (True, False))))
def test_reading_without_packing_is_reading(kind, layers, both, bias):
    torch.manual_seed(0)
    cell, inner = kind
    recurrence = Recurrence(
        CELLS[cell], input_dim=5, dim=14, layers=layers, bidirectional=both, bias=bias, inner_dim=inner
    ).double()
    inputs = torch.randn(3, 7, 5, dtype=torch.float64)
    mask = torch.arange(7) < torch.tensor(LENGTHS).unsqueeze(-1)
    agree(recurrence, lambda: recurrence.read(inputs, mask), lambda: recurrence.read_unpacked(inputs, mask))
    junk = inputs.masked_fill(~mask.unsqueeze(-1), 1e3)
    for mine, others in zip(
        told(*recurrence.read_unpacked(junk, mask)), told(*recurrence.read(inputs, mask)), strict=True
    ):
        torch.testing.assert_close(mine, others, rtol=0.0, atol=1e-10)


@pytest.mark.parametrize(("kind", "layers", "bias"), list(product(KINDS, (1, 2), (True, False))))
def test_layer_by_layer_is_forward(kind, layers, bias):
    torch.manual_seed(0)
    cell, inner = kind
    recurrence = Recurrence(CELLS[cell], input_dim=5, dim=14, layers=layers, bias=bias, inner_dim=inner).double()
    inputs = torch.randn(3, 7, 5, dtype=torch.float64)
    first = torch.randn(3, layers, 14, dtype=torch.float64)
    cells = torch.randn(3, layers, inner or 14, dtype=torch.float64) if cell == "lstm" else None
    state = Recurrent(first, cells)
    agree(recurrence, lambda: recurrence(inputs, state), lambda: recurrence.forward_by_layers(inputs, state))


def test_an_empty_row_stays_at_rest():
    torch.manual_seed(0)
    recurrence = Recurrence(CELLS["lstm"], input_dim=5, dim=14, bidirectional=True).double()
    mask = torch.zeros(2, 3, dtype=torch.bool)
    mask[0, :2] = True
    outputs, state = recurrence.read_unpacked(torch.randn(2, 3, 5, dtype=torch.float64), mask)
    assert (outputs[1] == 0).all()
    assert (state.cell[1] == 0).all()


@pytest.mark.takes("unpacked_reading", "recurrence_by_layers")
def test_both_are_taken_in_updates_that_may_be_captured():
    recurrence = Recurrence(CELLS["gru"], input_dim=5, dim=14, layers=2, dropout=0.1)
    inputs, mask, start = torch.randn(3, 7, 5), torch.ones(3, 7, dtype=torch.bool), torch.zeros(3, 2, 14)
    for on in (True, False):
        with capturable(on), count_answers() as answers:
            recurrence(inputs, Recurrent(start, None))
            recurrence.read(inputs, mask)
        assert [answers[name].taken for name in ("recurrence_by_layers", "unpacked_reading")] == [int(on)] * 2
