"""The Transformer's encoder: every position attends to all positions."""

from jaxtyping import Bool, Float
from torch import Tensor, nn

from regard.attention.positions import Positions
from regard.encoders.core import Encoder
from regard.kernels.dropout import dropout
from regard.layers.transformer import FeedForward, Residual, Shape, Stream, Top, start_weights
from regard.maps import TEXT, Layout
from regard.sources import Front
from regard.types import Memory, Recurrent


class EncoderLayer(nn.Module):
    """One layer: self-attention, then a feed-forward layer."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.attention, self.around_attention = shape.self_attention(), Residual(shape)
        self.feed, self.around_feed = FeedForward(shape), Residual(shape)

    def forward(
        self,
        stream: Stream,
        mask: Bool[Tensor, "batch 1 1 source"],
        bias: Float[Tensor, "heads source source"] | None,
        positions: Positions,
    ) -> Stream:
        """The residual stream after the layer."""
        states, inputs = self.around_attention.enter(stream)
        update, _ = self.attention(inputs, mask=mask, bias=bias, positions=positions)
        states, inputs = self.around_feed.enter(self.around_attention.leave(states, update))
        return self.around_feed.leave(states, self.feed(inputs))


class TransformerEncoder(Encoder):
    """Vaswani et al. 2017, 3.1: layers of self-attention over the source vectors and their positions."""

    skips_holes = True
    layers = 1  # of the summary, from which a recurrent decoder may start
    cell_dim = None

    def __init__(self, embedding: Front, shape: Shape) -> None:
        super().__init__()
        self.stack = nn.ModuleList(EncoderLayer(shape) for _ in range(shape.layers))
        self.top = Top(shape)
        start_weights(self, shape)
        self.positions = shape.placed(causal=False)
        self.embedding, self.embedding_norm = embedding, shape.norm_of_embeddings()
        self.dim, self.dropout, self.scale = shape.dim, shape.dropout, shape.scale

    def read(
        self, vectors: Float[Tensor, "batch source word"], mask: Bool[Tensor, "batch source"], layout: Layout = TEXT
    ) -> Memory:
        """Encode the vectors; states of padding are zero, and the summary is the mean of the other states."""
        inputs = self.positions.embed(vectors * self.scale, 0)
        if self.embedding_norm is not None:
            inputs = self.embedding_norm(inputs)
        stream = Stream(dropout(inputs, self.dropout, self.training))
        length = vectors.shape[1]
        bias = self.positions.bias(length, length, 0)
        for layer in self.stack:
            stream = layer(stream, mask[:, None, None], bias, self.positions)
        states = self.top(stream).masked_fill(~mask.unsqueeze(-1), 0.0)
        mean = states.sum(1, keepdim=True) / mask.sum(-1).clamp(min=1)[:, None, None]
        return Memory(states, mask, Recurrent(mean, None), layout)
