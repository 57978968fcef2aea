"""Exercises that check themselves: `check(name, your_function)` names the first property that fails.

    >>> print(check("look", my_look))
    look: not yet: mask ignored. Keys that the mask hides must get weight 0.

An exercise is a row of properties. Each has a name that says what went wrong, a test, and a hint.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from regard.decoders import Decoder
from regard.maps import TEXT
from regard.types import BEGIN, END, PAD, UNKNOWN, Memory, Ready, Recurrent, State, Step

Answer = Callable[..., Any]


class Property(NamedTuple):
    """What an answer must do; `name` says what is wrong if it does not."""

    name: str
    holds: Callable[[Answer], bool]
    hint: str


class Verdict(NamedTuple):
    """What came of a check: the name of the first property that failed, or None."""

    exercise: str
    failed: str | None
    hint: str = ""

    def __str__(self) -> str:
        if self.failed is None:
            return f"{self.exercise}: right."
        return f"{self.exercise}: not yet: {self.failed}. {self.hint}"


def check(exercise: str, answer: Answer) -> Verdict:
    """Try an answer; properties are tried in order, and the first that fails is named."""
    if exercise not in EXERCISES:
        raise ValueError(f"there is no exercise {exercise!r}; choose from {', '.join(EXERCISES)}")
    for each in EXERCISES[exercise]:
        try:
            held = each.holds(answer)
        except _NothingError:
            return Verdict(exercise, "nothing returned", "Fill the function in, then run this cell again.")
        except Exception as error:  # whatever the answer did, its author should read it
            return Verdict(exercise, "an error was raised", f"{type(error).__name__}: {error}")
        if not held:
            return Verdict(exercise, each.name, each.hint)
    return Verdict(exercise, None)


class _NothingError(Exception):
    """The answer gave None: it is still to be written."""


def _given(result: Any) -> Any:
    if result is None or result is ...:
        raise _NothingError
    return result


def _same(one: Any, other: Any) -> bool:
    one, other = torch.as_tensor(one), torch.as_tensor(other)
    return one.shape == other.shape and torch.allclose(one.double(), other.double(), atol=1e-7)


def _random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


# ---- lesson 1: teacher forcing, greedy decoding

TARGETS = torch.tensor([[BEGIN, 5, 9, 7, END], [BEGIN, 8, END, PAD, PAD]])


def _forced(answer: Answer) -> tuple[Tensor, Tensor]:
    return _given(answer(TARGETS.clone()))


TEACHER_FORCING = (
    Property(
        "the word to predict is given away",
        lambda answer: not torch.equal(*_forced(answer)),
        "Inputs and wanted words are the same, so the model only has to copy; shift them by one.",
    ),
    Property(
        "wrong order",
        lambda answer: not torch.equal(_forced(answer)[0], TARGETS[:, 1:]),
        "The inputs come first, then what is wanted after each of them.",
    ),
    Property(
        "<s> is missing",
        lambda answer: bool((_forced(answer)[0][:, 0] == BEGIN).all()),
        "The first word is predicted after <s>.",
    ),
    Property(
        "</s> is never wanted",
        lambda answer: bool((_forced(answer)[1] == END).any(-1).all()),
        "A model that never has to predict the end will never end.",
    ),
    Property(
        "differs from the definition",
        lambda answer: _same(_forced(answer)[0], TARGETS[:, :-1]) and _same(_forced(answer)[1], TARGETS[:, 1:]),
        "Inputs are all tokens but the last, wanted are all but the first.",
    ),
)


@dataclass(frozen=True)
class _NoReady(Ready):
    pass


@dataclass(frozen=True)
class _Counted(State):
    steps: int


class _Fed(NamedTuple):
    """What one step of a decoder was given."""

    tokens: list[int]
    steps: int  # that its state had seen
    prepared: bool


class _Spied(Decoder[_NoReady, _Counted]):
    """Writes a known sentence if it is decoded rightly, and keeps what it was fed."""

    def __init__(self, length: int) -> None:
        super().__init__()
        self.length = length
        self.fed: list[_Fed] = []

    def prepare(self, memory: Memory) -> _NoReady:
        return _NoReady()

    def start(self, ready: _NoReady) -> _Counted:
        return _Counted(0)

    def step(self, tokens: Tensor, state: _Counted, ready: _NoReady) -> Step:
        last = int(tokens[0, -1])
        self.fed.append(_Fed(tokens[0].tolist(), state.steps, isinstance(ready, _NoReady)))
        word = END if state.steps == self.length else 4 + (5 * last + state.steps) % 7
        logits = torch.zeros(1, 1, 11)
        logits[0, 0, word] = 1.0
        logits[0, 0, UNKNOWN] = 0.5
        return Step(logits, replace(state, steps=state.steps + 1), None)


def _spy(answer: Answer, length: int = 4, limit: int = 9) -> tuple[list[int], list[_Fed]]:
    decoder = _Spied(length)
    hidden = torch.zeros(1, 1, 1)
    memory = Memory(hidden, torch.ones(1, 1, dtype=torch.bool), Recurrent(hidden, None), TEXT)
    written = _given(answer(decoder, memory, limit))
    return list(map(int, written)), decoder.fed


def _output_is_fed(answer: Answer) -> bool:
    written, fed = _spy(answer, length=10**6, limit=6)
    return [each.tokens[-1] for each in fed[1:]] == written[: len(fed) - 1]


def _likeliest(length: int) -> list[int]:
    """The sentence that `_Spied` writes."""
    words = [BEGIN]
    for steps in range(length):
        words.append(4 + (5 * words[-1] + steps) % 7)
    return words[1:]


GREEDY = (
    Property(
        "<s> is missing",
        lambda answer: _spy(answer)[1][0].tokens == [BEGIN],
        "The first token that the decoder reads is <s>, the id BEGIN.",
    ),
    Property(
        "the memory is not prepared",
        lambda answer: all(each.prepared for each in _spy(answer)[1]),
        "A step is given what `prepare` returned, not the memory.",
    ),
    Property(
        "the state is not carried on",
        lambda answer: [each.steps for each in _spy(answer)[1]] == list(range(len(_spy(answer)[1]))),
        "Every step gives a new state; hand it to the next.",
    ),
    Property(
        "a token is read twice",
        lambda answer: all(len(each.tokens) == 1 for each in _spy(answer)[1]),
        "The state has read what came before: a step reads the newest token alone.",
    ),
    Property(
        "the limit is ignored",
        lambda answer: len(_spy(answer, length=30, limit=6)[0]) <= 6,
        "A decoder need not end by itself: stop after `limit` tokens.",
    ),
    Property(
        "ends before the limit",
        lambda answer: len(_spy(answer, length=30, limit=6)[0]) == 6,
        "As long as no </s> comes, `limit` tokens are written; <s> does not count.",
    ),
    Property(
        "the output is not fed back",
        _output_is_fed,
        "What was written becomes the next token that is read.",
    ),
    Property(
        "</s> is part of the output",
        lambda answer: END not in _spy(answer)[0],
        "The end is a sign, not a word: stop there and leave it out.",
    ),
    Property(
        "does not stop at </s>",
        lambda answer: len(_spy(answer)[0]) == 4,
        "Stop when the likeliest word is the id END.",
    ),
    Property(
        "differs from the definition",
        lambda answer: _spy(answer)[0] == _likeliest(4) and _spy(answer, length=30, limit=6)[0] == _likeliest(6),
        "Each word is the one with the largest logit.",
    ),
)

# ---- lesson 2: query, key, value

ASKED, KEPT, WORTH = _random(3, 4, seed=1), _random(5, 4, seed=2), _random(5, 4, seed=3)
ALL, SOME = torch.ones(3, 5, dtype=torch.bool), torch.tensor([[1, 1, 0, 1, 0], [1, 0, 0, 0, 0], [0, 1, 1, 1, 1]]).bool()
NONE = SOME & torch.tensor([[True], [False], [True]])


def _looked(answer: Answer, mask: Tensor = ALL) -> tuple[Tensor, Tensor]:
    context, weights = _given(answer(ASKED.clone(), KEPT.clone(), WORTH.clone(), mask.clone()))
    return context, weights


def _sums(weights: Tensor, dim: int = -1) -> bool:
    return torch.allclose(weights.sum(dim), torch.ones((), dtype=weights.dtype))


LOOK = (
    Property(
        "wrong order",
        lambda answer: _looked(answer)[1].shape == (3, 5),
        "Give the context first, then the weights, which have a row for each query and a column for each key.",
    ),
    Property(
        "mask upside down",
        lambda answer: not (_looked(answer, SOME)[1][SOME] == 0).all(),
        "True means may be attended; this one hides what may be seen.",
    ),
    Property(
        "softmax over the wrong axis",
        lambda answer: not _sums(_looked(answer)[1], dim=-2),
        "A query shares its attention among the keys; the keys do not share theirs among queries.",
    ),
    Property(
        "weights not summing to one",
        lambda answer: _sums(_looked(answer)[1]),
        "Softmax over the keys makes each row sum to one.",
    ),
    Property(
        "mask ignored",
        lambda answer: bool((_looked(answer, SOME)[1][~SOME] == 0).all()),
        "Keys that the mask hides must get weight 0.",
    ),
    Property(
        "masked after the softmax",
        lambda answer: _sums(_looked(answer, SOME)[1]),
        "What is left does not sum to one: hide keys before they are normalised.",
    ),
    Property(
        "keys returned in place of values",
        lambda answer: not _same(_looked(answer)[0], _looked(answer)[1] @ KEPT),
        "Keys are compared, values are what one gets.",
    ),
    Property(
        "padding seen",
        lambda answer: _same(_looked(answer, SOME)[0], _looked(answer, SOME)[1] @ WORTH),
        "The context is the sum of the values by exactly these weights.",
    ),
    Property(
        "a query that sees nothing is not a number",
        lambda answer: bool((_looked(answer, NONE)[1][1] == 0).all() and (_looked(answer, NONE)[0][1] == 0).all()),
        "A softmax over nothing is 0 / 0. Such a query gets zeros.",
    ),
    Property(
        "differs from the definition",
        lambda answer: all(
            _same(_looked(answer, mask)[1], torch.softmax((ASKED @ KEPT.T).masked_fill(~mask, -torch.inf), dim=-1))
            for mask in (ALL, SOME)
        ),
        "The scores are plain dot products.",
    ),
)

SENTENCE = _random(5, 3, seed=4)
SELF_WEIGHTS = torch.softmax(SENTENCE @ SENTENCE.T, dim=-1)


def _own(answer: Answer) -> tuple[Tensor, Tensor]:
    output, weights = _given(answer(SENTENCE.clone()))
    return output, weights


SELF_ATTENTION = (
    Property(
        "wrong order",
        lambda answer: _own(answer)[0].shape == (5, 3) and _own(answer)[1].shape == (5, 5),
        "Give the new vectors first, then the weights.",
    ),
    Property(
        "softmax over the wrong axis",
        lambda answer: not _same(_own(answer)[1], SELF_WEIGHTS.T),
        "Row i holds the weights with which word i looks at all words.",
    ),
    Property(
        "weights not summing to one",
        lambda answer: _sums(_own(answer)[1]),
        "Scores are not weights yet: normalise each row.",
    ),
    Property(
        "a word does not see itself",
        lambda answer: bool((_own(answer)[1].diagonal() > 0).all()),
        "In plain self-attention every word is among the words it looks at.",
    ),
    Property(
        "differs from the definition",
        lambda answer: _same(_own(answer)[1], SELF_WEIGHTS),
        "The score of words i and j is x_i . x_j.",
    ),
    Property(
        "not everything that is weighed is summed",
        lambda answer: _same(_own(answer)[0], SELF_WEIGHTS @ SENTENCE),
        "Sum over the same words that were normalised over, the first one included.",
    ),
)

PADDED, LENGTHS = _random(3, 5, 2, seed=5), torch.tensor([5, 3, 1])
MEANS = torch.stack([row[:length].mean(0) for row, length in zip(PADDED, LENGTHS, strict=True)])


def _mean(answer: Answer, junk: float = 0.0) -> Tensor:
    states = PADDED.clone()
    states[torch.arange(5) >= LENGTHS.unsqueeze(-1)] = junk
    return _given(answer(states, LENGTHS.clone()))


PADDED_MEAN = (
    Property(
        "wrong shape",
        lambda answer: _mean(answer).shape == MEANS.shape,
        "One vector for each sentence: batch, dim.",
    ),
    Property(
        "padding seen",
        lambda answer: _same(_mean(answer, junk=7.0), _mean(answer, junk=-3.0)),
        "What stands in the padding changes the result.",
    ),
    Property(
        "divided by the padded length",
        lambda answer: not _same(_mean(answer), MEANS * LENGTHS.unsqueeze(-1) / 5),
        "The padding is not summed, but it is counted.",
    ),
    Property("differs from the definition", lambda answer: _same(_mean(answer), MEANS), "Mean over the real words."),
)

# ---- lesson 3: scores

INNER, QUERY_DIM, KEY_DIM = 4, 3, 5
MIXING, OUT = _random(INNER, QUERY_DIM + KEY_DIM, seed=6), _random(INNER, seed=7)
QUERIES, KEYS = _random(2, QUERY_DIM, seed=8), _random(6, KEY_DIM, seed=9)


def _pairs(first: Tensor, second: Tensor) -> Tensor:
    """Every pair of rows, concatenated."""
    wide = first.unsqueeze(1).expand(-1, len(second), -1), second.unsqueeze(0).expand(len(first), -1, -1)
    return torch.cat(wide, dim=-1)


MIXED = _pairs(QUERIES, KEYS) @ MIXING.T


def _split(answer: Answer) -> Tensor:
    return _given(answer(MIXING.clone(), OUT.clone(), QUERIES.clone(), KEYS.clone()))


ADDITIVE_FROM_CONCAT = (
    Property(
        "v forgotten",
        lambda answer: _split(answer).shape[-1:] != (INNER,) or _split(answer).ndim == 2,
        "tanh(...) is a vector; its product with v makes it one number.",
    ),
    Property(
        "wrong shape",
        lambda answer: _split(answer).shape == MIXED.shape[:-1],
        "One number for each query (row) and key (column).",
    ),
    Property(
        "tanh forgotten",
        lambda answer: not _same(_split(answer), MIXED @ OUT),
        "Without it the query adds the same to every key and cancels in softmax.",
    ),
    Property(
        "W cut in the wrong place",
        lambda answer: _same(_split(answer), torch.tanh(MIXED) @ OUT),
        "The first columns of W, as many as a query is wide, belong to the query; the others to the key.",
    ),
)

LEFT, RIGHT = _random(4, QUERY_DIM, seed=10), _random(4, KEY_DIM, seed=11)


def _form(answer: Answer) -> Tensor:
    return _given(answer(LEFT.clone(), RIGHT.clone()))


BILINEAR = (
    Property(
        "transposed",
        lambda answer: not _same(_form(answer), RIGHT.T @ LEFT),
        "Rows belong to the query, columns to the key.",
    ),
    Property(
        "wrong shape",
        lambda answer: _form(answer).shape == (QUERY_DIM, KEY_DIM),
        "W stands between a query and a key: query_dim x key_dim.",
    ),
    Property(
        "differs from the definition",
        lambda answer: _same(QUERIES @ _form(answer) @ KEYS.T, (QUERIES @ LEFT.T) @ (KEYS @ RIGHT.T).T),
        "queryᵀ W key must equal (W_q query) . (W_k key) for every query and key.",
    ),
)

TO_QUERY, TO_KEY = _random(4, 3, seed=12), _random(4, 3, seed=13)
ASKING, ANSWERING = SENTENCE @ TO_QUERY.T, SENTENCE @ TO_KEY.T


def _chosen(answer: Answer) -> Tensor:
    return _given(answer(SENTENCE.clone(), TO_QUERY.clone(), TO_KEY.clone()))


WHICH_WEIGHT = (
    Property(
        "scores, not weights",
        lambda answer: not _same(_chosen(answer), ASKING @ ANSWERING.T),
        "These are the scores e_ij; the weights a_ij are their softmax.",
    ),
    Property(
        "query and key exchanged",
        lambda answer: not _same(_chosen(answer), torch.softmax(ANSWERING @ ASKING.T, dim=-1)),
        "Word i asks with W_q x_i; word j answers with W_k x_j.",
    ),
    Property(
        "softmax over the wrong axis",
        lambda answer: not _sums(_chosen(answer), dim=-2),
        "For a given i, the softmax runs over j.",
    ),
    Property(
        "weights not summing to one", lambda answer: _sums(_chosen(answer)), "Each row i is a softmax over all j."
    ),
    Property(
        "differs from the definition",
        lambda answer: _same(_chosen(answer), torch.softmax(ASKING @ ANSWERING.T, dim=-1)),
        "a_ij = softmax over j of (W_q x_i) . (W_k x_j).",
    ),
)

# ---- lesson 4: orders

STATE, WORD = _random(4, seed=14), _random(3, seed=15)
READING = _random(4, 6, seed=16)


class _Watched:
    """A look and a cell that keep what they were given, in the order in which they were called."""

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
        """Whether the cell's input contains a part, as it is, at any place."""
        places = range(len(self.inputs) - len(part) + 1)
        return any(_same(self.inputs[place : place + len(part)], part) for place in places)


def _bahdanau(answer: Answer) -> tuple[_Watched, Tensor, Tensor]:
    watched = _Watched()
    state, context = _given(answer(STATE.clone(), WORD.clone(), watched.look, watched.cell))
    return watched, state, context


def _luong(answer: Answer) -> tuple[_Watched, Tensor, Tensor]:
    watched = _Watched()
    state, attentional = _given(answer(STATE.clone(), WORD.clone(), watched.look, watched.cell, READING.clone()))
    return watched, state, attentional


def _reading(watched: _Watched) -> Tensor:
    return READING @ torch.cat([watched.context, watched.after])


BAHDANAU_STEP = (
    Property(
        "wrong order",
        lambda answer: _bahdanau(answer)[0].calls == ["look", "cell"],
        "Bahdanau's decoder looks first, then moves: each once.",
    ),
    Property(
        "wrong query",
        lambda answer: _same(_bahdanau(answer)[0].query, STATE),
        "The state of before asks.",
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
        "The cell moves on from the last state.",
    ),
    Property(
        "wrong result",
        lambda answer: (
            _same(_bahdanau(answer)[1], _bahdanau(answer)[0].after)
            and _same(_bahdanau(answer)[2], _bahdanau(answer)[0].context)
        ),
        "Give the new state and the context.",
    ),
)

LUONG_STEP = (
    Property(
        "wrong order",
        lambda answer: _luong(answer)[0].calls == ["cell", "look"],
        "Luong's decoder moves first, then looks: each once.",
    ),
    Property(
        "wrong query",
        lambda answer: _same(_luong(answer)[0].query, _luong(answer)[0].after),
        "The state of now asks.",
    ),
    Property(
        "wrong input of the cell",
        lambda answer: _same(_luong(answer)[0].inputs, WORD),
        "Without input feeding, only the word enters the cell.",
    ),
    Property(
        "wrong state of the cell",
        lambda answer: _same(_luong(answer)[0].before, STATE),
        "The cell moves on from the last state.",
    ),
    Property(
        "tanh forgotten",
        lambda answer: not _same(_luong(answer)[2], _reading(_luong(answer)[0])),
        "The attentional state is tanh(W [context; state]).",
    ),
    Property(
        "wrong result",
        lambda answer: (
            _same(_luong(answer)[1], _luong(answer)[0].after)
            and _same(_luong(answer)[2], torch.tanh(_reading(_luong(answer)[0])))
        ),
        "Give the new state and tanh(W [context; state]), the context first.",
    ),
)

# ---- lesson 5: scopes

ROWS_AND_COLUMNS = "A row for each query, a column for each key."


def _future(answer: Answer) -> Tensor:
    return _given(answer(4))


PAST = torch.ones(4, 4).tril().bool()

CAUSAL = (
    Property(
        "not boolean",
        lambda answer: _future(answer).dtype == torch.bool,
        "A mask is boolean, True = may be attended.",
    ),
    Property("wrong shape", lambda answer: _future(answer).shape == (4, 4), ROWS_AND_COLUMNS),
    Property(
        "mask upside down",
        lambda answer: not torch.equal(_future(answer), ~PAST),
        "True means may be attended; this one hides what may be seen.",
    ),
    Property(
        "the future is seen",
        lambda answer: not _future(answer).triu(1).any(),
        "Query t may see keys up to t and none after it.",
    ),
    Property(
        "own position hidden",
        lambda answer: bool(_future(answer).diagonal().all()),
        "Query t may see key t: otherwise the first sees nothing at all.",
    ),
    Property("differs from the definition", lambda answer: torch.equal(_future(answer), PAST), "All of the past."),
)


def _window(answer: Answer, window: int = 2, start: int = 0) -> Tensor:
    return _given(answer(4, 9, window, start))


def _near(window: int, start: int) -> Tensor:
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
        "The first query stands at position `start`: a decoder that steps asks one query at a time.",
    ),
    Property(
        "window too narrow",
        lambda answer: bool(_window(answer, start=3)[_near(2, 3)].all()),
        "Query t sees keys from t - window to t + window, both included.",
    ),
    Property(
        "window too wide",
        lambda answer: not _window(answer, start=3)[~_near(2, 3)].any(),
        "Query t sees nothing beyond t - window and t + window.",
    ),
    Property(
        "differs from the definition",
        lambda answer: all(torch.equal(_window(answer, w, s), _near(w, s)) for w in (1, 3) for s in (0, 5)),
        "|key - (start + row)| <= window.",
    ),
)

CENTRE, WINDOWS = 3.4, (3, 5)  # of a window of 2 the bell's standard deviation is 1, its own square


def _inside(window: int) -> Tensor:
    far = (torch.arange(8) - CENTRE).abs() > window
    return torch.softmax(_random(8, seed=17).masked_fill(far, -torch.inf), dim=-1)


def _bell(width: float) -> Tensor:
    return torch.exp(-(torch.arange(8).double() - CENTRE).square() / (2 * width**2))


def _favoured(answer: Answer, window: int) -> Tensor:
    return _given(answer(_inside(window).clone(), CENTRE, window))


def _wrong_width(answer: Answer, window: int) -> bool:
    """Whether the weights were multiplied by a bell around the centre, but a wider or narrower one (or none)."""
    seen = _inside(window) > 0
    factors = (_favoured(answer, window) / _inside(window))[seen]
    slopes = factors.log() / (torch.arange(8) - CENTRE)[seen].square()  # -1 / (2 width^2) in all places
    return torch.allclose(slopes, slopes[:1].expand_as(slopes)) and not _same(slopes[0], -2 / window**2)


LOCAL_P = (
    Property(
        "weights normalised again",
        lambda answer: not any(_sums(_favoured(answer, window)) for window in WINDOWS),
        "The paper multiplies the weights by the bell and leaves them so; they sum to less than one.",
    ),
    Property(
        "wrong width of the bell",
        lambda answer: not any(_wrong_width(answer, window) for window in WINDOWS),
        "Its standard deviation is half the window.",
    ),
    Property(
        "differs from the definition",
        lambda answer: all(_same(_favoured(answer, window), _inside(window) * _bell(window / 2)) for window in WINDOWS),
        "weight * exp(-(s - p)^2 / (2 (window / 2)^2)) for every source position s.",
    ),
)

# ---- lesson 6: kernel regression

PLACES, HEIGHTS, WANTED = _random(7, seed=18), _random(7, seed=19), torch.linspace(-1, 1, 4).double()
TWICE = PLACES.where(torch.arange(7) != 5, PLACES[2])  # two points may stand at one place
BANDWIDTHS = (0.3, 0.7, 1.4)  # not 0.5, of which 2 h^2 = h


def _kernel(wanted: Tensor, places: Tensor, heights: Tensor, bandwidth: float) -> Tensor:
    squares = (wanted.unsqueeze(-1) - places).square()
    return torch.softmax(-squares / (2 * bandwidth**2), dim=-1) @ heights


def _smooth(answer: Answer, bandwidth: float = 0.7, heights: Tensor = HEIGHTS) -> Tensor:
    return _given(answer(WANTED.clone(), PLACES.clone(), heights.clone(), bandwidth))


KERNEL_REGRESSION = (
    Property("wrong shape", lambda answer: _smooth(answer).shape == WANTED.shape, "One prediction for each wanted x."),
    Property(
        "weights not summing to one",
        lambda answer: _same(_smooth(answer, heights=torch.full((7,), 2.0).double()), torch.full((4,), 2.0)),
        "If all y are 2, every weighted mean of them is 2.",
    ),
    Property(
        "bandwidth ignored",
        lambda answer: not _same(_smooth(answer, 0.2), _smooth(answer, 2.0)),
        "A wider kernel must look further.",
    ),
    Property(
        "bandwidth upside down",
        lambda answer: bool(_smooth(answer, 50.0).std() < _smooth(answer, 0.1).std()),
        "A very wide kernel must give nearly the mean of all y everywhere.",
    ),
    Property(
        "differs from the definition",
        lambda answer: all(_same(_smooth(answer, h), _kernel(WANTED, PLACES, HEIGHTS, h)) for h in BANDWIDTHS),
        "weights = softmax of -(x - x_j)^2 / (2 bandwidth^2).",
    ),
)


def _left_out(bandwidth: float, places: Tensor = PLACES) -> Tensor:
    others = ~torch.eye(7, dtype=torch.bool)
    told = [_kernel(places[n : n + 1], places[others[n]], HEIGHTS[others[n]], bandwidth) for n in range(7)]
    return (torch.cat(told) - HEIGHTS).square().mean()


def _error(answer: Answer, bandwidth: float, places: Tensor = PLACES) -> Tensor:
    return torch.as_tensor(_given(answer(places.clone(), HEIGHTS.clone(), bandwidth)))


LEAVE_ONE_OUT = (
    Property(
        "the point itself is seen",
        lambda answer: bool(_error(answer, 1e-4).double() > 1e-6),
        "With a narrow kernel the error is 0: each point predicts itself. Hide it from its own query.",
    ),
    Property(
        "summed, not averaged",
        lambda answer: not _same(_error(answer, 0.7), 7 * _left_out(0.7)),
        "Give the mean of the squared errors.",
    ),
    Property(
        "differs from the definition",
        lambda answer: all(_same(_error(answer, bandwidth), _left_out(bandwidth)) for bandwidth in BANDWIDTHS),
        "The mean over all points of (prediction without the point - y)^2.",
    ),
    Property(
        "another point at the same place is hidden",
        lambda answer: _same(_error(answer, 0.7, TWICE), _left_out(0.7, TWICE)),
        "Hide the point itself, not every point of the same x: it is known by its number, not by its place.",
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
    hidden, cell = _given(answer(X.clone(), H.clone(), C.clone(), W.clone(), U.clone(), B.clone()))
    return hidden, cell


LSTM_STEP = (
    Property(
        "wrong order",
        lambda answer: not _same(_stepped(answer)[0], _lstm()[1]),
        "Give the hidden state first, then the cell.",
    ),
    Property(
        "input and forget gate exchanged",
        lambda answer: not _same(_stepped(answer)[1], _lstm((1, 0, 2, 3))[1]),
        "torch stacks input, forget, new, output; the forget gate multiplies the old cell.",
    ),
    Property(
        "a gate that is not between 0 and 1",
        lambda answer: not _same(_stepped(answer)[1], _lstm(squash=torch.tanh)[1]),
        "Gates are sigmoids; only the new content is a tanh.",
    ),
    Property(
        "the cell is shown without tanh",
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
    return _given(answer(IMAGE.clone(), V.clone(), VB.clone(), E.clone(), EB.clone()))


SQUEEZE_EXCITE = (
    Property(
        "the gate itself returned",
        lambda answer: not _same(_excited(answer), _gate(IMAGE.mean(0))),
        "The gate is multiplied into the input.",
    ),
    Property("wrong shape", lambda answer: _excited(answer).shape == IMAGE.shape, "The output is shaped as the input."),
    Property(
        "each position has its own gate",
        lambda answer: not _same(_excited(answer), IMAGE * _gate(IMAGE)),
        "Squeeze first: the gate is made of the mean over all positions.",
    ),
    Property(
        "relu forgotten",
        lambda answer: not _same(_excited(answer), IMAGE * _gate(IMAGE.mean(0), inner=lambda x: x)),
        "Two linear layers without anything between them are one.",
    ),
    Property(
        "channels compete",
        lambda answer: not _same(_excited(answer), IMAGE * _gate(IMAGE.mean(0), outer=lambda x: x.softmax(-1))),
        "A gate is a sigmoid, each channel for itself; a softmax would make it attention over channels.",
    ),
    Property(
        "differs from the definition",
        lambda answer: _same(_excited(answer), IMAGE * _gate(IMAGE.mean(0))),
        "x * sigmoid(W relu(V mean(x) + c) + b).",
    ),
)

# ---- lesson 8: positions


def _waves(length: int, dim: int, shift: int = 0) -> Tensor:
    angles = torch.arange(shift, shift + length).double().unsqueeze(-1) / 10000 ** (torch.arange(0, dim, 2) / dim)
    return torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(-2)


def _misprint(length: int, dim: int) -> Tensor:
    angles = torch.arange(length).double().unsqueeze(-1) / 10000 ** (torch.arange(dim) / dim)
    return torch.where(torch.arange(dim) % 2 == 0, angles.sin(), angles.cos())


def _waved(answer: Answer) -> Tensor:
    return _given(answer(7, 6))


def _near_enough(one: Tensor, other: Tensor) -> bool:
    """Equal to single precision, in which most people compute."""
    return one.shape == other.shape and torch.allclose(one.double(), other.double(), atol=1e-5)


SINUSOIDS = (
    Property("wrong shape", lambda answer: _waved(answer).shape == (7, 6), "A row for each position, dim columns."),
    Property(
        "starts at position 1",
        lambda answer: not _near_enough(_waved(answer), _waves(7, 6, shift=1)),
        "The first position is 0: all its sines are 0 and all its cosines 1.",
    ),
    Property(
        "sines and cosines not in turn",
        lambda answer: _near_enough(_waved(answer)[0], torch.tensor([0.0, 1, 0, 1, 0, 1])),
        "Number 2i is a sine, number 2i + 1 a cosine; at position 0 that is 0, 1, 0, 1, ...",
    ),
    Property(
        "the cosine has an exponent of its own",
        lambda answer: not _near_enough(_waved(answer), _misprint(7, 6)),
        "Numbers 2i and 2i + 1 share the exponent 2i/dim; only so are they a clock.",
    ),
    Property(
        "differs from the definition",
        lambda answer: _near_enough(_waved(answer), _waves(7, 6)),
        "sin and cos of pos / 10000^(2i/dim).",
    ),
)

TURNING = _random(7, 6, seed=31)


def _rotate(vectors: Tensor, shift: int = 0) -> Tensor:
    even, odd = vectors[:, 0::2], vectors[:, 1::2]
    sine, cosine = _waves(len(vectors), vectors.shape[1], shift).unflatten(-1, (-1, 2)).unbind(-1)
    return torch.stack([even * cosine - odd * sine, even * sine + odd * cosine], dim=-1).flatten(-2)


def _halves(vectors: Tensor) -> Tensor:
    """Paired as some do: number i with number i + half."""
    places = torch.arange(vectors.shape[1]).view(2, -1).T.flatten()  # 0, half, 1, half + 1, ...
    return _rotate(vectors[:, places])[:, places.argsort()]


def _turned(answer: Answer, vectors: Tensor = TURNING) -> Tensor:
    return _given(answer(vectors.clone()))


def _distance_alone(answer: Answer) -> bool:
    same = _turned(answer, TURNING[:1].expand(7, 6))
    scores = (same @ same.T).double()
    return all(torch.allclose(scores.diagonal(k), scores.diagonal(k)[:1], atol=1e-5) for k in range(1, 6))


ROTARY = (
    Property("wrong shape", lambda answer: _turned(answer).shape == (7, 6), "As many vectors as before, as wide."),
    Property(
        "position 0 is turned",
        lambda answer: _near_enough(_turned(answer)[0], TURNING[0]),
        "The first row stands at position 0; its angles are 0, and it stays as it is.",
    ),
    Property(
        "lengths change",
        lambda answer: _near_enough(_turned(answer).norm(dim=-1), TURNING.norm(dim=-1)),
        "A rotation keeps the length of every vector: nothing is added, nothing is scaled.",
    ),
    Property(
        "depends on more than the distance",
        _distance_alone,
        "The same vector at all positions must give the same dot product wherever two of them are equally far apart.",
    ),
    Property(
        "turned the wrong way",
        lambda answer: not _near_enough(_turned(answer), _rotate(TURNING.flip(0), shift=-6).flip(0)),
        "(a, b) becomes (a cos - b sin, a sin + b cos).",
    ),
    Property(
        "other numbers are paired",
        lambda answer: not _near_enough(_turned(answer), _halves(TURNING)),
        "Some pair number i with number i + dim/2, and it works as well; here a pair is two neighbours.",
    ),
    Property(
        "differs from the definition",
        lambda answer: _near_enough(_turned(answer), _rotate(TURNING)),
        "Angle pos / 10000^(2i/dim) for the pair 2i, 2i + 1.",
    ),
)

# ---- lesson 9: self-attention with weights

D_K = 6
QUERY_WAY, KEY_WAY, VALUE_WAY = _random(3, D_K, seed=32), _random(3, D_K, seed=33), _random(3, 2, seed=34)
CROSSED = (SENTENCE @ QUERY_WAY) @ (SENTENCE @ KEY_WAY).T


def _crossed(scale: float) -> Tensor:
    return torch.softmax(CROSSED / scale, dim=-1)


def _weighted(answer: Answer) -> tuple[Tensor, Tensor]:
    output, weights = _given(answer(SENTENCE.clone(), QUERY_WAY.clone(), KEY_WAY.clone(), VALUE_WAY.clone()))
    return output, weights


WEIGHTED_SELF_ATTENTION = (
    Property(
        "wrong order",
        lambda answer: _weighted(answer)[1].shape == (5, 5),
        "Give the new vectors first, then the weights, a row and a column for each word.",
    ),
    Property(
        "softmax over the wrong axis",
        lambda answer: not _sums(_weighted(answer)[1], dim=-2),
        "Each word shares its attention among all words: every row sums to one.",
    ),
    Property(
        "weights not summing to one",
        lambda answer: _sums(_weighted(answer)[1]),
        "Scores are not weights yet: softmax over the keys.",
    ),
    Property(
        "scale forgotten",
        lambda answer: not _same(_weighted(answer)[1], _crossed(1.0)),
        "Divide the scores by the square root of d_k before the softmax.",
    ),
    Property(
        "divided by d_k, not by its root",
        lambda answer: not _same(_weighted(answer)[1], _crossed(D_K)),
        "The standard deviation of a score grows with sqrt(d_k).",
    ),
    Property(
        "scaled by the wrong width",
        lambda answer: not any(_same(_weighted(answer)[1], _crossed(width**0.5)) for width in (2, 3, 5)),
        "d_k is the width of queries and keys: not that of words or values, nor the number of words.",
    ),
    Property(
        "query and key exchanged",
        lambda answer: not _same(_weighted(answer)[1], torch.softmax(CROSSED.T / D_K**0.5, dim=-1)),
        "Row i is what word i asks: its query with all keys.",
    ),
    Property(
        "W_v forgotten",
        lambda answer: not _same(_weighted(answer)[0], _crossed(D_K**0.5) @ SENTENCE),
        "What is summed are the values x W_v, not the words.",
    ),
    Property(
        "differs from the definition",
        lambda answer: (
            _same(_weighted(answer)[1], _crossed(D_K**0.5))
            and _same(_weighted(answer)[0], _crossed(D_K**0.5) @ SENTENCE @ VALUE_WAY)
        ),
        "softmax(q kᵀ / sqrt(d_k)) v, with q = x W_q, k = x W_k, v = x W_v.",
    ),
)

SHARED = torch.softmax(_random(5, seed=35), dim=-1)
SLOPES = SHARED.diag() - SHARED.outer(SHARED)


def _slopes(answer: Answer) -> Tensor:
    return _given(answer(SHARED.clone()))


SOFTMAX_SLOPES = (
    Property("wrong shape", lambda answer: _slopes(answer).shape == (5, 5), "One number for each weight and score."),
    Property(
        "the others do not give way",
        lambda answer: not _same(_slopes(answer), SLOPES.diagonal().diag()),
        "If one weight grows, all others shrink: off the diagonal it is -a_i a_j.",
    ),
    Property(
        "weights would not sum to one any more",
        lambda answer: _same(_slopes(answer).sum(0), torch.zeros(5)),
        "Whatever one weight wins the others lose: each column sums to zero.",
    ),
    Property(
        "wrong sign",
        lambda answer: bool((_slopes(answer).diagonal() > 0).all()),
        "A weight grows with its own score.",
    ),
    Property(
        "differs from the definition",
        lambda answer: _same(_slopes(answer), SLOPES),
        "a_i (1 - a_i) on the diagonal, -a_i a_j elsewhere.",
    ),
)

# ---- lesson 10: heads

WORDS_IN = _random(5, 6, seed=36)
WAYS = tuple(_random(6, 6, seed=seed) for seed in (37, 38, 39, 40))


def _heads(x: Tensor, q: Tensor, k: Tensor, v: Tensor, heads: int, scale: float) -> Tensor:
    """What all heads saw, side by side."""
    parts = [(x @ each).chunk(heads, dim=-1) for each in (q, k, v)]
    looks = [torch.softmax(q @ k.T / scale, dim=-1) @ v for q, k, v in zip(*parts, strict=True)]
    return torch.cat(looks, dim=-1)


def _many(answer: Answer, heads: int = 3) -> Tensor:
    return _given(answer(WORDS_IN.clone(), *(way.clone() for way in WAYS), heads))


def _words_apart(answer: Answer) -> bool:
    """Whether each word keeps its vector when the words are turned round."""
    turned = _given(answer(WORDS_IN.flip(0), *(way.clone() for way in WAYS), 3))
    return _same(_many(answer), turned.flip(0))


MULTI_HEAD = (
    Property("wrong shape", lambda answer: _many(answer).shape == (5, 6), "As many vectors as before, as wide."),
    Property(
        "heads ignored",
        lambda answer: not _same(_many(answer, 3), _many(answer, 1)),
        "Three heads choose three times, each by its own part of queries and keys.",
    ),
    Property(
        "heads cut across words",
        _words_apart,
        "Turned round, the same words must get the same vectors. Cut the width, (words, heads, part), then transpose.",
    ),
    Property(
        "W_o forgotten",
        lambda answer: not _same(_many(answer), _heads(WORDS_IN, *WAYS[:3], 3, 2**0.5)),
        "What the heads saw is joined, and then mixed by W_o.",
    ),
    Property(
        "scaled by the whole width",
        lambda answer: not _same(_many(answer), _heads(WORDS_IN, *WAYS[:3], 3, 6**0.5) @ WAYS[3]),
        "Queries and keys of a head are dim / heads wide, and that is what its scores grow with.",
    ),
    Property(
        "scale forgotten",
        lambda answer: not _same(_many(answer), _heads(WORDS_IN, *WAYS[:3], 3, 1.0) @ WAYS[3]),
        "Divide the scores by the square root of a head's width.",
    ),
    Property(
        "differs from the definition",
        lambda answer: _same(_many(answer), _heads(WORDS_IN, *WAYS[:3], 3, 2**0.5) @ WAYS[3]),
        "[head_1; ...; head_h] W_o, with head_n = softmax(q_n k_nᵀ / sqrt(dim / heads)) v_n.",
    ),
)

GROUPED = _random(2, 4, 5, seed=41)


def _given_heads(answer: Answer) -> Tensor:
    return _given(answer(GROUPED.clone(), 6))


KEYS_FOR_HEADS = (
    Property("wrong shape", lambda answer: _given_heads(answer).shape == (6, 4, 5), "heads, words, part."),
    Property(
        "groups in turn",
        lambda answer: not _same(_given_heads(answer), GROUPED.repeat(3, 1, 1)),
        "Heads that share a group stand side by side: 1 1 1 2 2 2, not 1 2 1 2 1 2.",
    ),
    Property(
        "differs from the definition",
        lambda answer: _same(_given_heads(answer), GROUPED.repeat_interleave(3, dim=0)),
        "Head n has the keys of group n * groups // heads, counted from 0.",
    ),
)

# ---- lesson 11: the Transformer

TARGET_LENGTHS, LONGEST = torch.tensor([5, 2, 4]), 6  # the longest sentence need not be in this batch
REAL = torch.arange(LONGEST) < TARGET_LENGTHS.unsqueeze(-1)
SEEN = torch.ones(LONGEST, LONGEST).tril().bool() & REAL.unsqueeze(1)


def _target(answer: Answer) -> Tensor:
    return _given(answer(TARGET_LENGTHS.clone(), LONGEST))


TARGET_MASK = (
    Property(
        "not boolean",
        lambda answer: _target(answer).dtype == torch.bool,
        "A mask is boolean, True = may be attended.",
    ),
    Property("wrong shape", lambda answer: _target(answer).shape == SEEN.shape, "batch, longest, longest."),
    Property(
        "mask upside down",
        lambda answer: not torch.equal(_target(answer), ~SEEN),
        "True means may be attended; this one hides what may be seen.",
    ),
    Property(
        "the future is seen",
        lambda answer: not _target(answer).triu(1).any(),
        "Word t may see words up to t and none after it.",
    ),
    Property(
        "padding seen",
        lambda answer: not (_target(answer) & ~REAL.unsqueeze(1)).any(),
        "No word may look at a column beyond the sentence's length.",
    ),
    Property(
        "rows hidden, not columns",
        lambda answer: bool(_target(answer)[1, 4, :2].all()),
        "What is hidden are keys, the columns; a row that sees nothing has nothing to normalise.",
    ),
    Property(
        "differs from the definition",
        lambda answer: torch.equal(_target(answer), SEEN),
        "All real words up to the own position, the own one included.",
    ),
)

ENTERING = _random(4, 6, seed=42) + 1.0


def _thinks(states: Tensor) -> Tensor:
    return torch.sin(3 * states) + states.roll(1, dims=0)


def _normed(states: Tensor) -> Tensor:
    return torch.nn.functional.layer_norm(states, states.shape[-1:])


def _left(answer: Answer) -> Tensor:
    return _given(answer(ENTERING.clone(), _thinks, _normed))


PRE_NORM = (
    Property("wrong shape", lambda answer: _left(answer).shape == (4, 6), "The output is shaped as x."),
    Property(
        "the residual is missing",
        lambda answer: not _same(_left(answer), _thinks(_normed(ENTERING))),
        "What f says is added to x.",
    ),
    Property(
        "that is post-norm",
        lambda answer: not _same(_left(answer), _normed(ENTERING + _thinks(ENTERING))),
        "norm(x + f(x)) is the form of 2017; pre-norm normalises what f reads.",
    ),
    Property(
        "the residual is normalised",
        lambda answer: not _same(_left(answer), _normed(ENTERING) + _thinks(_normed(ENTERING))),
        "Nothing stands in the way of the residual: x itself is added.",
    ),
    Property(
        "f reads what is not normalised",
        lambda answer: (
            not any(_same(_left(answer), ENTERING + each) for each in (_thinks(ENTERING), _normed(_thinks(ENTERING))))
        ),
        "Normalise first, then f.",
    ),
    Property(
        "differs from the definition",
        lambda answer: _same(_left(answer), ENTERING + _thinks(_normed(ENTERING))),
        "x + f(norm(x)).",
    ),
)

# ---- lesson 12: BERT

STOOD = torch.tensor([[4, 5, 6, 7, 8], [9, 10, 11, 12, 13]])
ASKED_FOR = torch.tensor([[True, True, True, True, False], [True, True, True, False, False]])
LUCK = torch.tensor([[0.1, 0.8, 0.89, 0.95, 0.2], [0.79, 0.9, 0.5, 0.85, 0.99]])
OTHERS, MASK_ID = STOOD + 20, 99
HIDES, SWAPS = ASKED_FOR & (LUCK < 0.8), ASKED_FOR & (LUCK >= 0.8) & (LUCK < 0.9)


def _hidden(answer: Answer) -> Tensor:
    return _given(answer(STOOD.clone(), ASKED_FOR.clone(), LUCK.clone(), OTHERS.clone(), MASK_ID))


HIDE = (
    Property("wrong shape", lambda answer: _hidden(answer).shape == STOOD.shape, "An id for each token."),
    Property(
        "what is not asked for is changed",
        lambda answer: torch.equal(_hidden(answer)[~ASKED_FOR], STOOD[~ASKED_FOR]),
        "Luck counts only where a token is asked for.",
    ),
    Property(
        "everything is hidden",
        lambda answer: not torch.equal(_hidden(answer), STOOD.masked_fill(ASKED_FOR, MASK_ID)),
        "Of what is asked for, 80 % is hidden, 10 % exchanged, 10 % left as it is.",
    ),
    Property(
        "not hidden where luck is below 0.8",
        lambda answer: torch.equal(_hidden(answer)[HIDES], STOOD[HIDES] * 0 + MASK_ID),
        "Below 0.8 the model reads mask_id.",
    ),
    Property(
        "not exchanged where luck is from 0.8 to 0.9",
        lambda answer: torch.equal(_hidden(answer)[SWAPS], OTHERS[SWAPS]),
        "There the model reads the other id; 0.8 itself belongs here.",
    ),
    Property(
        "differs from the definition",
        lambda answer: torch.equal(_hidden(answer), torch.where(HIDES, MASK_ID, torch.where(SWAPS, OTHERS, STOOD))),
        "From 0.9 on a token stays as it is.",
    ),
)

SAID, TOLD = _random(2, 5, 14, seed=43), STOOD
COSTS = -torch.log_softmax(SAID, dim=-1).gather(-1, TOLD.unsqueeze(-1)).squeeze(-1)


def _cost(answer: Answer) -> Tensor:
    return torch.as_tensor(_given(answer(SAID.clone(), TOLD.clone(), ASKED_FOR.clone())))


MASKED_LOSS = (
    Property("wrong shape", lambda answer: _cost(answer).ndim == 0, "One number for the whole batch."),
    Property(
        "all places are counted",
        lambda answer: not any(_same(_cost(answer), each) for each in (COSTS.mean(), COSTS.sum())),
        "The loss is taken where a token is asked for, and nowhere else.",
    ),
    Property(
        "divided by all places",
        lambda answer: not _same(_cost(answer), COSTS[ASKED_FOR].sum() / COSTS.numel()),
        "The other places are not summed, but they are counted.",
    ),
    Property(
        "summed, not averaged",
        lambda answer: not _same(_cost(answer), COSTS[ASKED_FOR].sum()),
        "Give the mean over what is asked for.",
    ),
    Property(
        "a mean of means",
        lambda answer: not _same(_cost(answer), (COSTS * ASKED_FOR).sum(1).div(ASKED_FOR.sum(1)).mean()),
        "Every token counts alike; in a mean over sentences those with few holes count more.",
    ),
    Property(
        "differs from the definition",
        lambda answer: _same(_cost(answer), COSTS[ASKED_FOR].mean()),
        "Mean of -log softmax(logits)[id] over what is asked for.",
    ),
)

# ---- lesson 13: the lab

FILL = 2
RAGGED = [[5, FILL, 9, 7, 3], [8], [4, 0, FILL]]  # a real token may have the id of padding
FILLED = torch.tensor([[5, FILL, 9, 7, 3], [8, FILL, FILL, FILL, FILL], [4, 0, FILL, FILL, FILL]])
REAL_TOKENS = torch.arange(5) < torch.tensor([[5], [1], [3]])


def _padded(answer: Answer) -> tuple[Tensor, Tensor]:
    ids, mask = _given(answer([list(row) for row in RAGGED], FILL))
    return ids, mask


PAD_AND_MASK = (
    Property("wrong order", lambda answer: _padded(answer)[0].dtype != torch.bool, "First the ids, then the mask."),
    Property(
        "not boolean",
        lambda answer: _padded(answer)[1].dtype == torch.bool,
        "A mask is boolean, True = may be attended.",
    ),
    Property(
        "wrong shape",
        lambda answer: all(each.shape == (3, 5) for each in _padded(answer)),
        "As many rows as sentences, as wide as the longest of them.",
    ),
    Property(
        "padded on the left",
        lambda answer: _padded(answer)[0][1, 4] != 8,
        "Here sentences begin at position 0 and padding comes after them.",
    ),
    Property(
        "tokens lost",
        lambda answer: torch.equal(_padded(answer)[0][REAL_TOKENS], FILLED[REAL_TOKENS]),
        "Every row begins with all of its own ids.",
    ),
    Property(
        "pad ignored",
        lambda answer: torch.equal(_padded(answer)[0], FILLED),
        "What is filled up gets the id that was given for it.",
    ),
    Property(
        "mask upside down",
        lambda answer: not torch.equal(_padded(answer)[1], ~REAL_TOKENS),
        "True means real; this one hides the sentence and shows the padding.",
    ),
    Property(
        "a real token is taken for padding",
        lambda answer: bool(_padded(answer)[1][REAL_TOKENS].all()),
        "The mask comes of the lengths: what an id is does not say whether it is real.",
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
    taken: dict[str, Tensor] = _given(answer(theirs, ours))
    return taken


def _left_alone(answer: Answer) -> bool:
    theirs, ours = dict(THEIRS), dict(OURS)
    _given(answer(theirs, ours))
    return all(
        list(now) == list(before) and all(now[name] is before[name] for name in before)
        for now, before in ((theirs, THEIRS), (ours, OURS))
    )


TAKE_OVER = (
    Property(
        "a name that we do not have",
        lambda answer: set(_taken(answer)) <= set(OURS),
        "The new model has no place for it; leave it behind.",
    ),
    Property(
        "a name is missing",
        lambda answer: set(_taken(answer)) == set(OURS),
        "What they do not have stays as we began it.",
    ),
    Property(
        "shapes do not fit",
        lambda answer: all(each.shape == OURS[name].shape for name, each in _taken(answer).items()),
        "The same name is not enough: compare the shapes too. As many numbers are not the same shape.",
    ),
    Property(
        "nothing is taken over",
        lambda answer: not _same(_taken(answer)["table"], OURS["table"]),
        "Where name and shape fit, theirs wins.",
    ),
    Property("what was given is changed", _left_alone, "Make a new dict; the two models still need theirs."),
    Property(
        "differs from the definition",
        lambda answer: all(
            _same(each, (THEIRS if name == "table" else OURS)[name]) for name, each in _taken(answer).items()
        ),
        "theirs[name] where name and shape fit, else ours[name].",
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
}
