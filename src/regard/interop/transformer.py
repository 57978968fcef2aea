"""The weights of a Transformer from text to text, in the form that other toolkits store them.

Every attention has four matrices of full width. Grouped keys and values are repeated for their heads, and the score
`dot`, which is not scaled, gets its factor from the query matrix: both give the same numbers.
"""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from regard.attention import MultiHead, SelfAttention
from regard.attention.positions import Learned, sinusoids
from regard.decoders.transformer import TransformerDecoder
from regard.encoders import TransformerEncoder
from regard.errors import RecipeError
from regard.models import Seq2Seq
from regard.predict import Predictor
from regard.recipe import Recipe
from regard.tasks import Transduce

TASK = "translate"


@dataclass(frozen=True)
class Affine:
    """The weight and the bias of a linear layer, or the gain and the bias of a norm."""

    weight: Tensor
    bias: Tensor


@dataclass(frozen=True)
class Heads:
    """The four matrices of an attention, and the norm of its residual connection."""

    query: Affine
    key: Affine
    value: Affine
    out: Affine
    norm: Affine


@dataclass(frozen=True)
class Layer:
    """The weights of a layer; an encoder's has no `cross`."""

    attention: Heads
    cross: Heads | None
    inner: Affine
    outer: Affine
    norm: Affine  # of the feed-forward layer


@dataclass(frozen=True)
class Stack:
    """The weights of an encoder or a decoder."""

    embedding: Tensor
    positions: Tensor  # a table with a row for each position
    layers: tuple[Layer, ...]
    norm: Affine | None  # of the top, in a pre-norm stack


@dataclass(frozen=True)
class Weights:
    """The weights of a model; the output layer has a bias of zeros if it is tied to the embedding."""

    encoder: Stack
    decoder: Stack
    out: Affine


def check(recipe: Recipe, to: str, norms_with_positions: tuple[tuple[str, str], ...]) -> None:
    """Raise RecipeError, which names the key, if a run cannot be expressed; the last argument lists what can be."""
    model = recipe.model
    sites = {
        "model.encoder.self_attention": model.encoder.self_attention.of(model.attention),
        "model.decoder.self_attention": model.decoder.self_attention.of(model.attention),
        "model.decoder.cross_attention": model.decoder.cross_attention.of(model.attention),
    }
    wanted: list[tuple[str, object, tuple[object, ...]]] = [
        ("task", recipe.task, (TASK,)),
        ("source", recipe.source, ("text",)),
        ("model.encoder.kind", model.encoder.kind, ("transformer",)),
        ("model.decoder.kind", model.decoder.kind, ("transformer",)),
        ("model.decoder.dim", model.decoder.dim, (model.encoder.dim,)),
        ("model.norm", model.norm, tuple(dict.fromkeys(norm for norm, _ in norms_with_positions))),
        ("model.positions", model.positions, tuple(own for norm, own in norms_with_positions if norm == model.norm)),
        ("model.norm_kind", model.norm_kind, ("layer",)),
        ("model.norm_eps", model.norm_eps, (1e-5,)),
        ("model.embedding_norm", model.embedding_norm, (False,)),
        ("model.activation", model.activation, ("relu", "gelu", "gelu_tanh", "swish")),
        ("search.ctc", recipe.search.ctc, (0.0,)),
    ]
    for name, site in sites.items():
        wanted += [
            (f"{name}.score", site.score, ("scaled_dot", "dot")),
            (f"{name}.normalizer", site.normalizer, ("softmax",)),
            (f"{name}.scope", site.scope, ("global",)),
        ]
    heads = model.decoder.self_attention.of(model.attention).heads
    wanted.append(("model.decoder.cross_attention.heads", sites["model.decoder.cross_attention"].heads, (heads,)))
    for key, value, allowed in wanted:
        if value not in allowed:
            choices = " or ".join(map(str, allowed)) or "nothing with these norms"
            other = "; --to onnx takes recurrent models, too" if key.endswith("kind") else ""
            raise RecipeError(f"{to} cannot express {key} = {value}: it takes {choices}{other}")


def parts(predictor: Predictor) -> tuple[Transduce, Seq2Seq]:
    """The task and the model of a predictor from text to text."""
    assert isinstance(predictor.task, Transduce)
    assert isinstance(predictor.model, Seq2Seq)
    return predictor.task, predictor.model


@torch.no_grad()
def weights(model: Seq2Seq) -> Weights:
    """The weights of a Transformer that `check` has let through, in float32."""
    encoder, decoder = model.encoder, model.decoder
    assert isinstance(encoder, TransformerEncoder)
    assert isinstance(decoder, TransformerDecoder)
    table = decoder.embedding.weight
    out = _affine(decoder.out) if decoder.out is not None else Affine(_plain(table), torch.zeros(len(table)))
    return Weights(_stack(encoder), _stack(decoder), out)


def _stack(stack: TransformerEncoder | TransformerDecoder) -> Stack:
    """The weights of one stack of layers."""
    embedding = stack.embedding
    assert isinstance(embedding, nn.Embedding)
    norm = None if stack.top.norm is None else _affine(stack.top.norm)
    return Stack(_plain(embedding.weight), _positions(stack), tuple(map(_layer, stack.stack)), norm)


def _positions(stack: TransformerEncoder | TransformerDecoder) -> Tensor:
    """The vector of each position that has one in a table."""
    positions = stack.positions
    if isinstance(positions, Learned):
        return _plain(positions.table.weight)
    assert isinstance(positions.table, Tensor)
    longest, dim = positions.table.shape
    return sinusoids(torch.arange(longest), dim).float()


def _layer(layer: Any) -> Layer:
    """The weights of an encoder layer or a decoder layer."""
    cross = getattr(layer, "cross", None)
    return Layer(
        _heads(layer.attention, layer.around_attention.norm),
        None if cross is None else _heads(cross, layer.around_cross.norm),
        _affine(layer.feed.inner),
        _affine(layer.feed.out),
        _affine(layer.around_feed.norm),
    )


def _heads(attention: SelfAttention | MultiHead, norm: nn.Module) -> Heads:
    """The four matrices of an attention, as if every head had its own keys and values."""
    heads, groups = attention.heads, attention.groups
    if isinstance(attention, SelfAttention):
        width = attention.width
        wide = _affine(attention.all)
        sizes = [heads * width, groups * width, groups * width]
        split = zip(wide.weight.split(sizes), wide.bias.split(sizes), strict=True)
        query, key, value = (Affine(weight, bias) for weight, bias in split)
    else:
        query, key, value = map(_affine, (attention.query, attention.key, attention.value))
        width = len(query.weight) // heads
    scale = attention.attention.plain_scale()
    assert scale is not None
    factor = scale * math.sqrt(width)  # other toolkits divide all scores by sqrt(width)
    query = Affine(query.weight * factor, query.bias * factor)
    key, value = (_repeated(part, heads // groups, width) for part in (key, value))
    return Heads(query, key, value, _affine(attention.out), _affine(norm))


def _repeated(part: Affine, times: int, width: int) -> Affine:
    """The keys or values of each group, repeated for all heads that share it."""
    if times == 1:
        return part
    rows = [
        tensor.unflatten(0, (-1, width)).repeat_interleave(times, 0).flatten(0, 1) for tensor in vars(part).values()
    ]
    return Affine(*rows)


def _affine(layer: nn.Module) -> Affine:
    """The weight and the bias of a linear layer or a norm."""
    assert isinstance(layer.weight, Tensor)
    assert isinstance(layer.bias, Tensor)
    return Affine(_plain(layer.weight), _plain(layer.bias))


def _plain(tensor: Tensor) -> Tensor:
    """A copy of a parameter on the CPU, in float32 and stored by rows."""
    return tensor.detach().to("cpu", torch.float32).contiguous().clone()
