"""Parts of long inputs, such as recordings that are cut at silences: their outputs are joined to one, with its map."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from jaxtyping import Float
from torch import Tensor

from regard.data.tokenizers import Tokenizer
from regard.maps import AttentionMaps
from regard.models import CROSS
from regard.types import Hypothesis


class Part(NamedTuple):
    """An input, or a part of one that is too long for the model."""

    input: int  # its index among all inputs
    start: int  # the first position of the part
    item: Any  # encoded
    whole: Any  # the input itself, encoded


class Corner(NamedTuple):
    """The place of a part in the map of the whole."""

    row: int
    column: int


class Joined(NamedTuple):
    """The output for a whole input, and the place of each part in its map."""

    hypothesis: Hypothesis
    corners: list[Corner]


def join(outputs: Sequence[Hypothesis], starts: Sequence[int], positions: int, tokenizer: Tokenizer) -> Joined:
    """One output for an input of so many positions, from those of its parts, which begin at `starts`.

    That of a single part stays as it is. Otherwise the score is the sum of theirs, and the map is block-diagonal: a
    token attends to the positions of its own part only. A space that is put between two parts has no weight at all.
    """
    if len(outputs) == 1:
        return Joined(outputs[0], [Corner(0, 0)])
    tokens: list[int] = []
    corners = []
    for output, start in zip(outputs, starts, strict=True):
        tokens += _space(tokenizer, tokens, output.tokens)
        corners.append(Corner(len(tokens), start))
        tokens += output.tokens
    blocks = [output.map[: len(output.tokens)] for output in outputs if output.map is not None]
    weights = block_diagonal(blocks, corners, len(tokens), positions) if blocks else None
    finished = all(output.finished for output in outputs)
    return Joined(Hypothesis(tokens, sum(output.score for output in outputs), weights, finished), corners)


def _space(tokenizer: Tokenizer, left: list[int], right: list[int]) -> list[int]:
    """The tokens to put between two outputs so that there is a space between their texts.

    None are needed between words, or before a sub-word that begins one. If the vocabulary has no space, as of a
    language without it, the texts are joined as they are.
    """
    if not left or not right:
        return []
    spaced = f"{tokenizer.decode(left)} {tokenizer.decode(right)}"
    choices: tuple[list[int], ...] = ([], tokenizer.encode(" "))
    return next((space for space in choices if tokenizer.decode([*left, *space, *right]) == spaced), [])


def block_diagonal(
    blocks: Sequence[Float[Tensor, "*heads _ _"]], corners: Sequence[Corner], rows: int, columns: int
) -> Float[Tensor, "*heads rows columns"]:
    """Weights of parts in one tensor, each at its corner; those of padding, beyond the last column, are left out."""
    weights = blocks[0].new_zeros(*blocks[0].shape[:-2], rows, columns, device="cpu")
    ends = [*(corner.column for corner in corners[1:]), columns]
    for block, (row, column), end in zip(blocks, corners, ends, strict=True):
        weights[..., row : row + block.shape[-2], column:end] = block[..., : end - column].cpu()
    return weights


def join_maps(
    parts: Sequence[AttentionMaps | None], corners: Sequence[Corner], rows: tuple[str, ...], columns: tuple[str, ...]
) -> AttentionMaps | None:
    """The maps of the whole, from those of all parts: of cross-attention only.

    Those of a single part stay as they are. Between parts of a source there is nothing, and maps of all pairs of its
    positions would be very large.
    """
    if len(parts) == 1:
        return parts[0]
    known = [maps for maps in parts if maps is not None and CROSS in maps.sites]
    if len(known) < len(parts):
        return None
    layers = zip(*(maps.select(CROSS).layers for maps in known), strict=True)
    return AttentionMaps(
        tuple(
            replace(same[0], weights=weights, rows=rows, columns=columns)
            for same in layers
            for weights in [block_diagonal([layer.weights for layer in same], corners, len(rows), len(columns))]
        )
    )
