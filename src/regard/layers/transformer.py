"""Parts of a Transformer that encoders and decoders share: sub-layers, residual connections, initialisation."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from regard.attention import POSITIONS, MultiHead, SelfAttention
from regard.attention.heads import Make
from regard.attention.positions import Positions
from regard.errors import pick
from regard.kernels.add_norm import add_norm
from regard.kernels.dropout import dropout, relu_dropped
from regard.kernels.linear import Linear
from regard.recipe import SMALL


def gated_gelu(inner: Float[Tensor, "*batch both"]) -> Float[Tensor, "*batch half"]:
    """Shazeer 2020, as in T5 1.1:  gelu_tanh(W x) * V x; the first half of the hidden layer is W x."""
    gate, values = inner.chunk(2, dim=-1)
    return functional.gelu(gate, approximate="tanh") * values


# They get a tensor that nothing else uses, and may change it in place.
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": functional.relu_,
    "gelu": functional.gelu,
    "gelu_tanh": partial(functional.gelu, approximate="tanh"),
    "swish": functional.silu,
    "gated_gelu": gated_gelu,
}
GATED = frozenset({"gated_gelu"})  # activations that halve the width of the hidden layer
NORMS = ("pre", "post")

Norm = nn.LayerNorm | nn.RMSNorm
NORM_KINDS: dict[str, type[Norm]] = {
    "layer": nn.LayerNorm,
    "rms": nn.RMSNorm,
}


@dataclass(frozen=True)
class Site:
    """The settings of one attention of a layer: self-attention, or cross-attention to a memory."""

    make: Make  # builds the attention of one head width
    heads: int
    groups: int  # heads of keys and values; 0 for as many as heads


@dataclass(frozen=True)
class Shape:
    """The sizes and settings of a stack of layers."""

    attention: Site  # self-attention
    cross: Site  # cross-attention to a memory
    dim: int
    layers: int
    inner_dim: int  # of the feed-forward layers
    dropout: float
    inner_dropout: float  # in the feed-forward layers
    norm: str  # an entry of NORMS: before each sub-layer, or after it
    activation: str
    positions: str
    longest: int
    init: str = "glorot"
    norm_kind: str = "layer"
    norm_eps: float = 1e-5
    embedding_norm: bool = False  # whether embeddings are normalised before the first layer
    embedding_scaled: bool = True  # whether embeddings are multiplied by the square root of `dim`

    @property
    def scale(self) -> float:
        """The factor of the embeddings."""
        return math.sqrt(self.dim) if self.embedding_scaled else 1.0

    def new_norm(self) -> Norm:
        """A new normalisation: of mean and variance (Ba et al. 2016), or by the RMS alone (Zhang and Sennrich 2019)."""
        return pick(NORM_KINDS, self.norm_kind, "kind of norm")(self.dim, eps=self.norm_eps)

    def norm_of_embeddings(self) -> Norm | None:
        """A new normalisation of embeddings with their positions (Devlin et al. 2019); None if there is none."""
        return self.new_norm() if self.embedding_norm else None

    def placed(self, *, causal: bool) -> Positions:
        """The positions module of the stack; `causal` is True if attention is causal."""
        kind = pick(POSITIONS, self.positions, "positions")
        return kind(dim=self.dim, heads=self.attention.heads, longest=self.longest, causal=causal)

    def self_attention(self) -> SelfAttention:
        """A new self-attention, to the stack's own states."""
        site = self.attention
        return SelfAttention(site.make, dim=self.dim, heads=site.heads, groups=site.groups)

    def cross_attention(self, key_dim: int) -> MultiHead:
        """A new cross-attention, to a memory whose states have the width `key_dim`."""
        site, dim = self.cross, self.dim
        return MultiHead(
            site.make, query_dim=dim, key_dim=key_dim, dim=dim, heads=site.heads, out_dim=dim, groups=site.groups
        )


class Stream(NamedTuple):
    """The residual stream, and the output of the last sub-layer if it is not added yet."""

    states: Float[Tensor, "*batch dim"]
    update: Float[Tensor, "*batch dim"] | None = None


class Residual(nn.Module):
    """The residual connection and the norm around a sub-layer f.

    Pre-norm is x + dropout(f(norm(x))), post-norm is norm(x + dropout(f(x))).
    In pre-norm the sum is delayed until the next sub-layer, which also normalises it: both are computed in one pass.
    """

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.norm = shape.new_norm()
        self.before = shape.norm == "pre"
        self.dropout = shape.dropout

    def enter(self, stream: Stream) -> tuple[Float[Tensor, "*batch dim"], Float[Tensor, "*batch dim"]]:
        """The residual stream before f, and the input of f."""
        if not self.before:
            return stream.states, stream.states
        return add_norm(stream.states, stream.update, self.norm, self.dropout, self.training)

    def leave(self, states: Float[Tensor, "*batch dim"], update: Float[Tensor, "*batch dim"]) -> Stream:
        """The residual stream after f, from the states before it and the output `update` of f."""
        if self.before:
            return Stream(states, update)
        return Stream(add_norm(states, update, self.norm, self.dropout, self.training, is_residual=True)[1])


class Top(nn.Module):
    """The final norm of a pre-norm stack, whose residual stream is not normalised yet; post-norm stacks need none."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.norm = shape.new_norm() if shape.norm == "pre" else None
        self.dropout = shape.dropout

    def forward(self, stream: Stream) -> Float[Tensor, "*batch dim"]:
        """The output states of the stack."""
        if self.norm is None:
            return stream.states
        return add_norm(stream.states, stream.update, self.norm, self.dropout, self.training)[1]


class FeedForward(nn.Module):
    """Vaswani et al. 2017, 3.3:  W_2 activation(W_1 x + b_1) + b_2, for each position separately."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.activation = pick(ACTIVATIONS, shape.activation, "activation")
        self.inner = Linear(shape.dim, shape.inner_dim * (2 if shape.activation in GATED else 1))
        self.out = Linear(shape.inner_dim, shape.dim)
        self.dropout, self.rectifies = shape.inner_dropout, shape.activation == "relu"

    def forward(self, states: Float[Tensor, "batch time dim"]) -> Float[Tensor, "batch time dim"]:
        """Apply the hidden layer, activation, dropout and the output layer."""
        inner = self.inner(states.flatten(0, 1))
        if self.rectifies:
            inner = relu_dropped(inner, self.dropout, self.training)
        else:
            inner = dropout(self.activation(inner), self.dropout, self.training)
        return self.out(inner).view_as(states)


def start_weights(stack: nn.Module, shape: Shape) -> None:
    """Initialise the weights of a stack."""
    pick(INITS, shape.init, "init")(stack, shape.layers)


def glorot(stack: nn.Module, layers: int) -> None:
    """Glorot and Bengio 2010: weights of linear layers from a uniform distribution, biases zero."""
    for _, linear in _linears(stack):
        nn.init.xavier_uniform_(linear.weight)


def small(stack: nn.Module, layers: int) -> None:
    """Radford et al. 2019: standard deviation 0.02, embeddings too; less for layers that add to the residual stream.

    These have 0.02 / sqrt(2 layers), so that the variance of the stream does not grow with the number of layers.
    """
    for name, linear in _linears(stack):
        adds = name.endswith(("attention.out", "cross.out", "feed.out"))
        nn.init.normal_(linear.weight, std=SMALL / math.sqrt(2 * layers) if adds else SMALL)


def _linears(stack: nn.Module) -> Iterator[tuple[str, nn.Linear]]:
    """The linear layers by name; sets their biases to zero."""
    for name, module in stack.named_modules():
        if isinstance(module, nn.Linear):
            if module.bias is not None:
                nn.init.zeros_(module.bias)
            yield name, module


INITS: dict[str, Callable[[nn.Module, int], None]] = {
    "glorot": glorot,
    "small": small,
}
