"""Lists the entries of all tables with a line about each, for `regard list`, and the keys of recipes.

They are parsed from their source files: tables, so that torch need not be imported, which is slow; keys, since their
meanings are comments.
"""

import ast
import re
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from regard import plugins
from regard import recipe as recipes

HERE = Path(__file__).parent

TABLES = {
    "scores": ("attention/scores.py", "SCORES", "model.attention.score"),
    "normalizers": ("attention/normalizers.py", "NORMALIZERS", "model.attention.normalizer"),
    "scopes": ("attention/scopes.py", "SCOPES", "model.attention.scope"),
    "poolings": ("attention/pooling.py", "POOLINGS", "classify.pooling"),
    "positions": ("attention/positions.py", "POSITIONS", "model.positions"),
    "interventions": ("attention/intervene.py", "INTERVENTIONS", "regard intervene RUN TEXT CHANGE"),
    "encoders": ("encoders/__init__.py", "ENCODERS", "model.encoder.kind"),
    "decoders": ("decoders/__init__.py", "DECODERS", "model.decoder.kind"),
    "activations": ("layers/transformer.py", "ACTIVATIONS", "model.activation"),
    "norm_kinds": ("layers/transformer.py", "NORM_KINDS", "model.norm_kind"),
    "inits": ("layers/transformer.py", "INITS", "model.init"),
    "cells": ("layers/recurrence.py", "CELLS", "model.encoder.cell, model.decoder.cell"),
    "orders": ("decoders/recurrent.py", "ORDERS", "model.decoder.order"),
    "starts": ("decoders/start.py", "STARTS", "model.decoder.start"),
    "tokenizers": ("data/tokenizers.py", "TOKENIZERS", "tokens.source, tokens.target"),
    "letters": ("models/letters.py", "LETTERS", "tag.letters.kind"),
    "formats": ("data/tagged.py", "FORMATS", "tag.format"),
    "corpora": ("data/corpora/__init__.py", "CORPORA", "data.corpus"),
    "schedules": ("training/schedules.py", "SCHEDULES", "train.schedule"),
    "metrics": ("metrics/__init__.py", "METRICS", "metric"),
    "sources": ("sources/__init__.py", "SOURCES", "source"),
    "normalizations": ("data/captions.py", "NORMALIZATIONS", "data.normalize"),
    "fits": ("data/pictures.py", "FITS", "picture.fit"),
    "fronts": ("sources/picture_front.py", "FRONTS", "picture.front"),
    "grid_positions": ("sources/picture_front.py", "GRID_POSITIONS", "picture.positions"),
    "speech_fronts": ("sources/speech.py", "FRONTS", "speech.front"),
    "likelihoods": ("models/likelihoods.py", "LIKELIHOODS", "forecast.likelihood"),
    "scalings": ("data/windows.py", "SCALINGS", "forecast.scaling"),
    "tasks": ("tasks/__init__.py", "TASKS", "task"),
}


class Table(NamedTuple):
    """One table: the recipe key that chooses from it, and its entries with a line about each."""

    key: str
    entries: dict[str, str]
    added: dict[str, str]  # entries of installed packages, with where each is from

    def lines(self) -> dict[str, str]:
        """A line about each entry, regard's own first."""
        names = self.entries | self.added
        return {name: f"{self.entries.get(name, '')} {self.added.get(name, '')}".strip() for name in names}


def tables() -> dict[str, Table]:
    """All tables of regard by name; the recipes come first."""
    about = {name: "".join(recipes.comment(name)[:1]) for name in recipes.names()}
    all_tables = {"recipes": Table("regard train RECIPE", about, {})}
    for name, (path, table, key) in TABLES.items():
        entries = _entries(HERE / path, table)
        all_tables[name] = Table(key, entries, _added(name, entries))
    return all_tables


def choices() -> dict[str, list[str]]:
    """The entries that the value of a key is chosen from, by the names of keys that choose from a table."""
    found = {key: [*table.lines()] for table in tables().values() for key in table.key.split(", ") if " " not in key}
    for name in recipes.values(recipes.Recipe()):
        section, _, key = name.rpartition(".")
        if section.endswith(("self_attention", "cross_attention")) and f"model.attention.{key}" in found:
            found[name] = found[f"model.attention.{key}"]
    return found


def meanings() -> dict[str, str]:
    """The meaning of every key of a recipe: the comment behind its field in recipe.py."""
    content = (HERE / "recipe.py").read_text("utf-8")
    lines = content.split("\n")
    sections = {node.name: node for node in ast.parse(content).body if isinstance(node, ast.ClassDef)}

    def of(section: str, prefix: str) -> dict[str, str]:
        found: dict[str, str] = {}
        for node in sections[section].body:
            if isinstance(node, ast.AnnAssign):
                key, kind = prefix + ast.unparse(node.target), ast.unparse(node.annotation)
                comment = lines[node.lineno - 1].partition("  # ")[2]
                found |= of(kind, f"{key}.") if kind in sections else {key: comment}
        return found

    return of("Recipe", "")


def _added(table: str, own: Mapping[str, str]) -> dict[str, str]:
    """The entries that installed packages add to a table: none of them is imported."""
    lines = {}
    for name, entries in plugins.added_to(table).items() if table in plugins.TABLES else ():
        packages = plugins.origin(entries)
        if name in own:
            lines[name] = f"(regard's own is used, not the one from {packages})"
        else:
            lines[name] = f"(from {packages}{': uninstall all but one' if len(entries) > 1 else ''})"
    return lines


def _entries(path: Path, table: str) -> dict[str, str]:
    node = ast.parse(_statements(path)[table]).body[0]
    assert isinstance(node, ast.Assign | ast.AnnAssign)
    assert isinstance(node.value, ast.Dict)
    pairs = zip(node.value.keys, node.value.values, strict=True)
    return {ast.literal_eval(key): _summary(path, value) for key, value in pairs if key is not None}


def _summary(path: Path, value: ast.expr) -> str:
    """The first docstring line of the class or function that is an entry's value; '' if it is not one of regard.

    It is looked up in the table's module, or in the module from which that imports it. If the value is a call, its
    first argument counts.
    """
    if isinstance(value, ast.Call):
        value = value.args[0]
    statement = _statements(path).get(value.id, "") if isinstance(value, ast.Name) else ""
    if imported := re.match(r"from regard\.([\w.]+) import\b", statement):
        return _summary(HERE.joinpath(*imported[1].split(".")).with_suffix(".py"), value)
    return statement.partition('\n    """')[2].partition("\n")[0].removesuffix('"""')


@lru_cache
def _statements(path: Path) -> dict[str, str]:
    """A module's top-level statements by the names they define or import.

    They are split and not parsed, since parsing whole modules takes most of the time of `regard list`.
    """
    statements: dict[str, str] = {}
    for statement in re.split(r"^(?=[A-Za-z@])", path.read_text("utf-8"), flags=re.MULTILINE):
        if statement.startswith("from "):
            names = re.findall(r"(?:\w+ as )?(\w+)", statement.partition(" import ")[2])
        else:
            names = re.findall(r"^(?:class |def )?(\w+)(?=\(|:| = )", statement)
        for name in names:
            statements.setdefault(name, statement)
    return statements
