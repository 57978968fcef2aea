"""Recurrent decoders: in which order state, look and word follow each other."""

from abc import abstractmethod
from dataclasses import dataclass, replace
from typing import ClassVar, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional

from regard.attention import Attended, Attention, Past
from regard.attention.normalizers import hard
from regard.attention.scopes import Scope
from regard.decoders.core import Decoder
from regard.decoders.pointer import Pointer
from regard.decoders.start import Bridge, Start
from regard.encoders import Layered
from regard.kernels.dropout import dropout
from regard.recurrence import Cell, Recurrence, Tower, joined, layer_of
from regard.types import Memory, Ready, Recurrent, State, Step


@dataclass(frozen=True)
class RecurrentReady(Ready):
    """The memory as a recurrent decoder looks at it."""

    keys: Float[Tensor, "batch *heads source projected"] | None  # None where the order never looks
    values: Float[Tensor, "batch *heads source dim"] | None
    mask: Bool[Tensor, "batch source"]
    start: Recurrent
    summary: Float[Tensor, "batch 1 read"]  # the encoder's top layer at its end
    ids: Int[Tensor, "batch source"] | None = None  # the source's tokens, where they are copied


@dataclass(frozen=True)
class RecurrentState(State):
    """Where a recurrent decoder is: its layers, and what it feeds to its next input."""

    recurrent: Recurrent
    feed: Float[Tensor, "rows 1 dim"] | None
    past: Past | None = None  # where it looked, for attentions that take account of it
    length: int = 0  # tokens read so far


Words = Float[Tensor, "rows tokens embedding"]


class Advance(NamedTuple):
    """What one stretch of words gives: vectors to predict from, what was seen, the next state."""

    read: Float[Tensor, "rows tokens dim"]
    looked: Attended | None
    state: RecurrentState


class RecurrentDecoder(Decoder[RecurrentReady, RecurrentState]):
    """What all orders share; an order says what enters the cell, what is predicted from, who asks when."""

    enters: ClassVar[tuple[str, ...]]  # the parts of the cell's input, in the order `advance` gives them
    reads: ClassVar[tuple[str, ...]]  # the parts that the prediction is read from, likewise
    parallel: ClassVar[bool]  # whether `advance` takes many tokens at once

    def __init__(
        self,
        embedding: nn.Embedding,
        attention: Attention | None,
        *,
        reader: Layered,
        cell: Cell,
        dim: int,
        layers: int = 1,
        dropout: float = 0.0,
        start: type[Start] = Bridge,
        tied: bool = False,
        copies: bool = False,
    ) -> None:
        super().__init__()
        read = {"context": reader.dim, "summary": reader.dim}
        widths = {"word": embedding.embedding_dim, "state": dim, "feed": dim} | read
        entering, reading = (
            sum(widths[part] for part in self.enters),
            sum(widths[part] for part in self.reads),
        )
        self.embedding = embedding
        self.attention = attention
        self.recurrence = self.stack(cell, entering, dim, layers, dropout, reader)
        self.bridge = start(self.recurrence, reader)
        self.readout = nn.Linear(reading, dim)
        self.out = None if tied else nn.Linear(dim, embedding.num_embeddings)
        self.dropout, self.copies = dropout, copies
        self.pointer = Pointer(context_dim=reader.dim, dim=dim, word_dim=embedding.embedding_dim) if copies else None
        drawn = isinstance(attention, Scope) and attention.normalize is hard
        earned = torch.zeros(()) if drawn else None  # by looks that are drawn, on average
        self.register_buffer("baseline", earned)

    def stack(
        self, cell: Cell, entering: int, dim: int, layers: int, dropout: float, reader: Layered
    ) -> "Recurrence | GnmtStack":
        """The recurrent layers."""
        return Recurrence(cell, input_dim=entering, dim=dim, layers=layers, dropout=dropout)

    @classmethod
    def looks(cls) -> bool:
        """Whether the order attends at all."""
        return "context" in cls.reads

    @classmethod
    def needs_source(cls) -> bool:
        """Whether there must be a source, looked at or summed up."""
        return not {"context", "summary"}.isdisjoint(cls.enters + cls.reads)

    def prepare(self, memory: Memory) -> RecurrentReady:
        """Project the keys once; what the mask hides is emptied first, so that no gradient meets it."""
        states = memory.states.masked_fill(~memory.mask.unsqueeze(-1), 0.0)
        top = memory.summary.hidden[:, -1:]
        keys = self.attention.project(states) if self.attention else None
        values = self.attention.content(states) if self.attention else None
        return RecurrentReady(keys, values, memory.mask, self.bridge(memory.summary), top, memory.ids)

    def start(self, ready: RecurrentReady) -> RecurrentState:
        """The start made of the source's summary, and nothing fed yet."""
        past = None
        if self.remembers:
            nothing = torch.zeros_like(ready.mask, dtype=ready.start.hidden.dtype).unsqueeze(1)
            past = Past(nothing, nothing)
        return RecurrentState(ready.start, self.first_feed(ready), past)

    @property
    def remembers(self) -> bool:
        """Whether a look depends on those before it, so that even orders that could must not run all steps at once."""
        return self.attention is not None and self.attention.uses_past

    def first_feed(self, ready: RecurrentReady) -> Float[Tensor, "batch 1 dim"] | None:
        """What enters the cell at the first token, for orders that feed something."""
        return None

    def step(self, tokens: Int[Tensor, "rows tokens"], state: RecurrentState, ready: RecurrentReady) -> Step:
        """Read the tokens in stretches as long as the order allows."""
        words = dropout(self.embedding(tokens), self.dropout, self.training)
        advances = []
        at_once = self.parallel and not self.remembers
        for stretch in [words] if at_once else words.split(1, dim=1):
            advance = self.advance(stretch, state, ready)
            past = state.past
            if past is not None and advance.looked is not None and advance.looked.weights is not None:
                past = past.then(advance.looked.weights.to(past.total.dtype))
            state = replace(advance.state, past=past, length=state.length + stretch.shape[1])
            advances.append(advance)
        read = dropout(torch.cat([each.read for each in advances], dim=1), self.dropout, self.training)
        looks = [each.looked for each in advances if each.looked is not None]
        maps = [each.weights for each in looks if each.weights is not None]
        drawn = [each.log_prob for each in looks if each.log_prob is not None]
        weights = torch.cat(maps, dim=1) if maps else None
        logits = self.predict(read)
        if self.pointer is not None:
            assert weights is not None
            assert ready.ids is not None
            contexts = torch.cat([each.context for each in looks], dim=1)
            logits = self.pointer(logits, [contexts, read, words], weights, ready.ids)
        return Step(logits, state, weights, torch.cat(drawn, dim=1) if drawn else None)

    def predict(self, read: Float[Tensor, "rows tokens dim"]) -> Float[Tensor, "rows tokens vocabulary"]:
        """A number for every word."""
        return functional.linear(read, self.embedding.weight) if self.out is None else self.out(read)

    @abstractmethod
    def advance(self, words: Words, state: RecurrentState, ready: RecurrentReady) -> Advance:
        """Read one stretch of embedded words."""

    def look(self, query: Float[Tensor, "rows tokens dim"], state: RecurrentState, ready: RecurrentReady) -> Attended:
        """Attend with every row to the memory of its source, which beams share and nobody copies."""
        assert self.attention is not None
        assert ready.keys is not None
        assert ready.values is not None
        attended = self.attention(
            query.unflatten(0, (len(ready.mask), -1)),
            ready.keys.unsqueeze(1),
            ready.values.unsqueeze(1),
            mask=ready.mask[:, None, None],
            start=state.length,
            past=None if state.past is None else state.past.each(lambda rows: rows.unflatten(0, (len(ready.mask), -1))),
            cleared=True,
        )
        context, weights, log_prob = (None if each is None else each.flatten(0, 1) for each in attended)
        assert context is not None
        return Attended(context, weights, log_prob)

    def predict_from(self, *parts: Float[Tensor, "rows tokens _"]) -> Float[Tensor, "rows tokens dim"]:
        """One hidden layer over the parts that the order reads."""
        return torch.tanh(self.readout(torch.cat(parts, dim=-1)))


class Bahdanau(RecurrentDecoder):
    """Bahdanau et al. 2015: the previous state asks, the context enters the cell.

    c_t = attend(s_{t-1}),  s_t = f(s_{t-1}, [y_{t-1}; c_t]),  y_t from tanh(W [s_t; c_t; y_{t-1}] + b)
    """

    enters = ("word", "context")
    reads = ("state", "context", "word")
    parallel = False

    def advance(self, words: Words, state: RecurrentState, ready: RecurrentReady) -> Advance:
        """Look with the state of before, then move."""
        looked = self.look(state.recurrent.hidden[:, -1:], state, ready)
        output, recurrent = self.recurrence(torch.cat([words, looked.context], dim=-1), state.recurrent)
        read = self.predict_from(output, looked.context, words)
        return Advance(read, looked, replace(state, recurrent=recurrent))


class Luong(RecurrentDecoder):
    """Luong et al. 2015, 3: the current state asks, so all steps run at once.

    h_t = f(h_{t-1}, y_{t-1}),  c_t = attend(h_t),  y_t from the attentional a_t = tanh(W [c_t; h_t] + b)
    """

    enters = ("word",)
    reads = ("context", "state")
    parallel = True

    def advance(self, words: Words, state: RecurrentState, ready: RecurrentReady) -> Advance:
        """Move, then look with the state of now."""
        output, recurrent = self.recurrence(words, state.recurrent)
        looked = self.look(output, state, ready)
        return Advance(self.predict_from(looked.context, output), looked, replace(state, recurrent=recurrent))


class LuongFeeding(RecurrentDecoder):
    """Luong et al. 2015, 3.3, input feeding: like `luong`, and a_{t-1} enters the cell beside y_{t-1}."""

    enters = ("word", "feed")
    reads = ("context", "state")
    parallel = False

    def first_feed(self, ready: RecurrentReady) -> Float[Tensor, "batch 1 dim"]:
        """Zeros: nothing was predicted yet."""
        return torch.zeros_like(ready.start.hidden[:, -1:])

    def advance(self, words: Words, state: RecurrentState, ready: RecurrentReady) -> Advance:
        """Move with what was predicted from last, then look with the state of now."""
        assert state.feed is not None
        output, recurrent = self.recurrence(torch.cat([words, state.feed], dim=-1), state.recurrent)
        looked = self.look(output, state, ready)
        read = self.predict_from(looked.context, output)
        return Advance(read, looked, replace(state, recurrent=recurrent, feed=read))


class GnmtStack(nn.Module):
    """A layer that asks, and a tower of layers that read the answer."""

    def __init__(self, bottom: Recurrence, tower: Tower) -> None:
        super().__init__()
        self.bottom, self.tower = bottom, tower
        self.dim, self.layers, self.cell_dim = bottom.dim, 1 + tower.layers, bottom.cell_dim


class Gnmt(RecurrentDecoder):
    """Wu et al. 2016, 3: the bottom layer's state asks, and every layer above reads the answer; all steps at once.

    h1_t = f1(h1_{t-1}, y_{t-1}),  c_t = attend(h1_t),  hk_t = fk(hk_{t-1}, [h(k-1)_t; c_t]) (+ h(k-1)_t from k = 3 on)
    """

    enters = ("word",)
    reads = ("state", "context")
    parallel = True

    def stack(self, cell: Cell, entering: int, dim: int, layers: int, dropout: float, reader: Layered) -> GnmtStack:
        """The bottom layer by itself."""
        bottom = Recurrence(cell, input_dim=entering, dim=dim)
        return GnmtStack(bottom, Tower(cell, dim=dim, guest_dim=reader.dim, layers=layers - 1, dropout=dropout))

    def advance(self, words: Words, state: RecurrentState, ready: RecurrentReady) -> Advance:
        """Move the bottom, look with its states, move the others."""
        assert isinstance(self.recurrence, GnmtStack)
        asked, first = self.recurrence.bottom(words, layer_of(state.recurrent, 0))
        looked = self.look(asked, state, ready)

        def run(layer: Recurrence, inputs: Tensor, number: int) -> tuple[Tensor, Recurrent]:
            return layer(inputs, layer_of(state.recurrent, number + 1))

        output, lasts = self.recurrence.tower(asked, looked.context, run)
        read = self.predict_from(output, looked.context)
        return Advance(read, looked, replace(state, recurrent=joined([first, *lasts])))


class Context(RecurrentDecoder):
    """Cho et al. 2014: no look, but the summary c is at hand at every step.

    h_t = f(h_{t-1}, [y_{t-1}; c]),  y_t from tanh(W [h_t; c; y_{t-1}] + b)
    """

    enters = ("word", "summary")
    reads = ("state", "summary", "word")
    parallel = True

    def first_feed(self, ready: RecurrentReady) -> Float[Tensor, "batch 1 dim"]:
        """The summary; it stays the same."""
        return ready.summary

    def advance(self, words: Words, state: RecurrentState, ready: RecurrentReady) -> Advance:
        """Move, with the summary beside every word."""
        assert state.feed is not None
        summary = state.feed.expand(-1, words.shape[1], -1)
        output, recurrent = self.recurrence(torch.cat([words, summary], dim=-1), state.recurrent)
        return Advance(self.predict_from(output, summary, words), None, replace(state, recurrent=recurrent))


class Unattended(RecurrentDecoder):
    """Sutskever et al. 2014: no look at all, everything must pass through the summary it starts from."""

    enters = ("word",)
    reads = ("state",)
    parallel = True

    def advance(self, words: Words, state: RecurrentState, ready: RecurrentReady) -> Advance:
        """Move."""
        output, recurrent = self.recurrence(words, state.recurrent)
        return Advance(self.predict_from(output), None, replace(state, recurrent=recurrent))


ORDERS: dict[str, type[RecurrentDecoder]] = {
    "bahdanau": Bahdanau,
    "luong": Luong,
    "luong_feeding": LuongFeeding,
    "gnmt": Gnmt,
    "context": Context,
    "none": Unattended,
}
