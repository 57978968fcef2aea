"""Gates: their equations, and that looking at them changes nothing."""

from itertools import product

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from regard.attention.gates import GATES, SqueezeExcite
from regard.attention.record import record

BATCH, TIME, INPUT, DIM = 3, 5, 4, 7


def near(actual: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(actual, expected, rtol=0.0, atol=1e-12)


@pytest.mark.parametrize("positions", [(), (5,), (3, 5), (2, 3, 5)])
def test_squeeze_excite_is_its_equation(positions):
    layer = SqueezeExcite(channels=8, reduction=4).double()
    inputs = torch.randn(2, *positions, 8, dtype=torch.float64) if positions else torch.randn(2, 1, 8).double()
    outputs = layer(inputs)
    for row in range(2):
        mean = inputs[row].reshape(-1, 8).mean(0)
        inner = (layer.squeeze.weight @ mean + layer.squeeze.bias).clamp(min=0)
        gate = 1 / (1 + torch.exp(-(layer.excite.weight @ inner + layer.excite.bias)))
        near(layer.gate(inputs)[row], gate)
        near(outputs[row], inputs[row] * gate)
    assert layer.squeeze.weight.shape == (2, 8)


@pytest.mark.parametrize(("channels", "reduction", "inner"), [(8, 4, 2), (3, 4, 1), (16, 2, 8)])
def test_the_bottleneck_is_never_empty(channels, reduction, inner):
    assert SqueezeExcite(channels=channels, reduction=reduction).squeeze.out_features == inner


@pytest.mark.parametrize("named", [False, True])
def test_a_gate_is_recorded_and_changes_no_bit(named):
    model = nn.Sequential(SqueezeExcite(channels=8), nn.Linear(8, 8))
    layer = model[0]
    inputs = torch.randn(2, 5, 8, requires_grad=True)

    def run() -> tuple[Tensor, Tensor]:
        output = layer(inputs=inputs) if named else model(inputs)
        (gradient,) = torch.autograd.grad(output.square().sum(), inputs)
        return output, gradient

    plain = run()
    with record(model) as seen:
        attended = run()
    assert torch.equal(attended[0], plain[0])
    assert torch.equal(attended[1], plain[1])
    assert torch.equal(seen.weights["0"], layer.gate(inputs).unsqueeze(1))
    found = seen.map("0", 1, columns=[f"channel {number}" for number in range(8)])
    assert torch.equal(found.weights, layer.gate(inputs)[1:2])
    assert not found.weights.requires_grad
    assert ((found.weights > 0) & (found.weights < 1)).all()


def make_lstm(**settings: object) -> nn.LSTM:
    lstm = nn.LSTM(INPUT, DIM, **{"batch_first": True} | settings).double()
    for parameter in lstm.parameters():
        nn.init.normal_(parameter, std=0.7)
    return lstm


def make_first(lstm: nn.LSTM, rows: int = BATCH) -> tuple[Tensor, Tensor]:
    places = lstm.num_layers * (1 + lstm.bidirectional)
    widths = lstm.proj_size or DIM, DIM
    return tuple(torch.randn(places, rows, width, dtype=torch.float64) for width in widths)


def cell_of(lstm: nn.LSTM, ending: str) -> nn.LSTMCell:
    """Torch's own cell of one layer and direction; it knows no projection."""
    kept = {name.removesuffix(ending): each for name, each in lstm.state_dict().items() if name.endswith(ending)}
    cell = nn.LSTMCell(kept["weight_ih"].shape[1], DIM, bias=lstm.bias).double()
    cell.load_state_dict(kept)
    return cell


def walked(lstm: nn.LSTM, ending: str, row: Tensor, hidden: Tensor, memory: Tensor) -> tuple[dict[str, Tensor], Tensor]:
    """One layer in one direction, as it stands in the papers."""
    weights, cell = dict(lstm.named_parameters()), None if lstm.proj_size else cell_of(lstm, ending)
    said, opened = {}, {gate: torch.full((len(row), DIM), torch.nan, dtype=torch.float64) for gate in GATES}
    for at in reversed(range(len(row))) if ending.endswith("reverse") else range(len(row)):
        theirs = cell and cell(row[at], (hidden, memory))
        mixed = weights["weight_ih" + ending] @ row[at] + weights["weight_hh" + ending] @ hidden
        if lstm.bias:
            mixed = mixed + weights["bias_ih" + ending] + weights["bias_hh" + ending]
        blocks = dict(zip(("input", "forget", "new", "output"), mixed.view(4, DIM), strict=True))
        for gate in GATES:
            opened[gate][at] = 1 / (1 + torch.exp(-blocks[gate]))
        memory = opened["forget"][at] * memory + opened["input"][at] * torch.tanh(blocks["new"])
        hidden = opened["output"][at] * torch.tanh(memory)
        if theirs is None:
            hidden = weights["weight_hr" + ending] @ hidden
        else:
            near(hidden, theirs[0])
            near(memory, theirs[1])
        said[at] = hidden
    return opened, torch.stack([said[at] for at in range(len(row))])


@torch.no_grad()
def written_out(lstm: nn.LSTM, row: Tensor, firsts: list[tuple[Tensor, Tensor]]) -> tuple[dict[str, Tensor], Tensor]:
    """One row alone, a word at a time: all gates, and what the top layer says."""
    gates, begun = {}, iter(firsts)
    for layer in range(lstm.num_layers):
        sides = []
        for direction in ("", "_reverse")[: 1 + lstm.bidirectional]:
            ending = f"_l{layer}{direction}"
            opened, said = walked(lstm, ending, row, *next(begun))
            gates |= {gate + ending: each for gate, each in opened.items()}
            sides.append(said)
        row = torch.cat(sides, dim=-1)
    return gates, row


SHAPES = list(product((1, 2), (False, True), (0, 6), (True, False)))


@pytest.mark.parametrize("started", [False, True])
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize(("layers", "bidirectional", "projected", "bias"), SHAPES)
def test_the_gates_of_an_lstm_are_those_of_its_cells_written_out(
    layers, bidirectional, projected, bias, packed, started
):
    lstm = make_lstm(num_layers=layers, bidirectional=bidirectional, proj_size=projected, bias=bias)
    inputs, lengths = torch.randn(BATCH, TIME, INPUT, dtype=torch.float64), (3, 5, 1) if packed else (TIME,) * BATCH
    first = make_first(lstm) if started else None
    given = pack_padded_sequence(inputs, torch.tensor(lengths), batch_first=True, enforce_sorted=False)
    with record(lstm) as seen:
        said, _ = lstm(given if packed else inputs, first)
    said = pad_packed_sequence(said, batch_first=True)[0] if packed else said
    resting = [torch.zeros_like(each) for each in make_first(lstm)]
    firsts = list(zip(*(first or resting), strict=True))
    for row, length in enumerate(lengths):
        expected, top = written_out(lstm, inputs[row, :length], [(hidden[row], cell[row]) for hidden, cell in firsts])
        near(said[row, :length].detach(), top)  # so the outputs are told by the gates
        assert seen.weights.keys() == expected.keys()
        for name, gate in expected.items():
            assert seen.weights[name].shape == (BATCH, TIME, DIM)
            near(seen.weights[name][row, :length], gate)
            assert not seen.weights[name][row, length:].any()  # at padding nothing is let through


def test_a_gate_has_a_map_of_time_and_units():
    model = nn.ModuleDict({"reader": make_lstm(num_layers=2, bidirectional=True)})
    with record(model) as seen:
        model["reader"](torch.randn(BATCH, TIME, INPUT, dtype=torch.float64))
    endings = ("l0", "l0_reverse", "l1", "l1_reverse")
    assert list(seen.weights) == [f"reader.{gate}_{ending}" for ending in endings for gate in GATES]
    found = seen.map("reader.forget_l1_reverse", 2, rows="abcde")
    assert found.rows == tuple("abcde")
    assert found.columns == tuple(map(str, range(DIM)))
    assert torch.equal(found.weights, seen.weights["reader.forget_l1_reverse"][2])
    assert not found.weights.requires_grad


def test_an_lstm_that_steps_is_recorded_row_by_row():
    lstm = make_lstm(num_layers=2, proj_size=6)
    inputs, state = torch.randn(BATCH, TIME, INPUT, dtype=torch.float64), make_first(lstm)
    with record(lstm) as whole:
        lstm(inputs, state)
    with record(lstm) as stepped:
        for piece in inputs.split((1, 3, 1), dim=1):
            _, state = lstm(piece, state)
    for name, gate in whole.weights.items():
        near(stepped.weights[name], gate)


def test_torchs_other_ways_to_call_an_lstm_tell_the_same_gates():
    lstm = make_lstm(num_layers=2, bidirectional=True)
    inputs, first = torch.randn(BATCH, TIME, INPUT, dtype=torch.float64), make_first(lstm)
    with record(lstm) as plain:
        lstm(inputs, first)
    with record(lstm) as named:
        lstm(hx=first, input=inputs)
    with record(lstm) as alone:
        lstm(inputs[1], tuple(each[:, 1] for each in first))
    lstm.batch_first = False
    with record(lstm) as time_first:
        lstm(inputs.transpose(0, 1), first)
    for name, gate in plain.weights.items():
        assert torch.equal(named.weights[name], gate)
        assert torch.equal(time_first.weights[name], gate)
        near(alone.weights[name], gate[1:2])


def test_while_dropout_falls_between_layers_only_the_lowest_tells_its_gates():
    lstm = make_lstm(num_layers=3, dropout=0.5)
    inputs = torch.randn(BATCH, TIME, INPUT, dtype=torch.float64)
    with record(lstm.train()) as learning:
        lstm(inputs)
    with record(lstm.eval()) as resting:
        lstm(inputs)
    assert list(learning.weights) == ["input_l0", "forget_l0", "output_l0"]
    assert len(resting.weights) == 9
    for name, gate in learning.weights.items():
        assert torch.equal(gate, resting.weights[name])


@pytest.mark.parametrize("packed", [False, True])
def test_looking_at_an_lstm_changes_no_bit(packed):
    lstm = make_lstm(num_layers=2, bidirectional=True, dropout=0.3).float().train()
    inputs = torch.randn(BATCH, TIME, INPUT, requires_grad=True)

    def run() -> list[Tensor]:
        torch.manual_seed(8)
        given = pack_padded_sequence(inputs, torch.tensor((3, 5, 1)), batch_first=True, enforce_sorted=False)
        said, last = lstm(given if packed else inputs)
        results = [said.data if packed else said, *last]
        gradients = torch.autograd.grad(sum(each.square().sum() for each in results), [inputs, *lstm.parameters()])
        return [*results, *gradients, torch.rand(3)]  # and chance goes on from the same place

    plain = run()
    with record(lstm) as seen:
        attended = run()
    assert seen.weights
    for mine, theirs in zip(attended, plain, strict=True):
        assert torch.equal(mine, theirs)
