"""Language modelling: sentences of a small grammar with known entropy, the lowest loss that a model can reach."""

import random

from regard.data.corpora.core import Splits, draw_splits
from regard.types import Example

TEST, DEV = 1000, 300
NOUNS = ("bird", "cat", "dog", "farmer", "king", "queen", "robot", "student")
ADJECTIVES = ("angry", "big", "clever", "happy", "old", "quiet", "small", "young")
PREPOSITIONS = ("behind", "beside", "near", "with")
VERBS = ("dances", "dreams", "laughs", "reads", "runs", "sings", "sleeps", "waits")  # singular; the plural has no s


def sentences(seed: int, size: int) -> Splits:
    """Sentences of a small grammar: `the old dogs near the king sleep.`

    Every choice is uniform, so that a sentence has 13.5 bits of entropy on average: the loss of a perfect model. The
    verb agrees in number with the first noun, and a second noun may stand between them. `group` is `next` if the verb
    follows its noun, `same` or `other` if a noun of the same or the other number is between. `source` is empty.
    Sentences are drawn independently, so that some are in train and also in dev or test, which are the same for every
    seed and size.
    """
    return draw_splits("sentences", _example, seed, train=size, dev=DEV, test=TEST)


def _example(split: str, index: int, generator: random.Random) -> Example:
    """A random sentence. Bits: number 1, noun 3, adjective or not 1 (+ 3), phrase or not 1 (+ 2 + 1 + 3), verb 3."""
    plural, group = generator.random() < 0.5, "next"
    words = ["the", _noun(generator, plural)]
    if generator.random() < 0.5:
        words.insert(1, generator.choice(ADJECTIVES))
    if generator.random() < 0.5:
        second_plural = generator.random() < 0.5
        group = "same" if second_plural == plural else "other"
        words += [generator.choice(PREPOSITIONS), "the", _noun(generator, second_plural)]
    verb = generator.choice(VERBS)
    words.append(verb.removesuffix("s") if plural else verb)
    return Example("", " ".join(words) + ".", group)


def _noun(generator: random.Random, plural: bool) -> str:
    return generator.choice(NOUNS) + ("s" if plural else "")
