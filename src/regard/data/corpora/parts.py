"""Sentences of an invented language with the part of speech of every word."""

import random
import zlib
from collections.abc import Callable

from regard.data.corpora.core import Splits
from regard.types import Example

TEST, DEV = 1000, 500
SHARES = ("test", "test", "dev", *["train"] * 7)  # who owns how many tenths of all new stems
KNOWN = 60  # stems that all splits share

# No stem ends in what an ending could begin with or be mistaken for, and none is one of the function words.
ONSETS = ("b", "br", "d", "dr", "f", "fl", "g", "gl", "k", "kr", "l", "m", "n", "p", "pl", "r", "t", "tr", "v", "z")
VOWELS = ("a", "e", "i", "o", "u")
CODAS = ("b", "g", "k", "m", "n", "p", "t", "rk", "mp", "lt")

ONE, SOME = ("a", "this", "every"), ("some", "these", "many")  # articles of one thing, of several
PREPOSITIONS = ("in", "near", "with")

Words = list[tuple[str, str]]  # each with its tag
Stem = Callable[[], str]


def parts(seed: int, size: int) -> Splits:
    """Sentences of an invented language to parts of speech: `This gorb brimply mivs .` to `DET NOUN ADV VERB PUNCT`.

    It teaches what a tagger needs. Endings: `-ly` is an adverb, `-ish` an adjective. What stands before: a bare stem
    is a noun after `this` and a verb after a plural, `-s` the other way round, `-ed` an adjective before its noun
    and a verb after it. What comes after: `Miv` is a name before a verb, else a verb itself. Any stem may be any of
    these, so to know a word helps little. In half of the sentences, those of the group `new`, all stems are new: no
    split has those of another. Dev and test are the same for every seed and size.
    """
    return Splits(
        train=_examples("train", size, random.Random(f"parts:train:{seed}")),
        dev=_examples("dev", DEV, random.Random("parts:dev")),
        test=_examples("test", TEST, random.Random("parts:test")),
    )


def _examples(split: str, count: int, generator: random.Random) -> list[Example]:
    lexicon = _lexicon()
    examples = []
    for number in range(count):
        new = generator.random() < 0.5
        stem = (lambda: _new_stem(split, generator)) if new else (lambda: generator.choice(lexicon))
        words = _sentence(stem, generator)
        examples.append(
            Example(
                source=" ".join(word for word, _ in words),
                target=" ".join(tag for _, tag in words),
                group="new" if new else "known",
                origin=f"parts:{split}:{number + 1}",
            )
        )
    return examples


def _lexicon() -> list[str]:
    """Stems of one syllable; new ones have two."""
    generator = random.Random("parts:lexicon")
    return sorted({_syllable(generator) for _ in range(2 * KNOWN)})[:KNOWN]


def _syllable(generator: random.Random) -> str:
    return generator.choice(ONSETS) + generator.choice(VOWELS) + generator.choice(CODAS)


def _new_stem(split: str, generator: random.Random) -> str:
    """A stem that belongs to the split, drawn until one does."""
    while True:
        stem = _syllable(generator) + _syllable(generator)
        if SHARES[zlib.crc32(stem.encode()) % len(SHARES)] == split:
            return stem


def _sentence(stem: Stem, generator: random.Random) -> Words:
    if generator.random() < 0.25:  # an order
        words = [(stem(), "VERB"), *_noun_phrase(stem, generator)[0]]
    else:
        subject, several = _noun_phrase(stem, generator)
        ending = "ed" if generator.random() < 0.3 else "" if several else "s"
        adverb = [(stem() + "ly", "ADV")] if generator.random() < 0.4 else []
        words = [*subject, *adverb, (stem() + ending, "VERB")]
        words += _noun_phrase(stem, generator)[0] if generator.random() < 0.5 else []
    if generator.random() < 0.4:
        words += [(generator.choice(PREPOSITIONS), "ADP"), *_noun_phrase(stem, generator)[0]]
    (first, tag), *others = words
    return [(first[0].upper() + first[1:], tag), *others, (".", "PUNCT")]


def _noun_phrase(stem: Stem, generator: random.Random) -> tuple[Words, bool]:
    """A name, or a noun with what stands before it; and whether it means several."""
    kind = generator.choice(("name", "one", "one", "some", "number"))
    if kind == "name":
        return [(stem().capitalize(), "PROPN")], False
    first = {
        "one": (generator.choice(ONE), "DET"),
        "some": (generator.choice(SOME), "DET"),
        "number": (str(generator.randrange(2, 100)), "NUM"),
    }[kind]
    adjective = [(stem() + generator.choice(("ish", "ed")), "ADJ")] if generator.random() < 0.4 else []
    return [first, *adjective, (stem() + ("" if kind == "one" else "s"), "NOUN")], kind != "one"
