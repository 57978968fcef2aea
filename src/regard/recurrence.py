"""Recurrent layers, in the one form that encoders and decoders share."""

from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from regard.errors import RecipeError
from regard.types import Recurrent

Cell = type[nn.RNN] | type[nn.GRU] | type[nn.LSTM]

CELLS: dict[str, Cell] = {
    "rnn": nn.RNN,
    "gru": nn.GRU,
    "lstm": nn.LSTM,
}


class Recurrence(nn.Module):
    """A stack of recurrent layers with dropout between them; states are batch-first.

    `dim` is the width of an output: with `bidirectional`, each direction has half of it. An LSTM may be wider
    inside: it then has `inner_dim` numbers, projected down to `dim` (torch's `proj_size`).
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
            raise RecipeError(f"an inner_dim is wider than the dim it is projected to, {dim}, not {inner_dim}")
        if inner_dim and bidirectional and inner_dim % 2:
            raise RecipeError(f"an inner_dim is split between two directions, so it is even, not {inner_dim}")
        self.dim, self.layers, self.directions = dim, layers, 1 + bidirectional
        self.cell_dim = (inner_dim or dim) if cell is nn.LSTM else None  # None where the unit has no cell
        width = dim // self.directions
        projected = {"proj_size": width} if inner_dim else {}
        self.rnn = cell(
            input_dim,
            (inner_dim or dim) // self.directions,
            num_layers=layers,
            dropout=dropout if layers > 1 else 0.0,  # torch warns of dropout where there is no between
            bidirectional=bidirectional,
            bias=bias,
            batch_first=True,
            **projected,
        )

    def forward(
        self, inputs: Float[Tensor, "batch time input"], state: Recurrent
    ) -> tuple[Float[Tensor, "batch time dim"], Recurrent]:
        """The top layer's output at every position, and the state after the last."""
        outputs, after = self.rnn(inputs, self._to_torch(state))
        return outputs, self._from_torch(after)

    def read(
        self, inputs: Float[Tensor, "batch time input"], mask: Bool[Tensor, "batch time"]
    ) -> tuple[Float[Tensor, "batch time dim"], Recurrent]:
        """Like `forward`, from rest, over padded rows: padding changes nothing and its outputs are zero."""
        lengths = mask.sum(dim=-1).cpu()
        packed = pack_padded_sequence(inputs, lengths, batch_first=True, enforce_sorted=False)
        outputs, after = self.rnn(packed)
        padded, _ = pad_packed_sequence(outputs, batch_first=True, total_length=mask.shape[-1])
        return padded, self._from_torch(after)

    def _to_torch(self, state: Recurrent) -> Tensor | tuple[Tensor, Tensor]:
        hidden = state.hidden.transpose(0, 1).contiguous()
        return hidden if state.cell is None else (hidden, state.cell.transpose(0, 1).contiguous())

    def _from_torch(self, state: Tensor | tuple[Tensor, Tensor]) -> Recurrent:
        if isinstance(state, Tensor):
            return Recurrent(self._batch_first(state), None)
        return Recurrent(self._batch_first(state[0]), self._batch_first(state[1]))

    def _batch_first(self, state: Float[Tensor, "both batch half"]) -> Float[Tensor, "batch layers dim"]:
        """Torch stacks the directions of a layer; here they lie side by side, as in the outputs."""
        return state.unflatten(0, (self.layers, self.directions)).permute(2, 0, 1, 3).flatten(2)
