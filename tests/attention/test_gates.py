"""Gates equal their equations, and recording them changes nothing."""

from itertools import product

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from regard import recipe as recipes
from regard.attention.gates import GATES, ContextGate, SqueezeExcite
from regard.attention.record import record
from regard.errors import RecipeError
from regard.tasks import TASKS

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
def test_the_bottleneck_has_at_least_one_unit(channels, reduction, inner):
    assert SqueezeExcite(channels=channels, reduction=reduction).squeeze.out_features == inner


def test_the_gate_of_a_context_is_its_equation_and_recorded():
    layer = ContextGate(query_dim=DIM).double()
    query, context = torch.randn(BATCH, TIME, DIM).double(), torch.randn(BATCH, TIME, INPUT).double()
    with record(nn.ModuleDict({"gate": layer})) as recording:
        output = layer(query, context)
    gate = 1 / (1 + torch.exp(-(query @ layer.query.weight[0] + layer.query.bias)))
    near(output, context * gate.unsqueeze(-1))
    near(recording.weights["gate"], gate.unsqueeze(-1))


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("model.decoder.order=none", "order attends to the source; 'none' does not; choose another order"),
        ("model.decoder.order=context", "order attends to the source; 'context' does not; choose another order"),
        ("model.decoder.kind=transformer", "order attends to the source; a Transformer has no such context"),
    ],
)
def test_a_gate_without_a_context_is_refused(override, message):
    recipe = recipes.load("copy", ["model.decoder.gated_context=true", override])
    with pytest.raises(RecipeError, match=message):
        TASKS[recipe.task].check(recipe)


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
    with record(model) as recording:
        recorded = run()
    assert torch.equal(recorded[0], plain[0])
    assert torch.equal(recorded[1], plain[1])
    assert torch.equal(recording.weights["0"], layer.gate(inputs).unsqueeze(1))
    gate_map = recording.map("0", 1, columns=[f"channel {number}" for number in range(8)])
    assert torch.equal(gate_map.weights, layer.gate(inputs)[1:2])
    assert not gate_map.weights.requires_grad
    assert ((gate_map.weights > 0) & (gate_map.weights < 1)).all()


def make_lstm(**settings: object) -> nn.LSTM:
    lstm = nn.LSTM(INPUT, DIM, **{"batch_first": True} | settings).double()
    for parameter in lstm.parameters():
        nn.init.normal_(parameter, std=0.7)
    return lstm


def make_initial_state(lstm: nn.LSTM, rows: int = BATCH) -> tuple[Tensor, Tensor]:
    layers = lstm.num_layers * (1 + lstm.bidirectional)
    widths = lstm.proj_size or DIM, DIM
    return tuple(torch.randn(layers, rows, width, dtype=torch.float64) for width in widths)


def cell_of(lstm: nn.LSTM, ending: str) -> nn.LSTMCell:
    """Torch's own cell of one layer and direction; it has no projection."""
    parameters = {
        name.removesuffix(ending): value for name, value in lstm.state_dict().items() if name.endswith(ending)
    }
    cell = nn.LSTMCell(parameters["weight_ih"].shape[1], DIM, bias=lstm.bias).double()
    cell.load_state_dict(parameters)
    return cell


def layer_by_equations(
    lstm: nn.LSTM, ending: str, row: Tensor, hidden: Tensor, memory: Tensor
) -> tuple[dict[str, Tensor], Tensor]:
    """The gates and outputs of one layer in one direction, from the equations of the papers."""
    weights, cell = dict(lstm.named_parameters()), None if lstm.proj_size else cell_of(lstm, ending)
    outputs, gates = {}, {gate: torch.full((len(row), DIM), torch.nan, dtype=torch.float64) for gate in GATES}
    for at in reversed(range(len(row))) if ending.endswith("reverse") else range(len(row)):
        expected = cell and cell(row[at], (hidden, memory))
        projected = weights["weight_ih" + ending] @ row[at] + weights["weight_hh" + ending] @ hidden
        if lstm.bias:
            projected = projected + weights["bias_ih" + ending] + weights["bias_hh" + ending]
        blocks = dict(zip(("input", "forget", "new", "output"), projected.view(4, DIM), strict=True))
        for gate in GATES:
            gates[gate][at] = 1 / (1 + torch.exp(-blocks[gate]))
        memory = gates["forget"][at] * memory + gates["input"][at] * torch.tanh(blocks["new"])
        hidden = gates["output"][at] * torch.tanh(memory)
        if expected is None:
            hidden = weights["weight_hr" + ending] @ hidden
        else:
            near(hidden, expected[0])
            near(memory, expected[1])
        outputs[at] = hidden
    return gates, torch.stack([outputs[at] for at in range(len(row))])


@torch.no_grad()
def lstm_by_equations(
    lstm: nn.LSTM, row: Tensor, initial_states: list[tuple[Tensor, Tensor]]
) -> tuple[dict[str, Tensor], Tensor]:
    """All gates and the outputs of the top layer, for one row without padding, step by step."""
    all_gates, states = {}, iter(initial_states)
    for layer in range(lstm.num_layers):
        sides = []
        for direction in ("", "_reverse")[: 1 + lstm.bidirectional]:
            ending = f"_l{layer}{direction}"
            gates, outputs = layer_by_equations(lstm, ending, row, *next(states))
            all_gates |= {name + ending: gate for name, gate in gates.items()}
            sides.append(outputs)
        row = torch.cat(sides, dim=-1)
    return all_gates, row


SHAPES = list(product((1, 2), (False, True), (0, 6), (True, False)))


@pytest.mark.parametrize("started", [False, True])
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize(("layers", "bidirectional", "projected", "bias"), SHAPES)
def test_the_gates_of_an_lstm_are_its_equations(layers, bidirectional, projected, bias, packed, started):
    lstm = make_lstm(num_layers=layers, bidirectional=bidirectional, proj_size=projected, bias=bias)
    inputs, lengths = torch.randn(BATCH, TIME, INPUT, dtype=torch.float64), (3, 5, 1) if packed else (TIME,) * BATCH
    state = make_initial_state(lstm) if started else None
    packed_inputs = pack_padded_sequence(inputs, torch.tensor(lengths), batch_first=True, enforce_sorted=False)
    with record(lstm) as recording:
        outputs, _ = lstm(packed_inputs if packed else inputs, state)
    outputs = pad_packed_sequence(outputs, batch_first=True)[0] if packed else outputs
    zeros = [torch.zeros_like(tensor) for tensor in make_initial_state(lstm)]
    states = list(zip(*(state or zeros), strict=True))
    for row, length in enumerate(lengths):
        row_states = [(hidden[row], cell[row]) for hidden, cell in states]
        expected, top = lstm_by_equations(lstm, inputs[row, :length], row_states)
        near(outputs[row, :length].detach(), top)  # so these gates do give the outputs
        assert recording.weights.keys() == expected.keys()
        for name, gate in expected.items():
            assert recording.weights[name].shape == (BATCH, TIME, DIM)
            near(recording.weights[name][row, :length], gate)
            assert not recording.weights[name][row, length:].any()  # zeros at padding


def test_a_gate_has_a_map_of_time_and_units():
    model = nn.ModuleDict({"encoder": make_lstm(num_layers=2, bidirectional=True)})
    with record(model) as recording:
        model["encoder"](torch.randn(BATCH, TIME, INPUT, dtype=torch.float64))
    endings = ("l0", "l0_reverse", "l1", "l1_reverse")
    assert list(recording.weights) == [f"encoder.{gate}_{ending}" for ending in endings for gate in GATES]
    gate_map = recording.map("encoder.forget_l1_reverse", 2, rows="abcde")
    assert gate_map.rows == tuple("abcde")
    assert gate_map.columns == tuple(map(str, range(DIM)))
    assert torch.equal(gate_map.weights, recording.weights["encoder.forget_l1_reverse"][2])
    assert not gate_map.weights.requires_grad


def test_recorded_steps_of_an_lstm_are_rows_of_the_whole():
    lstm = make_lstm(num_layers=2, proj_size=6)
    inputs, state = torch.randn(BATCH, TIME, INPUT, dtype=torch.float64), make_initial_state(lstm)
    with record(lstm) as whole:
        lstm(inputs, state)
    with record(lstm) as stepped:
        for chunk in inputs.split((1, 3, 1), dim=1):
            _, state = lstm(chunk, state)
    for name, gate in whole.weights.items():
        near(stepped.weights[name], gate)


def test_other_signatures_of_torchs_lstm_record_the_same_gates():
    lstm = make_lstm(num_layers=2, bidirectional=True)
    inputs, state = torch.randn(BATCH, TIME, INPUT, dtype=torch.float64), make_initial_state(lstm)
    with record(lstm) as positional:
        lstm(inputs, state)
    with record(lstm) as named:
        lstm(hx=state, input=inputs)
    with record(lstm) as alone:
        lstm(inputs[1], tuple(tensor[:, 1] for tensor in state))
    lstm.batch_first = False
    with record(lstm) as time_first:
        lstm(inputs.transpose(0, 1), state)
    for name, gate in positional.weights.items():
        assert torch.equal(named.weights[name], gate)
        assert torch.equal(time_first.weights[name], gate)
        near(alone.weights[name], gate[1:2])


def test_with_dropout_between_layers_only_gates_of_the_lowest_are_recorded():
    lstm = make_lstm(num_layers=3, dropout=0.5)
    inputs = torch.randn(BATCH, TIME, INPUT, dtype=torch.float64)
    with record(lstm.train()) as in_training:
        lstm(inputs)
    with record(lstm.eval()) as in_eval:
        lstm(inputs)
    assert list(in_training.weights) == ["input_l0", "forget_l0", "output_l0"]
    assert len(in_eval.weights) == 9
    for name, gate in in_training.weights.items():
        assert torch.equal(gate, in_eval.weights[name])


@pytest.mark.parametrize("packed", [False, True])
def test_recording_an_lstm_changes_no_bit(packed):
    lstm = make_lstm(num_layers=2, bidirectional=True, dropout=0.3).float().train()
    inputs = torch.randn(BATCH, TIME, INPUT, requires_grad=True)

    def run() -> list[Tensor]:
        torch.manual_seed(8)
        packed_inputs = pack_padded_sequence(inputs, torch.tensor((3, 5, 1)), batch_first=True, enforce_sorted=False)
        outputs, last = lstm(packed_inputs if packed else inputs)
        results = [outputs.data if packed else outputs, *last]
        gradients = torch.autograd.grad(sum(each.square().sum() for each in results), [inputs, *lstm.parameters()])
        return [*results, *gradients, torch.rand(3)]  # the generator is in the same state too

    plain = run()
    with record(lstm) as recording:
        recorded = run()
    assert recording.weights
    for actual, expected in zip(recorded, plain, strict=True):
        assert torch.equal(actual, expected)
