"""Mistakes of a run: its wrong answers, worst first, and the kinds of mistake that are most frequent in them."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import takewhile
from textwrap import wrap
from typing import Any, NamedTuple

from rich.cells import cell_len

from regard.console import counted
from regard.data.tokenizers import Character
from regard.errors import DataError, pick
from regard.metrics import INSTEAD, Outcome, better, edit_rows, example_scorer
from regard.show.labels import clipped, make_visible, shown
from regard.show.text import harmless
from regard.tasks import AnyTask, Scored

SHOWN = 10  # kinds of mistake, or texts, in the table for the terminal
MOST_CELLS = 100_000_000  # of the table of distances of an answer; longer answers are listed, but not their edits
TOKEN_CELLS = 10_000  # cells that are computed in the time that everything else takes for one token
ALL_CELLS = 6_000_000_000  # of all answers, with those for their tokens: some seconds of work
LONGEST_LABEL = 24  # terminal cells of a token or label in the table
BETWEEN = " ||| "  # stands between several correct answers


class Mistake(NamedTuple):
    """A kind of mistake: a token or label that was expected, and the one in the answer instead of it."""

    expected: str | None  # None for an insertion: the answer has a token too many
    answer: str | None  # None for a deletion: the answer lacks a token

    @property
    def name(self) -> str:
        """The name of this kind of edit; one of labels is a substitution."""
        return "insertion" if self.expected is None else "deletion" if self.answer is None else "substitution"

    def __str__(self) -> str:
        expected, answer = (clipped(shown(text or "(empty)"), LONGEST_LABEL) for text in self)
        return {"insertion": f"{answer} added", "deletion": f"{expected} missing"}.get(
            self.name, f"{expected} -> {answer}"
        )


class Place(NamedTuple):
    """A mistake in a text, as an example of its kind: the text before it, at it and after it."""

    before: str
    marked: str  # empty if the mistake is that of the whole text, which is `after`
    after: str

    def fit(self, cells: int) -> str:
        """The text with the mistake in brackets, cut at both ends to that many terminal cells."""
        marked = clipped(f"[{make_visible(self.marked)}]", cells) if self.marked else ""
        before, after = make_visible(self.before[-cells - 1 :]), make_visible(self.after[: cells + 1])
        room = cells - cell_len(marked)
        after = _cut(after, max(room // 2, room - cell_len(before)))
        before = _cut(before[::-1], room - cell_len(after))[::-1]
        return before + marked + after


def _cut(text: str, cells: int) -> str:
    """The text, cut to that many terminal cells, of which there may be none."""
    return clipped(text, cells) if cells > 0 else ""


Split = Callable[[str], Sequence[str]]  # a text to its tokens


class Token(NamedTuple):
    """A token of a text, whose place is found only if it is shown: a long text may have many mistakes."""

    text: str
    number: int | None  # its index in the text; None if the mistake is that of the whole text
    split: Split

    def place(self) -> Place:
        """The text before the token, the token, and the text after it."""
        if self.number is None:
            return Place("", "", self.text)
        tokens, joint = self.split(self.text), " " if self.split is str.split else ""
        before, after = (joint.join(part) for part in (tokens[: self.number], tokens[self.number + 1 :]))
        return Place(before + joint if before else "", tokens[self.number], joint + after if after else "")


class Kind(NamedTuple):
    """How often a mistake was made, with its shortest example."""

    mistake: Mistake
    times: int
    outcome: Outcome
    token: Token


Find = Callable[[Outcome], Iterator[tuple[Mistake, Token]]]


def classes(outcome: Outcome) -> Iterator[tuple[Mistake, Token]]:
    """The confusion of two labels of the whole text."""
    yield Mistake(outcome.references[0], outcome.answer), Token(outcome.source, None, str.split)


def tags(outcome: Outcome) -> Iterator[tuple[Mistake, Token]]:
    """The confusions of the labels of single words, or of the words for blanks."""
    expected, answer = outcome.references[0].split(), outcome.answer.split()
    of_words = len(outcome.source.split()) == len(expected)
    for index, pair in enumerate(zip(expected, answer, strict=False)):
        if pair[0] != pair[1]:
            yield Mistake(*pair), Token(outcome.source, index if of_words else None, str.split)


def edits_of_closest(outcome: Outcome, split: Split) -> Iterator[tuple[Mistake, Token]]:
    """The edits of tokens between the closest reference and the answer."""
    answer = split(outcome.answer)
    paths = [(edits(split(reference), answer), reference) for reference in outcome.references]
    path, expected = min(paths, key=lambda pair: len(pair[0]))
    for mistake, index in path:
        yield mistake, Token(outcome.answer if mistake.expected is None else expected, index, split)


def edits(expected: Sequence[str], answer: Sequence[str]) -> list[tuple[Mistake, int]]:
    """The edits of a shortest path (Levenshtein) from one sequence to another.

    Each comes with its place in `expected`; an insertion, which is not there, with its place in `answer`.

    Of several shortest paths, one is chosen from the end: a substitution before a deletion before an insertion. Empty
    if the table of distances has more than `MOST_CELLS` cells.
    """
    first, expected, answer = _different(expected, answer)
    if len(expected) * len(answer) > MOST_CELLS:
        return []
    table = list(edit_rows(answer, expected))
    path, row, column = [], len(answer), len(expected)
    while row or column:
        if row and column and answer[row - 1] == expected[column - 1]:
            row, column = row - 1, column - 1
        elif row and column and not table[row].diagonal >> column - 1 & 1:
            row, column = row - 1, column - 1
            path.append((Mistake(expected[column], answer[row]), first + column))
        elif column and table[row].up >> column - 1 & 1:
            column -= 1
            path.append((Mistake(expected[column], None), first + column))
        else:
            row -= 1
            path.append((Mistake(None, answer[row]), first + row))
    return path[::-1]


def _different(expected: Sequence[str], answer: Sequence[str]) -> tuple[int, Sequence[str], Sequence[str]]:
    """The index of the first difference, and both sequences from there to their last difference."""
    first = _common(expected, answer)
    last = min(_common(expected[::-1], answer[::-1]), len(expected) - first, len(answer) - first)
    return first, expected[first : len(expected) - last], answer[first : len(answer) - last]


def _cells(outcome: Outcome, split: Split) -> float:
    """The cells of the tables of distances between the answer and its references, and `TOKEN_CELLS` for each token.

    Infinite if one of the tables is too large for `edits`.
    """
    answer = split(outcome.answer)
    parts = (_different(split(reference), answer) for reference in outcome.references)
    sizes = [(len(expected), len(given)) for _, expected, given in parts]
    if any(rows * columns > MOST_CELLS for rows, columns in sizes):
        return math.inf
    return sum(rows * columns + TOKEN_CELLS * (rows + columns) for rows, columns in sizes)


def _common(one: Sequence[str], other: Sequence[str]) -> int:
    """The number of equal tokens at the beginning of both."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))


class Unit(NamedTuple):
    """How mistakes of one kind of answer are found and named."""

    find: Find
    noun: str
    cells: Callable[[Outcome], float] = lambda outcome: 0  # of the tables of distances that are needed to find them


KINDS = {
    "classes": Unit(classes, "confusions"),
    "tags": Unit(tags, "confusions"),
    "characters": Unit(partial(edits_of_closest, split=list), "edits of characters", partial(_cells, split=list)),
    "words": Unit(partial(edits_of_closest, split=str.split), "edits of words", partial(_cells, split=str.split)),
}


class Wrong(NamedTuple):
    """A wrong answer, or a text of a language model, with the value of the metric for it alone."""

    outcome: Outcome
    value: float


@dataclass(frozen=True)
class Mistakes:
    """The wrong answers of a run, worst first, and the kinds of mistake in them, most frequent first."""

    metric: str  # of one example
    answers: int  # all answers, right and wrong
    wrong: tuple[Wrong, ...]
    noun: str  # what the kinds are; empty for a language model
    kinds: tuple[Kind, ...]
    uncounted: int = 0  # wrong answers whose edits are not counted: they are too long, or too many

    def rows(self) -> Iterator[tuple[str, ...]]:
        """The wrong answers as the rows of a table, after a row of names.

        Texts that a spreadsheet would run have an apostrophe in front, as in the CSV of a map.
        """
        yield "source", "expected", "answer", "score", self.metric
        for outcome, value in self.wrong:
            texts = outcome.source, BETWEEN.join(outcome.references), outcome.answer
            yield *map(harmless, texts), f"{outcome.score:.4f}", f"{value:.4f}"

    def table(self, width: int = 80) -> str:
        """The most frequent kinds of mistake with an example of each, in lines of at most that many terminal cells."""
        if not self.noun:
            return self._texts(width)
        if not self.wrong:
            return f"all {self.answers:,} answers are right\n"
        total = sum(kind.times for kind in self.kinds)
        wrong = f"{len(self.wrong):,} of {self.answers:,} answers are wrong"
        missing = f" (without {self.uncounted:,} answers, too long to compare)" if self.uncounted else ""
        title = wrap(f"{wrong}; the most frequent of {total:,} {self.noun}{missing}:", width)
        top = self.kinds[:SHOWN]
        rows = [("times", "mistake"), *((f"{kind.times:,}", str(kind.mistake)) for kind in top)]
        left, middle = (max(map(cell_len, column)) for column in zip(*rows, strict=True))
        room = max(width - left - middle - 4, 8)
        examples = ["example", *(kind.token.place().fit(room) for kind in top)]
        lines = [
            f"{times:>{left}}  {mistake}{' ' * (middle - cell_len(mistake))}  {example}".rstrip()
            for (times, mistake), example in zip(rows, examples, strict=True)
        ]
        return "\n".join([*title, *lines]) + "\n"

    def _texts(self, width: int) -> str:
        """The texts that the language model predicts worst."""
        title = wrap(f"of {self.answers:,} texts, those with the highest loss per token:", width)
        lines = [*title, f"nats  {self.metric}  text"]
        column = len(self.metric)
        for outcome, value in self._worst():
            start = f"{-outcome.score:4.1f}  {value:>{column}.4g}  "
            lines.append(start + clipped(make_visible(outcome.references[0]), max(width - len(start), 8)))
        return "\n".join(lines) + "\n"

    def _worst(self) -> list[Wrong]:
        """The worst texts of a language model, equal ones once."""
        different: dict[tuple[str, ...], Wrong] = {}
        for one in self.wrong:
            different.setdefault(one.outcome.references, one)
        return list(different.values())[:SHOWN]

    def to_dict(self) -> dict[str, Any]:
        """The counts and the most frequent kinds of mistake, or the worst texts, as a dictionary for JSON."""
        if not self.noun:
            worst = self._worst()
            texts = [
                {"text": one.outcome.references[0], "score": one.outcome.score, self.metric: one.value} for one in worst
            ]
            return {"texts": self.answers, "worst": texts}
        kinds = [
            {
                "kind": kind.mistake.name,
                "expected": kind.mistake.expected,
                "answer": kind.mistake.answer,
                "times": kind.times,
                "example": {
                    "source": kind.outcome.source,
                    "expected": list(kind.outcome.references),
                    "answer": kind.outcome.answer,
                },
            }
            for kind in self.kinds[:SHOWN]
        ]
        counts = {"answers": self.answers, "wrong": len(self.wrong), "uncounted": self.uncounted}
        return counts | {"mistakes": kinds}


def find(task: AnyTask, scored: Scored) -> Mistakes:
    """The mistakes in the answers of a scored run, or the texts of a language model, worst first.

    An answer is wrong if it equals no reference. The worst comes first by the metric, and of equals the one that the
    run was surest of; the texts of a language model are sorted by their log-probability per token.
    """
    if not scored.outcomes:
        raise DataError(f"the task {task.recipe.task!r} reports no single answers, so its mistakes cannot be listed")
    is_text = task.mistakes == "texts"
    value = example_scorer(scored.metric, scored.outcomes)
    wrong = [
        Wrong(outcome, value(outcome))
        for outcome in counted(scored.outcomes, "comparing answers")
        if is_text or outcome.answer not in outcome.references
    ]
    metric = INSTEAD.get(scored.metric, scored.metric)
    sign = 1 if better(metric) == "higher is better" else -1
    wrong.sort(key=lambda one: (one.outcome.score, 0.0) if is_text else (sign * one.value, -one.outcome.score))
    unit = None if is_text else pick(KINDS, _unit(task), "kind of mistakes")
    if unit is None:
        return Mistakes(metric, len(scored.outcomes), tuple(wrong), "", ())
    short = list(_short_enough([one.outcome for one in wrong], unit.cells))
    kinds, uncounted = _count(short, unit.find), len(wrong) - len(short)
    return Mistakes(metric, len(scored.outcomes), tuple(wrong), unit.noun, kinds, uncounted)


def _unit(task: AnyTask) -> str:
    """The key in `KINDS`: edits are of characters if the task writes characters, else of words."""
    if task.mistakes != "edits":
        return task.mistakes
    is_spelled = task.uses("tokens.target") and task.recipe.tokens.target == Character.kind
    return "characters" if is_spelled else "words"


def _short_enough(outcomes: Sequence[Outcome], cells: Callable[[Outcome], float]) -> Iterator[Outcome]:
    """The first outcomes that need at most `ALL_CELLS` together; one that needs more than is left is skipped."""
    left: float = ALL_CELLS
    for outcome in outcomes:
        needed = cells(outcome)
        if needed <= left:
            left -= needed
            yield outcome


def _count(outcomes: Sequence[Outcome], find: Find) -> tuple[Kind, ...]:
    """Count the mistakes of each kind, most frequent first; of equally frequent ones, the first found first."""
    kinds: dict[Mistake, Kind] = {}
    for outcome in counted(outcomes, "counting mistakes"):
        for mistake, token in find(outcome):
            kind = kinds.get(mistake)
            shortest = kind if kind and len(kind.token.text) <= len(token.text) else Kind(mistake, 0, outcome, token)
            kinds[mistake] = shortest._replace(times=kind.times + 1 if kind else 1)
    return tuple(sorted(kinds.values(), key=lambda kind: -kind.times))
