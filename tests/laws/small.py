"""Small things to hold the laws against; sizes are all distinct, so that a swapped axis shows."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import product

import pytest
import torch
from jaxtyping import config
from torch import Tensor, nn

from regard import recipe as recipes
from regard.attention import NORMALIZERS, SCOPES, SCORES, Attention, Score
from regard.data.batching import pad
from regard.decoders import ORDERS
from regard.errors import RecipeError
from regard.models import Seq2Seq, build
from regard.recurrence import CELLS
from regard.types import END, SPECIALS, BatchFirst, Padded

BATCH, QUERY, KEY = 3, 5, 7
LOOKING = [name for name, order in ORDERS.items() if order.looks()]
DEFAULT = recipes.Model()


@contextmanager
def unchecked() -> Iterator[None]:
    """Shapes go unchecked, for laws that ask a thousand times; others ask the same with the checks on."""
    config.update("jaxtyping_disable", True)
    try:
        yield
    finally:
        config.update("jaxtyping_disable", False)


def make_score(name: str, query_dim: int = 11, key_dim: int = 13, dim: int = 17) -> tuple[Score, int]:
    """The score, with distinct widths where it takes them, and the width of a query."""
    try:
        score = SCORES[name](query_dim=query_dim, key_dim=key_dim, dim=dim)
    except RecipeError:
        query_dim = key_dim
        score = SCORES[name](query_dim=query_dim, key_dim=key_dim, dim=dim)
    for parameter in score.parameters():
        nn.init.normal_(parameter, std=0.5)
    return score, query_dim


def every_attention() -> pytest.MarkDecorator:
    """Parametrize over every score x normaliser x scope."""
    return pytest.mark.parametrize(("score", "normalizer", "scope"), list(product(SCORES, NORMALIZERS, SCOPES)))


def make_attention(score: str, normalizer: str, scope: str, **widths: int) -> tuple[Attention, int]:
    made, query_dim = make_score(score, **widths)
    return SCOPES[scope](made, NORMALIZERS[normalizer].function), query_dim


def every_decoder() -> pytest.MarkDecorator:
    """Parametrize over every order x cell x layers; over the scores with one order that looks."""
    cases = [(order, cell, layers, DEFAULT.attention.score) for order, cell, layers in product(ORDERS, CELLS, (1, 2))]
    cases += [
        (DEFAULT.decoder.order, DEFAULT.decoder.cell, 1, score) for score in SCORES if score != DEFAULT.attention.score
    ]
    return pytest.mark.parametrize(("order", "cell", "layers", "score"), cases)


def make_model(
    order: str = DEFAULT.decoder.order,
    cell: str = DEFAULT.decoder.cell,
    layers: int = 1,
    score: str = DEFAULT.attention.score,
    *,
    bidirectional: bool = True,
    dropout: float = 0.0,
    vocabulary: int = 11,
    scale: float | None = 0.4,
    dtype: torch.dtype = torch.float64,
) -> Seq2Seq:
    """A model in eval mode; `scale` spreads its weights, so that what it says is varied and peaked."""
    recipe = recipes.Model(
        embedding=10,
        encoder=recipes.Encoder(cell, 14, layers, bidirectional, dropout),
        attention=recipes.Attention(score, dim=13),
        decoder=recipes.Decoder(order, cell, 12, layers, dropout),
    )
    try:
        model = build(recipe, source_size=9, target_size=vocabulary)
    except RecipeError:
        recipe = replace(recipe, decoder=replace(recipe.decoder, dim=recipe.encoder.dim))
        model = build(recipe, source_size=9, target_size=vocabulary)
    if scale is not None:
        for parameter in model.parameters():
            nn.init.normal_(parameter, std=scale)
    return model.to(dtype).eval()


def make_sources(*lengths: int, size: int = 9) -> Padded:
    """Random padded sources; END counts as one of a row's tokens."""
    return pad(
        [[*torch.randint(len(SPECIALS), size, (length - 1,)).tolist(), END] for length in lengths],
    )


def leaves(value: BatchFirst) -> list[Tensor]:
    """Every tensor in a noun, nested ones included."""
    found: list[Tensor] = []

    def keep(tensor: Tensor) -> Tensor:
        found.append(tensor)
        return tensor

    value.each(keep)
    return found


def gradients(module: nn.Module) -> dict[str, Tensor | None]:
    return {name: None if each.grad is None else each.grad.clone() for name, each in module.named_parameters()}


def near(actual: Tensor, expected: Tensor, tolerance: float = 1e-10) -> None:
    torch.testing.assert_close(actual, expected, rtol=0.0, atol=tolerance)


def same(actual: Tensor | None, expected: Tensor | None) -> None:
    """Bit for bit."""
    if actual is None or expected is None:
        assert actual is expected
    else:
        torch.testing.assert_close(actual, expected, rtol=0.0, atol=0.0)
