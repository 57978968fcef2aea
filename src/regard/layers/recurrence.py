"""Recurrent layers (RNN, GRU, LSTM) of encoders and decoders: over whole sequences, and step by step."""

import warnings
from collections.abc import Callable, Sequence
from typing import cast

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from regard.errors import RecipeError
from regard.kernels.choose import are_unchanged, is_observed, takes, without_autocast
from regard.kernels.dropout import dropout
from regard.kernels.linear import linear
from regard.types import Recurrent

FLAGS = 8  # input columns added for the padding flag: tensor cores need widths that are multiples of 8
SHUT = 1e4  # the sigmoid of -1e4 or 1e4 is exactly 0 or 1, in half precision too

Cell = type[nn.RNN] | type[nn.GRU] | type[nn.LSTM]
Inputs = Float[Tensor, "batch time input"]
Outcome = tuple[Float[Tensor, "batch time dim"], Recurrent]  # outputs of the top layer, last state of all layers

CELLS: dict[str, Cell] = {
    "rnn": nn.RNN,
    "gru": nn.GRU,
    "lstm": nn.LSTM,
}


class Recurrence(nn.Module):
    """A stack of recurrent layers with dropout between them; states are batch-first.

    `dim` is the width of an output; with `bidirectional`, each direction has half of it. The cell state of an LSTM may
    have a greater width `inner_dim`; the output is then projected down to `dim` (torch's `proj_size`).
    """

    def __init__(
        self,
        cell: Cell,
        *,
        input_dim: int,
        dim: int,
        layers: int = 1,
        dropout: float = 0.0,
        bidirectional: bool = False,
        bias: bool = True,
        inner_dim: int | None = None,
    ) -> None:
        super().__init__()
        if inner_dim and cell is not nn.LSTM:
            raise RecipeError("only an lstm has an inner_dim that is projected down")
        if inner_dim and inner_dim <= dim:
            raise RecipeError(f"inner_dim must be greater than the dim it is projected to, {dim}, but is {inner_dim}")
        if inner_dim and bidirectional and inner_dim % 2:
            raise RecipeError(f"inner_dim is split between two directions, so it must be even, but is {inner_dim}")
        self.dim, self.layers, self.directions = dim, layers, 1 + bidirectional
        self.cell_dim = (inner_dim or dim) if cell is nn.LSTM else None  # None if the unit has no cell state
        projected = {"proj_size": dim // self.directions} if inner_dim else {}
        self.rnn = cell(
            input_dim,
            (inner_dim or dim) // self.directions,
            num_layers=layers,
            dropout=dropout if layers > 1 else 0.0,  # torch warns of dropout with one layer only
            bidirectional=bidirectional,
            bias=bias,
            batch_first=True,
            **projected,
        )

    def forward(self, inputs: Inputs, state: Recurrent) -> Outcome:
        """The top layer's output at every position, and the state of all layers after the last position."""
        with without_autocast(inputs):  # to float16, in which small gradients underflow
            if takes("recurrence_by_layers", self):
                return self.forward_by_layers(inputs, state)
            outputs, after = self.rnn(inputs, self._to_torch(state))
            return outputs, self._from_torch(after)

    def forward_by_layers(self, inputs: Inputs, state: Recurrent) -> Outcome:
        """`forward` with one call per layer, in one direction: cuDNN's dropout cannot be captured in a CUDA graph."""
        lasts = []
        for layer, weights in enumerate(self.rnn.all_weights):
            if layer:
                inputs = dropout(inputs, self.rnn.dropout, self.training)
            inputs, last = self._run(inputs, self._to_torch(layer_of(state, layer)), weights)
            lasts.append(self._from_torch(last))
        return inputs, joined(lasts)

    def read(self, inputs: Inputs, mask: Bool[Tensor, "batch time"]) -> Outcome:
        """`forward` from a zero state over padded rows: padding changes no result, and its outputs are zero."""
        with without_autocast(inputs):  # to float16, in which small gradients underflow
            if inputs.is_meta or takes("unpacked_reading", self):
                return self.read_unpacked(inputs, mask)
            lengths = mask.sum(dim=-1).cpu()
            packed = pack_padded_sequence(inputs, lengths, batch_first=True, enforce_sorted=False)
            outputs, after = self.rnn(packed)
            padded, _ = pad_packed_sequence(outputs, batch_first=True, total_length=mask.shape[-1])
            return padded, self._from_torch(after)

    def is_unchanged(self) -> bool:
        """Whether code may use the weights without calling torch's module: nothing in it was hooked or replaced."""
        return are_unchanged(self, (Recurrence, *CELLS.values()))

    def read_unpacked(self, inputs: Inputs, mask: Bool[Tensor, "batch time"]) -> Outcome:
        """`read` without packing, which needs the lengths on the CPU: so a CUDA graph can capture it.

        Each direction of each layer is one call. For the backward direction, every row is reversed within its length.
        """
        lengths = mask.sum(dim=-1, keepdim=True)
        positions = torch.arange(mask.shape[1], device=mask.device)
        reversed_order = torch.where(mask, lengths - 1 - positions, positions)
        ends, weights = (lengths - 1).clamp(min=0), self.rnn.all_weights
        hiddens, cells = [], []
        for layer in range(self.layers):
            if layer:
                inputs = dropout(inputs, self.rnn.dropout, self.training)
            directions = []
            for backward in range(self.directions):
                rows = _gather(inputs, reversed_order) if backward else inputs
                outputs, cell = self._run_from_zero(rows, mask, weights[layer * self.directions + backward])
                hiddens.append(_gather(outputs, ends).transpose(0, 1))
                cells += cell
                directions.append(_gather(outputs, reversed_order) if backward else outputs)
            inputs = torch.cat(directions, dim=-1).masked_fill(~mask.unsqueeze(-1), 0.0)
        return inputs, self._from_torch([torch.cat(parts) for parts in (hiddens, cells) if parts])

    def _run_from_zero(self, inputs: Tensor, mask: Tensor, weights: Sequence[Tensor]) -> tuple[Tensor, list[Tensor]]:
        """Run one layer in one direction from a zero state: its outputs, and an LSTM's cell state at each row's end.

        A flag among the inputs of an LSTM closes its input gate and opens its forget gate at padding. So the cell state
        stays the same from the last real position on. Other units have none: the second result is then empty.
        """
        hidden = inputs.new_zeros(1, inputs.shape[0], self.dim // self.directions)
        if not self.cell_dim:
            return self._run(inputs, hidden, weights)[0], []
        inputs, flagged = _add_padding_flag(inputs, mask, weights[0])
        cell = inputs.new_zeros(1, inputs.shape[0], self.cell_dim // self.directions)
        outputs, (_, last_cell) = self._run(inputs, (hidden, cell), [flagged, *weights[1:]])
        return outputs, [last_cell]

    def _run(
        self, inputs: Tensor, state: Tensor | tuple[Tensor, Tensor], weights: Sequence[Tensor]
    ) -> tuple[Float[Tensor, "batch time width"], list[Float[Tensor, "1 batch inner"]]]:
        """Run one layer in one direction from a state, as torch takes it: its outputs, and its last state."""
        run = getattr(torch._VF, self.rnn.mode.lower())
        with warnings.catch_warnings():
            # The warning is about copies of weights in memory; one layer's weights are cheap to copy.
            warnings.filterwarnings("ignore", "RNN module weights")
            outputs, *last = run(inputs, state, weights, self.rnn.bias, 1, 0.0, self.training, False, True)
        return outputs, last

    def _to_torch(self, state: Recurrent) -> Tensor | tuple[Tensor, Tensor]:
        """The state as torch takes it, layers first."""
        hidden = state.hidden.transpose(0, 1).contiguous()
        return hidden if state.cell is None else (hidden, state.cell.transpose(0, 1).contiguous())

    def _from_torch(self, state: Tensor | Sequence[Tensor]) -> Recurrent:
        """A state of torch as ours: batch first, the directions of a layer concatenated (torch stacks them)."""
        parts = [state] if isinstance(state, Tensor) else state  # hidden state, and cell state if there is one
        hidden, *cells = (part.unflatten(0, (-1, self.directions)).permute(2, 0, 1, 3).flatten(2) for part in parts)
        return Recurrent(hidden, cells[0] if cells else None)


class Gates:
    """A recurrence that runs step by step from its weights; each step takes a word and, optionally, a fed vector.

    The fed vector (for example the last context) is concatenated to the word as the input of the lowest layer.
    """

    @staticmethod
    def of(recurrence: Recurrence, word_dim: int) -> "Gates | None":
        """The gates of a recurrence; None if it was hooked or replaced, or if `STEPS` has no step function for it."""
        return Gates(recurrence, word_dim) if takes("recurrent_gates", recurrence, STEPS) else None

    def __init__(self, recurrence: Recurrence, word_dim: int) -> None:
        self.recurrence, self.rnn = recurrence, recurrence.rnn
        weights = self.rnn.all_weights  # of each layer, the lowest first
        functions = FUSED_STEPS if takes("fused_cell", weights[0][0], self.rnn.mode, FUSED_STEPS) else STEPS
        self.step_function = functions[self.rnn.mode]
        self.input_weights = [(weight, bias) for weight, _, bias, _ in weights]
        self.hidden_weights = [(weight, bias) for _, weight, _, bias in weights]
        weight, self.bias = self.input_weights[0]
        self.of_word, self.of_fed = weight.tensor_split([word_dim], dim=1)

    def word_part(self, words: Float[Tensor, "*rows word"]) -> Float[Tensor, "*rows gates"]:
        """The words' part of the gate inputs of the lowest layer."""
        return linear(words, self.of_word, self.bias).to(self.of_word.dtype)

    def step(
        self,
        word: Float[Tensor, "batch 1 word"],
        gate_inputs: Float[Tensor, "batch gates"],
        fed: Float[Tensor, "batch 1 fed"] | None,
        state: Recurrent,
    ) -> Outcome:
        """Take one step: `gate_inputs` is the word's part of the gate inputs, as `word_part` computes it."""
        if is_observed(self.rnn):  # call it for its recording hooks; the result is not used
            with torch.random.fork_rng(enabled=self.rnn.training):
                self.recurrence(beside(word, fed), state)
        if fed is not None:
            gate_inputs = gate_inputs + linear(fed.squeeze(1).to(gate_inputs.dtype), self.of_fed, None)
        cells = [None] * len(self.hidden_weights) if state.cell is None else _unstacked(state.cell)
        new_states: list[NewState] = []
        for layer, (hidden, cell) in enumerate(zip(_unstacked(state.hidden), cells, strict=True)):
            if layer:
                below = dropout(new_states[-1][0], self.rnn.dropout, self.rnn.training)
                gate_inputs = linear(below, *self.input_weights[layer])
            recurrent = linear(hidden, *self.hidden_weights[layer])
            new_states.append(self.step_function(gate_inputs, recurrent, hidden, cell))
        hiddens, after = [hidden for hidden, _ in new_states], [cell for _, cell in new_states if cell is not None]
        return hiddens[-1].unsqueeze(1), Recurrent(_stacked(hiddens), _stacked(after) if after else None)


class Stepper:
    """Runs a recurrence step by step over known words, if each step also needs a result of the step before.

    The words' part of the lowest layer's gate inputs is computed for all steps at once. Weights that every step uses
    are passed to `linear` as the same tensor each time, so that it can sum their gradients. A recurrence that was
    hooked or replaced is called as a module at every step.
    """

    def __init__(self, recurrence: Recurrence, words: Float[Tensor, "batch time word"]) -> None:
        self.recurrence, self.gates = recurrence, Gates.of(recurrence, words.shape[-1])
        self.words = words.split(1, dim=1)
        self.word_parts = [] if self.gates is None else self.gates.word_part(words.transpose(0, 1)).unbind(0)

    def step(self, index: int, fed: Float[Tensor, "batch 1 fed"] | None, state: Recurrent) -> Outcome:
        """Take the step of the word at `index`, with the vector `fed` concatenated to it."""
        if self.gates is None:
            return self.recurrence(beside(self.words[index], fed), state)
        return self.gates.step(self.words[index], self.word_parts[index], fed, state)


def beside(words: Float[Tensor, "batch time word"], fed: Float[Tensor, "batch _ fed"] | None) -> Tensor:
    """The inputs of the lowest layer: each word, with the fed vector concatenated to it if there is one."""
    return words if fed is None else torch.cat([words, fed.expand(-1, words.shape[1], -1)], dim=-1)


def _unstacked(layers: Float[Tensor, "batch layers dim"]) -> list[Float[Tensor, "batch dim"]]:
    """Split into layers; a single layer is a view, so that nothing is copied forward or backward."""
    return [layers.squeeze(1)] if layers.shape[1] == 1 else list(layers.unbind(1))


def _stacked(layers: Sequence[Float[Tensor, "batch dim"]]) -> Float[Tensor, "batch layers dim"]:
    """Stack layers; a single layer is a view."""
    return layers[0].unsqueeze(1) if len(layers) == 1 else torch.stack(list(layers), dim=1)


NewState = tuple[Float[Tensor, "batch dim"], Float[Tensor, "batch dim"] | None]


def _step_rnn(inputs: Tensor, recurrent: Tensor, hidden: Tensor, cell: Tensor | None) -> NewState:
    """Elman 1990:  h = tanh(inputs + recurrent).

    `inputs` is W x + b of the new input, `recurrent` is U h + b of the hidden state, for all gates side by side.
    """
    return torch.tanh(inputs + recurrent), None


def _step_gru(inputs: Tensor, recurrent: Tensor, hidden: Tensor, cell: Tensor | None) -> NewState:
    """Cho et al. 2014, with r after the product:  n = tanh(inputs_n + r * recurrent_n),  h = n + z * (h - n)."""
    width = hidden.shape[-1]
    reset, update = torch.sigmoid(inputs[:, : 2 * width] + recurrent[:, : 2 * width]).chunk(2, dim=-1)
    candidate = torch.tanh(torch.addcmul(inputs[:, 2 * width :], reset, recurrent[:, 2 * width :]))
    return torch.addcmul(candidate, update, hidden - candidate), None


def _step_lstm(inputs: Tensor, recurrent: Tensor, hidden: Tensor, cell: Tensor | None) -> NewState:
    """Hochreiter and Schmidhuber 1997; Gers et al. 2000:  c = f * c + i * g,  h = o * tanh(c)."""
    assert cell is not None
    enter, forget, candidate, output = (inputs + recurrent).chunk(4, dim=-1)
    new_cell = torch.addcmul(torch.sigmoid(forget) * cell, torch.sigmoid(enter), torch.tanh(candidate))
    return torch.sigmoid(output) * torch.tanh(new_cell), new_cell


def _fused_step_gru(inputs: Tensor, recurrent: Tensor, hidden: Tensor, cell: Tensor | None) -> NewState:
    return torch.ops.aten._thnn_fused_gru_cell(inputs, recurrent, hidden)[0], None


def _fused_step_lstm(inputs: Tensor, recurrent: Tensor, hidden: Tensor, cell: Tensor | None) -> NewState:
    return torch.ops.aten._thnn_fused_lstm_cell(inputs, recurrent, cell)[:2]


StepFunction = Callable[[Tensor, Tensor, Tensor, Tensor | None], NewState]

STEPS: dict[str, StepFunction] = {
    "RNN_TANH": _step_rnn,
    "GRU": _step_gru,
    "LSTM": _step_lstm,
}
FUSED_STEPS: dict[str, StepFunction] = {  # the same steps by torch's fused kernels, which exist only for GPUs
    "GRU": _fused_step_gru,
    "LSTM": _fused_step_lstm,
}


class Tower(nn.Module):
    """Wu et al. 2016, 3.1: a stack of recurrent layers of one width; each reads the layer below and `context`.

    `context` is a second input of every layer, from the attention, or None. From the second layer on, the output of the
    layer below is added to the layer's own output (residual connections).
    """

    def __init__(
        self, cell: Cell, *, dim: int, context_dim: int, layers: int, dropout: float, bias: bool = True
    ) -> None:
        super().__init__()
        self.dim, self.layers, self.dropout = dim, layers, dropout
        self.stack = nn.ModuleList(
            Recurrence(cell, input_dim=dim + context_dim, dim=dim, bias=bias) for _ in range(layers)
        )

    def forward(
        self,
        states: Float[Tensor, "batch time dim"],
        context: Float[Tensor, "batch time context"] | None,
        run: Callable[[Recurrence, Tensor, int], Outcome],
    ) -> tuple[Float[Tensor, "batch time dim"], list[Recurrent]]:
        """The top layer's output and the last state of every layer; `run` runs one layer, given its number from 0."""
        lasts = []
        for number, layer in enumerate(self.stack):
            inputs = beside(dropout(states, self.dropout, self.training), context)
            outputs, last = run(cast(Recurrence, layer), inputs, number)
            states = outputs + states if number else outputs
            lasts.append(last)
        return states, lasts


def joined(states: Sequence[Recurrent]) -> Recurrent:
    """Concatenate the states of several stacks along the layers."""
    cells = [state.cell for state in states if state.cell is not None]
    return Recurrent(torch.cat([state.hidden for state in states], dim=1), torch.cat(cells, dim=1) if cells else None)


def layer_of(state: Recurrent, number: int) -> Recurrent:
    """The state of one layer of a stack, by its number from 0."""
    return state.map_tensors(lambda layers: layers[:, number : number + 1])


def _gather(rows: Float[Tensor, "batch time dim"], positions: Int[Tensor, "batch some"]) -> Tensor:
    """The vectors of every row at the given positions, in that order."""
    return rows.gather(1, positions.unsqueeze(-1).expand(-1, -1, rows.shape[-1]))


def _add_padding_flag(inputs: Tensor, mask: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Add a padding flag to the inputs of an LSTM, and weights that close the input and open the forget gate there."""
    flags = inputs.new_zeros(*inputs.shape[:2], FLAGS)
    flags[..., 0] = (~mask).to(inputs.dtype)
    gates = weight.new_zeros(4, weight.shape[0] // 4, FLAGS)
    gates[0, :, 0], gates[1, :, 0] = -SHUT, SHUT
    return torch.cat([inputs, flags], dim=-1), torch.cat([weight, gates.flatten(0, 1)], dim=-1)
