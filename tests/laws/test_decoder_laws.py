"""Laws of encoders and decoders, over every order, cell, depth and score, and over Transformers."""

from contextlib import nullcontext
from itertools import product

import pytest
import torch
from small import (
    ATTENDING,
    BATCH,
    DEFAULT,
    TRANSFORMERS,
    WINDOW,
    Case,
    Variant,
    every_decoder,
    every_kind,
    leaves,
    make_model,
    make_sources,
    near,
    recurrent_cases,
    same,
    sums_to_one,
    transformer,
)
from torch import Tensor, nn
from torch.nn import functional

from regard.attention import POSITIONS, SCOPES
from regard.attention.scopes import Coverage, LocationAware
from regard.decoders import DECODERS, ORDERS, STARTS, RecurrentDecoder
from regard.encoders import ENCODERS
from regard.errors import RecipeError
from regard.layers.recurrence import CELLS, Recurrence
from regard.layers.transformer import ACTIVATIONS, INITS, NORM_KINDS, NORMS
from regard.maps import TEXT
from regard.types import BEGIN, Memory, Padded, Recurrent, Step
from shapes import unchecked

LENGTHS = (7, 4, 2)
TARGET = 6


def make_tokens(rows: int, length: int = TARGET) -> Tensor:
    tokens = torch.randint(4, 11, (rows, length))
    tokens[:, 0] = BEGIN
    return tokens


def steps_agree(actual: Step, expected: Step, rows: slice = slice(None), tokens: slice = slice(None)) -> None:
    """Assert that logits and maps are those of the given rows and tokens."""
    near(actual.logits, expected.logits[rows, tokens])
    assert (actual.attention is None) == (expected.attention is None)
    if actual.attention is not None:
        near(actual.attention, expected.attention[rows, tokens])


def states_agree(actual: Step, expected: Step) -> None:
    assert actual.state.length == expected.state.length
    for mine, other in zip(leaves(actual.state), leaves(expected.state), strict=True):
        near(mine, other)


# The equations of the orders, one sentence and one token at a time: a new entry of the table adds its own here.


Weights = list[Tensor]  # in the order of torch: of the input, of the state, both biases, the projection


def affine(word: Tensor, hidden: Tensor, weights: Weights) -> tuple[Tensor, Tensor]:
    """The projections of the input and of the state, with their biases if there are any."""
    input_weight, state_weight, *biases = weights
    input_bias, state_bias = biases[:2] if len(biases) > 1 else (0.0, 0.0)
    return input_weight @ word + input_bias, state_weight @ hidden + state_bias


def rnn(word: Tensor, hidden: Tensor, cell: Tensor, weights: Weights) -> tuple[Tensor, Tensor]:
    return torch.tanh(sum(affine(word, hidden, weights))), cell


def gru(word: Tensor, hidden: Tensor, cell: Tensor, weights: Weights) -> tuple[Tensor, Tensor]:
    of_input, of_state = affine(word, hidden, weights)
    (reset_in, update_in, new_in), (reset_state, update_state, new_state) = of_input.chunk(3), of_state.chunk(3)
    reset, update = torch.sigmoid(reset_in + reset_state), torch.sigmoid(update_in + update_state)
    new = torch.tanh(new_in + reset * new_state)
    return (1 - update) * new + update * hidden, cell


def lstm(word: Tensor, hidden: Tensor, cell: Tensor, weights: Weights) -> tuple[Tensor, Tensor]:
    input_gate, forget_gate, new, output_gate = sum(affine(word, hidden, weights)).chunk(4)
    cell = torch.sigmoid(forget_gate) * cell + torch.sigmoid(input_gate) * torch.tanh(new)
    output = torch.sigmoid(output_gate) * torch.tanh(cell)
    return (weights[-1] @ output if len(weights) in (3, 5) else output), cell


CELL_EQUATIONS = {"rnn": rnn, "gru": gru, "lstm": lstm}


def bridge(decoder: RecurrentDecoder, cell: str, summary: Recurrent, row: int) -> tuple[Tensor, Tensor]:
    top = summary.hidden[row, -1]
    hidden = torch.tanh(decoder.bridge.hidden.weight @ top + decoder.bridge.hidden.bias)
    if cell != "lstm":
        return hidden, hidden
    return hidden, torch.tanh(decoder.bridge.cell.weight @ top + decoder.bridge.cell.bias)


def last(decoder: RecurrentDecoder, cell: str, summary: Recurrent, row: int) -> tuple[Tensor, Tensor]:
    return summary.hidden[row].flatten(), summary.hidden[row].flatten() if cell != "lstm" else summary.cell[
        row
    ].flatten()


def zeros(decoder: RecurrentDecoder, cell: str, summary: Recurrent, row: int) -> tuple[Tensor, Tensor]:
    state = torch.zeros(decoder.recurrence.layers * decoder.recurrence.dim, dtype=torch.float64)
    return state, state


START_EQUATIONS = {"bridge": bridge, "last": last, "zeros": zeros}


class DecoderByEquations:
    """A recurrent decoder computed from its parameters, for one sentence without padding."""

    def __init__(self, decoder: RecurrentDecoder, case: Case, memory: Memory, row: int, length: int):
        self.decoder, self.cell_function, self.states = decoder, CELL_EQUATIONS[case.cell], memory.states[row, :length]
        hidden, cell = START_EQUATIONS[case.start](decoder, case.cell, memory.summary, row)
        self.hidden, self.cell = list(hidden.chunk(case.layers)), list(cell.chunk(case.layers))
        self.summary = memory.summary.hidden[row, -1]
        self.feed = torch.zeros_like(self.hidden[-1])
        self.map: list[Tensor] = []

    def update(self, word: Tensor) -> Tensor:
        """Update the states of all layers; returns the output of the top layer."""
        for layer, weights in enumerate(self.decoder.recurrence.rnn.all_weights):
            word, cell = self.cell_function(word, self.hidden[layer], self.cell[layer], weights)
            self.hidden[layer], self.cell[layer] = word, cell
        return word

    def attend(self, query: Tensor) -> Tensor:
        """The context of one query without padding; the laws of attention check that one query."""
        attention, states = self.decoder.attention, self.states.unsqueeze(0)
        context, weights, _ = attention(
            query.view(1, 1, -1),
            attention.project(states) + self.key_offsets(attention, len(self.states)),
            attention.content(states),
            mask=None,
            start=len(self.map),
        )
        self.map.append(weights[0, 0])
        return context[0, 0] * self.gate(query)

    def gate(self, query: Tensor) -> Tensor | float:
        """Xu et al. 2015: the gate of the context; 1 without one."""
        if self.decoder.context_gate is None:
            return 1.0
        weight, bias = self.decoder.context_gate.query.weight, self.decoder.context_gate.query.bias
        return 1 / (1 + torch.exp(-(weight @ query + bias)))

    def key_offsets(self, attention: nn.Module, length: int) -> Tensor | float:
        """What the weights of the steps before add to each projected key."""
        if isinstance(attention, Coverage):
            coverage = sum(self.map, torch.zeros(length, dtype=torch.float64))
            return torch.outer(coverage, attention.move.weight[:, 0])
        if isinstance(attention, LocationAware):
            last = self.map[-1] if self.map else torch.zeros(length, dtype=torch.float64)
            padded = functional.pad(last, (WINDOW, WINDOW))
            filters = attention.filters.weight[:, 0]
            features = [filters @ padded[at : at + 2 * WINDOW + 1] for at in range(length)]
            return torch.stack([attention.move.weight @ feature for feature in features])
        return 0.0

    def predict(self, *parts: Tensor) -> Tensor:
        self.feed = torch.tanh(self.decoder.readout(torch.cat(parts)))
        words = self.decoder.embedding if self.decoder.out is None else self.decoder.out
        return words.weight @ self.feed + getattr(words, "bias", 0.0)

    def bahdanau(self, word: Tensor) -> Tensor:
        context = self.attend(self.hidden[-1])
        return self.predict(self.update(torch.cat([word, context])), context, word)

    def luong(self, word: Tensor) -> Tensor:
        state = self.update(word)
        return self.predict(self.attend(state), state)

    def luong_feeding(self, word: Tensor) -> Tensor:
        state = self.update(torch.cat([word, self.feed]))
        return self.predict(self.attend(state), state)

    def gnmt(self, word: Tensor) -> Tensor:
        return self.tower(word, query=self.hidden[0])  # the state after the step before

    def gnmt_v2(self, word: Tensor) -> Tensor:
        return self.tower(word, query=None)

    def tower(self, word: Tensor, query: Tensor | None) -> Tensor:
        """Layer by layer; without a query, the new state of the bottom layer is the query."""
        stack = self.decoder.recurrence
        below, context = word, None
        for number, layer in enumerate([stack.bottom, *stack.tower.stack]):
            inputs = below if context is None else torch.cat([below, context])
            output, cell = self.cell_function(inputs, self.hidden[number], self.cell[number], layer.rnn.all_weights[0])
            self.hidden[number], self.cell[number] = output, cell
            context = self.attend(output if query is None else query) if context is None else context
            below = output + below if number > 1 else output  # residual connections begin at the third layer
        return self.predict(below, context)

    def context(self, word: Tensor) -> Tensor:
        return self.predict(self.update(torch.cat([word, self.summary])), self.summary, word)

    def none(self, word: Tensor) -> Tensor:
        return self.predict(self.update(word))


@pytest.mark.parametrize(
    "case", recurrent_cases() + [case for case in TRANSFORMERS if case.decoder == "recurrent"], ids=str
)
def test_an_order_is_its_equations(case):
    model = make_model(case)
    source, tokens = make_sources(*LENGTHS), make_tokens(BATCH)
    memory = model.encoder(source)
    step = model.decoder(tokens, memory)
    for row, length in enumerate(LENGTHS):
        by_equations = DecoderByEquations(model.decoder, case, memory, row, length)
        logits = [getattr(by_equations, case.order)(model.decoder.embedding.weight[token]) for token in tokens[row]]
        near(step.logits[row], torch.stack(logits))
        if case.order in ATTENDING:
            near(step.attention[row, :, :length], torch.stack(by_equations.map))


@every_decoder()
@pytest.mark.parametrize("chunks", [(1,) * TARGET, (2, 1, 3), (5, 1)], ids=len)
def test_stepping_retells_forward(case, chunks):
    model = make_model(case)
    memory, tokens = model.encoder(make_sources(*LENGTHS)), make_tokens(BATCH)
    expected = model.decoder(tokens, memory)
    prepared = model.decoder.prepare(memory)
    state, at = model.decoder.start(prepared), 0
    for size in chunks:
        with unchecked() if size == 1 else nullcontext():
            step = model.decoder.step(tokens[:, at : at + size], state, prepared)
        steps_agree(step, expected, tokens=slice(at, at + size))
        state, at = step.state, at + size
    assert at == TARGET == state.length
    states_agree(step, expected)


@every_decoder()
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_batch_mates_change_nothing(case, dtype):
    # Weights of 0.4 amplify float32's rounding to 1.4e-5 of the exact result, of 0.2 to 1.6e-6, on every kind of CPU.
    scale, tolerance = (0.4, 1e-10) if dtype == torch.float64 else (0.2, 1e-5)
    model = make_model(case, dtype=dtype, scale=scale)
    source, tokens = make_sources(*LENGTHS), make_tokens(BATCH)
    together = model.decoder(tokens, model.encoder(source))
    for row, length in enumerate(LENGTHS):
        own = Padded(source.ids[row : row + 1, :length], source.mask[row : row + 1, :length])
        with unchecked():
            alone = model.decoder(tokens[row : row + 1, : row + 3], model.encoder(own))
        near(alone.logits[0].log_softmax(-1), together.logits[row, : row + 3].log_softmax(-1), tolerance)
        if alone.attention is not None:
            near(alone.attention[0], together.attention[row, : row + 3, :length], tolerance)


@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("bidirectional", [True, False])
def test_padding_changes_nothing_in_the_encoder(cell, layers, bidirectional):
    model = make_model(Case(cell=cell, layers=layers), bidirectional=bidirectional)
    source = make_sources(*LENGTHS)
    together = model.encoder(source)
    assert together.states.shape == (BATCH, max(LENGTHS), 14)
    assert together.summary.hidden.shape == (BATCH, layers, 14)
    assert (together.summary.cell is None) == (cell != "lstm")
    assert (together.states[~source.mask] == 0).all()
    same(together.mask, source.mask)
    for row, length in enumerate(LENGTHS):
        own = Padded(source.ids[row : row + 1, :length], source.mask[row : row + 1, :length])
        alone = model.encoder(own)
        near(alone.states[0], together.states[row, :length])
        for mine, others in zip(leaves(alone.summary), leaves(together.summary), strict=True):
            near(mine[0], others[row])


WITH_TRANSFORMER_ENCODER = [case for case in TRANSFORMERS if case.encoder == "transformer"]
# In this one, padding sees no key at all.
WITH_TRANSFORMER_ENCODER.append(transformer("none", variant=Variant("scaled_dot", "sigmoid", "local_m", 2)))


@pytest.mark.parametrize("case", WITH_TRANSFORMER_ENCODER, ids=str)
def test_padding_changes_nothing_in_a_transformer(case):
    model, source = make_model(case), make_sources(*LENGTHS)
    together, dim = model.encoder(source), model.encoder.dim
    assert together.states.shape == (BATCH, max(LENGTHS), dim)
    assert (together.states[~source.mask] == 0).all()
    same(together.mask, source.mask)
    for row, length in enumerate(LENGTHS):
        own = Padded(source.ids[row : row + 1, :length], source.mask[row : row + 1, :length])
        alone = model.encoder(own)
        near(alone.states[0], together.states[row, :length])
        near(together.summary.hidden[row], alone.states.mean(1))
    assert together.summary.cell is None
    assert (model.encoder.layers, model.encoder.cell_dim) == (1, None)


@pytest.mark.parametrize(
    ("case", "bidirectional"),
    [(Case(cell=cell, layers=layers), both) for cell, layers, both in product(CELLS, (1, 2), (True, False))]
    + [(case, True) for case in WITH_TRANSFORMER_ENCODER],
    ids=str,
)
def test_the_tokens_in_the_padding_do_not_matter(case, bidirectional):
    model = make_model(case, bidirectional=bidirectional)
    source = make_sources(*LENGTHS)
    other = Padded(source.ids.masked_fill(~source.mask, 5), source.mask)
    for mine, others in zip(leaves(model.encoder(other)), leaves(model.encoder(source)), strict=True):
        same(mine, others)


def test_a_source_of_padding_alone_gives_zeros_and_finite_gradients():
    for case in WITH_TRANSFORMER_ENCODER:
        model, source = make_model(case), make_sources(*LENGTHS)
        empty = Padded(source.ids, source.mask & torch.tensor([[True], [False], [True]]))
        memory = model.encoder(empty)
        memory.states.square().sum().backward()
        assert (memory.states[1] == 0).all()
        assert (memory.summary.hidden[1] == 0).all()
        near(memory.states[0], model.encoder(source).states[0])
        assert all(parameter.grad.isfinite().all() for parameter in model.encoder.parameters())


@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("bidirectional", [True, False])
def test_the_summary_is_the_last_state_of_each_direction(cell, layers, bidirectional):
    memory = make_model(Case(cell=cell, layers=layers), bidirectional=bidirectional).encoder(make_sources(*LENGTHS))
    top, half = memory.summary.hidden[:, -1], 7 if bidirectional else 14
    for row, length in enumerate(LENGTHS):
        near(top[row, :half], memory.states[row, length - 1, :half])
        near(top[row, half:], memory.states[row, 0, half:])


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(("cell", "inner_dim"), [*((cell, 0) for cell in CELLS), ("lstm", 17)])
def test_the_encoder_is_its_equations(cell, inner_dim, bias):
    model = make_model(Case(cell=cell, layers=2, inner_dim=inner_dim, bias=bias), bidirectional=False)
    source = make_sources(*LENGTHS)
    memory = model.encoder(source)
    for row, length in enumerate(LENGTHS):
        hidden = list(torch.zeros(2, 14, dtype=torch.float64))
        cells = list(torch.zeros(2, inner_dim or 14, dtype=torch.float64))
        for at in range(length):
            word = model.encoder.embedding.weight[source.ids[row, at]]
            for layer, weights in enumerate(model.encoder.recurrence.rnn.all_weights):
                word, cells[layer] = CELL_EQUATIONS[cell](word, hidden[layer], cells[layer], weights)
                hidden[layer] = word
            near(memory.states[row, at], word)
        near(memory.summary.hidden[row], torch.stack(hidden))
        if cell == "lstm":
            near(memory.summary.cell[row], torch.stack(cells))


@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize("layers", [1, 2, 4])
def test_the_encoder_of_gnmt_is_its_equations_and_batch_mates_change_nothing(cell, layers):
    model = make_model(Case(cell=cell, layers=layers, encoder="gnmt"))
    source = make_sources(*LENGTHS)
    memory = model.encoder(source)
    assert (memory.states[~source.mask] == 0).all()
    assert memory.summary.hidden.shape == (BATCH, layers, 14)
    directions = [model.encoder.bottom.rnn.all_weights[direction] for direction in (0, 1)]

    def run(words: list[Tensor], weights: Weights) -> tuple[list[Tensor], Tensor]:
        states = []
        state = cell_state = torch.zeros(weights[1].shape[1], dtype=torch.float64)
        for word in words:
            state, cell_state = CELL_EQUATIONS[cell](word, state, cell_state, weights)
            states.append(state)
        return states, cell_state

    for row, length in enumerate(LENGTHS):
        words = [model.encoder.embedding.weight[token] for token in source.ids[row, :length]]
        forward, _ = run(words, directions[0])
        backward, _ = run(words[::-1], directions[1])
        states = [torch.cat(pair) for pair in zip(forward, backward[::-1], strict=True)]
        near(memory.summary.hidden[row, 0], torch.cat([forward[-1], backward[-1]]))
        for number, layer in enumerate(model.encoder.tower.stack):
            outputs, cell_state = run(states, layer.rnn.all_weights[0])
            near(memory.summary.hidden[row, number + 1], outputs[-1])
            if cell == "lstm":
                near(memory.summary.cell[row, number + 1], cell_state)
            states = [a + b for a, b in zip(outputs, states, strict=True)] if number else outputs
        near(memory.states[row, :length], torch.stack(states))


@pytest.mark.parametrize(
    ("cell", "inner_dim", "bidirectional", "message"),
    [
        ("gru", 20, True, "only an lstm has an inner_dim"),
        ("rnn", 20, False, "only an lstm has an inner_dim"),
        ("lstm", 14, False, "inner_dim must be greater than the dim it is projected to, 14, but is 14"),
        ("lstm", 17, True, "inner_dim is split between two directions, so it must be even, but is 17"),
    ],
)
def test_an_impossible_projection_is_refused(cell, inner_dim, bidirectional, message):
    with pytest.raises(RecipeError, match=message):
        make_model(Case(cell=cell, inner_dim=inner_dim), bidirectional=bidirectional)


@pytest.mark.parametrize("inner_dim", [16, 18])
def test_a_projected_summary_has_the_width_of_cell_dim(inner_dim):
    model = make_model(Case("none", "lstm", 2, inner_dim=inner_dim))
    summary = model.encoder(make_sources(*LENGTHS)).summary
    assert model.encoder.recurrence.cell_dim == summary.cell.shape[-1] == inner_dim
    assert summary.hidden.shape == (BATCH, 2, 14)


@pytest.mark.parametrize(
    ("encoder", "decoder"),
    [
        ({"dim": 14}, {"dim": 12}),
        ({"dim": 14, "layers": 2}, {"dim": 14}),
        ({"dim": 14, "cell": CELLS["lstm"]}, {"dim": 14}),
        ({"dim": 14, "cell": CELLS["lstm"], "inner_dim": 16}, {"dim": 14, "cell": CELLS["lstm"]}),
    ],
)
def test_the_start_last_needs_states_of_one_shape(encoder, decoder):
    recurrences = [Recurrence(**{"cell": CELLS["gru"], "input_dim": 5} | sizes) for sizes in (decoder, encoder)]
    with pytest.raises(RecipeError, match=r"the start 'last' hands the encoder's state over as it is.*choose 'bridge'"):
        STARTS["last"](*recurrences)


@every_decoder()
def test_select_takes_rows_of_the_whole_state(case):
    model = make_model(case)
    memory, tokens = model.encoder(make_sources(*LENGTHS)), make_tokens(BATCH)
    prepared = model.decoder.prepare(memory)
    before = model.decoder.step(tokens, model.decoder.start(prepared), prepared).state
    index, more = torch.tensor([2, 0, 2, 1]), torch.randint(4, 11, (4, 3))
    for mine, others in zip(leaves(before.select(index)), leaves(before), strict=True):
        same(mine, others[index])
    step = model.decoder.step(more, before.select(index), prepared.select(index))
    expected = model.decoder(torch.cat([tokens[index], more], dim=1), memory.select(index))
    steps_agree(step, expected, tokens=slice(TARGET, None))
    states_agree(step, expected)


@every_decoder()
def test_beams_share_the_prepared_memory(case):
    model, width = make_model(case), 2
    memory, tokens = model.encoder(make_sources(*LENGTHS)), make_tokens(BATCH * width)
    prepared = model.decoder.prepare(memory)
    shared = model.decoder.step(tokens, model.decoder.start(prepared).repeat(width), prepared)
    repeated = model.decoder(tokens, memory.repeat(width))
    steps_agree(shared, repeated)
    states_agree(shared, repeated)
    index, more = torch.tensor([1, 1, 3, 2, 4, 4]), torch.randint(4, 11, (BATCH * width, 1))
    shared = model.decoder.step(more, shared.state.select(index), prepared)
    expected = model.decoder(torch.cat([tokens[index], more], dim=1), memory.repeat(width))
    steps_agree(shared, expected, tokens=slice(TARGET, None))


def test_repeat_puts_copies_side_by_side():
    state = Recurrent(torch.arange(6.0).reshape(3, 1, 2), torch.arange(6.0, 12.0).reshape(3, 1, 2))
    twice = state.repeat(2)
    assert twice.hidden[:, 0, 0].tolist() == [0, 0, 2, 2, 4, 4]
    assert twice.cell[:, 0, 1].tolist() == [7, 7, 9, 9, 11, 11]
    memory = Memory(torch.randn(3, 5, 2), torch.ones(3, 5, dtype=torch.bool), state, TEXT).select(torch.tensor([2]))
    assert memory.summary.hidden.flatten().tolist() == [4, 5]


@every_decoder()
def test_the_map_has_no_negative_weights_and_none_on_padding(case):
    model, source = make_model(case), make_sources(*LENGTHS)
    step = model.decoder(make_tokens(BATCH), model.encoder(source))
    assert step.logits.shape == (BATCH, TARGET, 11)
    if not case.attends():
        assert step.attention is None
        return
    assert step.attention.shape == (BATCH, TARGET, max(LENGTHS))
    sums = step.attention.sum(-1)
    if sums_to_one(case.variant):
        near(sums, ((sums > 0) if case.variant.scope == "local_m" else torch.ones_like(sums)).double())
    elif case.variant.normalizer != "sigmoid":
        assert (sums <= 1).all()
    assert (step.attention >= 0).all()
    assert (step.attention.transpose(1, 2)[~source.mask] == 0).all()


@pytest.mark.parametrize("order", [order for order in ORDERS if order not in ATTENDING])
def test_an_order_without_attention_reads_only_the_summary(order):
    assert not ORDERS[order].attends()
    model = make_model(Case(order))
    assert model.decoder.attention is None
    memory = model.encoder(make_sources(*LENGTHS))
    other = Memory(torch.randn_like(memory.states), memory.mask, memory.summary, TEXT)
    tokens = make_tokens(BATCH)
    same(model.decoder(tokens, other).logits, model.decoder(tokens, memory).logits)


def test_without_attention_and_with_the_start_zeros_the_source_does_not_matter():
    model, tokens = make_model(Case("none", start="zeros")), make_tokens(BATCH)
    logits = [model.decoder(tokens, model.encoder(make_sources(*lengths))).logits for lengths in (LENGTHS, (3, 3, 3))]
    same(*logits)


@every_decoder()
def test_every_parameter_has_a_gradient_under_dropout(case):
    model = make_model(case, dropout=0.3, dtype=torch.float32).train()
    step = model.decoder(make_tokens(BATCH), model.encoder(make_sources(*LENGTHS)))
    total = step.logits.log_softmax(-1)[..., 5].sum()
    if step.log_prob is not None:  # hard attention gets its gradient from the log-probability of its samples
        total = total + step.log_prob.sum()
    total.backward()
    reached = model.decoder if (case.order, case.start) == ("none", "zeros") else model
    for name, parameter in reached.named_parameters():
        # The score location reads the position of a key, not its content.
        unread = case.variant.score == "location" and ".cross.key." in name
        assert parameter.grad is not None or unread, name
        assert parameter.grad is None or parameter.grad.isfinite().all(), name
        assert (parameter.grad is not None and parameter.grad.any()) != unread, name


@every_kind()
def test_dropout_acts_only_in_training(case):
    model, source, tokens = make_model(case, dropout=0.3), make_sources(*LENGTHS), make_tokens(BATCH)
    memory = model.encoder(source)
    same(model.encoder(source).states, memory.states)
    same(model.decoder(tokens, memory).logits, model.decoder(tokens, memory).logits)
    model.train()
    assert not torch.equal(model.encoder(source).states, model.encoder(source).states)
    assert not torch.equal(model.decoder(tokens, memory).logits, model.decoder(tokens, memory).logits)


@every_kind()
def test_later_tokens_do_not_reach_earlier_predictions(case):
    model, tokens = make_model(case), make_tokens(BATCH)
    memory = model.encoder(make_sources(*LENGTHS))
    other = tokens.clone()
    other[:, 3:] = tokens[:, 3:] % 7 + 4
    assert not torch.equal(other, tokens)
    near(model.decoder(other, memory).logits[:, :3], model.decoder(tokens, memory).logits[:, :3])


@every_kind()
def test_a_step_changes_no_argument(case):
    model = make_model(case)
    prepared = model.decoder.prepare(model.encoder(make_sources(*LENGTHS)))
    state, tokens = model.decoder.start(prepared), make_tokens(BATCH)
    for chunk in (tokens[:, :4], tokens[:, 4:]):  # from an empty state, then from one with a past
        before = [tensor.clone() for argument in (prepared, state) for tensor in leaves(argument)]
        step = model.decoder.step(chunk, state, prepared)
        after = [tensor for argument in (prepared, state) for tensor in leaves(argument)]
        for mine, others in zip(after, before, strict=True):
            same(mine, others)
        state = step.state


@every_kind()
def test_autocast_runs_and_keeps_the_map_in_full_precision(case):
    model = make_model(case, dtype=torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        memory, tokens = model.encoder(make_sources(*LENGTHS)), make_tokens(BATCH)
        whole = model.decoder(tokens, memory)
        prepared = model.decoder.prepare(memory)
        first = model.decoder.step(tokens[:, :4], model.decoder.start(prepared), prepared)
        steps = [first, model.decoder.step(tokens[:, 4:], first.state, prepared)]
    assert whole.logits.isfinite().all()
    near(torch.cat([step.logits.float() for step in steps], dim=1), whole.logits.float(), 0.1)
    if case.attends():
        assert whole.attention.dtype == torch.float32
        near(whole.attention.sum(-1), torch.ones(BATCH, TARGET), 1e-5)


def test_defaults_are_entries_of_their_tables():
    assert DEFAULT.decoder.order in ATTENDING
    assert DEFAULT.decoder.cell in CELLS
    assert DEFAULT.decoder.start in STARTS
    assert DEFAULT.attention.scope in SCOPES
    assert DEFAULT.encoder.kind in ENCODERS
    assert DEFAULT.decoder.kind in DECODERS
    assert DEFAULT.positions in POSITIONS
    assert DEFAULT.norm in NORMS
    assert DEFAULT.norm_kind in NORM_KINDS
    assert DEFAULT.activation in ACTIVATIONS
    assert DEFAULT.init in INITS
    assert set(START_EQUATIONS) == set(STARTS)
    assert set(CELL_EQUATIONS) == set(CELLS)
    assert all(issubclass(order, nn.Module) for order in ORDERS.values())


def test_every_entry_of_every_table_is_tested():
    stacks = [case.stack for case in TRANSFORMERS]
    tables = {"positions": POSITIONS, "norm": NORMS, "norm_kind": NORM_KINDS, "activation": ACTIVATIONS}
    for field, table in tables.items():
        assert {getattr(stack, field) for stack in stacks} == set(table)
    pairs = {(case.encoder, case.decoder) for case in recurrent_cases() + TRANSFORMERS}
    assert pairs == set(product(ENCODERS, DECODERS))
    assert {case.order for case in recurrent_cases()} == set(ORDERS)
