"""`regard look`: the attention map of one input."""

from pathlib import Path
from typing import Annotated

import typer

from regard.cli.core import Beam, Json, RunPath, check_utf8, one_line, print_map, to_json, write_line
from regard.errors import RecipeError

OUT = "Also write a file: .svg, .png, .html, .csv or .pharaoh; may be repeated."


def look(
    run: RunPath,
    text: Annotated[str, typer.Argument(metavar="TEXT", help="The source text.")],
    out: Annotated[list[Path] | None, typer.Option("--out", "-o", help=OUT)] = None,
    beam: Beam = None,
    as_json: Json = False,
) -> None:
    """Show the attention map of one input: what the model attended to while it wrote its output."""
    from regard import storage
    from regard.predict import load
    from regard.show import maps

    for path in out or []:
        maps.check_ending(path.suffix)  # a wrong ending or a missing package is an error before the work begins
    check_utf8(text, "TEXT")
    prediction = load(run).predict([text], beam=beam)[0]
    if prediction.map is None:
        raise RecipeError(
            "there is no map: the text is blank, or the model has no attention (model.decoder.order = none, "
            "or a classifier with a classify.pooling other than attention)"
        )
    title = f"{text} → {prediction.text}"
    drawings = [(path, maps.draw(prediction.map, path.suffix, title)) for path in out or []]
    for path, content in drawings:  # only after all are drawn without an error
        storage.write(path, content)
    if as_json:
        write_line(to_json(prediction.to_dict()))
    else:
        write_line(one_line(prediction.text))
        write_line("")
        print_map(prediction.map)
