"""Text as a source: a tokenizer and a token embedding."""

import hashlib
import json
from collections.abc import Callable, Sequence
from importlib import metadata
from typing import Any

from torch import nn

from regard import __version__, storage
from regard.console import counted
from regard.data.batching import pad
from regard.data.store import BLOCK, IntegerRows, Unread
from regard.data.tokenizers import TOKENIZERS, Tokenizer
from regard.errors import RecipeError, pick
from regard.maps import TEXT
from regard.recipe import SMALL, Model, Recipe
from regard.sources.core import Front, Source, Vectors
from regard.storage import Run
from regard.types import PAD, Padded

SOURCE, TARGET = "source.tokens", "target.tokens"  # files of a run's tokenizers; the first alone if there is one


class TokenEmbedding(nn.Embedding, Front):
    """A table with one vector for each token of a vocabulary."""

    @property
    def width(self) -> int:
        """The width of a vector."""
        return self.embedding_dim

    def embed(self, source: Padded) -> Vectors:
        """The vector of every token."""
        return Vectors(self(source.ids), source.mask, TEXT)


def token_embedding(model: Model, size: int, kind: str, dim: int) -> TokenEmbedding:
    """Build the token embedding of an encoder or decoder of that kind and width, for a vocabulary of `size` tokens.

    A Transformer's embedding is as wide as the Transformer and starts small, because the Transformer scales it up. An
    embedding that is also the output matrix (`model.tied`) starts small too, otherwise the first predictions would be
    far too sure.
    """
    width = dim if kind == "transformer" else model.embedding
    table = TokenEmbedding(size, width, padding_idx=PAD)
    if kind == "transformer" or model.tied:
        scale = SMALL if model.init == "small" and kind == "transformer" else 1.0
        nn.init.normal_(table.weight, std=scale * width**-0.5)
        table.weight.detach()[PAD] = 0.0
    return table


class Text(Source[list[int]]):
    """A text as the ids of its tokens; in a batch every row ends with END."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer

    @staticmethod
    def check(recipe: Recipe) -> None:
        """Raise RecipeError if the tokenizer is not in the table."""
        pick(TOKENIZERS, recipe.tokens.source, "tokenizer")

    @classmethod
    def fit(cls, recipe: Recipe, sources: Sequence[str], origin: Run | None = None) -> "Text":
        """Build the tokenizer from the training texts, or take the one of the run that training starts from."""
        return cls(build_tokenizer(recipe.tokens.source, sources, recipe.tokens.size, SOURCE, origin))

    @classmethod
    def restore(cls, recipe: Recipe, read: Callable[[str], bytes]) -> "Text":
        """Load the tokenizer of a stored run."""
        return cls(pick(TOKENIZERS, recipe.tokens.source, "tokenizer").from_bytes(read(SOURCE)))

    def files(self) -> dict[str, bytes]:
        """The tokenizer's file."""
        return {SOURCE: self.tokenizer.to_bytes()}

    def encode(self, source: str) -> list[int]:
        """The ids of the tokens, without END."""
        return self.tokenizer.encode(source)

    def encode_all(self, sources: Sequence[str]) -> Sequence[list[int]]:
        """The token ids of many texts, in one array."""
        return IntegerRows.of(map(self.encode, counted(sources, "encoding sources")))

    def size(self, item: list[int]) -> int:
        """The number of tokens, special ones included."""
        return len(self.tokenizer.framed(item))

    def collate(self, items: Sequence[list[int]]) -> Padded:
        """Rows of ids, each ending with END, padded to the longest."""
        return pad([self.tokenizer.framed(ids) for ids in items])

    def labels(self, item: list[int]) -> tuple[str, ...]:
        """The tokens as text, special ones included."""
        return tuple(self.tokenizer.piece(token) for token in self.tokenizer.framed(item))

    def front(self, model: Model) -> TokenEmbedding:
        """Build the token embedding of the vocabulary."""
        return token_embedding(model, self.tokenizer.size, model.encoder.kind, model.encoder.dim)


def build_tokenizer(kind: str, texts: Sequence[str], size: int, name: str, origin: Run | None = None) -> Tokenizer:
    """Build a tokenizer of that kind from the texts; it is cached, so it is built only once for the same texts.

    If training starts from a run, `origin`, that stores a tokenizer under that file name, this one is taken.
    """
    builder = pick(TOKENIZERS, kind, "tokenizer")
    if origin is not None and origin.has_file(name):
        tokens = origin.recipe().tokens
        stored = tokens.target if name == TARGET else tokens.source
        if stored != kind:
            how = "choose that kind, or train.new_vocabulary=true"
            raise RecipeError(f"{origin.path / name} is a tokenizer of kind {stored!r}, not {kind!r}; {how}")
        return builder.from_bytes(origin.read(name))
    versions = [__version__, metadata.version("sentencepiece")]  # another version may build another tokenizer
    digest = _digest([versions, kind, size], texts)
    return builder.from_bytes(storage.cached("tokenizers", digest, lambda: builder.build(texts, size).to_bytes()))


def _digest(settings: list[Any], texts: Sequence[str]) -> str:
    """The SHA-256 of JSON of a list: the settings, and a list of the texts at its end; some texts at a time.

    Texts that are not read yet have a digest, which is there in their place.
    """
    if isinstance(texts, Unread):
        return hashlib.sha256(json.dumps([*settings, texts.digest]).encode()).hexdigest()
    sha256 = hashlib.sha256((json.dumps(settings)[:-1] + ", [").encode())
    for start in counted(range(0, len(texts), BLOCK), "computing a checksum of the texts", size=1):
        separator = ", " if start else ""
        sha256.update((separator + json.dumps([*texts[start : start + BLOCK]])[1:-1]).encode())
    sha256.update(b"]]")
    return sha256.hexdigest()
