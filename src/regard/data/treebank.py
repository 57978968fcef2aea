"""Rejoins English text that was split as in the Penn Treebank: "it does n't `` work ''" is `it doesn't "work"`."""

import re


def _join(found: re.Match[str]) -> str:
    """The two parts of a word, as one."""
    return found[0].replace(" ", "")


# What the Treebank's tokenizer does, undone one by one. Its pieces stand between spaces; printed text hardly has such.
_RULES = tuple(
    (re.compile(pattern, re.IGNORECASE), replacement)
    for pattern, replacement in (
        (r"-lrb-", "("), (r"-rrb-", ")"), (r"-lsb-", "["), (r"-rsb-", "]"), (r"-lcb-", "{"), (r"-rcb-", "}"),
        (r" (?=(?:n't|'(?:s|m|d|re|ve|ll))(?!\S))", ""),  # do n't, it 's
        (r"(?<!\S)``(?: |(?=[^\s`])|$)", '"'), (r" ?''(?!\S)", '"'),
        (r"(?<!\S)`(?: |$)", "'"), (r" (?='(?!\S))", ""),  # a ` small ' film, the actors ' work
        (r"(?<!\S)(can) (not)(?!\S| only)", r"\1\2"),
        (r"(?<!\S)(?:(?:gon|wan) na|got ta|(?:gim|lem) me|'t (?:is|was))(?!\S)", _join),
        (r"(?<!\S)([$#]) (?=\d)", r"\1"),
        (r"(?<![^\s\"'(\[{])([(\[{]) ", r"\1"), (r" (?=[)\]}](?:[\s\"')\]}]|$))", ""),
        (r" (?=(?:\.\.\.|[.,?!%])(?:[\s\"')\]}]|$)|[:;](?:[\s\"']|$))", ""),
    )
)  # fmt: skip


def rejoin(text: str) -> str:
    """The text as it is usually written: with "don't" for "do n't", and punctuation at the word before it."""
    for pattern, replacement in _RULES:
        text = pattern.sub(replacement, text)
    return text
