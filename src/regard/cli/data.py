"""`regard data`: the files a recipe needs."""

from typing import Annotated

import typer

from regard.cli.core import Json, to_json
from regard.errors import DataError, RecipeError


def data(
    recipe: Annotated[str, typer.Argument(metavar="RECIPE", help="A name from `regard list`, or a .toml file.")],
    overrides: Annotated[list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="Keys to change.")] = None,
    as_json: Json = False,
) -> None:
    """Say what a recipe learns from: which files, where they were found, how large; exit code 2 if any is missing.

    Files are looked for as given, then under $REGARD_DATA, then under ./data.
    """
    from regard import recipe as recipes
    from regard.data.needs import needs, remedy

    settings = recipes.load(recipe, overrides or []).data
    if not settings.train and not settings.corpus:
        raise RecipeError("nothing to learn from: give data.train=FILE.tsv or data.corpus=NAME")
    about, found = recipes.comment(recipe), needs(settings)
    corpus = "" if settings.train else settings.corpus
    if as_json:
        named = [each._asdict() | {"path": str(each.path) if each.path else None} for each in found]
        print(to_json({"about": about, "corpus": corpus, "files": named}))
    else:
        for line in about:
            print(line)
        if corpus:
            print(f"corpus {corpus}: comes with regard, which generates {settings.size:,} examples to learn from")
        for each in found:
            told = each.problem or f"{each.path}: {each.size:,} bytes, {each.lines:,} lines"
            print(f"{each.part:<5}  {told}")
        if settings.train and not settings.dev:
            print("dev    none is named: a part of train is split off")
    mending = remedy(found)
    if mending:
        raise DataError(mending)
