"""Tasks: what an example is, what is lost on it, and what an answer looks like."""

from regard.tasks.translate import Translate

TASKS = {
    "translate": Translate,
}

__all__ = ["TASKS", "Translate"]
