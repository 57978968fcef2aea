"""Matrices laid out by columns: on the CPU, products of few rows with them are faster."""

from jaxtyping import Float
from torch import Tensor

from regard.kernels.choose import takes


def by_columns(weight: Float[Tensor, "out in"]) -> Float[Tensor, "out in"]:
    """The same numbers, laid out by columns."""
    return weight.detach().t().contiguous().t()


class Columns:
    """A copy by columns of a matrix whose rows are read too: an embedding that also predicts words.

    It is neither a parameter nor a buffer, so the model's keys and ties stay as they are. It is made again when the
    matrix was changed, moved or loaded; if gradients are on, the matrix itself is taken. A change in place through
    `weight.data`, which autograd does not count either, is not seen: write `with torch.no_grad(): weight.mul_(...)`.
    """

    def __init__(self) -> None:
        self._copy: Tensor | None = None
        self._origin: Tensor | None = None  # held, so that no other tensor gets its address
        self._made_of: tuple[object, ...] = ()

    def of(self, weight: Float[Tensor, "out in"]) -> Float[Tensor, "out in"]:
        """The matrix, laid out for products."""
        if not takes("tied_columns", weight):
            return weight
        version = 0 if weight.is_inference() else weight._version  # what inference mode made, it does not count
        state = weight.data_ptr(), version, weight.dtype
        if self._copy is None or self._origin is not weight or state != self._made_of:
            self._copy, self._origin, self._made_of = by_columns(weight), weight, state
        return self._copy
