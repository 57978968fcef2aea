"""Tasks: what an example is, what is lost on it, and what an answer looks like."""

from regard.tasks.core import AnyTask, Scored, Task
from regard.tasks.translate import Translate

TASKS: dict[str, type[AnyTask]] = {
    "translate": Translate,
}

__all__ = ["TASKS", "AnyTask", "Scored", "Task", "Translate"]
