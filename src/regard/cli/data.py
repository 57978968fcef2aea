"""`regard data`: the data files of a recipe, which of them are missing, and where they come from."""

from typing import TYPE_CHECKING, Annotated

from regard.cli.core import RECIPE, Json, Overrides, to_json, write_beside, write_command, write_line
from regard.errors import DataError, RecipeError, UnknownNameError

if TYPE_CHECKING:
    from regard.data.origins import Origin


def data(recipe: Annotated[str, RECIPE], overrides: Overrides = None, as_json: Json = False) -> None:
    """List the data files of a recipe.

    It prints where they were found, and their sizes; the exit code is 2 if any is missing. Files are searched for as
    named, then under $REGARD_DATA, then under ./data. Of known corpora, it prints the origin, the licence, and the
    commands that prepare the files. regard downloads nothing.
    """
    from regard import catalogue
    from regard import recipe as recipes
    from regard.data.needs import how_to_fix, needs
    from regard.data.origins import origins

    loaded = recipes.load(recipe, overrides or [], recipes.COMMAND_LINE)
    settings = loaded.data
    if not settings.train and not settings.corpus:
        raise RecipeError("nothing to learn from: give data.train=FILE.tsv or data.corpus=NAME")
    about, files, known = recipes.comment(recipe), needs(settings), origins(loaded)
    corpus = "" if settings.train else settings.corpus
    if corpus and corpus not in (names := catalogue.tables()["corpora"].lines()):
        raise UnknownNameError("corpus", corpus, names)
    if as_json:
        listed = [file._asdict() | {"path": str(file.path) if file.path else None} for file in files]
        described = {folder: origin._asdict() for folder, origin in known.items()}
        write_line(to_json({"about": about, "corpus": corpus, "files": listed, "origins": described}))
    else:
        for line in about:
            write_beside("", line)
        if corpus:
            examples = f"comes with regard, which generates {settings.size:,} examples to learn from"
            write_beside(f"corpus {corpus}: ", examples)
        for file in files:
            noun = "files" if file.part == "files" else "lines"
            line = file.problem or f"{file.path}: {file.size:,} bytes, {file.lines:,} {noun}"
            write_beside(f"{file.part:<7}", line)
        if settings.train and not settings.dev:
            write_beside(f"{'dev':<7}", "none is named: a part of train is split off")
        for folder, origin in known.items():
            _describe(folder, origin)
    if problem := how_to_fix(files):
        raise DataError(problem)


def _describe(folder: str, origin: "Origin") -> None:
    write_line("")
    write_beside(f"{folder}: ", origin.name)
    lines = {"from": origin.source, "licence": origin.licence, "paper": origin.reference, "files": origin.files}
    for heading, text in lines.items():
        if text:
            write_beside(f"  {heading:<9}", text)
    for command in origin.commands:
        write_command("  prepare  ", command)
