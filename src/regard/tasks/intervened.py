"""Predictions before and after interventions, and their difference; words as positions for interventions."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from difflib import SequenceMatcher
from itertools import groupby, takewhile
from typing import Any, Literal, NamedTuple

from regard.attention.intervene import Erase, Force, Intervention, Position, Swap
from regard.errors import RecipeError, did_you_mean, shown
from regard.tasks.core import AnyTask
from regard.tasks.forecast import Forecast
from regard.types import Prediction

LISTED = 8  # places of a word, or labels, that a message names
MOST_MATCHING = 20_000_000  # work of a `SequenceMatcher`: about a second at worst
Kind = Literal["same", "replaced", "removed", "added"]


class TokenChange(NamedTuple):
    """A token of the output before and after an intervention; empty if it is only in one of them.

    `log_prob` and `log_prob_after` belong to the token before: without the intervention, and with it after the same
    tokens before it (teacher forcing). They are None for added tokens, and for tasks that force no outputs.
    """

    kind: Kind
    before: str
    after: str
    log_prob: float | None = None
    log_prob_after: float | None = None

    @property
    def change(self) -> float | None:
        """The change of the log-probability."""
        both = self.log_prob is not None and self.log_prob_after is not None
        return self.log_prob_after - self.log_prob if both else None  # type: ignore[operator]


@dataclass(frozen=True)
class Intervened:
    """The predictions for one input before and after interventions, with their maps, and what changed."""

    interventions: tuple[Intervention, ...]  # as they were carried out: words are replaced by positions
    before: Prediction
    after: Prediction
    diff: tuple[TokenChange, ...]
    forced: Prediction | None = None  # the output before, forced under the interventions: its scores and maps

    @property
    def changed(self) -> bool:
        """Whether the output is another one."""
        return self.before.text != self.after.text or self.before.tokens != self.after.tokens

    @property
    def marked(self) -> str:
        """The output after, with what was there before: `1986-[05→01]-01`."""
        joined = "".join(_tokens(self.before)).replace("▁", " ").strip()
        between = "" if joined in self.before.text else " "  # between words, numbers and tags
        parts: list[str] = []
        for is_same, group in groupby(self.diff, lambda one: one.kind == "same"):
            stretch = [*group]
            before = between.join(one.before for one in stretch if one.before)
            after = between.join(one.after for one in stretch if one.after)
            parts.append(before if is_same else f"[{before}→{after}]")
        return between.join(parts).replace("▁", " ").strip()

    def to_dict(self, *, maps: bool = True) -> dict[str, Any]:
        """A dictionary for JSON."""
        content: dict[str, Any] = {
            "interventions": [str(one) for one in self.interventions],
            "changed": self.changed,
            "before": self.before.to_dict(maps=maps),
            "after": self.after.to_dict(maps=maps),
            "diff": [{key: value for key, value in one._asdict().items() if value is not None} for one in self.diff],
        }
        return content | ({} if self.forced is None else {"forced": self.forced.to_dict(maps=maps)})

    def __repr__(self) -> str:
        what = ", ".join(map(str, self.interventions))
        return f"Intervened({what}: {shown(self.before.text)} → {shown(self.after.text)})"

    def _repr_html_(self) -> str | None:
        """The interactive pages that a notebook shows for this object."""
        pages = [page for page in (self.before._repr_html_(), self.after._repr_html_()) if page]
        return "\n".join(pages) or None


def compare(
    before: Prediction,
    after: Prediction,
    scored: Prediction | None = None,
    forced: Prediction | None = None,
    *,
    aligned: bool = False,
) -> tuple[TokenChange, ...]:
    """The token-level difference of two outputs; if `aligned`, token by token in their order.

    `scored` and `forced` are the output before, forced without and with the interventions: both have token_scores.
    """
    changes, place = [], 0
    for kind, old, new in _pairs(_tokens(before), _tokens(after), aligned):
        if scored is None or forced is None or kind == "added":
            changes.append(TokenChange(kind, old, new))
        else:
            changes.append(TokenChange(kind, old, new, scored.token_scores[place], forced.token_scores[place]))
        place += kind != "added"
    return tuple(changes)


def _tokens(prediction: Prediction) -> tuple[str, ...]:
    """The tokens to compare: of a forecast, the medians, since its tokens are times."""
    return tuple(prediction.text.split()) if isinstance(prediction, Forecast) else prediction.tokens


def _pairs(before: Sequence[str], after: Sequence[str], aligned: bool) -> Iterator[tuple[Kind, str, str]]:
    """Pairs of tokens that stand for each other."""
    if aligned and len(before) == len(after):
        for old, new in zip(before, after, strict=True):
            yield ("same" if old == new else "replaced"), old, new
        return
    for olds, news in _stretches(before, after):
        for old, new in zip(olds, news, strict=False):
            yield ("same" if old == new else "replaced"), old, new
        for old in olds[len(news) :]:
            yield "removed", old, ""
        for new in news[len(olds) :]:
            yield "added", "", new


def _stretches(before: Sequence[str], after: Sequence[str]) -> list[tuple[Sequence[str], Sequence[str]]]:
    """Stretches of two outputs that stand for each other, in their order.

    `SequenceMatcher` finds them if that is little work. Otherwise it gets what is between the common prefix and suffix,
    and if that is too much work, too, its tokens are paired by their places.
    """
    prefix = suffix = 0
    if _matching_work(before, after) > MOST_MATCHING:
        prefix = _common(before, after)
        suffix = _common(before[prefix:][::-1], after[prefix:][::-1])
    ends = len(before) - suffix, len(after) - suffix
    old, new = before[prefix : ends[0]], after[prefix : ends[1]]
    between = [(old, new)]
    if _matching_work(old, new) <= MOST_MATCHING:
        codes = SequenceMatcher(None, old, new, autojunk=False).get_opcodes()
        between = [(old[first:last], new[start:stop]) for _, first, last, start, stop in codes]
    return [(before[:prefix], after[:prefix]), *between, (before[ends[0] :], after[ends[1] :])]


def _matching_work(before: Sequence[str], after: Sequence[str]) -> int:
    """The most work of a `SequenceMatcher`: all pairs of equal tokens, for as many matches as the shorter side has."""
    counts = Counter(after)
    return sum(number * counts[token] for token, number in Counter(before).items()) * min(len(before), len(after))


def _common(before: Sequence[str], after: Sequence[str]) -> int:
    """The length of the common prefix."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(before, after, strict=False)))


class Axis(NamedTuple):
    """The labels of the source, or of an axis of a map, and the index of the first of them in the model."""

    labels: tuple[str, ...]
    noun: str  # row, column or position
    offset: int = 0

    def number(self, position: Position, change: Intervention) -> int:
        """The number of a position in the model, counted from 1; RecipeError if it is not there."""
        first, last = self.span(position, change)
        if first != last:
            raise RecipeError(
                f"{change}: {shown(position)} has the {self.noun}s {first} to {last}; choose one of them by its number"
            )
        return first + self.offset

    def span(self, position: Position, change: Intervention) -> tuple[int, int]:
        """The first and the last number of a position or word, counted from 1, without the offset."""
        if isinstance(position, str):
            return find(position, self.labels, self.noun, change)
        if position > len(self.labels):
            last = self.labels[-1] if self.labels else ""
            count = f"{self.noun}s are counted from 1 to {len(self.labels)}, {shown(last)}"
            raise RecipeError(f"{change}: there is no {self.noun} {position}; {count}")
        return position, position


def find(word: str, labels: Sequence[str], noun: str, change: Intervention) -> tuple[int, int]:
    """The first and the last number of the tokens of a word, counted from 1; RecipeError unless it is there once.

    A token that equals the word counts before a word of several tokens, and that before a part of another word.
    """
    plain = [label.replace("▁", " ") for label in labels]
    exact = [(number, number) for number, label in enumerate(plain, start=1) if label in (word, f" {word}")]
    places = exact or _occurrences(word, plain, whole=True) or _occurrences(word, plain, whole=False)
    if len(places) == 1:
        return places[0]
    if places:
        starts = ", ".join(str(first) for first, _ in places[:LISTED])
        raise RecipeError(f"{change}: {shown(word)} is there several times, at the {noun}s {starts}; give a number")
    hint = did_you_mean(word, [one.strip() for one in plain])
    there = f"; the {noun}s are {shown(list(labels[:LISTED]))[1:-1]}" if labels else ""
    raise RecipeError(f"{change}: there is no {noun} {shown(word)}{hint or there}")


def _occurrences(word: str, labels: Sequence[str], *, whole: bool) -> list[tuple[int, int]]:
    """The places at which tokens that follow each other are together the word; if `whole`, no letter is beside it."""
    found = []
    for space in ("", " "):  # between characters or sub-words, and between words
        text = space.join(labels)
        starts, place = [], 0
        for label in labels:
            starts.append(place)
            place += len(label) + len(space)
        for first, start in enumerate(starts):
            start += len(labels[first]) - len(labels[first].lstrip()) if labels[first].strip() else 0
            end = start + len(word)
            ends = [last for last, at in enumerate(starts) if at + len(labels[last]) == end and last >= first]
            bounded = not (text[:start][-1:].isalnum() or text[end : end + 1].isalnum())
            if text[start:end] == word and ends and (bounded or not whole):
                found.append((first + 1, ends[0] + 1))
        if found:
            break
    return list(dict.fromkeys(found))


def resolve(
    task: AnyTask, text: str, first_site: str | None, written: tuple[str, ...], changes: Sequence[Intervention]
) -> list[Intervention]:
    """The interventions with positions in place of words; RecipeError if one is not there.

    `first_site` is that of interventions without a site, and `written` are the tokens of the output.
    """
    source = Axis(task.positions(text), "position") if any(isinstance(one, Erase | Swap) for one in changes) else None
    resolved: list[Intervention] = []
    for change in changes:
        if isinstance(change, Erase):
            assert source is not None
            resolved.append(_erase(task, text, source, change))
        elif isinstance(change, Swap):
            assert source is not None
            resolved.append(Swap(source.number(change.first, change), source.number(change.second, change)))
        elif isinstance(change, Force) and (change.site or first_site):
            axes = task.axes(text, written, change.site or first_site or "")
            row = Axis(axes.rows, "row", axes.start).number(change.row, change)
            column = Axis(axes.columns, "column", axes.first).number(change.column, change)
            resolved.append(replace(change, row=row, column=column))
        else:
            resolved.append(change)
    return resolved


def _erase(task: AnyTask, text: str, source: Axis, change: Erase) -> Erase:
    """An erasure with positions in place of a word; RecipeError if the task cannot do without them."""
    first, last = source.span(change.first, change)
    if change.last is not None:
        last = source.span(change.last, change)[1]
    if last > task.erasable(text):
        raise RecipeError(f"{change}: the first new token is predicted from this one; erase tokens before it")
    return Erase(first, None if first == last else last)
