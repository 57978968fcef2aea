"""A small recipe for each task, for tests that run every task."""

RECIPES = {
    "translate": "reverse",
    "classify": "moods",
    "language_model": "sentences",
    "tag": "parts",
    "masked_lm": "clues",
    "answer": "facts",
    "forecast": "waves",
}
