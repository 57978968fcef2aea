"""Sentence vectors: what the encoder of a run makes of a text, and which texts are near it."""

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

from regard.attention.pooling import Pooling
from regard.data.batching import pad
from regard.data.tokenizers import Tokenizer
from regard.encoders import Encoder
from regard.errors import DataError, RecipeError
from regard.models import Classifier
from regard.models.classifier import pooling
from regard.predict import Predictor
from regard.tasks import Classify, core
from regard.types import END, UNKNOWN, Padded

READ_TOKENS = 16_000  # that are read at once


class Near(NamedTuple):
    """A text that is near another: the cosine of the angle between their vectors."""

    cosine: float
    place: int  # among all texts, from 0
    text: str


@torch.no_grad()
def vectors(predictor: Predictor, texts: Sequence[str]) -> Float[Tensor, "texts dim"]:
    """A vector of length one for each text, in order; zeros for a blank text, or one too long.

    That of a classifier is what it judges a sentence by. That of any other run with an encoder is the mean of its
    states (Conneau et al. 2017 compare such poolings).
    """
    encoder, tokenizer, pool = _parts(predictor)
    cased = [_cased(predictor, text) for text in texts]
    device = next(encoder.parameters()).device
    found = torch.zeros(len(texts), encoder.dim)
    with predictor.at_work():
        for places, ids in core.ask(cased, tokenizer.encode, predictor.task.longest, READ_TOKENS):
            memory = encoder(_padded(predictor, ids).to(device))
            found[places] = functional.normalize(pool(memory).vector.float(), dim=-1).cpu()
    return found


def near(predictor: Predictor, text: str, texts: Sequence[str], count: int = 5) -> list[Near]:
    """Of the texts the `count` nearest to one, the nearest first; of equals the earlier."""
    [asked] = vectors(predictor, [text])
    if not asked.any():
        raise DataError(f"nothing is near a text that is blank or over {predictor.task.longest:,} tokens")
    places = [place for place, each in enumerate(texts) if each.strip()]
    cosines = vectors(predictor, [texts[place] for place in places]) @ asked
    ranked = cosines.sort(descending=True, stable=True)
    chosen = zip(ranked.values[:count].tolist(), ranked.indices[:count].tolist(), strict=True)
    return [Near(cosine, places[index], texts[places[index]]) for cosine, index in chosen]


def unknown(predictor: Predictor, text: str) -> list[str]:
    """The tokens of a text that the run's vocabulary does not hold, each once, in their order."""
    _, tokenizer, _ = _parts(predictor)
    cased = _cased(predictor, text)
    tokens = zip(tokenizer.encode(cased), tokenizer.places(cased), strict=True)
    return list(dict.fromkeys(cased[begin:end].strip() for token, (begin, end) in tokens if token == UNKNOWN))


def _cased(predictor: Predictor, text: str) -> str:
    return text.lower() if predictor.task.recipe.tokens.lower else text


def _parts(predictor: Predictor) -> tuple[Encoder, Tokenizer, Pooling]:
    """What a text goes through."""
    task, model = predictor.task, predictor.model
    encoder, tokenizer = getattr(model, "encoder", None), getattr(task, "source", None)
    if not isinstance(encoder, Encoder) or not isinstance(tokenizer, Tokenizer):
        raise RecipeError(
            f"{predictor.run.path} is a run of the task {task.recipe.task!r}, which reads no sentences into states; "
            "take one of translate, classify, masked_lm or answer"
        )
    if isinstance(model, Classifier):
        return encoder, tokenizer, model.pooling
    return encoder, tokenizer, pooling(replace(task.recipe.model, pooling="mean"), encoder.dim)


def _padded(predictor: Predictor, ids: Sequence[Sequence[int]]) -> Padded:
    """The texts as the encoder learned to read them."""
    if isinstance(predictor.task, Classify):
        return predictor.task.padded(ids)
    return pad([[*row, END] for row in ids])
