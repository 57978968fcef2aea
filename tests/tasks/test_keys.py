"""Every key of a recipe is either read by a task or refused by it."""

import dataclasses
from typing import Any

import pytest

from regard import recipe as recipes
from regard.errors import RecipeError
from regard.tasks import TASKS
from small_recipes import RECIPES

# Keys that the training loop reads for every task, and sections of attention, which are read as a whole.
OF_ALL_TASKS = (
    "name",
    "task",
    "metric",
    "train.",
    "model.embedding_from",
    "model.encoder.self_attention.",
    "model.decoder.",
)

# Keys that are read only with some data or in some searches.
LIMITS = {f"data.limits.{item.name}" for item in dataclasses.fields(recipes.Limits)}
SEARCH = {"search.length_penalty", "search.ends_in_beam", "search.no_repeat", "search.top_k", "search.top_p"}
CONDITIONAL = LIMITS | SEARCH | {"classify.header", "data.split_seed", "data.store_from"}
OF_FILES = {"forecast": {"data.test", "forecast.windows", "forecast.stride"}}  # how series of files are cut

# Keys that are refused though code that tasks share reads them: without a decoder they have no effect.
READ_WITHOUT_EFFECT = {"model.tied", "model.decoder.kind", "model.decoder.copies", "model.decoder.gated_context"}


def record_reads(section: Any, prefix: str, read: set[str]) -> Any:
    """A copy of a section of a recipe that adds the name of every key that is read to `read`."""
    names = {item.name for item in dataclasses.fields(section)}

    class Spy(type(section)):  # type: ignore[misc]
        def __getattribute__(self, name: str) -> Any:
            value = super().__getattribute__(name)
            if name in names and not dataclasses.is_dataclass(value):
                read.add(prefix + name)
            return value

    copy = object.__new__(Spy)
    for name in names:
        value = getattr(section, name)
        inner = record_reads(value, f"{prefix}{name}.", read) if dataclasses.is_dataclass(value) else value
        object.__setattr__(copy, name, inner)
    return copy


def keys_of(section: Any, prefix: str = "") -> set[str]:
    """All keys of a recipe, such as `train.seed`."""
    keys: set[str] = set()
    for item in dataclasses.fields(section):
        value = getattr(section, item.name)
        name = prefix + item.name
        keys |= keys_of(value, name + ".") if dataclasses.is_dataclass(value) else {name}
    return keys


def read_by(task: str, *overrides: str) -> set[str]:
    """The keys that a task reads while it reads data, trains, predicts and scores."""
    read: set[str] = set()
    recipe = record_reads(
        recipes.load(RECIPES[task], ["data.size=40", "train.batch_tokens=2000", *overrides]), "", read
    )
    kind = TASKS[task]
    kind.check(recipe)
    examples = kind.examples(recipe)
    learned = kind.learn(recipe, examples.train)
    model, data = learned.build(), learned.within_length(learned.encode(examples.train))
    learned.loss(model, learned.collate(data, range(4)), sampling=0.0)
    text = examples.dev[0].source or examples.dev[0].target
    learned.answer(model, [text], recipe.search)
    learned.measure(model, examples.dev[:2], learned.metrics[0], recipe.search)
    return read


MODELS = (
    ("model.encoder.kind=recurrent", "model.decoder.kind=recurrent"),
    ("model.encoder.kind=transformer", "model.decoder.kind=transformer", "model.attention.score=scaled_dot"),
)


OVERRIDES = {"language_model": ("model.decoder.order=none",)}


@pytest.mark.parametrize("task", TASKS)
def test_a_task_reads_no_key_that_it_ignores_and_ignores_every_key_that_it_never_reads(task: str) -> None:
    read: set[str] = set()
    for overrides in MODELS:
        read |= read_by(task, *overrides, *OVERRIDES.get(task, ()))
    keys = keys_of(recipes.Recipe())
    ignored = {key for key in keys if is_refused(task, key)}
    assert read & ignored <= READ_WITHOUT_EFFECT
    assert {key for key in keys - read - ignored if not key.startswith(OF_ALL_TASKS)} <= (
        CONDITIONAL | OF_FILES.get(task, set())
    )


def is_refused(task: str, key: str) -> bool:
    """Whether the task refuses a recipe in which this key has another value than the default."""
    recipe = replaced(recipes.parse("", "it", [f"task={task}"]), key.split("."))
    try:
        TASKS[task].check_keys(recipe)
    except RecipeError:
        return True
    return False


def replaced(section: Any, path: list[str]) -> Any:
    """A copy of the section with a new object at this path: it equals no other value, and no constructor takes it."""
    first, *rest = path
    copy = object.__new__(type(section))
    vars(copy).update(vars(section), **{first: replaced(getattr(section, first), rest) if rest else object()})
    return copy
