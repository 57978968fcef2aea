"""What there is to choose from, read off the tables' source: nothing heavy is imported to list it."""

import ast
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
    "activations": ("transformer.py", "ACTIVATIONS", "model.activation"),
    "inits": ("transformer.py", "INITS", "model.init"),
    "cells": ("recurrence.py", "CELLS", "model.encoder.cell, model.decoder.cell"),
    "orders": ("decoders/recurrent.py", "ORDERS", "model.decoder.order"),
    "starts": ("decoders/start.py", "STARTS", "model.decoder.start"),
    "tokenizers": ("data/tokenizers.py", "TOKENIZERS", "tokens.source, tokens.target"),
    "letters": ("models/letters.py", "LETTERS", "model.letters.kind"),
    "formats": ("data/tagged.py", "FORMATS", "data.format"),
    "corpora": ("data/corpora/__init__.py", "CORPORA", "data.corpus"),
    "schedules": ("training/schedules.py", "SCHEDULES", "train.schedule"),
    "metrics": ("metrics.py", "METRICS", "metric"),
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
    tree = ast.parse(path.read_text("utf-8"))
    for node in tree.body:
        if not isinstance(node, ast.Assign | ast.AnnAssign) or not isinstance(node.value, ast.Dict):
            continue
        target = node.target if isinstance(node, ast.AnnAssign) else node.targets[0]
        if isinstance(target, ast.Name) and target.id == table:
            pairs = zip(node.value.keys, node.value.values, strict=True)
            return {ast.literal_eval(key): _told(tree, value) for key, value in pairs if key is not None}
    raise AssertionError(f"{path} has no table {table}")


def _told(tree: ast.Module, value: ast.expr) -> str:
    """The first line of the docstring of what a table entry names."""
    if isinstance(value, ast.Call):
        value = value.args[0]
    if not isinstance(value, ast.Name):
        return ""
    for node in tree.body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and node.name == value.id:
            return (ast.get_docstring(node) or "").split("\n", 1)[0]
        if isinstance(node, ast.ImportFrom) and node.module and value.id in [name.name for name in node.names]:
            home = HERE.joinpath(*node.module.split(".")[1:]).with_suffix(".py")
            return _told(ast.parse(home.read_text("utf-8")), value)
    return ""
