"""Dates written in many languages, to be converted to ISO format."""

import random
from collections.abc import Callable, Iterable
from datetime import date, timedelta

from regard.data.corpora.core import Splits
from regard.errors import MissingExtraError
from regard.types import Example

FIRST_DAY, LAST_DAY = date(1900, 1, 1), date(2099, 12, 31)
TEST_DAYS, DEV_DAYS = 1000, 500

# CLDR patterns by language. Each has a year of four digits, and either names the month or puts the year first, so that
# a date can be read without knowing the language or the century.
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

Render = Callable[[date, str, str], str]


def dates(seed: int, size: int) -> Splits:
    """A date in one of fifteen languages and five scripts to its ISO format: `1. Mai 1986` to `1986-05-01`.

    Days from 1900 to 2099 are split: no day of dev or test is in train in any language or format. Test has 1,000 days,
    each in every language; dev has 500 other days, each in one language. Both are the same for every seed and size. The
    names of days and months come from the installed Babel (CLDR).
    """
    render = _babel()
    every_day = [FIRST_DAY + timedelta(number) for number in range((LAST_DAY - FIRST_DAY).days + 1)]
    # Python hashes a string seed with SHA-512, not with `hash`, so it is the same in every process.
    held_out = random.Random("dates:held out").sample(every_day, TEST_DAYS + DEV_DAYS)
    free_days = sorted(set(every_day).difference(held_out))
    for_train, for_dev, for_test = (random.Random(f"dates:{part}") for part in (f"train:{seed}", "dev", "test"))
    languages = list(DATE_FORMATS)
    # A generator: days are drawn one by one as they are rendered, so that a smaller train is the start of a larger one.
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
        from babel.dates import format_date  # imported here, because the package is optional
    except ImportError as missing:
        raise MissingExtraError("Babel", "corpora", "the corpus 'dates'") from missing
    return format_date


def _dates(split: str, pairs: Iterable[tuple[date, str]], generator: random.Random, render: Render) -> list[Example]:
    """The examples of a split: each day in its language, in a random format of that language."""
    return [
        Example(
            source=render(day, generator.choice(DATE_FORMATS[language]), language),
            target=day.isoformat(),
            group=language,
            origin=f"dates:{split}:{number}",
        )
        for number, (day, language) in enumerate(pairs, start=1)
    ]
