"""`regard predict`: one line of output for each line of input."""

from typing import Annotated

import typer

from regard.cli import core
from regard.cli.core import Beam, Inputs, Json, Quiet, RunPath
from regard.errors import RecipeError

N_BEST = "With --json: outputs per text; if more than the beam, a wider search adds them."
SEARCH = "A key of the recipe's search, such as temperature=0.8; may be repeated."


def predict(
    run: RunPath,
    inputs: Inputs = None,
    text: Annotated[list[str] | None, typer.Option("--text", help="A text instead of files; may be repeated.")] = None,
    beam: Beam = None,
    n_best: Annotated[int, typer.Option(min=1, help=N_BEST)] = 1,
    search: Annotated[list[str] | None, typer.Option(metavar="KEY=VALUE", help=SEARCH)] = None,
    seed: Annotated[int, typer.Option(min=0, help="The seed of sampling (temperature above 0).")] = 0,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    r"""Print one line of output for every line of input; a language model prints the text and its continuation.

    A line of more than 5,000 tokens (or data.max_length, if that is more) gets an empty line, and a note on stderr.

    A line end within an output is printed as an escape, such as \n or \u2028; --json keeps the text unchanged.
    """
    from regard.console import track
    from regard.predict import load
    from regard.recipe import parse_override

    if text and inputs:
        raise RecipeError("give files or --text, not both")
    if "" in (inputs or []):
        raise RecipeError('the name of a file is empty; an empty text is given as --text ""')
    for argument in text or []:
        core.check_utf8(argument, "--text")
    texts = list(text) if text else core.read_texts(inputs)
    predictor = load(run)
    settings = dict(item for assignment in search or [] for item in parse_override(assignment).items())
    number = 0
    for chunk in track(core.in_chunks(texts), "predicting", quiet=quiet):
        answers = predictor.predict(chunk, beam=beam, n_best=n_best, search=settings, seed=seed + number)
        lines = []
        for answer in answers:
            number += 1
            if not answer.text and predictor.task.too_long(answer.source):
                most = f"more than {predictor.task.longest:,} tokens"
                core.note(f"line {number:,} has {most}; it is answered with an empty line")
            lines.append(core.to_json(answer.to_dict()) if as_json else core.one_line(answer.text))
        core.write_lines(lines)
        print(end="", flush=True)
