"""Recurrent decoders. An order says when the decoder attends, and what enters the cell and the prediction."""

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar, NamedTuple, cast

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from regard.attention import Attended, Attention, Past
from regard.attention.gates import ContextGate
from regard.attention.normalizers import hard, softmax
from regard.attention.scopes import Global, Scope
from regard.decoders.core import Decoder, States
from regard.decoders.plain import RecurrentStep, mask_bias
from regard.decoders.pointer import Pointer
from regard.decoders.start import Bridge, Start
from regard.encoders import Layered
from regard.kernels.choose import takes, without_autocast
from regard.kernels.dropout import dropout
from regard.kernels.linear import Linear, one_gradient
from regard.layers.recurrence import Cell, Gates, Outcome, Recurrence, Stepper, Tower, beside, joined, layer_of
from regard.sources import TokenEmbedding
from regard.types import Memory, Prepared, Recurrent, State, Step


@dataclass(frozen=True)
class RecurrentPrepared(Prepared):
    """The memory as a recurrent decoder attends to it: projected keys, values, mask and first state."""

    keys: Float[Tensor, "batch *heads source projected"] | None  # None if the order has no attention
    values: Float[Tensor, "batch *heads source dim"] | None
    mask: Bool[Tensor, "batch source"]
    start: Recurrent
    summary: Float[Tensor, "batch 1 read"]  # the final state of the encoder's top layer
    ids: Int[Tensor, "batch source"] | None = None  # the source's tokens, if they may be copied
    mask_bias: Float[Tensor, "batch 1 source"] | None = None  # the mask as a bias, for steps without modules
    plain: RecurrentStep | None = None  # for steps of one token without modules, if possible

    def for_beams(self) -> "RecurrentPrepared":
        """A copy for module calls: keys and values get an axis of size 1, which is broadcast over the beams."""
        if self.keys is None or self.values is None:
            return self
        return replace(self, keys=self.keys.unsqueeze(1), values=self.values.unsqueeze(1), plain=None)


@dataclass(frozen=True)
class RecurrentState(State):
    """The state of a recurrent decoder between steps: its layers' states, and the vector fed to the next input."""

    recurrent: Recurrent
    feed: Float[Tensor, "rows 1 dim"] | None
    past: Past | None = None  # attention weights so far, for attentions that use them
    length: int = 0  # tokens read so far


Words = Float[Tensor, "rows tokens embedding"]
Parts = Sequence[Float[Tensor, "rows tokens _"]]
# Runs the lowest layers over the words: (vector fed with the words, state) -> (outputs, next state).
RunCell = Callable[[Tensor | None, Recurrent], Outcome]


class Advance(NamedTuple):
    """The result of one or more consecutive words: inputs of the prediction, the attention's result, the next state."""

    parts: Parts
    attended: Attended | None
    state: RecurrentState


class RecurrentDecoder(Decoder[RecurrentPrepared, RecurrentState]):
    """Base class of recurrent decoders.

    Each order is a subclass: it says what enters the cell, what the prediction is computed from, and which state is the
    query of the attention at which time.
    """

    enters: ClassVar[tuple[str, ...]]  # the parts of the cell's input: a word, and what is concatenated to it
    reads: ClassVar[tuple[str, ...]]  # the parts that the prediction is computed from, as `read` concatenates them
    parallel: ClassVar[bool]  # whether `advance` can take many tokens at once

    def __init__(
        self,
        embedding: TokenEmbedding,
        attention: Attention | None,
        *,
        encoder: Layered,
        cell: Cell,
        dim: int,
        layers: int = 1,
        dropout: float = 0.0,
        start: type[Start] = Bridge,
        tied: bool = False,
        copies: bool = False,
        gated_context: bool = False,
        linear_readout: bool = False,
    ) -> None:
        super().__init__()
        widths = {"word": embedding.embedding_dim, "state": dim, "feed": dim}
        widths |= {"context": encoder.dim, "summary": encoder.dim}
        cell_width, readout_width = (sum(widths[part] for part in parts) for parts in (self.enters, self.reads))
        self.embedding = embedding
        self.attention = attention
        self.recurrence = self.stack(cell, cell_width, dim, layers, dropout, encoder)
        self.bridge = start(self.recurrence, encoder)
        self.readout, self.linear_readout = Linear(readout_width, dim), linear_readout
        self.out = None if tied else Linear(dim, embedding.num_embeddings)
        self.dropout, self.copies = dropout, copies
        self.pointer = Pointer(context_dim=encoder.dim, dim=dim, word_dim=embedding.embedding_dim) if copies else None
        self.context_gate = ContextGate(query_dim=dim) if gated_context else None
        is_hard = isinstance(attention, Scope) and attention.normalize is hard
        # The baseline of REINFORCE, which trains hard attention: a running mean of the reward.
        self.register_buffer("baseline", torch.zeros(()) if is_hard else None)

    def stack(
        self, cell: Cell, input_dim: int, dim: int, layers: int, dropout: float, encoder: Layered
    ) -> "Recurrence | GnmtStack":
        """Build the recurrent layers; `input_dim` is the width of their input."""
        return Recurrence(cell, input_dim=input_dim, dim=dim, layers=layers, dropout=dropout)

    @property
    def lowest(self) -> Recurrence:
        """The recurrent layers whose input are the words."""
        assert isinstance(self.recurrence, Recurrence)
        return self.recurrence

    @classmethod
    def attends(cls) -> bool:
        """Whether the order has attention."""
        return "context" in cls.reads

    @classmethod
    def needs_source(cls) -> bool:
        """Whether the order needs a source, for its attention or for its summary."""
        return not {"context", "summary"}.isdisjoint(cls.enters + cls.reads)

    def prepare(self, memory: Memory) -> RecurrentPrepared:
        """Project the keys and values once; masked states are set to 0 first, so junk there reaches no gradient.

        Under autocast, all results get at least the dtype of the parameters: their gradients are summed over steps.
        """
        states = memory.states.masked_fill(~memory.mask.unsqueeze(-1), 0.0)
        top = memory.summary.hidden[:, -1:]
        keys = self._precise(self.attention.project(states)) if self.attention else None
        values = self._precise(self.attention.content(states)) if self.attention else None
        start = self.bridge(memory.summary).map_tensors(self._precise)
        plain = self.plain(memory)
        bias = None if plain is None else mask_bias(memory.mask, start.hidden.dtype)
        return RecurrentPrepared(keys, values, memory.mask, start, top, memory.ids, bias, plain)

    def _precise(self, values: Tensor) -> Tensor:
        """The values with at least the precision of the parameters."""
        return values.to(torch.promote_types(values.dtype, self.embedding.weight.dtype))

    def plain(self, memory: Memory) -> RecurrentStep | None:
        """The parts for steps without modules, or None if steps must call the modules."""
        if not takes("plain_recurrent", self, memory.mask, Global, softmax):
            return None
        gates = Gates.of(self.lowest, self.embedding.embedding_dim)
        return None if gates is None else RecurrentStep(gates, cast(Scope | None, self.attention))

    def start(self, prepared: RecurrentPrepared) -> RecurrentState:
        """The first state, computed from the source's summary; attentions that use past weights begin with zeros."""
        past = None
        if self.remembers:
            precision = torch.promote_types(prepared.start.hidden.dtype, torch.float32)  # of the attention weights
            zeros = torch.zeros_like(prepared.mask, dtype=precision).unsqueeze(1)
            past = Past(zeros, zeros)
        return RecurrentState(prepared.start, self.first_feed(prepared), past)

    @property
    def remembers(self) -> bool:
        """Whether the attention uses the weights of earlier steps; if so, even a `parallel` order runs step by step."""
        return self.attention is not None and self.attention.uses_past

    def first_feed(self, prepared: RecurrentPrepared) -> Float[Tensor, "batch 1 dim"] | None:
        """The vector fed with the first token, for orders that feed one; None for others."""
        return None

    def step(self, tokens: Int[Tensor, "rows tokens"], state: RecurrentState, prepared: RecurrentPrepared) -> Step:
        """Read the tokens, all at once if order and attention allow it, else one by one."""
        words = dropout(self.embedding(tokens), self.dropout, self.training)
        if prepared.plain is not None and tokens.shape[1] == 1:
            gates = prepared.plain.gates
            advances = [self.advance(partial(gates.step, words, gates.word_part(words.squeeze(1))), state, prepared)]
        elif self.parallel and not self.remembers and tokens.shape[1] > 1:
            advances = [self.advance(partial(self._run, words), state, prepared.for_beams())]
        else:
            advances = self._walk(words, state, prepared.for_beams())
        state = replace(advances[-1].state, length=state.length + tokens.shape[1])
        parts = [_joined(stretches) for stretches in zip(*(advance.parts for advance in advances), strict=True)]
        read = dropout(self.read(words, parts), self.dropout, self.training)
        attended = [advance.attended for advance in advances if advance.attended is not None]
        maps = [step.weights for step in attended if step.weights is not None]
        log_probs = [step.log_prob for step in attended if step.log_prob is not None]
        weights = _joined(maps) if maps else None
        logits = self.predict(read)
        if self.pointer is not None:
            assert weights is not None
            assert prepared.ids is not None
            contexts = _joined([step.context for step in attended])
            logits = self.pointer(logits, [contexts, read, words], weights, prepared.ids)
        return Step(logits, state, weights, _joined(log_probs) if log_probs else None)

    def _run(self, words: Words, fed: Tensor | None, state: Recurrent) -> Outcome:
        """Run all words through the lowest layers in one call: what is fed does not depend on their outputs."""
        return self.lowest(beside(words, fed), state)

    def _walk(self, words: Words, state: RecurrentState, prepared: RecurrentPrepared) -> list[Advance]:
        """Advance word by word, for orders in which a step's input depends on the step before."""
        pace = Stepper(self.lowest, words)
        advances: list[Advance] = []
        with without_autocast(words), one_gradient():
            for index in range(words.shape[1]):
                advance = self.advance(partial(pace.step, index), state, prepared)
                past = state.past
                if past is not None and advance.attended is not None and advance.attended.weights is not None:
                    past = past.then(advance.attended.weights.to(past.total.dtype))
                state = replace(advance.state, past=past, length=state.length + 1)
                advances.append(advance._replace(state=state))
        return advances

    @abstractmethod
    def advance(self, run_cell: RunCell, state: RecurrentState, prepared: RecurrentPrepared) -> Advance:
        """Read one or more words: call `run_cell` for the lowest layers, and attend, in the order of the subclass."""

    def attend(self, query: States, state: RecurrentState, prepared: RecurrentPrepared) -> Attended:
        """Attend with every row to the memory of its source; the context is multiplied by its gate, if there is one."""
        attended = self.attend_ungated(query, state, prepared)
        if self.context_gate is None:
            return attended
        return attended._replace(context=self.context_gate(query, attended.context))

    def attend_ungated(self, query: States, state: RecurrentState, prepared: RecurrentPrepared) -> Attended:
        """Attend with every row to the memory of its source; beams share the memory without copies."""
        assert self.attention is not None
        assert prepared.keys is not None
        assert prepared.values is not None
        if prepared.plain is not None:
            return prepared.plain.attend(
                query, prepared.keys, prepared.values, prepared.mask, prepared.mask_bias, state.length
            )
        sources = prepared.mask.shape[0]
        attended = self.attention(
            query.unflatten(0, (sources, -1)),
            prepared.keys,
            prepared.values,
            mask=prepared.mask[:, None, None],
            start=state.length,
            past=None if state.past is None else state.past.map_tensors(lambda rows: rows.unflatten(0, (sources, -1))),
            cleared=True,
        )
        return Attended._make(None if part is None else part.flatten(0, 1) for part in attended)

    def read(self, words: Words, parts: Parts) -> States:
        """The vector that logits are computed from: one hidden layer over the parts that `reads` names."""
        return self.read_out([*parts, words] if "word" in self.reads else parts)

    def read_out(self, parts: Parts) -> States:
        """tanh(W [parts] + b), without the tanh if `linear_readout`."""
        linear = self.readout(torch.cat(list(parts), dim=-1))
        return linear if self.linear_readout else torch.tanh(linear)


def _joined(stretches: Sequence[Float[Tensor, "rows _ *rest"]]) -> Float[Tensor, "rows tokens *rest"]:
    """Concatenate along the tokens; a single tensor is returned without a copy."""
    return stretches[0] if len(stretches) == 1 else torch.cat(list(stretches), dim=1)


class Bahdanau(RecurrentDecoder):
    """Bahdanau et al. 2015: the previous state is the query, and the context enters the cell.

    c_t = attend(s_{t-1}),  s_t = f(s_{t-1}, [y_{t-1}; c_t]),  y_t from tanh(W [s_t; c_t; y_{t-1}] + b)
    """

    enters = ("word", "context")
    reads = ("state", "context", "word")
    parallel = False

    def advance(self, run_cell: RunCell, state: RecurrentState, prepared: RecurrentPrepared) -> Advance:
        """Attend with the previous state of the top layer, then run the cell."""
        hidden = state.recurrent.hidden
        attended = self.attend(hidden if hidden.shape[1] == 1 else hidden[:, -1:], state, prepared)
        output, recurrent = run_cell(attended.context, state.recurrent)
        return Advance((output, attended.context), attended, replace(state, recurrent=recurrent))


class Luong(RecurrentDecoder):
    """Luong et al. 2015, 3: the current state is the query; no context enters the cell, so all steps run at once.

    h_t = f(h_{t-1}, y_{t-1}),  c_t = attend(h_t),  y_t from the attentional a_t = tanh(W [c_t; h_t] + b)
    """

    enters = ("word",)
    reads = ("context", "state")
    parallel = True

    def advance(self, run_cell: RunCell, state: RecurrentState, prepared: RecurrentPrepared) -> Advance:
        """Run the cell, then attend with its new state."""
        output, recurrent = run_cell(None, state.recurrent)
        attended = self.attend(output, state, prepared)
        return Advance((attended.context, output), attended, replace(state, recurrent=recurrent))


class LuongFeeding(RecurrentDecoder):
    """Luong et al. 2015, 3.3, input feeding: like `luong`, but a_{t-1} enters the cell together with y_{t-1}."""

    enters = ("word", "feed")
    reads = ("context", "state")
    parallel = False

    def first_feed(self, prepared: RecurrentPrepared) -> Float[Tensor, "batch 1 dim"]:
        """A zero vector in place of a_0: before the first token there is no attentional vector to feed."""
        return torch.zeros_like(prepared.start.hidden[:, -1:])

    def advance(self, run_cell: RunCell, state: RecurrentState, prepared: RecurrentPrepared) -> Advance:
        """Run the cell with a_{t-1} fed, then attend with its new state."""
        output, recurrent = run_cell(state.feed, state.recurrent)
        attended = self.attend(output, state, prepared)
        attentional = self.read_out([attended.context, output])
        return Advance((attentional,), attended, replace(state, recurrent=recurrent, feed=attentional))

    def read(self, words: Words, parts: Parts) -> States:
        """The attentional vector a_t, which `advance` has computed already."""
        return parts[0]


class GnmtStack(nn.Module):
    """The layers of GNMT's decoder: the bottom layer makes the queries, the layers above it read the context."""

    def __init__(self, bottom: Recurrence, tower: Tower) -> None:
        super().__init__()
        self.bottom, self.tower = bottom, tower
        self.dim, self.layers, self.cell_dim = bottom.dim, 1 + tower.layers, bottom.cell_dim


class Gnmt(RecurrentDecoder):
    """Wu et al. 2016, 3: the bottom layer's previous state is the query, and all layers above read the context.

    h1_t = f1(h1_{t-1}, y_{t-1}),  c_t = attend(h1_{t-1}),  hk_t = fk(hk_{t-1}, [h(k-1)_t; c_t]),
    from k = 3 on with h(k-1)_t added

    The bottom layer reads no context, so its states do not depend on the attention: all steps run at once.
    """

    enters = ("word",)
    reads = ("state", "context")
    parallel = True

    def stack(self, cell: Cell, input_dim: int, dim: int, layers: int, dropout: float, encoder: Layered) -> GnmtStack:
        """Build the bottom layer apart from the layers above it, which also read the context."""
        bottom = Recurrence(cell, input_dim=input_dim, dim=dim)
        return GnmtStack(bottom, Tower(cell, dim=dim, context_dim=encoder.dim, layers=layers - 1, dropout=dropout))

    @property
    def lowest(self) -> Recurrence:
        """The bottom layer, whose states are the queries."""
        assert isinstance(self.recurrence, GnmtStack)
        return self.recurrence.bottom

    def advance(self, run_cell: RunCell, state: RecurrentState, prepared: RecurrentPrepared) -> Advance:
        """Run the bottom layer, attend, run the layers above; the state keeps the bottom layer's last output."""
        assert isinstance(self.recurrence, GnmtStack)
        assert state.feed is not None
        below, first = run_cell(None, layer_of(state.recurrent, 0))
        attended = self.attend(self.query(state.feed, below), state, prepared)

        def run(layer: Recurrence, inputs: Tensor, number: int) -> Outcome:
            return layer(inputs, layer_of(state.recurrent, number + 1))

        output, lasts = self.recurrence.tower(below, attended.context, run)
        after = replace(state, recurrent=joined([first, *lasts]), feed=below[:, -1:])
        return Advance((output, attended.context), attended, after)

    def first_feed(self, prepared: RecurrentPrepared) -> Float[Tensor, "batch 1 dim"]:
        """The first state of the bottom layer, which is the query at the first word."""
        return prepared.start.hidden[:, :1]

    def query(self, before: Float[Tensor, "rows 1 dim"], below: States) -> States:
        """The attention's query for each word: the output of the lowest layer before that word.

        For the first word it is `before`, kept from the last step.
        """
        return before if below.shape[1] == 1 else torch.cat([before, below[:, :-1]], dim=1)


class GnmtV2(Gnmt):
    """tensorflow/nmt's `gnmt_v2`: like `gnmt`, but the bottom layer's current state is the query.

    h1_t = f1(h1_{t-1}, y_{t-1}),  c_t = attend(h1_t),  hk_t = fk(hk_{t-1}, [h(k-1)_t; c_t]) (+ h(k-1)_t from k = 3 on)
    """

    def query(self, before: Float[Tensor, "rows 1 dim"], below: States) -> States:
        """The attention's query for each word: the output of the lowest layer after it has read that word."""
        return below


class Context(RecurrentDecoder):
    """Cho et al. 2014: no attention; the summary c of the source enters every step.

    h_t = f(h_{t-1}, [y_{t-1}; c]),  y_t from tanh(W [h_t; c; y_{t-1}] + b)
    """

    enters = ("word", "summary")
    reads = ("state", "summary", "word")
    parallel = True

    def first_feed(self, prepared: RecurrentPrepared) -> Float[Tensor, "batch 1 dim"]:
        """The summary, which is fed at every step."""
        return prepared.summary

    def advance(self, run_cell: RunCell, state: RecurrentState, prepared: RecurrentPrepared) -> Advance:
        """Run the recurrent layers over all words, each with the summary of the source concatenated to it."""
        assert state.feed is not None
        output, recurrent = run_cell(state.feed, state.recurrent)
        summary = state.feed.expand(-1, output.shape[1], -1)
        return Advance((output, summary), None, replace(state, recurrent=recurrent))


class Unattended(RecurrentDecoder):
    """Sutskever et al. 2014: no attention; the source is known only through the state that the decoder starts from."""

    enters = ("word",)
    reads = ("state",)
    parallel = True

    def advance(self, run_cell: RunCell, state: RecurrentState, prepared: RecurrentPrepared) -> Advance:
        """Run the cell."""
        output, recurrent = run_cell(None, state.recurrent)
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
