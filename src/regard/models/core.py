"""The parts of a model, put together as a recipe says."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial

from torch import Tensor, nn

from regard.attention import NORMALIZERS, SCOPES, SCORES, Attention, MultiHead, Score
from regard.attention.heads import Make
from regard.attention.scopes import Scope
from regard.attention.scores import Location
from regard.decoders import DECODERS, ORDERS, STARTS, AnyDecoder, TransformerDecoder
from regard.encoders import ENCODERS, Encoder, GnmtEncoder, RecurrentEncoder, TransformerEncoder
from regard.errors import RecipeError, pick
from regard.recipe import Decoder as DecoderSettings
from regard.recipe import Encoder as EncoderSettings
from regard.recipe import Model
from regard.recurrence import CELLS, Recurrence
from regard.transformer import ACTIVATIONS, INITS, NORMS, SMALL, Shape
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
    kind = pick(ENCODERS, settings.kind, "encoder")
    words = words or embedding(recipe, size, settings.kind, settings.dim)
    if kind is TransformerEncoder:
        return TransformerEncoder(words, _shape(recipe, settings))
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
    scope = "global" if pick(SCOPES, settings.scope, "scope").uses_past else settings.scope
    normalizer = "softmax" if settings.normalizer == "hard" else settings.normalizer
    return replace(recipe, attention=replace(settings, scope=scope, normalizer=normalizer))


def decoder(recipe: Model, size: int, reader: Encoder | None) -> AnyDecoder:
    """The decoder of a recipe for a vocabulary of that size; without a reader it is a language model."""
    settings = recipe.decoder
    kind = pick(DECODERS, settings.kind, "decoder")
    words = embedding(recipe, size, settings.kind, settings.dim)
    if kind is TransformerDecoder:
        memory_dim = None if reader is None else reader.dim
        return TransformerDecoder(words, _shape(recipe, settings), memory_dim=memory_dim, tied=recipe.tied)
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
        attention(recipe, query_dim=settings.dim, key_dim=read.dim) if order.looks() else None,
        reader=read,
        cell=pick(CELLS, settings.cell, "cell"),
        dim=settings.dim,
        layers=settings.layers,
        dropout=settings.dropout,
        start=pick(STARTS, settings.start, "start"),
        tied=recipe.tied,
        copies=settings.copies,
    )


def _shape(recipe: Model, settings: EncoderSettings | DecoderSettings) -> Shape:
    pick({norm: norm for norm in NORMS}, recipe.norm, "norm")
    pick(ACTIVATIONS, recipe.activation, "activation")
    pick(INITS, recipe.init, "init")
    if recipe.attention.normalizer == "hard":
        raise RecipeError("hard attention learns by what it earns, step by step: choose model.decoder.kind = recurrent")
    if pick(SCOPES, recipe.attention.scope, "scope").uses_past:
        raise RecipeError(
            f"the scope {recipe.attention.scope!r} remembers its looks, and a Transformer's have no order; "
            "choose model.decoder.kind = recurrent, or another scope"
        )
    if recipe.positions == "rotary" and settings.dim // recipe.attention.heads % 2:
        raise RecipeError("rotary positions turn pairs of numbers, so the width of a head is even")
    return Shape(
        make=_make(recipe, fused=True),
        dim=settings.dim,
        layers=settings.layers,
        heads=recipe.attention.heads,
        groups=recipe.attention.groups,
        inner_dim=settings.inner_dim or 4 * settings.dim,
        dropout=settings.dropout,
        inner_dropout=settings.inner_dropout,
        norm=recipe.norm,
        activation=recipe.activation,
        positions=recipe.positions,
        longest=recipe.longest,
        init=recipe.init,
    )


def attention(recipe: Model, *, query_dim: int, key_dim: int) -> Attention:
    """A look as a recipe says, from queries to states of these widths."""
    settings = recipe.attention
    remembers = pick(SCOPES, settings.scope, "scope").uses_past
    if remembers and settings.heads > 1:
        raise RecipeError(
            f"the scope {settings.scope!r} remembers one look at a time: choose model.attention.heads = 1"
        )
    if settings.normalizer == "hard" and (settings.heads > 1 or not SCOPES[settings.scope].keeps_sum):
        raise RecipeError("hard attention is drawn from one distribution: it needs one head, and no scope local_p")
    if settings.heads == 1:
        return _scope(recipe, query_dim, key_dim, settings.dim, fused=False)
    return MultiHead(
        _make(recipe, fused=False),
        query_dim=query_dim,
        key_dim=key_dim,
        dim=settings.dim,
        heads=settings.heads,
        groups=settings.groups or None,
    )


def _make(recipe: Model, *, fused: bool) -> Make:
    return partial(_of_width, recipe, fused)  # and no lambda, which does not pickle


def _of_width(recipe: Model, fused: bool, width: int) -> Scope:
    return _scope(recipe, width, width, width, fused=fused)


def _scope(recipe: Model, query_dim: int, key_dim: int, dim: int, *, fused: bool) -> Scope:
    settings = recipe.attention
    score = _score(recipe, query_dim, key_dim, dim)
    normalizer = pick(NORMALIZERS, settings.normalizer, "normalizer")
    scope = pick(SCOPES, settings.scope, "scope")
    return scope(
        score,
        normalizer.function,
        query_dim=query_dim,
        window=settings.window,
        fused=fused,
        dropout=settings.dropout,
    )


def _score(recipe: Model, query_dim: int, key_dim: int, dim: int) -> Score:
    kind = pick(SCORES, recipe.attention.score, "score")
    if kind is Location:
        return Location(query_dim=query_dim, key_dim=key_dim, longest=recipe.longest)
    return kind(query_dim=query_dim, key_dim=key_dim, dim=dim)


def weights(model: nn.Module) -> dict[str, Tensor]:
    """All that a model has learned, each tensor once though two parts may share it."""
    own = {name for name, _ in [*model.named_parameters(), *model.named_buffers()]}
    return {name: each.contiguous() for name, each in model.state_dict().items() if name in own}


def load_weights(model: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Take up what `weights` gave; RuntimeError where it does not fit."""
    shared = model.state_dict().keys() - weights(model).keys()
    missing, unexpected = model.load_state_dict(dict(tensors), strict=False)
    if unexpected or set(missing) - shared:
        raise RuntimeError(f"missing {sorted(set(missing) - shared)}, unexpected {sorted(unexpected)}")
