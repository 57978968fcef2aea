"""Forced decoding: where a run looks while it writes a given target, and how well that aligns words."""

import re
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import replace

from regard.analysis.alignment import READINGS, Link, alignment_error_rate, diagonal
from regard.data.gold import Gold
from regard.data.tokenizers import Tokenizer
from regard.decoders import ORDERS
from regard.errors import RecipeError
from regard.maps import AttentionMap, Words
from regard.metrics import Measured
from regard.models import Seq2Seq
from regard.predict import Predictor
from regard.tasks import Transduce
from regard.types import END, SPECIALS, Example, Prediction


def force(predictor: Predictor, examples: Sequence[Example]) -> list[Prediction]:
    """Every example's target with its log-probability and its map, as if the run had written it (teacher forcing).

    The map has a row for END too, the last: what the run looks at once it has been fed the target's last token.
    """
    task = _translator(predictor)
    assert isinstance(predictor.model, Seq2Seq)
    with predictor.at_work():
        return task.force(predictor.model, examples)


def word_maps(predictor: Predictor, examples: Sequence[Example]) -> dict[str, list[AttentionMap]]:
    """By reading, the maps of given targets between words, which are what spaces set apart.

    A token's row is that of the step that writes it, or of the step that is then fed it. Rows are shifted before
    sub-words are merged: their weights are summed as columns, averaged as rows.
    """
    task = _translator(predictor)
    found: dict[str, list[AttentionMap]] = {name: [] for name in READINGS}
    for example, forced in zip(examples, force(predictor, examples), strict=True):
        if forced.map is None:
            orders = ", ".join(name for name, order in ORDERS.items() if order.looks())
            raise RecipeError(
                f"{predictor.run.path} never looks at the source, so it aligns nothing; take a run whose "
                f"model.decoder.order is one of {orders}, or a Transformer"
            )
        rows, columns = words_of(task.target, example.target), words_of(_tokenizer(task), example.source)
        columns = Words((*columns.labels, SPECIALS[END]), [*columns.home, len(columns.labels)])
        count = len(forced.tokens)
        for name, shift in READINGS.items():
            read = replace(forced.map, weights=forced.map.weights[shift : shift + count], rows=forced.tokens)
            found[name].append(read.merged(rows, columns))
    return found


def align(predictor: Predictor, gold: Gold) -> dict[str, Measured]:
    """The alignment error rate of a run's looks by each reading, and what the bare diagonal would have."""
    found: dict[str, list[set[Link]]] = {
        name: [set(seen.links()) for seen in maps] for name, maps in word_maps(predictor, gold.examples).items()
    }
    counts = [(len(each.source.split(" ")), len(each.target.split(" "))) for each in gold.examples]
    skipped = f"|skipped:{gold.skipped}" if gold.skipped else ""
    how = {name: f"forced|read:{name}|words merged|links:argmax" for name in found} | {"diagonal": "links:diagonal"}
    measured = {}
    for name, links in (found | {"diagonal": [diagonal(*pair) for pair in counts]}).items():
        value, signature = alignment_error_rate(links, gold.sure, gold.possible)
        measured[name] = Measured(value, f"{signature}{skipped}|{how[name]}")
    return measured


def words_of(tokenizer: Tokenizer, text: str) -> Words:
    """The words of a text, and for each of its tokens the one it is of; the space before a word is the word's."""
    found = list(re.finditer("[^ ]+", text))
    ends = [each.end() for each in found]
    home = [min(bisect_left(ends, end), len(ends) - 1) for _, end in tokenizer.places(text)]
    return Words(tuple(each.group() for each in found), home)


def _tokenizer(task: Transduce) -> Tokenizer:
    if task.source is None:
        raise RecipeError(f"words are aligned with words: the source of this run is {task.recipe.source!r}, not text")
    return task.source


def _translator(predictor: Predictor) -> Transduce:
    if not isinstance(predictor.task, Transduce):
        task = predictor.task.recipe.task
        raise RecipeError(f"{predictor.run.path} is a run of the task {task!r}; only translate writes given targets")
    return predictor.task
