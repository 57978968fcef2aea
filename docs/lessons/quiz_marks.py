"""The marks of the quiz on attention: `mark(question, letter)` says right, or in one sentence why not.

    >>> print(mark("score", "c"))
    score: not c: That is the weight already; a score is what goes into the softmax.

Who has not tried the quiz yet should not read on.
"""

from typing import NamedTuple


class Mark(NamedTuple):
    """What came of one choice."""

    question: str
    letter: str
    right: bool
    why: str = ""

    def __str__(self) -> str:
        if self.right:
            return f"{self.question}: right."
        return f"{self.question}: not {self.letter}: {self.why}" if self.letter else f"{self.question}: {self.why}"


class Key(NamedTuple):
    """The right letter of a question, and why each of the others is wrong."""

    right: str
    wrong: dict[str, str]


def mark(question: str, letter: str) -> Mark:
    """Mark one choice; an empty one is still to be made."""
    if question not in KEYS:
        raise ValueError(f"there is no question {question!r}; choose from {', '.join(KEYS)}")
    key, chosen = KEYS[question], letter.strip().lower()
    if not chosen:
        return Mark(question, "", right=False, why="no letter yet.")
    if chosen == key.right:
        return Mark(question, chosen, right=True)
    letters = ", ".join(sorted([key.right, *key.wrong]))
    return Mark(
        question, chosen, right=False, why=key.wrong.get(chosen, f"There is no such letter; choose of {letters}.")
    )


KEYS = {
    "score": Key(
        "b",
        {
            "a": "Query and key are exchanged: so word j asks word i.",
            "c": "That is the weight already; a score is what goes into the softmax.",
            "d": "There is no output in self-attention: keys are made of the words of the same sentence.",
        },
    ),
    "weight": Key(
        "d",
        {
            "a": "That is the score: it may be negative, and scores do not sum to one.",
            "b": "That sums to one over those who ask; each word has to share out its own look over the keys.",
            "c": "Each key is judged by itself so, and the weights do not sum to one.",
        },
    ),
    "sum": Key(
        "a",
        {
            "b": "Keys say how well a word answers; what it answers is its value.",
            "c": "That is a hard choice, which has no gradient; attention takes a share of every value.",
            "d": "That runs over those who ask; word i gathers from all words j that it looks at.",
        },
    ),
    "roles": Key(
        "c",
        {
            "a": "The other way round: who writes asks, and what was read is looked up.",
            "b": "The decoder cannot look at target words that are still to be written; values come of the source.",
            "d": "That is self-attention of the decoder; the source would never be seen.",
        },
    ),
    "shapes": Key(
        "b",
        {
            "a": "q is a column, so the product q W_q is not defined; matrices stand to the left of columns.",
            "c": "W_q has to be transposed: as it stands, the product is defined only where q happens to fit its rows.",
            "d": "That is a vector; the additive score needs one product more, with w, to be a number.",
        },
    ),
    "additive": Key(
        "a",
        {
            "b": "A matrix times [q; k] is the sum of two products, so the hidden layer is the same.",
            "c": "Each width has its own columns in W; nothing asks them to be equal.",
            "d": "What goes into the tanh is the same already, so what comes out of it is too.",
        },
    ),
    "scale": Key(
        "c",
        {
            "a": "The softmax sees to that, with or without the scale.",
            "b": "With numbers of mean zero that do not depend on each other the mean stays zero; the spread grows.",
            "d": "It is one division more; nothing is saved.",
        },
    ),
    "bottleneck": Key(
        "d",
        {
            "a": "A decoder writes until it writes the end; the width of its state does not limit that.",
            "b": "The encoder reads every word; what fades is how much of it is left in the last state.",
            "c": "It does: what it wrote last is what it reads next.",
        },
    ),
    "order": Key(
        "a",
        {
            "b": "So it is in Bahdanau's order; in Luong's the context enters after the step, and the new state asks.",
            "c": "So it is in Luong's order; in Bahdanau's the state before asks; the word enters with the context.",
            "d": "The states differ, so the queries and the weights do; and the context goes to another place.",
        },
    ),
    "picture": Key(
        "c",
        {
            "a": "That is a caption without attention: with one key there is nothing to choose.",
            "b": "These are what the decoder wrote; the picture would never be seen.",
            "d": "Nothing is named before; the model learns by itself which part of the picture a word needs.",
        },
    ),
}
