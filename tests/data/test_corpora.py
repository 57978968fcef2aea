"""Embedded corpora are reproducible, have the documented sizes and disjoint splits, and every date is unambiguous."""

import hashlib
import os
import re
import subprocess
import sys
import unicodedata
from collections import Counter, defaultdict
from datetime import date, timedelta

import pytest
from babel.dates import format_date

from regard.data.corpora import CORPORA, copy, dates, reverse
from regard.data.corpora.core import Corpus, Splits
from regard.data.corpora.dates import DATE_FORMATS
from regard.errors import MissingExtraError, install_command

FINGERPRINT = """
import hashlib
from regard.data.corpora import CORPORA
corpora = [corpus(seed=3, size=70) for corpus in CORPORA.values()]
print(hashlib.sha256(repr(corpora).encode()).hexdigest())
"""


@pytest.fixture(scope="module")
def some_dates() -> Splits:
    return dates(seed=1, size=3000)


@pytest.fixture(scope="module", params=[reverse, copy])
def some_letters(request: pytest.FixtureRequest) -> Splits:
    return request.param(seed=1, size=3000)


def leap_year() -> list[date]:
    return [date(2024, 1, 1) + timedelta(number) for number in range(366)]


def everything(splits: Splits) -> list:
    return splits.train + splits.dev + splits.test


@pytest.mark.parametrize("name", CORPORA)
def test_the_same_arguments_give_the_same_corpus(name: str) -> None:
    assert CORPORA[name](seed=3, size=70) == CORPORA[name](seed=3, size=70)


@pytest.mark.parametrize(("hash_seed", "locale"), [("1", "C.UTF-8"), ("2", "ru_RU.UTF-8")])
def test_neither_hash_seed_nor_locale_change_a_corpus(hash_seed: str, locale: str) -> None:
    corpora = [corpus(seed=3, size=70) for corpus in CORPORA.values()]
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed, "LC_ALL": locale}
    command = [sys.executable, "-c", FINGERPRINT]
    result = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    assert result.stdout.strip() == hashlib.sha256(repr(corpora).encode()).hexdigest()


@pytest.mark.parametrize("name", CORPORA)
def test_seed_and_size_change_train_only(name: str) -> None:
    small, large, reseeded = (CORPORA[name](seed, size) for seed, size in ((1, 50), (1, 80), (2, 50)))
    assert small.train == large.train[:50]
    assert small.train != reseeded.train
    assert small.dev == large.dev == reseeded.dev
    assert small.test == large.test == reseeded.test


@pytest.mark.parametrize("name", CORPORA)
@pytest.mark.parametrize("size", [0, 37])
def test_size_counts_training_examples(name: str, size: int) -> None:
    assert len(CORPORA[name](seed=5, size=size).train) == size


@pytest.mark.parametrize("name", CORPORA)
def test_links_are_distinct_and_within_the_texts(name: str) -> None:
    for example in everything(CORPORA[name](seed=5, size=40)):
        assert len(set(example.links)) == len(example.links)
        for source, target in example.links:
            assert 0 <= source < len(example.source)
            assert 0 <= target < len(example.target)


@pytest.mark.parametrize("name", CORPORA)
def test_origins_are_distinct_and_name_corpus_and_split(name: str) -> None:
    splits = CORPORA[name](seed=5, size=40)
    assert splits.train[16].origin == f"{name}:train:17"
    assert splits.dev[0].origin == f"{name}:dev:1"
    origins = [example.origin for example in everything(splits)]
    assert len(set(origins)) == len(origins)


def test_dates_have_the_documented_counts(some_dates: Splits) -> None:
    assert len(some_dates.dev) == 500
    languages_of_day = defaultdict(set)
    for example in some_dates.test:
        languages_of_day[example.target].add(example.group)
    assert len(languages_of_day) == 1000
    assert all(languages == set(DATE_FORMATS) for languages in languages_of_day.values())
    assert len(some_dates.test) == 1000 * len(DATE_FORMATS)


def test_dates_share_no_day_between_splits() -> None:
    splits = dates(seed=1, size=60_000)  # almost as many draws as days, so that a leak would show
    train, dev, test = ({example.target for example in part} for part in (splits.train, splits.dev, splits.test))
    assert len(dev) == 500
    assert not train & dev
    assert not train & test
    assert not dev & test


def test_dates_come_in_many_languages_scripts_and_formats(some_dates: Splits) -> None:
    scripts = {
        unicodedata.name(character).split()[0]
        for example in some_dates.test
        for character in example.source
        if unicodedata.category(character) in ("Lu", "Ll", "Lo")  # not the apostrophe of Ukrainian
    }
    assert scripts == {"LATIN", "CYRILLIC", "GREEK", "CJK", "HANGUL"}
    assert len(DATE_FORMATS) == 15
    assert len({pattern for patterns in DATE_FORMATS.values() for pattern in patterns}) >= 20
    for part in (some_dates.train, some_dates.dev, some_dates.test):
        assert {example.group for example in part} == set(DATE_FORMATS)


def test_dates_use_every_format_of_every_language(some_dates: Splits) -> None:
    sources = {(example.group, example.target, example.source) for example in some_dates.test}
    days = {date.fromisoformat(example.target) for example in some_dates.test}
    for language, patterns in DATE_FORMATS.items():
        for pattern in patterns:
            assert any((language, day.isoformat(), format_date(day, pattern, language)) in sources for day in days)


def test_dates_have_a_language_without_spaces(some_dates: Splits) -> None:
    spaced = {example.group for example in everything(some_dates) if " " in example.source}
    assert set(DATE_FORMATS) - spaced == {"ja"}


def test_no_date_text_means_two_days() -> None:
    """Holds across all languages and formats, also if a tokenizer normalises case and width."""
    readings = defaultdict(set)
    for day in leap_year():
        for language, patterns in DATE_FORMATS.items():
            for pattern in patterns:
                text = format_date(day, pattern, language)
                readings[unicodedata.normalize("NFKC", text).casefold()].add(day)
    assert [text for text, days in readings.items() if len(days) > 1] == []


def test_every_date_has_a_four_digit_year_and_no_numeric_date_starts_with_the_day(some_dates: Splits) -> None:
    for example in everything(some_dates):
        assert re.findall(r"\d{3,}", example.source) == [example.target[:4]]
        assert not re.search(r"\d{1,2}[./-]\s?\d{1,2}[./-]\s?\d{4}", example.source)


def test_dates_have_only_single_spaces_and_composed_letters(some_dates: Splits) -> None:
    for example in everything(some_dates):
        assert example.source == unicodedata.normalize("NFKC", " ".join(example.source.split()))


def test_date_targets_are_iso_days_of_two_centuries() -> None:
    years = Counter()
    for example in dates(seed=1, size=20_000).train:
        day = date.fromisoformat(example.target)
        assert day.isoformat() == example.target
        years[day.year] += 1
        texts = {format_date(day, pattern, example.group) for pattern in DATE_FORMATS[example.group]}
        assert example.source in texts
    assert set(years) == set(range(1900, 2100))


@pytest.mark.parametrize(
    ("day", "pattern", "language", "text"),
    [
        (date(1986, 5, 1), "EEEE, 'der' d. MMMM y", "de", "Donnerstag, der 1. Mai 1986"),
        (date(2000, 2, 29), "EEEE, d 'de' MMMM 'de' y", "es", "martes, 29 de febrero de 2000"),
        (date(1945, 5, 9), "d MMMM y г.", "ru", "9 мая 1945 г."),
        (date(2024, 12, 31), "y年M月d日(EEE)", "ja", "2024年12月31日(火)"),
    ],
)
def test_formats_render_the_expected_text(day: date, pattern: str, language: str, text: str) -> None:
    assert pattern in DATE_FORMATS[language]
    assert format_date(day, pattern, language) == text


def test_dates_without_babel_say_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "babel", None)
    monkeypatch.setitem(sys.modules, "babel.dates", None)
    message = "the corpus 'dates' needs the package Babel; install it with: " + install_command("corpora")
    with pytest.raises(MissingExtraError, match=f"^{re.escape(message)}$"):
        dates(seed=1, size=1)
    assert len(reverse(seed=1, size=1).train) == 1


def test_targets_are_the_reversed_or_the_copied_source() -> None:
    for example in everything(reverse(seed=1, size=300)):
        assert list(example.target) == list(reversed(example.source))
    for example in everything(copy(seed=1, size=300)):
        assert example.target == example.source


def test_strings_have_only_lower_case_letters(some_letters: Splits) -> None:
    assert all(re.fullmatch("[a-z]{1,30}", example.source) for example in everything(some_letters))


def test_every_length_is_equally_frequent_and_in_its_group(some_letters: Splits) -> None:
    for part, times in ((some_letters.train, 100), (some_letters.dev, 10), (some_letters.test, 40)):
        lengths = Counter(len(example.source) for example in part)
        assert lengths == dict.fromkeys(range(1, 31), times)
        groups = Counter(example.group for example in part)
        assert groups == dict.fromkeys(["1-5", "6-10", "11-15", "16-20", "21-25", "26-30"], 5 * times)
        for example in part:
            shortest, longest = map(int, example.group.split("-"))
            assert shortest <= len(example.source) <= longest


def test_every_letter_is_linked_with_itself_once(some_letters: Splits) -> None:
    for example in everything(some_letters):
        sources, targets = zip(*example.links, strict=True)
        assert sorted(sources) == sorted(targets) == list(range(len(example.source)))
        assert all(example.source[source] == example.target[target] for source, target in example.links)


def test_links_form_a_diagonal_or_an_antidiagonal() -> None:
    longest = [corpus(seed=1, size=30).train[-1].links for corpus in (copy, reverse)]
    assert set(longest[0]) == {(index, index) for index in range(30)}
    assert set(longest[1]) == {(29 - index, index) for index in range(30)}


@pytest.mark.parametrize("corpus", [reverse, copy])
def test_no_string_is_shared_between_splits(corpus: Corpus) -> None:
    splits = corpus(seed=1, size=60_000)  # includes two thousand strings of one letter
    train, dev, test = ({example.source for example in part} for part in (splits.train, splits.dev, splits.test))
    assert not train & dev
    assert not train & test
    assert not dev & test
