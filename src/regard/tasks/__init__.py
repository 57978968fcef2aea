"""Tasks: each reads and encodes examples, builds its model, and computes loss, predictions and scores."""

from regard import plugins
from regard.storage import Run
from regard.tasks.answer import Answer
from regard.tasks.classify import Classify
from regard.tasks.core import AnyTask, Scored, Task
from regard.tasks.forecast import Forecast, Forecasting
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
    "forecast": Forecasting,
}


def task_class(name: str) -> type[AnyTask]:
    """The class of a task, from the table or from an installed package."""
    return plugins.pick(TASKS, name, "task", Task)


def task_of(run: Run) -> AnyTask:
    """The task of a stored run; an error if the run needs a package that is not installed."""
    recipe = run.recipe()
    with plugins.loading(run.needs()):
        return task_class(recipe.task).restore(recipe, run.read)


__all__ = [
    "TASKS",
    "Answer",
    "AnyTask",
    "Classify",
    "Forecast",
    "Forecasting",
    "MaskedText",
    "Scored",
    "Tag",
    "Task",
    "Transduce",
    "task_class",
    "task_of",
]
