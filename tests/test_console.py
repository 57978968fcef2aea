"""Progress and messages: what is shown when, that counting changes nothing, and that no word is broken."""

import io
import os
import re
import sys
import time
import warnings
from collections.abc import Iterator
from itertools import pairwise

import pytest

from regard import console
from regard import recipe as recipes
from regard.console import (
    Pace,
    ProgressLog,
    Work,
    announcement,
    beside,
    counted,
    current_log,
    duration,
    fitting,
    tick,
    wrapped,
)

with warnings.catch_warnings():  # typer uses names that click 8.5 deprecates
    warnings.simplefilter("ignore", DeprecationWarning)
    from regard import cli


class Clock:
    """A clock that a test sets."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


class Screen(io.StringIO):
    """A terminal."""

    def isatty(self) -> bool:
        return True


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    result = Clock()
    monkeypatch.setattr(console.time, "perf_counter", result)
    return result


Capture = pytest.CaptureFixture[str]


# Counting


@pytest.mark.parametrize("count", [0, 1, 6, 7, 8, 20])
def test_counting_gives_the_same_items_one_by_one(capsys: Capture, count: int) -> None:
    read: list[int] = []

    def items() -> Iterator[int]:
        for number in range(count):
            read.append(number)
            yield number

    with ProgressLog():
        for number in counted(items(), "reading", count, size=7):
            assert read[-1] == number  # nothing is read ahead: an item may be large
    assert read == list(range(count))


def test_without_an_open_log_nothing_is_wrapped() -> None:
    items = [1, 2]
    assert counted(items, "reading") is items
    tick("waiting")


def test_counting_costs_little() -> None:
    """Of the preparation of a million pairs, about 20 microseconds a pair, at most 2 %: 0.4 microseconds a pair.

    There are ten passes over the pairs, so 40 nanoseconds for each of them.
    """
    items, costs = list(range(300_000)), []
    for _ in range(3):
        begun = time.process_time()
        for _ in items:
            pass
        plain = time.process_time() - begun
        begun = time.process_time()
        with ProgressLog(quiet=True):
            for _ in counted(items, "reading"):
                pass
        costs.append((time.process_time() - begun - plain) / len(items))
    assert min(costs) < 40e-9


# Lines without a terminal


def test_a_line_comes_every_ten_seconds_with_what_is_left(capsys: Capture, clock: Clock) -> None:
    with ProgressLog() as log:
        log.begin("reading pairs.tsv", 1000)
        for done in range(0, 1000, 10):
            log.show(done, "loss 2.5")
            clock.now += 0.5
    lines = capsys.readouterr().err.splitlines()
    assert lines[:2] == [
        "reading pairs.tsv: 200 of 1,000, 40 s left, loss 2.5",
        "reading pairs.tsv: 400 of 1,000, 30 s left, loss 2.5",
    ]
    assert len(lines) == 4


def test_ten_seconds_count_over_short_works_and_from_the_last_message(capsys: Capture, clock: Clock) -> None:
    with ProgressLog() as log:
        for number in range(8):
            log.begin(f"work {number}", 10)
            clock.now += 3
            log.show(1)
        log.say("a message")
        clock.now += 9
        log.show(2)
    assert [line.partition(":")[0] for line in capsys.readouterr().err.splitlines()] == [
        "work 3",
        "work 7",
        "a message",
    ]


def test_a_work_that_has_just_begun_has_no_line(capsys: Capture, clock: Clock) -> None:
    """Else an error that follows would not stand alone, if something before it took long, such as loading torch."""
    with ProgressLog() as log:
        clock.now += 60
        log.begin("reading pairs.tsv")
        clock.now += 1.9
        log.show(0)
        assert capsys.readouterr().err == ""
        clock.now += 0.2
        log.show(0)
    assert capsys.readouterr().err == "reading pairs.tsv: 2.1 s so far\n"


def test_a_long_work_has_about_a_hundred_lines(capsys: Capture, clock: Clock) -> None:
    with ProgressLog() as log:
        log.begin("learning", 40_000)
        for done in range(40_000):  # forty thousand seconds
            clock.now += 1
            log.show(done)
    assert 100 < len(capsys.readouterr().err.splitlines()) < 500


def test_a_work_of_unknown_length_says_how_long_it_takes_so_far(capsys: Capture, clock: Clock) -> None:
    with ProgressLog():
        for _ in range(25):
            clock.now += 1
            tick("learning sub-words")
    assert capsys.readouterr().err.splitlines() == [
        f"learning sub-words: {seconds} so far" for seconds in ("9.0 s", "19 s")
    ]


def test_a_quiet_log_shows_nothing(capsys: Capture, clock: Clock) -> None:
    with ProgressLog(quiet=True) as log:
        log.announce("from pairs.tsv")
        clock.now += 100
        log.tick("learning sub-words")
    assert capsys.readouterr().err == ""


def test_a_line_is_announced_once_and_an_open_log_is_used_again(capsys: Capture) -> None:
    with ProgressLog() as log:
        log.announce("from pairs.tsv")
        with current_log() as same:
            assert same is log
            same.announce("from pairs.tsv")
            same.announce("from other.tsv")
    assert capsys.readouterr().err == "from pairs.tsv\nfrom other.tsv\n"


# Smoothing


def test_what_is_left_is_smoothed(clock: Clock) -> None:
    """One slow second among fast ones changes what is left by a few percent, not twofold."""
    pace, done = Pace(), 0
    for _ in range(60):
        clock.now, done = clock.now + 1, done + 10
        pace.measure(done)
    assert pace.seconds == pytest.approx(0.1)
    clock.now, done = clock.now + 1, done + 1
    pace.measure(done)
    assert 0.1 < pace.seconds < 0.104
    for _ in range(120):
        clock.now, done = clock.now + 1, done + 5
        pace.measure(done)
    assert pace.seconds == pytest.approx(0.2, rel=0.02)  # and it follows a lasting change


def test_a_pause_does_not_count(clock: Clock) -> None:
    work = Work("learning", 100)
    clock.now += 2
    work.count(10)
    clock.now += 50
    work.pace.restart(10)
    clock.now += 2
    work.count(20)
    assert work.pace.seconds == pytest.approx(0.2)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        *((0.04, "0.0 s"), (9.2, "9.2 s"), (9.96, "10 s"), (99, "99 s"), (100, "2 min"), (5999, "100 min")),
        *((6000, "1.7 hours"), (144_000, "40 hours"), (172_800, "2.0 days")),
    ],
)
def test_a_duration_has_two_digits(seconds: float, text: str) -> None:
    assert duration(seconds) == text


# In a terminal


@pytest.mark.parametrize("width", [30, 60, 120])
def test_nothing_is_broken_within_a_word(monkeypatch: pytest.MonkeyPatch, clock: Clock, width: int) -> None:
    screen = Screen()
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", str(width))
    message = "vocabularies of 8,004 and 8,004 tokens, go on with: regard train --resume " + "long/" * 9 + " and 日本語"
    with ProgressLog() as log:
        log.say(message)
        log.begin("reading a_file_with_a_long_name.tsv", 1_000_000)
        clock.now += 2
        log.show(400_000, "loss 2.345", "123,456 tokens/s")
        log._bar.refresh()
    text = screen.getvalue()
    said = console_lines(text[: text.index("reading")])
    assert " ".join(said).split() == message.split()
    command = "regard train --resume long/"  # it is not broken, so that it can be copied
    assert all(len(line) <= width or " " not in line.strip() or line.strip().startswith(command) for line in said)
    drawn = [line for line in console_lines(text) if "reading" in line]
    assert drawn
    assert all(len(line) <= width for line in drawn)
    shown = [part for part in ("400,000 of 1,000,000", "3.0 s left", "loss 2.345", "123,456 tokens/s") if part in text]
    assert len(shown) == {30: 0, 60: 1, 120: 4}[width]


def console_lines(text: str) -> list[str]:
    """The lines that were drawn, without colours and cursor movements."""
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text).replace("\r", "\n").splitlines()


def test_as_many_parts_as_fit_are_shown() -> None:
    parts = ["3 of 10", "4 s left", "loss 1"]
    assert fitting(parts, 25) == "3 of 10, 4 s left, loss 1"
    assert fitting(parts, 24) == "3 of 10, 4 s left"
    assert fitting(parts, 6) == ""


def test_a_signature_is_broken_between_its_fields_only() -> None:
    signature = "bleu|n:2000|nrefs:1|case:mixed|eff:no|tok:13a"
    text = f"scored (\u00e0 la mode): {signature} in all"
    for width in range(20, 70):
        lines = wrapped(text, width).split("\n")
        assert max(map(len, lines)) <= width
        assert all(line.endswith("|") or not other.strip().startswith("|") for line, other in pairwise(lines))
        assert signature in "".join(line.strip() if line.endswith("|") else f"{line.strip()} " for line in lines)


def test_a_quotation_is_broken_if_it_is_too_wide_and_a_command_is_not() -> None:
    assert wrapped("as in `one two three four`.", 20) == "as in `one two three\n  four`."
    assert wrapped("as in `regard list scores`.", 20) == "as in\n  `regard list scores`."
    assert wrapped("x: `regard look latest 'a b c'`.", 20) == "x:\n  `regard look latest 'a b c'`."


def test_a_command_goes_on_after_a_backslash() -> None:
    assert wrapped("  do  python a.py one two", 16, " \\") == "  do  python \\\n    a.py one \\\n    two"
    assert max(map(len, wrapped("  do  python a.py one two", 16, " \\").split("\n"))) <= 16


def test_a_text_is_wrapped_beside_its_heading() -> None:
    assert beside("  name  ", "one two three", None) == ["  name  one two three"]
    assert beside("  name  ", "one two three", 16) == ["  name  one two", "        three"]
    assert beside("  name  ", "one https://long", 16) == ["  name", "    one", "    https://long"]
    assert beside("name  ", "", 16) == ["name"]
    assert beside("", "one two three four", 16) == ["one two three", "  four"]


def test_wrapped_lines_are_indented() -> None:
    assert wrapped("  right: one two three", 12) == "  right: one\n    two\n    three"
    assert wrapped("", 12) == ""
    assert os.linesep not in wrapped("x" * 50, 12)


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("write: regard look latest 'a b; c'; or not", ["write:", "  regard look latest 'a b; c';", "  or not"]),
        ("needs it: pip install 'regard[plot]'", ["needs it:", "  pip install 'regard[plot]'"]),
        ("one two three `regard list` names all", ["one two three", "  `regard list` names", "  all"]),
        ("regard: regard train is not done", ["regard: regard train", "  is not done"]),
        ("use: cut -f1", ["use: cut -f1"]),
        (
            "it: pip install 'a[b]', or: pip install -e '.[b]'",
            ["it:", "  pip install 'a[b]',", "  or:", "  pip install -e '.[b]'"],
        ),
        ("write: regard x --columns a,b", ["write:", "  regard x --columns a,b"]),
    ],
)
def test_a_command_is_not_broken_so_that_it_can_be_copied(text: str, lines: list[str]) -> None:
    assert wrapped(text, 21).split("\n") == lines


@pytest.mark.parametrize("width", [60, 80, 120])
def test_messages_and_lists_are_broken_between_words_in_a_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: Capture, width: int
) -> None:
    """Elsewhere each is one line."""
    message = "the run runs/dates-with-a-long-name is not finished; go on with: regard train --resume " + "long/" * 9
    cli.core.note(message)
    assert capsys.readouterr().err == f"regard: {message}\n"
    cli.list_tables("recipes")
    whole = capsys.readouterr().out.splitlines()[1:]
    screen, errors = Screen(), Screen()
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setattr(sys, "stdout", screen)
    monkeypatch.setattr(sys, "stderr", errors)
    cli.core.note(message)
    said = errors.getvalue().splitlines()
    assert " ".join(said).split() == ["regard:", *message.split()]
    assert all(len(line) <= width or line.startswith("  regard train --resume long/") for line in said)
    cli.list_tables("recipes")
    title, *lines = screen.getvalue().splitlines()
    assert title.startswith("recipes")
    assert " ".join(lines).split() == " ".join(whole).split()
    margin = max(len(name) for name in recipes.names()) + 3
    for line in lines:
        assert len(line) <= width
        assert line[margin - 1] == " " != line[margin], line
        assert line[2:margin].strip() in ("", *recipes.names())


def test_a_recipe_in_a_terminal_is_not_wider_and_can_be_trained(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Screen()
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.setattr(sys, "stdout", screen)
    cli.show("multi30k_tiny")
    assert all(len(line) <= 60 for line in screen.getvalue().splitlines())
    assert recipes.parse(screen.getvalue(), "the screen") == recipes.load("multi30k_tiny")


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("dates", "dates: translate, from the corpus dates"),
        ("shapes", "shapes: pictures to text, from the corpus shapes"),
        ("tones", "tones: recordings to text, from the corpus tones"),
        ("moods", "moods: classify, from the corpus moods"),
    ],
)
def test_the_first_line_of_a_training_says_what_it_reads(name: str, line: str) -> None:
    assert announcement(recipes.load(name)) == line


def test_equations_of_the_tables_are_not_broken() -> None:
    from regard.catalogue import tables

    for description in tables()["scores"].lines().values():
        lines = wrapped(description, 44).split("\n")
        assert all(line.count("(") == line.count(")") and line.count("[") == line.count("]") for line in lines), lines
        assert " ".join(" ".join(lines).split()) == " ".join(description.split())
    text = "Two projections:  e = (W query) . (U key), a bilinear form."
    lines = [line.strip() for line in wrapped(text, 30).split("\n")]
    assert lines == ["Two projections:", "e = (W query) . (U key), a", "bilinear form."]
    assert max(map(len, wrapped(text, 20).split("\n"))) <= 20  # it fits on no line
