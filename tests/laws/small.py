"""Small things to hold the laws against; sizes are all distinct, so that a swapped axis shows."""

from dataclasses import replace
from itertools import product
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn

from regard import recipe as recipes
from regard.attention import NORMALIZERS, POSITIONS, SCOPES, SCORES, Attention, MultiHead, Score
from regard.attention.scopes import Scope
from regard.data.batching import pad
from regard.decoders import ORDERS, STARTS
from regard.errors import RecipeError
from regard.layers.recurrence import CELLS
from regard.layers.transformer import ACTIVATIONS, NORMS
from regard.models import Seq2Seq, build
from regard.types import BEGIN, END, SPECIALS, Batch, BatchFirst, Padded

BATCH, QUERY, KEY = 3, 5, 7
WINDOW, PART = 2, 6  # how far local scopes see, how wide a head is
LONGEST = 29  # positions that are learned, where they are
FORGETTING = [name for name, scope in SCOPES.items() if not scope.uses_past]
LEARNED = [name for name, entry in NORMALIZERS.items() if entry.differentiable]
ATTENDING = [name for name, order in ORDERS.items() if order.attends()]
DEFAULT = recipes.Model()


def make_batch(sources: list[list[int]], targets: list[list[int]]) -> Batch:
    """The batch of these pairs, with END after sources and BEGIN and END around targets."""
    source = pad([[*ids, END] for ids in sources])
    return Batch(source, pad([[BEGIN, *ids, END] for ids in targets]), torch.arange(len(sources)))


def make_score(name: str, query_dim: int = 11, key_dim: int = 13, dim: int = 17) -> tuple[Score, int]:
    """The score, with distinct widths where it takes them, and the width of a query."""
    more = {"longest": LONGEST} if name == "location" else {}
    try:
        score = SCORES[name](query_dim=query_dim, key_dim=key_dim, dim=dim, **more)
    except RecipeError:
        query_dim = key_dim
        score = SCORES[name](query_dim=query_dim, key_dim=key_dim, dim=dim, **more)
    for parameter in score.parameters():
        nn.init.normal_(parameter, std=0.5)
    return score, query_dim


class Variant(NamedTuple):
    """One way to look; `WINDOW` is narrow, so that local scopes have something to hide."""

    score: str = DEFAULT.attention.score
    normalizer: str = DEFAULT.attention.normalizer
    scope: str = DEFAULT.attention.scope
    heads: int = 1
    groups: int = 0

    def __str__(self) -> str:
        return "-".join(map(str, self))


# Not the product, which is too long to run: every entry of every table, and each with some of the others.
ATTENTIONS = list(
    dict.fromkeys(
        [
            *(Variant(score=score) for score in SCORES),
            *(Variant(normalizer=normalizer) for normalizer in NORMALIZERS),
            *(Variant(score=score, scope=scope) for score, scope in product(("additive", "dot"), SCOPES)),
            Variant("dot", "sparsemax", "local_m"),
            Variant("general", "entmax15", "local_p"),
            Variant("linear_concat", "sigmoid", "local_p"),
            *(Variant(score, heads=2) for score in ("scaled_dot", "additive")),
            Variant("cosine", "sparsemax", "local_m", 2),
            Variant("concat", "softmax", "local_p", 3),
            Variant("scaled_dot", heads=4, groups=2),
            Variant("general", "entmax15", "local_m", 3, 1),
        ]
    )
)


def every_attention() -> pytest.MarkDecorator:
    """Parametrize over the ways to look."""
    return pytest.mark.parametrize("variant", ATTENTIONS, ids=str)


def make_attention(variant: Variant, query_dim: int = 11, key_dim: int = 13, dim: int = 17) -> tuple[Attention, int]:
    """The attention, its weights spread, and the width of a query."""

    def around(score: Score, query_dim: int) -> Attention:
        function = NORMALIZERS[variant.normalizer].function
        return SCOPES[variant.scope](score, function, query_dim=query_dim, window=WINDOW)

    if variant.heads == 1:
        score, query_dim = make_score(variant.score, query_dim, key_dim, dim)
        attention = around(score, query_dim)
    else:
        attention = MultiHead(
            lambda width: around(make_score(variant.score, width, width, width)[0], width),
            query_dim=query_dim,
            key_dim=key_dim,
            dim=variant.heads * PART,
            heads=variant.heads,
            groups=variant.groups or None,
        )
    for parameter in attention.parameters():
        nn.init.normal_(parameter, std=0.5)
    return attention.eval(), query_dim


def inner(attention: Attention) -> Scope:
    """The scope, also where several heads stand around it."""
    return attention.attention if isinstance(attention, MultiHead) else attention


def sums_to_one(variant: Variant) -> bool:
    """Whether weights sum to one wherever there is anything to see."""
    return NORMALIZERS[variant.normalizer].sums_to_one and SCOPES[variant.scope].keeps_sum


class Stack(NamedTuple):
    """What a Transformer has and a recurrent model has not."""

    positions: str = DEFAULT.positions
    norm: str = DEFAULT.norm
    activation: str = DEFAULT.activation

    def __str__(self) -> str:
        return "-".join(self)


class Case(NamedTuple):
    """One model; `inner` and `bias` are the encoder's, `stack` is of the Transformers in it."""

    order: str = DEFAULT.decoder.order
    cell: str = DEFAULT.decoder.cell
    layers: int = 1
    variant: Variant = Variant()
    start: str = DEFAULT.decoder.start
    inner: int = 0
    bias: bool = True
    encoder: str = "recurrent"
    decoder: str = "recurrent"
    stack: Stack = Stack()
    tied: bool = False  # with one vocabulary for both sides

    def __str__(self) -> str:
        if not self.stacked():
            other = f"-{self.encoder}" if self.encoder != "recurrent" else ""
            return "-".join(map(str, self[:7])) + other + "-tied" * self.tied
        part = "" if self.encoder == self.decoder else f"{self.encoder}-{self.decoder}-{self.order}-{self.cell}-"
        return f"{part}{self.layers}-{self.variant}-{self.stack}" + "-tied" * self.tied

    def stacked(self) -> bool:
        """Whether there is a Transformer in it."""
        return "transformer" in (self.encoder, self.decoder)

    def attends(self) -> bool:
        """Whether its decoder looks at the source."""
        return self.decoder == "transformer" or self.order in ATTENDING


PLAIN = Case()
SCALED = Variant("scaled_dot", heads=2)


def transformer(
    positions: str = DEFAULT.positions, norm: str = "pre", variant: Variant = SCALED, **others: Any
) -> Case:
    """A Transformer of two layers, or with `encoder` or `decoder` half a one."""
    both = {"encoder": "transformer", "decoder": "transformer", "layers": 2}
    stack = Stack(positions, norm, others.pop("activation", "relu"))
    return Case(variant=variant, stack=stack, **both | others)


# Not the product, as above: every entry of every table at least once.
TRANSFORMERS = list(
    dict.fromkeys(
        [
            *(transformer(positions, NORMS[number % 2]) for number, positions in enumerate(POSITIONS)),
            *(transformer(variant=Variant(score, heads=2), layers=1) for score in SCORES),
            *(transformer("rotary", variant=Variant("scaled_dot", normalizer, heads=2)) for normalizer in LEARNED),
            *(transformer("alibi", "post", Variant("scaled_dot", scope=scope, heads=4)) for scope in FORGETTING),
            transformer("relative", "post", Variant("scaled_dot", heads=4, groups=2)),
            transformer("rotary", variant=Variant("scaled_dot", "softmax", "local_m", 4, 1)),
            transformer("relative", variant=Variant("additive", "entmax15", "local_p", 2, 1)),
            transformer("none", "post", Variant("dot"), layers=1),
            *(transformer("learned", activation=activation) for activation in ACTIVATIONS),
            *(transformer("sinusoidal", norm, tied=True, layers=1) for norm in NORMS),
            transformer("alibi", encoder="recurrent", cell="lstm"),
            transformer("relative", encoder="recurrent", tied=True),
            transformer("rotary", decoder="recurrent"),
            transformer("rotary", encoder="gnmt", cell="lstm"),
            transformer("learned", "post", order="luong", decoder="recurrent", tied=True),
            transformer("relative", order="context", cell="lstm", decoder="recurrent", layers=1),
            transformer("alibi", order="none", cell="rnn", decoder="recurrent"),
        ]
    )
)


def recurrent_cases() -> list[Case]:
    """All orders, cells, depths, starts and ways to look, each with some of the others."""
    cases = [Case(order=order, cell=cell) for order, cell in product(ORDERS, CELLS)]
    cases += [Case(order, tuple(CELLS)[number % len(CELLS)], 2) for number, order in enumerate(ORDERS)]
    for number, variant in enumerate(ATTENTIONS):
        cases.append(Case(ATTENDING[number % len(ATTENDING)], variant=variant))
    for scope in SCOPES:
        cases += [Case(order, variant=Variant(scope=scope)) for order in ATTENDING]
    for number, start in enumerate(STARTS):
        cases += [Case("luong_feeding", "lstm", 1 + number % 2, start=start), Case("none", "rnn", start=start)]
    cases.append(Case("luong", "lstm", 2, inner=16))
    cases.append(Case("context", "lstm", inner=16, bias=False))
    cases.append(Case("bahdanau", tied=True))
    deep = product(("gnmt", "gnmt_v2"), (("lstm", "gnmt"), ("gru", "recurrent")))
    cases += [Case(order, cell, 3, encoder=encoder) for order, (cell, encoder) in deep]
    return list(dict.fromkeys(cases))


def every_recurrent_decoder() -> pytest.MarkDecorator:
    """Parametrize over the recurrent ones."""
    return pytest.mark.parametrize("case", recurrent_cases(), ids=str)


def every_transformer() -> pytest.MarkDecorator:
    """Parametrize over those with a Transformer in them."""
    return pytest.mark.parametrize("case", TRANSFORMERS, ids=str)


def every_decoder() -> pytest.MarkDecorator:
    """Parametrize over all of them."""
    return pytest.mark.parametrize("case", recurrent_cases() + TRANSFORMERS, ids=str)


# One of each kind, for laws that ask no more.
KINDS = [*map(Case, ORDERS), *(transformer(positions) for positions in POSITIONS), transformer("rotary", "post")]


def every_kind() -> pytest.MarkDecorator:
    """Parametrize over the orders, and Transformers with each of the positions."""
    return pytest.mark.parametrize("case", KINDS, ids=str)


def make_recipe(case: Case, *, bidirectional: bool = True, dropout: float = 0.0) -> recipes.Model:
    """The recipe of a case; no two sizes are equal that need not be."""
    score, normalizer, scope, heads, groups = case.variant
    widths = {"encoder": 14, "decoder": 12}
    for side, share in (("encoder", 10), ("decoder", PART)):
        if getattr(case, side) == "transformer":
            widths[side] = heads * share
    return recipes.Model(
        embedding=widths["decoder"] if case.tied else 10,
        tied=case.tied,
        norm=case.stack.norm,
        activation=case.stack.activation,
        positions=case.stack.positions,
        longest=LONGEST,
        encoder=recipes.Encoder(
            kind=case.encoder,
            cell=case.cell,
            dim=widths["encoder"],
            layers=case.layers,
            bidirectional=bidirectional,
            bias=case.bias,
            inner_dim=23 if case.encoder == "transformer" else case.inner,
            dropout=dropout,
        ),
        attention=recipes.Attention(score, PART * heads if heads > 1 else 13, normalizer, scope, WINDOW, heads, groups),
        decoder=recipes.Decoder(
            kind=case.decoder,
            order=case.order,
            start=case.start,
            cell=case.cell,
            dim=widths["decoder"],
            layers=case.layers,
            inner_dim=17 if case.decoder == "transformer" else 0,
            dropout=dropout,
        ),
    )


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
    recipe = make_recipe(case, bidirectional=bidirectional, dropout=dropout)
    sizes = {"source_size": vocabulary if case.tied else 9, "target_size": vocabulary, "shared": case.tied}
    try:
        model = build(recipe, **sizes)
    except RecipeError:  # some need both sides to be of one width
        one = recipe.encoder.dim
        recipe = replace(recipe, embedding=one if case.tied else 10, decoder=replace(recipe.decoder, dim=one))
        model = build(recipe, **sizes)
    if scale is not None:
        spread(model, scale)
    return model.to(dtype).eval()


def spread(model: nn.Module, scale: float) -> None:
    """Draw all weights anew; those that norms multiply with stay about one, or every layer would be noise."""
    for module in model.modules():
        for name, parameter in module.named_parameters(recurse=False):
            about = 1.0 if isinstance(module, nn.LayerNorm) and name == "weight" else 0.0
            nn.init.normal_(parameter, about, scale)


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

    value.map_tensors(keep)
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
