"""`regard import`: the model of another toolkit becomes a run."""

import shlex
from pathlib import Path
from typing import Annotated

import typer

from regard.cli.core import Json, Quiet, Runs, to_json, write_line

FOLDER = typer.Argument(metavar="FOLDER", help="A local folder with config.json, model.safetensors and a tokenizer.")
NAME = typer.Option("--name", help="The name of the run.  [default: the name of the folder]")
TOOLKIT = typer.Option("--from", metavar="TOOLKIT", help="hugging_face, or joeynmt: a model directory of JoeyNMT.")


def import_(
    folder: Annotated[Path, FOLDER],
    toolkit: Annotated[str, TOOLKIT] = "hugging_face",
    name: Annotated[str | None, NAME] = None,
    runs: Runs = Path("runs"),
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Make a run of another toolkit's model.

    The folder must be on this machine, and nothing in it is unpickled. Encoders (BERT, MiniLM, DistilBERT, RoBERTa)
    become runs of masked_lm, GPT-2 of language_model, Marian, BART and T5 of translate.

    To fine-tune such a run: regard train sst2_minilm train.start_from=runs/NAME
    An encoder-decoder: regard train runs/NAME/recipe.toml name=mine data.train=FILE train.start_from=runs/NAME
    """
    from regard.console import ProgressLog
    from regard.storage.runs import check_name

    chosen = name or folder.resolve().name
    check_name(chosen)
    with ProgressLog(quiet=quiet) as log:
        log.begin("loading torch")
        from regard.errors import pick
        from regard.interop import IMPORTS

        run, notes = pick(IMPORTS, toolkit, "toolkit")(folder, chosen, runs)
        for line in notes:
            log.say(line)
    write_line(to_json({"run": str(run.path), "notes": notes}) if as_json else str(run.path))
    if not quiet:
        log.say(f"next: regard train RECIPE train.start_from={shlex.quote(str(run.path))}")
