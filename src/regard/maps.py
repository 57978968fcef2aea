"""Attention maps: weights with the labels of both axes, and what can be read off them."""

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

MARKS = frozenset({"<pad>", "<s>", "</s>"})  # labels that stand for no word; `<unk>` does


@dataclass(frozen=True)
class Tokens:
    """The layout of text: a source position is a token."""


@dataclass(frozen=True)
class Grid:
    """The layout of a picture: source positions are its cells, row by row."""

    height: int
    width: int


@dataclass(frozen=True)
class Frames:
    """The layout of a recording: source positions are frames, so many seconds apart."""

    seconds: float


@dataclass(frozen=True)
class Steps:
    """The layout of a series: source positions are its values, in their order."""


TEXT = Tokens()
Layout = Tokens | Grid | Frames | Steps


@dataclass(frozen=True)
class AttentionMap:
    """Attention weights with the labels of both axes: rows are outputs, columns are sources.

    Maps are equal if their labels and all their weights are; their hash is that of the labels.
    """

    weights: Float[Tensor, "rows columns"] = field(hash=False)
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    layout: Layout = TEXT

    def __post_init__(self) -> None:
        if tuple(self.weights.shape) != (len(self.rows), len(self.columns)):
            labels = f"{len(self.rows)} rows and {len(self.columns)} columns"
            raise ValueError(f"weights of shape {tuple(self.weights.shape)} do not fit {labels}")

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, AttentionMap):
            return NotImplemented
        labels = (self.rows, self.columns, self.layout, self.weights.dtype)
        same = labels == (other.rows, other.columns, other.layout, other.weights.dtype)
        return same and torch.equal(self.weights.cpu(), other.weights.cpu())

    def __iter__(self) -> Iterator[tuple[str, list[tuple[str, float]]]]:
        """Row by row: the output's label and its sources with their weights."""
        for label, weights in zip(self.rows, self.weights.tolist(), strict=True):
            yield label, list(zip(self.columns, weights, strict=True))

    def entropy(self) -> Float[Tensor, " rows"]:
        """How spread each row is, in nats: 0 looks at one source, log(columns) at all alike."""
        return torch.special.entr(self.weights).sum(-1)

    def coverage(self) -> Float[Tensor, " columns"]:
        """How much each source was looked at in all: its weights, summed over the rows."""
        return self.weights.sum(0)

    def monotonicity(self) -> float:
        """The share of neighbouring rows between which the gaze does not go back: 1.0 reads strictly onward.

        A row's gaze is its expected column, sum(weight * column) / sum(weight); going back by less than 1e-6 of a
        column is rounding. Rows that look nowhere have no gaze and are passed over; fewer than two rows give 1.0.
        """
        weights = self.weights.double()
        weights = weights[weights.sum(-1) > 0]
        places = torch.arange(weights.shape[1], dtype=weights.dtype, device=weights.device)
        gaze = (weights * places).sum(-1) / weights.sum(-1)
        onward = gaze[1:] >= gaze[:-1] - 1e-6
        return onward.double().mean().item() if len(onward) else 1.0

    def links(self, shift: int = 0) -> list[tuple[int, int]]:
        """The hard alignment as (column, row) pairs from zero: each row's heaviest word, of equals the first.

        The marks `<pad>`, `<s>` and `</s>` stand for no word: as columns they are passed over, as rows they have no
        link. Nor has a row without weight on any word. Alignment errors and the Pharaoh format both take these links.

        Shift 0 reads the step that writes a token (output step), shift 1 the step that is then fed this token (input
        step; Chen et al. 2020). Which is better depends on the model. A row past the last of the map is its last.
        """
        words = [column for column, label in enumerate(self.columns) if label not in MARKS]
        if not words or not self.rows:
            return []
        heaviest, places = self.weights[:, words].max(dim=-1)
        weights, columns = heaviest.tolist(), [words[place] for place in places.tolist()]
        read = [min(row + shift, len(self.rows) - 1) for row in range(len(self.rows))]
        return [(columns[at], row) for row, at in enumerate(read) if self.rows[row] not in MARKS and weights[at] > 0]

    def words(self) -> "AttentionMap":
        """The map between words: the weights of a word's pieces are summed as columns, averaged as rows.

        So a row keeps its sum. A piece that begins with sentencepiece's `▁` begins a word, the pieces after it go
        on with it, `<unk>` too; further spaces before a word belong to it; `<pad>`, `<s>` and `</s>` stand alone. An
        axis without any `▁` stays as it is: characters stay characters.
        """
        return self.merged(_words(self.rows), _words(self.columns))

    def merged(self, rows: "Words | None", columns: "Words | None") -> "AttentionMap":
        """The map between words that are told, as `words` has it; None leaves an axis as it is."""
        weights = self.weights
        if columns is not None:
            home = torch.tensor(columns.home, device=weights.device)
            weights = weights.new_zeros(len(weights), len(columns.labels)).index_add(1, home, weights)
        if rows is not None:
            home = torch.tensor(rows.home, device=weights.device)
            sums = weights.new_zeros(len(rows.labels), weights.shape[1]).index_add(0, home, weights)
            weights = sums / home.bincount(minlength=len(rows.labels)).clamp(min=1).unsqueeze(-1)
        return dataclasses.replace(
            self,
            weights=weights,
            rows=rows.labels if rows else self.rows,
            columns=columns.labels if columns else self.columns,
        )

    def _repr_svg_(self) -> str:
        """How a notebook shows it."""
        from regard.show.maps import svg  # lazily: drawing stands below the nouns

        return svg(self)


class Words(NamedTuple):
    """The words of an axis, and for each of its pieces the number of the word it belongs to."""

    labels: tuple[str, ...]
    home: list[int]


def _words(pieces: tuple[str, ...]) -> Words | None:
    """The pieces of one axis as words, or None where nothing says where words begin."""
    if not any("▁" in piece for piece in pieces):
        return None
    words: list[str] = []
    home: list[int] = []
    for piece in pieces:
        last = words[-1] if words else ""
        if not words or last in MARKS or piece in MARKS or (piece.startswith("▁") and last.strip("▁")):
            words.append("")
        words[-1] += piece
        home.append(len(words) - 1)
    return Words(tuple(word.replace("▁", " ").strip(" ") or " " for word in words), home)
