"""`regard look`: the attention map of one input."""

from pathlib import Path
from typing import Annotated

import typer

from regard.cli.core import Beam, Json, RunPath, draw_for_terminal, one_line, to_json
from regard.errors import RecipeError


def look(
    run: RunPath,
    text: Annotated[str, typer.Argument(metavar="TEXT", help="The source to look at.")],
    out: Annotated[
        list[Path] | None,
        typer.Option(
            "--out", "-o", help="Also draw to a file, .svg, .png, .html, .csv or .pharaoh; may be given again."
        ),
    ] = None,
    beam: Beam = None,
    as_json: Json = False,
) -> None:
    """Show where the model looked while it wrote its answer."""
    from regard import storage
    from regard.predict import load
    from regard.show import maps

    for path in out or []:
        maps.drawable(path.suffix)  # a wrong ending, or a package that is missing, is said before the work
    prediction = load(run).predict([text], beam=beam)[0]
    if prediction.map is None:
        raise RecipeError(
            "there is no map: the text is blank, or the model never looks (model.decoder.order = none, "
            "or of a classifier a model.pooling other than attention)"
        )
    title = f"{text} → {prediction.text}"
    drawings = [(path, maps.draw(prediction.map, path.suffix, title)) for path in out or []]
    for path, content in drawings:  # once all are drawn
        storage.write(path, content)
    if as_json:
        print(to_json(prediction.to_dict()))
    else:
        print(f"{one_line(prediction.text)}\n\n{draw_for_terminal(prediction.map)}", end="")
