"""Gates: numbers from 0 to 1 that let parts of a vector through. Attention's cousins, with maps of their own."""

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional


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


class LSTMGates(NamedTuple):
    """Hochreiter and Schmidhuber 1997; Gers et al. 2000: what an LSTM lets in, keeps, and shows at each step."""

    input: Float[Tensor, "batch time dim"]
    forget: Float[Tensor, "batch time dim"]
    output: Float[Tensor, "batch time dim"]


def lstm_gates(
    lstm: nn.LSTM,
    inputs: Float[Tensor, "batch time input"],
    hidden: Float[Tensor, "batch time dim"],
    first: Float[Tensor, "batch dim"],
) -> LSTMGates:
    """The gates of a single LSTM layer, computed beside it from what it read, what it said, and how it began.

    gate_t = sigmoid(W x_t + U h_{t-1} + b), so the layer itself runs as fast as ever and is not touched.
    """
    before = torch.cat([first.unsqueeze(1), hidden[:, :-1]], dim=1)
    weights = [getattr(lstm, f"{name}_l0") for name in ("weight_ih", "weight_hh")]
    biases = [getattr(lstm, f"{name}_l0") if lstm.bias else None for name in ("bias_ih", "bias_hh")]
    mixed = functional.linear(inputs, weights[0], biases[0]) + functional.linear(before, weights[1], biases[1])
    let_in, keep, _, show = mixed.chunk(4, dim=-1)
    return LSTMGates(torch.sigmoid(let_in), torch.sigmoid(keep), torch.sigmoid(show))
