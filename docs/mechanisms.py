"""Writes docs/mechanisms.md and docs/figures/mechanisms/*.svg from the tables of the source: `make docs`.

Equations and papers come from the docstrings. Each law is tested while the page is written, and pictures are drawn for
one toy sentence. Tests check that page and pictures agree with the source.
"""

import inspect
import itertools
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from regard.attention import NORMALIZERS, POSITIONS, SCOPES, SCORES, MultiHead, Past, Score, attend
from regard.attention.gates import GATES, ContextGate, SqueezeExcite, lstm_gates
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
# numbers of a word mark article, noun and verb; the last separates subject from place. No language is so simple.
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

All scores, normalisers, scopes, positions, poolings, orders, starts, cells and gates of regard. `make docs` generates
this page from the tables in the source, and a test checks that it is up to date. The framed text of an entry is its
docstring (paper and equation). The list below it gives its **laws**: properties that were tested while the page was
generated. The picture is its attention map for one toy sentence pair.

**The toy.** "the cat sat on the mat" (columns) is translated as "auf der Matte saß die Katze" (rows): on the mat sat
the cat. Source states and queries are vectors of four numbers, set by hand: a word and its translation are close to
each other, and the two articles are nearly equal. The parameters of an entry were fitted to the true alignment of this
one pair by {steps} steps of gradient descent. So a picture shows one fit of a mechanism to a toy, not what it does on
real text. Dark is 1, white is 0; hold the mouse over a cell to read its number.

**Words.** A **query** is compared with all **keys**. The **score** of a pair says how well they match. A
**normaliser** turns scores into **weights**. The **context** is the sum of the **values**, each times its weight. A
**mask** is boolean, True = may be attended. [The journey](journey.md) follows a sentence through all of this;
[extend](extend.md) shows how to add an entry.
"""

CELL_TEXTS = {
    "rnn": "Elman 1990:  h_t = tanh(W x_t + U h_{t-1} + b).",
    "gru": "Cho et al. 2014:  h_t = (1 - z) n + z h_{t-1},  n = tanh(W x_t + b + r (U h_{t-1} + c)), with gates\n"
    "z and r = sigmoid(W' x_t + U' h_{t-1} + b'). (As in torch: r is applied after U; in the paper, before it.)",
    "lstm": "Hochreiter and Schmidhuber 1997; Gers et al. 2000:  c_t = f c_{t-1} + i tanh(W x_t + U h_{t-1} + b),\n"
    "h_t = o tanh(c_t), with gates i, f, o = sigmoid(W' x_t + U' h_{t-1} + b').",
}


class Slip(NamedTuple):
    """A common mistake, the correct statement, and the tests that show it."""

    often: str
    settled: str
    tests: tuple[str, ...]


SLIPS = (
    Slip(
        "The concat score is `W [query; key]`, without `v` and `tanh`",
        "That is `linear_concat`: its query adds the same number to the score of every key and cancels in softmax, "
        "so all queries get the same weights. Luong's score is `concat`, `v . tanh(W [query; key])`",
        ("tests/test_docs.py::test_linear_concat_ignores_its_query_and_concat_does_not",),
    ),
    Slip(
        "The weighted sum runs over the decoder's states s(t-1) (the code beside it sums the encoder's); there is a "
        "`print` inside the step",
        "The context is the weighted sum of the *values*, which are the source's states. `attend` prints nothing and "
        "changes none of its inputs",
        ("tests/test_docs.py::test_the_context_is_a_sum_over_the_source_and_nothing_else_happens",),
    ),
    Slip(
        "(lab code without a padding mask, so that padding receives attention)",
        "Every batch has a mask, and every decoder passes it to its attention. [Lesson "
        "2](lessons/lesson_2_query_key_value.py) shows the error without it",
        (
            "tests/test_docs.py::test_padding_gets_no_attention",
            "tests/laws/test_decoder_laws.py::test_batch_mates_change_nothing",
        ),
    ),
    Slip(
        "The decoder starts from zeros given as an input; or from the encoder's last state",
        "Both exist, and so does a third. Each has a name: `model.decoder.start` is `zeros`, `last` or `bridge`",
        ("tests/test_docs.py::test_the_three_starts_are_three",),
    ),
    Slip(
        "Quiz: a_ij is f(x_i) . g(x_j), or its softmax, with y_j among the choices and key and query exchanged",
        "Restated: query i is g(x_i) = W_q x_i, key j is f(x_j) = W_k x_j. The *score* e_ij is their dot product; "
        "the *weight* a_ij is the softmax of e_i1 ... e_iT over the keys j. There is no y in self-attention. "
        "[Lesson 3](lessons/lesson_3_scores.py) asks this question and checks the answer",
        ("tests/test_lessons.py::test_the_quiz_names_the_usual_wrong_choices",),
    ),
    Slip(
        "The multiplicative score is `(q W_q)ᵀ W_k k`",
        "`(W query) . (U key)`, which is the bilinear form `queryᵀ (Wᵀ U) key`; of full rank, it is `general`",
        ("tests/test_docs.py::test_multiplicative_is_bilinear",),
    ),
    Slip(
        "Global attention is cross-attention; local attention is self-attention",
        "Three independent words. **Scope**: which keys a query may attend to (`global`, `local_m`, `local_p`). "
        "**Source**: whose states are the keys; another sequence's (cross) or the query's own (self). **Order**: "
        "when a decoder attends (`bahdanau`, `luong`, ...). Each is chosen independently, except for [refused "
        "combinations](sweep.md#what-is-refused-and-why). [Lesson 5](lessons/lesson_5_three_words.py)",
        ("tests/test_docs.py::test_scope_and_source_are_independent",),
    ),
    Slip(
        "Bahdanau's update is `RNN(h_{t-1}, [c_t; h_{t-1}])`",
        "`s_t = f(s_{t-1}, [y_{t-1}; c_t])`: the input of the cell is the last *word* and the context; the last state "
        "is its state",
        (
            "tests/test_docs.py::test_bahdanau_feeds_word_and_context",
            "tests/laws/test_decoder_laws.py::test_an_order_is_its_equations",
        ),
    ),
    Slip(
        "The perceptron score is `tanh(W_k k + W_q q)`",
        "That is a vector. A score is one number: `additive`, `v . tanh(W query + U key + b)`",
        ("tests/test_docs.py::test_a_score_is_one_number_for_each_query_and_key",),
    ),
    Slip(
        "Values that are used as keys make it self-attention; the scores make a boolean map",
        "Keys and values usually come from the same states (keys = values); this says nothing about the query. In "
        "self-attention the *queries* come from those states too. Weights are numbers from 0 to 1; only the mask is "
        "boolean",
        ("tests/test_docs.py::test_shared_keys_and_values_are_not_self_attention",),
    ),
    Slip(
        "In the sinusoidal encoding, the cosine has the exponent (2i + 1) / d",
        "Sine and cosine share 2i / d (Vaswani et al. 2017, 3.5). Only then is a shift by k positions the same "
        "rotation everywhere. The wavelengths go from 2π to 10000^((d-2)/d) 2π, which is close to the often "
        "quoted 10000 · 2π only if d is large. In a recipe: `model.positions = sinusoidal`",
        ("tests/test_docs.py::test_a_shift_of_sinusoids_is_linear_only_with_the_shared_exponent",),
    ),
    Slip(
        "The sum runs from j = 0, the softmax from j = 1",
        "Both run over the same keys",
        ("tests/test_docs.py::test_what_is_weighed_is_what_is_summed",),
    ),
    Slip(
        "The gates of an LSTM and squeeze-and-excitation are attention",
        "They are *gates*: independent numbers from 0 to 1. They do not have to sum to one, and no query is compared "
        "with keys. They have maps too: `record` keeps the gates of squeeze-and-excitation and of every LSTM. [Lesson "
        "7](lessons/lesson_7_gates.py)",
        ("tests/test_docs.py::test_gates_do_not_share_a_sum",),
    ),
)

SLIPS_HEADING = """
## Words and slips, settled

There is much good teaching material on attention, but some small mistakes are copied from page to page. This table
lists the most common ones, the correct statement, and the test that shows it.

| teaching material often says | regard says | shown by |
|---|---|---|
"""

Figures = dict[str, str]


# ---- shared functions


def fix_parameters(module: nn.Module, scale: float = 0.7) -> nn.Module:
    """Sets a module to float64 and fills its parameters with fixed numbers, the same on every machine."""
    module.double()
    with torch.no_grad():
        for number, parameter in enumerate(module.parameters(), start=1):
            if parameter.ndim:  # a scalar parameter keeps the initial value of its class
                places = torch.arange(parameter.numel(), dtype=torch.float64)
                parameter.copy_(scale * torch.sin(1.7 * number + 2.3 * places).view_as(parameter))
    return module


def fit(module: nn.Module, look: Callable[[], Tensor]) -> Tensor:
    """Fits the parameters of a module to the toy's alignment and returns its attention weights."""
    parameters = list(module.parameters())
    if parameters:
        optimizer = torch.optim.Adam(parameters, lr=0.08)
        for _ in range(STEPS):
            optimizer.zero_grad()
            right = look()[range(len(GOLD)), GOLD]
            loss = -right.clamp(min=1e-6).log().mean()
            loss.backward()
            optimizer.step()
    with torch.no_grad():
        return look()


def picture(weights: Tensor, rows: Iterable[str] = TARGET, columns: Iterable[str] = SOURCE, title: str = "") -> str:
    """An attention map as SVG."""
    # Rounded to four digits, so that the picture does not depend on the rounding errors of a machine.
    return svg(AttentionMap(weights.detach().mul(1e4).round().div(1e4), tuple(rows), tuple(columns)), title)


def influence(outputs: Callable[[Tensor], Tensor], inputs: Tensor) -> Tensor:
    """How much each output depends on each input: the norm of its derivative, divided by the row's largest."""
    norms = torch.autograd.functional.jacobian(outputs, inputs).square().sum((1, 3)).sqrt()
    return norms / norms.amax(-1, keepdim=True).clamp(min=1e-9)


def parts(module: nn.Module) -> str:
    """The parameters of a module, by name and shape."""
    shapes = [
        f"`{name}` {' x '.join(map(str, parameter.shape)) or 'one number'}"
        for name, parameter in module.named_parameters()
    ]
    return ", ".join(shapes) or "none"


def text_of(entry: Any) -> str:
    """The docstring of a table entry."""
    return inspect.cleandoc(entry.__doc__)


def yes_or_no(answer: bool) -> str:
    """Yes or no."""
    return "yes" if answer else "no"


def entry(name: str, text: str, laws: Mapping[str, str], drawn: Mapping[str, str]) -> str:
    """One entry of the page: `drawn` gives the file of each picture and its description."""
    listed = "".join(f"- {law}: {answer}\n" for law, answer in laws.items())
    images = "".join(f"\n![{alt}](figures/mechanisms/{file}.svg)\n" for file, alt in drawn.items())
    return f"\n### `{name}`\n\n```text\n{text}\n```\n\n{listed}{images}"


# ---- scores


def make(kind: type[Score], query_dim: int, key_dim: int, dim: int) -> tuple[Score, bool]:
    """A score, and whether it accepts queries and keys of different widths."""
    try:
        return kind(query_dim=query_dim, key_dim=key_dim, dim=dim), True
    except RecipeError:
        return kind(query_dim=key_dim, key_dim=key_dim, dim=dim), False


def scores(figures: Figures) -> str:
    page = (
        "\n## Scores\n\n`model.attention.score`: how well query and key match, one number for each pair. Shapes of "
        "parameters are for queries of 5 numbers, keys of 7 and an inner width of 3 (7 and 7 if both must be equal).\n"
    )
    for name, kind in SCORES.items():
        sized, unequal = make(kind, 5, 7, 3)
        score = fix_parameters(kind(query_dim=WIDTH, key_dim=WIDTH, dim=WIDTH))

        def weigh(queries: Tensor = QUERIES, states: Tensor = STATES, score: Score = score) -> Tensor:
            weights = attend(queries, score.project(states), states, score=score).weights
            assert weights is not None
            return weights

        figures[f"score_{name}"] = picture(fit(score, weigh))
        with torch.no_grad():
            uses_query = not torch.allclose(weigh(), weigh(QUERIES.roll(1, 0)))
            length = not torch.allclose(weigh(), weigh(states=2 * STATES))
        laws = {
            "parameters": parts(sized),
            "takes queries and keys of different widths": yes_or_no(unequal),
            "its weights depend on the query": yes_or_no(uses_query),
            "they depend on the length of a key": yes_or_no(length),
            "its gradient agrees with finite differences": yes_or_no(right_gradient(weigh)),
        }
        page += entry(name, text_of(kind), laws, {f"score_{name}": f"The map of {name}"})
    return page


def right_gradient(look: Callable[[Tensor, Tensor], Tensor]) -> bool:
    """Whether the gradients for queries and states agree with finite differences."""
    inputs = (QUERIES[:2].clone().requires_grad_(), STATES[:3].clone().requires_grad_())
    return torch.autograd.gradcheck(look, inputs, raise_exception=False)


# ---- normalisers


def normalizers(figures: Figures) -> str:
    page = (
        "\n## Normalisers\n\n`model.attention.normalizer`: turns scores into weights. In the pictures all have the "
        "same scores, the dot products of the toy. A masked key has weight 0; a query whose keys are all masked gets "
        "zeros.\n"
    )
    raw = QUERIES @ STATES.T
    for name, (function, sums_to_one, differentiable) in NORMALIZERS.items():
        weights = function(raw, None)
        assert sums_to_one == torch.allclose(weights.sum(-1), torch.ones(len(raw)).double())
        laws = {
            "sums to one": yes_or_no(sums_to_one),
            "differentiable": yes_or_no(differentiable),
            "gives weights of exactly zero to keys that are not masked": yes_or_no(bool((weights == 0).any())),
            "unchanged if a number is added to all scores of a row": yes_or_no(
                torch.allclose(function(raw + 3, None), weights)
            ),
            "weight on the two best keys, on average": f"{weights.topk(2).values.sum(-1).mean():.2f}",
        }
        figures[f"normalizer_{name}"] = picture(weights)
        page += entry(name, text_of(function), laws, {f"normalizer_{name}": f"The map of the dot scores under {name}"})
    return page


# ---- scopes and heads


def scopes(figures: Figures) -> str:
    page = (
        "\n## Scopes\n\n`model.attention.scope`: which keys a query may attend to, with any score (here `dot`) and any "
        "normaliser. The toy has a `model.attention.window` of 1. Shapes are for queries of 5 numbers.\n"
    )
    for name, kind in SCOPES.items():
        dot = SCORES["dot"](query_dim=WIDTH, key_dim=WIDTH, dim=None)
        scope = fix_parameters(kind(dot, softmax, query_dim=WIDTH, window=1))

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
            "parameters": parts(kind(dot, softmax, query_dim=5)),
            "attends to every key": yes_or_no(bool((look() > 0).all())),
            "depends on the position of the query": yes_or_no(not torch.allclose(look(), look(start=2))),
            "depends on the weights of earlier steps": yes_or_no(kind.uses_past),
            "keeps the sum of the normaliser's weights": yes_or_no(kind.keeps_sum),
        }
        page += entry(name, text_of(kind), laws, {f"scope_{name}": f"The map of {name}"})
    return page


def heads(figures: Figures) -> str:
    def single(width: int) -> nn.Module:
        return SCOPES["global"](SCORES["scaled_dot"](query_dim=width, key_dim=width, dim=width), query_dim=width)

    many = fix_parameters(MultiHead(single, query_dim=WIDTH, key_dim=WIDTH, dim=WIDTH, heads=2))

    def look() -> Tensor:
        return many(QUERIES, many.project(STATES), many.content(STATES), mask=None).weights

    mean = fit(many, look)
    recorded: list[Tensor] = []
    handle = many.attention.register_forward_hook(lambda module, inputs, result: recorded.append(result.weights))
    with torch.no_grad():
        look()
    handle.remove()
    drawn = {"heads_mean": "The mean of two heads"}
    figures["heads_mean"] = picture(mean, title="mean")
    for number, weights in enumerate(recorded[0], start=1):
        figures[f"heads_{number}"] = picture(weights, title=f"head {number}")
        drawn[f"heads_{number}"] = f"Head {number} of two"
    sized = MultiHead(single, query_dim=5, key_dim=7, dim=6, heads=2)
    laws = {
        "parameters": f"{parts(sized)}, and those of the score (queries of 5 numbers, keys of 7, dim 6, 2 heads)",
        "takes queries and keys of different widths": "yes, with any score: each head has its own projections",
        "the map it reports": "the mean of its heads; `record` gives the map of each head",
    }
    page = (
        "\n## Heads\n\n`model.attention.heads`: several attentions in parallel, each in its own subspace. With more "
        "than one, `MultiHead` is put around scope and score.\n"
    )
    return page + entry("MultiHead", text_of(MultiHead), laws, drawn)


# ---- positions


def positions(figures: Figures) -> str:
    page = (
        "\n## Positions\n\n`model.positions`: how a Transformer knows the order of its tokens; without positions it "
        "does not. The picture is the self-attention of a sentence of six equal words with the score `dot`. No "
        "parameter is trained, so it shows the effect of the positions alone. Each weight is divided by the largest "
        "of its row. If positions differ by head, the first of four heads is shown. Shapes are for words of 6 "
        "numbers, 2 heads and at most 5 positions.\n"
    )
    width, apart = 8, 3
    words = torch.tensor([0.9, -0.4, 0.3, 0.8, -0.7, 0.5, 0.2, -0.6], dtype=torch.float64).expand(1, len(SOURCE), -1)
    labels = [f"w{number}" for number in range(1, len(SOURCE) + 1)]
    for name, kind in POSITIONS.items():
        place = fix_parameters(kind(dim=width, heads=4, longest=32, causal=False))

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
                "parameters": parts(kind(dim=6, heads=2, longest=5, causal=False)),
                "changes": ", ".join(part for part, changed in changes.items() if changed) or "nothing",
                "weights between equal words depend on their distance alone": yes_or_no(
                    torch.allclose(weights, look(apart))
                ),
            }
        figures[f"positions_{name}"] = picture(weights / weights.amax(-1, keepdim=True), labels, labels)
        page += entry(name, text_of(kind), laws, {f"positions_{name}": f"Six equal words under {name}"})
    return page


# ---- poolings


def poolings(figures: Figures) -> str:
    page = (
        "\n## Poolings\n\n`classify.pooling`: turns the states of a sentence into one vector, for classifiers and "
        "sentence vectors. The picture shows how much that vector depends on each state of the toy (the norm of the "
        "derivative), divided by the largest. For `attention` it shows the map of its untrained query, with the score "
        "`dot`. Shapes are for states of 5 numbers.\n"
    )
    mask = torch.ones(1, len(SOURCE), dtype=torch.bool)

    def make(width: int) -> nn.Module:
        return SCOPES["global"](SCORES["dot"](query_dim=width, key_dim=width, dim=None), query_dim=width)

    for name, kind in POOLINGS.items():
        pooling = fix_parameters(kind(dim=WIDTH, directions=1, make=make))

        def pooled(states: Tensor, pooling: nn.Module = pooling) -> Tensor:
            memory = Memory(states.unsqueeze(0), mask, Recurrent(states[None, :1], None), TEXT)
            return pooling(memory).vector

        weights = pooling(Memory(STATES.unsqueeze(0), mask, Recurrent(STATES[None, :1], None), TEXT)).weights
        unordered = torch.allclose(pooled(STATES), pooled(STATES.flip(0)))
        laws = {
            "parameters": parts(kind(dim=5, directions=1, make=make)),
            "has a map": yes_or_no(weights is not None),
            "independent of the order of the states": yes_or_no(unordered),
        }
        figures[f"pooling_{name}"] = picture(influence(pooled, STATES) if weights is None else weights, ["vector"])
        page += entry(name, text_of(kind), laws, {f"pooling_{name}": f"What the vector of {name} depends on"})
    return page


# ---- orders, starts, cells


def decoder(kind: type[RecurrentDecoder]) -> tuple[RecurrentDecoder, Memory]:
    """A decoder of an order, and the memory of the toy; token n is target word n, token 0 is BEGIN."""
    embedding = TokenEmbedding(1 + len(TARGET), WIDTH)
    attention = None
    if kind.attends():
        additive = SCORES["additive"](query_dim=WIDTH, key_dim=WIDTH, dim=WIDTH)
        attention = SCOPES["global"](additive, query_dim=WIDTH)
    made = kind(embedding, attention, encoder=Recurrence(nn.GRU, input_dim=1, dim=WIDTH), cell=nn.GRU, dim=WIDTH)
    fix_parameters(made)
    with torch.no_grad():
        embedding.weight.copy_(torch.cat([torch.zeros(1, WIDTH).double(), QUERIES]))
    summary = Recurrent(STATES.mean(0).view(1, 1, WIDTH), None)
    return made, Memory(STATES.unsqueeze(0), torch.ones(1, len(SOURCE), dtype=torch.bool), summary, TEXT)


def orders(figures: Figures) -> str:
    page = (
        "\n## Orders\n\n`model.decoder.order`: in which order a recurrent decoder updates its state, attends and "
        "predicts. The first picture shows the inputs (columns) of attention, cell and prediction (rows): dark if "
        "used. The second is the map of the toy.\n"
    )
    columns = {"word": "last word", "before": "last state", "state": "new state"}
    columns |= {"context": "context", "summary": "summary", "feed": "fed back"}
    tokens = torch.arange(len(TARGET)).unsqueeze(0)
    for name, kind in ORDERS.items():
        made, memory = decoder(kind)
        query: tuple[str, ...] = ()
        drawn = {f"order_{name}_reads": f"The inputs of attention, cell and prediction in {name}"}
        if kind.attends():
            figures[f"order_{name}"] = picture(fit(made, lambda: made(tokens, memory).attention[0]))  # noqa: B023
            drawn[f"order_{name}"] = f"The map of {name}"
            other = tokens.clone()
            other[0, -1] = 1  # if the last word changes the weights of its step, the query is the new state
            with torch.no_grad():
                weights = [made(words, memory).attention[0, -1] for words in (tokens, other)]
            query = ("before",) if torch.equal(*weights) else ("state",)
        reads = {"attention": query, "cell": ("before", *kind.enters), "prediction": kind.reads}
        marks = torch.tensor([[float(part in read) for part in columns] for read in reads.values()])
        figures[f"order_{name}_reads"] = picture(marks, reads, columns.values())
        laws = {
            "the query": ", ".join(columns[part] for part in query) or "none: it never attends",
            "input of the cell, besides the last state": ", ".join(columns[part] for part in kind.enters),
            "input of the prediction": ", ".join(columns[part] for part in kind.reads),
            "reads all target words at once in training": yes_or_no(kind.parallel),
        }
        page += entry(name, text_of(kind), laws, drawn)
    return page


def starts(figures: Figures) -> str:
    page = (
        "\n## Starts\n\n`model.decoder.start`: the decoder's state before its first token. The picture shows how much "
        "this state depends on each source word, through a GRU that reads the sentence from left to right. Shapes are "
        "for an encoder of 5 numbers and a decoder of two layers of 7.\n"
    )
    for name, kind in STARTS.items():
        reader, writer = (Recurrence(nn.GRU, input_dim=WIDTH, dim=WIDTH) for _ in range(2))
        fix_parameters(reader)
        start = fix_parameters(kind(writer, reader))

        def first(words: Tensor, start: nn.Module = start, reader: Recurrence = reader) -> Tensor:
            _, summary = reader.read(words.unsqueeze(0), torch.ones(1, len(SOURCE), dtype=torch.bool))
            return start(summary).hidden[0]

        shares = influence(first, STATES)
        shapes = Recurrence(nn.GRU, input_dim=1, dim=5), Recurrence(nn.GRU, input_dim=1, dim=7, layers=2)
        try:
            parameters, fits = parts(kind(shapes[1], shapes[0])), True
        except RecipeError:
            parameters, fits = parts(kind(writer, reader)), False
        laws = {
            "parameters": parameters,
            "takes encoder and decoder of different shapes": yes_or_no(fits),
            "depends on the source": yes_or_no(bool((shares > 0).any())),
        }
        figures[f"start_{name}"] = picture(shares, ["first state"])
        page += entry(name, text_of(kind), laws, {f"start_{name}": f"What the start {name} depends on"})
    return page


def cells(figures: Figures) -> str:
    assert set(CELL_TEXTS) == set(CELLS)
    page = (
        "\n## Cells\n\n`model.encoder.cell`, `model.decoder.cell`: the recurrent unit, PyTorch's own. The picture "
        "shows how much each state (row) depends on each word (column), divided by the row's largest, with untrained "
        "weights; a state does not depend on later words. Shapes are for inputs of 5 numbers and states of 7.\n"
    )
    for name, kind in CELLS.items():
        cell = fix_parameters(Recurrence(kind, input_dim=WIDTH, dim=WIDTH), scale=0.5)
        mask = torch.ones(1, len(SOURCE), dtype=torch.bool)
        shares = influence(lambda words: cell.read(words.unsqueeze(0), mask)[0][0], STATES)  # noqa: B023
        laws = {
            "parameters": parts(kind(5, 7)),
            "has a cell state besides its hidden state": yes_or_no(cell.cell_dim is not None),
        }
        figures[f"cell_{name}"] = picture(shares, [f"after {word}" for word in SOURCE])
        page += entry(name, CELL_TEXTS[name], laws, {f"cell_{name}": f"What the states of {name} depend on"})
    return page


# ---- gates


def gates(figures: Figures) -> str:
    page = (
        "\n## Gates\n\n`regard.attention.gates`: related to attention, but not attention. A gate multiplies a part of "
        "a vector by a number from 0 to 1. Gates do not have to sum to one, and no query is compared with keys.\n"
    )
    channels = [f"channel {number}" for number in range(WIDTH)]
    squeeze = fix_parameters(SqueezeExcite(channels=WIDTH, reduction=2), scale=1.5)
    with torch.no_grad():
        opened = torch.cat([squeeze.gate(words.unsqueeze(0)) for words in (STATES[:2], STATES[2:4], STATES)])
    figures["gate_squeeze_excite"] = picture(opened, ["the cat", "sat on", "all six"], channels)
    laws = {
        "parameters": f"{parts(SqueezeExcite(channels=8, reduction=4))} (8 channels, reduced by 4)",
        "differs from input to input": yes_or_no(not torch.allclose(opened[0], opened[1])),
        "sums to one": yes_or_no(torch.allclose(opened.sum(-1), torch.ones(3).double())),
    }
    drawn = {"gate_squeeze_excite": "The gates of squeeze-and-excitation for three inputs"}
    page += entry("SqueezeExcite", text_of(SqueezeExcite), laws, drawn)

    gate = fix_parameters(ContextGate(query_dim=WIDTH), scale=1.5)
    with torch.no_grad():
        opened = gate.gate(STATES.unsqueeze(0))[0].T
    figures["gate_context"] = picture(opened, ["gate"])
    laws = {
        "parameters": f"{parts(ContextGate(query_dim=8))} (a query of width 8)",
        "chosen by": "`model.decoder.gated_context`",
        "differs from query to query": yes_or_no(not torch.allclose(opened[0, 0], opened[0, 1])),
    }
    drawn = {"gate_context": "The gate of the context for six queries"}
    page += entry("ContextGate", text_of(ContextGate), laws, drawn)

    lstm = fix_parameters(nn.LSTM(WIDTH, WIDTH, batch_first=True), scale=1.0)
    with record(lstm) as recording:
        lstm(STATES.unsqueeze(0))
    rows = [f"{gate} {number}" for gate, number in itertools.product(GATES, range(WIDTH))]
    figures["gate_lstm"] = picture(torch.cat([recording.weights[f"{gate}_l0"][0].T for gate in GATES]), rows)
    laws = {
        "parameters": "those of the LSTM; `record` computes the gates beside it and does not change it",
        "sums to one": yes_or_no(torch.allclose(recording.weights["forget_l0"].sum(-1), torch.ones(1).double())),
    }
    page += entry(
        "lstm_gates", text_of(lstm_gates), laws, {"gate_lstm": "Three gates of four units while the sentence is read"}
    )
    return page


def slips() -> str:
    """The table of common mistakes."""
    rows = [
        f"| {often} | {settled} | {', '.join(f'`{test}`' for test in tests)} |\n" for often, settled, tests in SLIPS
    ]
    return SLIPS_HEADING + "".join(rows)


def make_all() -> tuple[str, Figures]:
    """The page and its pictures."""
    figures: Figures = {}
    sections = (scores, normalizers, scopes, heads, positions, poolings, orders, starts, cells, gates)
    texts = [section(figures) for section in sections]
    return INTRODUCTION.format(steps=STEPS) + "".join(texts) + slips(), figures


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
