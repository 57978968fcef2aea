"""Turns the weights and vocabularies of another toolkit into a run directory."""

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors.torch import save
from torch import Tensor

from regard import models
from regard import recipe as recipes
from regard.data.tokenizers import Word
from regard.device import only_shapes
from regard.errors import DataError, shown
from regard.sources.text import SOURCE, TARGET
from regard.storage import METRICS, MODEL, RECIPE, Run
from regard.tasks import Transduce
from regard.types import BEGIN, END, SPECIALS

NEVER = -1e4  # the bias of a token that is never predicted
MOST_NAMED = 3  # tensors that a message names
BASE = 10_000.0  # of the wavelengths of sinusoidal positions


class Vocabulary:
    """The words of another toolkit, and how rows of its tensors become regard's: special tokens first.

    `special` are its own words for PAD, UNKNOWN, BEGIN and END, None for one that it does not have; BEGIN may be the
    same as END. `dropped` are words that regard does not need.
    """

    def __init__(
        self, path: Path, words: Sequence[str], special: Sequence[str | None], dropped: Sequence[str] = ()
    ) -> None:
        numbers = {word: number for number, word in enumerate(words)}
        if len(numbers) != len(words):
            raise DataError(f"the vocabulary of {path} has a word twice; it is not imported")
        if missing := [word for word in special if word is not None and word not in numbers]:
            raise DataError(f"the vocabulary of {path} has no word {shown(missing[0])}, which the model needs")
        own = [None if word is None else numbers[word] for word in special]
        left_out = {*own, *(numbers.get(word) for word in dropped)}
        others = [number for number in range(len(words)) if number not in left_out]
        self.path, self.size, self.order = path, len(words), [*own, *others]
        self.words = [words[number] for number in others]

    def rows(self, table: Tensor, missing: float = 0.0) -> Tensor:
        """The rows of a tensor in regard's order; those of tokens that the toolkit does not have are `missing`."""
        if len(table) != self.size:
            raise DataError(f"{self.path} has {len(table):,} rows for a vocabulary of {self.size:,} words")
        rows = table[[0 if number is None else number for number in self.order]]
        rows[[place for place, number in enumerate(self.order) if number is None]] = missing
        return rows

    def bias(self, bias: Tensor | None) -> Tensor:
        """The bias of the output layer: tokens that the toolkit does not have, or BEGIN if it is END, are forbidden."""
        rows = self.rows(torch.zeros(self.size) if bias is None else bias, NEVER)
        if self.order[BEGIN] == self.order[END]:
            rows[BEGIN] = NEVER
        return rows


class Tensors:
    """The tensors of a checkpoint by name; knows which were read, so that none is left out unnoticed."""

    def __init__(self, path: Path, content: Any) -> None:
        if not isinstance(content, Mapping) or not all(isinstance(value, Tensor) for value in content.values()):
            raise DataError(f"{path} is no checkpoint: its weights are not all tensors")
        self.path, self.content, self.unread = path, content, set(content)

    def __contains__(self, name: str) -> bool:
        return name in self.content

    def __getitem__(self, name: str) -> Tensor:
        if name not in self.content:
            raise DataError(f"{self.path} cannot be imported: it has no tensor {name}")
        self.unread.discard(name)
        tensor: Tensor = self.content[name]
        return tensor.to(torch.float32)

    def width(self, name: str) -> int:
        """The width of a matrix: sizes that settings name may be anything."""
        matrix = self[name]
        if matrix.ndim != 2:
            raise DataError(f"{self.path} cannot be imported: {name} is no matrix")
        return matrix.shape[1]

    def first(self, *names: str) -> Tensor | None:
        """The tensor of the first of these names that there is; None if there is none."""
        return next((self[name] for name in names if name in self), None)

    def beginning(self, prefix: str) -> Iterator[tuple[str, Tensor]]:
        """The tensors whose names begin with a prefix, by the rest of their names."""
        for name in sorted(self.content):
            if name.startswith(prefix):
                yield name.removeprefix(prefix), self[name]

    def numbered(self, cells: str, count: int, name: str) -> dict[str, Tensor]:
        """The tensors of recurrent cells, one for each layer, as those of one recurrence with this name."""
        tensors: dict[str, Tensor] = {}
        for number in range(count):
            cell = dict(self.beginning(f"{cells}.{number}."))
            if not cell:  # settings may name any number of layers
                raise DataError(f"{self.path} cannot be imported: it has no tensors of {cells}.{number}")
            tensors |= {f"{name}.{part}_l{number}": tensor for part, tensor in cell.items()}
        return tensors

    def check_read(self, *ignored: str) -> None:
        """Raise DataError if a tensor was not read, unless its name ends with one of `ignored`."""
        if left := sorted(name for name in self.unread if not name.endswith(ignored)):
            names = ", ".join(map(str, left[:MOST_NAMED])) + (", ..." if len(left) > MOST_NAMED else "")
            raise DataError(f"{self.path} cannot be imported: regard has no place for {names}")


class Affine(NamedTuple):
    """The weight and the bias of a linear layer, or the gain and the bias of a norm."""

    weight: Tensor
    bias: Tensor

    def named(self, name: str) -> dict[str, Tensor]:
        """Both by regard's names."""
        return {f"{name}.weight": self.weight, f"{name}.bias": self.bias}


class LayerNames(NamedTuple):
    """A toolkit's names of the parts of a Transformer layer; an attention has query, key, value and output."""

    attention: tuple[str, str, str, str]
    around_attention: str
    inner: str
    out: str
    around_feed: str
    cross: tuple[str, str, str, str] | None = None
    around_cross: str = ""


def projections(attention: str, query: str, key: str, value: str, out: str) -> tuple[str, str, str, str]:
    """The names of the four matrices of an attention."""
    return f"{attention}{query}", f"{attention}{key}", f"{attention}{value}", f"{attention}{out}"


def layer(
    name: str, parts: LayerNames, linear: Callable[[str], Affine], norm: Callable[[str], Affine]
) -> dict[str, Tensor]:
    """The tensors of a Transformer layer by regard's names, which begin with `name`."""
    *projections, out = map(linear, parts.attention)
    all_three = Affine(*(torch.cat(tensors) for tensors in zip(*projections, strict=True)))
    tensors = all_three.named(f"{name}.attention.all") | out.named(f"{name}.attention.out")
    tensors |= norm(parts.around_attention).named(f"{name}.around_attention.norm")
    if parts.cross is not None:
        for theirs, ours in zip(parts.cross, ("query", "key", "value", "out"), strict=True):
            tensors |= linear(theirs).named(f"{name}.cross.{ours}")
        tensors |= norm(parts.around_cross).named(f"{name}.around_cross.norm")
    tensors |= linear(parts.inner).named(f"{name}.feed.inner") | linear(parts.out).named(f"{name}.feed.out")
    return tensors | norm(parts.around_feed).named(f"{name}.around_feed.norm")


def sides(encoder: Mapping[str, Any], decoder: Mapping[str, Any]) -> dict[str, Any]:
    """The keys of a recipe for both sides of a Transformer."""
    settings: dict[str, Any] = {"model.attention.score": "scaled_dot"}
    for side, values in (("encoder", encoder), ("decoder", decoder)):
        settings[f"model.{side}.kind"] = "transformer"
        settings |= {f"model.{side}.{key}": value for key, value in values.items()}
    return settings


def sinusoids(dim: int, count: int, first: int = 0) -> Tensor:
    """Sinusoidal positions as tensor2tensor has them, from position `first` on: all sines, then all cosines.

    PE(pos, i) = sin(pos / 10000^(i / (dim/2 - 1))); regard has the form of Vaswani et al., so this one is a table.
    """
    places = torch.arange(first, first + count, dtype=torch.float64).unsqueeze(1)
    angles = places * torch.exp(torch.arange(dim // 2, dtype=torch.float64) * -math.log(BASE) / (dim // 2 - 1))
    return torch.nn.functional.pad(torch.cat([angles.sin(), angles.cos()], dim=1), (0, dim % 2)).to(torch.float32)


def make(
    parent: Path,
    name: str,
    settings: Mapping[str, object],
    vocabularies: tuple[Vocabulary, Vocabulary],
    tensors: Mapping[str, Tensor],
    *,
    ends: bool = True,
) -> Run:
    """Create a run with these settings, words (without the special ones) and weights, whose names and shapes must fit.

    Words are what the toolkit was trained on: pieces, if its texts were cut into pieces. `ends` is whether its encoder
    reads an end after the source.
    """
    tokens = {"tokens.source": "word", "tokens.target": "word"}
    overrides = [f"{key}={recipes.encoded(value)}" for key, value in (tokens | dict(settings)).items()]
    recipe = recipes.parse("", f"the import of {name}", [f"name={name}", *overrides])
    source, target = (vocabulary.words for vocabulary in vocabularies)
    if not {*source, *target}.isdisjoint(SPECIALS):
        raise DataError(f"the vocabulary of {name} has a word that is special in regard; it is not imported")
    files = {
        RECIPE: recipes.to_toml(recipe).encode(),
        SOURCE: Word(source, ends=ends).to_bytes(),
        TARGET: Word(target).to_bytes(),
    }
    with only_shapes():
        model = Transduce.restore(recipe, files.__getitem__).build()
    expected = models.weights(model)
    for tensor in sorted(expected.keys() ^ tensors.keys()):
        what = "lacks" if tensor in expected else "has besides"
        raise DataError(f"{name} cannot be imported: it {what} what regard calls {tensor}")
    for tensor, own in expected.items():
        if own.shape != tensors[tensor].shape:
            shapes = f"{list(tensors[tensor].shape)}, and regard expects {list(own.shape)}"
            raise DataError(f"{name} cannot be imported: {tensor} has the shape {shapes}")
    plain = {key: tensor.to(torch.float32).contiguous().clone() for key, tensor in tensors.items()}
    finished = json.dumps({"train_seconds": 0.0}).encode() + b"\n"  # it was trained elsewhere
    return Run.create(parent, name, files | {MODEL: save(plain), METRICS: finished})
