"""Small models, attentions and batches for the laws; all sizes are distinct, so that swapped axes fail."""

from dataclasses import replace
from itertools import cycle, product
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
WINDOW, HEAD_DIM = 2, 6  # the window of local scopes, the width of one head
LONGEST = 29  # the number of learned positions
SCOPES_WITHOUT_PAST = [name for name, scope in SCOPES.items() if not scope.uses_past]
DIFFERENTIABLE = [name for name, normalizer in NORMALIZERS.items() if normalizer.differentiable]
ATTENDING = [name for name, order in ORDERS.items() if order.attends()]  # the orders with attention
DEFAULT = recipes.Model()


def make_batch(sources: list[list[int]], targets: list[list[int]]) -> Batch:
    """A batch of these pairs, with END after sources and BEGIN and END around targets."""
    source = pad([[*ids, END] for ids in sources])
    return Batch(source, pad([[BEGIN, *ids, END] for ids in targets]), torch.arange(len(sources)))


def make_score(name: str, query_dim: int = 11, key_dim: int = 13, dim: int = 17) -> tuple[Score, int]:
    """A score, with distinct widths if it allows them, and the width of a query."""
    options = {"longest": LONGEST} if name == "location" else {}
    try:
        score = SCORES[name](query_dim=query_dim, key_dim=key_dim, dim=dim, **options)
    except RecipeError:
        query_dim = key_dim
        score = SCORES[name](query_dim=query_dim, key_dim=key_dim, dim=dim, **options)
    for parameter in score.parameters():
        nn.init.normal_(parameter, std=0.5)
    return score, query_dim


class Variant(NamedTuple):
    """One variant of attention: its settings in a recipe. `WINDOW` is small, so that local scopes hide some keys."""

    score: str = DEFAULT.attention.score
    normalizer: str = DEFAULT.attention.normalizer
    scope: str = DEFAULT.attention.scope
    heads: int = 1
    groups: int = 0

    def __str__(self) -> str:
        return "-".join(map(str, self))


# The full product would run too long: every entry of every table is here, together with some of the others.
VARIANTS = list(
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


def every_variant() -> pytest.MarkDecorator:
    """Parametrize over the variants of attention."""
    return pytest.mark.parametrize("variant", VARIANTS, ids=str)


def make_attention(variant: Variant, query_dim: int = 11, key_dim: int = 13, dim: int = 17) -> tuple[Attention, int]:
    """The attention of a variant with random parameters, and the width of a query."""

    def make_scope(score: Score, query_dim: int) -> Attention:
        function = NORMALIZERS[variant.normalizer].function
        return SCOPES[variant.scope](score, function, query_dim=query_dim, window=WINDOW)

    if variant.heads == 1:
        score, query_dim = make_score(variant.score, query_dim, key_dim, dim)
        attention = make_scope(score, query_dim)
    else:
        attention = MultiHead(
            lambda width: make_scope(make_score(variant.score, width, width, width)[0], width),
            query_dim=query_dim,
            key_dim=key_dim,
            dim=variant.heads * HEAD_DIM,
            heads=variant.heads,
            groups=variant.groups or None,
        )
    for parameter in attention.parameters():
        nn.init.normal_(parameter, std=0.5)
    return attention.eval(), query_dim


def scope_of(attention: Attention) -> Scope:
    """The scope of an attention, also if it has several heads."""
    return attention.attention if isinstance(attention, MultiHead) else attention


def sums_to_one(variant: Variant) -> bool:
    """Whether weights sum to one for each query that sees at least one key."""
    return NORMALIZERS[variant.normalizer].sums_to_one and SCOPES[variant.scope].keeps_sum


class Stack(NamedTuple):
    """The settings that only a Transformer has."""

    positions: str = DEFAULT.positions
    norm: str = DEFAULT.norm
    activation: str = DEFAULT.activation
    norm_kind: str = DEFAULT.norm_kind
    embedding_norm: bool = DEFAULT.embedding_norm
    embedding_scaled: bool = DEFAULT.embedding_scaled

    def __str__(self) -> str:
        embedding = "-normed" * self.embedding_norm + "-unscaled" * (not self.embedding_scaled)
        return "-".join(self[:3]) + f"-{self.norm_kind}" * (self.norm_kind != DEFAULT.norm_kind) + embedding


class Case(NamedTuple):
    """The settings of one model; `inner_dim` and `bias` are the encoder's, `stack` is for its Transformers."""

    order: str = DEFAULT.decoder.order
    cell: str = DEFAULT.decoder.cell
    layers: int = 1
    variant: Variant = Variant()
    start: str = DEFAULT.decoder.start
    inner_dim: int = 0
    bias: bool = True
    encoder: str = "recurrent"
    decoder: str = "recurrent"
    stack: Stack = Stack()
    tied: bool = False  # also gives both sides one vocabulary
    gated: bool = False  # model.decoder.gated_context

    def __str__(self) -> str:
        if not self.has_transformer():
            encoder = f"-{self.encoder}" if self.encoder != "recurrent" else ""
            return "-".join(map(str, self[:7])) + encoder + "-tied" * self.tied + "-gated" * self.gated
        sides = "" if self.encoder == self.decoder else f"{self.encoder}-{self.decoder}-{self.order}-{self.cell}-"
        return f"{sides}{self.layers}-{self.variant}-{self.stack}" + "-tied" * self.tied

    def has_transformer(self) -> bool:
        """Whether its encoder or decoder is a Transformer."""
        return "transformer" in (self.encoder, self.decoder)

    def attends(self) -> bool:
        """Whether its decoder attends to the source."""
        return self.decoder == "transformer" or self.order in ATTENDING


DEFAULT_CASE = Case()
SCALED = Variant("scaled_dot", heads=2)


def transformer(
    positions: str = DEFAULT.positions, norm: str = "pre", variant: Variant = SCALED, **fields: Any
) -> Case:
    """A Transformer of two layers; `encoder` or `decoder` replaces one side by another kind."""
    both = {"encoder": "transformer", "decoder": "transformer", "layers": 2}
    stack = Stack(positions, norm, **{name: fields.pop(name) for name in Stack._fields[2:] if name in fields})
    return Case(variant=variant, stack=stack, **both | fields)


# Not the full product, as above: every entry of every table at least once.
TRANSFORMERS = list(
    dict.fromkeys(
        [
            *(transformer(positions, NORMS[number % 2]) for number, positions in enumerate(POSITIONS)),
            *(transformer(variant=Variant(score, heads=2), layers=1) for score in SCORES),
            *(
                transformer("rotary", variant=Variant("scaled_dot", normalizer, heads=2))
                for normalizer in DIFFERENTIABLE
            ),
            *(
                transformer("alibi", "post", Variant("scaled_dot", scope=scope, heads=4))
                for scope in SCOPES_WITHOUT_PAST
            ),
            transformer("relative", "post", Variant("scaled_dot", heads=4, groups=2)),
            transformer("rotary", variant=Variant("scaled_dot", "softmax", "local_m", 4, 1)),
            transformer("relative", variant=Variant("additive", "entmax15", "local_p", 2, 1)),
            transformer("none", "post", Variant("dot"), layers=1),
            *(transformer("learned", activation=activation) for activation in ACTIVATIONS),
            *(transformer("sinusoidal", norm, tied=True, layers=1) for norm in NORMS),
            *(transformer("relative", norm, Variant("dot", heads=2), norm_kind="rms", layers=1) for norm in NORMS),
            transformer("learned", "post", embedding_norm=True, embedding_scaled=False, layers=1),
            transformer("alibi", encoder="recurrent", cell="lstm"),
            transformer("relative", encoder="recurrent", tied=True),
            transformer("rotary", decoder="recurrent"),
            transformer("rotary", encoder="gnmt", cell="lstm"),
            transformer("sinusoidal", encoder="none"),
            transformer("learned", "post", order="luong", decoder="recurrent", tied=True),
            transformer("relative", order="context", cell="lstm", decoder="recurrent", layers=1),
            transformer("alibi", order="none", cell="rnn", decoder="recurrent"),
        ]
    )
)


def recurrent_cases() -> list[Case]:
    """All orders, cells, depths, starts and variants of attention, each with some of the others."""
    cases = [Case(order=order, cell=cell) for order, cell in product(ORDERS, CELLS)]
    cases += [Case(order, tuple(CELLS)[number % len(CELLS)], 2) for number, order in enumerate(ORDERS)]
    for number, variant in enumerate(VARIANTS):
        cases.append(Case(ATTENDING[number % len(ATTENDING)], variant=variant))
    for scope in SCOPES:
        cases += [Case(order, variant=Variant(scope=scope)) for order in ATTENDING]
    for number, start in enumerate(STARTS):
        cases += [Case("luong_feeding", "lstm", 1 + number % 2, start=start), Case("none", "rnn", start=start)]
    cases.append(Case("luong", "lstm", 2, inner_dim=16))
    cases.append(Case("context", "lstm", inner_dim=16, bias=False))
    cases.append(Case("bahdanau", tied=True))
    deep = product(("gnmt", "gnmt_v2"), (("lstm", "gnmt"), ("gru", "recurrent")))
    cases += [Case(order, cell, 3, encoder=encoder) for order, (cell, encoder) in deep]
    cases += [Case("bahdanau", encoder="none"), Case("luong", "lstm", 2, encoder="none")]
    cases += [Case(order, cell, gated=True) for order, cell in zip(ATTENDING, cycle(("lstm", "gru")), strict=False)]
    cases.append(Case("bahdanau", "lstm", 2, Variant("dot", "sparsemax"), encoder="none", gated=True))
    return list(dict.fromkeys(cases))


def every_recurrent_decoder() -> pytest.MarkDecorator:
    """Parametrize over all models without a Transformer."""
    return pytest.mark.parametrize("case", recurrent_cases(), ids=str)


def every_transformer() -> pytest.MarkDecorator:
    """Parametrize over all models with a Transformer."""
    return pytest.mark.parametrize("case", TRANSFORMERS, ids=str)


def every_decoder() -> pytest.MarkDecorator:
    """Parametrize over all models, recurrent and Transformers."""
    return pytest.mark.parametrize("case", recurrent_cases() + TRANSFORMERS, ids=str)


# One of each kind, for laws that need no more.
KINDS = [
    *map(Case, ORDERS),
    Case(gated=True),
    *(transformer(positions) for positions in POSITIONS),
    transformer("rotary", "post"),
]


def every_kind() -> pytest.MarkDecorator:
    """Parametrize over all orders, and Transformers with all kinds of positions."""
    return pytest.mark.parametrize("case", KINDS, ids=str)


def make_recipe(case: Case, *, bidirectional: bool = True, dropout: float = 0.0) -> recipes.Model:
    """The recipe of a case; sizes are distinct unless they must be equal."""
    score, normalizer, scope, heads, groups = case.variant
    widths = {"encoder": 14, "decoder": 12}
    for side, head_dim in (("encoder", 10), ("decoder", HEAD_DIM)):
        if getattr(case, side) == "transformer":
            widths[side] = heads * head_dim
    return recipes.Model(
        embedding=widths["decoder"] if case.tied else 10,
        tied=case.tied,
        norm=case.stack.norm,
        norm_kind=case.stack.norm_kind,
        embedding_norm=case.stack.embedding_norm,
        embedding_scaled=case.stack.embedding_scaled,
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
            inner_dim=23 if case.encoder == "transformer" else case.inner_dim,
            dropout=dropout,
        ),
        attention=recipes.Attention(
            score, HEAD_DIM * heads if heads > 1 else 13, normalizer, scope, WINDOW, heads, groups
        ),
        decoder=recipes.Decoder(
            kind=case.decoder,
            order=case.order,
            start=case.start,
            cell=case.cell,
            dim=widths["decoder"],
            layers=case.layers,
            inner_dim=17 if case.decoder == "transformer" else 0,
            dropout=dropout,
            gated_context=case.gated,
        ),
    )


def make_model(
    case: Case = DEFAULT_CASE,
    *,
    bidirectional: bool = True,
    dropout: float = 0.0,
    vocabulary: int = 11,
    scale: float | None = 0.4,
    dtype: torch.dtype = torch.float64,
) -> Seq2Seq:
    """A model in eval mode; weights drawn with the deviation `scale` make its predictions varied and peaked."""
    recipe = make_recipe(case, bidirectional=bidirectional, dropout=dropout)
    sizes = {"source_size": vocabulary if case.tied else 9, "target_size": vocabulary, "shared": case.tied}
    try:
        model = build(recipe, **sizes)
    except RecipeError:  # some models need encoder and decoder of one width
        dim = recipe.encoder.dim
        recipe = replace(recipe, embedding=dim if case.tied else 10, decoder=replace(recipe.decoder, dim=dim))
        model = build(recipe, **sizes)
    if scale is not None:
        draw_weights(model, scale)
    return model.to(dtype).eval()


def draw_weights(model: nn.Module, scale: float) -> None:
    """Draw all parameters; weights of layer norms have mean one, otherwise every layer would put out noise."""
    for module in model.modules():
        for name, parameter in module.named_parameters(recurse=False):
            mean = 1.0 if isinstance(module, nn.LayerNorm | nn.RMSNorm) and name == "weight" else 0.0
            nn.init.normal_(parameter, mean, scale)


def make_sources(*lengths: int, size: int = 9) -> Padded:
    """Random padded sources; a length counts END too."""
    return pad(
        [[*torch.randint(len(SPECIALS), size, (length - 1,)).tolist(), END] for length in lengths],
    )


def leaves(value: BatchFirst) -> list[Tensor]:
    """All tensors in a state, memory or batch, nested ones included."""
    tensors: list[Tensor] = []

    def append(tensor: Tensor) -> Tensor:
        tensors.append(tensor)
        return tensor

    value.map_tensors(append)
    return tensors


def gradients(module: nn.Module) -> dict[str, Tensor | None]:
    """Copies of the gradients of all parameters; None for a parameter without one."""
    parameters = dict(module.named_parameters())
    return {name: None if weight.grad is None else weight.grad.clone() for name, weight in parameters.items()}


def near(actual: Tensor, expected: Tensor, tolerance: float = 1e-10) -> None:
    """Assert that two tensors are equal up to an absolute tolerance."""
    torch.testing.assert_close(actual, expected, rtol=0.0, atol=tolerance)


def same(actual: Tensor | None, expected: Tensor | None) -> None:
    """Assert that two tensors are equal bit for bit, or both None."""
    if actual is None or expected is None:
        assert actual is expected
    else:
        torch.testing.assert_close(actual, expected, rtol=0.0, atol=0.0)
