"""Writes docs/recipes.md from src/regard/recipe.py: `make docs`. A test holds the two together."""

import ast
import json
from pathlib import Path

HERE = Path(__file__).parent
SOURCE = HERE.parent / "src/regard/recipe.py"
INTRODUCTION = """# Recipes

A recipe is a TOML file; what it leaves out has the default below. `regard list recipes` names those that
come with regard, `regard train RECIPE KEY=VALUE ...` changes keys on the line, and the run keeps the whole
recipe, every key written out, in `recipe.toml`. Files are looked for as given, then under `$REGARD_DATA`,
then in `./data`. This page is made from `src/regard/recipe.py`.
"""


def page() -> str:
    content = SOURCE.read_text(encoding="utf-8")
    lines = content.split("\n")
    sections = {node.name: node for node in ast.parse(content).body if isinstance(node, ast.ClassDef)}
    return INTRODUCTION + "".join(_section("Recipe", "", sections, lines))


def _section(name: str, prefix: str, sections: dict[str, ast.ClassDef], lines: list[str]) -> list[str]:
    parts = [f"\n## {prefix.rstrip('.') or 'at the top'}\n\n{ast.get_docstring(sections[name])}\n\n"]
    parts += ["| key | default | meaning |\n|---|---|---|\n"]
    nested = []
    for node in sections[name].body:
        if not isinstance(node, ast.AnnAssign):
            continue
        key, kind = ast.unparse(node.target), ast.unparse(node.annotation)
        if kind in sections:
            nested += _section(kind, f"{prefix}{key}.", sections, lines)
        else:
            told = lines[node.lineno - 1].partition("  # ")[2]
            parts.append(f"| `{prefix}{key}` | {_default(node.value)} | {told} |\n")
    return parts + nested


def _default(value: ast.expr | None) -> str:
    assert value is not None
    if isinstance(value, ast.Call):
        value = value.args[0]
    default = ast.literal_eval(value)
    if default is None:
        return "as `model.attention`"
    return f"`{json.dumps(list(default) if isinstance(default, tuple) else default)}`"  # JSON of these is TOML


if __name__ == "__main__":
    (HERE / "recipes.md").write_text(page(), encoding="utf-8")
