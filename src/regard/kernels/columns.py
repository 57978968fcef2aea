"""Matrices stored in column-major order: on the CPU, products of few rows with them are faster."""

from jaxtyping import Float
from torch import Tensor

from regard.kernels.choose import takes


def by_columns(weight: Float[Tensor, "out in"]) -> Float[Tensor, "out in"]:
    """A copy of the matrix with the same shape and values, stored in column-major order."""
    return weight.detach().t().contiguous().t()


class ColumnMajorCopy:
    """A cached column-major copy of a matrix whose rows are read too: an embedding that also predicts words.

    The copy is neither a parameter nor a buffer, so the model's state dict and tied weights stay as they are. It is
    made again after the matrix was changed, moved or loaded; with gradients enabled, `of` returns the matrix itself.
    A change in place through `weight.data`, which autograd's version counter does not count, is not noticed: write
    `with torch.no_grad(): weight.mul_(...)`.
    """

    def __init__(self) -> None:
        self._copy: Tensor | None = None
        self._original: Tensor | None = None  # kept alive, so that no other tensor gets its address
        self._copied_state: tuple[object, ...] = ()

    def of(self, weight: Float[Tensor, "out in"]) -> Float[Tensor, "out in"]:
        """The matrix in the storage order that makes products fast: the cached copy, or the matrix itself."""
        if not takes("tied_columns", weight):
            return weight
        version = 0 if weight.is_inference() else weight._version  # tensors of inference mode have no version counter
        state = weight.data_ptr(), version, weight.dtype
        if self._copy is None or self._original is not weight or state != self._copied_state:
            self._copy, self._original, self._copied_state = by_columns(weight), weight, state
        return self._copy
