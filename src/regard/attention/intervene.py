"""Interventions: changes of a trained model while it predicts, such as a silenced head or an erased source token.

They are small descriptions, in Python or as short texts (`parse`). `models.intervene` carries them out.
"""

import re
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import ClassVar

import numpy as np
import torch
from jaxtyping import Bool
from torch import Tensor

from regard.attention.normalizers import Pairs
from regard.attention.scopes import Weights
from regard.errors import RecipeError, pick, shown
from regard.types import Memory

Position = int | str  # a number, counted from 1, or a word that a `Predictor` finds among the labels
LARGEST = 10**9  # of numbers in short texts, and of seeds
PART = re.compile(r'(?:(?P<key>[a-z]+)=)?(?P<value>"[^"]*"|[^\s"]+)(?:\s+|$)')


@dataclass(frozen=True)
class Intervention(ABC):
    """Base of all interventions; layers, heads, rows, columns and source positions are counted from 1."""

    name: ClassVar[str]  # in `INTERVENTIONS` and in short texts

    def __str__(self) -> str:
        """The intervention as a short text, which `parse` reads."""
        values = {key.name: getattr(self, key.name) for key in fields(self)}
        given = [f"{key}={quoted(value)}" for key, value in values.items() if value is not None]
        return " ".join([self.name, *given])


class WeightIntervention(Intervention):
    """Base of interventions on attention weights: at a site, in a layer and of a head; None stands for all.

    A `site` that is None is the first that the model has, whose map predictions show.
    """

    site: str | None
    layer: int | None
    head: int | None

    def __post_init__(self) -> None:
        for noun, number in (("layer", self.layer), ("head", self.head)):
            if number is not None and not _is_whole(number):
                raise RecipeError(
                    f"{self.name}: the {noun} {shown(number)} is not a whole number; {noun}s are counted from 1, and "
                    "None stands for all"
                )
        if not isinstance(self.site, str | None):
            raise RecipeError(f"{self.name}: {shown(self.site)} is not a site; give its name, or None for the first")

    @abstractmethod
    def change(self, call: Weights, heads: bool) -> Pairs:
        """The new weights of one call; with `heads`, they have an axis of heads before the queries."""


@dataclass(frozen=True)
class HeadIntervention(WeightIntervention):
    """Base of interventions on all rows of some heads."""

    site: str | None = None
    layer: int | None = None
    head: int | None = None

    def change(self, call: Weights, heads: bool) -> Pairs:
        """The new weights of the head; those of the others stay."""
        after = self.replaced(call)
        if self.head is None or not heads:
            return after
        own = torch.arange(after.shape[-3], device=after.device) == self.head - 1
        return torch.where(own[:, None, None], after, call.weights)

    @abstractmethod
    def replaced(self, call: Weights) -> Pairs:
        """The new weights, of all heads."""


@dataclass(frozen=True)
class Silence(HeadIntervention):
    """Sets all weights to zero: the context of a silenced head or layer is zero (Michel et al. 2019)."""

    name = "silence"

    def replaced(self, call: Weights) -> Pairs:
        """Zeros."""
        return torch.zeros_like(call.weights)


@dataclass(frozen=True)
class Force(WeightIntervention):
    """Lets one row (a step of the decoder) attend to one column alone, with the weight 1.

    The column may be outside of the window of a local scope: the weight goes there anyway. It may be neither padding,
    nor erased, nor a token that comes later.
    """

    name = "force"
    row: Position
    column: Position
    site: str | None = None
    layer: int | None = None
    head: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_positions(self.row, self.column)

    def change(self, call: Weights, heads: bool) -> Pairs:
        """The weights with one row replaced, if it is among those of this call."""
        assert isinstance(self.row, int)
        assert isinstance(self.column, int)
        row, column = self.row - 1 - call.start, self.column - 1
        if not 0 <= row < call.weights.shape[-2]:
            return call.weights
        keys = call.weights.shape[-1]
        if column >= keys:
            raise RecipeError(f"{self}: there are only {keys} columns in this row")
        if call.allowed is not None:
            own = call.allowed[..., min(row, call.allowed.shape[-2] - 1), column]
            if not bool(own.all()):
                raise RecipeError(f"{self}: this column is padding, erased, or comes after the row")
        after = call.weights.clone()
        chosen = after if self.head is None or not heads else after.narrow(-3, self.head - 1, 1)
        chosen[..., row, :] = 0.0
        chosen[..., row, column] = 1.0
        return after


@dataclass(frozen=True)
class Uniform(HeadIntervention):
    """Gives every key that a query may see the same weight, 1 / n (Wiegreffe and Pinter 2019)."""

    name = "uniform"

    def replaced(self, call: Weights) -> Pairs:
        """Uniform weights; zeros for a query that sees no key."""
        visible = seen(call).to(call.weights.dtype)
        return visible / visible.sum(-1, keepdim=True).clamp(min=1)


@dataclass(frozen=True)
class Permute(HeadIntervention):
    """Shuffles the weights of every query among the keys that it may see (Jain and Wallace 2019).

    The order depends on the seed and on the number of the row alone: so a search does the same as teacher forcing, and
    neither padding nor other texts of the batch change it.
    """

    name = "permute"
    seed: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not _is_whole(self.seed) or not 0 <= self.seed <= LARGEST:
            raise RecipeError(f"the seed of permute is a whole number from 0 to {LARGEST:,}, not {shown(self.seed)}")

    def replaced(self, call: Weights) -> Pairs:
        """The weights in another order; invisible keys keep their weight, 0."""
        visible = seen(call)
        queries, keys = call.weights.shape[-2:]
        rows = [np.random.default_rng([self.seed, call.start + row]).random(keys) for row in range(queries)]
        numbers = torch.from_numpy(np.stack(rows)).to(call.weights.device)
        places = torch.arange(keys, dtype=numbers.dtype, device=numbers.device)
        shuffled, ordered = (
            torch.where(visible, ranks, torch.inf).argsort(dim=-1, stable=True) for ranks in (numbers, places)
        )
        return torch.zeros_like(call.weights).scatter(-1, ordered, call.weights.gather(-1, shuffled))


@dataclass(frozen=True)
class Erase(Intervention):
    """Hides source positions from the model, from `first` to `last`, before its encoder: nothing depends on them.

    Of a picture or a recording, positions are the cells or frames that the front has computed.
    """

    name = "erase"
    first: Position
    last: int | None = None  # None: the first alone, or all positions of a word

    def __post_init__(self) -> None:
        _check_positions(self.first, 1 if self.last is None else self.last)
        if self.last is not None and not (
            isinstance(self.first, int) and isinstance(self.last, int) and self.first <= self.last
        ):
            raise RecipeError(f"erase {self.first}-{self.last}: give two numbers, the smaller one first, or one word")

    def positions(self) -> range:
        """The positions, counted from 0."""
        assert isinstance(self.first, int)
        return range(self.first - 1, self.first if self.last is None else self.last)

    def __str__(self) -> str:
        return f"erase {quoted(self.first)}" + ("" if self.last is None else f"-{self.last}")


@dataclass(frozen=True)
class Swap(Intervention):
    """Exchanges what stands at two source positions, before the encoder; the positions themselves stay."""

    name = "swap"
    first: Position
    second: Position

    def __post_init__(self) -> None:
        _check_positions(self.first, self.second)

    def __str__(self) -> str:
        return f"swap {quoted(self.first)} {quoted(self.second)}"


@dataclass(frozen=True, eq=False)
class Feed(Intervention):
    """Gives the decoder the memory of another source: a `Memory`, or for a `Predictor` that source itself."""

    name = "feed"
    source: Memory | str

    def __str__(self) -> str:
        return f"feed {quoted(self.source)}" if isinstance(self.source, str) else "feed Memory"


INTERVENTIONS: dict[str, type[Intervention]] = {
    "silence": Silence,
    "force": Force,
    "uniform": Uniform,
    "permute": Permute,
    "erase": Erase,
    "swap": Swap,
    "feed": Feed,
}
EXAMPLES = {
    "silence": "silence decoder.cross_attention layer=2 head=3",
    "force": "force row=4 column=2",
    "uniform": "uniform decoder.cross_attention",
    "permute": "permute decoder.cross_attention seed=1",
    "erase": "erase 3, erase 3-5, or erase WORD",
    "swap": "swap 2 5",
    "feed": 'feed "another source"',
}


def seen(call: Weights) -> Bool[Tensor, "*batch query key"]:
    """The mask of the keys that each query may see, with the shape of the weights."""
    if call.visible is None:
        return torch.ones_like(call.weights, dtype=torch.bool)
    return call.visible.expand_as(call.weights)


def parse(text: str) -> Intervention:
    """The intervention of a short text, such as those of `EXAMPLES`; a word that is a number is put in quotation marks.

    RecipeError if it is none.
    """
    name, _, rest = text.strip().partition(" ")
    kind = pick(INTERVENTIONS, name, "intervention")
    try:
        if kind is Erase:
            return _erase(rest.strip())
        if kind is Feed:
            return Feed(_unquoted(rest.strip()))
        parts = _parts(rest)
        positional = [value for key, value in parts if key is None]
        named = {key: value for key, value in parts if key is not None}
        if kind is Swap and len(positional) == 2 and not named:
            return Swap(*map(_position, positional))
        if kind is not Swap and len(positional) <= 1 and set(named) <= {key.name for key in fields(kind)}:
            site = {} if not positional else {"site": _unquoted(positional[0])}
            return kind(**site | {key: _value(key, value) for key, value in named.items()})
    except (ValueError, TypeError) as error:
        raise _unreadable(name, text) from error
    raise _unreadable(name, text)


def read(interventions: Sequence[Intervention | str] | Intervention | str) -> list[Intervention]:
    """Interventions, given one by one or in a list, as short texts or not."""
    given = [interventions] if isinstance(interventions, Intervention | str) else list(interventions)
    for one in given:
        if not isinstance(one, Intervention | str):
            names = ", ".join(kind.__name__ for kind in INTERVENTIONS.values())
            raise RecipeError(f"{shown(one)} is no intervention; give one of {names}, or a short text")
    return [parse(one) if isinstance(one, str) else one for one in given]


def quoted(value: object) -> str:
    """A value in a short text: texts in quotation marks, unless they are names of sites."""
    is_plain = isinstance(value, str) and re.fullmatch(r"[a-z]+\.[a-z_]+", value)
    return f'"{value}"' if isinstance(value, str) and not is_plain else str(value)


def _parts(rest: str) -> list[tuple[str | None, str]]:
    """The parts of a short text after its name: values, or key=value; ValueError if it cannot be split."""
    parts, place, rest = [], 0, rest.strip()
    while place < len(rest):
        found = PART.match(rest, place)
        if found is None:
            raise ValueError(rest)
        parts.append((found["key"], found["value"]))
        place = found.end()
    return parts


def _erase(rest: str) -> Erase:
    """The positions or the words to erase: a number, two numbers with a hyphen, or a text; ValueError if it is none."""
    if re.fullmatch(r"\d+\s+\d+", rest):  # a forgotten hyphen; in quotation marks they are words
        raise ValueError(rest)
    numbers = re.fullmatch(r"(\d+)(?:-(\d+))?", rest)
    if numbers is None:
        return Erase(_unquoted(rest))
    first, last = numbers.groups()
    return Erase(_number(first), None if last is None else _number(last))


def _value(key: str, value: str) -> int | str:
    """The value of a key in a short text."""
    if key in ("row", "column"):
        return _position(value)
    if key == "seed" and re.fullmatch(r"-?\d{1,100}", value):
        return int(value)  # `Permute` names the range
    return _unquoted(value) if key == "site" else _number(value)


def _position(value: str) -> Position:
    """A number, or a word; a word in quotation marks may be of digits."""
    return _number(value) if value.isdecimal() else _unquoted(value)


def _number(value: str) -> int:
    """A number of a short text; ValueError if it is none, or absurdly large."""
    number = int(value) if len(value) <= len(str(LARGEST)) else LARGEST + 1
    if not 0 <= number <= LARGEST:
        raise ValueError(value)
    return number


def _unquoted(value: str) -> str:
    """A word without the quotation marks around it; ValueError if none is left."""
    word = value[1:-1] if len(value) > 1 and value[0] == value[-1] == '"' else value
    if not word:
        raise ValueError(value)
    return word


def _unreadable(name: str, text: str) -> RecipeError:
    return RecipeError(f"{shown(text)} is not an intervention as it is written; write {EXAMPLES[name]}")


def _is_whole(number: object) -> bool:
    """Whether a value is a whole number, of Python or of numpy."""
    return isinstance(number, int | np.integer) and not isinstance(number, bool)


def _check_positions(*positions: Position) -> None:
    """Raise RecipeError if a position is neither a word nor a number from 1 on."""
    for position in positions:
        is_number = isinstance(position, int) and not isinstance(position, bool) and position >= 1
        if not is_number and not (isinstance(position, str) and position):
            raise RecipeError(f"{shown(position)} is not a position: they are counted from 1, or given as a word")
