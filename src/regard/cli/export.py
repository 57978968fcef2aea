"""`regard export`: write a run for other toolkits, with a parity check."""

from pathlib import Path
from typing import Annotated

import typer

from regard.cli.core import Json, Quiet, RunPath, note_unfinished, to_json, write_beside, write_line

TO = "huggingface, ctranslate2 (Transformers), or onnx (recurrent models, too)."
OUT = "The new folder; without it, RUN-FORMAT beside the run."
PRECISION = "float32, or for ctranslate2 int8: weights of one byte."
SENTENCES = "Sentences of the parity check: from the dev data, if it is found."
FORCE = "Write the export even if the parity check fails."


def export(
    run: RunPath,
    to: Annotated[str, typer.Option(metavar="FORMAT", help=TO)],
    out: Annotated[Path | None, typer.Option("--out", "-o", metavar="FOLDER", help=OUT)] = None,
    precision: Annotated[str, typer.Option(metavar="NAME", help=PRECISION)] = "float32",
    sentences: Annotated[int, typer.Option(min=1, max=100_000, help=SENTENCES)] = 100,
    force: Annotated[bool, typer.Option("--force", help=FORCE)] = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Write a run for other toolkits.

    The folder is what `transformers`, CTranslate2 or onnxruntime load, with a model card. Before it gets its name, the
    written files translate some sentences, and the outputs are compared with the run's own; if they differ, nothing is
    written. A model that the toolkit cannot express is refused, with the key of the recipe.
    """
    from regard.console import ProgressLog
    from regard.storage import Run

    opened = Run.open(run)  # an error before torch is loaded
    with ProgressLog(quiet=quiet) as log:
        log.begin("loading torch")
        from regard.interop.export import export as export_run
        from regard.interop.sentences import sentences_of
        from regard.predict import load

        predictor = load(opened, device="cpu")
        folder = out or opened.path.resolve().with_name(f"{opened.path.resolve().name}-{to}")
        texts = sentences_of(predictor, sentences)
        exported = export_run(predictor, to, folder, texts, precision=precision, force=force)
    note_unfinished(predictor.run, quiet=quiet)
    if as_json:
        write_line(to_json({"path": str(exported.path), "parity": exported.parity}))
        return
    write_line(str(exported.path))
    write_beside("parity: ", exported.parity)
