"""Sentences of a small grammar, whose entropy is known: what a language model can reach, and no model can beat."""

import random

from regard.data.corpora.core import Splits
from regard.types import Example

TEST, DEV = 1000, 300
NOUNS = ("bird", "cat", "dog", "farmer", "king", "queen", "robot", "student")
ADJECTIVES = ("angry", "big", "clever", "happy", "old", "quiet", "small", "young")
PREPOSITIONS = ("behind", "beside", "near", "with")
VERBS = ("dances", "dreams", "laughs", "reads", "runs", "sings", "sleeps", "waits")  # of one; of many without the s


def sentences(seed: int, size: int) -> Splits:
    """Sentences of a small grammar: `the old dogs near the king sleep.`

    It teaches what a language model is measured by: every choice is fair, so a sentence holds 13.5 bits on average,
    and a perfect model pays just that. The verb agrees with the first noun, which a second noun may stand before:
    `group` says whether the verb is next to its noun, or after another of the same or the other number. `source` is
    empty. Sentences are drawn independently, so that dev and test hold some that train has too; they are the same
    for every seed and size.
    """
    return Splits(
        train=_examples("train", size, random.Random(f"sentences:train:{seed}")),
        dev=_examples("dev", DEV, random.Random("sentences:dev")),
        test=_examples("test", TEST, random.Random("sentences:test")),
    )


def _examples(split: str, count: int, generator: random.Random) -> list[Example]:
    return [_example(generator, f"sentences:{split}:{number}") for number in range(1, count + 1)]


def _example(generator: random.Random, origin: str) -> Example:
    """Bits, choice by choice: number 1, noun 3, with an adjective 1 (3), with a phrase 1 (2 + 1 + 3), verb 3."""
    many, group = generator.random() < 0.5, "next"
    words = ["the", _noun(generator, many)]
    if generator.random() < 0.5:
        words.insert(1, generator.choice(ADJECTIVES))
    if generator.random() < 0.5:
        others = generator.random() < 0.5
        group = "same" if others == many else "other"
        words += [generator.choice(PREPOSITIONS), "the", _noun(generator, others)]
    verb = generator.choice(VERBS)
    words.append(verb.removesuffix("s") if many else verb)
    return Example("", " ".join(words) + ".", group, origin)


def _noun(generator: random.Random, many: bool) -> str:
    return generator.choice(NOUNS) + ("s" if many else "")
