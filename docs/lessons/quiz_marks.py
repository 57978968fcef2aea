"""The marks of the quiz on attention: `mark(question, letter)` says "right", or explains the mistake in one sentence.

    >>> print(mark("score", "c"))
    score: not c: That is the weight already; a score is the input of the softmax.

Try the quiz before you read on.
"""

from typing import NamedTuple


class Mark(NamedTuple):
    """The result of one choice."""

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
    """Mark one choice; an empty letter means that none was chosen yet."""
    if question not in KEYS:
        raise ValueError(f"there is no question {question!r}; choose from {', '.join(KEYS)}")
    key, chosen = KEYS[question], letter.strip().lower()
    if not chosen:
        return Mark(question, "", right=False, why="no letter yet.")
    if chosen == key.right:
        return Mark(question, chosen, right=True)
    letters = ", ".join(sorted([key.right, *key.wrong]))
    return Mark(
        question, chosen, right=False, why=key.wrong.get(chosen, f"There is no such letter; choose from {letters}.")
    )


KEYS = {
    "score": Key(
        "b",
        {
            "a": "Query and key are exchanged: this is the score of query j and key i.",
            "c": "That is the weight already; a score is the input of the softmax.",
            "d": "There is no output in self-attention: the keys come from the words of the same sentence.",
        },
    ),
    "weight": Key(
        "d",
        {
            "a": "That is the score: it may be negative, and scores do not sum to one.",
            "b": "That sums to one over the queries; the weights of each query have to sum to one over the keys.",
            "c": "Each key is judged by itself, so the weights do not sum to one.",
        },
    ),
    "sum": Key(
        "a",
        {
            "b": "Keys decide the weights; the sum is over the values.",
            "c": "That is a hard choice, which has no gradient; soft attention sums all values by their weights.",
            "d": "That runs over the queries; the result for word i is a sum over all words j.",
        },
    ),
    "roles": Key(
        "c",
        {
            "a": "The other way round: the decoder has the query, and the encoder's states are the keys and values.",
            "b": "The decoder cannot use target words that are not written yet; keys and values come from the source.",
            "d": "That is self-attention of the decoder; it would never attend to the source.",
        },
    ),
    "shapes": Key(
        "b",
        {
            "a": "q is a column, so the product q W_q is not defined; matrices stand to the left of columns.",
            "c": "W_q has to be transposed; otherwise the product is defined only if q is as long as W_q has rows.",
            "d": "That is a vector; the additive score is its product with w, which is one number.",
        },
    ),
    "additive": Key(
        "a",
        {
            "b": "A matrix times [q; k] is the sum of two products, so the hidden layer is the same.",
            "c": "Each width has its own columns in W, so the widths may differ.",
            "d": "The input of the tanh is the same already, so its output is too.",
        },
    ),
    "scale": Key(
        "c",
        {
            "a": "The softmax does that, with or without the scale.",
            "b": "With independent numbers of mean zero the mean stays zero; the variance grows.",
            "d": "It is one more division; nothing is saved.",
        },
    ),
    "bottleneck": Key(
        "d",
        {
            "a": "A decoder writes until it writes </s>; the width of its state does not limit the length.",
            "b": "The encoder reads every word; but the last state keeps less and less of the early words.",
            "c": "It does: each word that it writes is its next input.",
        },
    ),
    "order": Key(
        "a",
        {
            "b": "That is Bahdanau's order; in Luong's the new state is the query; the context comes after the step.",
            "c": "That is Luong's order; in Bahdanau's the state before is the query; the word comes with the context.",
            "d": "The states differ, so the queries and weights differ too, and the context is used elsewhere.",
        },
    ),
    "picture": Key(
        "c",
        {
            "a": "That is a caption without attention: with one key there is nothing to choose.",
            "b": "These are the decoder's own words; it would never attend to the picture.",
            "d": "No objects are named in advance; the model learns by itself which part of the picture a word needs.",
        },
    ),
}
