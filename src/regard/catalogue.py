"""What there is to choose from, read off the tables' source: nothing heavy is imported to list it."""

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
    """One table: the recipe key it answers, and its entries with a line about each."""

    key: str
    entries: dict[str, str]


def tables() -> dict[str, Table]:
    """Every table of regard, the recipes first."""
    told = {name: "".join(recipes.comment(name)[:1]) for name in recipes.names()}
    return {"recipes": Table("regard train RECIPE", told)} | {
        name: Table(key, _entries(HERE / path, table)) for name, (path, table, key) in TABLES.items()
    }


def _entries(path: Path, table: str) -> dict[str, str]:
    for statement in _statements(path):
        if not re.match(rf"{table}\b", statement):
            continue
        node = ast.parse(statement).body[0]
        if isinstance(node, ast.Assign | ast.AnnAssign) and isinstance(node.value, ast.Dict):
            pairs = zip(node.value.keys, node.value.values, strict=True)
            return {ast.literal_eval(key): _told(path, value) for key, value in pairs if key is not None}
    raise AssertionError(f"{path} has no table {table}")


def _told(path: Path, value: ast.expr) -> str:
    """The first line of the docstring of what a table entry names, in this module or in the one it comes from."""
    if isinstance(value, ast.Call):
        value = value.args[0]
    if not isinstance(value, ast.Name):
        return ""
    for statement in _statements(path):
        if re.match(rf"(class|def) {value.id}\b", statement):
            node = ast.parse(statement).body[0]
            assert isinstance(node, ast.ClassDef | ast.FunctionDef)
            return (ast.get_docstring(node) or "").split("\n", 1)[0]
        if found := re.match(rf"from regard\.([\w.]+) import\b.*\b{value.id}\b", statement, re.DOTALL):
            return _told(HERE.joinpath(*found[1].split(".")).with_suffix(".py"), value)
    return ""


@lru_cache
def _statements(path: Path) -> list[str]:
    """A module's top-level statements: split, since to parse whole modules takes most of the time of `regard list`."""
    return re.split(r"^(?=[A-Za-z@])", path.read_text("utf-8"), flags=re.MULTILINE)
