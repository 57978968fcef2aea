"""`regard list` reads the tables from the source, without importing them, and shows exactly their entries."""

import inspect
from importlib import import_module

import pytest

from regard import catalogue
from regard import recipe as recipes


def imported_table(name: str) -> dict[str, object]:
    """The imported table."""
    path, table, _ = catalogue.TABLES[name]
    module = path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    return getattr(import_module(f"regard.{module}"), table)


def docstring_line(value: object) -> str:
    """The first line of an entry's docstring; for a named tuple, that of its first field."""
    entry = value[0] if isinstance(value, tuple) else value
    if not str(entry.__module__).startswith("regard."):
        return ""  # torch's own cells and functions: their docstrings are torch's
    return (inspect.getdoc(entry) or "").split("\n", 1)[0]


@pytest.mark.parametrize("name", catalogue.TABLES)
def test_the_entries_are_those_of_the_table(name: str) -> None:
    assert list(catalogue.tables()[name].entries) == list(imported_table(name))


@pytest.mark.parametrize("name", catalogue.TABLES)
def test_an_entry_is_described_by_its_docstring(name: str) -> None:
    assert catalogue.tables()[name].entries == {
        key: docstring_line(value) for key, value in imported_table(name).items()
    }


@pytest.mark.parametrize(
    "name", [name for name in catalogue.TABLES if name not in ("cells", "activations", "norm_kinds")]
)
def test_every_entry_of_regard_has_a_description(name: str) -> None:
    assert all(catalogue.tables()[name].entries.values())


NOT_KEYS = ("baselines", "interventions")  # always all; chosen on the command line, not by a recipe


@pytest.mark.parametrize("name", [name for name in catalogue.TABLES if name not in NOT_KEYS])
def test_the_keys_of_a_table_are_keys_of_a_recipe(name: str) -> None:
    for key in catalogue.tables()[name].key.split(", "):
        value: object = recipes.Recipe()
        for part in key.split("."):
            value = getattr(value, part)
        assert value == "" or value in imported_table(name)


def test_the_recipes_come_first_and_each_has_a_description() -> None:
    tables = catalogue.tables()
    assert next(iter(tables)) == "recipes"
    assert list(tables["recipes"].entries) == recipes.names()
    assert all(tables["recipes"].entries.values())
