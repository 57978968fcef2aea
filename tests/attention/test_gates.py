"""Gates: their equations, and that looking at them changes nothing."""

import pytest
import torch
from torch import Tensor, nn

from regard.attention.gates import SqueezeExcite, lstm_gates
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
        looked = run()
    assert torch.equal(looked[0], plain[0])
    assert torch.equal(looked[1], plain[1])
    assert torch.equal(seen.weights["0"], layer.gate(inputs).unsqueeze(1))
    found = seen.map("0", 1, columns=[f"channel {number}" for number in range(8)])
    assert torch.equal(found.weights, layer.gate(inputs)[1:2])
    assert not found.weights.requires_grad
    assert ((found.weights > 0) & (found.weights < 1)).all()


@pytest.mark.parametrize("bias", [True, False])
def test_lstm_gates_are_those_of_a_cell_written_out(bias):
    lstm = nn.LSTM(INPUT, DIM, batch_first=True, bias=bias).double()
    inputs = torch.randn(BATCH, TIME, INPUT, dtype=torch.float64)
    first, cell = torch.randn(2, BATCH, DIM, dtype=torch.float64)
    with torch.no_grad():
        said, (_, last) = lstm(inputs, (first.unsqueeze(0), cell.unsqueeze(0)))
        gates = lstm_gates(lstm, inputs, said, first)
        assert {gate.shape for gate in gates} == {(BATCH, TIME, DIM)}
        hidden = first
        parts = {name: weight.chunk(4) for name, weight in lstm.named_parameters()}  # input, forget, new, output

        def mixed(place: int, at: int, hidden: Tensor) -> Tensor:
            total = inputs[:, at] @ parts["weight_ih_l0"][place].T + hidden @ parts["weight_hh_l0"][place].T
            return total + parts["bias_ih_l0"][place] + parts["bias_hh_l0"][place] if bias else total

        for at in range(TIME):
            near(gates.input[:, at], torch.sigmoid(mixed(0, at, hidden)))
            near(gates.forget[:, at], torch.sigmoid(mixed(1, at, hidden)))
            near(gates.output[:, at], torch.sigmoid(mixed(3, at, hidden)))
            cell = gates.forget[:, at] * cell + gates.input[:, at] * torch.tanh(mixed(2, at, hidden))
            hidden = gates.output[:, at] * torch.tanh(cell)
            near(hidden, said[:, at])  # so the outputs are told by the gates
        near(cell, last[0])


def test_lstm_gates_agree_with_torchs_own_cell():
    lstm, cell = nn.LSTM(INPUT, DIM, batch_first=True).double(), nn.LSTMCell(INPUT, DIM).double()
    cell.load_state_dict({name.removesuffix("_l0"): value for name, value in lstm.state_dict().items()})
    inputs = torch.randn(BATCH, TIME, INPUT, dtype=torch.float64)
    hidden = memory = torch.zeros(BATCH, DIM, dtype=torch.float64)
    said, _ = lstm(inputs)
    gates = lstm_gates(lstm, inputs, said, hidden)
    for at in range(TIME):
        hidden, memory = cell(inputs[:, at], (hidden, memory))
        near(gates.output[:, at] * torch.tanh(memory), hidden)
