"""Gates: factors from 0 to 1 that multiply parts of a vector. `record` keeps them like attention weights."""

from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils.rnn import PackedSequence, pad_packed_sequence

from regard.kernels.linear import Linear

GATES = ("input", "forget", "output")
DIRECTIONS = ("", "_reverse")  # suffixes of the names of torch's weights


class SqueezeExcite(nn.Module):
    """Hu et al. 2018: each channel is multiplied by a gate computed from the mean of the whole input.

    gate = sigmoid(W relu(V mean(x) + c) + b),  output = gate * x
    """

    def __init__(self, *, channels: int, reduction: int = 4) -> None:
        super().__init__()
        inner = max(1, channels // reduction)
        self.squeeze = nn.Linear(channels, inner)
        self.excite = nn.Linear(inner, channels)

    def gate(self, inputs: Float[Tensor, "batch *positions channels"]) -> Float[Tensor, "batch channels"]:
        """The gate of each channel, from 0 (closed) to 1 (open)."""
        mean = inputs.flatten(1, -2).mean(dim=1)
        return torch.sigmoid(self.excite(functional.relu(self.squeeze(mean))))

    def forward(self, inputs: Float[Tensor, "batch *positions channels"]) -> Float[Tensor, "batch *positions channels"]:
        """Multiply each channel of the input by its gate."""
        gate = self.gate(inputs)
        return inputs * gate.view(len(gate), *[1] * (inputs.ndim - 2), -1)


class ContextGate(nn.Module):
    """Xu et al. 2015, 4.2.1: the context is multiplied by one gate, computed from the query of the attention.

    beta = sigmoid(w . query + b),  output = beta * context.  With a small gate, a word depends on the words before it
    more than on the source.
    """

    def __init__(self, *, query_dim: int) -> None:
        super().__init__()
        self.query = Linear(query_dim, 1)

    def gate(self, query: Float[Tensor, "rows tokens query"]) -> Float[Tensor, "rows tokens 1"]:
        """The gate of each query, from 0 (closed) to 1 (open)."""
        return torch.sigmoid(self.query(query))

    def forward(
        self, query: Float[Tensor, "rows tokens query"], context: Float[Tensor, "rows tokens dim"]
    ) -> Float[Tensor, "rows tokens dim"]:
        """Multiply the context of each query by its gate."""
        return self.gate(query) * context


def lstm_gates(
    lstm: nn.LSTM, inputs: Tensor | PackedSequence, first: tuple[Tensor, Tensor] | None = None
) -> dict[str, Float[Tensor, "batch time units"]]:
    """Hochreiter and Schmidhuber 1997; Gers et al. 2000: the input, forget and output gates of an LSTM at each step.

    gate_t = sigmoid(W x_t + U h_{t-1} + b), computed again from the inputs of the LSTM, so that the LSTM itself is not
    changed. Names end like those of torch's weights: `forget_l1_reverse` belongs to `weight_hh_l1_reverse`. At padding
    the gates are 0. In training with dropout between layers, only the lowest layer's gates are returned: the inputs of
    the other layers depend on torch's dropout mask, which is not known here.
    """
    layer_inputs, lengths = _to_padded(lstm, inputs)
    hidden, cell = _initial_state(lstm, layer_inputs, first)
    real, *orders = _reading_orders(layer_inputs, lengths)
    rows = torch.arange(len(layer_inputs), device=layer_inputs.device).unsqueeze(-1)
    gates: dict[str, Tensor] = {}
    for layer in range(1 if lstm.training and lstm.dropout else lstm.num_layers):
        outputs: list[Tensor] = []
        for direction, order in zip(DIRECTIONS[: 1 + lstm.bidirectional], orders, strict=False):
            index, suffix = len(gates) // len(GATES), f"l{layer}{direction}"
            states, gate_values = _run_layer(lstm, suffix, layer_inputs[rows, order], hidden[index], cell[index])
            outputs.append(states[rows, order])  # `order` is its own inverse: this restores the order of the inputs
            gate_values = gate_values[rows, order].masked_fill(~real[..., None, None], 0.0)
            gates |= {f"{gate}_{suffix}": values for gate, values in zip(GATES, gate_values.unbind(-2), strict=True)}
        layer_inputs = torch.cat(outputs, dim=-1)
    return gates


def _to_padded(
    lstm: nn.LSTM, inputs: Tensor | PackedSequence
) -> tuple[Float[Tensor, "batch time input"], Int[Tensor, " batch"]]:
    """Any input that torch accepts (packed, time-first, a single row) as a padded batch-first tensor, and lengths."""
    if isinstance(inputs, PackedSequence):
        rows, lengths = pad_packed_sequence(inputs, batch_first=True)
        return rows, lengths.to(rows.device)
    if inputs.ndim == 2:
        inputs = inputs.unsqueeze(0)
    elif not lstm.batch_first:
        inputs = inputs.transpose(0, 1)
    return inputs, torch.full((len(inputs),), inputs.shape[1], device=inputs.device)


def _initial_state(
    lstm: nn.LSTM, inputs: Float[Tensor, "batch time input"], initial: tuple[Tensor, Tensor] | None
) -> tuple[Float[Tensor, "places batch dim"], Float[Tensor, "places batch units"]]:
    """The initial hidden and cell states of all layers and directions: zeros if none are given."""
    if initial is not None:
        # a single row has no batch axis
        hidden, cell = (state.reshape(len(state), len(inputs), -1) for state in initial)
        return hidden, cell
    count = lstm.num_layers * (1 + lstm.bidirectional)
    hidden = inputs.new_zeros(count, len(inputs), lstm.proj_size or lstm.hidden_size)
    return hidden, inputs.new_zeros(count, len(inputs), lstm.hidden_size)


def _reading_orders(
    inputs: Float[Tensor, "batch time input"], lengths: Int[Tensor, " batch"]
) -> tuple[Bool[Tensor, "batch time"], Int[Tensor, "batch time"], Int[Tensor, "batch time"]]:
    """Mask of the real positions, and the positions in the order in which each direction reads them."""
    position, ends = torch.arange(inputs.shape[1], device=inputs.device).expand(len(inputs), -1), lengths.unsqueeze(-1)
    real = position < ends
    return real, position, torch.where(real, ends - 1 - position, position)  # reversed within each row's length


def _run_layer(
    lstm: nn.LSTM,
    suffix: str,
    inputs: Float[Tensor, "batch time input"],
    hidden: Float[Tensor, "batch dim"],
    cell: Float[Tensor, "batch units"],
) -> tuple[Float[Tensor, "batch time dim"], Float[Tensor, "batch time gate units"]]:
    """Run one layer in one direction: its outputs and its gates at each step."""

    def weight(name: str) -> Any:
        return getattr(lstm, f"{name}_{suffix}", None)  # None without bias or projection

    states, gate_values = [], []
    for entering in functional.linear(inputs, weight("weight_ih"), weight("bias_ih")).unbind(1):
        activations = entering + functional.linear(hidden, weight("weight_hh"), weight("bias_hh"))
        enter, forget, candidate, output = activations.chunk(4, dim=-1)
        enter, forget, output = torch.sigmoid(enter), torch.sigmoid(forget), torch.sigmoid(output)
        cell = forget * cell + enter * torch.tanh(candidate)
        hidden = output * torch.tanh(cell)
        if lstm.proj_size:
            hidden = functional.linear(hidden, weight("weight_hr"))
        states.append(hidden)
        gate_values.append(torch.stack([enter, forget, output], dim=-2))
    return torch.stack(states, dim=1), torch.stack(gate_values, dim=1)
