"""Writes docs/mechanisms.md and docs/figures/mechanisms/*.svg from the tables of the source: `make docs`.

Equations and papers are the docstrings, laws are tried out here and now, pictures are drawn on one toy sentence.
Tests hold page and pictures to the source.
"""

import inspect
import itertools
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from regard.attention import NORMALIZERS, POSITIONS, SCOPES, SCORES, MultiHead, Past, Score, attend
from regard.attention.gates import GATES, SqueezeExcite, lstm_gates
from regard.attention.normalizers import softmax
from regard.attention.pooling import POOLINGS
from regard.attention.positions import Positions
from regard.attention.record import record
from regard.attention.scopes import Scope
from regard.decoders import ORDERS, STARTS, RecurrentDecoder
from regard.errors import RecipeError
from regard.layers.recurrence import CELLS, Recurrence
from regard.maps import TEXT, AttentionMap
from regard.show.maps import svg
from regard.sources import TokenEmbedding
from regard.types import Memory, Recurrent

HERE = Path(__file__).parent
FIGURES = HERE / "figures" / "mechanisms"

# The toy: "the cat sat on the mat", rendered as "auf der Matte saß die Katze" (on the mat sat the cat). The first three
# numbers of a word tell article, noun and verb; the last tells the subject from the place. No language is so simple.
SOURCE = ("the", "cat", "sat", "on", "the", "mat")
TARGET = ("auf", "der", "Matte", "saß", "die", "Katze")
GOLD = (3, 4, 5, 2, 0, 1)  # the source word behind each target word
STATES = torch.tensor(
    [
        [1.6, 0.2, 0.0, 0.5],
        [0.3, 1.8, 0.0, 0.6],
        [-0.2, 0.1, 1.9, 0.0],
        [0.1, -0.9, 0.3, -1.5],
        [1.6, 0.2, 0.0, -0.5],
        [0.3, 1.8, 0.0, -0.6],
    ],
    dtype=torch.float64,
)
QUERIES = STATES[list(GOLD)] + 0.1 * torch.tensor([[0, 1, 1, 1], [-1, -1, 1, -2], [-1, -1, 1, -2]] * 2).double()
WIDTH = STATES.shape[1]
STEPS = 100  # of fitting

INTRODUCTION = """# The mechanisms

All scores, normalisers, scopes, positions, poolings, orders, starts, cells and gates of regard. This page is made by
`make docs` from the tables in the source, and a test holds the two together: the framed line of an entry is its
docstring (paper and equation), its laws are what came out when they were tried while the page was made, and its picture
is its map on one toy sentence.

**The toy.** "the cat sat on the mat" (columns) is rendered as "auf der Matte saß die Katze" (rows): on the mat sat the
cat. Source states and queries are vectors of four numbers, set by hand, so that a word and its rendering lie close to
each other and the two articles nearly agree. What an entry can learn was fitted to the true alignment of this one pair
by {steps} steps of gradient descent, so a picture shows one fit of a mechanism on a toy, not what it does on real text.
Dark is 1, white is 0; rest on a cell to read its number.

**Words.** A *query* is who asks, *keys* are what it is compared with, *values* are what it gets. *Weights* are what a
normaliser makes of scores; the *context* is the sum of the values by their weights. Masks are boolean, True = may be
attended. [The journey](journey.md) follows a sentence through all of this, [extend](extend.md) adds an entry.
"""

CELL_TEXTS = {
    "rnn": "Elman 1990:  h_t = tanh(W x_t + U h_{t-1} + b).",
    "gru": "Cho et al. 2014:  h_t = (1 - z) n + z h_{t-1},  n = tanh(W x_t + b + r (U h_{t-1} + c)), with gates\n"
    "z and r = sigmoid(W' x_t + U' h_{t-1} + b'). (As torch has it: r acts after U, where the paper has it before.)",
    "lstm": "Hochreiter and Schmidhuber 1997; Gers et al. 2000:  c_t = f c_{t-1} + i tanh(W x_t + U h_{t-1} + b),\n"
    "h_t = o tanh(c_t), with gates i, f, o = sigmoid(W' x_t + U' h_{t-1} + b').",
}


class Slip(NamedTuple):
    """What is often said, what regard says instead, and the tests that show it."""

    often: str
    settled: str
    tests: tuple[str, ...]


SLIPS = (
    Slip(
        "The concat score is `W [query; key]`, without `v` and `tanh`",
        "That is `linear_concat`: its query adds the same number to the score of every key and cancels in softmax, "
        "so all queries see the same weights. Luong's score is `concat`, `v . tanh(W [query; key])`",
        ("tests/test_docs.py::test_linear_concat_ignores_its_query_and_concat_does_not",),
    ),
    Slip(
        "The weighted sum runs over the decoder's states s(t-1) (the code beside it sums the encoder's); a `print` "
        "sits inside the step",
        "The context is the sum of the *values*, which are the source's states, by their weights. Nothing is "
        "printed or kept on the way",
        ("tests/test_docs.py::test_the_context_is_a_sum_over_the_source_and_nothing_else_happens",),
    ),
    Slip(
        "(lab code without a padding mask, so that padding receives attention)",
        "Every batch carries its mask, and every decoder hands it to every look. [Lesson "
        "2](lessons/lesson_2_query_key_value.py) shows the damage done without",
        (
            "tests/test_docs.py::test_padding_gets_no_attention",
            "tests/laws/test_decoder_laws.py::test_batch_mates_change_nothing",
        ),
    ),
    Slip(
        "The decoder starts from zeros given as an input; or from the encoder's last state",
        "Both exist, and a third, and each has a name: `model.decoder.start` is `zeros`, `last` or `bridge`",
        ("tests/test_docs.py::test_the_three_starts_are_three",),
    ),
    Slip(
        "Quiz: a_ij is f(x_i) . g(x_j), or its softmax, with y_j among the choices and key and query exchanged",
        "Restated: query i is g(x_i) = W_q x_i, key j is f(x_j) = W_k x_j. The *score* e_ij is their dot product; "
        "the *weight* a_ij is the softmax of e_i1 ... e_iT over the keys j. There is no y in self-attention. "
        "[Lesson 3](lessons/lesson_3_scores.py) asks it so, and grades the answer",
        ("tests/test_lessons.py::test_the_quiz_names_the_usual_wrong_choices",),
    ),
    Slip(
        "The multiplicative score is `(q W_q)ᵀ W_k k`",
        "`(W query) . (U key)`, which is the bilinear form `queryᵀ (Wᵀ U) key`; of full rank, it is `general`",
        ("tests/test_docs.py::test_multiplicative_is_bilinear",),
    ),
    Slip(
        "Global attention is cross-attention; local attention is self-attention",
        "Three independent words. **Scope**: which keys a query may see (`global`, `local_m`, `local_p`). "
        "**Source**: whose states are the keys; another sequence's (cross) or the query's own (self). **Order**: "
        "when a decoder looks (`bahdanau`, `luong`, ...). Each is chosen without the others, but for [what is "
        "refused](sweep.md#what-is-refused-and-why). [Lesson 5](lessons/lesson_5_three_words.py)",
        ("tests/test_docs.py::test_scope_and_source_are_independent",),
    ),
    Slip(
        "Bahdanau's update is `RNN(h_{t-1}, [c_t; h_{t-1}])`",
        "`s_t = f(s_{t-1}, [y_{t-1}; c_t])`: the last *word* enters beside the context; the state enters as the state",
        (
            "tests/test_docs.py::test_bahdanau_feeds_word_and_context",
            "tests/laws/test_decoder_laws.py::test_an_order_is_its_equations",
        ),
    ),
    Slip(
        "The perceptron score is `tanh(W_k k + W_q q)`",
        "That is a vector. The score is one number: `additive`, `v . tanh(W query + U key + b)`",
        ("tests/test_docs.py::test_a_score_is_one_number_for_each_query_and_key",),
    ),
    Slip(
        "Values that are used as keys make it self-attention; the scores make a boolean map",
        "Keys and values from the same states are the usual case (keys = values) and say nothing of the query. "
        "Self-attention is when *queries* come from those states too. Weights are soft: numbers from 0 to 1. What "
        "is boolean is the mask",
        ("tests/test_docs.py::test_shared_keys_and_values_are_not_self_attention",),
    ),
    Slip(
        "In the sinusoidal encoding, the cosine has the exponent (2i + 1) / d",
        "Sine and cosine share 2i / d (Vaswani et al. 2017, 3.5). Only then is a shift by k positions the same "
        "rotation everywhere. The wavelengths go from 2π to 10000^((d-2)/d) 2π, which comes near the 10000 · 2π "
        "that one reads only where d is large. A Transformer takes it by `model.positions = sinusoidal`",
        ("tests/test_docs.py::test_a_shift_of_sinusoids_is_linear_only_with_the_shared_exponent",),
    ),
    Slip(
        "The sum runs from j = 0, the softmax from j = 1",
        "One range: the keys that are weighed are the keys that are summed",
        ("tests/test_docs.py::test_what_is_weighed_is_what_is_summed",),
    ),
    Slip(
        "The gates of an LSTM and squeeze-and-excitation are attention",
        "They are *gates*: each number is for itself, from 0 to 1; they do not compete for a sum of one and compare"
        " no query with a key. They have maps, as a family of their own: `record` keeps those of "
        "squeeze-and-excitation and of every LSTM. [Lesson 7](lessons/lesson_7_gates.py)",
        ("tests/test_docs.py::test_gates_do_not_share_a_sum",),
    ),
)

SLIPS_HEADING = """
## Words and slips, settled

Teaching material on attention is good and plentiful, and small slips travel with it from page to page. This is what we
met most often, what regard says instead, and the test that shows it.

| teaching material often says | regard says | shown by |
|---|---|---|
"""

Figures = dict[str, str]


# ---- small tools


def settle(module: nn.Module, scale: float = 0.7) -> nn.Module:
    """The module in float64 with weights that are nobody's choice, and the same on every machine."""
    module.double()
    with torch.no_grad():
        for number, parameter in enumerate(module.parameters(), start=1):
            if parameter.ndim:  # a single number keeps the value that its class starts it with
                places = torch.arange(parameter.numel(), dtype=torch.float64)
                parameter.copy_(scale * torch.sin(1.7 * number + 2.3 * places).view_as(parameter))
    return module


def fit(module: nn.Module, look: Callable[[], Tensor]) -> Tensor:
    """The weights that a look gives once all that can be learned has been fitted to the toy's alignment."""
    learned = list(module.parameters())
    if learned:
        optimizer = torch.optim.Adam(learned, lr=0.08)
        for _ in range(STEPS):
            optimizer.zero_grad()
            right = look()[range(len(GOLD)), GOLD]
            loss = -right.clamp(min=1e-6).log().mean()
            loss.backward()
            optimizer.step()
    with torch.no_grad():
        return look()


def picture(weights: Tensor, rows: Iterable[str] = TARGET, columns: Iterable[str] = SOURCE, title: str = "") -> str:
    # Four digits: what rounding does beyond them on another machine is not drawn.
    return svg(AttentionMap(weights.detach().mul(1e4).round().div(1e4), tuple(rows), tuple(columns)), title)


def influence(outputs: Callable[[Tensor], Tensor], inputs: Tensor) -> Tensor:
    """How far each output hangs on each input: the norm of its derivative, as a share of the row's largest."""
    norms = torch.autograd.functional.jacobian(outputs, inputs).square().sum((1, 3)).sqrt()
    return norms / norms.amax(-1, keepdim=True).clamp(min=1e-9)


def parts(module: nn.Module) -> str:
    """The learned parts of a module by name and shape."""
    shapes = [
        f"`{name}` {' x '.join(map(str, each.shape)) or 'one number'}" for name, each in module.named_parameters()
    ]
    return ", ".join(shapes) or "nothing"


def told(entry: Any) -> str:
    return inspect.cleandoc(entry.__doc__)


def said(answer: bool) -> str:
    return "yes" if answer else "no"


def entry(name: str, text: str, laws: Mapping[str, str], drawn: Mapping[str, str]) -> str:
    """One entry of the page: `drawn` gives each picture's file and what it shows."""
    listed = "".join(f"- {law}: {what}\n" for law, what in laws.items())
    images = "".join(f"\n![{alt}](figures/mechanisms/{file}.svg)\n" for file, alt in drawn.items())
    return f"\n### `{name}`\n\n```text\n{text}\n```\n\n{listed}{images}"


# ---- scores


def make(kind: type[Score], query_dim: int, key_dim: int, dim: int) -> tuple[Score, bool]:
    """A score, and whether it takes queries and keys of different widths: it is tried."""
    try:
        return kind(query_dim=query_dim, key_dim=key_dim, dim=dim), True
    except RecipeError:
        return kind(query_dim=key_dim, key_dim=key_dim, dim=dim), False


def scores(figures: Figures) -> str:
    page = (
        "\n## Scores\n\n`model.attention.score`: how well a key answers a query, one number for each pair. Shapes "
        "of learned parts are for queries of 5 numbers, keys of 7 and an inner width of 3 (7 and 7 where both "
        "must agree).\n"
    )
    for name, kind in SCORES.items():
        sized, unequal = make(kind, 5, 7, 3)
        score = settle(kind(query_dim=WIDTH, key_dim=WIDTH, dim=WIDTH))

        def weigh(queries: Tensor = QUERIES, states: Tensor = STATES, score: Score = score) -> Tensor:
            weights = attend(queries, score.project(states), states, score=score).weights
            assert weights is not None
            return weights

        figures[f"score_{name}"] = picture(fit(score, weigh))
        with torch.no_grad():
            asks = not torch.allclose(weigh(), weigh(QUERIES.roll(1, 0)))
            length = not torch.allclose(weigh(), weigh(states=2 * STATES))
        laws = {
            "learned": parts(sized),
            "takes queries and keys of different widths": said(unequal),
            "its weights depend on the query": said(asks),
            "they depend on the length of a key": said(length),
            "its gradient agrees with finite differences": said(right_gradient(weigh)),
        }
        page += entry(name, told(kind), laws, {f"score_{name}": f"The map of {name}"})
    return page


def right_gradient(look: Callable[[Tensor, Tensor], Tensor]) -> bool:
    given = (QUERIES[:2].clone().requires_grad_(), STATES[:3].clone().requires_grad_())
    return torch.autograd.gradcheck(look, given, raise_exception=False)


# ---- normalisers


def normalizers(figures: Figures) -> str:
    page = (
        "\n## Normalisers\n\n`model.attention.normalizer`: scores to weights. All get the same scores, the dot "
        "products of the toy. Where a mask is False the weight is 0, and a query that may see nothing gets zeros.\n"
    )
    raw = QUERIES @ STATES.T
    for name, (function, sums_to_one, differentiable) in NORMALIZERS.items():
        weights = function(raw, None)
        assert sums_to_one == torch.allclose(weights.sum(-1), torch.ones(len(raw)).double())
        laws = {
            "sums to one": said(sums_to_one),
            "differentiable": said(differentiable),
            "gives weights of exactly zero to keys in sight": said(bool((weights == 0).any())),
            "a number added to all scores of a row changes nothing": said(
                torch.allclose(function(raw + 3, None), weights)
            ),
            "weight on the two best keys, on average": f"{weights.topk(2).values.sum(-1).mean():.2f}",
        }
        figures[f"normalizer_{name}"] = picture(weights)
        page += entry(name, told(function), laws, {f"normalizer_{name}": f"The map of the dot scores under {name}"})
    return page


# ---- scopes and heads


def scopes(figures: Figures) -> str:
    page = (
        "\n## Scopes\n\n`model.attention.scope`: which keys a query may see, around any score (here `dot`) and any "
        "normaliser. The toy has a `model.attention.window` of 1. Shapes are for queries of 5 numbers.\n"
    )
    for name, kind in SCOPES.items():
        dot = SCORES["dot"](query_dim=WIDTH, key_dim=WIDTH, dim=None)
        scope = settle(kind(dot, softmax, query_dim=WIDTH, window=1))

        def look(start: int = 0, scope: Scope = scope) -> Tensor:
            keys, values = scope.project(STATES), scope.content(STATES)
            if not scope.uses_past:
                return scope(QUERIES, keys, values, mask=None, start=start).weights
            nothing, rows = torch.zeros(1, len(SOURCE)).double(), []
            past = Past(nothing, nothing)
            for query in QUERIES:
                rows.append(scope(query.unsqueeze(0), keys, values, mask=None, start=start, past=past).weights)
                past = past.then(rows[-1])
            return torch.cat(rows)

        figures[f"scope_{name}"] = picture(fit(scope, look))
        laws = {
            "learned": parts(kind(dot, softmax, query_dim=5)),
            "sees every key": said(bool((look() > 0).all())),
            "asks where in the target it stands": said(not torch.allclose(look(), look(start=2))),
            "asks where the looks before it went": said(kind.uses_past),
            "keeps the sum of the normaliser's weights": said(kind.keeps_sum),
        }
        page += entry(name, told(kind), laws, {f"scope_{name}": f"The map of {name}"})
    return page


def heads(figures: Figures) -> str:
    def single(width: int) -> nn.Module:
        return SCOPES["global"](SCORES["scaled_dot"](query_dim=width, key_dim=width, dim=width), query_dim=width)

    many = settle(MultiHead(single, query_dim=WIDTH, key_dim=WIDTH, dim=WIDTH, heads=2))

    def look() -> Tensor:
        return many(QUERIES, many.project(STATES), many.content(STATES), mask=None).weights

    mean = fit(many, look)
    kept: list[Tensor] = []
    handle = many.attention.register_forward_hook(lambda module, given, result: kept.append(result.weights))
    with torch.no_grad():
        look()
    handle.remove()
    drawn = {"heads_mean": "The mean of two heads"}
    figures["heads_mean"] = picture(mean, title="mean")
    for number, weights in enumerate(kept[0], start=1):
        figures[f"heads_{number}"] = picture(weights, title=f"head {number}")
        drawn[f"heads_{number}"] = f"Head {number} of two"
    sized = MultiHead(single, query_dim=5, key_dim=7, dim=6, heads=2)
    laws = {
        "learned": f"{parts(sized)}, and what the score learns (queries of 5 numbers, keys of 7, dim 6, 2 heads)",
        "takes queries and keys of different widths": "yes, around any score: every head sees its own projections",
        "the map it reports": "the mean of its heads; `record` has each head's own",
    }
    page = (
        "\n## Heads\n\n`model.attention.heads`: several looks at once. More than one puts `MultiHead` around it all.\n"
    )
    return page + entry("MultiHead", told(MultiHead), laws, drawn)


# ---- positions


def positions(figures: Figures) -> str:
    page = (
        "\n## Positions\n\n`model.positions`: how a Transformer knows the order of its tokens; without, it does not. "
        "The picture is the self-attention of a sentence of six equal words, under the score `dot` and with nothing "
        "learned but the positions themselves, which nobody trained: what is to be seen are positions alone. Each "
        "weight is drawn as a share of the largest in its row; of several heads it is the first of four. "
        "Shapes are for words of 6 numbers, 2 heads and at most 5 positions.\n"
    )
    width, apart = 8, 3
    words = torch.tensor([0.9, -0.4, 0.3, 0.8, -0.7, 0.5, 0.2, -0.6], dtype=torch.float64).expand(1, len(SOURCE), -1)
    labels = [f"w{number}" for number in range(1, len(SOURCE) + 1)]
    for name, kind in POSITIONS.items():
        place = settle(kind(dim=width, heads=4, longest=32, onward=False))

        def look(start: int = 0, place: Positions = place) -> Tensor:
            vectors = place.rotate(place.embed(words, start), start)[0]
            scores = vectors @ vectors.T
            bias = place.bias(len(SOURCE), start + len(SOURCE), start)
            return (scores if bias is None else scores + bias[0, :, start:]).softmax(-1)

        with torch.no_grad():
            weights = look()
            changes = {
                "words": not torch.equal(place.embed(words, 0), words),
                "queries and keys": not torch.equal(place.rotate(words, 1), words),
                "scores": place.bias(1, 1, 0) is not None,
            }
            laws = {
                "learned": parts(kind(dim=6, heads=2, longest=5, onward=False)),
                "changes": ", ".join(what for what, does in changes.items() if does) or "nothing",
                "equal words see each other alike, wherever the sentence stands": said(
                    torch.allclose(weights, look(apart))
                ),
            }
        figures[f"positions_{name}"] = picture(weights / weights.amax(-1, keepdim=True), labels, labels)
        page += entry(name, told(kind), laws, {f"positions_{name}": f"Six equal words under {name}"})
    return page


# ---- poolings


def poolings(figures: Figures) -> str:
    page = (
        "\n## Poolings\n\n`model.pooling`: the states of a sentence become one vector, for classifiers and sentence "
        "vectors. The picture says how far that vector hangs on each state of the toy, as a share of the largest; of "
        "`attention` it is the map of its query, which nobody trained, under the score `dot`. Shapes are for states of "
        "5 numbers.\n"
    )
    seen = torch.ones(1, len(SOURCE), dtype=torch.bool)

    def make(width: int) -> nn.Module:
        return SCOPES["global"](SCORES["dot"](query_dim=width, key_dim=width, dim=None), query_dim=width)

    for name, kind in POOLINGS.items():
        pooling = settle(kind(dim=WIDTH, directions=1, make=make))

        def pooled(states: Tensor, pooling: nn.Module = pooling) -> Tensor:
            memory = Memory(states.unsqueeze(0), seen, Recurrent(states[None, :1], None), TEXT)
            return pooling(memory).vector

        drawn = pooling(Memory(STATES.unsqueeze(0), seen, Recurrent(STATES[None, :1], None), TEXT)).weights
        turned = torch.allclose(pooled(STATES), pooled(STATES.flip(0)))
        laws = {
            "learned": parts(kind(dim=5, directions=1, make=make)),
            "has a map": said(drawn is not None),
            "the same if the states come in another order": said(turned),
        }
        figures[f"pooling_{name}"] = picture(influence(pooled, STATES) if drawn is None else drawn, ["vector"])
        page += entry(name, told(kind), laws, {f"pooling_{name}": f"What the vector of {name} hangs on"})
    return page


# ---- orders, starts, cells


def decoder(kind: type[RecurrentDecoder]) -> tuple[RecurrentDecoder, Memory]:
    """A decoder of an order and the memory of the toy; token n is target word n, token 0 begins."""
    embedding = TokenEmbedding(1 + len(TARGET), WIDTH)
    attention = None
    if kind.looks():
        additive = SCORES["additive"](query_dim=WIDTH, key_dim=WIDTH, dim=WIDTH)
        attention = SCOPES["global"](additive, query_dim=WIDTH)
    made = kind(embedding, attention, reader=Recurrence(nn.GRU, input_dim=1, dim=WIDTH), cell=nn.GRU, dim=WIDTH)
    settle(made)
    with torch.no_grad():
        embedding.weight.copy_(torch.cat([torch.zeros(1, WIDTH).double(), QUERIES]))
    summary = Recurrent(STATES.mean(0).view(1, 1, WIDTH), None)
    return made, Memory(STATES.unsqueeze(0), torch.ones(1, len(SOURCE), dtype=torch.bool), summary, TEXT)


def orders(figures: Figures) -> str:
    page = (
        "\n## Orders\n\n`model.decoder.order`: in which order state, look and word follow each other. The first "
        "picture says who reads what: dark where a part (column) is read. The second is the map on the toy.\n"
    )
    columns = {"word": "last word", "before": "last state", "state": "new state"}
    columns |= {"context": "context", "summary": "summary", "feed": "fed back"}
    tokens = torch.arange(len(TARGET)).unsqueeze(0)
    for name, kind in ORDERS.items():
        made, memory = decoder(kind)
        asks: tuple[str, ...] = ()
        drawn = {f"order_{name}_reads": f"Who reads what in {name}"}
        if kind.looks():
            figures[f"order_{name}"] = picture(fit(made, lambda: made(tokens, memory).attention[0]))  # noqa: B023
            drawn[f"order_{name}"] = f"The map of {name}"
            other = tokens.clone()
            other[0, -1] = 1  # another word enters the last step: does that step's look change?
            with torch.no_grad():
                looks = [made(each, memory).attention[0, -1] for each in (tokens, other)]
            asks = ("before",) if torch.equal(*looks) else ("state",)
        reads = {"look": asks, "cell": ("before", *kind.enters), "prediction": kind.reads}
        marks = torch.tensor([[float(part in read) for part in columns] for read in reads.values()])
        figures[f"order_{name}_reads"] = picture(marks, reads, columns.values())
        laws = {
            "who asks": ", ".join(columns[part] for part in asks) or "nobody: it never looks",
            "enters the cell beside the last state": ", ".join(columns[part] for part in kind.enters),
            "the prediction is read from": ", ".join(columns[part] for part in kind.reads),
            "all target words at once in training": said(kind.parallel),
        }
        page += entry(name, told(kind), laws, drawn)
    return page


def starts(figures: Figures) -> str:
    page = (
        "\n## Starts\n\n`model.decoder.start`: the decoder's state before its first token. The picture says how far "
        "that state hangs on each source word, through a GRU that read the sentence from left to right. Shapes are "
        "for an encoder of 5 numbers and a decoder of two layers of 7.\n"
    )
    for name, kind in STARTS.items():
        reader, writer = (Recurrence(nn.GRU, input_dim=WIDTH, dim=WIDTH) for _ in range(2))
        settle(reader)
        start = settle(kind(writer, reader))

        def first(words: Tensor, start: nn.Module = start, reader: Recurrence = reader) -> Tensor:
            _, summary = reader.read(words.unsqueeze(0), torch.ones(1, len(SOURCE), dtype=torch.bool))
            return start(summary).hidden[0]

        shares = influence(first, STATES)
        shapes = Recurrence(nn.GRU, input_dim=1, dim=5), Recurrence(nn.GRU, input_dim=1, dim=7, layers=2)
        try:
            learned, fits = parts(kind(shapes[1], shapes[0])), True
        except RecipeError:
            learned, fits = parts(kind(writer, reader)), False
        laws = {
            "learned": learned,
            "takes encoder and decoder of different shapes": said(fits),
            "knows anything of the source": said(bool((shares > 0).any())),
        }
        figures[f"start_{name}"] = picture(shares, ["first state"])
        page += entry(name, told(kind), laws, {f"start_{name}": f"What the start {name} hangs on"})
    return page


def cells(figures: Figures) -> str:
    assert set(CELL_TEXTS) == set(CELLS)
    page = (
        "\n## Cells\n\n`model.encoder.cell`, `model.decoder.cell`: the recurrent unit, PyTorch's own. The picture says "
        "how far each state (row) hangs on each word read (column), as a share of the row's largest, for weights "
        "that nobody trained: nothing comes from words yet to be read. Shapes are for inputs of 5 numbers and states "
        "of 7.\n"
    )
    for name, kind in CELLS.items():
        cell = settle(Recurrence(kind, input_dim=WIDTH, dim=WIDTH), scale=0.5)
        seen = torch.ones(1, len(SOURCE), dtype=torch.bool)
        shares = influence(lambda words: cell.read(words.unsqueeze(0), seen)[0][0], STATES)  # noqa: B023
        laws = {
            "learned": parts(kind(5, 7)),
            "has a cell besides its hidden state": said(cell.cell_dim is not None),
        }
        figures[f"cell_{name}"] = picture(shares, [f"after {word}" for word in SOURCE])
        page += entry(name, CELL_TEXTS[name], laws, {f"cell_{name}": f"What the states of {name} hang on"})
    return page


# ---- gates


def gates(figures: Figures) -> str:
    page = (
        "\n## Gates\n\n`regard.attention.gates`: cousins of attention, not attention. A gate is a number from 0 to 1 "
        "for each part of a vector; gates do not compete for a sum of one, and no query is compared with a key.\n"
    )
    channels = [f"channel {number}" for number in range(WIDTH)]
    squeeze = settle(SqueezeExcite(channels=WIDTH, reduction=2), scale=1.5)
    with torch.no_grad():
        opened = torch.cat([squeeze.gate(words.unsqueeze(0)) for words in (STATES[:2], STATES[2:4], STATES)])
    figures["gate_squeeze_excite"] = picture(opened, ["the cat", "sat on", "all six"], channels)
    laws = {
        "learned": f"{parts(SqueezeExcite(channels=8, reduction=4))} (8 channels, reduced by 4)",
        "differs from input to input": said(not torch.allclose(opened[0], opened[1])),
        "sums to one": said(torch.allclose(opened.sum(-1), torch.ones(3).double())),
    }
    drawn = {"gate_squeeze_excite": "The gates of squeeze-and-excitation for three inputs"}
    page += entry("SqueezeExcite", told(SqueezeExcite), laws, drawn)

    lstm = settle(nn.LSTM(WIDTH, WIDTH, batch_first=True), scale=1.0)
    with record(lstm) as seen:
        lstm(STATES.unsqueeze(0))
    rows = [f"{gate} {number}" for gate, number in itertools.product(GATES, range(WIDTH))]
    figures["gate_lstm"] = picture(torch.cat([seen.weights[f"{gate}_l0"][0].T for gate in GATES]), rows)
    laws = {
        "learned": "what the LSTM learns; `record` has the gates computed beside it and does not touch it",
        "sums to one": said(torch.allclose(seen.weights["forget_l0"].sum(-1), torch.ones(1).double())),
    }
    page += entry(
        "lstm_gates", told(lstm_gates), laws, {"gate_lstm": "Three gates of four units while the sentence is read"}
    )
    return page


def slips() -> str:
    rows = [
        f"| {often} | {settled} | {', '.join(f'`{test}`' for test in tests)} |\n" for often, settled, tests in SLIPS
    ]
    return SLIPS_HEADING + "".join(rows)


def make_all() -> tuple[str, Figures]:
    """The page and its pictures."""
    figures: Figures = {}
    looks, models = (scores, normalizers, scopes, heads, positions, poolings), (orders, starts, cells, gates)
    sections = [each(figures) for each in looks + models]
    return INTRODUCTION.format(steps=STEPS) + "".join(sections) + slips(), figures


def main() -> None:
    page, figures = make_all()
    (HERE / "mechanisms.md").write_text(page, encoding="utf-8")
    FIGURES.mkdir(parents=True, exist_ok=True)
    for stale in set(FIGURES.glob("*.svg")) - {FIGURES / f"{name}.svg" for name in figures}:
        stale.unlink()
    for name, drawn in figures.items():
        (FIGURES / f"{name}.svg").write_text(drawn, encoding="utf-8")


if __name__ == "__main__":
    main()
