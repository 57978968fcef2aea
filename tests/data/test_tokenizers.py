"""Tokenizers restore text, can be stored, and handle small data and damaged files."""

import json
import signal
import subprocess
import sys
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from regard.data import tokenizers
from regard.data.tokenizers import TOKENIZERS, Character, SentencePiece, Word
from regard.errors import CorruptError, DataError, RecipeError, StoppedError
from regard.types import BEGIN, END, PAD, SPECIALS, UNKNOWN
from wordpieces import build

laws = settings(max_examples=500)
TEXTS = [
    "the cat sat  on the mat",
    " the dog\tran <s> off </s> ",
    "das Haus, ⁇ größer\u2028\r\x0b",
    "猫は\u3000e\u0301",
]
CHARACTERS = sorted(set("".join(TEXTS)))
known_text = st.text(alphabet=CHARACTERS, max_size=40)
TOKENIZER_OF = {name: build(name, TEXTS, 60 if kind is SentencePiece else 0) for name, kind in TOKENIZERS.items()}
every_tokenizer = pytest.mark.parametrize("name", TOKENIZERS)


@every_tokenizer
def test_special_tokens_have_the_first_ids(name):
    tokenizer = TOKENIZER_OF[name]
    assert tuple(tokenizer.piece(token) for token in (PAD, UNKNOWN, BEGIN, END)) == SPECIALS
    assert len([tokenizer.piece(token) for token in range(tokenizer.size)]) == tokenizer.size
    with pytest.raises(IndexError):
        tokenizer.piece(tokenizer.size)


@every_tokenizer
@laws
@given(text=st.text(max_size=40))
def test_any_text_has_ids_in_range_and_no_special_ones_except_unknown(name, text):
    tokenizer = TOKENIZER_OF[name]
    ids = tokenizer.encode(text)
    assert all(0 <= token < tokenizer.size for token in ids)
    assert not {PAD, BEGIN, END} & set(ids)
    assert ("⁇" in tokenizer.decode(ids)) >= (UNKNOWN in ids)


@pytest.mark.parametrize("name", ["character", "sentencepiece"])
@laws
@given(text=known_text)
def test_known_characters_are_restored(name, text):
    ids = TOKENIZER_OF[name].encode(text)
    assert UNKNOWN not in ids
    assert TOKENIZER_OF[name].decode(ids) == text


@laws
@given(st.lists(st.sampled_from(" ".join(TEXTS).split())), st.sampled_from([" ", "  ", "\t", "\u2028 "]))
def test_known_words_are_restored_with_single_spaces(words, space):
    ids = TOKENIZER_OF["word"].encode(space + space.join(words))
    assert UNKNOWN not in ids
    assert TOKENIZER_OF["word"].decode(ids) == " ".join(words)


@every_tokenizer
def test_training_texts_are_restored(name):
    for text in TEXTS:
        expected = " ".join(text.split()) if name in ("word", "hugging_face") else text
        assert TOKENIZER_OF[name].decode(TOKENIZER_OF[name].encode(text)) == expected


@every_tokenizer
def test_decoding_skips_special_ids_and_shows_unknown_ones(name):
    tokenizer = TOKENIZER_OF[name]
    ids = tokenizer.encode("the cat")
    assert tokenizer.decode([BEGIN, *ids, END, PAD, PAD]) == "the cat"
    assert tokenizer.decode([PAD, BEGIN, END]) == ""
    assert tokenizer.decode([]) == ""
    assert tokenizer.decode([UNKNOWN]) == "⁇"
    assert "⁇" in tokenizer.decode(tokenizer.encode("the Ж cat"))
    assert tokenizer.decode(tokenizer.encode("the Ж cat")) == "the ⁇ cat"


@every_tokenizer
def test_a_restored_tokenizer_is_the_same(name):
    tokenizer, kind = TOKENIZER_OF[name], TOKENIZERS[name]
    restored = kind.from_bytes(tokenizer.to_bytes())
    assert type(restored) is kind
    assert restored.to_bytes() == tokenizer.to_bytes()
    assert restored.size == tokenizer.size
    assert all(restored.piece(token) == tokenizer.piece(token) for token in range(restored.size))
    assert [restored.encode(text) for text in TEXTS] == [tokenizer.encode(text) for text in TEXTS]


@every_tokenizer
def test_building_twice_gives_the_same_bytes(name):
    size = 50 if name == "sentencepiece" else 7
    assert build(name, TEXTS, size).to_bytes() == build(name, TEXTS, size).to_bytes()


def test_the_most_frequent_tokens_are_kept_and_ties_go_to_the_first():
    words = Word.build(["c b b a", "a d e"], 3)
    assert [words.piece(token) for token in range(words.size)] == [*SPECIALS, "b", "a", "c"]
    assert words.encode("a b c d") == [5, 4, 6, UNKNOWN]
    characters = Character.build(["zyy", "xx w"], 2)
    assert [characters.piece(token) for token in range(4, characters.size)] == ["y", "x"]
    assert Character.build(["zyy", "xx w"], 0).size == len(SPECIALS) + 5
    assert Character.build(["zyy", "xx w"], 99).size == len(SPECIALS) + 5


def test_a_word_spelled_like_a_special_token_is_an_ordinary_word():
    words = Word.build(["<s> <pad>"], 0)
    assert words.encode("<s> <pad>") == [4, 5]
    assert words.decode([BEGIN, 4, 5, END]) == "<s> <pad>"


@pytest.mark.parametrize("kind", [Character, Word])
def test_a_negative_size_is_refused(kind):
    with pytest.raises(RecipeError, match=f"^a {kind.kind} vocabulary of -1 is impossible; "):
        kind.build(TEXTS, -1)


def test_character_and_word_are_stored_as_readable_json():
    assert json.loads(Word.build(["größer"], 0).to_bytes()) == {"kind": "word", "tokens": ["größer"]}
    assert "größer".encode() in Word.build(["größer"], 0).to_bytes()


@pytest.mark.parametrize("kind", [Character, Word])
@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff",
        b"{}",
        b"[]",
        b"3",
        b"[" * 100_000,
        b'{"kind": "byte", "tokens": []}',
        b'{"kind": "KIND"}',
        b'{"kind": "KIND", "tokens": {"a": 4}}',
        b'{"kind": "KIND", "tokens": ["a", 3]}',
        b'{"kind": "KIND", "tokens": ["a", "b", "a"]}',
    ],
)
def test_a_damaged_vocabulary_is_refused(kind, content):
    with pytest.raises(CorruptError, match=f"^the stored {kind.kind} tokenizer is damaged "):
        kind.from_bytes(content.replace(b"KIND", kind.kind.encode()))


@every_tokenizer
def test_a_truncated_tokenizer_is_refused(name):
    content = TOKENIZER_OF[name].to_bytes()
    for length in range(len(content)):
        with pytest.raises(CorruptError, match=f"^the stored {name} tokenizer is damaged "):
            TOKENIZERS[name].from_bytes(content[:length])


@every_tokenizer
def test_a_tokenizer_of_another_kind_is_refused(name):
    for other in TOKENIZERS:
        if other != name:
            with pytest.raises(CorruptError):
                TOKENIZERS[name].from_bytes(TOKENIZER_OF[other].to_bytes())


def test_a_sentencepiece_model_with_a_damaged_piece_is_refused():
    content = TOKENIZER_OF["sentencepiece"].to_bytes()
    for damaged in (content.replace(b"<pad>", b"<pod>"), content.replace("ö".encode(), b"\xc3\xc3")):
        assert damaged != content
        with pytest.raises(CorruptError, match=r"^the stored sentencepiece tokenizer is damaged "):
            SentencePiece.from_bytes(damaged)


def test_a_sentencepiece_model_whose_text_for_unknown_tokens_is_not_utf8_is_refused():
    before, text, after = (
        TOKENIZER_OF["sentencepiece"].to_bytes().rpartition("⁇".encode())
    )  # a setting, after the pieces
    with pytest.raises(CorruptError, match=r"^the stored sentencepiece tokenizer is damaged "):
        SentencePiece.from_bytes(before + b"\xff" * len(text) + after)


@pytest.mark.parametrize(
    "texts", [["hello world", "a b c", "the cat"], ["a"], [" "], ["", "aa"], ["a\tb", "\t"], ["\r"], ["▅"]]
)
def test_a_huge_size_for_tiny_data_gives_a_small_vocabulary(texts):
    tokenizer = SentencePiece.build(texts, 32_000)
    assert tokenizer.size < 60
    assert [tokenizer.decode(tokenizer.encode(text)) for text in texts] == texts


def test_the_error_for_a_small_size_names_the_smallest_that_works():
    texts = ["hello world", "a b\tc", "the cat"]
    with pytest.raises(RecipeError) as error:
        SentencePiece.build(texts, 5)
    assert str(error.value) == (
        "a sentencepiece vocabulary of 5 is too small; the characters of this data and the special tokens alone need 17"
    )
    tokenizer = SentencePiece.build(texts, 17)
    assert tokenizer.size == 17
    assert [tokenizer.decode(tokenizer.encode(text)) for text in texts] == texts
    for size in (16, 4, 0, -1):
        with pytest.raises(RecipeError, match=f"^a sentencepiece vocabulary of {size} is too small"):
            SentencePiece.build(texts, size)


@pytest.mark.parametrize("texts", [[], ["", ""]])
def test_sentencepiece_needs_some_text(texts):
    with pytest.raises(DataError, match=r"^there is no text to learn sentencepiece from; "):
        SentencePiece.build(texts, 100)


def test_sentencepiece_learns_from_lines_of_any_length():
    texts = ["x " + "猫" * 5_000, "ab" * 70_000]  # above its default limits: bytes per line, characters per word
    tokenizer = SentencePiece.build(texts, 30)
    assert not any(UNKNOWN in tokenizer.encode(text) for text in texts)


@laws
@given(st.lists(st.text(alphabet="ab <s>/pad\t\r\n\x0b\x85\u2028▅⁇é猫", max_size=12), min_size=1).filter(any))
def test_sentencepiece_restores_its_training_texts(texts):
    tokenizer = SentencePiece.build(texts, 99)
    assert [tokenizer.decode(tokenizer.encode(text)) for text in texts] == texts


def test_two_characters_that_sentencepiece_cannot_restore():
    tokenizer = SentencePiece.build(["a▁b\0c"], 99)
    assert tokenizer.decode(tokenizer.encode("a▁b\0c")) == "a b⁇c"


def test_sentencepiece_prints_nothing():
    script = (
        "from regard.data.tokenizers import SentencePiece\n"
        "SentencePiece.build(['the cat', 'the dog\\ta'], 99).encode('the ☃')\n"
        "try: SentencePiece.from_bytes(b'')\n"
        "except Exception: pass\n"
    )
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert (result.stdout, result.stderr) == ("", "")


def test_importing_tokenizers_does_not_import_sentencepiece():
    script = "import sys, regard.data.tokenizers; sys.exit('sentencepiece' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script]).returncode == 0


def test_sentencepiece_trained_in_a_subprocess_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = [f"the {number} cats sat on mat {number * 7}, ▅\n" for number in range(300)]
    in_process = SentencePiece.build(texts, 90).to_bytes()
    monkeypatch.setattr(tokenizers, "SUBPROCESS_FROM", 1)
    assert SentencePiece.build(texts, 90).to_bytes() == in_process


def test_a_signal_stops_the_training_of_sentencepiece(monkeypatch: pytest.MonkeyPatch) -> None:
    """Training is one call into C++, during which this process alone would not handle the signal."""
    monkeypatch.setattr(tokenizers, "SUBPROCESS_FROM", 1)
    monkeypatch.setattr(tokenizers, "TRAINER", "import time; time.sleep(60)")

    def stop(*_: object) -> None:
        raise StoppedError(signal.SIGALRM)

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, 0.3)
    started = time.monotonic()
    try:
        with pytest.raises(StoppedError):
            SentencePiece.build(["some text"], 30)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert time.monotonic() - started < 2
