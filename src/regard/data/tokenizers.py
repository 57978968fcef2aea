"""Text to token ids and back."""

import io
import json
import os
import re
import subprocess
import sys
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise
from typing import Any, ClassVar, TypeVar, final

from regard.errors import CorruptError, DataError, RecipeError, ResourceError
from regard.types import BEGIN, END, PAD, SPECIALS, UNKNOWN

UNKNOWN_SURFACE = "⁇"  # how a token that no text could spell shows in one
LONGEST_SENTENCE = 50_000  # sentencepiece aborts the process at a word of 65,536 characters
MUCH = 200_000  # characters that sentencepiece needs more than a moment for
TRAINER = """
import io, json, sys
from sentencepiece import SentencePieceTrainer
given = json.load(sys.stdin)
model = io.BytesIO()
SentencePieceTrainer.train(sentence_iterator=iter(given["sentences"]), model_writer=model, **given["settings"])
sys.stdout.buffer.write(model.getvalue())
"""
WITHIN_SPECIAL = re.compile("(?<=<)(?=(?:pad|unk|s|/s)>)")  # sentencepiece learns nothing of a whole "<s>"
NEVER_KNOWN = "\0"  # to sentencepiece
RESERVED = {"\t", "\r", "\n", "▅"}  # sentencepiece trims or uses them; it knows them only as whole symbols

AnyTokenizer = TypeVar("AnyTokenizer", bound="Tokenizer")  # not Self: the check of types in tests refuses it
AnyListed = TypeVar("AnyListed", bound="Listed")


class Tokenizer(ABC):
    """Cuts text into tokens and joins them again; the ids 0 to 3 are PAD, UNKNOWN, BEGIN, END."""

    def __init__(self, pieces: Sequence[str]) -> None:
        self._pieces = tuple(pieces)

    @property
    def size(self) -> int:
        """How many ids there are, the four special ones included."""
        return len(self._pieces)

    def piece(self, token: int) -> str:
        """The label of one token, for the axes of maps."""
        return self._pieces[token]

    @abstractmethod
    def encode(self, text: str) -> list[int]:
        """The ids of a text, without BEGIN and END."""

    @abstractmethod
    def decode(self, ids: Sequence[int]) -> str:
        """The text of ids; the special ones are skipped, but UNKNOWN shows as ⁇."""

    @abstractmethod
    def places(self, text: str) -> list[tuple[int, int]]:
        """Where each token of `encode` begins and ends in the text."""

    def encode_on(self, text: str) -> list[int]:
        """The ids of a text that goes on after other tokens; without a space between, it goes on with their word."""
        return self.encode(text)

    def begins(self, token: int) -> bool:
        """Whether a token begins a word, or is one; pieces of words may go on with one instead."""
        return True

    @abstractmethod
    def to_bytes(self) -> bytes:
        """What to store; `from_bytes` makes the same tokenizer of it."""

    @classmethod
    @abstractmethod
    def build(cls: type[AnyTokenizer], texts: Sequence[str], size: int) -> AnyTokenizer:
        """Learns the tokens of texts, as many as `size` allows; the same texts give the same tokens."""

    @classmethod
    @abstractmethod
    def from_bytes(cls: type[AnyTokenizer], content: bytes) -> AnyTokenizer:
        """The tokenizer that was stored, or CorruptError."""


class Listed(Tokenizer):
    """A tokenizer that is a list of tokens, the most frequent first."""

    kind: ClassVar[str]
    separator: ClassVar[str]  # what stands between two tokens of a text

    def __init__(self, tokens: Sequence[str]) -> None:
        super().__init__((*SPECIALS, *tokens))
        self._ids = {token: index for index, token in enumerate(tokens, start=len(SPECIALS))}

    @staticmethod
    @abstractmethod
    def _cut(text: str) -> list[str]: ...

    def encode(self, text: str) -> list[int]:
        """The ids of a text, without BEGIN and END."""
        return [self._ids.get(token, UNKNOWN) for token in self._cut(text)]

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ids; the special ones are skipped, but UNKNOWN shows as ⁇."""
        shown = [token for token in ids if token == UNKNOWN or token >= len(SPECIALS)]
        pieces = [UNKNOWN_SURFACE if token == UNKNOWN else self._pieces[token] for token in shown]
        return self.separator.join(pieces)

    def to_bytes(self) -> bytes:
        """The kind and the tokens, in UTF-8 JSON."""
        stored = {"kind": self.kind, "tokens": list(self._ids)}
        return json.dumps(stored, ensure_ascii=False).encode("utf-8")

    @classmethod
    def build(cls: type[AnyListed], texts: Sequence[str], size: int) -> AnyListed:
        """Keeps the `size` most frequent tokens beside the special ones (0: all); of equals the first."""
        if size < 0:
            raise RecipeError(f"a {cls.kind} vocabulary of {size} is impossible; give 0 for all, or more")
        counts: Counter[str] = Counter()
        for text in texts:
            counts.update(cls._cut(text))
        return cls([token for token, _ in counts.most_common(size or None)])

    @classmethod
    def from_bytes(cls: type[AnyListed], content: bytes) -> AnyListed:
        """The tokenizer that was stored, or CorruptError."""
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
            raise _damaged(cls.kind, "a token stands in it twice")
        return cls(tokens)


@final
class Character(Listed):
    """Every character is a token; nothing of a text is lost but unknown characters."""

    kind = "character"
    separator = ""

    @staticmethod
    def _cut(text: str) -> list[str]:
        return list(text)

    def places(self, text: str) -> list[tuple[int, int]]:
        """Where each token begins and ends in the text."""
        return [(place, place + 1) for place in range(len(text))]


@final
class Word(Listed):
    """Every run of characters between white space is a token; all white space becomes one space."""

    kind = "word"
    separator = " "

    @staticmethod
    def _cut(text: str) -> list[str]:
        return text.split()

    def places(self, text: str) -> list[tuple[int, int]]:
        """Where each token begins and ends in the text."""
        return [found.span() for found in re.finditer(r"\S+", text)]


@final
class SentencePiece(Tokenizer):
    """Sub-words, learnt by byte-pair encoding (Sennrich et al. 2016; Kudo and Richardson 2018).

    Known characters come back as they were, all spaces too. Two cannot: `▁`, sentencepiece's own sign for
    a space, becomes one; the null character is always unknown.
    """

    def __init__(self, content: bytes) -> None:
        from sentencepiece import SentencePieceProcessor  # lazily: only its users pay for it

        self._content = content
        self._processor = SentencePieceProcessor()
        try:
            self._processor.LoadFromSerializedProto(content)
            pieces = [self._processor.IdToPiece(index) for index in range(self._processor.GetPieceSize())]
        except (RuntimeError, UnicodeDecodeError) as error:
            raise _damaged("sentencepiece", str(error)) from error
        # A model cut short may still load: what is lost then shows in its settings.
        unknown, spaces = self._processor.DecodeIds([UNKNOWN]), self._processor.EncodeAsIds("  ")
        if tuple(pieces[: len(SPECIALS)]) != SPECIALS or unknown != UNKNOWN_SURFACE or not spaces:
            raise _damaged("sentencepiece", "it is not whole, or not made by regard")
        super().__init__(pieces)

    def encode(self, text: str) -> list[int]:
        """The ids of a text, without BEGIN and END; unknown characters side by side are one UNKNOWN."""
        ids: list[int] = self._processor.EncodeAsIds(text)
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ids; the special ones are skipped, but UNKNOWN shows as ⁇."""
        text: str = self._processor.DecodeIds(list(ids))
        return text

    def places(self, text: str) -> list[tuple[int, int]]:
        """Where each token begins and ends in the text; the space before a word is in its first token."""
        ends = [*accumulate(map(len, self._processor.EncodeAsPieces(text)))]
        return [(max(0, begin - 1), end - 1) for begin, end in pairwise([0, *ends])]  # its first space is not ours

    def encode_on(self, text: str) -> list[int]:
        """The ids of a text that goes on: without the space that sentencepiece puts before the first word."""
        pieces = self._processor.EncodeAsPieces(NEVER_KNOWN + text)
        ids: list[int] = self._processor.EncodeAsIds(NEVER_KNOWN + text)
        own = next(index for index, piece in enumerate(pieces) if NEVER_KNOWN in piece)
        return [*([UNKNOWN] if pieces[own] != NEVER_KNOWN else []), *ids[own + 1 :]]  # it may cling to another unknown

    def begins(self, token: int) -> bool:
        """Whether a token begins a word: then a space is in it."""
        return self.piece(token).startswith("▁")

    def to_bytes(self) -> bytes:
        """The sentencepiece model, which other tools read too."""
        return self._content

    @classmethod
    def build(cls, texts: Sequence[str], size: int) -> "SentencePiece":
        """Learns up to `size` pieces, the special ones included; little data gives fewer."""
        alphabet = set[str]().union(*texts)
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
    def from_bytes(cls, content: bytes) -> "SentencePiece":
        """The tokenizer that was stored, or CorruptError."""
        return cls(content)


def _sentences(texts: Sequence[str]) -> Iterator[str]:
    yield " "  # where nothing else is left to learn from, sentencepiece would refuse
    for text in texts:
        for part in WITHIN_SPECIAL.split(text.replace("▅", " ")):  # it skips a line with ▅ in silence
            for start in range(0, len(part), LONGEST_SENTENCE):
                yield part[start : start + LONGEST_SENTENCE]


def _train(texts: Sequence[str], size: int, symbols: list[str]) -> bytes:
    """The model of sentencepiece for these texts.

    Its training is one call into C++, during which Python sees no signal: much text is given to a process of its own,
    which ends at once with this one's work.
    """
    settings: dict[str, Any] = {
        "model_type": "bpe",
        "vocab_size": size,
        "hard_vocab_limit": False,  # little data: fewer pieces, no error
        "max_sentence_length": 4 * LONGEST_SENTENCE,  # in bytes; longer ones would be skipped in silence
        "character_coverage": 1.0,
        "normalization_rule_name": "identity",
        "remove_extra_whitespaces": False,
        "user_defined_symbols": symbols,
        "pad_id": PAD,  # named as in SPECIALS: sentencepiece's own defaults
        "unk_id": UNKNOWN,
        "bos_id": BEGIN,
        "eos_id": END,
        "unk_surface": UNKNOWN_SURFACE,
        "num_threads": 1,
        "minloglevel": 2,
    }
    if sum(map(len, texts)) < MUCH or not sys.executable:
        from sentencepiece import SentencePieceTrainer

        model = io.BytesIO()
        SentencePieceTrainer.train(sentence_iterator=_sentences(texts), model_writer=model, **settings)
        return model.getvalue()
    done = subprocess.run(
        [sys.executable, "-c", TRAINER],
        input=json.dumps({"sentences": list(_sentences(texts)), "settings": settings}).encode(),
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        check=False,
    )
    if done.returncode:
        reason = done.stderr.decode(errors="replace").strip().rpartition("\n")[2]
        raise ResourceError(f"sentencepiece could not be trained on {len(texts):,} texts: {reason}")
    return done.stdout


def _damaged(kind: str, reason: str) -> CorruptError:
    return CorruptError(
        f"the stored {kind} tokenizer is damaged ({reason}); take the run from a copy, or train it again"
    )


TOKENIZERS: dict[str, type[Tokenizer]] = {
    "character": Character,
    "word": Word,
    "sentencepiece": SentencePiece,
}
