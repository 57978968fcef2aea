"""Rejoins English text that was split as in the Penn Treebank: "it 's n't ``fun ''" is `it's n't "fun"` in print."""

import re


def _join(found: re.Match[str]) -> str:
    """The two parts of a word, as one."""
    return found[0].replace(" ", "")


# What the Treebank's tokenizer does, undone one by one. A text without these pieces is not changed.
_RULES = tuple(
    (re.compile(pattern, re.IGNORECASE), replacement)
    for pattern, replacement in (
        (r"-lrb-", "("), (r"-rrb-", ")"), (r"-lsb-", "["), (r"-rsb-", "]"), (r"-lcb-", "{"), (r"-rcb-", "}"),
        (r"(?<=[(\[{]) | (?=[)\]}])", ""),
        (r"`` ?", '"'), (r" ?''", '"'), (r"` ?", "'"),
        (r" (?=(?:n't|'(?:s|m|d|re|ve|ll))\b)", ""),  # do n't, it 's
        (r" (?='(?:\s|$))", ""),  # the films ' end
        (r"\b(can) (not)\b(?! only)", r"\1\2"),
        (r"\b(gon|wan) (na)\b|\b(got) (ta)\b|\b(gim|lem) (me)\b|('t) (is|was)\b", _join),
        (r"(?<=[$#]) (?=\d)", ""),
        (r" (?=(?:\.\.\.|[.,;:?!%])(?:[\s\"')\]}]|$))", ""),
    )
)  # fmt: skip


def rejoin(text: str) -> str:
    """The text as it is usually written: with "don't" for "do n't", and punctuation at the word before it."""
    for pattern, replacement in _RULES:
        text = pattern.sub(replacement, text)
    return text
