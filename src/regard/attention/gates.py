"""Gates: numbers from 0 to 1 that let parts of a vector through. Attention's cousins, with maps of their own."""

from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils.rnn import PackedSequence, pad_packed_sequence

GATES = ("input", "forget", "output")
DIRECTIONS = ("", "_reverse")  # as torch calls them


class SqueezeExcite(nn.Module):
    """Hu et al. 2018: every channel is let through as far as the whole input asks.

    gate = sigmoid(W relu(V mean(x) + c) + b),  output = gate * x
    """

    def __init__(self, *, channels: int, reduction: int = 4) -> None:
        super().__init__()
        inner = max(1, channels // reduction)
        self.squeeze = nn.Linear(channels, inner)
        self.excite = nn.Linear(inner, channels)

    def gate(self, inputs: Float[Tensor, "batch *positions channels"]) -> Float[Tensor, "batch channels"]:
        """How far each channel is open."""
        mean = inputs.flatten(1, -2).mean(dim=1)
        return torch.sigmoid(self.excite(functional.relu(self.squeeze(mean))))

    def forward(self, inputs: Float[Tensor, "batch *positions channels"]) -> Float[Tensor, "batch *positions channels"]:
        """The input with each channel scaled by its gate."""
        gate = self.gate(inputs)
        return inputs * gate.view(len(gate), *[1] * (inputs.ndim - 2), -1)


def lstm_gates(
    lstm: nn.LSTM, inputs: Tensor | PackedSequence, first: tuple[Tensor, Tensor] | None = None
) -> dict[str, Float[Tensor, "batch time units"]]:
    """Hochreiter and Schmidhuber 1997; Gers et al. 2000: what an LSTM lets in, keeps, and shows at each step.

    gate_t = sigmoid(W x_t + U h_{t-1} + b), run beside the LSTM from what it is given, so that it is not touched.
    Names end like those of torch's weights: `forget_l1_reverse` is of `weight_hh_l1_reverse`. At padding, gates are 0.
    While dropout falls between the layers, only the gates of the lowest are told: what others read is not known here.
    """
    read, lengths = _padded(lstm, inputs)
    hidden, cell = _begun(lstm, read, first)
    real, *orders = _orders(read, lengths)
    rows = torch.arange(len(read), device=read.device).unsqueeze(-1)
    gates: dict[str, Tensor] = {}
    for layer in range(1 if lstm.training and lstm.dropout else lstm.num_layers):
        said: list[Tensor] = []
        for direction, order in zip(DIRECTIONS[: 1 + lstm.bidirectional], orders, strict=False):
            place, ending = len(gates) // len(GATES), f"l{layer}{direction}"
            states, opened = _walk(lstm, ending, read[rows, order], hidden[place], cell[place])
            said.append(states[rows, order])  # a row turned twice is as it was
            opened = opened[rows, order].masked_fill(~real[..., None, None], 0.0)
            gates |= {f"{gate}_{ending}": each for gate, each in zip(GATES, opened.unbind(-2), strict=True)}
        read = torch.cat(said, dim=-1)
    return gates


def _padded(
    lstm: nn.LSTM, inputs: Tensor | PackedSequence
) -> tuple[Float[Tensor, "batch time input"], Int[Tensor, " batch"]]:
    """All rows, batch first, and their lengths: torch also takes them packed, time first, or one alone."""
    if isinstance(inputs, PackedSequence):
        rows, lengths = pad_packed_sequence(inputs, batch_first=True)
        return rows, lengths.to(rows.device)
    if inputs.ndim == 2:
        inputs = inputs.unsqueeze(0)
    elif not lstm.batch_first:
        inputs = inputs.transpose(0, 1)
    return inputs, torch.full((len(inputs),), inputs.shape[1], device=inputs.device)


def _begun(
    lstm: nn.LSTM, read: Float[Tensor, "batch time input"], first: tuple[Tensor, Tensor] | None
) -> tuple[Float[Tensor, "places batch dim"], Float[Tensor, "places batch units"]]:
    """The state to start from; at rest where none is given."""
    if first is not None:
        hidden, cell = (each.reshape(len(each), len(read), -1) for each in first)  # one row alone has no axis of rows
        return hidden, cell
    places = lstm.num_layers * (1 + lstm.bidirectional)
    hidden = read.new_zeros(places, len(read), lstm.proj_size or lstm.hidden_size)
    return hidden, read.new_zeros(places, len(read), lstm.hidden_size)


def _orders(
    read: Float[Tensor, "batch time input"], lengths: Int[Tensor, " batch"]
) -> tuple[Bool[Tensor, "batch time"], Int[Tensor, "batch time"], Int[Tensor, "batch time"]]:
    """Where there is no padding; and the positions in the order they are read, forward and backward."""
    position, ends = torch.arange(read.shape[1], device=read.device).expand(len(read), -1), lengths.unsqueeze(-1)
    real = position < ends
    return real, position, torch.where(real, ends - 1 - position, position)  # each row turns about its own middle


def _walk(
    lstm: nn.LSTM,
    ending: str,
    read: Float[Tensor, "batch time input"],
    hidden: Float[Tensor, "batch dim"],
    cell: Float[Tensor, "batch units"],
) -> tuple[Float[Tensor, "batch time dim"], Float[Tensor, "batch time gate units"]]:
    """One layer in one direction: what it said at each step, and its gates."""

    def part(name: str) -> Any:
        return getattr(lstm, f"{name}_{ending}", None)  # without bias or projection there is none

    states, gates = [], []
    for now in functional.linear(read, part("weight_ih"), part("bias_ih")).unbind(1):
        mixed = now + functional.linear(hidden, part("weight_hh"), part("bias_hh"))
        let_in, keep, new, show = mixed.chunk(4, dim=-1)
        let_in, keep, show = torch.sigmoid(let_in), torch.sigmoid(keep), torch.sigmoid(show)
        cell = keep * cell + let_in * torch.tanh(new)
        hidden = show * torch.tanh(cell)
        if lstm.proj_size:
            hidden = functional.linear(hidden, part("weight_hr"))
        states.append(hidden)
        gates.append(torch.stack([let_in, keep, show], dim=-2))
    return torch.stack(states, dim=1), torch.stack(gates, dim=1)
