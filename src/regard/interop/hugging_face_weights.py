"""Where the tensors of a model of regard come from in a Hugging Face folder: the lines of tables of names."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from regard.data.tokenizers import HuggingFace, Tokenizer
from regard.errors import DataError, pick
from regard.interop.hugging_face_folder import CONFIG, ModelFolder
from regard.types import BEGIN, END, PAD, SPECIALS, UNKNOWN

NEVER = -1e4  # the bias of a token that is never predicted
ACTIVATIONS = {
    "gelu": "gelu",
    "relu": "relu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "swish": "swish",
    "silu": "swish",
}


class Vocabulary(NamedTuple):
    """A tokenizer of an imported model, and where its tokens are in the tensors of the folder."""

    kind: str  # of the tokenizer, in recipes
    tokenizer: Tokenizer
    rows: tuple[int | None, ...]  # by regard's ids; None for a token that the folder does not have
    row: Callable[[str], int | None]  # by the text of a token

    @staticmethod
    def of(tokenizer: HuggingFace) -> "Vocabulary":
        """The vocabulary of a tokenizer.json, which knows its rows."""
        return Vocabulary(tokenizer.kind, tokenizer, tokenizer.rows, tokenizer.row)


class Source(NamedTuple):
    """The tensors of a folder that a tensor of regard is made of, and how."""

    names: tuple[str, ...]
    make: Callable[[Sequence[Tensor], Vocabulary], Tensor]


def same(*names: str) -> Source:
    """One tensor as it is; several below each other, such as the projections to queries, keys and values."""
    return Source(names, lambda tensors, vocabulary: torch.cat([*tensors]))


def turned(name: str) -> Source:
    """The transpose of a matrix: GPT-2 stores the matrices of its linear layers with the inputs as rows."""
    return Source((name,), lambda tensors, vocabulary: tensors[0].T)


def by_token(name: str, missing: float | None = None) -> Source:
    """A tensor with a row for each token, in the order of regard's ids.

    `missing` fills the rows of tokens that the folder does not have. Without it, missing special tokens have zeros, and
    other tokens the row of UNKNOWN, as which the model reads them.
    """

    def make(tensors: Sequence[Tensor], vocabulary: Vocabulary) -> Tensor:
        unknown = vocabulary.rows[UNKNOWN] if missing is None else None
        others = [unknown if row is None else row for row in vocabulary.rows[len(SPECIALS) :]]
        found = [*vocabulary.rows[: len(SPECIALS)], *others]
        rows = torch.tensor([-1 if row is None else _checked(row, name, tensors[0]) for row in found])
        return tensors[0][rows].where((rows >= 0).view(-1, *[1] * (tensors[0].ndim - 1)), missing or 0.0)

    return Source((name,), make)


def output_bias(name: str) -> Source:
    """The bias of an output layer: tokens that the model does not have are never predicted.

    BEGIN is never predicted if it is the same token as PAD or END, so that no token counts twice.
    """

    def make(tensors: Sequence[Tensor], vocabulary: Vocabulary) -> Tensor:
        bias = by_token(name, NEVER).make(tensors, vocabulary)
        if vocabulary.rows[BEGIN] in (vocabulary.rows[PAD], vocabulary.rows[END]):
            bias[BEGIN] = NEVER
        return bias

    return Source((name,), make)


def zeros(*names: str) -> Source:
    """The bias of a layer that has none, with a zero for each row of its matrices."""
    return Source(names, lambda tensors, vocabulary: torch.zeros(sum(map(len, tensors))))


def changed(source: Source, change: Callable[[Tensor], Tensor]) -> Source:
    """What another source makes, changed by a function."""
    return Source(source.names, lambda tensors, vocabulary: change(source.make(tensors, vocabulary)))


def places(name: str, *, first: int = 0, kind: str = "") -> Source:
    """A table of positions from row `first` on; the vector of the first kind of text (`kind`) is added to each row.

    BERT adds it to every token. regard has no kinds of texts, so it becomes part of the positions.
    """
    names = (name, kind) if kind else (name,)
    return Source(names, lambda tensors, vocabulary: sum((table[0] for table in tensors[1:]), tensors[0][first:]))


def row_of(name: str, token: str) -> Source:
    """The row of one token in a tensor with a row for each token."""

    def make(tensors: Sequence[Tensor], vocabulary: Vocabulary) -> Tensor:
        row = vocabulary.row(token)
        if row is None:
            raise DataError(f"the tokenizer has no token {token}, which a masked language model needs")
        return tensors[0][_checked(row, name, tensors[0])]

    return Source((name,), make)


def _checked(row: int, name: str, tensor: Tensor) -> int:
    """A row of a tensor; DataError if the tensor has too few."""
    if row >= len(tensor):
        raise DataError(f"{name} has {len(tensor):,} rows, but the tokenizer has the token {row:,}")
    return row


Table = Mapping[str, Source]  # by the name of regard's tensor; {} stands for the number of a layer


def with_bias(regard: str, *names: str) -> dict[str, Source]:
    """The lines of a table for the weight and the bias of a layer, or of several that regard stores as one."""
    return {f"{regard}.{part}": same(*(f"{name}.{part}" for name in names)) for part in ("weight", "bias")}


def turned_with_bias(regard: str, name: str) -> dict[str, Source]:
    """The lines of a table for the weight and the bias of a layer of GPT-2."""
    return {f"{regard}.weight": turned(f"{name}.weight"), f"{regard}.bias": same(f"{name}.bias")}


@dataclass(frozen=True)
class Family:
    """A family of models: its task in regard, the model section of its recipe, and its table of tensors."""

    task: str
    model: Callable[[ModelFolder], dict[str, Any]]
    table: Table
    vocabularies: Callable[[ModelFolder], Mapping[str, Vocabulary]]  # by the file of the tokenizer in a run
    prefix: str  # of the tensors of the base model, if the folder has an output layer besides
    left_out: tuple[str, ...]  # patterns of tensors that regard does not need
    head: tuple[str, ...] = ()  # regard's tensors that a folder without an output layer does not have
    complete: Callable[[ModelFolder, Mapping[str, Tensor]], Mapping[str, Tensor]] = lambda folder, stored: stored
    untied: str = ""  # the output matrix; a folder that has it after `complete` does not share it with the embedding


def activation_of(folder: ModelFolder, name: str) -> str:
    """The name that regard has for an activation."""
    return pick(ACTIVATIONS, name, f"activation of {folder.path / CONFIG}")
