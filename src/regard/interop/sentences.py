"""Sentences for the parity check of an export."""

from regard.errors import RegardError
from regard.predict import Predictor
from regard.tasks import Transduce
from regard.tasks.core import evenly


def sentences_of(predictor: Predictor, count: int) -> list[str]:
    """Sources of the dev data, or of the embedded corpus; if neither is found, the vocabulary in its order."""
    task = predictor.task
    try:
        examples = type(task).examples(task.recipe)
        texts = [example.source for example in evenly(examples.dev, count)]
    except RegardError:  # the data is not on this machine
        texts = _from_vocabulary(predictor, count)
    return [text for text in texts if text.strip() and not task.too_long(text)]


def _from_vocabulary(predictor: Predictor, count: int) -> list[str]:
    """Texts of tokens in the order of the vocabulary, of different lengths."""
    task = predictor.task
    assert isinstance(task, Transduce)
    assert task.source is not None
    size, texts, start = task.source.size, [], 4
    for number in range(count):
        length = 1 + number % 20
        ids = [4 + (start + step) % max(1, size - 4) for step in range(length)]
        texts.append(task.source.decode(ids))
        start += length
    return texts
