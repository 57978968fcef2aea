"""Mistakes of a run: its wrong answers, worst first, and the kinds of mistake that are most frequent in them."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import takewhile
from textwrap import wrap
from typing import Any, NamedTuple

from rich.cells import cell_len

from regard.console import counted
from regard.data.tokenizers import Character
from regard.errors import DataError, pick
from regard.metrics import INSTEAD, Outcome, better, edit_rows, example_value
from regard.show.labels import clipped, make_visible, shown
from regard.tasks import AnyTask, Scored

SHOWN = 10  # kinds of mistake, or texts, in the table for the terminal
MOST_CELLS = 1_000_000  # of the table of distances of an answer; longer answers are listed, but not their edits
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


class Kind(NamedTuple):
    """How often a mistake was made, with its shortest example."""

    mistake: Mistake
    times: int
    outcome: Outcome
    place: Place


Find = Callable[[Outcome], Iterator[tuple[Mistake, Place]]]


def classes(outcome: Outcome) -> Iterator[tuple[Mistake, Place]]:
    """The confusion of two labels of the whole text."""
    yield Mistake(outcome.references[0], outcome.answer), Place("", "", outcome.source)


def tags(outcome: Outcome) -> Iterator[tuple[Mistake, Place]]:
    """The confusions of the labels of single words, or of the words for blanks."""
    words = outcome.source.split()
    expected, answer = outcome.references[0].split(), outcome.answer.split()
    for place, pair in enumerate(zip(expected, answer, strict=False)):
        if pair[0] != pair[1]:
            of_words = len(words) == len(expected)
            yield Mistake(*pair), _place(words, place, " ") if of_words else Place("", "", outcome.source)


def character_edits(outcome: Outcome) -> Iterator[tuple[Mistake, Place]]:
    """The edits of characters between the closest reference and the answer."""
    return _edits(outcome, list, "")


def word_edits(outcome: Outcome) -> Iterator[tuple[Mistake, Place]]:
    """The edits of words between the closest reference and the answer."""
    return _edits(outcome, str.split, " ")


def _edits(outcome: Outcome, split: Callable[[str], list[str]], joint: str) -> Iterator[tuple[Mistake, Place]]:
    answer = split(outcome.answer)
    paths = [(edits(split(reference), answer), split(reference)) for reference in outcome.references]
    path, expected = min(paths, key=lambda pair: len(pair[0]))
    for mistake, place in path:
        yield mistake, _place(answer if mistake.expected is None else expected, place, joint)


def _place(tokens: Sequence[str], place: int, joint: str) -> Place:
    """The place of a token in a text, with a joint between it and its neighbours."""
    before, after = (joint.join(part) for part in (tokens[:place], tokens[place + 1 :]))
    return Place(before + joint if before else "", tokens[place], joint + after if after else "")


def edits(expected: Sequence[str], answer: Sequence[str]) -> list[tuple[Mistake, int]]:
    """The edits of a shortest path (Levenshtein) from one sequence to another.

    Each comes with its place in `expected`; an insertion, which is not there, with its place in `answer`.

    Of several shortest paths, one is chosen from the end: a substitution before a deletion before an insertion. Empty
    if the table of distances has more than `MOST_CELLS` cells.
    """
    first = _common(expected, answer)
    last = min(_common(expected[::-1], answer[::-1]), len(expected) - first, len(answer) - first)
    expected, answer = expected[first : len(expected) - last], answer[first : len(answer) - last]
    if len(expected) * len(answer) > MOST_CELLS:
        return []
    table = list(edit_rows(answer, expected))
    path, row, column = [], len(answer), len(expected)
    while row or column:
        here = table[row][column]
        if row and column and here == table[row - 1][column - 1] + (answer[row - 1] != expected[column - 1]):
            row, column = row - 1, column - 1
            if answer[row] != expected[column]:
                path.append((Mistake(expected[column], answer[row]), first + column))
        elif column and here == table[row][column - 1] + 1:
            column -= 1
            path.append((Mistake(expected[column], None), first + column))
        else:
            row -= 1
            path.append((Mistake(None, answer[row]), first + row))
    return path[::-1]


def _common(one: Sequence[str], other: Sequence[str]) -> int:
    """The number of equal tokens at the beginning of both."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))


class Unit(NamedTuple):
    """How mistakes of one kind of answer are found and named."""

    find: Find
    noun: str


KINDS = {
    "classes": Unit(classes, "confusions"),
    "tags": Unit(tags, "confusions"),
    "characters": Unit(character_edits, "edits of characters"),
    "words": Unit(word_edits, "edits of words"),
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

    def rows(self) -> Iterator[tuple[str, ...]]:
        """The wrong answers as the rows of a table, after a row of names."""
        yield "source", "expected", "answer", "score", self.metric
        for outcome, value in self.wrong:
            expected = BETWEEN.join(outcome.references)
            yield outcome.source, expected, outcome.answer, f"{outcome.score:.4f}", f"{value:.4f}"

    def table(self, width: int = 80) -> str:
        """The most frequent kinds of mistake with an example of each, in lines of at most that many terminal cells."""
        if not self.noun:
            return self._texts(width)
        if not self.wrong:
            return f"all {self.answers:,} answers are right\n"
        total = sum(kind.times for kind in self.kinds)
        wrong = f"{len(self.wrong):,} of {self.answers:,} answers are wrong"
        title = wrap(f"{wrong}; the most frequent of {total:,} {self.noun}:", width)
        top = self.kinds[:SHOWN]
        rows = [("times", "mistake"), *((f"{kind.times:,}", str(kind.mistake)) for kind in top)]
        left, middle = (max(map(cell_len, column)) for column in zip(*rows, strict=True))
        room = max(width - left - middle - 4, 8)
        examples = ["example", *(kind.place.fit(room) for kind in top)]
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
        return {"answers": self.answers, "wrong": len(self.wrong), "mistakes": kinds}


def find(task: AnyTask, scored: Scored) -> Mistakes:
    """The mistakes in the answers of a scored run, or the texts of a language model, worst first.

    An answer is wrong if it equals no reference. The worst comes first by the metric, and of equals the one that the
    run was surest of; the texts of a language model are sorted by their log-probability per token.
    """
    if not scored.outcomes:
        raise DataError(f"the task {task.recipe.task!r} reports no single answers, so its mistakes cannot be listed")
    is_text = task.mistakes == "texts"
    wrong = [
        Wrong(outcome, example_value(scored.metric, outcome))
        for outcome in counted(scored.outcomes, "comparing answers")
        if is_text or outcome.answer not in outcome.references
    ]
    metric = INSTEAD.get(scored.metric, scored.metric)
    sign = 1 if better(metric) == "higher is better" else -1
    wrong.sort(key=lambda one: (one.outcome.score, 0.0) if is_text else (sign * one.value, -one.outcome.score))
    unit = None if is_text else pick(KINDS, _unit(task), "kind of mistakes")
    kinds = () if unit is None else _count([one.outcome for one in wrong], unit.find)
    return Mistakes(metric, len(scored.outcomes), tuple(wrong), "" if unit is None else unit.noun, kinds)


def _unit(task: AnyTask) -> str:
    """The key in `KINDS`: edits are of characters if the task writes characters, else of words."""
    if task.mistakes != "edits":
        return task.mistakes
    is_spelled = task.uses("tokens.target") and task.recipe.tokens.target == Character.kind
    return "characters" if is_spelled else "words"


def _count(outcomes: Sequence[Outcome], find: Find) -> tuple[Kind, ...]:
    """Count the mistakes of each kind, most frequent first; of equally frequent ones, the first found first."""
    kinds: dict[Mistake, Kind] = {}
    for outcome in counted(outcomes, "counting mistakes"):
        for mistake, place in find(outcome):
            kind = kinds.get(mistake)
            shortest = kind if kind and _size(kind.place) <= _size(place) else Kind(mistake, 0, outcome, place)
            kinds[mistake] = shortest._replace(times=kind.times + 1 if kind else 1)
    return tuple(sorted(kinds.values(), key=lambda kind: -kind.times))


def _size(place: Place) -> int:
    return sum(map(len, place))
