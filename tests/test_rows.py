"""Cached rows: computed once, shared by processes, and a damaged or incomplete one counts as missing."""

import os
from pathlib import Path

import pytest

from regard.storage import CachedRows, reading_only
from regard.storage.rows import CHECKSUM, KEY

SIZE = 10
RECORD = KEY + SIZE + CHECKSUM


def key(number: int) -> bytes:
    return bytes([number]) * KEY


def row(number: int) -> bytes:
    return bytes(range(number, number + SIZE))


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def make(*numbers: int) -> CachedRows:
    rows = CachedRows("kind", "name", SIZE)
    with rows.adding() as add:
        add({key(number): row(number) for number in numbers})
    return rows


def found(rows: CachedRows, *numbers: int) -> list[bool]:
    stored = {number: rows.get(key(number)) for number in numbers}
    assert all(content is None or content.tobytes() == row(number) for number, content in stored.items())
    return [content is not None for content in stored.values()]


def test_rows_are_found_again_by_another_process() -> None:
    first = make(1, 2)
    assert found(first, 1, 2, 3) == [True, True, False]
    assert found(CachedRows("kind", "name", SIZE), 1, 2, 3) == [True, True, False]
    assert found(CachedRows("kind", "other", SIZE), 1) == [False]


def test_a_process_that_adds_rows_knows_those_of_others() -> None:
    first, second = make(1), make(2)
    assert found(first, 1, 2) == [True, False]
    with first.adding():
        assert found(first, 1, 2) == [True, True]
    assert second.path.stat().st_size == 2 * RECORD


def test_an_incomplete_row_of_a_killed_process_is_cut_off() -> None:
    path = make(1, 2).path
    with path.open("ab") as file:
        file.write(key(3) + b"abc")
    assert found(CachedRows("kind", "name", SIZE), 1, 2, 3) == [True, True, False]
    assert found(make(3), 1, 2, 3) == [True, True, True]
    assert path.stat().st_size == 3 * RECORD


@pytest.mark.parametrize("place", [0, KEY - 1, KEY, KEY + SIZE - 1, KEY + SIZE, RECORD - 1])
def test_a_damaged_row_counts_as_missing_and_is_computed_again(place: int) -> None:
    path = make(1, 2, 3).path
    content = bytearray(path.read_bytes())
    content[RECORD + place] ^= 1
    path.write_bytes(content)
    damaged = CachedRows("kind", "name", SIZE)
    assert found(damaged, 1, 2, 3) == [True, False, True]
    assert found(make(2), 1, 2, 3) == [True, True, True]
    assert found(CachedRows("kind", "name", SIZE), 1, 2, 3) == [True, True, True]


def test_a_file_that_was_replaced_meanwhile_gives_no_wrong_rows() -> None:
    rows = make(1, 2)
    rows.path.unlink()
    make(3, 4, 5)
    with rows.adding() as add:
        add({key(6): row(6)})
    assert found(rows, 1, 2, 6) == [False, False, True]


def test_while_the_cache_is_only_read_new_rows_stay_in_memory(home: Path) -> None:
    with reading_only():
        assert found(make(1), 1) == [True]
    assert not home.exists()


def test_a_cache_that_cannot_be_written_is_not_needed(home: Path) -> None:
    home.write_text("a file in place of the folder")
    assert found(make(1, 2), 1, 2, 3) == [True, True, False]
    home.unlink()
    home.mkdir()
    os.symlink("/dev/null", home / "kind")
    assert found(make(1), 1) == [True]
