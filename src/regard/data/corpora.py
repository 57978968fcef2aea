"""Embedded corpora: made, not downloaded, and the same everywhere for the same seed and size."""

import random
import string
import zlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import date, timedelta
from typing import Protocol

from regard.errors import MissingExtraError
from regard.types import Example

FIRST_DAY, LAST_DAY = date(1900, 1, 1), date(2099, 12, 31)
TEST_DAYS, DEV_DAYS = 1000, 500

# CLDR patterns by language: every one spells four digits of the year and either names the month or puts
# the year first, so that no reading needs the language or the century.
DATE_FORMATS: dict[str, tuple[str, ...]] = {
    "en": (
        "EEEE, MMMM d, y",
        "MMMM d, y",
        "EEE, MMM d, y",
        "MMM d, y",
        "EEEE, d MMMM y",
        "d MMMM y",
        "y-MM-dd",
    ),
    "de": ("EEEE, d. MMMM y", "EEEE, 'der' d. MMMM y", "d. MMMM y", "EEE, d. MMM y", "d. MMM y"),
    "fr": ("EEEE d MMMM y", "'le' d MMMM y", "d MMMM y", "EEE d MMM y", "d MMM y"),
    "es": (
        "EEEE, d 'de' MMMM 'de' y",
        "d 'de' MMMM 'de' y",
        "'el' d 'de' MMMM 'de' y",
        "EEE, d MMM y",
        "d MMM y",
    ),
    "it": ("EEEE d MMMM y", "d MMMM y", "EEE d MMM y", "d MMM y"),
    "pt": ("EEEE, d 'de' MMMM 'de' y", "d 'de' MMMM 'de' y", "EEE, d 'de' MMM 'de' y", "d 'de' MMM 'de' y"),
    "nl": ("EEEE d MMMM y", "d MMMM y", "EEE d MMM y", "d MMM y"),
    "pl": ("EEEE, d MMMM y", "d MMMM y", "d MMMM y 'r.'", "EEE, d MMM y", "d MMM y"),
    "sv": ("EEEE d MMMM y", "'den' d MMMM y", "d MMMM y", "EEE d MMM y", "d MMM y", "y-MM-dd"),
    "fi": ("cccc d. MMMM y", "EEEE d. MMMM y", "ccc d. MMMM y", "d. MMMM y"),
    "ru": ("EEEE, d MMMM y г.", "d MMMM y г.", "d MMMM y", "EEE, d MMM y г.", "d MMM y"),
    "uk": ("EEEE, d MMMM y р.", "d MMMM y р.", "d MMMM y року", "EEE, d MMM y р.", "d MMM y р."),
    "el": ("EEEE d MMMM y", "EEEE, d MMMM y", "d MMMM y", "EEE d MMM y", "d MMM y"),
    "ja": ("y年M月d日", "y年M月d日EEEE", "y年M月d日(EEE)", "y/MM/dd"),
    "ko": ("y년 M월 d일", "y년 M월 d일 EEEE", "y년 M월 d일 (EEE)", "y. M. d.", "y. M. d. (EEE)", "y-MM-dd"),
}

LONGEST, RANGE = 30, 5  # of `reverse`: the longest string, and how many lengths make a group
REVERSE_TEST, REVERSE_DEV = 1200, 300  # multiples of LONGEST: every length equally often
SHARES = ("test", "test", "dev", *["train"] * 7)  # who owns how many tenths of all strings

Render = Callable[[date, str, str], str]


@dataclass(frozen=True)
class Splits:
    """The three parts of a corpus: to learn from, to choose by, to be judged on."""

    train: list[Example]
    dev: list[Example]
    test: list[Example]


class Corpus(Protocol):
    """A generator of a corpus with `size` training examples: a pure function of its arguments."""

    def __call__(self, seed: int, size: int) -> Splits:
        """The corpus; `seed` and `size` change its train only, and a smaller train begins a larger."""


def dates(seed: int, size: int) -> Splits:
    """A date in words, in fifteen languages and five scripts, to its ISO form: `1. Mai 1986` to `1986-05-01`.

    The split is by day, 1900 to 2099: no day of dev or test is in train in any language or format. Test is
    1,000 days, each in every language; dev is 500 other days, each in one language. Both are the same for
    every seed and size. The names of days and months are those of the installed Babel (CLDR).
    """
    render = _babel()
    every_day = [FIRST_DAY + timedelta(number) for number in range((LAST_DAY - FIRST_DAY).days + 1)]
    # A text seed is hashed by SHA-512, not by `hash`: the same in every process.
    held_out = random.Random("dates:held out").sample(every_day, TEST_DAYS + DEV_DAYS)
    free_days = sorted(set(every_day).difference(held_out))
    for_train, for_dev, for_test = (random.Random(f"dates:{part}") for part in (f"train:{seed}", "dev", "test"))
    languages = list(DATE_FORMATS)
    # Drawn one by one as they are rendered, so that a smaller train is the beginning of a larger one.
    train = ((for_train.choice(free_days), for_train.choice(languages)) for _ in range(size))
    dev = [(day, for_dev.choice(languages)) for day in held_out[TEST_DAYS:]]
    test = [(day, language) for day in held_out[:TEST_DAYS] for language in languages]
    return Splits(
        train=_dates("train", train, for_train, render),
        dev=_dates("dev", dev, for_dev, render),
        test=_dates("test", test, for_test, render),
    )


def _babel() -> Render:
    try:
        from babel.dates import format_date  # lazily: an optional package
    except ImportError as missing:
        raise MissingExtraError("Babel", "corpora", "the corpus 'dates'") from missing
    return format_date


def _dates(split: str, pairs: Iterable[tuple[date, str]], generator: random.Random, render: Render) -> list[Example]:
    """The examples of a split: each day in its language, in a format drawn from that language's."""
    return [
        Example(
            source=render(day, generator.choice(DATE_FORMATS[language]), language),
            target=day.isoformat(),
            group=language,
            origin=f"dates:{split}:{number}",
        )
        for number, (day, language) in enumerate(pairs, start=1)
    ]


def reverse(seed: int, size: int) -> Splits:
    """A string of letters to the same string backwards: `regard` to `drager`.

    It teaches the bottleneck of a fixed summary: nothing can be guessed from what came before, so a model
    without attention must carry the whole string in one vector and fails as strings grow, while attention
    draws an antidiagonal. Every length from 1 to 30 is equally frequent, and `group` is a range of lengths.
    No string of one split is in another, so the shortest, which are few, repeat within their own. Dev and
    test are the same for every seed and size.
    """
    return Splits(
        train=_reversals("train", size, random.Random(f"reverse:train:{seed}")),
        dev=_reversals("dev", REVERSE_DEV, random.Random("reverse:dev")),
        test=_reversals("test", REVERSE_TEST, random.Random("reverse:test")),
    )


def _reversals(split: str, count: int, generator: random.Random) -> list[Example]:
    examples = []
    for number in range(count):
        length = number % LONGEST + 1
        text = _letters(split, length, generator)
        shortest = (length - 1) // RANGE * RANGE + 1
        group = f"{shortest}-{shortest + RANGE - 1}"
        examples.append(Example(text, text[::-1], group, origin=f"reverse:{split}:{number + 1}"))
    return examples


def _letters(split: str, length: int, generator: random.Random) -> str:
    """A string that belongs to the split, drawn until one does."""
    while True:
        text = "".join(generator.choices(string.ascii_lowercase, k=length))
        if _split_of(text) == split:
            return text


def _split_of(text: str) -> str:
    """The split that owns a string: short strings are few, so chance alone would share them."""
    return SHARES[zlib.crc32(text.encode()) % len(SHARES)]


CORPORA: dict[str, Corpus] = {"dates": dates, "reverse": reverse}
