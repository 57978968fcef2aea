"""Turns the weights and vocabularies of another toolkit into a run directory."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from safetensors.torch import save
from torch import Tensor

from regard import models
from regard import recipe as recipes
from regard.data.tokenizers import Word
from regard.device import only_shapes
from regard.errors import DataError
from regard.sources.text import SOURCE, TARGET
from regard.storage import MODEL, RECIPE, Run
from regard.tasks import Transduce
from regard.types import SPECIALS


def make(
    parent: Path,
    name: str,
    settings: Mapping[str, object],
    vocabularies: tuple[Sequence[str], Sequence[str]],
    tensors: Mapping[str, Tensor],
) -> Run:
    """Create a run with these settings, words (without the special ones) and weights, whose names and shapes must fit.

    Words are what the toolkit was trained on: pieces, if its texts were cut into pieces.
    """
    tokens = {"tokens.source": "word", "tokens.target": "word"}
    overrides = [f"{key}={recipes.encoded(value)}" for key, value in (tokens | dict(settings)).items()]
    recipe = recipes.parse("", f"the import of {name}", [f"name={name}", *overrides])
    for words in vocabularies:
        if len(set(words)) != len(words) or not set(words).isdisjoint(SPECIALS):
            raise DataError(f"the vocabulary of {name} has a word twice; it is not imported")
    files = {
        RECIPE: recipes.to_toml(recipe).encode(),
        SOURCE: Word(vocabularies[0]).to_bytes(),
        TARGET: Word(vocabularies[1]).to_bytes(),
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
    return Run.create(parent, name, files | {MODEL: save(plain)})


def with_our_specials(rows: Tensor, unknown: int, padding: int, begin: int, end: int) -> Tensor:
    """Rows of a vocabulary with regard's special tokens first (padding, unknown, begin, end), then the others."""
    special = [padding, unknown, begin, end]
    others = [row for row in range(len(rows)) if row not in special]
    return rows[torch.tensor([*special, *others])]
