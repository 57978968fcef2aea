"""Exercises that check themselves: `check(name, your_function)` reports the first property that fails.

    >>> print(check("look", my_look))
    look: not yet: mask ignored. Keys whose mask is False must get weight 0.

An exercise is a list of properties. Each has a name that says what is wrong, a test, and a hint.
"""

import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from regard.decoders import Decoder
from regard.maps import TEXT
from regard.types import BEGIN, END, PAD, UNKNOWN, Memory, Prepared, Recurrent, State, Step

Answer = Callable[..., Any]


class Property(NamedTuple):
    """A property that an answer must have; `name` says what is wrong without it."""

    name: str
    holds: Callable[[Answer], bool]
    hint: str


class Verdict(NamedTuple):
    """The result of a check: the name of the first property that failed, or None."""

    exercise: str
    failed: str | None
    hint: str = ""

    def __str__(self) -> str:
        if self.failed is None:
            return f"{self.exercise}: right."
        return f"{self.exercise}: not yet: {self.failed}. {self.hint}"


def check(exercise: str, answer: Answer) -> Verdict:
    """Test an answer against the properties of an exercise, in order; returns the first that fails."""
    if exercise not in EXERCISES:
        raise ValueError(f"there is no exercise {exercise!r}; choose from {', '.join(EXERCISES)}")
    for tested in EXERCISES[exercise]:
        try:
            holds = tested.holds(answer)
        except _NothingError:
            again = "the lesson" if script() else "this cell"
            return Verdict(exercise, "nothing returned", f"Fill the function in, then run {again} again.")
        except Exception as error:  # the author of the answer should see any error in it
            return Verdict(exercise, "an error was raised", f"{type(error).__name__}: {error}")
        if not holds:
            return Verdict(exercise, tested.name, tested.hint)
    return Verdict(exercise, None)


def script() -> Path | None:
    """The file that Python runs, if a lesson is run as a script; None in a notebook."""
    name = getattr(sys.modules["__main__"], "__file__", None)
    return Path(name) if name else None


class _NothingError(Exception):
    """The answer returned None: it is not written yet."""


def _result(result: Any) -> Any:
    """The result of an answer; raises an error if there is none."""
    if result is None or result is ...:
        raise _NothingError
    return result


def _same(actual: Any, expected: Any) -> bool:
    actual, expected = torch.as_tensor(actual), torch.as_tensor(expected)
    return actual.shape == expected.shape and torch.allclose(actual.double(), expected.double(), atol=1e-7)


def _random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


# ---- lesson 1: teacher forcing, greedy decoding

TARGETS = torch.tensor([[BEGIN, 5, 9, 7, END], [BEGIN, 8, END, PAD, PAD]])


def _forced(answer: Answer) -> tuple[Tensor, Tensor]:
    return _result(answer(TARGETS.clone()))


TEACHER_FORCING = (
    Property(
        "the model can read the word it should predict",
        lambda answer: not torch.equal(*_forced(answer)),
        "Inputs and targets are the same, so the model only has to copy; shift them by one.",
    ),
    Property(
        "wrong order",
        lambda answer: not torch.equal(_forced(answer)[0], TARGETS[:, 1:]),
        "Return the inputs first, then the token to predict after each of them.",
    ),
    Property(
        "<s> is missing",
        lambda answer: bool((_forced(answer)[0][:, 0] == BEGIN).all()),
        "The model predicts the first word after it has read <s>.",
    ),
    Property(
        "</s> is never to be predicted",
        lambda answer: bool((_forced(answer)[1] == END).any(-1).all()),
        "A model that never has to predict the end never learns to end.",
    ),
    Property(
        "differs from the definition",
        lambda answer: _same(_forced(answer)[0], TARGETS[:, :-1]) and _same(_forced(answer)[1], TARGETS[:, 1:]),
        "Inputs are all tokens but the last; targets are all but the first.",
    ),
)


@dataclass(frozen=True)
class _NoReady(Prepared):
    pass


@dataclass(frozen=True)
class _StepCount(State):
    steps: int


class _Call(NamedTuple):
    """The inputs of one call of `step`."""

    tokens: list[int]
    steps: int  # that the state had made before
    prepared: bool


class _RecordingDecoder(Decoder[_NoReady, _StepCount]):
    """A decoder that records the inputs of its steps; decoded correctly, it writes a known sentence."""

    def __init__(self, length: int) -> None:
        super().__init__()
        self.length = length
        self.calls: list[_Call] = []

    def prepare(self, memory: Memory) -> _NoReady:
        return _NoReady()

    def start(self, prepared: _NoReady) -> _StepCount:
        return _StepCount(0)

    def step(self, tokens: Tensor, state: _StepCount, prepared: _NoReady) -> Step:
        last = int(tokens[0, -1])
        self.calls.append(_Call(tokens[0].tolist(), state.steps, isinstance(prepared, _NoReady)))
        word = END if state.steps == self.length else 4 + (5 * last + state.steps) % 7
        logits = torch.zeros(1, 1, 11)
        logits[0, 0, word] = 1.0
        logits[0, 0, UNKNOWN] = 0.5
        return Step(logits, replace(state, steps=state.steps + 1), None)


def _decode(answer: Answer, length: int = 4, limit: int = 9) -> tuple[list[int], list[_Call]]:
    decoder = _RecordingDecoder(length)
    hidden = torch.zeros(1, 1, 1)
    memory = Memory(hidden, torch.ones(1, 1, dtype=torch.bool), Recurrent(hidden, None), TEXT)
    written = _result(answer(decoder, memory, limit))
    return list(map(int, written)), decoder.calls


def _output_is_fed_back(answer: Answer) -> bool:
    written, fed = _decode(answer, length=10**6, limit=6)
    return [each.tokens[-1] for each in fed[1:]] == written[: len(fed) - 1]


def _sentence(length: int) -> list[int]:
    """The sentence that `_RecordingDecoder` writes."""
    words = [BEGIN]
    for steps in range(length):
        words.append(4 + (5 * words[-1] + steps) % 7)
    return words[1:]


GREEDY = (
    Property(
        "<s> is missing",
        lambda answer: _decode(answer)[1][0].tokens == [BEGIN],
        "The first token that the decoder reads is <s>, the id BEGIN.",
    ),
    Property(
        "the memory is not prepared",
        lambda answer: all(each.prepared for each in _decode(answer)[1]),
        "Pass the result of `prepare` to each step, not the memory.",
    ),
    Property(
        "the state is not passed on",
        lambda answer: [each.steps for each in _decode(answer)[1]] == list(range(len(_decode(answer)[1]))),
        "Every step returns a new state; pass it to the next step.",
    ),
    Property(
        "a token is read twice",
        lambda answer: all(len(each.tokens) == 1 for each in _decode(answer)[1]),
        "The state already contains the earlier tokens: a step reads only the newest token.",
    ),
    Property(
        "the limit is ignored",
        lambda answer: len(_decode(answer, length=30, limit=6)[0]) <= 6,
        "A decoder may never write </s>: stop after `limit` tokens.",
    ),
    Property(
        "ends before the limit",
        lambda answer: len(_decode(answer, length=30, limit=6)[0]) == 6,
        "Without </s>, write exactly `limit` tokens; <s> does not count.",
    ),
    Property(
        "the output is not fed back",
        _output_is_fed_back,
        "The token just written is the input of the next step.",
    ),
    Property(
        "</s> is part of the output",
        lambda answer: END not in _decode(answer)[0],
        "</s> is not a word: stop there and leave it out.",
    ),
    Property(
        "does not stop at </s>",
        lambda answer: len(_decode(answer)[0]) == 4,
        "Stop if the likeliest id is END.",
    ),
    Property(
        "differs from the definition",
        lambda answer: _decode(answer)[0] == _sentence(4) and _decode(answer, length=30, limit=6)[0] == _sentence(6),
        "Each word is the one with the largest logit.",
    ),
)

# ---- lesson 2: query, key, value

LOOK_QUERIES, LOOK_KEYS, LOOK_VALUES = _random(3, 4, seed=1), _random(5, 4, seed=2), _random(5, 4, seed=3)
ALL_KEYS = torch.ones(3, 5, dtype=torch.bool)
SOME_KEYS = torch.tensor([[1, 1, 0, 1, 0], [1, 0, 0, 0, 0], [0, 1, 1, 1, 1]]).bool()
NO_KEYS = SOME_KEYS & torch.tensor([[True], [False], [True]])  # none for the second query


def _attended(answer: Answer, mask: Tensor = ALL_KEYS) -> tuple[Tensor, Tensor]:
    context, weights = _result(answer(LOOK_QUERIES.clone(), LOOK_KEYS.clone(), LOOK_VALUES.clone(), mask.clone()))
    return context, weights


def _sums(weights: Tensor, dim: int = -1) -> bool:
    return torch.allclose(weights.sum(dim), torch.ones((), dtype=weights.dtype))


LOOK = (
    Property(
        "wrong order",
        lambda answer: _attended(answer)[1].shape == (3, 5),
        "Return the context first, then the weights, which have a row for each query and a column for each key.",
    ),
    Property(
        "mask inverted",
        lambda answer: not (_attended(answer, SOME_KEYS)[1][SOME_KEYS] == 0).all(),
        "True means may be attended; this mask hides the keys that may be attended.",
    ),
    Property(
        "softmax over the wrong axis",
        lambda answer: not _sums(_attended(answer)[1], dim=-2),
        "Each query distributes its weight over the keys: every row sums to one, not every column.",
    ),
    Property(
        "weights not summing to one",
        lambda answer: _sums(_attended(answer)[1]),
        "Softmax over the keys makes each row sum to one.",
    ),
    Property(
        "mask ignored",
        lambda answer: bool((_attended(answer, SOME_KEYS)[1][~SOME_KEYS] == 0).all()),
        "Keys whose mask is False must get weight 0.",
    ),
    Property(
        "masked after the softmax",
        lambda answer: _sums(_attended(answer, SOME_KEYS)[1]),
        "The remaining weights do not sum to one: mask the scores before the softmax.",
    ),
    Property(
        "keys returned in place of values",
        lambda answer: not _same(_attended(answer)[0], _attended(answer)[1] @ LOOK_KEYS),
        "Keys are compared with the query; the context is a sum of values.",
    ),
    Property(
        "padding seen",
        lambda answer: _same(_attended(answer, SOME_KEYS)[0], _attended(answer, SOME_KEYS)[1] @ LOOK_VALUES),
        "The context is the sum of the values, each times the weight that you return.",
    ),
    Property(
        "NaN if all keys are masked",
        lambda answer: bool(
            (_attended(answer, NO_KEYS)[1][1] == 0).all() and (_attended(answer, NO_KEYS)[0][1] == 0).all()
        ),
        "A softmax without any key is 0 / 0. Such a query gets zeros.",
    ),
    Property(
        "differs from the definition",
        lambda answer: all(
            _same(
                _attended(answer, mask)[1],
                torch.softmax((LOOK_QUERIES @ LOOK_KEYS.T).masked_fill(~mask, -torch.inf), dim=-1),
            )
            for mask in (ALL_KEYS, SOME_KEYS)
        ),
        "The scores are plain dot products.",
    ),
)

SENTENCE = _random(5, 3, seed=4)
SELF_WEIGHTS = torch.softmax(SENTENCE @ SENTENCE.T, dim=-1)


def _self_attended(answer: Answer) -> tuple[Tensor, Tensor]:
    output, weights = _result(answer(SENTENCE.clone()))
    return output, weights


SELF_ATTENTION = (
    Property(
        "wrong order",
        lambda answer: _self_attended(answer)[0].shape == (5, 3) and _self_attended(answer)[1].shape == (5, 5),
        "Return the new vectors first, then the weights.",
    ),
    Property(
        "softmax over the wrong axis",
        lambda answer: not _same(_self_attended(answer)[1], SELF_WEIGHTS.T),
        "Row i holds the weights with which word i attends to all words.",
    ),
    Property(
        "weights not summing to one",
        lambda answer: _sums(_self_attended(answer)[1]),
        "These are scores, not weights: take the softmax of each row.",
    ),
    Property(
        "a word does not attend to itself",
        lambda answer: bool((_self_attended(answer)[1].diagonal() > 0).all()),
        "In self-attention without a mask every word attends to all words, itself included.",
    ),
    Property(
        "differs from the definition",
        lambda answer: _same(_self_attended(answer)[1], SELF_WEIGHTS),
        "The score of words i and j is x_i . x_j.",
    ),
    Property(
        "a word is missing from the sum",
        lambda answer: _same(_self_attended(answer)[0], SELF_WEIGHTS @ SENTENCE),
        "The sum runs over the same words as the softmax, the first one included.",
    ),
)

PADDED, LENGTHS = _random(3, 5, 2, seed=5), torch.tensor([5, 3, 1])
MEANS = torch.stack([row[:length].mean(0) for row, length in zip(PADDED, LENGTHS, strict=True)])


def _mean(answer: Answer, junk: float = 0.0) -> Tensor:
    states = PADDED.clone()
    states[torch.arange(5) >= LENGTHS.unsqueeze(-1)] = junk
    return _result(answer(states, LENGTHS.clone()))


PADDED_MEAN = (
    Property(
        "wrong shape",
        lambda answer: _mean(answer).shape == MEANS.shape,
        "One vector for each sentence: batch, dim.",
    ),
    Property(
        "padding seen",
        lambda answer: _same(_mean(answer, junk=7.0), _mean(answer, junk=-3.0)),
        "The values at padding positions change the result.",
    ),
    Property(
        "divided by the padded length",
        lambda answer: not _same(_mean(answer), MEANS * LENGTHS.unsqueeze(-1) / 5),
        "The padding is not in the sum, but it is in the count.",
    ),
    Property("differs from the definition", lambda answer: _same(_mean(answer), MEANS), "Mean over the real words."),
)

# ---- lesson 3: scores

INNER, QUERY_DIM, KEY_DIM = 4, 3, 5
CONCAT_MATRIX, CONCAT_VECTOR = _random(INNER, QUERY_DIM + KEY_DIM, seed=6), _random(INNER, seed=7)
QUERIES, KEYS = _random(2, QUERY_DIM, seed=8), _random(6, KEY_DIM, seed=9)


def _pairs(first: Tensor, second: Tensor) -> Tensor:
    """Every pair of rows, concatenated."""
    wide = first.unsqueeze(1).expand(-1, len(second), -1), second.unsqueeze(0).expand(len(first), -1, -1)
    return torch.cat(wide, dim=-1)


CONCAT_HIDDEN = _pairs(QUERIES, KEYS) @ CONCAT_MATRIX.T


def _additive_scores(answer: Answer) -> Tensor:
    return _result(answer(CONCAT_MATRIX.clone(), CONCAT_VECTOR.clone(), QUERIES.clone(), KEYS.clone()))


ADDITIVE_FROM_CONCAT = (
    Property(
        "v forgotten",
        lambda answer: _additive_scores(answer).shape[-1:] != (INNER,) or _additive_scores(answer).ndim == 2,
        "tanh(...) is a vector; its product with v makes it one number.",
    ),
    Property(
        "wrong shape",
        lambda answer: _additive_scores(answer).shape == CONCAT_HIDDEN.shape[:-1],
        "One number for each query (row) and key (column).",
    ),
    Property(
        "tanh forgotten",
        lambda answer: not _same(_additive_scores(answer), CONCAT_HIDDEN @ CONCAT_VECTOR),
        "Without it the query adds the same number to every score and cancels in the softmax.",
    ),
    Property(
        "W split at the wrong column",
        lambda answer: _same(_additive_scores(answer), torch.tanh(CONCAT_HIDDEN) @ CONCAT_VECTOR),
        "The first columns of W, as many as a query is wide, belong to the query; the others to the key.",
    ),
)

BILINEAR_QUERY, BILINEAR_KEY = _random(4, QUERY_DIM, seed=10), _random(4, KEY_DIM, seed=11)


def _bilinear_form(answer: Answer) -> Tensor:
    return _result(answer(BILINEAR_QUERY.clone(), BILINEAR_KEY.clone()))


BILINEAR = (
    Property(
        "transposed",
        lambda answer: not _same(_bilinear_form(answer), BILINEAR_KEY.T @ BILINEAR_QUERY),
        "Rows belong to the query, columns to the key.",
    ),
    Property(
        "wrong shape",
        lambda answer: _bilinear_form(answer).shape == (QUERY_DIM, KEY_DIM),
        "W is between a query and a key: query_dim x key_dim.",
    ),
    Property(
        "differs from the definition",
        lambda answer: _same(
            QUERIES @ _bilinear_form(answer) @ KEYS.T, (QUERIES @ BILINEAR_QUERY.T) @ (KEYS @ BILINEAR_KEY.T).T
        ),
        "queryᵀ W key must equal (W_q query) . (W_k key) for every query and key.",
    ),
)

QUERY_MATRIX, KEY_MATRIX = _random(4, 3, seed=12), _random(4, 3, seed=13)
SENTENCE_QUERIES, SENTENCE_KEYS = SENTENCE @ QUERY_MATRIX.T, SENTENCE @ KEY_MATRIX.T


def _chosen_weights(answer: Answer) -> Tensor:
    return _result(answer(SENTENCE.clone(), QUERY_MATRIX.clone(), KEY_MATRIX.clone()))


WHICH_WEIGHT = (
    Property(
        "scores, not weights",
        lambda answer: not _same(_chosen_weights(answer), SENTENCE_QUERIES @ SENTENCE_KEYS.T),
        "These are the scores e_ij; the weights a_ij are their softmax.",
    ),
    Property(
        "query and key swapped",
        lambda answer: not _same(_chosen_weights(answer), torch.softmax(SENTENCE_KEYS @ SENTENCE_QUERIES.T, dim=-1)),
        "The query of word i is W_q x_i; the key of word j is W_k x_j.",
    ),
    Property(
        "softmax over the wrong axis",
        lambda answer: not _sums(_chosen_weights(answer), dim=-2),
        "For a given i, the softmax runs over j.",
    ),
    Property(
        "weights not summing to one",
        lambda answer: _sums(_chosen_weights(answer)),
        "Each row i is a softmax over all j.",
    ),
    Property(
        "differs from the definition",
        lambda answer: _same(_chosen_weights(answer), torch.softmax(SENTENCE_QUERIES @ SENTENCE_KEYS.T, dim=-1)),
        "a_ij = softmax over j of (W_q x_i) . (W_k x_j).",
    ),
)

# ---- lesson 4: orders

STATE, WORD = _random(4, seed=14), _random(3, seed=15)
READOUT = _random(4, 6, seed=16)


class _RecordingCell:
    """An attention and a cell that record their inputs and the order of the calls."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.query = self.inputs = self.before = self.context = self.after = torch.zeros(0)

    def look(self, query: Tensor) -> Tensor:
        self.calls.append("look")
        self.query = query.clone()
        self.context = torch.tanh(query[:2] * 3 + 0.5)
        return self.context.clone()

    def cell(self, inputs: Tensor, state: Tensor) -> Tensor:
        self.calls.append("cell")
        self.inputs, self.before = inputs.clone(), state.clone()
        self.after = torch.tanh(state + inputs.sum() / 2)
        return self.after.clone()

    def holds(self, part: Tensor) -> bool:
        """Whether the input of the cell contains a vector, at any position."""
        places = range(len(self.inputs) - len(part) + 1)
        return any(_same(self.inputs[place : place + len(part)], part) for place in places)


def _bahdanau(answer: Answer) -> tuple[_RecordingCell, Tensor, Tensor]:
    recording = _RecordingCell()
    state, context = _result(answer(STATE.clone(), WORD.clone(), recording.look, recording.cell))
    return recording, state, context


def _luong(answer: Answer) -> tuple[_RecordingCell, Tensor, Tensor]:
    recording = _RecordingCell()
    state, attentional = _result(answer(STATE.clone(), WORD.clone(), recording.look, recording.cell, READOUT.clone()))
    return recording, state, attentional


def _readout(recording: _RecordingCell) -> Tensor:
    return READOUT @ torch.cat([recording.context, recording.after])


BAHDANAU_STEP = (
    Property(
        "wrong order",
        lambda answer: _bahdanau(answer)[0].calls == ["look", "cell"],
        "Bahdanau's decoder attends first, then updates its cell: each once.",
    ),
    Property(
        "wrong query",
        lambda answer: _same(_bahdanau(answer)[0].query, STATE),
        "The query is the previous state.",
    ),
    Property(
        "the word does not enter the cell",
        lambda answer: _bahdanau(answer)[0].holds(WORD),
        "The input of the cell is [word; context]; the last state is its state, not its input.",
    ),
    Property(
        "the context does not enter the cell",
        lambda answer: _bahdanau(answer)[0].holds(_bahdanau(answer)[0].context),
        "The input of the cell is [word; context].",
    ),
    Property(
        "wrong input of the cell",
        lambda answer: _same(_bahdanau(answer)[0].inputs, torch.cat([WORD, _bahdanau(answer)[0].context])),
        "The input of the cell is [word; context], in this order, and nothing else.",
    ),
    Property(
        "wrong state of the cell",
        lambda answer: _same(_bahdanau(answer)[0].before, STATE),
        "The state of the cell is the last state.",
    ),
    Property(
        "wrong result",
        lambda answer: (
            _same(_bahdanau(answer)[1], _bahdanau(answer)[0].after)
            and _same(_bahdanau(answer)[2], _bahdanau(answer)[0].context)
        ),
        "Return the new state and the context.",
    ),
)

LUONG_STEP = (
    Property(
        "wrong order",
        lambda answer: _luong(answer)[0].calls == ["cell", "look"],
        "Luong's decoder updates its cell first, then attends: each once.",
    ),
    Property(
        "wrong query",
        lambda answer: _same(_luong(answer)[0].query, _luong(answer)[0].after),
        "The query is the new state.",
    ),
    Property(
        "wrong input of the cell",
        lambda answer: _same(_luong(answer)[0].inputs, WORD),
        "Without input feeding, only the word enters the cell.",
    ),
    Property(
        "wrong state of the cell",
        lambda answer: _same(_luong(answer)[0].before, STATE),
        "The state of the cell is the last state.",
    ),
    Property(
        "tanh forgotten",
        lambda answer: not _same(_luong(answer)[2], _readout(_luong(answer)[0])),
        "The attentional state is tanh(W [context; state]).",
    ),
    Property(
        "wrong result",
        lambda answer: (
            _same(_luong(answer)[1], _luong(answer)[0].after)
            and _same(_luong(answer)[2], torch.tanh(_readout(_luong(answer)[0])))
        ),
        "Return the new state and tanh(W [context; state]), with the context before the state.",
    ),
)

# ---- lesson 5: scopes

ROWS_AND_COLUMNS = "A row for each query, a column for each key."


def _causal_mask(answer: Answer) -> Tensor:
    return _result(answer(4))


CAUSAL_MASK = torch.ones(4, 4).tril().bool()

CAUSAL = (
    Property(
        "not boolean",
        lambda answer: _causal_mask(answer).dtype == torch.bool,
        "A mask is boolean, True = may be attended.",
    ),
    Property("wrong shape", lambda answer: _causal_mask(answer).shape == (4, 4), ROWS_AND_COLUMNS),
    Property(
        "mask inverted",
        lambda answer: not torch.equal(_causal_mask(answer), ~CAUSAL_MASK),
        "True means may be attended; this mask hides the keys that may be attended.",
    ),
    Property(
        "the future is seen",
        lambda answer: not _causal_mask(answer).triu(1).any(),
        "Query t may attend to keys up to t and to none after it.",
    ),
    Property(
        "own position masked",
        lambda answer: bool(_causal_mask(answer).diagonal().all()),
        "Query t may attend to key t: otherwise the first query has no key at all.",
    ),
    Property(
        "differs from the definition", lambda answer: torch.equal(_causal_mask(answer), CAUSAL_MASK), "All of the past."
    ),
)


def _window(answer: Answer, window: int = 2, start: int = 0) -> Tensor:
    return _result(answer(4, 9, window, start))


def _expected_window(window: int, start: int) -> Tensor:
    return (torch.arange(9) - torch.arange(start, start + 4).unsqueeze(-1)).abs() <= window


LOCAL_M = (
    Property(
        "not boolean",
        lambda answer: _window(answer).dtype == torch.bool,
        "A mask is boolean, True = may be attended.",
    ),
    Property("wrong shape", lambda answer: _window(answer).shape == (4, 9), ROWS_AND_COLUMNS),
    Property(
        "start ignored",
        lambda answer: not torch.equal(_window(answer, start=0), _window(answer, start=3)),
        "The first query is at position `start`: a decoder that steps has one query at a time.",
    ),
    Property(
        "window too narrow",
        lambda answer: bool(_window(answer, start=3)[_expected_window(2, 3)].all()),
        "Query t attends to keys from t - window to t + window, both included.",
    ),
    Property(
        "window too wide",
        lambda answer: not _window(answer, start=3)[~_expected_window(2, 3)].any(),
        "Query t attends to no key before t - window or after t + window.",
    ),
    Property(
        "differs from the definition",
        lambda answer: all(torch.equal(_window(answer, w, s), _expected_window(w, s)) for w in (1, 3) for s in (0, 5)),
        "|key - (start + row)| <= window.",
    ),
)

CENTRE, WINDOWS = 3.4, (3, 5)  # not 2: there the standard deviation is 1, equal to its square


def _inside(window: int) -> Tensor:
    far = (torch.arange(8) - CENTRE).abs() > window
    return torch.softmax(_random(8, seed=17).masked_fill(far, -torch.inf), dim=-1)


def _gaussian(width: float) -> Tensor:
    return torch.exp(-(torch.arange(8).double() - CENTRE).square() / (2 * width**2))


def _local_p(answer: Answer, window: int) -> Tensor:
    return _result(answer(_inside(window).clone(), CENTRE, window))


def _wrong_width(answer: Answer, window: int) -> bool:
    """Whether the weights were multiplied by a Gaussian around the centre with a wrong width (or by none)."""
    inside = _inside(window) > 0
    factors = (_local_p(answer, window) / _inside(window))[inside]
    slopes = factors.log() / (torch.arange(8) - CENTRE)[inside].square()  # -1 / (2 width^2) at all positions
    return torch.allclose(slopes, slopes[:1].expand_as(slopes)) and not _same(slopes[0], -2 / window**2)


LOCAL_P = (
    Property(
        "weights normalised again",
        lambda answer: not any(_sums(_local_p(answer, window)) for window in WINDOWS),
        "The paper multiplies the weights by the Gaussian and does not normalise again; they sum to less than one.",
    ),
    Property(
        "wrong width of the Gaussian",
        lambda answer: not any(_wrong_width(answer, window) for window in WINDOWS),
        "Its standard deviation is half the window.",
    ),
    Property(
        "differs from the definition",
        lambda answer: all(
            _same(_local_p(answer, window), _inside(window) * _gaussian(window / 2)) for window in WINDOWS
        ),
        "weight * exp(-(s - p)^2 / (2 (window / 2)^2)) for every source position s.",
    ),
)

# ---- lesson 6: kernel regression

PLACES, HEIGHTS, WANTED = _random(7, seed=18), _random(7, seed=19), torch.linspace(-1, 1, 4).double()
REPEATED_PLACES = PLACES.where(torch.arange(7) != 5, PLACES[2])  # two points may have the same place
BANDWIDTHS = (0.3, 0.7, 1.4)  # not 0.5, for which 2 h^2 = h


def _regress(wanted: Tensor, places: Tensor, heights: Tensor, bandwidth: float) -> Tensor:
    squares = (wanted.unsqueeze(-1) - places).square()
    return torch.softmax(-squares / (2 * bandwidth**2), dim=-1) @ heights


def _regression(answer: Answer, bandwidth: float = 0.7, heights: Tensor = HEIGHTS) -> Tensor:
    return _result(answer(WANTED.clone(), PLACES.clone(), heights.clone(), bandwidth))


KERNEL_REGRESSION = (
    Property(
        "wrong shape", lambda answer: _regression(answer).shape == WANTED.shape, "One prediction for each wanted x."
    ),
    Property(
        "weights not summing to one",
        lambda answer: _same(_regression(answer, heights=torch.full((7,), 2.0).double()), torch.full((4,), 2.0)),
        "If all y are 2, every weighted mean of them is 2.",
    ),
    Property(
        "bandwidth ignored",
        lambda answer: not _same(_regression(answer, 0.2), _regression(answer, 2.0)),
        "A wider kernel must give more weight to distant points.",
    ),
    Property(
        "bandwidth inverted",
        lambda answer: bool(_regression(answer, 50.0).std() < _regression(answer, 0.1).std()),
        "A very wide kernel must give nearly the mean of all y everywhere.",
    ),
    Property(
        "differs from the definition",
        lambda answer: all(_same(_regression(answer, h), _regress(WANTED, PLACES, HEIGHTS, h)) for h in BANDWIDTHS),
        "weights = softmax of -(x - x_j)^2 / (2 bandwidth^2).",
    ),
)


def _expected_error(bandwidth: float, places: Tensor = PLACES) -> Tensor:
    others = ~torch.eye(7, dtype=torch.bool)
    predictions = [_regress(places[n : n + 1], places[others[n]], HEIGHTS[others[n]], bandwidth) for n in range(7)]
    return (torch.cat(predictions) - HEIGHTS).square().mean()


def _error(answer: Answer, bandwidth: float, places: Tensor = PLACES) -> Tensor:
    return torch.as_tensor(_result(answer(places.clone(), HEIGHTS.clone(), bandwidth)))


LEAVE_ONE_OUT = (
    Property(
        "each point predicts itself",
        lambda answer: bool(_error(answer, 1e-4).double() > 1e-6),
        "With a narrow kernel the error is 0: each point predicts itself. Mask each point for its own query.",
    ),
    Property(
        "summed, not averaged",
        lambda answer: not _same(_error(answer, 0.7), 7 * _expected_error(0.7)),
        "Return the mean of the squared errors.",
    ),
    Property(
        "differs from the definition",
        lambda answer: all(_same(_error(answer, bandwidth), _expected_error(bandwidth)) for bandwidth in BANDWIDTHS),
        "The mean over all points of (prediction without the point - y)^2.",
    ),
    Property(
        "another point at the same place is masked",
        lambda answer: _same(_error(answer, 0.7, REPEATED_PLACES), _expected_error(0.7, REPEATED_PLACES)),
        "Mask the point itself, not every point with the same x: select it by its index, not by its place.",
    ),
)

# ---- lesson 7: gates

X, H, C = _random(3, seed=20), _random(2, seed=21), _random(2, seed=22)
W, U, B = _random(8, 3, seed=23), _random(8, 2, seed=24), _random(8, seed=25)


def _lstm(order: tuple[int, int, int, int] = (0, 1, 2, 3), squash: Answer = torch.sigmoid) -> tuple[Tensor, Tensor]:
    chunks = (W @ X + U @ H + B).chunk(4)
    let_in, keep, new, show = (chunks[place] for place in order)
    cell = squash(keep) * C + squash(let_in) * torch.tanh(new)
    return squash(show) * torch.tanh(cell), cell


def _stepped(answer: Answer) -> tuple[Tensor, Tensor]:
    hidden, cell = _result(answer(X.clone(), H.clone(), C.clone(), W.clone(), U.clone(), B.clone()))
    return hidden, cell


LSTM_STEP = (
    Property(
        "wrong order",
        lambda answer: not _same(_stepped(answer)[0], _lstm()[1]),
        "Return the hidden state first, then the cell.",
    ),
    Property(
        "input and forget gate swapped",
        lambda answer: not _same(_stepped(answer)[1], _lstm((1, 0, 2, 3))[1]),
        "torch stacks input, forget, new, output; the forget gate multiplies the old cell.",
    ),
    Property(
        "a gate that is not between 0 and 1",
        lambda answer: not _same(_stepped(answer)[1], _lstm(squash=torch.tanh)[1]),
        "Gates are sigmoids; only the new content is a tanh.",
    ),
    Property(
        "the tanh of the cell is missing",
        lambda answer: not _same(_stepped(answer)[0], _lstm()[0] / torch.tanh(_lstm()[1]) * _lstm()[1]),
        "h = output gate * tanh(cell).",
    ),
    Property(
        "differs from the definition",
        lambda answer: _same(_stepped(answer)[0], _lstm()[0]) and _same(_stepped(answer)[1], _lstm()[1]),
        "cell = forget * cell + input * tanh(new), h = output * tanh(cell).",
    ),
)

IMAGE = _random(6, 4, seed=26)
V, VB, E, EB = _random(2, 4, seed=27), torch.tensor([1.0, -1.0]).double(), _random(4, 2, seed=29), _random(4, seed=30)


def _gate(inputs: Tensor, inner: Answer = torch.relu, outer: Answer = torch.sigmoid) -> Tensor:
    return outer(inner(inputs @ V.T + VB) @ E.T + EB)


def _excited(answer: Answer) -> Tensor:
    return _result(answer(IMAGE.clone(), V.clone(), VB.clone(), E.clone(), EB.clone()))


SQUEEZE_EXCITE = (
    Property(
        "the gate itself returned",
        lambda answer: not _same(_excited(answer), _gate(IMAGE.mean(0))),
        "Multiply the input by the gate.",
    ),
    Property(
        "wrong shape",
        lambda answer: _excited(answer).shape == IMAGE.shape,
        "The output has the shape of the input.",
    ),
    Property(
        "each position has its own gate",
        lambda answer: not _same(_excited(answer), IMAGE * _gate(IMAGE)),
        "Squeeze first: the gate is computed from the mean over all positions.",
    ),
    Property(
        "relu forgotten",
        lambda answer: not _same(_excited(answer), IMAGE * _gate(IMAGE.mean(0), inner=lambda x: x)),
        "Two linear layers without a nonlinearity between them are one linear layer.",
    ),
    Property(
        "channels compete",
        lambda answer: not _same(_excited(answer), IMAGE * _gate(IMAGE.mean(0), outer=lambda x: x.softmax(-1))),
        "A gate is a sigmoid of each channel by itself; with a softmax the channels compete for a sum of one.",
    ),
    Property(
        "differs from the definition",
        lambda answer: _same(_excited(answer), IMAGE * _gate(IMAGE.mean(0))),
        "x * sigmoid(W relu(V mean(x) + c) + b).",
    ),
)

# ---- lesson 8: positions


def _expected_sinusoids(length: int, dim: int, shift: int = 0) -> Tensor:
    angles = torch.arange(shift, shift + length).double().unsqueeze(-1) / 10000 ** (torch.arange(0, dim, 2) / dim)
    return torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(-2)


def _misprinted_sinusoids(length: int, dim: int) -> Tensor:
    angles = torch.arange(length).double().unsqueeze(-1) / 10000 ** (torch.arange(dim) / dim)
    return torch.where(torch.arange(dim) % 2 == 0, angles.sin(), angles.cos())


def _sinusoids(answer: Answer) -> Tensor:
    return _result(answer(7, 6))


def _near_enough(one: Tensor, other: Tensor) -> bool:
    """Equal to single precision, in which most answers are computed."""
    return one.shape == other.shape and torch.allclose(one.double(), other.double(), atol=1e-5)


SINUSOIDS = (
    Property("wrong shape", lambda answer: _sinusoids(answer).shape == (7, 6), "A row for each position, dim columns."),
    Property(
        "starts at position 1",
        lambda answer: not _near_enough(_sinusoids(answer), _expected_sinusoids(7, 6, shift=1)),
        "The first position is 0: all its sines are 0 and all its cosines 1.",
    ),
    Property(
        "sines and cosines do not alternate",
        lambda answer: _near_enough(_sinusoids(answer)[0], torch.tensor([0.0, 1, 0, 1, 0, 1])),
        "Number 2i is a sine, number 2i + 1 a cosine; at position 0 that is 0, 1, 0, 1, ...",
    ),
    Property(
        "the cosine has an exponent of its own",
        lambda answer: not _near_enough(_sinusoids(answer), _misprinted_sinusoids(7, 6)),
        "Numbers 2i and 2i + 1 share the exponent 2i/dim; only then is a shift a rotation.",
    ),
    Property(
        "differs from the definition",
        lambda answer: _near_enough(_sinusoids(answer), _expected_sinusoids(7, 6)),
        "sin and cos of pos / 10000^(2i/dim).",
    ),
)

ROTARY_INPUT = _random(7, 6, seed=31)


def _rotate(vectors: Tensor, shift: int = 0) -> Tensor:
    even, odd = vectors[:, 0::2], vectors[:, 1::2]
    sine, cosine = _expected_sinusoids(len(vectors), vectors.shape[1], shift).unflatten(-1, (-1, 2)).unbind(-1)
    return torch.stack([even * cosine - odd * sine, even * sine + odd * cosine], dim=-1).flatten(-2)


def _rotated_in_halves(vectors: Tensor) -> Tensor:
    """Rotary positions in another convention: number i is paired with number i + half."""
    places = torch.arange(vectors.shape[1]).view(2, -1).T.flatten()  # 0, half, 1, half + 1, ...
    return _rotate(vectors[:, places])[:, places.argsort()]


def _rotated(answer: Answer, vectors: Tensor = ROTARY_INPUT) -> Tensor:
    return _result(answer(vectors.clone()))


def _depends_on_distance_only(answer: Answer) -> bool:
    same = _rotated(answer, ROTARY_INPUT[:1].expand(7, 6))
    scores = (same @ same.T).double()
    return all(torch.allclose(scores.diagonal(k), scores.diagonal(k)[:1], atol=1e-5) for k in range(1, 6))


ROTARY = (
    Property("wrong shape", lambda answer: _rotated(answer).shape == (7, 6), "The output has the shape of the input."),
    Property(
        "position 0 is rotated",
        lambda answer: _near_enough(_rotated(answer)[0], ROTARY_INPUT[0]),
        "The first row is at position 0; its angles are 0, so it does not change.",
    ),
    Property(
        "lengths change",
        lambda answer: _near_enough(_rotated(answer).norm(dim=-1), ROTARY_INPUT.norm(dim=-1)),
        "A rotation keeps the length of every vector: nothing is added, nothing is scaled.",
    ),
    Property(
        "depends on more than the distance",
        _depends_on_distance_only,
        "If all vectors are equal, the dot product of two rotated ones must depend only on their distance.",
    ),
    Property(
        "rotated in the wrong direction",
        lambda answer: not _near_enough(_rotated(answer), _rotate(ROTARY_INPUT.flip(0), shift=-6).flip(0)),
        "(a, b) becomes (a cos - b sin, a sin + b cos).",
    ),
    Property(
        "other numbers are paired",
        lambda answer: not _near_enough(_rotated(answer), _rotated_in_halves(ROTARY_INPUT)),
        "Some pair number i with number i + dim/2, which works as well; here a pair is two neighbours.",
    ),
    Property(
        "differs from the definition",
        lambda answer: _near_enough(_rotated(answer), _rotate(ROTARY_INPUT)),
        "Angle pos / 10000^(2i/dim) for the pair 2i, 2i + 1.",
    ),
)

# ---- lesson 9: self-attention with weights

D_K = 6
W_QUERY, W_KEY, W_VALUE = _random(3, D_K, seed=32), _random(3, D_K, seed=33), _random(3, 2, seed=34)
SELF_SCORES = (SENTENCE @ W_QUERY) @ (SENTENCE @ W_KEY).T


def _scaled(scale: float) -> Tensor:
    return torch.softmax(SELF_SCORES / scale, dim=-1)


def _weighted(answer: Answer) -> tuple[Tensor, Tensor]:
    output, weights = _result(answer(SENTENCE.clone(), W_QUERY.clone(), W_KEY.clone(), W_VALUE.clone()))
    return output, weights


WEIGHTED_SELF_ATTENTION = (
    Property(
        "wrong order",
        lambda answer: _weighted(answer)[1].shape == (5, 5),
        "Return the new vectors first, then the weights, with a row and a column for each word.",
    ),
    Property(
        "softmax over the wrong axis",
        lambda answer: not _sums(_weighted(answer)[1], dim=-2),
        "Each word distributes its weight over all words: every row sums to one.",
    ),
    Property(
        "weights not summing to one",
        lambda answer: _sums(_weighted(answer)[1]),
        "These are scores, not weights: take the softmax over the keys.",
    ),
    Property(
        "scale forgotten",
        lambda answer: not _same(_weighted(answer)[1], _scaled(1.0)),
        "Divide the scores by the square root of d_k before the softmax.",
    ),
    Property(
        "divided by d_k, not by its root",
        lambda answer: not _same(_weighted(answer)[1], _scaled(D_K)),
        "The standard deviation of a score grows with sqrt(d_k).",
    ),
    Property(
        "scaled by the wrong width",
        lambda answer: not any(_same(_weighted(answer)[1], _scaled(width**0.5)) for width in (2, 3, 5)),
        "d_k is the width of queries and keys: not the width of words or values, nor the number of words.",
    ),
    Property(
        "query and key swapped",
        lambda answer: not _same(_weighted(answer)[1], torch.softmax(SELF_SCORES.T / D_K**0.5, dim=-1)),
        "Row i is the query of word i with all keys.",
    ),
    Property(
        "W_v forgotten",
        lambda answer: not _same(_weighted(answer)[0], _scaled(D_K**0.5) @ SENTENCE),
        "Sum the values x W_v, not the words.",
    ),
    Property(
        "differs from the definition",
        lambda answer: (
            _same(_weighted(answer)[1], _scaled(D_K**0.5))
            and _same(_weighted(answer)[0], _scaled(D_K**0.5) @ SENTENCE @ W_VALUE)
        ),
        "softmax(q kᵀ / sqrt(d_k)) v, with q = x W_q, k = x W_k, v = x W_v.",
    ),
)

ONE_ROW_WEIGHTS = torch.softmax(_random(5, seed=35), dim=-1)
JACOBIAN = ONE_ROW_WEIGHTS.diag() - ONE_ROW_WEIGHTS.outer(ONE_ROW_WEIGHTS)


def _jacobian(answer: Answer) -> Tensor:
    return _result(answer(ONE_ROW_WEIGHTS.clone()))


SOFTMAX_SLOPES = (
    Property("wrong shape", lambda answer: _jacobian(answer).shape == (5, 5), "One number for each weight and score."),
    Property(
        "the other weights do not change",
        lambda answer: not _same(_jacobian(answer), JACOBIAN.diagonal().diag()),
        "If one weight grows, all others shrink: off the diagonal it is -a_i a_j.",
    ),
    Property(
        "weights would not sum to one any more",
        lambda answer: _same(_jacobian(answer).sum(0), torch.zeros(5)),
        "The weights keep summing to one: each column sums to zero.",
    ),
    Property(
        "wrong sign",
        lambda answer: bool((_jacobian(answer).diagonal() > 0).all()),
        "A weight grows with its own score.",
    ),
    Property(
        "differs from the definition",
        lambda answer: _same(_jacobian(answer), JACOBIAN),
        "a_i (1 - a_i) on the diagonal, -a_i a_j elsewhere.",
    ),
)

# ---- lesson 10: heads

WORDS = _random(5, 6, seed=36)
MATRICES = tuple(_random(6, 6, seed=seed) for seed in (37, 38, 39, 40))


def _heads(x: Tensor, q: Tensor, k: Tensor, v: Tensor, heads: int, scale: float) -> Tensor:
    """The outputs of all heads, concatenated."""
    parts = [(x @ each).chunk(heads, dim=-1) for each in (q, k, v)]
    outputs = [torch.softmax(q @ k.T / scale, dim=-1) @ v for q, k, v in zip(*parts, strict=True)]
    return torch.cat(outputs, dim=-1)


def _multi_head(answer: Answer, heads: int = 3) -> Tensor:
    return _result(answer(WORDS.clone(), *(way.clone() for way in MATRICES), heads))


def _words_stay_separate(answer: Answer) -> bool:
    """Whether each word gets the same vector if the words are in reverse order."""
    turned = _result(answer(WORDS.flip(0), *(way.clone() for way in MATRICES), 3))
    return _same(_multi_head(answer), turned.flip(0))


MULTI_HEAD = (
    Property(
        "wrong shape", lambda answer: _multi_head(answer).shape == (5, 6), "The output has the shape of the input."
    ),
    Property(
        "heads ignored",
        lambda answer: not _same(_multi_head(answer, 3), _multi_head(answer, 1)),
        "Each head has its own softmax, over its own slice of queries and keys.",
    ),
    Property(
        "heads split across words",
        _words_stay_separate,
        "With the words in reverse order, each word must get the same vector. Split the width, (words, heads, part), "
        "then transpose.",
    ),
    Property(
        "W_o forgotten",
        lambda answer: not _same(_multi_head(answer), _heads(WORDS, *MATRICES[:3], 3, 2**0.5)),
        "Concatenate the outputs of the heads, then multiply by W_o.",
    ),
    Property(
        "scaled by the whole width",
        lambda answer: not _same(_multi_head(answer), _heads(WORDS, *MATRICES[:3], 3, 6**0.5) @ MATRICES[3]),
        "Queries and keys of a head are dim / heads wide; scale by the root of that width.",
    ),
    Property(
        "scale forgotten",
        lambda answer: not _same(_multi_head(answer), _heads(WORDS, *MATRICES[:3], 3, 1.0) @ MATRICES[3]),
        "Divide the scores by the square root of a head's width.",
    ),
    Property(
        "differs from the definition",
        lambda answer: _same(_multi_head(answer), _heads(WORDS, *MATRICES[:3], 3, 2**0.5) @ MATRICES[3]),
        "[head_1; ...; head_h] W_o, with head_n = softmax(q_n k_nᵀ / sqrt(dim / heads)) v_n.",
    ),
)

GROUPED = _random(2, 4, 5, seed=41)


def _grouped_keys(answer: Answer) -> Tensor:
    return _result(answer(GROUPED.clone(), 6))


KEYS_FOR_HEADS = (
    Property("wrong shape", lambda answer: _grouped_keys(answer).shape == (6, 4, 5), "heads, words, part."),
    Property(
        "groups interleaved",
        lambda answer: not _same(_grouped_keys(answer), GROUPED.repeat(3, 1, 1)),
        "Heads that share a group are neighbours: 1 1 1 2 2 2, not 1 2 1 2 1 2.",
    ),
    Property(
        "differs from the definition",
        lambda answer: _same(_grouped_keys(answer), GROUPED.repeat_interleave(3, dim=0)),
        "Head n has the keys of group n * groups // heads, counted from 0.",
    ),
)

# ---- lesson 11: the Transformer

TARGET_LENGTHS, LONGEST = torch.tensor([5, 2, 4]), 6  # the mask may be wider than the longest sentence of the batch
REAL = torch.arange(LONGEST) < TARGET_LENGTHS.unsqueeze(-1)
VISIBLE = torch.ones(LONGEST, LONGEST).tril().bool() & REAL.unsqueeze(1)


def _target_mask(answer: Answer) -> Tensor:
    return _result(answer(TARGET_LENGTHS.clone(), LONGEST))


TARGET_MASK = (
    Property(
        "not boolean",
        lambda answer: _target_mask(answer).dtype == torch.bool,
        "A mask is boolean, True = may be attended.",
    ),
    Property("wrong shape", lambda answer: _target_mask(answer).shape == VISIBLE.shape, "batch, longest, longest."),
    Property(
        "mask inverted",
        lambda answer: not torch.equal(_target_mask(answer), ~VISIBLE),
        "True means may be attended; this mask hides the keys that may be attended.",
    ),
    Property(
        "the future is seen",
        lambda answer: not _target_mask(answer).triu(1).any(),
        "Word t may attend to words up to t and to none after it.",
    ),
    Property(
        "padding seen",
        lambda answer: not (_target_mask(answer) & ~REAL.unsqueeze(1)).any(),
        "No word may attend to a column beyond the sentence's length.",
    ),
    Property(
        "rows masked, not columns",
        lambda answer: bool(_target_mask(answer)[1, 4, :2].all()),
        "The mask hides keys, which are columns; a row without any key has nothing to normalise.",
    ),
    Property(
        "differs from the definition",
        lambda answer: torch.equal(_target_mask(answer), VISIBLE),
        "All real words up to the word's own position, itself included.",
    ),
)

INPUT = _random(4, 6, seed=42) + 1.0


def _sublayer(states: Tensor) -> Tensor:
    return torch.sin(3 * states) + states.roll(1, dims=0)


def _normed(states: Tensor) -> Tensor:
    return torch.nn.functional.layer_norm(states, states.shape[-1:])


def _pre_normed(answer: Answer) -> Tensor:
    return _result(answer(INPUT.clone(), _sublayer, _normed))


PRE_NORM = (
    Property("wrong shape", lambda answer: _pre_normed(answer).shape == (4, 6), "The output has the shape of x."),
    Property(
        "the residual is missing",
        lambda answer: not _same(_pre_normed(answer), _sublayer(_normed(INPUT))),
        "Add the output of f to x.",
    ),
    Property(
        "that is post-norm",
        lambda answer: not _same(_pre_normed(answer), _normed(INPUT + _sublayer(INPUT))),
        "norm(x + f(x)) is the form of 2017; pre-norm normalises the input of f.",
    ),
    Property(
        "the residual is normalised",
        lambda answer: not _same(_pre_normed(answer), _normed(INPUT) + _sublayer(_normed(INPUT))),
        "The residual is x itself, without a norm.",
    ),
    Property(
        "the input of f is not normalised",
        lambda answer: (
            not any(_same(_pre_normed(answer), INPUT + each) for each in (_sublayer(INPUT), _normed(_sublayer(INPUT))))
        ),
        "Normalise first, then f.",
    ),
    Property(
        "differs from the definition",
        lambda answer: _same(_pre_normed(answer), INPUT + _sublayer(_normed(INPUT))),
        "x + f(norm(x)).",
    ),
)

# ---- lesson 12: BERT

ORIGINAL_IDS = torch.tensor([[4, 5, 6, 7, 8], [9, 10, 11, 12, 13]])
ASKED = torch.tensor([[True, True, True, True, False], [True, True, True, False, False]])
LUCK = torch.tensor([[0.1, 0.8, 0.89, 0.95, 0.2], [0.79, 0.9, 0.5, 0.85, 0.99]])
OTHERS, MASK_ID = ORIGINAL_IDS + 20, 99
MASKED, REPLACED = ASKED & (LUCK < 0.8), ASKED & (LUCK >= 0.8) & (LUCK < 0.9)


def _masked_ids(answer: Answer) -> Tensor:
    return _result(answer(ORIGINAL_IDS.clone(), ASKED.clone(), LUCK.clone(), OTHERS.clone(), MASK_ID))


HIDE = (
    Property("wrong shape", lambda answer: _masked_ids(answer).shape == ORIGINAL_IDS.shape, "An id for each token."),
    Property(
        "a token that is not asked for is changed",
        lambda answer: torch.equal(_masked_ids(answer)[~ASKED], ORIGINAL_IDS[~ASKED]),
        "`luck` matters only where `asked` is True.",
    ),
    Property(
        "every asked token is masked",
        lambda answer: not torch.equal(_masked_ids(answer), ORIGINAL_IDS.masked_fill(ASKED, MASK_ID)),
        "Of the asked tokens, 80 % are masked, 10 % replaced and 10 % left unchanged.",
    ),
    Property(
        "not masked where luck is below 0.8",
        lambda answer: torch.equal(_masked_ids(answer)[MASKED], ORIGINAL_IDS[MASKED] * 0 + MASK_ID),
        "Below 0.8 the model reads mask_id.",
    ),
    Property(
        "not replaced where luck is from 0.8 to 0.9",
        lambda answer: torch.equal(_masked_ids(answer)[REPLACED], OTHERS[REPLACED]),
        "There the model reads the other id; 0.8 itself is included.",
    ),
    Property(
        "differs from the definition",
        lambda answer: torch.equal(
            _masked_ids(answer), torch.where(MASKED, MASK_ID, torch.where(REPLACED, OTHERS, ORIGINAL_IDS))
        ),
        "From 0.9 on a token is unchanged.",
    ),
)

MASKED_LOGITS = _random(2, 5, 14, seed=43)
LOSSES = -torch.log_softmax(MASKED_LOGITS, dim=-1).gather(-1, ORIGINAL_IDS.unsqueeze(-1)).squeeze(-1)


def _masked_loss(answer: Answer) -> Tensor:
    return torch.as_tensor(_result(answer(MASKED_LOGITS.clone(), ORIGINAL_IDS.clone(), ASKED.clone())))


MASKED_LOSS = (
    Property("wrong shape", lambda answer: _masked_loss(answer).ndim == 0, "One number for the whole batch."),
    Property(
        "all positions are counted",
        lambda answer: not any(_same(_masked_loss(answer), each) for each in (LOSSES.mean(), LOSSES.sum())),
        "The loss counts only the tokens to predict.",
    ),
    Property(
        "divided by all positions",
        lambda answer: not _same(_masked_loss(answer), LOSSES[ASKED].sum() / LOSSES.numel()),
        "The other positions are not in the sum, but they are in the count.",
    ),
    Property(
        "summed, not averaged",
        lambda answer: not _same(_masked_loss(answer), LOSSES[ASKED].sum()),
        "Return the mean over the tokens to predict.",
    ),
    Property(
        "a mean of means",
        lambda answer: not _same(_masked_loss(answer), (LOSSES * ASKED).sum(1).div(ASKED.sum(1)).mean()),
        "Every asked token counts equally; in a mean of means, tokens of sentences with few asked tokens count more.",
    ),
    Property(
        "differs from the definition",
        lambda answer: _same(_masked_loss(answer), LOSSES[ASKED].mean()),
        "The mean of -log softmax(logits)[id] over the tokens to predict.",
    ),
)

# ---- lesson 13: the lab

PAD_ID = 2
RAGGED = [[5, PAD_ID, 9, 7, 3], [8], [4, 0, PAD_ID]]  # a real token may have the same id as padding
PADDED_IDS = torch.tensor([[5, PAD_ID, 9, 7, 3], [8, PAD_ID, PAD_ID, PAD_ID, PAD_ID], [4, 0, PAD_ID, PAD_ID, PAD_ID]])
REAL_TOKENS = torch.arange(5) < torch.tensor([[5], [1], [3]])


def _padded(answer: Answer) -> tuple[Tensor, Tensor]:
    ids, mask = _result(answer([list(row) for row in RAGGED], PAD_ID))
    return ids, mask


PAD_AND_MASK = (
    Property(
        "wrong order", lambda answer: _padded(answer)[0].dtype != torch.bool, "Return the ids first, then the mask."
    ),
    Property(
        "not boolean",
        lambda answer: _padded(answer)[1].dtype == torch.bool,
        "A mask is boolean, True = may be attended.",
    ),
    Property(
        "wrong shape",
        lambda answer: all(each.shape == (3, 5) for each in _padded(answer)),
        "A row for each sentence, as wide as the longest sentence.",
    ),
    Property(
        "padded on the left",
        lambda answer: _padded(answer)[0][1, 4] != 8,
        "Here sentences begin at position 0 and padding comes after them.",
    ),
    Property(
        "tokens lost",
        lambda answer: torch.equal(_padded(answer)[0][REAL_TOKENS], PADDED_IDS[REAL_TOKENS]),
        "Every row of the result begins with all ids of its sentence.",
    ),
    Property(
        "pad ignored",
        lambda answer: torch.equal(_padded(answer)[0], PADDED_IDS),
        "Fill up with the id `pad`.",
    ),
    Property(
        "mask inverted",
        lambda answer: not torch.equal(_padded(answer)[1], ~REAL_TOKENS),
        "True means a real token; this mask hides the sentence and keeps the padding.",
    ),
    Property(
        "a real token is taken for padding",
        lambda answer: bool(_padded(answer)[1][REAL_TOKENS].all()),
        "Compute the mask from the lengths: a real token may have the id `pad`.",
    ),
    Property(
        "differs from the definition",
        lambda answer: torch.equal(_padded(answer)[1], REAL_TOKENS),
        "mask[row, place] = place < length of the row.",
    ),
)

THEIRS = {"table": _random(7, 3, seed=44), "bridge": _random(3, 5, seed=45), "head": _random(4, 3, seed=46)}
OURS = {"table": _random(7, 3, seed=47), "bridge": _random(5, 3, seed=48), "gate": _random(3, seed=49)}


def _taken(answer: Answer) -> dict[str, Tensor]:
    theirs, ours = dict(THEIRS), dict(OURS)
    taken: dict[str, Tensor] = _result(answer(theirs, ours))
    return taken


def _inputs_unchanged(answer: Answer) -> bool:
    theirs, ours = dict(THEIRS), dict(OURS)
    _result(answer(theirs, ours))
    return all(
        list(now) == list(before) and all(now[name] is before[name] for name in before)
        for now, before in ((theirs, THEIRS), (ours, OURS))
    )


TAKE_OVER = (
    Property(
        "a name that ours does not have",
        lambda answer: set(_taken(answer)) <= set(OURS),
        "The new model has no such tensor; leave it out.",
    ),
    Property(
        "a name is missing",
        lambda answer: set(_taken(answer)) == set(OURS),
        "A tensor that theirs does not have stays as it is in ours.",
    ),
    Property(
        "shapes do not fit",
        lambda answer: all(each.shape == OURS[name].shape for name, each in _taken(answer).items()),
        "The same name is not enough: compare the shapes too. The same number of elements is not the same shape.",
    ),
    Property(
        "nothing is taken over",
        lambda answer: not _same(_taken(answer)["table"], OURS["table"]),
        "If name and shape fit, take the tensor of theirs.",
    ),
    Property("the inputs are changed", _inputs_unchanged, "Make a new dict and leave both inputs as they are."),
    Property(
        "differs from the definition",
        lambda answer: all(
            _same(each, (THEIRS if name == "table" else OURS)[name]) for name, each in _taken(answer).items()
        ),
        "theirs[name] if name and shape fit, else ours[name].",
    ),
)

# ---- lesson 14: captions

CELLS, LAST_STATE, OTHER_STATE = _random(6, 4, seed=50), _random(3, seed=51), _random(3, seed=52)
STATE_WEIGHTS, CELL_WEIGHTS, CELL_VECTOR = _random(5, 3, seed=53), _random(5, 4, seed=54), _random(5, seed=55)


def _attended_cells(answer: Answer, state: Tensor = LAST_STATE) -> tuple[Tensor, Tensor]:
    context, weights = _result(answer(CELLS.clone(), state, STATE_WEIGHTS, CELL_WEIGHTS, CELL_VECTOR))
    return context, weights


def _cell_scores(squash: Callable[[Tensor], Tensor]) -> Tensor:
    return squash(LAST_STATE @ STATE_WEIGHTS.T + CELLS @ CELL_WEIGHTS.T) @ CELL_VECTOR


ATTEND_TO_CELLS = (
    Property(
        "wrong order",
        lambda answer: _attended_cells(answer)[1].shape == (6,),
        "Return the context first, then the weights, one for each cell.",
    ),
    Property(
        "weights not summing to one",
        lambda answer: _sums(_attended_cells(answer)[1]),
        "The state distributes its weight over the cells: softmax over the cells.",
    ),
    Property(
        "the tanh is missing",
        lambda answer: not _same(_attended_cells(answer)[1], _cell_scores(lambda x: x).softmax(0)),
        "Without the tanh, the state adds the same number to every score, and the softmax removes it.",
    ),
    Property(
        "the state is ignored",
        lambda answer: not _same(_attended_cells(answer)[1], _attended_cells(answer, OTHER_STATE)[1]),
        "Every word has weights of its own: the score depends on the decoder's last state.",
    ),
    Property(
        "projected cells are summed",
        lambda answer: _attended_cells(answer)[0].shape == (4,),
        "U a is for the score; the context is a sum of the vectors a themselves.",
    ),
    Property(
        "all cells count alike",
        lambda answer: not _same(_attended_cells(answer)[0], CELLS.mean(0)),
        "The mean of all cells is the static vector; use the weights.",
    ),
    Property(
        "differs from the definition",
        lambda answer: (
            _same(_attended_cells(answer)[1], _cell_scores(torch.tanh).softmax(0))
            and _same(_attended_cells(answer)[0], _cell_scores(torch.tanh).softmax(0) @ CELLS)
        ),
        "e_i = v . tanh(W h + U a_i), weights = softmax(e), context = sum of weights_i a_i.",
    ),
)

CAPTION_WEIGHTS = _random(5, 6, seed=56).softmax(-1)  # words, and cells of a grid of 2 x 3
HEAVIEST = CAPTION_WEIGHTS.argmax(-1)


def _cells(answer: Answer) -> Tensor:
    return torch.as_tensor(_result(answer(CAPTION_WEIGHTS.clone(), 3)))


def _heaviest() -> Tensor:
    return torch.stack([HEAVIEST // 3, HEAVIEST % 3], dim=-1)


HEAVIEST_CELLS = (
    Property(
        "wrong shape",
        lambda answer: _cells(answer).shape == (5, 2),
        "Return a row and a column for each word.",
    ),
    Property(
        "row and column exchanged",
        lambda answer: not torch.equal(_cells(answer), _heaviest().flip(-1)),
        "Return the row first, then the column.",
    ),
    Property(
        "cells counted column by column",
        lambda answer: not torch.equal(_cells(answer), torch.stack([HEAVIEST % 2, HEAVIEST // 2], dim=-1)),
        "Cells are numbered row by row: cell 1 is to the right of cell 0.",
    ),
    Property(
        "differs from the definition",
        lambda answer: torch.equal(_cells(answer), _heaviest()),
        "row = cell // width, column = cell % width, of the cell with the largest weight.",
    ),
)


def _penalty(answer: Answer) -> Tensor:
    return torch.as_tensor(_result(answer(CAPTION_WEIGHTS.clone())))


DOUBLY_STOCHASTIC = (
    Property("not one number", lambda answer: _penalty(answer).shape == (), "Sum over all cells."),
    Property(
        "summed over the cells of a word",
        lambda answer: not torch.allclose(_penalty(answer), torch.zeros((), dtype=torch.float64)),
        "Those sums are one already; sum over the words, which is the attention that a cell received.",
    ),
    Property(
        "not squared",
        lambda answer: (
            not any(
                _same(_penalty(answer), each)
                for each in ((1 - CAPTION_WEIGHTS.sum(0)).sum(), (1 - CAPTION_WEIGHTS.sum(0)).abs().sum())
            )
        ),
        "A cell with too much attention must not make up for one with too little.",
    ),
    Property(
        "averaged",
        lambda answer: not _same(_penalty(answer), (1 - CAPTION_WEIGHTS.sum(0)).square().mean()),
        "The penalty of the paper is the sum over the cells, not their mean.",
    ),
    Property(
        "differs from the definition",
        lambda answer: _same(_penalty(answer), (1 - CAPTION_WEIGHTS.sum(0)).square().sum()),
        "Sum over the cells i of (1 - sum over the words t of weights[t, i])^2.",
    ),
)

# ---- lesson 15: listening

FRAMES = _random(7, 3, seed=57)


def _joined(answer: Answer) -> Tensor:
    joined: Tensor = _result(answer(FRAMES.clone()))
    return joined


def _frame_pairs() -> Tensor:
    return torch.cat([FRAMES, torch.zeros(1, 3, dtype=torch.float64)]).view(4, 2, 3)


JOIN_PAIRS = (
    Property(
        "the last frame is lost",
        lambda answer: len(_joined(answer)) != 3,
        "An odd last frame is joined with zeros; its sound may be the end of a word.",
    ),
    Property(
        "not half as many",
        lambda answer: len(_joined(answer)) == 4,
        "Seven frames become four positions: half as many, rounded up.",
    ),
    Property(
        "added, not joined",
        lambda answer: _joined(answer).shape == (4, 6),
        "Put the two vectors one after the other, so that a position is twice as wide.",
    ),
    Property(
        "frames that are no neighbours",
        lambda answer: not _same(_joined(answer), _frame_pairs().view(2, 4, 3).transpose(0, 1).flatten(1)),
        "Position i joins frames 2 i and 2 i + 1, not i and i + 4.",
    ),
    Property(
        "the later frame first",
        lambda answer: not _same(_joined(answer), _frame_pairs().flip(1).flatten(1)),
        "Put the earlier frame first.",
    ),
    Property(
        "differs from the definition",
        lambda answer: _same(_joined(answer), _frame_pairs().flatten(1)),
        "Position i = [frame 2 i; frame 2 i + 1], with zeros after the last frame.",
    ),
)

HEARD = _random(4, 9, seed=58).mul(3).softmax(-1)  # notes, positions
POSITION = 0.04  # seconds


def _times(answer: Answer) -> Tensor:
    return torch.as_tensor(_result(answer(HEARD.clone(), POSITION)))


TOKEN_SECONDS = (
    Property("wrong shape", lambda answer: _times(answer).shape == (4,), "Return one time for each token."),
    Property(
        "positions, not seconds",
        lambda answer: not _same(_times(answer), HEARD.argmax(-1)),
        "A position takes `seconds` seconds.",
    ),
    Property(
        "a mean of times",
        lambda answer: not _same(_times(answer), HEARD @ torch.arange(9.0).double() * POSITION),
        "If a row has two peaks, its mean is at neither of them; take the heaviest position.",
    ),
    Property(
        "differs from the definition",
        lambda answer: _same(_times(answer), HEARD.argmax(-1) * POSITION),
        "time = position with the largest weight x seconds.",
    ),
)

BLANK = 0
LABELS = [0, 5, 5, 0, 0, 5, 7, 7, 7, 0, 3, 0]


def _text(answer: Answer) -> list[int]:
    return list(map(int, _result(answer(list(LABELS), BLANK))))


COLLAPSE = (
    Property("blanks stay", lambda answer: BLANK not in _text(answer), "A blank is no letter: leave it out."),
    Property(
        "repeats stay",
        lambda answer: _text(answer) != [each for each in LABELS if each != BLANK],
        "A letter that lasts for several positions is one letter.",
    ),
    Property(
        "double letters are lost",
        lambda answer: _text(answer) != [5, 7, 3],
        "A blank separates two equal letters: join repeats first, then remove the blanks.",
    ),
    Property(
        "differs from the definition",
        lambda answer: _text(answer) == [5, 5, 7, 3],
        "Join neighbours that are equal, then remove the blanks.",
    ),
)

# ---- lesson 16: kernel regression over windows, quantile loss, coverage

HISTORY = torch.sin(torch.arange(29.0).double()) + 0.3 * _random(29, seed=16)
WINDOW, AHEAD, BANDWIDTH = 5, 3, 0.7


def _continued(answer: Answer, history: Tensor = HISTORY) -> Tensor:
    return torch.as_tensor(_result(answer(history.clone(), WINDOW, AHEAD, BANDWIDTH)))


def _past_windows() -> tuple[Tensor, Tensor]:
    """The weights of the past windows, and each of them with what followed it."""
    windows = HISTORY.unfold(0, WINDOW + AHEAD, 1)
    distances = (windows[:, :WINDOW] - HISTORY[-WINDOW:]).square().sum(-1)
    return torch.softmax(-distances / (2 * BANDWIDTH**2), dim=0), windows


KERNEL_FORECAST = (
    Property(
        "wrong shape",
        lambda answer: _continued(answer).shape == (AHEAD,),
        "Return one number for each step of the horizon.",
    ),
    Property(
        "weights not summing to one",
        lambda answer: _same(_continued(answer, torch.full((29,), 4.0).double()), torch.full((AHEAD,), 4.0)),
        "A constant series goes on as it is; divide by the sum of the weights.",
    ),
    Property(
        "the windows are averaged, not what followed them",
        lambda answer: not _same(_continued(answer), _past_windows()[0] @ _past_windows()[1][:, :AHEAD]),
        "Keys are compared with the query; the values are what came after each key.",
    ),
    Property(
        "all windows count equally",
        lambda answer: not _same(_continued(answer), _past_windows()[1][:, WINDOW:].mean(0)),
        "The nearer a window is to the query, the more it counts.",
    ),
    Property(
        "differs from the definition",
        lambda answer: _same(_continued(answer), _past_windows()[0] @ _past_windows()[1][:, WINDOW:]),
        "weights = softmax(-|query - key|^2 / (2 bandwidth^2)), over the windows that `horizon` values follow.",
    ),
)

SEEN, SAID = _random(6, seed=17), _random(6, seed=18)
LEVEL = 0.9


def _quantile_loss(answer: Answer, observed: Tensor = SEEN, predicted: Tensor = SAID) -> Tensor:
    return torch.as_tensor(_result(answer(observed.clone(), predicted.clone(), LEVEL)))


def _pinball() -> Tensor:
    difference = SEEN - SAID
    return torch.maximum(LEVEL * difference, (LEVEL - 1) * difference)


ZERO, ONE = torch.zeros(1).double(), torch.ones(1).double()

QUANTILE_LOSS = (
    Property(
        "negative",
        lambda answer: bool((_quantile_loss(answer, ZERO, ONE) >= 0).all()),
        "A forecast that is too high has a loss, too: (p - 1) d is positive if d is negative.",
    ),
    Property(
        "both sides cost the same",
        lambda answer: not _same(_quantile_loss(answer, ONE, ZERO), _quantile_loss(answer, ZERO, ONE)),
        "A quantile of 0.9 may be above nine of ten values: too low costs more than too high.",
    ),
    Property(
        "sides exchanged",
        lambda answer: bool((_quantile_loss(answer, ONE, ZERO) > _quantile_loss(answer, ZERO, ONE)).all()),
        "d = observed - predicted is positive if the forecast is too low; that costs p d.",
    ),
    Property(
        "a sum",
        lambda answer: not _same(_quantile_loss(answer), _pinball().sum()),
        "Take the mean, so that the number of steps does not matter.",
    ),
    Property(
        "differs from the definition",
        lambda answer: _same(_quantile_loss(answer), _pinball().mean()),
        "mean of max(p d, (p - 1) d), with d = observed - predicted.",
    ),
)

CAME_AT = torch.tensor(
    [0.5, 0.15, 0.85, 0.04, 0.97, 0.3, 0.7, 0.02]
).double()  # of the observed values, among the paths
POSSIBLE = torch.linspace(0, 1, 99).double()[torch.randperm(99, generator=torch.Generator().manual_seed(19))]
SAMPLED = POSSIBLE.unsqueeze(-1) + torch.arange(8)  # paths, steps: each step is about 1 higher than the one before
CAME = CAME_AT + torch.arange(8)


def _covered(answer: Answer) -> Tensor:
    return torch.as_tensor(_result(answer(SAMPLED.clone(), CAME.clone(), 0.8)))


def _within(low: float, high: float) -> Tensor:
    return ((low < CAME_AT) & (high > CAME_AT)).double().mean()


INTERVAL_COVERAGE = (
    Property("wrong shape", lambda answer: _covered(answer).shape == (), "Return one number: a share of all steps."),
    Property(
        "one interval for all steps",
        lambda answer: not _same(_covered(answer), 7 / 8),
        "Each step has its own quantiles: take them over the paths alone.",
    ),
    Property(
        "open below",
        lambda answer: not _same(_covered(answer), _within(-1.0, 0.8)),
        "A central interval leaves out as many paths below as above.",
    ),
    Property(
        "too narrow",
        lambda answer: not _same(_covered(answer), _within(0.2, 0.8)),
        "What is left out is divided: of a share of 0.8, a tenth is below the interval and a tenth above.",
    ),
    Property(
        "differs from the definition",
        lambda answer: _same(_covered(answer), _within(0.1, 0.9)),
        "Between the quantiles (1 - share) / 2 and (1 + share) / 2 of the paths.",
    ),
)

EXERCISES: dict[str, tuple[Property, ...]] = {
    "teacher_forcing": TEACHER_FORCING,
    "greedy": GREEDY,
    "look": LOOK,
    "self_attention": SELF_ATTENTION,
    "padded_mean": PADDED_MEAN,
    "additive_from_concat": ADDITIVE_FROM_CONCAT,
    "bilinear": BILINEAR,
    "which_weight": WHICH_WEIGHT,
    "bahdanau_step": BAHDANAU_STEP,
    "luong_step": LUONG_STEP,
    "causal": CAUSAL,
    "local_m": LOCAL_M,
    "local_p": LOCAL_P,
    "kernel_regression": KERNEL_REGRESSION,
    "leave_one_out": LEAVE_ONE_OUT,
    "lstm_step": LSTM_STEP,
    "squeeze_excite": SQUEEZE_EXCITE,
    "sinusoids": SINUSOIDS,
    "rotary": ROTARY,
    "weighted_self_attention": WEIGHTED_SELF_ATTENTION,
    "softmax_slopes": SOFTMAX_SLOPES,
    "multi_head": MULTI_HEAD,
    "keys_for_heads": KEYS_FOR_HEADS,
    "target_mask": TARGET_MASK,
    "pre_norm": PRE_NORM,
    "hide": HIDE,
    "masked_loss": MASKED_LOSS,
    "pad_and_mask": PAD_AND_MASK,
    "take_over": TAKE_OVER,
    "attend_to_cells": ATTEND_TO_CELLS,
    "heaviest_cells": HEAVIEST_CELLS,
    "doubly_stochastic": DOUBLY_STOCHASTIC,
    "join_pairs": JOIN_PAIRS,
    "token_seconds": TOKEN_SECONDS,
    "collapse": COLLAPSE,
    "kernel_forecast": KERNEL_FORECAST,
    "quantile_loss": QUANTILE_LOSS,
    "interval_coverage": INTERVAL_COVERAGE,
}
