"""Small things to hold the laws against; sizes are all distinct, so that a swapped axis shows."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import product
from typing import NamedTuple

import pytest
import torch
from jaxtyping import config
from torch import Tensor, nn

from regard import recipe as recipes
from regard.attention import NORMALIZERS, SCOPES, SCORES, Attention, MultiHead, Score
from regard.attention.scopes import Scope
from regard.data.batching import pad
from regard.decoders import ORDERS, STARTS
from regard.errors import RecipeError
from regard.models import Seq2Seq, build
from regard.recurrence import CELLS
from regard.types import END, SPECIALS, BatchFirst, Padded

BATCH, QUERY, KEY = 3, 5, 7
WINDOW, PART = 2, 6  # how far local scopes see, how wide a head is
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


class Looks(NamedTuple):
    """One way to look; `WINDOW` is narrow, so that local scopes have something to hide."""

    score: str = DEFAULT.attention.score
    normalizer: str = DEFAULT.attention.normalizer
    scope: str = DEFAULT.attention.scope
    heads: int = 1

    def __str__(self) -> str:
        return "-".join(map(str, self))


# Not the product, which is too long to run: every entry of every table, and each with some of the others.
ATTENTIONS = list(
    dict.fromkeys(
        [
            *(Looks(score=score) for score in SCORES),
            *(Looks(normalizer=normalizer) for normalizer in NORMALIZERS),
            *(Looks(score=score, scope=scope) for score, scope in product(("additive", "dot"), SCOPES)),
            Looks("dot", "sparsemax", "local_m"),
            Looks("general", "entmax15", "local_p"),
            Looks("linear_concat", "sigmoid", "local_p"),
            *(Looks(score, heads=2) for score in ("scaled_dot", "additive")),
            Looks("cosine", "sparsemax", "local_m", 2),
            Looks("concat", "softmax", "local_p", 3),
        ]
    )
)


def every_attention() -> pytest.MarkDecorator:
    """Parametrize over the ways to look."""
    return pytest.mark.parametrize("looks", ATTENTIONS, ids=str)


def make_attention(looks: Looks, query_dim: int = 11, key_dim: int = 13, dim: int = 17) -> tuple[Attention, int]:
    """The attention, its weights spread, and the width of a query."""

    def around(score: Score, query_dim: int) -> Attention:
        function = NORMALIZERS[looks.normalizer].function
        return SCOPES[looks.scope](score, function, query_dim=query_dim, window=WINDOW)

    if looks.heads == 1:
        score, query_dim = make_score(looks.score, query_dim, key_dim, dim)
        attention = around(score, query_dim)
    else:
        attention = MultiHead(
            lambda width: around(make_score(looks.score, width, width, width)[0], width),
            query_dim=query_dim,
            key_dim=key_dim,
            dim=looks.heads * PART,
            heads=looks.heads,
        )
    for parameter in attention.parameters():
        nn.init.normal_(parameter, std=0.5)
    return attention, query_dim


def inner(attention: Attention) -> Scope:
    """The scope, also where several heads stand around it."""
    return attention.attention if isinstance(attention, MultiHead) else attention


def sums_to_one(looks: Looks) -> bool:
    """Whether weights sum to one wherever there is anything to see."""
    return NORMALIZERS[looks.normalizer].sums_to_one and SCOPES[looks.scope].keeps_sum


class Case(NamedTuple):
    """One model; `inner` and `bias` are the encoder's."""

    order: str = DEFAULT.decoder.order
    cell: str = DEFAULT.decoder.cell
    layers: int = 1
    looks: Looks = Looks()
    start: str = DEFAULT.decoder.start
    inner: int = 0
    bias: bool = True

    def __str__(self) -> str:
        return "-".join(map(str, self))


PLAIN = Case()


def every_decoder() -> pytest.MarkDecorator:
    """Parametrize over all orders, cells, depths, starts and ways to look, each with some of the others."""
    cases = [Case(order=order, cell=cell) for order, cell in product(ORDERS, CELLS)]
    cases += [Case(order, tuple(CELLS)[number % len(CELLS)], 2) for number, order in enumerate(ORDERS)]
    for number, looks in enumerate(ATTENTIONS):
        cases.append(Case(LOOKING[number % len(LOOKING)], looks=looks))
    for scope in SCOPES:
        cases += [Case(order, looks=Looks(scope=scope)) for order in LOOKING]
    for number, start in enumerate(STARTS):
        cases += [Case("luong_feeding", "lstm", 1 + number % 2, start=start), Case("none", "rnn", start=start)]
    cases.append(Case("luong", "lstm", 2, inner=16))
    cases.append(Case("context", "lstm", inner=16, bias=False))
    return pytest.mark.parametrize("case", list(dict.fromkeys(cases)), ids=str)


def make_model(
    case: Case = PLAIN,
    *,
    bidirectional: bool = True,
    dropout: float = 0.0,
    vocabulary: int = 11,
    scale: float | None = 0.4,
    dtype: torch.dtype = torch.float64,
) -> Seq2Seq:
    """A model in eval mode; `scale` spreads its weights, so that what it says is varied and peaked."""
    score, normalizer, scope, heads = case.looks
    width = PART * heads if heads > 1 else 13
    recipe = recipes.Model(
        embedding=10,
        encoder=recipes.Encoder(
            cell=case.cell,
            dim=14,
            layers=case.layers,
            bidirectional=bidirectional,
            bias=case.bias,
            inner_dim=case.inner,
            dropout=dropout,
        ),
        attention=recipes.Attention(score, width, normalizer, scope, WINDOW, heads),
        decoder=recipes.Decoder(
            order=case.order, start=case.start, cell=case.cell, dim=12, layers=case.layers, dropout=dropout
        ),
    )
    try:
        model = build(recipe, source_size=9, target_size=vocabulary)
    except RecipeError:  # some need both sides to be of one width
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
