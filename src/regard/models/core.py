"""Builds encoders, decoders and attentions from the settings of a recipe."""

from dataclasses import dataclass, replace
from functools import partial

from regard import plugins
from regard.attention import NORMALIZERS, SCOPES, SCORES, Attention, MultiHead, Score
from regard.attention.normalizers import Entry as NormalizerEntry
from regard.attention.scopes import Scope
from regard.attention.scores import Location
from regard.decoders import DECODERS, ORDERS, STARTS, AnyDecoder, TransformerDecoder
from regard.encoders import ENCODERS, DirectEncoder, Encoder, GnmtEncoder, RecurrentEncoder, TransformerEncoder
from regard.errors import RecipeError, pick
from regard.layers.recurrence import CELLS, Recurrence
from regard.layers.transformer import NORMS, Shape, Site
from regard.recipe import Attention as AttentionSettings
from regard.recipe import Decoder as DecoderSettings
from regard.recipe import Encoder as EncoderSettings
from regard.recipe import Model
from regard.sources import Front, token_embedding

GATED = "model.decoder.gated_context needs a recurrent decoder whose order attends to the source;"


@dataclass
class NoEncoder:
    """Stands for the encoder of a language model, which has none: the sizes (`Layered`) of `Memory.none`."""

    dim: int = 1
    layers: int = 1
    cell_dim: int | None = None


def text_encoder(recipe: Model, size: int) -> Encoder:
    """Build the encoder of a recipe for text, with a vocabulary of `size` tokens."""
    return encoder(recipe, token_embedding(recipe, size, recipe.encoder.kind, recipe.encoder.dim))


def encoder(recipe: Model, front: Front) -> Encoder:
    """Build the encoder of a recipe for any source; `front` turns source batches into vectors."""
    settings = recipe.encoder
    kind = plugins.pick(ENCODERS, settings.kind, "encoder", Encoder)
    if kind is TransformerEncoder:
        if front.width != settings.dim:
            raise RecipeError(
                f"the source gives vectors of width {front.width}, but a Transformer reads model.encoder.dim = "
                f"{settings.dim}; choose the same width"
            )
        return TransformerEncoder(front, stack_shape(recipe, settings, None))
    if kind is DirectEncoder:
        return DirectEncoder(front, dim=settings.dim, dropout=settings.dropout)
    if kind not in (GnmtEncoder, RecurrentEncoder):
        return kind.from_recipe(recipe, front)
    cell = pick(CELLS, settings.cell, "cell")
    has_two_directions = settings.bidirectional or kind is GnmtEncoder
    if has_two_directions and settings.dim % 2:
        raise RecipeError(f"model.encoder.dim is split between two directions, so it must be even, not {settings.dim}")
    if kind is GnmtEncoder:
        return GnmtEncoder(
            front, cell, dim=settings.dim, layers=settings.layers, dropout=settings.dropout, bias=settings.bias
        )
    recurrence = Recurrence(
        cell,
        input_dim=front.width,
        dim=settings.dim,
        layers=settings.layers,
        dropout=settings.dropout,
        bidirectional=settings.bidirectional,
        bias=settings.bias,
        inner_dim=settings.inner_dim or None,
    )
    return RecurrentEncoder(front, recurrence, dropout=settings.dropout)


def beside_decoder(recipe: Model) -> Model:
    """The recipe for an encoder whose decoder may be recurrent, without attention settings that an encoder cannot have.

    Scopes that use past weights and the normaliser `hard` work only in a recurrent decoder, step by step. Beside such a
    decoder, the encoder's self-attention gets `global` and `softmax` in their place.
    """
    if recipe.decoder.kind != "recurrent":
        return recipe
    settings = recipe.attention
    scope = "global" if _scope_class(settings).uses_past else settings.scope
    normalizer = "softmax" if settings.normalizer == "hard" else settings.normalizer
    return replace(recipe, attention=replace(settings, scope=scope, normalizer=normalizer))


def decoder(recipe: Model, size: int, encoder: Encoder | None) -> AnyDecoder:
    """Build the decoder of a recipe for a vocabulary of `size` tokens.

    `encoder` is the encoder whose memory it attends to; None for a language model.
    """
    settings = recipe.decoder
    kind = pick(DECODERS, settings.kind, "decoder")
    words = token_embedding(recipe, size, settings.kind, settings.dim)
    cross = settings.cross_attention.of(recipe.attention)
    if kind is TransformerDecoder:
        if settings.gated_context:
            raise RecipeError(f"{GATED} a Transformer has no such context; leave it out")
        if settings.linear_readout:
            raise RecipeError("model.decoder.linear_readout needs a recurrent decoder; a Transformer has no readout")
        shape = stack_shape(recipe, settings, cross if encoder else None)
        return TransformerDecoder(words, shape, memory_dim=encoder.dim if encoder else None, tied=recipe.tied)
    if recipe.tied and words.embedding_dim != settings.dim:
        raise RecipeError(
            f"model.tied needs words as wide as the decoder, but model.embedding is {words.embedding_dim} "
            f"and model.decoder.dim {settings.dim}"
        )
    order = pick(ORDERS, settings.order, "order")
    if encoder is None and order.needs_source():
        raise RecipeError(
            f"a language model has no source to attend to; choose model.decoder.order = none, not {settings.order}"
        )
    if settings.gated_context and not order.attends():
        raise RecipeError(f"{GATED} {settings.order!r} does not; choose another order, or leave it out")
    sizes = encoder or NoEncoder()
    return order(
        words,
        attention(cross, query_dim=settings.dim, key_dim=sizes.dim, longest=recipe.longest)
        if order.attends()
        else None,
        encoder=sizes,
        cell=pick(CELLS, settings.cell, "cell"),
        dim=settings.dim,
        layers=settings.layers,
        dropout=settings.dropout,
        start=pick(STARTS, settings.start, "start"),
        tied=recipe.tied,
        copies=settings.copies,
        gated_context=settings.gated_context,
        linear_readout=settings.linear_readout,
    )


def stack_shape(recipe: Model, settings: EncoderSettings | DecoderSettings, cross: AttentionSettings | None) -> Shape:
    """The sizes and settings of a Transformer encoder or decoder, checked.

    `cross` are the settings of its attention to a memory, None if it has no memory.
    """
    own = settings.self_attention.of(recipe.attention)
    pick({norm: norm for norm in NORMS}, recipe.norm, "norm")
    if recipe.positions == "rotary" and settings.dim // own.heads % 2:
        raise RecipeError("rotary positions rotate pairs of numbers, so the width of a head must be even")
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
        norm_kind=recipe.norm_kind,
        norm_eps=recipe.norm_eps,
        embedding_norm=recipe.embedding_norm,
        embedding_scaled=recipe.embedding_scaled,
    )


def _site(settings: AttentionSettings, longest: int) -> Site:
    """The attention settings of one site in a Transformer's layers (its own states, or a memory), checked."""
    if settings.normalizer == "hard":
        raise RecipeError("hard attention is trained with REINFORCE and needs model.decoder.kind = recurrent")
    if _scope_class(settings).uses_past:
        raise RecipeError(
            f"the scope {settings.scope!r} needs the weights of the steps before, but a Transformer runs all steps "
            "at once; choose model.decoder.kind = recurrent, or another scope"
        )
    return Site(partial(_of_width, settings, longest, True), settings.heads, settings.groups)


def attention(settings: AttentionSettings, *, query_dim: int, key_dim: int, longest: int) -> Attention:
    """Build an attention from queries of width `query_dim` to states of width `key_dim`.

    `longest` is the number of positions that the score `location` learns.
    """
    kind = _scope_class(settings)
    if kind.uses_past and settings.heads > 1:
        raise RecipeError(
            f"the scope {settings.scope!r} keeps the weights of one head: choose model.attention.heads = 1"
        )
    if settings.normalizer == "hard" and (settings.heads > 1 or not kind.keeps_sum):
        raise RecipeError("hard attention is sampled from one distribution: it needs one head, and no scope local_p")
    if settings.heads == 1:
        return _scope(settings, longest, query_dim, key_dim, settings.dim, fused=False)
    return MultiHead(
        partial(_of_width, settings, longest, False),
        query_dim=query_dim,
        key_dim=key_dim,
        dim=settings.dim,
        heads=settings.heads,
        groups=settings.groups,
    )


def _scope_class(settings: AttentionSettings) -> type[Scope]:
    return plugins.pick(SCOPES, settings.scope, "scope", Scope)


def _of_width(settings: AttentionSettings, longest: int, fused: bool, width: int) -> Scope:
    """The attention of one head of that width; used by `partial`, because a lambda cannot be pickled."""
    return _scope(settings, longest, width, width, width, fused=fused)


def _scope(settings: AttentionSettings, longest: int, query_dim: int, key_dim: int, dim: int, *, fused: bool) -> Scope:
    """Build a scope with its score and normaliser; if `fused`, fused kernels may compute it."""
    kind = plugins.pick(SCORES, settings.score, "score", Score)
    sizes = {"longest": longest} if kind is Location else {"dim": dim}
    return _scope_class(settings)(
        kind(query_dim=query_dim, key_dim=key_dim, **sizes),
        plugins.pick(NORMALIZERS, settings.normalizer, "normalizer", NormalizerEntry).function,
        query_dim=query_dim,
        window=settings.window,
        fused=fused,
        dropout=settings.dropout,
    )
