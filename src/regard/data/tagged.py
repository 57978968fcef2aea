"""Tagged sentences on disk to examples: words on the source side, as many tags on the target side."""

from collections.abc import Callable, Iterator
from typing import NamedTuple

from regard.data.files import Loaded, load, pairs
from regard.errors import DataError
from regard.types import Example

FIELDS = 10  # of a line of CoNLL-U
FORM, UPOS = 1, 3


class Word(NamedTuple):
    """A word of a file, its tag, and the line where it stands."""

    form: str
    tag: str
    line: int


Format = Callable[[tuple[str, ...]], Loaded]
Parse = Callable[[str, str, int], Word | None]  # of a line, the file's name and the line's number; None: not a word


def conllu(names: tuple[str, ...]) -> Loaded:
    """CoNLL-U, the universal part of speech (UPOS) as tag; ranges (3-4), empty nodes (3.1) and comments are skipped."""
    return _sentences(names, _conllu)


def columns(names: tuple[str, ...]) -> Loaded:
    """A word a line, first its form, last its tag, tabs or else spaces between; a blank line ends a sentence."""
    return _sentences(names, _columns)


def _conllu(line: str, name: str, number: int) -> Word | None:
    if line.startswith("#"):
        return None
    fields = line.split("\t")
    if len(fields) != FIELDS:
        raise DataError(f"{name}:{number}: {len(fields)} fields, expected the {FIELDS} of CoNLL-U, tabs between them")
    if not fields[0].isdigit():  # a range, whose words follow, or a node that is not in the text
        return None
    return Word(fields[FORM], fields[UPOS], number)


def _columns(line: str, name: str, number: int) -> Word | None:
    fields = line.split("\t") if "\t" in line else line.split()
    if len(fields) < 2:
        raise DataError(f"{name}:{number}: one field, expected a word and its tag, a tab or a space between them")
    return Word(fields[0], fields[-1], number)


def _sentences(names: tuple[str, ...], parse: Parse) -> Loaded:
    """All sentences of all files, one file after the other."""
    examples = []
    for name in names:
        for words in _blocks(name, parse):
            source = " ".join(_joined(word.form, name, word.line) for word in words)
            target = " ".join(_joined(word.tag, name, word.line) for word in words)
            examples.append(Example(source, target, origin=f"{name}:{words[0].line}"))
    if not examples:
        raise DataError(f"{' and '.join(names)}: no sentence is in it")
    return Loaded(examples, 0)


def _blocks(name: str, parse: Parse) -> Iterator[list[Word]]:
    words: list[Word] = []
    for number, line in enumerate(load(name), start=1):
        if line.strip():
            word = parse(line, name, number)
            words += [] if word is None else [word]
        elif words:
            yield words
            words = []
    if words:
        yield words


def _joined(field: str, name: str, line: int) -> str:
    """A field without white space, since that ends a word: `10 000` becomes `10_000`."""
    joined = "_".join(field.split())
    if not joined:
        raise DataError(f"{name}:{line}: a word or its tag is blank; name it, for example with _")
    return joined


def check(loaded: Loaded) -> Loaded:
    """The same, or DataError where a sentence has not as many tags as words."""
    for example in loaded.examples:
        words, tags = len(example.source.split()), len(example.target.split())
        if words != tags:
            raise DataError(f"{example.origin}: {words} words but {tags} tags; give each word one, spaces between them")
    return loaded


FORMATS: dict[str, Format] = {
    "pairs": pairs,
    "conllu": conllu,
    "columns": columns,
}
