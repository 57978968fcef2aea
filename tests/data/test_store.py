"""Compact sequences behave like lists of the same items."""

import hashlib
import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from regard.data import store
from regard.data.files import pairs, read_lines, split
from regard.data.store import IntegerRows, Mapped, groups, joined, mapped, row_lengths, take, where
from regard.sources import text as text_source
from regard.types import Example

laws = settings(max_examples=50)
tables = st.lists(st.lists(st.integers(0, 2**31 - 1), max_size=4), max_size=8)


def assert_like_a_list(stored, expected):
    assert stored == expected
    assert list(stored) == expected
    assert len(stored) == len(expected)
    assert stored != [*expected, None]
    for index in range(-len(expected), len(expected)):
        assert stored[index] == expected[index]
    for index in (len(expected), -len(expected) - 1):
        with pytest.raises(IndexError):
            stored[index]
    for part in (slice(1, None), slice(None, None, -2), slice(-3, 2)):
        assert stored[part] == expected[part]
        assert stored[part][:2] == expected[part][:2]
    chosen = [index for index in (2, 0, 0) if index < len(expected)]
    assert take(stored, chosen) == take(expected, chosen) == [expected[index] for index in chosen]


@laws
@given(tables)
def test_rows_of_integers_come_back(rows):
    stored = IntegerRows.of(rows)
    assert_like_a_list(stored, rows)
    assert row_lengths(stored).tolist() == row_lengths(rows).tolist() == [len(row) for row in rows]
    assert all(type(number) is int for row in stored for number in row)


def test_small_numbers_take_two_bytes_and_others_four():
    assert IntegerRows.of([[1, 2], [65_535]]).numbers.dtype == np.uint16
    larger = IntegerRows.of([[1, 2], [7, 65_536, 3], [5]])
    assert larger.numbers.dtype == np.int32
    assert larger == [[1, 2], [7, 65_536, 3], [5]]


@laws
@given(st.lists(st.text(alphabet="ab\ré \u2028", max_size=4), max_size=8))
def test_lines_are_like_a_list(lines):
    expected = [line.removesuffix("\r") for line in lines]
    stored = read_lines([b"".join(f"{line}\n".encode() for line in lines)], "x")
    assert_like_a_list(stored, expected)
    assert_like_a_list(mapped(stored, len), [len(line) for line in expected])
    assert_like_a_list(joined([stored, ["x", "y"], stored]), [*expected, "x", "y", *expected])
    assert where(stored, bool).tolist() == [index for index, line in enumerate(expected) if line]


def test_examples_of_a_file_are_like_a_list(tmp_path):
    path = tmp_path / "pairs.tsv"
    path.write_text("a\tb\n\nc d\te\n")
    examples = pairs((str(path),)).examples
    expected = [Example("a", "b", origin=f"{path}:1"), Example("c d", "e", origin=f"{path}:3")]
    assert_like_a_list(examples, expected)
    for sequence in (examples, expected):
        assert store.sources(sequence) == ["a", "c d"]
        assert store.targets(sequence) == ["b", "e"]
        changed = store.with_texts(sequence, lambda source, target: (target, source.upper()))
        assert changed == [replace(expected[0], source="b", target="A"), replace(expected[1], source="e", target="C D")]
    bare = store.without_texts(examples)
    assert [(example.source, example.origin) for example in bare] == [("", f"{path}:1"), ("", f"{path}:3")]
    assert store.without_texts(expected) == expected


def test_a_split_dev_part_does_not_keep_the_texts_of_training_alive():
    examples = Mapped(np.arange(30), lambda index: Example(str(index), "x"))
    assert isinstance(split(examples, 1).dev, list)


@pytest.mark.parametrize("count", [0, 1, 3, store.BLOCK, store.BLOCK + 1])
def test_a_tokenizer_is_cached_under_the_digest_of_all_its_texts(count):
    texts = [f"é{index}\n" for index in range(count)]
    whole = hashlib.sha256(json.dumps([["1", "2"], "word", 7, texts]).encode()).hexdigest()
    assert text_source._digest([["1", "2"], "word", 7], texts) == whole
    assert text_source._digest([["1", "2"], "word", 7], mapped(texts, str)) == whole


def test_groups_are_all_items_in_order_with_the_rest_in_the_last():
    assert list(groups(iter("abcdefg"), 3)) == [["a", "b", "c"], ["d", "e", "f"], ["g"]]
    assert list(groups([1, 2], 2)) == [[1, 2]]
    assert list(groups([], 5)) == []
