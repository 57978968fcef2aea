"""Static word vectors: GloVe or word2vec as text, or a table of safetensors with its tokenizer."""

from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.torch import load as parse_tensors

from regard.data import files
from regard.data.paths import find
from regard.data.tokenizers import HuggingFace
from regard.errors import CorruptError, DataError, RecipeError, shown
from regard.recipe import Limits
from regard.storage import files as stored
from regard.storage.runs import parse_json

LARGEST_TABLE = 8 << 30  # bytes of a table of vectors
TABLE = ".safetensors"


class WordVectors(NamedTuple):
    """The vectors of the words that were asked for and found."""

    rows: dict[str, NDArray[np.float32]]
    width: int


def read(names: tuple[str, ...], words: Iterable[str], limits: Limits) -> WordVectors:
    """The vectors of these words in a text file, or in a table of safetensors and the tokenizer.json that it is for."""
    if len(names) == 2 and names[0].endswith(TABLE):
        return _from_table(find(names[0]), find(names[1]), words)
    if len(names) != 1 or names[0].endswith(TABLE):
        raise RecipeError(
            "model.embedding_from is one text file of vectors (GloVe, word2vec), or a .safetensors table and the "
            f"tokenizer.json that it is for, not {', '.join(names)}"
        )
    return _from_text(names[0], set(words), limits)


def _from_text(name: str, words: set[str], limits: Limits) -> WordVectors:
    """The vectors of a text file: a word and its numbers on each line; word2vec's begins with a line of two counts."""
    rows: dict[str, NDArray[np.float32]] = {}
    width = 0
    for number, line in enumerate(files.load(name, limits), start=1):
        fields = line.rstrip().split(" ")
        if number == 1 and len(fields) == 2 and all(field.isdecimal() for field in fields):
            width = int(fields[1])
            continue
        width = width or len(fields) - 1
        word = " ".join(fields[: len(fields) - width])
        if word and word not in words:
            continue
        try:
            row = np.array(fields[len(fields) - width :], dtype=np.float32)
        except ValueError:
            row = np.full(1, np.nan, np.float32)
        if not word or len(row) != width or not np.isfinite(row).all():
            raise DataError(f"{name}:{number}: {shown(line[:40])} is not a word and {width} finite numbers")
        rows.setdefault(word, row)
    if not width:
        raise DataError(f"{name} holds no vectors: write a word and its numbers on each line, separated by spaces")
    return WordVectors(rows, width)


def _from_table(table: Path, tokenizer: Path, words: Iterable[str]) -> WordVectors:
    """The mean of the vectors of the pieces of each word."""
    try:
        tensors = parse_tensors(stored.read(table.resolve(), LARGEST_TABLE))
    except (SafetensorError, ArithmeticError, LookupError, RuntimeError, TypeError, ValueError) as error:
        raise CorruptError(f"{table} holds no tensors: {shown(str(error))}") from error
    matrices = [tensor.float().numpy() for tensor in tensors.values() if tensor.ndim == 2]
    if len(matrices) != 1 or not np.isfinite(matrices[0]).all():
        raise DataError(f"{table} is a table of vectors if it holds one matrix of finite numbers; it does not")
    content = parse_json(stored.read(tokenizer.resolve()), dict, tokenizer)
    pieces = HuggingFace(content, [None] * 4, begin=False)
    rows: dict[str, NDArray[np.float32]] = {}
    for word in words:
        places = [row for token in pieces.encode(word) if (row := pieces.rows[token]) is not None]
        if places and max(places) < len(matrices[0]):
            rows[word] = matrices[0][places].mean(0)
    return WordVectors(rows, matrices[0].shape[1])
