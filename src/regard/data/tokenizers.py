"""Tokenizers: turn text into token ids and back."""

import io
import json
import re
import subprocess
import sys
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import accumulate, chain, pairwise
from typing import Any, ClassVar, TypeVar, final

from regard.console import counted, tick
from regard.data.workers import environment, python
from regard.errors import CorruptError, DataError, MissingExtraError, RecipeError, ResourceError, shown
from regard.specials import BEGIN, END, PAD, SPECIALS, UNKNOWN

UNKNOWN_SURFACE = "⁇"  # stands for UNKNOWN in decoded text
LONGEST_SENTENCE = 50_000  # sentencepiece aborts the process at a word of 65,536 characters
SUBPROCESS_FROM = 200_000  # characters of text; with less, sentencepiece trains so fast that no subprocess is needed
TRAINER = """
import io, json, sys
from sentencepiece import SentencePieceTrainer
settings, sentences = json.loads(sys.stdin.buffer.readline()), map(json.loads, sys.stdin.buffer)
model = io.BytesIO()
SentencePieceTrainer.train(sentence_iterator=sentences, model_writer=model, **settings)
sys.stdout.buffer.write(model.getvalue())
"""
WAIT = 0.25  # seconds between two looks whether sentencepiece has learned
WITHIN_SPECIAL = re.compile("(?<=<)(?=(?:pad|unk|s|/s)>)")  # sentencepiece learns no characters from an uncut "<s>"
# trainer_spec { unk_surface: "⁇" }, serialized: of a setting the last value counts, and a truncated model lacks it.
LAST_SETTING = b"\x12\x06\xe2\x02\x03" + UNKNOWN_SURFACE.encode()
ALWAYS_UNKNOWN = "\0"  # sentencepiece has no piece for it
RESERVED = {"\t", "\r", "\n", "▅"}  # sentencepiece trims or uses them, unless they are user-defined symbols

AnyTokenizer = TypeVar("AnyTokenizer", bound="Tokenizer")  # not Self: the type checks of the test run refuse it
AnyListed = TypeVar("AnyListed", bound="Listed")


class Tokenizer(ABC):
    """Converts text to token ids and back; the ids 0 to 3 are PAD, UNKNOWN, BEGIN and END."""

    def __init__(self, pieces: Sequence[str]) -> None:
        self._pieces = tuple(pieces)

    @property
    def size(self) -> int:
        """The number of tokens in the vocabulary, including the four special ones."""
        return len(self._pieces)

    def piece(self, token: int) -> str:
        """The text of one token, for labels on the axes of maps."""
        return self._pieces[token]

    @abstractmethod
    def encode(self, text: str) -> list[int]:
        """The token ids of a text, without BEGIN and END."""

    def encode_all(self, texts: Sequence[str]) -> Sequence[list[int]]:
        """The token ids of several texts; a subclass may be faster for many than for each."""
        return [self.encode(text) for text in texts]

    @abstractmethod
    def decode(self, ids: Sequence[int]) -> str:
        """The text of token ids, without special tokens; UNKNOWN becomes ⁇."""

    @abstractmethod
    def offsets(self, text: str) -> list[tuple[int, int]]:
        """Character offsets (start, end) in the text of each token that `encode` returns."""

    def encode_continuation(self, text: str) -> list[int]:
        """The token ids of a text that continues after other tokens; without a space, it continues their last word."""
        return self.encode(text)

    def encode_word(self, word: str) -> list[int]:
        """The token ids of a word that other words come before and after."""
        return self.encode(word)

    @property
    def ends(self) -> bool:
        """Whether an encoder reads END after every text; False only for some imported models."""
        return True

    def framed(self, ids: Sequence[int]) -> list[int]:
        """The ids of a text as an encoder reads them: END comes last, if it is read; it stands for an empty text."""
        return [*ids, END] if self.ends or not ids else [*ids]

    def begins(self, token: int) -> bool:
        """Whether a token begins a word; False only for sub-words that continue one."""
        return True

    @abstractmethod
    def to_bytes(self) -> bytes:
        """The tokenizer as bytes, from which `from_bytes` restores the same tokenizer."""

    @classmethod
    @abstractmethod
    def build(cls: type[AnyTokenizer], texts: Sequence[str], size: int) -> AnyTokenizer:
        """Builds a vocabulary from texts, limited by `size`; the same texts always give the same tokens."""

    @classmethod
    @abstractmethod
    def from_bytes(cls: type[AnyTokenizer], content: bytes) -> AnyTokenizer:
        """Restores a tokenizer from `to_bytes`; raises CorruptError if the content is damaged."""


class Listed(Tokenizer):
    """A tokenizer whose vocabulary is a list of tokens, sorted by frequency."""

    kind: ClassVar[str]
    separator: ClassVar[str]  # between two tokens of a decoded text

    def __init__(self, tokens: Sequence[str], *, ends: bool = True) -> None:
        super().__init__((*SPECIALS, *tokens))
        self._ids = {token: index for index, token in enumerate(tokens, start=len(SPECIALS))}
        self._ends = ends

    @property
    def ends(self) -> bool:
        """Whether an encoder reads END after every text."""
        return self._ends

    @staticmethod
    @abstractmethod
    def _split(text: str) -> list[str]: ...

    def encode(self, text: str) -> list[int]:
        """The token ids of a text, without BEGIN and END."""
        return [self._ids.get(token, UNKNOWN) for token in self._split(text)]

    def decode(self, ids: Sequence[int]) -> str:
        """The text of token ids, without special tokens; UNKNOWN becomes ⁇."""
        visible = [token for token in ids if token == UNKNOWN or token >= len(SPECIALS)]
        pieces = [UNKNOWN_SURFACE if token == UNKNOWN else self._pieces[token] for token in visible]
        return self.separator.join(pieces)

    def to_bytes(self) -> bytes:
        """The kind and the list of tokens as JSON in UTF-8; `ends` only if it is False."""
        stored = {"kind": self.kind, "tokens": list(self._ids), **({} if self.ends else {"ends": False})}
        return json.dumps(stored, ensure_ascii=False).encode("utf-8")

    @classmethod
    def build(cls: type[AnyListed], texts: Sequence[str], size: int) -> AnyListed:
        """Keeps the `size` most frequent tokens (0: all) besides the special ones; of equally frequent the first."""
        if size < 0:
            raise RecipeError(f"a {cls.kind} vocabulary of {size} is impossible; give 0 for all, or more")
        counts: Counter[str] = Counter()
        for text in counted(texts, "learning the vocabulary"):
            counts.update(cls._split(text))
        return cls([token for token, _ in counts.most_common(size or None)])

    @classmethod
    def from_bytes(cls: type[AnyListed], content: bytes) -> AnyListed:
        """Restores a tokenizer from `to_bytes`; raises CorruptError if the content is damaged."""
        try:
            stored = json.loads(content.decode("utf-8"))
        except (ValueError, RecursionError) as error:
            raise _damaged(cls.kind, str(error)) from error
        if not isinstance(stored, dict) or stored.get("kind") != cls.kind:
            raise _damaged(cls.kind, f"its kind is not {cls.kind}")
        tokens = stored.get("tokens")
        if not isinstance(tokens, list) or not all(isinstance(token, str) for token in tokens):
            raise _damaged(cls.kind, "its tokens are not a list of texts")
        if len(set(tokens)) != len(tokens):
            raise _damaged(cls.kind, "it holds a token twice")
        if type(ends := stored.get("ends", True)) is not bool:
            raise _damaged(cls.kind, "its `ends` is neither true nor false")
        return cls(tokens, ends=ends)


@final
class Character(Listed):
    """Every character is a token; decoding restores the text except unknown characters."""

    kind = "character"
    separator = ""

    @staticmethod
    def _split(text: str) -> list[str]:
        return list(text)

    def offsets(self, text: str) -> list[tuple[int, int]]:
        """Character offsets (start, end) of each token in the text."""
        return [(start, start + 1) for start in range(len(text))]


@final
class Word(Listed):
    """Every word between white space is a token; decoding joins the words with single spaces."""

    kind = "word"
    separator = " "

    @staticmethod
    def _split(text: str) -> list[str]:
        return text.split()

    def offsets(self, text: str) -> list[tuple[int, int]]:
        """Character offsets (start, end) of each token in the text."""
        return [match.span() for match in re.finditer(r"\S+", text)]


@final
class SentencePiece(Tokenizer):
    """Sub-words, learned by byte-pair encoding (Sennrich et al. 2016; Kudo and Richardson 2018).

    Decoding restores known characters and all spaces. Two characters cannot be restored: `▁`, which sentencepiece
    uses for a space, becomes a space; the null character is always unknown.
    """

    def __init__(self, content: bytes) -> None:
        from sentencepiece import SentencePieceProcessor  # imported here, so that other tokenizers do not load it

        self._content = content
        self._processor = SentencePieceProcessor()
        try:
            self._processor.LoadFromSerializedProto(content)
            pieces = [self._processor.IdToPiece(index) for index in range(self._processor.GetPieceSize())]
            # A truncated model may still load: compare settings that are stored at its end.
            unknown, spaces = self._processor.DecodeIds([UNKNOWN]), self._processor.EncodeAsIds("  ")
        except (RuntimeError, UnicodeDecodeError) as error:
            raise _damaged("sentencepiece", str(error)) from error
        complete = bool(spaces) or content.endswith(LAST_SETTING)
        if tuple(pieces[: len(SPECIALS)]) != SPECIALS or unknown != UNKNOWN_SURFACE or not complete:
            raise _damaged("sentencepiece", "it is not complete, or not made by regard")
        super().__init__(pieces)

    def encode(self, text: str) -> list[int]:
        """The token ids of a text, without BEGIN and END; a run of unknown characters becomes one UNKNOWN."""
        return self._processor.EncodeAsIds(text)

    def encode_all(self, texts: Sequence[str]) -> Sequence[list[int]]:
        """The token ids of several texts, in one call."""
        return self._processor.Encode([*texts], out_type=int, num_threads=1)

    def decode(self, ids: Sequence[int]) -> str:
        """The text of token ids, without special tokens; UNKNOWN becomes ⁇."""
        return self._processor.DecodeIds(list(ids))

    def offsets(self, text: str) -> list[tuple[int, int]]:
        """Character offsets (start, end) of each token; the space before a word belongs to the word's first token."""
        ends = [*accumulate(map(len, self._processor.EncodeAsPieces(text)))]
        # minus 1, because sentencepiece puts a space before the text
        return [(max(0, start - 1), end - 1) for start, end in pairwise([0, *ends])]

    def encode_continuation(self, text: str) -> list[int]:
        """The token ids of a continuation, without the space that sentencepiece puts before a text.

        The text is encoded after a character that is always unknown, and the ids up to that character are removed.
        """
        pieces = self._processor.EncodeAsPieces(ALWAYS_UNKNOWN + text)
        ids: list[int] = self._processor.EncodeAsIds(ALWAYS_UNKNOWN + text)
        prefix = next(index for index, piece in enumerate(pieces) if ALWAYS_UNKNOWN in piece)
        merged = pieces[prefix] != ALWAYS_UNKNOWN  # with unknown characters at the start of the text
        return [*([UNKNOWN] if merged else []), *ids[prefix + 1 :]]

    def begins(self, token: int) -> bool:
        """Whether a token begins a word: its piece then starts with the sign for a space."""
        return self.piece(token).startswith("▁")

    def to_bytes(self) -> bytes:
        """The serialized sentencepiece model, which other tools can read."""
        return self._content

    @classmethod
    def build(cls, texts: Sequence[str], size: int) -> "SentencePiece":
        """Trains up to `size` pieces, including the special ones; fewer if there is too little data."""
        alphabet = set[str]()
        for text in counted(texts, "learning the alphabet"):
            alphabet.update(text)
        if not alphabet:
            raise DataError("there is no text to learn sentencepiece from; give at least one line that is not empty")
        needed = len(SPECIALS) + len(alphabet | {" "})
        if size < needed:
            raise RecipeError(
                f"a sentencepiece vocabulary of {size} is too small; "
                f"the characters of this data and the special tokens alone need {needed}"
            )
        return cls(_train(texts, size, symbols=sorted(alphabet & RESERVED)))

    @classmethod
    def adopt(cls, content: bytes) -> "SentencePiece":
        """The tokenizer of a model that regard did not train, but whose first pieces are the special ones.

        It keeps its normalisation, so that decoding may not restore a text.
        """
        return cls(content + LAST_SETTING)

    @classmethod
    def from_bytes(cls, content: bytes) -> "SentencePiece":
        """Restores a tokenizer from `to_bytes`; raises CorruptError if the content is damaged."""
        return cls(content)


@final
class HuggingFace(Tokenizer):
    """The tokenizer of an imported Hugging Face model, by the package `tokenizers`: WordPiece, byte-level BPE, Unigram.

    The ids 0 to 3 are the model's own special tokens; all other tokens follow in the order of the model's ids. The text
    of a token for labels begins with `▁` if it begins a word, as that of sentencepiece.
    """

    kind = "hugging_face"

    def __init__(
        self, tokenizer: Mapping[str, Any], specials: Sequence[str | None], *, begin: bool, prefix: str | None = None
    ) -> None:
        """Build the tokenizer of the content of a tokenizer.json.

        `specials` are the model's own tokens for PAD, UNKNOWN, BEGIN and END; None if it has none. With `begin`, an
        encoder reads BEGIN before every text. `prefix` is the first token of every text that a decoder writes, after
        BEGIN; None if there is none.
        """
        try:
            import tokenizers
        except ImportError as missing:
            raise MissingExtraError("tokenizers", "hf", "the tokenizer of an imported model") from missing

        self._content, self._specials, self._begin, self._prefix = dict(tokenizer), tuple(specials), begin, prefix
        try:
            self._tokenizer = tokenizers.Tokenizer.from_str(json.dumps(tokenizer))
        except Exception as error:  # the package raises no narrower class
            raise _damaged(self.kind, str(error)) from error
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self._tokenizer.encode_special_tokens = True  # "[SEP]" in a text is a text
        known: dict[str, int] = self._tokenizer.get_vocab(with_added_tokens=True)
        if unknown := [token for token in (*specials, prefix) if token is not None and token not in known]:
            raise _damaged(self.kind, f"it has no token {shown(unknown[0])}")
        own = [None if token is None else known[token] for token in specials]
        names = {index: token for token, index in known.items() if index not in own}
        self.rows: tuple[int | None, ...] = (*own, *sorted(names))
        self._ids = {row: index for index, row in reversed([*enumerate(self.rows)])}
        self._first = [] if prefix is None else [self._ids[known[prefix]]]
        label = _label_maker(self._tokenizer, self._content)
        super().__init__((*SPECIALS, *(label(names[row], row) for row in sorted(names))))

    def encode(self, text: str) -> list[int]:
        """The token ids of a text, without BEGIN and END; the text of a special token is UNKNOWN."""
        ids = [self._ids[row] for row in self._tokenizer.encode(text, add_special_tokens=False).ids]
        return self._first + [token if token >= len(SPECIALS) else UNKNOWN for token in ids]

    def row(self, token: str) -> int | None:
        """The model's own id of a token; None if it has no such token."""
        row: int | None = self._tokenizer.token_to_id(token)
        return row

    def encode_word(self, word: str) -> list[int]:
        """The token ids of a word; byte-level BPE encodes it with the space before it."""
        return self.encode(f" {word}" if _is_byte_level(self._content) else word)

    def decode(self, ids: Sequence[int]) -> str:
        """The text of token ids, without special tokens; UNKNOWN becomes ⁇. Normalised text stays normalised."""
        hidden = {PAD, BEGIN, END, *self._first}
        visible = [self.rows[token] for token in ids if token not in hidden]
        text: str = self._tokenizer.decode([row for row in visible if row is not None], skip_special_tokens=False)
        unknown = self._specials[UNKNOWN]
        return text if unknown is None else text.replace(unknown, UNKNOWN_SURFACE)

    def offsets(self, text: str) -> list[tuple[int, int]]:
        """Character offsets (start, end) in the text of each token that `encode` returns."""
        spans: list[tuple[int, int]] = self._tokenizer.encode(text, add_special_tokens=False).offsets
        return [(0, 0)] * len(self._first) + spans

    def framed(self, ids: Sequence[int]) -> list[int]:
        """The ids of a text as an encoder reads them: between BEGIN and END, or only before END."""
        return [*([BEGIN] if self._begin else []), *ids, END]

    def begins(self, token: int) -> bool:
        """Whether a token begins a word."""
        return self.piece(token).startswith("▁")

    def to_bytes(self) -> bytes:
        """The kind, the special tokens and the content of the tokenizer.json, as JSON in UTF-8."""
        stored = {"kind": self.kind, "specials": self._specials, "begin": self._begin, "prefix": self._prefix}
        stored["tokenizer"] = self._content
        return json.dumps(stored, ensure_ascii=False).encode("utf-8")

    @classmethod
    def build(cls, texts: Sequence[str], size: int) -> "HuggingFace":
        """Refuses: the tokenizer comes with the weights of a model."""
        raise RecipeError(
            f"a tokenizer of kind {cls.kind!r} is not learned from texts; it comes with an imported model: "
            "regard import FOLDER, then train.start_from=RUN"
        )

    @classmethod
    def from_bytes(cls, content: bytes) -> "HuggingFace":
        """Restores a tokenizer from `to_bytes`; raises CorruptError if the content is damaged."""
        try:
            stored = json.loads(content.decode("utf-8"))
        except (ValueError, RecursionError) as error:
            raise _damaged(cls.kind, str(error)) from error
        if not isinstance(stored, dict) or stored.get("kind") != cls.kind:
            raise _damaged(cls.kind, f"its kind is not {cls.kind}")
        specials, begin, tokenizer = stored.get("specials"), stored.get("begin"), stored.get("tokenizer")
        prefix = stored.get("prefix")
        if not isinstance(specials, list) or len(specials) != len(SPECIALS) or not isinstance(begin, bool):
            raise _damaged(cls.kind, "it does not name its special tokens")
        if not (prefix is None or isinstance(prefix, str)):
            raise _damaged(cls.kind, "its first token is not a text")
        if not isinstance(tokenizer, dict) or not all(token is None or isinstance(token, str) for token in specials):
            raise _damaged(cls.kind, "it holds no tokenizer")
        return cls(tokenizer, specials, begin=begin, prefix=prefix)


def _is_byte_level(content: Mapping[str, Any]) -> bool:
    """Whether a tokenizer.json is of byte-level BPE (Radford et al. 2019), whose tokens are made of bytes."""
    return "ByteLevel" in json.dumps([content.get("pre_tokenizer"), content.get("decoder")])


def _label_maker(tokenizer: Any, content: Mapping[str, Any]) -> Callable[[str, int], str]:
    """Returns the function that makes the label of a token from its text and its row: `▁` for a word's beginning."""
    model = content.get("model")
    special = {added.get("content") for added in content.get("added_tokens") or [] if isinstance(added, dict)}
    if isinstance(model, dict) and model.get("type") == "WordPiece":
        prefix = str(model.get("continuing_subword_prefix", "##"))
        return lambda token, row: token.removeprefix(prefix) if token.startswith(prefix) else f"▁{token}"
    if not _is_byte_level(content):
        return lambda token, row: token

    def label(token: str, row: int) -> str:
        text = token if token in special else tokenizer.decode([row], skip_special_tokens=False)
        return token if "\N{REPLACEMENT CHARACTER}" in text else text.replace(" ", "▁")

    return label


def _sentences(texts: Iterable[str]) -> Iterator[str]:
    """The texts, cut so that sentencepiece learns from all of them."""
    yield " "  # sentencepiece raises an error if nothing is left to learn from
    for text in texts:
        for part in WITHIN_SPECIAL.split(text.replace("▅", " ")):  # sentencepiece silently skips a line with ▅
            for start in range(0, len(part), LONGEST_SENTENCE):
                yield part[start : start + LONGEST_SENTENCE]


def _train(texts: Sequence[str], size: int, symbols: list[str]) -> bytes:
    """Trains a sentencepiece model and returns it as bytes.

    Training is one call into C++, during which Python handles no signals. Long texts are therefore trained on in a
    subprocess, which is killed if a signal handler raises an exception here.
    """
    settings: dict[str, Any] = {
        "model_type": "bpe",
        "vocab_size": size,
        "hard_vocab_limit": False,  # too little data gives fewer pieces and no error
        "max_sentence_length": 4 * LONGEST_SENTENCE,  # in bytes; longer ones would be skipped silently
        "character_coverage": 1.0,
        "normalization_rule_name": "identity",
        "remove_extra_whitespaces": False,
        "user_defined_symbols": symbols,
        "pad_id": PAD,  # the pieces' texts are those of SPECIALS, which are sentencepiece's defaults
        "unk_id": UNKNOWN,
        "bos_id": BEGIN,
        "eos_id": END,
        "unk_surface": UNKNOWN_SURFACE,
        "num_threads": 1,
        "minloglevel": 2,
    }
    if sum(map(len, texts)) < SUBPROCESS_FROM or not sys.executable:
        from sentencepiece import SentencePieceTrainer

        model = io.BytesIO()
        SentencePieceTrainer.train(sentence_iterator=_sentences(texts), model_writer=model, **settings)
        return model.getvalue()
    with subprocess.Popen(
        python("-c", TRAINER),
        env=environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as trainer:
        assert trainer.stdin is not None
        try:
            trained, errors = _give(trainer, chain([settings], _sentences(counted(texts, "handing over texts"))))
        except BaseException:
            trainer.kill()
            with suppress(BrokenPipeError):
                trainer.stdin.close()  # here, because the end of the block would raise what is suppressed
            raise
    if trainer.returncode:
        reason = errors.decode(errors="replace").strip().rpartition("\n")[2]
        raise ResourceError(f"sentencepiece could not be trained on {len(texts):,} texts: {reason}")
    return trained


def _give(trainer: subprocess.Popen[bytes], content: Iterable[Any]) -> tuple[bytes, bytes]:
    """Writes JSON to the stdin of a process, line by line, and returns all of its stdout and stderr.

    The process must write little before it has read everything.
    """
    assert trainer.stdin is not None
    with suppress(BrokenPipeError):  # it ended early; stderr says why
        for item in content:
            trainer.stdin.write(json.dumps(item).encode() + b"\n")
    while True:
        with suppress(subprocess.TimeoutExpired):
            return trainer.communicate(timeout=WAIT)
        tick("learning sub-words")


def _damaged(kind: str, reason: str) -> CorruptError:
    return CorruptError(
        f"the stored {kind} tokenizer is damaged ({reason}); restore the run from a copy, or train it again"
    )


TOKENIZERS: dict[str, type[Tokenizer]] = {
    "character": Character,
    "word": Word,
    "sentencepiece": SentencePiece,
    "hugging_face": HuggingFace,
}
