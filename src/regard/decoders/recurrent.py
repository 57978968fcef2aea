"""Recurrent decoders: in which order state, look and word follow each other."""

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar, NamedTuple, cast

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from regard.attention import Attended, Attention, Past
from regard.attention.normalizers import hard, softmax
from regard.attention.scopes import Global, Scope
from regard.decoders.core import Decoder
from regard.decoders.plain import PlainLoop, unseen
from regard.decoders.pointer import Pointer
from regard.decoders.start import Bridge, Start
from regard.encoders import Layered
from regard.kernels.choose import takes, without_autocast
from regard.kernels.columns import Columns
from regard.kernels.dropout import dropout
from regard.kernels.linear import Linear, linear, one_gradient
from regard.layers.recurrence import Cell, Gates, Pace, Recurrence, Tower, beside, joined, layer_of
from regard.sources import TokenEmbedding
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
    hidden: Float[Tensor, "batch 1 source"] | None = None  # the mask as plain steps add it to their scores
    plain: PlainLoop | None = None  # what goes on token by token, where it can

    def for_beams(self) -> "RecurrentReady":
        """The same, its keys and values with an axis for the beams that share them."""
        if self.keys is None or self.values is None:
            return self
        return replace(self, keys=self.keys.unsqueeze(1), values=self.values.unsqueeze(1), plain=None)


@dataclass(frozen=True)
class RecurrentState(State):
    """Where a recurrent decoder is: its layers, and what it feeds to its next input."""

    recurrent: Recurrent
    feed: Float[Tensor, "rows 1 dim"] | None
    past: Past | None = None  # where it looked, for attentions that take account of it
    length: int = 0  # tokens read so far


Words = Float[Tensor, "rows tokens embedding"]
Parts = Sequence[Float[Tensor, "rows tokens _"]]
Move = Callable[[Tensor | None, Recurrent], tuple[Tensor, Recurrent]]
"""Words enter the lowest layers from a state, and what is fed with them: their outputs, and the state after."""


class Advance(NamedTuple):
    """What one stretch of words gives: parts to predict from, what was seen, the next state."""

    parts: Parts
    looked: Attended | None
    state: RecurrentState


class RecurrentDecoder(Decoder[RecurrentReady, RecurrentState]):
    """What all orders share; an order says what enters the cell, what is predicted from, who asks when."""

    enters: ClassVar[tuple[str, ...]]  # the parts of the cell's input: a word, and what is fed with it
    reads: ClassVar[tuple[str, ...]]  # the parts that the prediction is read from, as `read` joins them
    parallel: ClassVar[bool]  # whether `advance` takes many tokens at once

    def __init__(
        self,
        embedding: TokenEmbedding,
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
        self.readout = Linear(reading, dim)
        self.out = None if tied else Linear(dim, embedding.num_embeddings)
        self.columns: Columns | None = None
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

    @property
    def lowest(self) -> Recurrence:
        """The layers that words enter."""
        assert isinstance(self.recurrence, Recurrence)
        return self.recurrence

    @classmethod
    def looks(cls) -> bool:
        """Whether the order attends at all."""
        return "context" in cls.reads

    @classmethod
    def needs_source(cls) -> bool:
        """Whether there must be a source, looked at or summed up."""
        return not {"context", "summary"}.isdisjoint(cls.enters + cls.reads)

    def prepare(self, memory: Memory) -> RecurrentReady:
        """Project the keys once; what the mask hides is emptied first, so that no gradient meets it.

        All is as precise as the weights, so that it can be summed up over steps under autocast.
        """
        states = memory.states.masked_fill(~memory.mask.unsqueeze(-1), 0.0)
        top = memory.summary.hidden[:, -1:]
        keys = self._precise(self.attention.project(states)) if self.attention else None
        values = self._precise(self.attention.content(states)) if self.attention else None
        start = self.bridge(memory.summary).each(self._precise)
        plain = self.plain(memory)
        hidden = None if plain is None else unseen(memory.mask, start.hidden.dtype)
        return RecurrentReady(keys, values, memory.mask, start, top, memory.ids, hidden, plain)

    def _precise(self, values: Tensor) -> Tensor:
        return values.to(torch.promote_types(values.dtype, self.embedding.weight.dtype))

    def plain(self, memory: Memory) -> PlainLoop | None:
        """What plain steps take, or None if the modules are called."""
        if not takes("plain_recurrent", self, memory.mask, Global, softmax):
            return None
        gates = Gates.of(self.lowest, self.embedding.embedding_dim)
        return None if gates is None else PlainLoop(gates, cast(Scope | None, self.attention))

    def start(self, ready: RecurrentReady) -> RecurrentState:
        """The start made of the source's summary, and nothing fed yet."""
        past = None
        if self.remembers:
            precision = torch.promote_types(ready.start.hidden.dtype, torch.float32)  # of weights and their sum
            nothing = torch.zeros_like(ready.mask, dtype=precision).unsqueeze(1)
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
        """Read the tokens, all at once where the order allows it, else one by one."""
        words = dropout(self.embedding(tokens), self.dropout, self.training)
        if ready.plain is not None and tokens.shape[1] == 1:
            gates = ready.plain.gates
            advances = [self.advance(partial(gates.step, words, gates.given(words.squeeze(1))), state, ready)]
        elif self.parallel and not self.remembers and tokens.shape[1] > 1:
            advances = [self.advance(partial(self._run, words), state, ready.for_beams())]
        else:
            advances = self._walk(words, state, ready.for_beams())
        state = replace(advances[-1].state, length=state.length + tokens.shape[1])
        parts = [_joined(each) for each in zip(*(each.parts for each in advances), strict=True)]
        read = dropout(self.read(words, parts), self.dropout, self.training)
        looks = [each.looked for each in advances if each.looked is not None]
        maps = [each.weights for each in looks if each.weights is not None]
        drawn = [each.log_prob for each in looks if each.log_prob is not None]
        weights = _joined(maps) if maps else None
        logits = self.predict(read)
        if self.pointer is not None:
            assert weights is not None
            assert ready.ids is not None
            contexts = _joined([each.context for each in looks])
            logits = self.pointer(logits, [contexts, read, words], weights, ready.ids)
        return Step(logits, state, weights, _joined(drawn) if drawn else None)

    def _run(self, words: Words, fed: Tensor | None, state: Recurrent) -> tuple[Tensor, Recurrent]:
        """All words enter, one after another, and nothing that is fed waits for what comes out."""
        return self.lowest(beside(words, fed), state)

    def _walk(self, words: Words, state: RecurrentState, ready: RecurrentReady) -> list[Advance]:
        """Word by word."""
        pace = Pace(self.lowest, words)
        advances: list[Advance] = []
        with without_autocast(words), one_gradient():
            for index in range(words.shape[1]):
                advance = self.advance(partial(pace.step, index), state, ready)
                past = state.past
                if past is not None and advance.looked is not None and advance.looked.weights is not None:
                    past = past.then(advance.looked.weights.to(past.total.dtype))
                state = replace(advance.state, past=past, length=state.length + 1)
                advances.append(advance._replace(state=state))
        return advances

    def predict(self, read: Float[Tensor, "rows tokens dim"]) -> Float[Tensor, "rows tokens vocabulary"]:
        """A number for every word."""
        return linear(read, self.tied_weight(), None) if self.out is None else self.out(read)

    def tied_weight(self) -> Float[Tensor, "vocabulary dim"]:
        """The embedding, as it predicts words."""
        weight = self.embedding.weight
        return weight if self.columns is None else self.columns.of(weight)

    @abstractmethod
    def advance(self, move: Move, state: RecurrentState, ready: RecurrentReady) -> Advance:
        """Read one stretch of words."""

    def look(self, query: Float[Tensor, "rows tokens dim"], state: RecurrentState, ready: RecurrentReady) -> Attended:
        """Attend with every row to the memory of its source, which beams share and nobody copies."""
        assert self.attention is not None
        assert ready.keys is not None
        assert ready.values is not None
        if ready.plain is not None:
            return ready.plain.look(query, ready.keys, ready.values, ready.mask, ready.hidden, state.length)
        attended = self.attention(
            query.unflatten(0, (len(ready.mask), -1)),
            ready.keys,
            ready.values,
            mask=ready.mask[:, None, None],
            start=state.length,
            past=None if state.past is None else state.past.each(lambda rows: rows.unflatten(0, (len(ready.mask), -1))),
            cleared=True,
        )
        context, weights, log_prob = (None if each is None else each.flatten(0, 1) for each in attended)
        assert context is not None
        return Attended(context, weights, log_prob)

    def read(self, words: Words, parts: Parts) -> Float[Tensor, "rows tokens dim"]:
        """What is predicted from: one hidden layer over the parts, and over the words where the order reads them."""
        whole = [*parts, words] if "word" in self.reads else parts
        return torch.tanh(self.readout(torch.cat(list(whole), dim=-1)))


def _joined(stretches: Sequence[Float[Tensor, "rows _ *rest"]]) -> Float[Tensor, "rows tokens *rest"]:
    """One after another; of one alone nothing is copied."""
    return stretches[0] if len(stretches) == 1 else torch.cat(list(stretches), dim=1)


class Bahdanau(RecurrentDecoder):
    """Bahdanau et al. 2015: the previous state asks, the context enters the cell.

    c_t = attend(s_{t-1}),  s_t = f(s_{t-1}, [y_{t-1}; c_t]),  y_t from tanh(W [s_t; c_t; y_{t-1}] + b)
    """

    enters = ("word", "context")
    reads = ("state", "context", "word")
    parallel = False

    def advance(self, move: Move, state: RecurrentState, ready: RecurrentReady) -> Advance:
        """Look with the state of before, then move."""
        hidden = state.recurrent.hidden
        looked = self.look(hidden if hidden.shape[1] == 1 else hidden[:, -1:], state, ready)
        output, recurrent = move(looked.context, state.recurrent)
        return Advance((output, looked.context), looked, replace(state, recurrent=recurrent))


class Luong(RecurrentDecoder):
    """Luong et al. 2015, 3: the current state asks, so all steps run at once.

    h_t = f(h_{t-1}, y_{t-1}),  c_t = attend(h_t),  y_t from the attentional a_t = tanh(W [c_t; h_t] + b)
    """

    enters = ("word",)
    reads = ("context", "state")
    parallel = True

    def advance(self, move: Move, state: RecurrentState, ready: RecurrentReady) -> Advance:
        """Move, then look with the state of now."""
        output, recurrent = move(None, state.recurrent)
        looked = self.look(output, state, ready)
        return Advance((looked.context, output), looked, replace(state, recurrent=recurrent))


class LuongFeeding(RecurrentDecoder):
    """Luong et al. 2015, 3.3, input feeding: like `luong`, and a_{t-1} enters the cell beside y_{t-1}."""

    enters = ("word", "feed")
    reads = ("context", "state")
    parallel = False

    def first_feed(self, ready: RecurrentReady) -> Float[Tensor, "batch 1 dim"]:
        """Zeros: nothing was predicted yet."""
        return torch.zeros_like(ready.start.hidden[:, -1:])

    def advance(self, move: Move, state: RecurrentState, ready: RecurrentReady) -> Advance:
        """Move with what was predicted from last, then look with the state of now."""
        output, recurrent = move(state.feed, state.recurrent)
        looked = self.look(output, state, ready)
        attentional = torch.tanh(self.readout(torch.cat([looked.context, output], dim=-1)))
        return Advance((attentional,), looked, replace(state, recurrent=recurrent, feed=attentional))

    def read(self, words: Words, parts: Parts) -> Float[Tensor, "rows tokens dim"]:
        """What was fed."""
        return parts[0]


class GnmtStack(nn.Module):
    """A layer that asks, and a tower of layers that read the answer."""

    def __init__(self, bottom: Recurrence, tower: Tower) -> None:
        super().__init__()
        self.bottom, self.tower = bottom, tower
        self.dim, self.layers, self.cell_dim = bottom.dim, 1 + tower.layers, bottom.cell_dim


class Gnmt(RecurrentDecoder):
    """Wu et al. 2016, 3: the bottom layer's previous state asks, every layer above reads the answer; all steps at once.

    h1_t = f1(h1_{t-1}, y_{t-1}),  c_t = attend(h1_{t-1}),  hk_t = fk(hk_{t-1}, [h(k-1)_t; c_t]),
    from k = 3 on with h(k-1)_t added

    The bottom layer reads no context, so that its states are known before the first look.
    """

    enters = ("word",)
    reads = ("state", "context")
    parallel = True

    def stack(self, cell: Cell, entering: int, dim: int, layers: int, dropout: float, reader: Layered) -> GnmtStack:
        """The bottom layer by itself."""
        bottom = Recurrence(cell, input_dim=entering, dim=dim)
        return GnmtStack(bottom, Tower(cell, dim=dim, guest_dim=reader.dim, layers=layers - 1, dropout=dropout))

    @property
    def lowest(self) -> Recurrence:
        """The layer that asks."""
        assert isinstance(self.recurrence, GnmtStack)
        return self.recurrence.bottom

    def advance(self, move: Move, state: RecurrentState, ready: RecurrentReady) -> Advance:
        """Move the bottom, look with its outputs, move the others; the last output waits for the next word."""
        assert isinstance(self.recurrence, GnmtStack)
        assert state.feed is not None
        below, first = move(None, layer_of(state.recurrent, 0))
        looked = self.look(self.query(state.feed, below), state, ready)

        def run(layer: Recurrence, inputs: Tensor, number: int) -> tuple[Tensor, Recurrent]:
            return layer(inputs, layer_of(state.recurrent, number + 1))

        output, lasts = self.recurrence.tower(below, looked.context, run)
        after = replace(state, recurrent=joined([first, *lasts]), feed=below[:, -1:])
        return Advance((output, looked.context), looked, after)

    def first_feed(self, ready: RecurrentReady) -> Float[Tensor, "batch 1 dim"]:
        """The start of the bottom layer, which asks at the first word."""
        return ready.start.hidden[:, :1]

    def query(
        self, before: Float[Tensor, "rows 1 dim"], below: Float[Tensor, "rows tokens dim"]
    ) -> Float[Tensor, "rows tokens dim"]:
        """The bottom layer's output before each word: at the first, the one that was kept."""
        return before if below.shape[1] == 1 else torch.cat([before, below[:, :-1]], dim=1)


class GnmtV2(Gnmt):
    """tensorflow/nmt's `gnmt_v2`: like `gnmt`, but the bottom layer's current state asks.

    h1_t = f1(h1_{t-1}, y_{t-1}),  c_t = attend(h1_t),  hk_t = fk(hk_{t-1}, [h(k-1)_t; c_t]) (+ h(k-1)_t from k = 3 on)
    """

    def query(
        self, before: Float[Tensor, "rows 1 dim"], below: Float[Tensor, "rows tokens dim"]
    ) -> Float[Tensor, "rows tokens dim"]:
        """The bottom layer's output after each word."""
        return below


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

    def advance(self, move: Move, state: RecurrentState, ready: RecurrentReady) -> Advance:
        """Move, with the summary beside every word."""
        assert state.feed is not None
        output, recurrent = move(state.feed, state.recurrent)
        summary = state.feed.expand(-1, output.shape[1], -1)
        return Advance((output, summary), None, replace(state, recurrent=recurrent))


class Unattended(RecurrentDecoder):
    """Sutskever et al. 2014: no look at all, everything must pass through the summary it starts from."""

    enters = ("word",)
    reads = ("state",)
    parallel = True

    def advance(self, move: Move, state: RecurrentState, ready: RecurrentReady) -> Advance:
        """Move."""
        output, recurrent = move(None, state.recurrent)
        return Advance((output,), None, replace(state, recurrent=recurrent))


ORDERS: dict[str, type[RecurrentDecoder]] = {
    "bahdanau": Bahdanau,
    "luong": Luong,
    "luong_feeding": LuongFeeding,
    "gnmt": Gnmt,
    "gnmt_v2": GnmtV2,
    "context": Context,
    "none": Unattended,
}
