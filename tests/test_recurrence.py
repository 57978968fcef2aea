"""The versions of a recurrence that CUDA graphs need give the same values and gradients as the packed one."""

from itertools import product

import pytest
import torch

from regard.kernels.choose import capturable, count_answers
from regard.layers.recurrence import CELLS, Recurrence
from regard.types import Recurrent

LENGTHS = (7, 4, 1)
KINDS = [(cell, None) for cell in CELLS] + [("lstm", 20)]


def tensors(outputs: torch.Tensor, state: Recurrent) -> list[torch.Tensor]:
    return [outputs, state.hidden] + ([] if state.cell is None else [state.cell])


def assert_agree(recurrence: Recurrence, *ways) -> None:
    """Both ways to compute give the same values and the same gradients of all parameters."""
    results, gradients = [], []
    for compute in ways:
        recurrence.zero_grad()
        results.append(tensors(*compute()))
        sum((tensor * torch.arange(tensor.numel()).view_as(tensor).sin()).sum() for tensor in results[-1]).backward()
        gradients.append([parameter.grad.clone() for parameter in recurrence.parameters()])
    for first, second in zip(results[0] + gradients[0], results[1] + gradients[1], strict=True):
        torch.testing.assert_close(first, second, rtol=0.0, atol=1e-10)


@pytest.mark.parametrize(
    ("kind", "layers", "bidirectional", "bias"), list(product(KINDS, (1, 2), (True, False), (True, False)))
)
def test_reading_without_packing_gives_the_same_as_packed_reading(kind, layers, bidirectional, bias):
    torch.manual_seed(0)
    cell, inner = kind
    recurrence = Recurrence(
        CELLS[cell], input_dim=5, dim=14, layers=layers, bidirectional=bidirectional, bias=bias, inner_dim=inner
    ).double()
    inputs = torch.randn(3, 7, 5, dtype=torch.float64)
    mask = torch.arange(7) < torch.tensor(LENGTHS).unsqueeze(-1)
    assert_agree(recurrence, lambda: recurrence.read(inputs, mask), lambda: recurrence.read_unpacked(inputs, mask))
    junk = inputs.masked_fill(~mask.unsqueeze(-1), 1e3)
    for unpacked, packed in zip(
        tensors(*recurrence.read_unpacked(junk, mask)), tensors(*recurrence.read(inputs, mask)), strict=True
    ):
        torch.testing.assert_close(unpacked, packed, rtol=0.0, atol=1e-10)


@pytest.mark.parametrize(("kind", "layers", "bias"), list(product(KINDS, (1, 2), (True, False))))
def test_layer_by_layer_gives_the_same_as_all_layers_at_once(kind, layers, bias):
    torch.manual_seed(0)
    cell, inner = kind
    recurrence = Recurrence(CELLS[cell], input_dim=5, dim=14, layers=layers, bias=bias, inner_dim=inner).double()
    inputs = torch.randn(3, 7, 5, dtype=torch.float64)
    first = torch.randn(3, layers, 14, dtype=torch.float64)
    cells = torch.randn(3, layers, inner or 14, dtype=torch.float64) if cell == "lstm" else None
    state = Recurrent(first, cells)
    assert_agree(recurrence, lambda: recurrence(inputs, state), lambda: recurrence.forward_by_layers(inputs, state))


def test_an_empty_row_has_zero_outputs_and_state():
    torch.manual_seed(0)
    recurrence = Recurrence(CELLS["lstm"], input_dim=5, dim=14, bidirectional=True).double()
    mask = torch.zeros(2, 3, dtype=torch.bool)
    mask[0, :2] = True
    outputs, state = recurrence.read_unpacked(torch.randn(2, 3, 5, dtype=torch.float64), mask)
    assert (outputs[1] == 0).all()
    assert (state.cell[1] == 0).all()


@pytest.mark.takes("unpacked_reading", "recurrence_by_layers")
def test_both_fast_paths_are_taken_only_in_updates_that_may_be_captured():
    recurrence = Recurrence(CELLS["gru"], input_dim=5, dim=14, layers=2, dropout=0.1)
    inputs, mask, start = torch.randn(3, 7, 5), torch.ones(3, 7, dtype=torch.bool), torch.zeros(3, 2, 14)
    for on in (True, False):
        with capturable(on), count_answers() as answers:
            recurrence(inputs, Recurrent(start, None))
            recurrence.read(inputs, mask)
        assert [answers[name].taken for name in ("recurrence_by_layers", "unpacked_reading")] == [int(on)] * 2
