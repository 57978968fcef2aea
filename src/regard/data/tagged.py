"""Reads tagged sentences: the source of an example is the words, the target one tag per word."""

from array import array
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from regard.data.files import LIMITS, Loaded, load, pairs
from regard.data.paths import expanded
from regard.data.store import LONG, Lines, Mapped, joined
from regard.errors import DataError
from regard.recipe import Limits
from regard.types import Example

FIELDS = 10  # per line of CoNLL-U
FORM, UPOS = 1, 3  # indices of the fields that are read


class Word(NamedTuple):
    """A word of a file, its tag and its line number."""

    form: str
    tag: str
    line: int


Format = Callable[..., Loaded]  # takes names of files, and `limits`
Parse = Callable[[str, str, int], Word | None]  # takes line, file name and line number; None if the line is no word


def conllu(names: tuple[str, ...], limits: Limits = LIMITS) -> Loaded:
    """Reads CoNLL-U, with UPOS as the tag; ranges (3-4), empty nodes (3.1) and comments are skipped."""
    return _sentences(names, limits, _conllu)


def columns(names: tuple[str, ...], limits: Limits = LIMITS) -> Loaded:
    """Reads one word per line: word first, tag last, separated by tabs or spaces; a blank line ends a sentence."""
    return _sentences(names, limits, _columns)


def _conllu(line: str, name: str, number: int) -> Word | None:
    if line.startswith("#"):
        return None
    fields = line.split("\t")
    if len(fields) != FIELDS:
        raise DataError(f"{name}:{number}: {len(fields)} fields, expected the {FIELDS} of CoNLL-U, tabs between them")
    if not fields[0].isdigit():  # a range, whose words follow on their own lines, or a node that is not in the text
        return None
    return Word(fields[FORM], fields[UPOS], number)


def _columns(line: str, name: str, number: int) -> Word | None:
    fields = line.split("\t") if "\t" in line else line.split()
    if len(fields) < 2:
        raise DataError(f"{name}:{number}: one field, expected a word and its tag, a tab or a space between them")
    return Word(fields[0], fields[-1], number)


def _sentences(names: tuple[str, ...], limits: Limits, parse: Parse) -> Loaded:
    """The sentences of all files, file after file."""
    examples = joined([_of_file(name, limits, parse) for name in expanded(names)])
    if not examples:
        raise DataError(f"{' and '.join(names)}: no sentence is in it")
    return Loaded(examples, 0)


def _of_file(name: str, limits: Limits, parse: Parse) -> Mapped[Example]:
    """The sentences of a file; each is stored as the index of its first line, and parsed when it is read."""
    lines = load(name, limits)
    first_lines = array(LONG)
    for words in _blocks(lines, 0, name, parse):
        _sentence(words, name)  # raises if a word is blank
        first_lines.append(words[0].line - 1)
    return Mapped(np.asarray(first_lines), lambda first: _sentence(next(_blocks(lines, first, name, parse)), name))


def _sentence(words: Sequence[Word], name: str) -> Example:
    """The example of a sentence, from its words."""
    source = " ".join(_without_space(word.form, name, word.line) for word in words)
    target = " ".join(_without_space(word.tag, name, word.line) for word in words)
    return Example(source, target, origin=f"{name}:{words[0].line}")


def _blocks(lines: Lines, first: int, name: str, parse: Parse) -> Iterator[list[Word]]:
    """The words of each sentence from a line on; sentences are separated by blank lines."""
    words: list[Word] = []
    for index in range(first, len(lines)):
        line = lines.item(index)
        if line.strip():
            word = parse(line, name, index + 1)
            words += [] if word is None else [word]
        elif words:
            yield words
            words = []
    if words:
        yield words


def _without_space(field: str, name: str, line: int) -> str:
    """Replaces white space within a field, because it separates words: `10 000` becomes `10_000`."""
    replaced = "_".join(field.split())
    if not replaced:
        raise DataError(f"{name}:{line}: a word or its tag is blank; write a placeholder, for example _")
    return replaced


def check(loaded: Loaded) -> Loaded:
    """Returns its argument; raises DataError if a sentence has more or fewer tags than words."""
    for example in loaded.examples:
        words, tags = len(example.source.split()), len(example.target.split())
        if words != tags:
            raise DataError(f"{example.origin}: {words} words but {tags} tags; give one per word, separated by spaces")
    return loaded


FORMATS: dict[str, Format] = {
    "pairs": pairs,
    "conllu": conllu,
    "columns": columns,
}
