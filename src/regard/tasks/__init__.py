"""Tasks: each reads and encodes examples, builds its model, and computes loss, predictions and scores."""

from regard import plugins
from regard.tasks.answer import Answer
from regard.tasks.classify import Classify
from regard.tasks.core import AnyTask, Scored, Task
from regard.tasks.language_model import LanguageModelling
from regard.tasks.masked_lm import MaskedText
from regard.tasks.tag import Tag
from regard.tasks.transduce import Transduce

TASKS: dict[str, type[AnyTask]] = {
    "translate": Transduce,
    "classify": Classify,
    "language_model": LanguageModelling,
    "tag": Tag,
    "masked_lm": MaskedText,
    "answer": Answer,
}


def task_class(name: str) -> type[AnyTask]:
    """The class of a task, from the table or from an installed package."""
    return plugins.pick(TASKS, name, "task", Task)


__all__ = ["TASKS", "Answer", "AnyTask", "Classify", "MaskedText", "Scored", "Tag", "Task", "Transduce", "task_class"]
