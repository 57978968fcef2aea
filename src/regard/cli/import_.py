"""`regard import`: the model of another toolkit becomes a run."""

import shlex
from pathlib import Path
from typing import Annotated

import typer

from regard.cli.core import Json, Quiet, Runs, to_json, write_line

FOLDER = typer.Argument(metavar="FOLDER", help="The local folder of a model, or its checkpoint in that folder.")
NAME = typer.Option("--name", help="The name of the run.  [default: the name of the folder]")
TOOLKITS = "hugging_face, joeynmt, opennmt, fairseq, marian"  # the names of `interop.IMPORTS`, which imports torch
TOOLKIT = typer.Option("--from", metavar="TOOLKIT", help=f"{TOOLKITS}.  [default: by the files of the folder]")


def import_(
    folder: Annotated[Path, FOLDER],
    toolkit: Annotated[str | None, TOOLKIT] = None,
    name: Annotated[str | None, NAME] = None,
    runs: Runs = Path("runs"),
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Make a run of another toolkit's model.

    The folder must be on this machine, and nothing in it is unpickled. Encoders (BERT, MiniLM, DistilBERT, RoBERTa)
    become runs of masked_lm, GPT-2 of language_model; Marian, BART, T5, and models of JoeyNMT, OpenNMT-py and fairseq
    become runs of translate.

    To fine-tune a run: regard train sst2_minilm train.start_from=runs/NAME
    An encoder-decoder: regard train runs/NAME/recipe.toml name=mine data.train=FILE train.start_from=runs/NAME
    """
    from regard.console import ProgressLog
    from regard.storage.runs import check_name

    chosen = name or (folder.resolve().name if folder.is_dir() else folder.stem)
    check_name(chosen)
    with ProgressLog(quiet=quiet) as log:
        log.begin("loading torch")
        from regard.errors import pick
        from regard.interop import IMPORTS, recognised

        kind = toolkit or recognised(folder)
        if toolkit is None and kind != "hugging_face":
            log.say(f"by its files, this is a model of {kind}")
        run, notes = pick(IMPORTS, kind, "toolkit")(folder, chosen, runs)
        for line in notes:
            log.say(line)
    write_line(to_json({"run": str(run.path), "notes": notes}) if as_json else str(run.path))
    if not quiet:
        path = shlex.quote(str(run.path))
        translates = run.recipe().task == "translate"
        log.say(f"next: regard predict {path}" if translates else f"next: regard train RECIPE train.start_from={path}")
