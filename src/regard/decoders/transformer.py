"""The Transformer's decoder: every token attends to itself and the tokens before it, then to the memory."""

from dataclasses import dataclass, replace
from typing import cast

from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from regard.attention import MultiHead, SelfAttention
from regard.attention.heads import KeyValues, project_all
from regard.attention.masks import Causal, Mask
from regard.attention.positions import Positions
from regard.attention.scopes import Global
from regard.attention.scores import Dot, ScaledDot
from regard.decoders.core import Decoder, States
from regard.decoders.plain import Layer, SoftmaxAttention, TransformerStep, affine, keys_by_columns, mask_bias, norm
from regard.kernels.choose import takes
from regard.kernels.dropout import dropout
from regard.kernels.linear import Linear, linear
from regard.layers.transformer import FeedForward, Residual, Shape, Stream, Top, start_weights
from regard.sources import TokenEmbedding
from regard.types import Memory, Prepared, State, Step


@dataclass(frozen=True)
class TransformerPrepared(Prepared):
    """The memory as every layer attends to it: projected keys and values; no layers if the decoder has no memory."""

    layers: tuple[KeyValues, ...]
    mask: Bool[Tensor, "batch source"]
    mask_bias: Float[Tensor, "batch heads 1 source"] | None = None  # the mask as a bias, for steps without modules
    plain: TransformerStep | None = None  # for steps of one token without modules, if possible


@dataclass(frozen=True)
class TransformerState(State):
    """The cache of every layer: keys and values of the tokens so far."""

    layers: tuple[KeyValues, ...]
    length: int = 0  # tokens read so far


class DecoderLayer(nn.Module):
    """One layer: causal self-attention, attention to the memory if there is one, a feed-forward layer."""

    def __init__(self, shape: Shape, memory_dim: int | None) -> None:
        super().__init__()
        self.attention, self.around_attention = shape.self_attention(), Residual(shape)
        self.cross = shape.cross_attention(memory_dim) if memory_dim else None
        self.around_cross = Residual(shape) if memory_dim else None
        self.feed, self.around_feed = FeedForward(shape), Residual(shape)

    def forward(
        self,
        stream: Stream,
        before: KeyValues,
        memory: KeyValues | None,
        memory_mask: Bool[Tensor, "batch source"],
        bias: Float[Tensor, "heads tokens all"] | None,
        positions: Positions,
        mask: Mask = None,
    ) -> tuple[Stream, KeyValues, States | None]:
        """Run the layer over new tokens; `before` is its cache, and `mask` that of the tokens, by default causal.

        Returns the residual stream, the extended cache, and the input of the attention to the memory, from which `map`
        computes weights (None without a memory).
        """
        start = before.keys.shape[-2]
        states, inputs = self.around_attention.enter(stream)
        visible = Causal(start) if mask is None else mask
        update, cache = self.attention(
            inputs, mask=visible, bias=bias, positions=positions, start=start, before=before if start else None
        )
        stream = self.around_attention.leave(states, update)
        asked = None
        if memory is not None:
            assert self.cross is not None
            assert self.around_cross is not None
            states, asked = self.around_cross.enter(stream)
            stream = self.around_cross.leave(states, attend_memory(self.cross, asked, memory, memory_mask, start))
        states, inputs = self.around_feed.enter(stream)
        return self.around_feed.leave(states, self.feed(inputs)), cache, asked

    def plain(self) -> Layer:
        """Its parameters for steps without modules; call it only if `takes("plain_transformer", ...)`."""
        cross = None
        if self.cross is not None and self.around_cross is not None:
            cross = SoftmaxAttention.of(self.cross, self.around_cross.norm)
        return Layer(
            SoftmaxAttention.of(self.attention, self.around_attention.norm),
            cross,
            affine(self.feed.inner),
            self.feed.activation,
            affine(self.feed.out),
            norm(self.around_feed.norm),
        )


# The only classes of modules whose parameters steps without modules may use.
PLAIN: frozenset[type[nn.Module]] = frozenset(
    (DecoderLayer, Residual, nn.LayerNorm, SelfAttention, MultiHead, Global, Dot, ScaledDot, FeedForward, Linear)
)


def attend_memory(cross: MultiHead, asked: States, memory: KeyValues, mask: Tensor, start: int) -> States:
    """Attend with every row to the memory of its source; beams share the memory without copies."""
    beams = asked.unflatten(0, (mask.shape[0], -1))
    keys, values = memory.keys.unsqueeze(1), memory.values.unsqueeze(1)
    attended = cross(beams, keys, values, mask=mask[:, None, None], start=start, cleared=True)
    return attended.context.flatten(0, 1)


class TransformerDecoder(Decoder[TransformerPrepared, TransformerState]):
    """Vaswani et al. 2017, 3.1: reads all tokens at once under a causal mask, or one by one with a cache.

    Without a memory (`memory_dim` None) it is a language model. If `tied`, the embedding matrix is also the output
    matrix (Press and Wolf 2017).
    """

    def __init__(self, embedding: TokenEmbedding, shape: Shape, *, memory_dim: int | None, tied: bool) -> None:
        super().__init__()
        self.stack = nn.ModuleList(DecoderLayer(shape, memory_dim) for _ in range(shape.layers))
        self.top = Top(shape)
        start_weights(self, shape)
        self.positions = shape.placed(causal=True)
        self.embedding, self.embedding_norm = embedding, shape.norm_of_embeddings()
        self.out = None if tied else Linear(shape.dim, embedding.num_embeddings)
        self.shape, self.attends = shape, memory_dim is not None

    @property
    def layers(self) -> list[DecoderLayer]:
        """The decoder layers, from the bottom to the top."""
        return cast(list[DecoderLayer], list(self.stack))

    def prepare(self, memory: Memory) -> TransformerPrepared:
        """Project the keys and values of every layer; masked states are set to 0 first."""
        states = memory.states.masked_fill(~memory.mask.unsqueeze(-1), 0.0)
        crosses = [layer.cross for layer in self.layers if layer.cross is not None]
        layers = tuple(project_all(crosses, states)) if crosses else ()
        plain = self.plain(memory)
        if plain is None:
            return TransformerPrepared(layers, memory.mask)
        bias = mask_bias(memory.mask, states.dtype)
        bias = None if bias is None else bias.unsqueeze(1).repeat(1, self.shape.cross.heads, 1, 1)
        return TransformerPrepared(tuple(map(keys_by_columns, layers)), memory.mask, bias, plain)

    def plain(self, memory: Memory) -> TransformerStep | None:
        """The parameters for steps without modules, or None if steps must call the modules."""
        if not takes("plain_transformer", self, memory.mask, PLAIN):
            return None
        words = (self.tied_weight(), None) if self.out is None else affine(self.out)
        return TransformerStep(tuple(layer.plain() for layer in self.layers), words, before=self.shape.norm == "pre")

    def start(self, prepared: TransformerPrepared) -> TransformerState:
        """Empty caches."""
        site = self.shape.attention
        groups, width = site.groups or site.heads, self.shape.dim // site.heads
        empty = self.embedding.weight.new_empty(prepared.mask.shape[0], groups, 0, width)
        return TransformerState(tuple(KeyValues(empty, empty) for _ in self.stack))

    def step(self, tokens: Int[Tensor, "rows tokens"], state: TransformerState, prepared: TransformerPrepared) -> Step:
        """Read the tokens, all at once; the attention map is the mean of the top layer's heads."""
        if prepared.plain is not None and tokens.shape[1] == 1:
            return self.plain_step(tokens, state, prepared, prepared.plain)
        stream = Stream(dropout(self.embed(tokens, state.length), self.shape.dropout, self.training))
        bias = self.positions.bias(tokens.shape[1], state.length + tokens.shape[1], state.length)
        caches, asked = [], None
        for index, layer in enumerate(self.layers):
            memory = prepared.layers[index] if self.attends else None
            stream, cache, asked = layer(stream, state.layers[index], memory, prepared.mask, bias, self.positions)
            caches.append(cache)
        after = replace(state, layers=tuple(caches), length=state.length + tokens.shape[1])
        return Step(self.predict(self.top(stream)), after, self.map(asked, state, prepared))

    def embed(self, tokens: Int[Tensor, "rows tokens"], start: int) -> States:
        """The vectors of the tokens with their positions; the first token is at position `start`."""
        words = self.positions.embed(self.embedding(tokens) * self.shape.scale, start)
        return words if self.embedding_norm is None else self.embedding_norm(words)

    def plain_step(
        self,
        tokens: Int[Tensor, "rows 1"],
        state: TransformerState,
        prepared: TransformerPrepared,
        plain: TransformerStep,
    ) -> Step:
        """A step of one token without module calls in the layers."""
        states, caches, weights = plain.step(
            self.embed(tokens, state.length).squeeze(1),
            state.layers,
            prepared.layers,
            prepared.mask_bias,
            prepared.mask,
            self.positions,
        )
        after = TransformerState(caches, state.length + 1)
        logits = linear(self.top(Stream(states)), *plain.words)
        return Step(logits.unsqueeze(1), after, None if weights is None else weights.unsqueeze(1))

    def map(
        self, asked: States | None, state: TransformerState, prepared: TransformerPrepared
    ) -> Float[Tensor, "rows tokens source"] | None:
        """The top layer's attention weights over the memory, computed apart because fused attention returns none.

        None in training, where they are not needed, and without a memory; `asked` is the attention's input.
        """
        if asked is None or self.training:
            return None
        cross, memory = self.layers[-1].cross, prepared.layers[-1]
        assert cross is not None
        beams = asked.unflatten(0, (prepared.mask.shape[0], -1))
        mask = prepared.mask[:, None, None]
        return cross.weigh(beams, memory.keys.unsqueeze(1), mask=mask, start=state.length).flatten(0, 1)
