"""Lists the entries of all tables with a line about each, for `regard list`.

The tables are parsed from their source files, so that torch need not be imported, which is slow.
"""

import ast
import re
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from regard import recipe as recipes

HERE = Path(__file__).parent

TABLES = {
    "scores": ("attention/scores.py", "SCORES", "model.attention.score"),
    "normalizers": ("attention/normalizers.py", "NORMALIZERS", "model.attention.normalizer"),
    "scopes": ("attention/scopes.py", "SCOPES", "model.attention.scope"),
    "poolings": ("attention/pooling.py", "POOLINGS", "model.pooling"),
    "positions": ("attention/positions.py", "POSITIONS", "model.positions"),
    "encoders": ("encoders/__init__.py", "ENCODERS", "model.encoder.kind"),
    "decoders": ("decoders/__init__.py", "DECODERS", "model.decoder.kind"),
    "activations": ("layers/transformer.py", "ACTIVATIONS", "model.activation"),
    "inits": ("layers/transformer.py", "INITS", "model.init"),
    "cells": ("layers/recurrence.py", "CELLS", "model.encoder.cell, model.decoder.cell"),
    "orders": ("decoders/recurrent.py", "ORDERS", "model.decoder.order"),
    "starts": ("decoders/start.py", "STARTS", "model.decoder.start"),
    "tokenizers": ("data/tokenizers.py", "TOKENIZERS", "tokens.source, tokens.target"),
    "letters": ("models/letters.py", "LETTERS", "model.letters.kind"),
    "formats": ("data/tagged.py", "FORMATS", "data.format"),
    "corpora": ("data/corpora/__init__.py", "CORPORA", "data.corpus"),
    "schedules": ("training/schedules.py", "SCHEDULES", "train.schedule"),
    "metrics": ("metrics.py", "METRICS", "metric"),
    "sources": ("sources/__init__.py", "SOURCES", "source"),
    "tasks": ("tasks/__init__.py", "TASKS", "task"),
}


class Table(NamedTuple):
    """One table: the recipe key that chooses from it, and its entries with a line about each."""

    key: str
    entries: dict[str, str]


def tables() -> dict[str, Table]:
    """All tables of regard by name; the recipes come first."""
    summaries = {name: "".join(recipes.comment(name)[:1]) for name in recipes.names()}
    return {"recipes": Table("regard train RECIPE", summaries)} | {
        name: Table(key, _entries(HERE / path, table)) for name, (path, table, key) in TABLES.items()
    }


def _entries(path: Path, table: str) -> dict[str, str]:
    """The entries of the dictionary named `table` in a module, each with the first line of its docstring."""
    for statement in _statements(path):
        if not re.match(rf"{table}\b", statement):
            continue
        node = ast.parse(statement).body[0]
        if isinstance(node, ast.Assign | ast.AnnAssign) and isinstance(node.value, ast.Dict):
            pairs = zip(node.value.keys, node.value.values, strict=True)
            return {ast.literal_eval(key): _summary(path, value) for key, value in pairs if key is not None}
    raise AssertionError(f"{path} has no table {table}")


def _summary(path: Path, value: ast.expr) -> str:
    """The first docstring line of the class or function that is an entry's value; '' if it is not one of regard.

    It is looked up in the table's module, or in the module from which that imports it. If the value is a call, its
    first argument counts.
    """
    if isinstance(value, ast.Call):
        value = value.args[0]
    if not isinstance(value, ast.Name):
        return ""
    for statement in _statements(path):
        if re.match(rf"(class|def) {value.id}\b", statement):
            node = ast.parse(statement).body[0]
            assert isinstance(node, ast.ClassDef | ast.FunctionDef)
            return (ast.get_docstring(node) or "").split("\n", 1)[0]
        if origin := re.match(rf"from regard\.([\w.]+) import\b.*\b{value.id}\b", statement, re.DOTALL):
            return _summary(HERE.joinpath(*origin[1].split(".")).with_suffix(".py"), value)
    return ""


@lru_cache
def _statements(path: Path) -> list[str]:
    """The source of a module, split before each top-level statement.

    Only the statements needed are then parsed: to parse whole modules would take most of the time of `regard list`.
    """
    return re.split(r"^(?=[A-Za-z@])", path.read_text("utf-8"), flags=re.MULTILINE)
