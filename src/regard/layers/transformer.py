"""The layers of a Transformer, in the one form that encoders and decoders share."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
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

# They are given what nobody else holds, and may change it in place.
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": functional.relu_,
    "gelu": functional.gelu,
}
NORMS = ("pre", "post")


@dataclass(frozen=True)
class Site:
    """The attention of one place in a layer: to its own states, or to a memory."""

    make: Make  # of one head
    heads: int
    groups: int  # heads of keys and values; 0 for as many as heads


@dataclass(frozen=True)
class Shape:
    """The sizes and choices of a stack of layers."""

    attention: Site  # to the stack's own states
    cross: Site  # to a memory
    dim: int
    layers: int
    inner_dim: int  # of the feed-forward layers
    dropout: float
    inner_dropout: float  # in the feed-forward layers
    norm: str  # before each sub-layer, or after
    activation: str
    positions: str
    longest: int
    init: str = "glorot"

    def placed(self, *, onward: bool) -> Positions:
        """The positions of the stack; `onward` where no token sees a later one."""
        kind = pick(POSITIONS, self.positions, "positions")
        return kind(dim=self.dim, heads=self.attention.heads, longest=self.longest, onward=onward)

    def self_attention(self) -> SelfAttention:
        """Attention to the stack's own states."""
        site = self.attention
        return SelfAttention(site.make, dim=self.dim, heads=site.heads, groups=site.groups or None)

    def cross_attention(self, key_dim: int) -> MultiHead:
        """Attention to a memory."""
        return MultiHead(
            self.cross.make,
            query_dim=self.dim,
            key_dim=key_dim,
            dim=self.dim,
            heads=self.cross.heads,
            out_dim=self.dim,
            groups=self.cross.groups or None,
        )


class Stream(NamedTuple):
    """What flows through a stack, and what the last sub-layer said to it, which is not in it yet."""

    states: Float[Tensor, "*batch dim"]
    change: Float[Tensor, "*batch dim"] | None = None


class Around(nn.Module):
    """What stands around a sub-layer f: pre-norm x + dropout(f(norm(x))), post-norm norm(x + dropout(f(x))).

    In pre-norm the sum waits for the next sub-layer, which needs its norm too: both are made in one pass.
    """

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(shape.dim)
        self.before = shape.norm == "pre"
        self.dropout = shape.dropout

    def enter(self, stream: Stream) -> tuple[Float[Tensor, "*batch dim"], Float[Tensor, "*batch dim"]]:
        """The states, and what f reads of them."""
        if not self.before:
            return stream.states, stream.states
        return add_norm(stream.states, stream.change, self.norm, self.dropout, self.training)

    def leave(self, states: Float[Tensor, "*batch dim"], change: Float[Tensor, "*batch dim"]) -> Stream:
        """What comes of the states and of what f said."""
        if self.before:
            return Stream(states, change)
        return Stream(add_norm(states, change, self.norm, self.dropout, self.training, flows=True)[1])


class Top(nn.Module):
    """The end of a stack: layers that normalise only what they read leave sums behind, which are normalised here."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(shape.dim) if shape.norm == "pre" else None
        self.dropout = shape.dropout

    def forward(self, stream: Stream) -> Float[Tensor, "*batch dim"]:
        """The states that the stack hands over."""
        if self.norm is None:
            return stream.states
        return add_norm(stream.states, stream.change, self.norm, self.dropout, self.training)[1]


class FeedForward(nn.Module):
    """Vaswani et al. 2017, 3.3:  W_2 activation(W_1 x + b_1) + b_2, for each position by itself."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.inner = Linear(shape.dim, shape.inner_dim)
        self.out = Linear(shape.inner_dim, shape.dim)
        self.activation = pick(ACTIVATIONS, shape.activation, "activation")
        self.dropout, self.rectifies = shape.inner_dropout, shape.activation == "relu"

    def forward(self, states: Float[Tensor, "batch time dim"]) -> Float[Tensor, "batch time dim"]:
        """One hidden layer."""
        inner = self.inner(states.flatten(0, 1))
        if self.rectifies:
            inner = relu_dropped(inner, self.dropout, self.training)
        else:
            inner = dropout(self.activation(inner), self.dropout, self.training)
        return self.out(inner).view_as(states)


def start_weights(stack: nn.Module, shape: Shape) -> None:
    """The weights that a stack begins with."""
    pick(INITS, shape.init, "init")(stack, shape.layers)


def glorot(stack: nn.Module, layers: int) -> None:
    """Glorot and Bengio 2010: matrices of layers from a uniform distribution, biases from zero."""
    for _, linear in _linears(stack):
        nn.init.xavier_uniform_(linear.weight)


def small(stack: nn.Module, layers: int) -> None:
    """Radford et al. 2019: all of size 0.02, words too; what adds to the stream less, the more layers there are."""
    for name, linear in _linears(stack):
        adds = name.endswith(("attention.out", "cross.out", "feed.out"))
        nn.init.normal_(linear.weight, std=SMALL / math.sqrt(2 * layers) if adds else SMALL)


def _linears(stack: nn.Module) -> Iterator[tuple[str, nn.Linear]]:
    """The linear layers, with biases that are zero."""
    for name, module in stack.named_modules():
        if isinstance(module, nn.Linear):
            if module.bias is not None:
                nn.init.zeros_(module.bias)
            yield name, module


INITS: dict[str, Callable[[nn.Module, int], None]] = {
    "glorot": glorot,
    "small": small,
}
