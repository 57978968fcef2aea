"""Part-of-speech tagging: sentences of an invented language with a tag for every word."""

import random
from collections.abc import Callable
from functools import cache

from regard.data.corpora.core import Splits, belongs, draw_splits
from regard.types import Example

TEST, DEV = 1000, 500
KNOWN = 60  # number of stems that all splits share

# No stem ends like an ending or with the first letter of one, and none is a function word.
ONSETS = ("b", "br", "d", "dr", "f", "fl", "g", "gl", "k", "kr", "l", "m", "n", "p", "pl", "r", "t", "tr", "v", "z")
VOWELS = ("a", "e", "i", "o", "u")
CODAS = ("b", "g", "k", "m", "n", "p", "t", "rk", "mp", "lt")

ONE, SOME = ("a", "this", "every"), ("some", "these", "many")  # determiners of singular and of plural nouns
PREPOSITIONS = ("in", "near", "with")

Words = list[tuple[str, str]]  # words with their tags
Stem = Callable[[], str]


def parts(seed: int, size: int) -> Splits:
    """Sentences of an invented language to parts of speech: `This gorb brimply mivs .` to `DET NOUN ADV VERB PUNCT`.

    A tagger needs three kinds of evidence. Endings: `-ly` is an adverb, `-ish` an adjective. The words before: a bare
    stem is a noun after `this` and a verb after a plural, a stem with `-s` the reverse; `-ed` is an adjective before
    its noun and a verb after it. The words after: `Miv` is a name before a verb, otherwise a verb. Any stem may have
    any of these tags, so memorised words help little. In half of the sentences, those of the group `new`, all stems are
    new: each belongs to one split only. Dev and test are the same for every seed and size.
    """
    return draw_splits("parts", _example, seed, train=size, dev=DEV, test=TEST)


def _example(split: str, index: int, generator: random.Random) -> Example:
    new = generator.random() < 0.5
    stem = (lambda: _new_stem(split, generator)) if new else (lambda: generator.choice(_lexicon()))
    words, tags = zip(*_sentence(stem, generator), strict=True)
    return Example(" ".join(words), " ".join(tags), group="new" if new else "known")


@cache
def _lexicon() -> list[str]:
    """The known stems, which have one syllable; new stems have two."""
    generator = random.Random("parts:lexicon")
    return sorted({_syllable(generator) for _ in range(2 * KNOWN)})[:KNOWN]


def _syllable(generator: random.Random) -> str:
    return generator.choice(ONSETS) + generator.choice(VOWELS) + generator.choice(CODAS)


def _new_stem(split: str, generator: random.Random) -> str:
    """A random stem whose checksum assigns it to the split."""
    while True:
        stem = _syllable(generator) + _syllable(generator)
        if belongs(stem, split):
            return stem


def _sentence(stem: Stem, generator: random.Random) -> Words:
    if generator.random() < 0.25:  # an imperative
        words = [(stem(), "VERB"), *_noun_phrase(stem, generator)[0]]
    else:
        subject, plural = _noun_phrase(stem, generator)
        ending = "ed" if generator.random() < 0.3 else "" if plural else "s"
        adverb = [(stem() + "ly", "ADV")] if generator.random() < 0.4 else []
        words = [*subject, *adverb, (stem() + ending, "VERB")]
        words += _noun_phrase(stem, generator)[0] if generator.random() < 0.5 else []
    if generator.random() < 0.4:
        words += [(generator.choice(PREPOSITIONS), "ADP"), *_noun_phrase(stem, generator)[0]]
    (first, tag), *others = words
    return [(first[0].upper() + first[1:], tag), *others, (".", "PUNCT")]


def _noun_phrase(stem: Stem, generator: random.Random) -> tuple[Words, bool]:
    """A name, or a noun with determiner or number and perhaps an adjective; and whether it is plural."""
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
