"""Sentence vectors from the encoder of a run, and the texts that are nearest to a text by their cosine."""

from collections.abc import Sequence
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
from regard.models.classifier import make_pooling
from regard.predict import Predictor
from regard.tasks import Classify, core

READ_TOKENS = 16_000  # tokens in a batch of the encoder


class Near(NamedTuple):
    """A text near another one, with the cosine of the angle between their vectors."""

    cosine: float
    place: int  # index among all texts, from 0
    text: str


@torch.no_grad()
def vectors(predictor: Predictor, texts: Sequence[str]) -> Float[Tensor, "texts dim"]:
    """A vector of norm 1 for each text, in order; zeros if a text is blank or too long.

    For a classifier it is the pooled vector that the classifier judges a sentence by. For any other run with an
    encoder it is the mean of the encoder's states (Conneau et al. 2017 compare such poolings).
    """
    task, (encoder, tokenizer, pool) = predictor.task, _parts(predictor)
    normalized = [core.normalized(text, task.recipe) for text in texts]
    device = next(encoder.parameters()).device
    rows = torch.zeros(len(texts), encoder.dim)
    with predictor.running():
        for places, ids in core.input_batches(normalized, tokenizer.encode, task.longest, READ_TOKENS):
            # the same special tokens as in training
            padded = task.padded(ids) if isinstance(task, Classify) else pad([tokenizer.framed(row) for row in ids])
            memory = encoder(padded.to(device))
            rows[places] = functional.normalize(pool(memory).vector.float(), dim=-1).cpu()
    return rows


def near(predictor: Predictor, text: str, texts: Sequence[str], count: int = 5) -> list[Near]:
    """The `count` texts that are nearest to `text` by cosine, nearest first; of equal ones the earlier comes first."""
    [query] = vectors(predictor, [text])
    if not query.any():
        raise DataError(f"nothing is near a text that is blank or over {predictor.task.longest:,} tokens")
    places = [place for place, candidate in enumerate(texts) if candidate.strip()]
    cosines = vectors(predictor, [texts[place] for place in places]) @ query
    ranked = cosines.sort(descending=True, stable=True)
    nearest = zip(ranked.values[:count].tolist(), ranked.indices[:count].tolist(), strict=True)
    return [Near(cosine, places[index], texts[places[index]]) for cosine, index in nearest]


def unknown(predictor: Predictor, text: str) -> list[str]:
    """The tokens of a text that are not in the run's vocabulary, each once, in their order."""
    _, tokenizer, _ = _parts(predictor)
    return list(dict.fromkeys(core.unknown_parts(tokenizer, core.normalized(text, predictor.task.recipe))))


def _parts(predictor: Predictor) -> tuple[Encoder, Tokenizer, Pooling]:
    """The encoder, the tokenizer and the pooling that turn a text into a vector."""
    task, model = predictor.task, predictor.model
    encoder, tokenizer = getattr(model, "encoder", None), getattr(task, "source", None)
    if not isinstance(encoder, Encoder) or not isinstance(tokenizer, Tokenizer):
        raise RecipeError(
            f"{predictor.run.path} (task = {task.recipe.task}, source = {task.recipe.source}) has no sentence encoder; "
            "use a run of translate from text, or of classify, masked_lm or answer"
        )
    if isinstance(model, Classifier):
        return encoder, tokenizer, model.pooling
    return encoder, tokenizer, make_pooling(task.recipe.model, "mean", encoder.dim)
