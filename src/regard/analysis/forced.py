"""Forced decoding: the attention of a run while it writes a given target, and the word alignment in it."""

import re
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from regard.analysis.alignment import READINGS, alignment_error_rate, diagonal
from regard.console import counted
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


def force(
    predictor: Predictor, pairs: Sequence[Example | tuple[Any, str]], *, all_maps: bool = False
) -> list[Prediction]:
    """The log-probability and the map of every given target, computed by teacher forcing.

    A pair is (source, target); a source is an input of `Predictor.predict`. The map has a last row for END: the
    attention of the step whose input is the last token of the target; `token_scores` has END's log-probability at its
    end. With `all_maps`, `maps` has the maps of all sites, layers and heads.
    """
    task = translator(predictor)
    assert isinstance(predictor.model, Seq2Seq)
    examples = [
        pair if isinstance(pair, Example) else Example(task.accept(pair[0], f"the source of pair {number:,}"), pair[1])
        for number, pair in enumerate(pairs, start=1)
    ]
    with predictor.running():
        forced = task.force(predictor.model, examples, all_maps=all_maps)
    return list(map(predictor.with_trust, forced))


def word_maps(predictor: Predictor, examples: Sequence[Example]) -> dict[str, list[AttentionMap]]:
    """The maps of given targets between words (separated by spaces), for each entry of `READINGS`.

    The row of a token is that of the step that writes it (output step), or of the next step, which reads it (input
    step). Rows are shifted before sub-words are merged to words: columns are summed, rows are averaged.
    """
    task = translator(predictor)
    if task.source is None:
        raise RecipeError(f"words are aligned with words: the source of this run is {task.recipe.source!r}, not text")
    maps: dict[str, list[AttentionMap]] = {name: [] for name in READINGS}
    outputs = force(predictor, examples)
    for example, forced in counted(zip(examples, outputs, strict=True), "merging words", len(examples)):
        if forced.map is None:
            orders = ", ".join(name for name, order in ORDERS.items() if order.attends())
            raise RecipeError(
                f"{predictor.run.path} has no attention to the source, so it aligns nothing; use a run whose "
                f"model.decoder.order is one of {orders}, or a Transformer"
            )
        rows, columns = word_axes(task, example)
        count = len(forced.tokens)
        for name, shift in READINGS.items():
            shifted = replace(forced.map, weights=forced.map.weights[shift : shift + count], rows=forced.tokens)
            maps[name].append(shifted.merged(rows, columns))
    return maps


def word_axes(task: Transduce, example: Example) -> tuple[Words, Words]:
    """The words of a target and of its source text, END included if it is read, to merge rows and columns of a map."""
    assert task.source is not None
    rows, columns = words_of(task.target, example.target), words_of(task.source, example.source)
    if not task.source.ends and columns.labels:
        return rows, columns
    return rows, Words((*columns.labels, SPECIALS[END]), (*columns.home, len(columns.labels)))


def align(predictor: Predictor, gold: Gold) -> dict[str, Measured]:
    """The alignment error rate of a run's attention, for each entry of `READINGS`, and of the diagonal baseline."""
    read = word_maps(predictor, gold.examples)
    links = {name: [set(attention.links()) for attention in maps] for name, maps in read.items()}
    method = {name: f"forced|read:{name}|words merged|links:argmax" for name in links} | {"diagonal": "links:diagonal"}
    lengths = [(len(example.source.split(" ")), len(example.target.split(" "))) for example in gold.examples]
    links["diagonal"] = [diagonal(*pair) for pair in lengths]
    skipped = f"|skipped:{gold.skipped}" if gold.skipped else ""
    measured = {}
    for name in links:
        value, signature = alignment_error_rate(links[name], gold.sure, gold.possible)
        measured[name] = Measured(value, f"{signature}{skipped}|{method[name]}")
    return measured


def words_of(tokenizer: Tokenizer, text: str) -> Words:
    """The words of a text, and for each token the index of its word; the space before a word belongs to the word."""
    words = list(re.finditer("[^ ]+", text))
    ends = [word.end() for word in words]
    home = tuple(min(bisect_left(ends, end), len(ends) - 1) for _, end in tokenizer.offsets(text))
    return Words(tuple(word.group() for word in words), home)


def translator(predictor: Predictor) -> Transduce:
    """The task of the run, or RecipeError if it is not `translate`."""
    if not isinstance(predictor.task, Transduce):
        own = f"{predictor.run.path} is a run of the task {predictor.task.recipe.task!r}"
        raise RecipeError(f"{own}; only runs of translate can be made to write a given output")
    return predictor.task
