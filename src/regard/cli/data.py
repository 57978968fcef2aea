"""`regard data`: the data files of a recipe, and which of them are missing."""

from typing import Annotated

from regard.cli.core import RECIPE, Json, Overrides, to_json, write_line
from regard.errors import DataError, RecipeError


def data(recipe: Annotated[str, RECIPE], overrides: Overrides = None, as_json: Json = False) -> None:
    """List the data files of a recipe, where they were found, and their sizes; exit code 2 if any is missing.

    Files are searched for as named, then under $REGARD_DATA, then under ./data.
    """
    from regard import recipe as recipes
    from regard.data.needs import how_to_fix, needs

    settings = recipes.load(recipe, overrides or []).data
    if not settings.train and not settings.corpus:
        raise RecipeError("nothing to learn from: give data.train=FILE.tsv or data.corpus=NAME")
    about, files = recipes.comment(recipe), needs(settings)
    corpus = "" if settings.train else settings.corpus
    if as_json:
        listed = [file._asdict() | {"path": str(file.path) if file.path else None} for file in files]
        write_line(to_json({"about": about, "corpus": corpus, "files": listed}))
    else:
        for line in about:
            write_line(line)
        if corpus:
            write_line(f"corpus {corpus}: comes with regard, which generates {settings.size:,} examples to learn from")
        for file in files:
            line = file.problem or f"{file.path}: {file.size:,} bytes, {file.lines:,} lines"
            write_line(f"{file.part:<5}  {line}")
        if settings.train and not settings.dev:
            write_line("dev    none is named: a part of train is split off")
    if problem := how_to_fix(files):
        raise DataError(problem)
