"""Positions: encodings that give a Transformer the order of its tokens. A new one is a class and a table entry."""

import math
from typing import ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from regard.errors import DataError
from regard.kernels.choose import takes

BASE = 10_000.0  # of the wavelengths of sinusoidal and rotary positions


class Positions(nn.Module):
    """No positions: the base class, whose methods change neither words, nor queries and keys, nor scores.

    `dim` is the width of a word, `heads` the number of attention heads, `longest` the number of positions that have an
    entry in a table, `causal` is True if attention is causal: no token sees a later one.
    """

    rotates: ClassVar[bool] = False  # whether `rotate` changes anything

    def __init__(self, *, dim: int, heads: int, longest: int, causal: bool) -> None:
        super().__init__()

    def embed(self, words: Float[Tensor, "batch time dim"], start: int) -> Float[Tensor, "batch time dim"]:
        """Add positions to the word embeddings; the first word is at position `start`."""
        return words

    def rotate(self, vectors: Float[Tensor, "*batch time part"], start: int) -> Float[Tensor, "*batch time part"]:
        """Rotate queries or keys of all heads by their positions; the first is at position `start`."""
        return vectors

    def bias(self, queries: int, keys: int, start: int) -> Float[Tensor, "heads queries keys"] | None:
        """The bias that is added to the scores of every head; the first query is at `start`, the first key at 0."""
        return None


class Sinusoidal(Positions):
    """Vaswani et al. 2017, 3.5:  PE(pos, 2i) = sin(pos / 10000^(2i/dim)),  PE(pos, 2i+1) = cos of the same."""

    def __init__(self, *, dim: int, heads: int, longest: int, causal: bool) -> None:
        super().__init__(dim=dim, heads=heads, longest=longest, causal=causal)
        self.register_buffer("table", sinusoids(torch.arange(longest), dim), persistent=False)

    def embed(self, words: Float[Tensor, "batch time dim"], start: int) -> Float[Tensor, "batch time dim"]:
        """Add the sinusoids to the words; behind the end of the table they are computed."""
        end = start + words.shape[1]
        assert isinstance(self.table, Tensor)
        if end <= len(self.table):
            return words + self.table[start:end].to(words.dtype)
        return words + sinusoids(torch.arange(start, end, device=words.device), words.shape[-1]).to(words.dtype)


class Learned(Positions):
    """Gehring et al. 2017; Devlin et al. 2019: a learned vector for each of the first `longest` positions."""

    def __init__(self, *, dim: int, heads: int, longest: int, causal: bool) -> None:
        super().__init__(dim=dim, heads=heads, longest=longest, causal=causal)
        self.table = nn.Embedding(longest, dim)
        nn.init.normal_(self.table.weight, std=0.02)

    def embed(self, words: Float[Tensor, "batch time dim"], start: int) -> Float[Tensor, "batch time dim"]:
        """Add the learned vectors to the words; raises an error if there are more words than vectors."""
        end = start + words.shape[1]
        if end > self.table.num_embeddings:
            raise DataError(
                f"a text of {end} tokens is longer than the {self.table.num_embeddings} positions that were learned; "
                "raise model.longest and train again, or choose model.positions = sinusoidal"
            )
        if takes("learned_positions", self.table):
            return words + self.table.weight[start:end]
        return words + self.table(torch.arange(start, end, device=words.device))


class Rotary(Positions):
    """Su et al. 2021, RoPE: dimensions 2i and 2i+1 of query and key are rotated by the angle pos / 10000^(2i/width).

    So a dot product depends on the distance of two tokens, and not on their absolute positions.
    """

    rotates = True

    def __init__(self, *, dim: int, heads: int, longest: int, causal: bool) -> None:
        super().__init__(dim=dim, heads=heads, longest=longest, causal=causal)
        self.register_buffer("table", rotations(torch.arange(longest), dim // heads), persistent=False)

    def rotate(self, vectors: Float[Tensor, "*batch time part"], start: int) -> Float[Tensor, "*batch time part"]:
        """Rotate every pair of dimensions, in float32 at least."""
        end, width = start + vectors.shape[-2], vectors.shape[-1]
        assert isinstance(self.table, Tensor)
        table = self.table[:, start:end]
        if end > self.table.shape[1] or width != self.table.shape[2]:
            table = rotations(torch.arange(start, end, device=vectors.device), width)
        cosine, sine = table.to(torch.promote_types(vectors.dtype, torch.float32))
        swapped = vectors.unflatten(-1, (-1, 2)).flip(-1).flatten(-2)
        return (vectors * cosine + swapped * sine).to(vectors.dtype)


class Relative(Positions):
    """Raffel et al. 2020, T5: a learned bias per head and distance between query and key; distances share 32 buckets.

    In each direction, half of the buckets hold one distance each; the others grow logarithmically up to distance 128.
    """

    buckets = 32
    farthest = 128

    def __init__(self, *, dim: int, heads: int, longest: int, causal: bool) -> None:
        super().__init__(dim=dim, heads=heads, longest=longest, causal=causal)
        self.causal = causal
        self.weight = nn.Embedding(self.buckets, heads)
        nn.init.normal_(self.weight.weight, std=0.02)

    def bias(self, queries: int, keys: int, start: int) -> Float[Tensor, "heads queries keys"]:
        """The learned bias of every pair of query and key."""
        device = self.weight.weight.device
        return self.weight(self.bucket(_offsets(queries, keys, start, device))).permute(2, 0, 1)

    def bucket(self, offsets: Int[Tensor, "queries keys"]) -> Int[Tensor, "queries keys"]:
        """The bucket index of each signed distance: positive if the key comes after the query."""
        directions = 1 if self.causal else 2
        size = self.buckets // directions
        distance = offsets.neg().clamp(min=0) if self.causal else offsets.abs()
        exact = size // 2
        fraction = torch.log(distance.clamp(min=1) / exact) / math.log(self.farthest / exact)
        logarithmic = (exact + fraction * (size - exact)).long().clamp(max=size - 1)
        index = torch.where(distance < exact, distance, logarithmic)
        return index if self.causal else index + size * (offsets > 0)


class Alibi(Positions):
    """Press et al. 2022: the bias of head h is -2^(-8 h / heads) times the distance of the key; nothing is learned."""

    def __init__(self, *, dim: int, heads: int, longest: int, causal: bool) -> None:
        super().__init__(dim=dim, heads=heads, longest=longest, causal=causal)
        numbers = torch.arange(1, heads + 1)
        slopes = numbers.float() if numbers.is_meta else 2.0 ** (-8.0 * numbers / heads)  # see `only_shapes`
        self.register_buffer("slopes", slopes, persistent=False)

    def bias(self, queries: int, keys: int, start: int) -> Float[Tensor, "heads queries keys"]:
        """The distance times the negative slope of each head."""
        assert isinstance(self.slopes, Tensor)
        return -self.slopes[:, None, None] * _offsets(queries, keys, start, self.slopes.device).abs()


def rotations(positions: Int[Tensor, " time"], width: int) -> Float[Tensor, "2 time part"]:
    """Cosines and signed sines of a rotation: x' = x * cosine + (x with each pair swapped) * sine."""
    if positions.is_meta:  # a model without memory, see `only_shapes`
        return positions.new_empty(2, len(positions), width + width % 2, dtype=torch.float64)
    angles = _angles(positions, width)
    sine, cosine = angles.sin(), angles.cos()
    signed = torch.stack([-sine, sine], dim=-1)
    return torch.stack([torch.stack([cosine, cosine], dim=-1), signed]).flatten(-2)


def sinusoids(positions: Int[Tensor, " time"], dim: int) -> Float[Tensor, "time dim"]:
    """Interleaved sines and cosines, in float64 because angles of far positions are large numbers."""
    if positions.is_meta:  # a model without memory, see `only_shapes`
        return positions.new_empty(len(positions), dim, dtype=torch.float64)
    angles = _angles(positions, dim)
    return torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(-2)[:, :dim]


def _angles(positions: Int[Tensor, " time"], dim: int) -> Float[Tensor, "time half"]:
    """The angle of each position and each pair of dimensions:  pos / 10000^(2i/dim)."""
    pairs = torch.arange(0, dim, 2, device=positions.device, dtype=torch.float64)
    return positions.to(torch.float64).unsqueeze(-1) / BASE ** (pairs / dim)


def _offsets(queries: int, keys: int, start: int, device: torch.device) -> Int[Tensor, "{queries} {keys}"]:
    """The signed distance from each query to each key: positive if the key comes after the query."""
    positions = torch.arange(start, start + queries, device=device)
    return torch.arange(keys, device=device) - positions.unsqueeze(-1)


POSITIONS: dict[str, type[Positions]] = {
    "none": Positions,
    "sinusoidal": Sinusoidal,
    "learned": Learned,
    "rotary": Rotary,
    "relative": Relative,
    "alibi": Alibi,
}
