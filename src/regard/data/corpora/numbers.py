"""Translation of English number words to German, with known alignments."""

import random
from collections.abc import Callable, Iterable
from functools import cache, partial
from typing import NamedTuple

from regard.data.corpora.core import Splits
from regard.errors import MissingExtraError
from regard.types import Example

DIGITS = range(1, 7)  # numbers of digits
TEST_NUMBERS = {1: 2, 2: 18, 3: 180, 4: 200, 5: 250, 6: 350}  # by number of digits; 1,000 in all
DEV_NUMBERS = {1: 1, 2: 9, 3: 90, 4: 100, 5: 125, 6: 175}  # 500 in all
LONGEST = 100  # no German number of six digits has more characters
ATOMS = (*range(20), *range(20, 100, 10))  # the numbers that both languages write as one piece

Render = Callable[..., str]


class Piece(NamedTuple):
    """A piece of a German number word, and the index of the English word with the same value."""

    text: str
    word: int | None  # None for `und`


class Lexicon(NamedTuple):
    """The pieces of number words in each language, by value."""

    english: dict[int, str]
    german: dict[int, str]


def numbers(seed: int, size: int) -> Splits:
    """A number in English words to German: `three hundred twenty one` to `dreihunderteinundzwanzig`.

    The word order differs (German has units before tens), and an English word becomes a piece of one long word. `links`
    connect each character of an English word with each character of the German piece of the same value; spaces and
    `und` have no links. Numbers have one to six digits; longer ones are more frequent, and `group` is the number of
    digits. No number of dev or test is in train; dev and test are the same for every seed and size. The package
    num2words gives the spelling; English is without `and`, commas and hyphens.
    """
    lexicon = _lexicon()
    held_out = {digits: _held_out(digits) for digits in DIGITS}
    test = [number for digits in DIGITS for number in held_out[digits][: TEST_NUMBERS[digits]]]
    dev = [number for digits in DIGITS for number in held_out[digits][TEST_NUMBERS[digits] :]]
    drawn = _draw(size, random.Random(f"numbers:train:{seed}"), {*test, *dev})
    return Splits(
        train=_examples("train", drawn, lexicon),
        dev=_examples("dev", dev, lexicon),
        test=_examples("test", test, lexicon),
    )


def _lexicon() -> Lexicon:
    try:
        from num2words import num2words  # imported here, because the package is optional
    except ImportError as missing:
        raise MissingExtraError("num2words", "corpora", "the corpus 'numbers'") from missing
    english, german = (_pieces(partial(num2words, lang=language)) for language in ("en", "de"))
    return Lexicon(english, german)


def _pieces(render: Render) -> dict[int, str]:
    """A language's piece for each value of ATOMS, for 100 and for 1,000."""
    pieces = {atom: render(atom) for atom in ATOMS}
    two = pieces[2]  # 100 is taken from 200, because German shortens `eins` in `einhundert`
    return pieces | {large: render(2 * large).removeprefix(two).strip() for large in (100, 1000)}


def _held_out(digits: int) -> list[int]:
    """Numbers with that many digits for test, followed by those for dev."""
    count = TEST_NUMBERS[digits] + DEV_NUMBERS[digits]
    # Python hashes a string seed with SHA-512, not with `hash`, so it is the same in every process. Zero is never held
    # out: no other number has its word, so it must be possible in train.
    return random.Random(f"numbers:held out:{digits}").sample(range(10 ** (digits - 1), 10**digits), count)


def _draw(count: int, generator: random.Random, held_out: set[int]) -> Iterable[int]:
    """Random numbers for train, drawn one by one, so that a smaller train is the start of a larger one."""
    for _ in range(count):
        (digits,) = generator.choices(DIGITS, weights=DIGITS)
        least = 10 ** (digits - 1) if digits > 1 else 0
        number = generator.randrange(least, 10**digits)
        while number in held_out:
            number = generator.randrange(least, 10**digits)
        yield number


def _examples(split: str, drawn: Iterable[int], lexicon: Lexicon) -> list[Example]:
    examples = []
    for index, number in enumerate(drawn, start=1):
        words, pieces = spell(number, lexicon)
        examples.append(
            Example(
                source=" ".join(words),
                target="".join(piece.text for piece in pieces),
                group=str(len(str(number))),
                origin=f"numbers:{split}:{index}",
                links=_links(words, pieces),
            )
        )
    return examples


def spell(number: int, lexicon: Lexicon) -> tuple[list[str], list[Piece]]:
    """The English words of a number, and the pieces of its German word."""
    values = _values(number)
    return [lexicon.english[value] for value in values], _german(values, lexicon.german)


def _values(number: int) -> list[int]:
    """The values that make up a number, in English word order: 321 is 3, 100, 20, 1."""
    for large in (1000, 100):
        if number >= large:
            return [*_values(number // large), large, *(_values(number % large) if number % large else [])]
    tens, units = number - number % 10, number % 10
    return [tens, units] if tens >= 20 and units else [number]


def _german(values: list[int], german: dict[int, str]) -> list[Piece]:
    """The German pieces of values in English word order: 3, 100, 20, 1 gives those of 3, 100, 1, `und`, 20."""
    one = german[1].removesuffix("s")  # 1 is `eins` at the end of a number, `ein` before another piece
    pieces: list[Piece] = []
    index = 0
    while index < len(values):
        value, after = values[index], values[index + 1] if index + 1 < len(values) else 0
        if 20 <= value < 100 and 0 < after < 10:  # units before tens
            units = one if after == 1 else german[after]
            pieces += [Piece(units, index + 1), Piece("und", None), Piece(german[value], index)]
            index += 2
            continue
        is_factor = after == 100 or (after == 1000 and index == 0)
        pieces.append(Piece(one if value == 1 and is_factor else german[value], index))
        index += 1
    return pieces


def _links(words: list[str], pieces: list[Piece]) -> tuple[tuple[int, int], ...]:
    """Links of every character of an English word with every character of its German piece."""
    starts, start = [], 0
    for word in words:
        starts.append(start)
        start += len(word) + 1  # a space follows
    links: list[tuple[int, int]] = []
    start = 0
    for piece in pieces:
        stop = start + len(piece.text)
        if piece.word is not None:
            first = starts[piece.word]
            for character in range(first, first + len(words[piece.word])):
                links += _links_from(character)[start:stop]
        start = stop
    return tuple(links)


@cache
def _links_from(character: int) -> tuple[tuple[int, int], ...]:
    """Links of a source character with every target position; cached, because millions of links share few values."""
    return tuple((character, position) for position in range(LONGEST))
