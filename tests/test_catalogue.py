"""What `regard list` reads off the source is what the tables hold."""

import inspect
from importlib import import_module

import pytest

from regard import catalogue
from regard import recipe as recipes


def real(name: str) -> dict[str, object]:
    """The imported table."""
    path, table, _ = catalogue.TABLES[name]
    module = path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    return getattr(import_module(f"regard.{module}"), table)


def told(value: object) -> str:
    """The first line of an entry's own docstring; a named tuple's is that of what it wraps."""
    entry = value[0] if isinstance(value, tuple) else value
    if not str(entry.__module__).startswith("regard."):
        return ""  # torch's own cells and functions: their docstrings are torch's
    return (inspect.getdoc(entry) or "").split("\n", 1)[0]


@pytest.mark.parametrize("name", catalogue.TABLES)
def test_the_entries_are_those_of_the_table(name: str) -> None:
    assert list(catalogue.tables()[name].entries) == list(real(name))


@pytest.mark.parametrize("name", catalogue.TABLES)
def test_an_entry_is_told_by_its_docstring(name: str) -> None:
    assert catalogue.tables()[name].entries == {key: told(value) for key, value in real(name).items()}


@pytest.mark.parametrize("name", [name for name in catalogue.TABLES if name not in ("cells", "activations")])
def test_no_entry_of_regard_goes_untold(name: str) -> None:
    assert all(catalogue.tables()[name].entries.values())


@pytest.mark.parametrize("name", catalogue.TABLES)
def test_the_keys_are_keys_of_a_recipe(name: str) -> None:
    for key in catalogue.tables()[name].key.split(", "):
        value: object = recipes.Recipe()
        for part in key.split("."):
            value = getattr(value, part)
        assert value == "" or value in real(name)


def test_the_recipes_come_first_and_each_says_what_it_is() -> None:
    tables = catalogue.tables()
    assert next(iter(tables)) == "recipes"
    assert list(tables["recipes"].entries) == recipes.names()
    assert all(tables["recipes"].entries.values())
