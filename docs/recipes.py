"""Writes docs/recipes.md from src/regard/recipe.py: `make docs`. A test checks that the page is up to date."""

import ast
import json
from pathlib import Path

from regard.catalogue import meanings

HERE = Path(__file__).parent
SOURCE = HERE.parent / "src/regard/recipe.py"
INTRODUCTION = """# Recipes

A **recipe** is a TOML file with the settings of a run. A key that it does not set has the default below. `regard list
recipes` names the recipes that come with regard. `regard train RECIPE KEY=VALUE ...` changes keys on the command line.
`regard show RECIPE KEY=VALUE ...` prints all values, with their meaning and where each comes from.
The run directory keeps the whole recipe in `recipe.toml`. A data file is searched for at the given path, then under
`$REGARD_DATA`, then in `./data`.

**Data files** are UTF-8 text, plain or gzip; a line ends at `\\n` or `\\r\\n`. They are read once, as a stream with the
limits of `data.limits`, so that a **decompression bomb** is refused early, with a sentence that names the key to raise.
Texts that no recipe names (`regard predict`, `vectors`, `near`, `align`, stdin) have the default limits; the stdin of
`predict` is answered as it comes, and only the size of a line has a limit there. [CSV, JSONL and Parquet
files](data.md#columns) are read by `data.columns`. Folders, pipes
(also `/dev/stdin` and `<(...)`), sockets and devices are refused where a file is meant, and so is a file that changes
while it is read. Texts and token ids are stored compactly: with two million pairs of about 12 words a side (304 MB),
the peak memory of `regard train` with words as tokens was 323 MB above its peak with a tiny file.

**Attention by site**: `model.attention` is the default for all attention of a model. The sections
`model.encoder.self_attention`, `model.decoder.self_attention` and `model.decoder.cross_attention` change single keys
for one site. The attention of a recurrent decoder is its cross-attention.

**Keys of one task** are in a section with the name of the task: `classify`, `language_model`, `tag`, `masked_lm`,
`answer`. A task refuses a key that it does not use, if its value is not the default. Runs that were stored before these
sections existed still load; in a recipe, an old name is refused with its new name. **Keys of one source** are in a
section with the name of the source: `picture`, `speech`.

**Seeds**: `train.seed` changes weights, batches and dropout, and `data.split_seed` the dev part that is split off. So
runs that differ in `train.seed` have the same dev set, and `regard compare` can join them. In recipes and runs of
format 3 and older, `train.seed` was the seed of both; they keep their dev part. Likewise `masked_lm.mask_seed` chooses
which tokens of dev and test texts are masked; in format 4 and older, `train.seed` did, and such runs keep their masks.

**Limits**: every number has a smallest and a largest value, the column *range*. The largest values are far above any
sensible use; they are there so that a recipe from elsewhere cannot overflow, hang or crash a program. Whether a model
fits into the memory of the machine is checked before anything is built or written. A recipe has at most 256 KiB, a key
at most 16 parts, a text at most 512 characters, and a list of file names at most 32,768 characters.

This page is generated from `src/regard/recipe.py`.
"""


def page() -> str:
    """The text of docs/recipes.md."""
    content = SOURCE.read_text(encoding="utf-8")
    sections = {node.name: node for node in ast.parse(content).body if isinstance(node, ast.ClassDef)}
    return INTRODUCTION + "".join(_section("Recipe", "", sections, meanings()))


def _section(name: str, prefix: str, sections: dict[str, ast.ClassDef], meaning: dict[str, str]) -> list[str]:
    """The headings and tables of a section and of all sections inside it."""
    parts = [f"\n## {prefix.rstrip('.') or 'at the top'}\n\n{ast.get_docstring(sections[name])}\n\n"]
    parts += ["| key | default | range | meaning |\n|---|---|---|---|\n"]
    nested = []
    for node in sections[name].body:
        if not isinstance(node, ast.AnnAssign):
            continue
        key, kind = ast.unparse(node.target), ast.unparse(node.annotation)
        if kind in sections:
            nested += _section(kind, f"{prefix}{key}.", sections, meaning)
        else:
            row = f"| `{prefix}{key}` | {_default(node.value)} | {_range(node.value)} | {meaning[prefix + key]} |\n"
            parts.append(row)
    return parts + nested


def _default(value: ast.expr | None) -> str:
    """The default of a key as the page shows it; a key of an attention site has None, for that of `model.attention`."""
    assert value is not None
    if isinstance(value, ast.Call):
        value = value.args[0]
    default = ast.literal_eval(value)
    if default is None:
        return "as `model.attention`"
    return f"`{json.dumps(list(default) if isinstance(default, tuple) else default)}`"  # JSON of these is TOML


def _range(value: ast.expr | None) -> str:
    """The smallest and the largest value of a number; empty for other keys."""
    if not isinstance(value, ast.Call):
        return ""
    least, most = (ast.literal_eval(limit) for limit in value.args[1:])
    return f"{least:,} to {most:,}"


if __name__ == "__main__":
    (HERE / "recipes.md").write_text(page(), encoding="utf-8")
