"""Positions: how a Transformer knows the order of its tokens. Each is one class and one line in the table."""

import math
from typing import ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from regard.errors import DataError
from regard.kernels.choose import takes

BASE = 10_000.0  # of all wavelengths


class Positions(nn.Module):
    """What positions may change: the words, the queries and keys of every head, or the scores. This one changes none.

    `dim` is the width of a word, `heads` the looks at once, `longest` the positions that are learned where they are,
    `onward` is True where no token sees a later one.
    """

    turns: ClassVar[bool] = False  # whether `rotate` changes anything

    def __init__(self, *, dim: int, heads: int, longest: int, onward: bool) -> None:
        super().__init__()

    def embed(self, words: Float[Tensor, "batch time dim"], start: int) -> Float[Tensor, "batch time dim"]:
        """The words with their positions in them; the first stands at `start`."""
        return words

    def rotate(self, vectors: Float[Tensor, "*batch time part"], start: int) -> Float[Tensor, "*batch time part"]:
        """Queries or keys of all heads, turned by their positions."""
        return vectors

    def bias(self, queries: int, keys: int, start: int) -> Float[Tensor, "heads queries keys"] | None:
        """What is added to every head's scores; the first query stands at `start`, the first key at 0."""
        return None


class Sinusoidal(Positions):
    """Vaswani et al. 2017, 3.5:  PE(pos, 2i) = sin(pos / 10000^(2i/dim)),  PE(pos, 2i+1) = cos of the same."""

    def __init__(self, *, dim: int, heads: int, longest: int, onward: bool) -> None:
        super().__init__(dim=dim, heads=heads, longest=longest, onward=onward)
        self.register_buffer("table", sinusoids(torch.arange(longest), dim), persistent=False)

    def embed(self, words: Float[Tensor, "batch time dim"], start: int) -> Float[Tensor, "batch time dim"]:
        """The sum of word and wave; past the table the waves are computed anew."""
        end = start + words.shape[1]
        assert isinstance(self.table, Tensor)
        if end <= len(self.table):
            return words + self.table[start:end].to(words.dtype)
        return words + sinusoids(torch.arange(start, end, device=words.device), words.shape[-1]).to(words.dtype)


class Learned(Positions):
    """Gehring et al. 2017; Devlin et al. 2019: a vector of its own for each of the first `longest` positions."""

    def __init__(self, *, dim: int, heads: int, longest: int, onward: bool) -> None:
        super().__init__(dim=dim, heads=heads, longest=longest, onward=onward)
        self.table = nn.Embedding(longest, dim)
        nn.init.normal_(self.table.weight, std=0.02)

    def embed(self, words: Float[Tensor, "batch time dim"], start: int) -> Float[Tensor, "batch time dim"]:
        """The sum of word and vector."""
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
    """Su et al. 2021, RoPE: numbers 2i and 2i+1 of query and key are turned by the angle pos / 10000^(2i/width).

    So a dot product depends on how far apart two tokens are, and not on where they stand.
    """

    turns = True

    def __init__(self, *, dim: int, heads: int, longest: int, onward: bool) -> None:
        super().__init__(dim=dim, heads=heads, longest=longest, onward=onward)
        self.register_buffer("table", turns(torch.arange(longest), dim // heads), persistent=False)

    def rotate(self, vectors: Float[Tensor, "*batch time part"], start: int) -> Float[Tensor, "*batch time part"]:
        """Every pair of numbers, turned."""
        end, part = start + vectors.shape[-2], vectors.shape[-1]
        assert isinstance(self.table, Tensor)
        known = end <= self.table.shape[1] and part == self.table.shape[2]
        table = self.table[:, start:end] if known else turns(torch.arange(start, end, device=vectors.device), part)
        cosine, sine = table.to(torch.promote_types(vectors.dtype, torch.float32))
        crossed = vectors.unflatten(-1, (-1, 2)).flip(-1).flatten(-2)
        return (vectors * cosine + crossed * sine).to(vectors.dtype)


class Relative(Positions):
    """Raffel et al. 2020, T5: a learned number per head for how far a key is away, in 32 buckets.

    Half of them (of each direction) hold one distance each, the others grow with its logarithm up to 128.
    """

    buckets = 32
    farthest = 128

    def __init__(self, *, dim: int, heads: int, longest: int, onward: bool) -> None:
        super().__init__(dim=dim, heads=heads, longest=longest, onward=onward)
        self.onward = onward
        self.weight = nn.Embedding(self.buckets, heads)
        nn.init.normal_(self.weight.weight, std=0.02)

    def bias(self, queries: int, keys: int, start: int) -> Float[Tensor, "heads queries keys"]:
        """The number of every pair's bucket."""
        device = self.weight.weight.device
        return self.weight(self.bucket(_ahead(queries, keys, start, device))).permute(2, 0, 1)

    def bucket(self, ahead: Int[Tensor, "queries keys"]) -> Int[Tensor, "queries keys"]:
        """The bucket of keys so far ahead of the query; behind it is below zero."""
        sides = 1 if self.onward else 2
        size = self.buckets // sides
        away = ahead.neg().clamp(min=0) if self.onward else ahead.abs()
        near = size // 2
        share = torch.log(away.clamp(min=1) / near) / math.log(self.farthest / near)
        far = (near + share * (size - near)).long().clamp(max=size - 1)
        within = torch.where(away < near, away, far)
        return within if self.onward else within + size * (ahead > 0)


class Alibi(Positions):
    """Press et al. 2022: head h sees a key less by 2^(-8 h / heads) for every token it is away; nothing is learned."""

    def __init__(self, *, dim: int, heads: int, longest: int, onward: bool) -> None:
        super().__init__(dim=dim, heads=heads, longest=longest, onward=onward)
        slopes = 2.0 ** (-8.0 * torch.arange(1, heads + 1) / heads)
        self.register_buffer("slopes", slopes, persistent=False)

    def bias(self, queries: int, keys: int, start: int) -> Float[Tensor, "heads queries keys"]:
        """The distance, times minus the head's slope."""
        assert isinstance(self.slopes, Tensor)
        return -self.slopes[:, None, None] * _ahead(queries, keys, start, self.slopes.device).abs()


def turns(places: Int[Tensor, " time"], part: int) -> Float[Tensor, "2 time part"]:
    """What turns a vector: each number times its cosine, plus the other of its pair times this sine."""
    angles = _angles(places, part)
    sine, cosine = angles.sin(), angles.cos()
    signed = torch.stack([-sine, sine], dim=-1)
    return torch.stack([torch.stack([cosine, cosine], dim=-1), signed]).flatten(-2)


def sinusoids(places: Int[Tensor, " time"], dim: int) -> Float[Tensor, "time dim"]:
    """Sines and cosines in turn, in double precision: far angles are large numbers."""
    angles = _angles(places, dim)
    return torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(-2)[:, :dim]


def _angles(places: Int[Tensor, " time"], dim: int) -> Float[Tensor, "time half"]:
    pairs = torch.arange(0, dim, 2, device=places.device, dtype=torch.float64)
    return places.to(torch.float64).unsqueeze(-1) / BASE ** (pairs / dim)


def _ahead(queries: int, keys: int, start: int, device: torch.device) -> Int[Tensor, "{queries} {keys}"]:
    """How far each key stands ahead of each query."""
    places = torch.arange(start, start + queries, device=device)
    return torch.arange(keys, device=device) - places.unsqueeze(-1)


POSITIONS: dict[str, type[Positions]] = {
    "none": Positions,
    "sinusoidal": Sinusoidal,
    "learned": Learned,
    "rotary": Rotary,
    "relative": Relative,
    "alibi": Alibi,
}
