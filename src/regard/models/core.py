"""The parts of a model, put together as a recipe says."""

from dataclasses import dataclass, replace
from functools import partial

from torch import nn

from regard import plugins
from regard.attention import NORMALIZERS, SCOPES, SCORES, Attention, MultiHead, Score
from regard.attention.heads import Make
from regard.attention.normalizers import Entry as NormalizerEntry
from regard.attention.scopes import Scope
from regard.attention.scores import Location
from regard.decoders import DECODERS, ORDERS, STARTS, AnyDecoder, TransformerDecoder
from regard.encoders import ENCODERS, Encoder, GnmtEncoder, RecurrentEncoder, TransformerEncoder
from regard.errors import RecipeError, pick
from regard.layers.recurrence import CELLS, Recurrence
from regard.layers.transformer import ACTIVATIONS, INITS, NORMS, SMALL, Shape, Site
from regard.recipe import Attention as AttentionSettings
from regard.recipe import Decoder as DecoderSettings
from regard.recipe import Encoder as EncoderSettings
from regard.recipe import Model
from regard.types import PAD


@dataclass(frozen=True)
class NoReader:
    """What stands in for the encoder of a language model: see `Memory.none`."""

    dim: int = 1
    layers: int = 1
    cell_dim: int | None = None


def embedding(recipe: Model, count: int, kind: str, dim: int) -> nn.Embedding:
    """The vectors of a vocabulary; a Transformer's are as wide as itself, and small before they are scaled.

    Where words are also predicted with them they begin small too, or the first predictions would be far too sure.
    """
    width = dim if kind == "transformer" else recipe.embedding
    table = nn.Embedding(count, width, padding_idx=PAD)
    if kind == "transformer" or recipe.tied:
        size = SMALL if recipe.init == "small" and kind == "transformer" else 1.0
        nn.init.normal_(table.weight, std=size * width**-0.5)
        with_zero = table.weight.detach()
        with_zero[PAD] = 0.0
    return table


def encoder(recipe: Model, size: int, words: nn.Embedding | None = None) -> Encoder:
    """The encoder of a recipe for a vocabulary of that size, with vectors of its own or those given."""
    settings = recipe.encoder
    kind = plugins.pick(ENCODERS, settings.kind, "encoder", Encoder)
    words = words or embedding(recipe, size, settings.kind, settings.dim)
    if kind is TransformerEncoder:
        return TransformerEncoder(words, _shape(recipe, settings, settings.self_attention.of(recipe.attention)))
    if kind not in (GnmtEncoder, RecurrentEncoder):
        return kind.from_recipe(recipe, words)
    cell = pick(CELLS, settings.cell, "cell")
    both = settings.bidirectional or kind is GnmtEncoder
    if both and settings.dim % 2:
        raise RecipeError(f"model.encoder.dim is split between two directions, so it is even, not {settings.dim}")
    if kind is GnmtEncoder:
        return GnmtEncoder(
            words, cell, dim=settings.dim, layers=settings.layers, dropout=settings.dropout, bias=settings.bias
        )
    recurrence = Recurrence(
        cell,
        input_dim=words.embedding_dim,
        dim=settings.dim,
        layers=settings.layers,
        dropout=settings.dropout,
        bidirectional=settings.bidirectional,
        bias=settings.bias,
        inner_dim=settings.inner_dim or None,
    )
    return RecurrentEncoder(words, recurrence, dropout=settings.dropout)


def beside_decoder(recipe: Model) -> Model:
    """The recipe as the encoder reads it: what only a recurrent decoder's look can be is left to the decoder.

    A Transformer's looks at itself have no order that a scope with a past could follow, and are never drawn (hard).
    """
    if recipe.decoder.kind != "recurrent":
        return recipe
    settings = recipe.attention
    scope = "global" if _scope_class(settings).uses_past else settings.scope
    normalizer = "softmax" if settings.normalizer == "hard" else settings.normalizer
    return replace(recipe, attention=replace(settings, scope=scope, normalizer=normalizer))


def decoder(recipe: Model, size: int, reader: Encoder | None) -> AnyDecoder:
    """The decoder of a recipe for a vocabulary of that size; without a reader it is a language model."""
    settings = recipe.decoder
    kind = pick(DECODERS, settings.kind, "decoder")
    words = embedding(recipe, size, settings.kind, settings.dim)
    cross = settings.cross_attention.of(recipe.attention)
    if kind is TransformerDecoder:
        memory_dim = None if reader is None else reader.dim
        own = settings.self_attention.of(recipe.attention)
        shape = _shape(recipe, settings, own, None if reader is None else cross)
        return TransformerDecoder(words, shape, memory_dim=memory_dim, tied=recipe.tied)
    if recipe.tied and words.embedding_dim != settings.dim:
        raise RecipeError(
            f"model.tied needs words as wide as the decoder, but model.embedding is {words.embedding_dim} "
            f"and model.decoder.dim {settings.dim}"
        )
    order = pick(ORDERS, settings.order, "order")
    if reader is None and order.needs_source():
        raise RecipeError(
            f"a language model has no source to look at; choose model.decoder.order = none, not {settings.order}"
        )
    read = reader or NoReader()
    return order(
        words,
        attention(cross, query_dim=settings.dim, key_dim=read.dim, longest=recipe.longest) if order.looks() else None,
        reader=read,
        cell=pick(CELLS, settings.cell, "cell"),
        dim=settings.dim,
        layers=settings.layers,
        dropout=settings.dropout,
        start=pick(STARTS, settings.start, "start"),
        tied=recipe.tied,
        copies=settings.copies,
    )


def _shape(
    recipe: Model,
    settings: EncoderSettings | DecoderSettings,
    own: AttentionSettings,
    cross: AttentionSettings | None = None,
) -> Shape:
    """The shape of a Transformer that attends to itself so, and so to a memory if there is one."""
    pick({norm: norm for norm in NORMS}, recipe.norm, "norm")
    pick(ACTIVATIONS, recipe.activation, "activation")
    pick(INITS, recipe.init, "init")
    if recipe.positions == "rotary" and settings.dim // own.heads % 2:
        raise RecipeError("rotary positions turn pairs of numbers, so the width of a head is even")
    return Shape(
        attention=_site(own, recipe.longest),
        cross=_site(cross or own, recipe.longest),
        dim=settings.dim,
        layers=settings.layers,
        inner_dim=settings.inner_dim or 4 * settings.dim,
        dropout=settings.dropout,
        inner_dropout=settings.inner_dropout,
        norm=recipe.norm,
        activation=recipe.activation,
        positions=recipe.positions,
        longest=recipe.longest,
        init=recipe.init,
    )


def _site(settings: AttentionSettings, longest: int) -> Site:
    """The attention of one site of a Transformer's layers."""
    if settings.normalizer == "hard":
        raise RecipeError("hard attention is trained with REINFORCE and needs model.decoder.kind = recurrent")
    if _scope_class(settings).uses_past:
        raise RecipeError(
            f"the scope {settings.scope!r} needs the weights of the steps before, and a Transformer's run at once; "
            "choose model.decoder.kind = recurrent, or another scope"
        )
    return Site(_make(settings, longest, fused=True), settings.heads, settings.groups)


def attention(settings: AttentionSettings, *, query_dim: int, key_dim: int, longest: int) -> Attention:
    """The attention of a recipe, from queries to states of these widths; `longest` is for the score `location`."""
    kind = _scope_class(settings)
    if kind.uses_past and settings.heads > 1:
        raise RecipeError(
            f"the scope {settings.scope!r} remembers one look at a time: choose model.attention.heads = 1"
        )
    if settings.normalizer == "hard" and (settings.heads > 1 or not kind.keeps_sum):
        raise RecipeError("hard attention is drawn from one distribution: it needs one head, and no scope local_p")
    if settings.heads == 1:
        return _scope(settings, longest, query_dim, key_dim, settings.dim, fused=False)
    return MultiHead(
        _make(settings, longest, fused=False),
        query_dim=query_dim,
        key_dim=key_dim,
        dim=settings.dim,
        heads=settings.heads,
        groups=settings.groups or None,
    )


def _scope_class(settings: AttentionSettings) -> type[Scope]:
    return plugins.pick(SCOPES, settings.scope, "scope", Scope)


def _make(settings: AttentionSettings, longest: int, *, fused: bool) -> Make:
    return partial(_of_width, settings, longest, fused)  # and no lambda, which does not pickle


def _of_width(settings: AttentionSettings, longest: int, fused: bool, width: int) -> Scope:
    return _scope(settings, longest, width, width, width, fused=fused)


def _scope(settings: AttentionSettings, longest: int, query_dim: int, key_dim: int, dim: int, *, fused: bool) -> Scope:
    kind = plugins.pick(SCORES, settings.score, "score", Score)
    more = {"longest": longest} if kind is Location else {"dim": dim}
    return _scope_class(settings)(
        kind(query_dim=query_dim, key_dim=key_dim, **more),
        plugins.pick(NORMALIZERS, settings.normalizer, "normalizer", NormalizerEntry).function,
        query_dim=query_dim,
        window=settings.window,
        fused=fused,
        dropout=settings.dropout,
    )
