"""`regard look`: the attention map of one input, or all its maps."""

import math
import os
import shlex
import sys
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from regard.cli.core import (
    Beam,
    Json,
    RunPath,
    check_no_list,
    check_no_medium,
    check_outputs,
    check_utf8,
    input_files,
    note,
    note_unfinished,
    one_line,
    print_map,
    say,
    to_json,
    write_line,
    write_lines,
)
from regard.cli.maps import (
    All,
    HeadOrBest,
    Layer,
    Matrix,
    Out,
    Pieces,
    Scale,
    SiteName,
    check_files,
    choose,
    choose_all,
    head_number,
    maps_to_dict,
    reading_of,
)
from regard.cli.predict import Notes
from regard.cli.series import MapChoice, look_at_series
from regard.errors import RecipeError, shown
from regard.visible import is_terminal

if TYPE_CHECKING:
    from pathlib import Path

    from regard.predict import Predictor
    from regard.types import Prediction

SOURCE = "The source: a text, or the name of a picture, a recording or a series."
N_BEST = "Outputs of the search; those after the best are rivals, with their own maps on a .html page."
BESIDE = "Another run: its map of the same input stands beside on a .html page."
TARGET = "Show the map of this output, which the model is forced to write."


def look(
    run: RunPath,
    words: Annotated[list[str] | None, typer.Argument(metavar="TEXT", help=SOURCE)] = None,
    out: Out = None,
    beam: Beam = None,
    site: SiteName = None,
    layer: Layer = None,
    head: HeadOrBest = None,
    all_maps: All = False,
    target: Annotated[str | None, typer.Option(metavar="TEXT", help=TARGET)] = None,
    n_best: Annotated[int, typer.Option(min=1, help=N_BEST)] = 1,
    beside: Annotated[str | None, typer.Option(metavar="RUN", help=BESIDE)] = None,
    pieces: Pieces = False,
    scale: Scale = None,
    matrix: Matrix = False,
    as_json: Json = False,
) -> None:
    """Show the attention map of one input.

    It shows what the model attended to while it wrote its output. Unless another one is chosen, this is the mean of all
    heads in the last layer. The pieces of a word are merged in the terminal, .svg and .png: their columns are summed,
    their rows averaged. .html shows both, .csv the pieces. A map over a picture is a filmstrip: the picture under the
    weights of each word. A map over a recording stands above its spectrogram, with the time of each word. The terminal
    needs 256 colours for both; else it shows the weights as a matrix.

    If the run forecasts series, TEXT is the name of one in its data. The picture has its history and the forecast with
    intervals; the map below, if the model has attention, shows which past values each step attends to. .csv is a table
    of times, mean and quantiles.
    """
    from regard import storage
    from regard.console import ProgressLog

    text = _one_text(run, words or [])
    check_utf8(text, "TEXT")
    check_utf8(target or "", "--target")
    if target is not None and beam is not None:
        raise RecipeError("--beam is for a search, but --target gives the output; leave one of them out")
    if n_best > 1 and target is not None:
        raise RecipeError("--n-best is for a search, but --target gives the output; leave one of them out")
    number = head_number(head, alone=site is None and layer is None and not all_maps and beside is None)
    storage.Run.open(run)  # errors before torch is loaded
    if beside is not None:
        storage.Run.open(beside)
        _check_beside(out or [], (site, layer, head, target), matrix=matrix)
    if out:
        check_outputs(out, input_files(run))
        for path in out:
            storage.check_place(path)
    with ProgressLog(quiet=not is_terminal(sys.stderr)) as log:
        log.begin("loading torch")
        from regard.analysis.forced import force
        from regard.predict import load
        from regard.show.html import html_of_prediction, html_of_several, html_side_by_side
        from regard.show.maps import draw
        from regard.show.viewer_data import PLACES

        check_files(out or [], all_maps=all_maps, scale=scale)  # before the work begins
        log.begin("loading the run")
        predictor = load(run)
    note_unfinished(predictor.run)
    if predictor.task.recipe.task == "forecast":
        if target is not None or beam is not None or pieces or n_best > 1 or beside is not None:
            others = "--target, --beam, --n-best, --beside and --pieces"
            raise RecipeError(f"this run forecasts a series: {others} are for texts; leave them out")
        if head is not None and number is None:
            raise RecipeError("this run forecasts a series, which has no gold links: leave out --head best")
        chosen_maps = MapChoice(site, layer, number, all_maps, matrix, scale)
        look_at_series(predictor, text, out or [], chosen_maps, as_json=as_json)
        return
    reading = reading_of(head, predictor.run)
    with ProgressLog(quiet=not is_terminal(sys.stderr)) as log:
        log.begin("looking")
        if predictor.task.reads_files:
            check_no_list(run, predictor.task, text)
        else:
            check_no_medium(run, predictor.task, text, "a text")

        def answer(all_maps: bool) -> "Prediction":
            if target is not None:
                return force(predictor, [(text, target)], all_maps=all_maps)[0]
            return predictor.predict([text], beam=beam, n_best=n_best, all_maps=all_maps)[0]

        prediction = answer(all_maps or (site, layer, head) != (None, None, None))
        if prediction.map is None and prediction.maps is None:  # a language model, for example, has no map of its own
            prediction = answer(all_maps=True)
        log.begin("drawing")
        if all_maps:
            chosen = choose_all(prediction, site, layer, number)
            if matrix:
                chosen = {place: attention.without_view() for place, attention in chosen.items()}
            shown_maps = list(chosen.values())
            drawings = [(path, html_of_several(chosen, PLACES, prediction.title, scale)) for path in out or []]
        else:
            attention = choose(prediction, site, layer, number, reading)
            shown_maps = [attention.without_view() if matrix else attention]
            draw_as = partial(draw, shown_maps[0], title=prediction.title, pieces=pieces, scale=scale)
            drawings = [(path, draw_as(path.suffix)) for path in out or []]
        if beside is not None:
            log.begin("looking with the other run")
            other = load(beside).predict([text], beam=beam, n_best=n_best, all_maps=all_maps)[0]
            drawings = [(path, html_side_by_side([(run, prediction), (beside, other)], scale)) for path in out or []]
        elif prediction.alternatives and not (matrix or all_maps or site or layer or head):
            whole = {path: html_of_prediction(prediction, scale) for path, _ in drawings if _is_page(path)}
            drawings = [(path, whole.get(path, content)) for path, content in drawings]
    for sentence in _notes(predictor, run, prediction):
        note(sentence)
    for path, content in drawings:  # only after all are drawn without an error
        storage.write(path, content)
        if not as_json:
            say(f"written: {path}")
    if as_json:
        about = {} if reading is None else {"reading": str(reading)}
        write_line(to_json(prediction.to_dict() | maps_to_dict(shown_maps, all_maps=all_maps) | about))
        return
    write_line(one_line(prediction.text) + _probability(predictor, prediction))
    write_lines([f"{one_line(rival.text)}  (rival, score {rival.score:.2f})" for rival in prediction.alternatives])
    if beside is not None:
        write_line(f"{one_line(other.text)}  ({one_line(beside)})")
    if all_maps and out:  # the page shows them; in the terminal they would be hundreds of lines
        return
    for attention in shown_maps:
        write_line("")
        if attention.place is not None:
            write_line(str(attention.place if reading is None else reading))
        print_map(attention, pieces=pieces, scale=scale)


def _one_text(run: str, words: list[str]) -> str:
    """The text; RecipeError if there is none, if the run was forgotten, or if several words are not in quotes."""
    from pathlib import Path

    from regard.storage import Run

    if len(words) == 1:
        return words[0]
    if not Run.at(Path(run)) and (not words or os.sep not in run):
        text = " ".join([run, *words])
        raise RecipeError(f"{shown(run)} is no run; is this the text? Write: regard look latest {shlex.quote(text)}")
    if not words:
        raise RecipeError(f"there is no text to look at; write: regard look {shlex.quote(run)} TEXT")
    how = f"regard look {shlex.quote(run)} {shlex.quote(' '.join(words))}"
    raise RecipeError(f"the text has spaces; put it in quotes: {how}")


def _is_page(path: "Path") -> bool:
    return path.suffix.lower() == ".html"


def _check_beside(out: "list[Path]", chosen: tuple[object, ...], *, matrix: bool) -> None:
    """Raise RecipeError if two runs cannot be shown so: only a page holds both, and there their maps are chosen."""
    if not out or not all(map(_is_page, out)):
        raise RecipeError("--beside shows two runs on one page; name it with -o, such as -o both.html")
    if matrix or any(value is not None for value in chosen):
        others = "--site, --layer, --head, --target and --matrix"
        raise RecipeError(f"with --beside, maps are chosen on the page; leave out {others}")


def _notes(predictor: "Predictor", run: str, prediction: "Prediction") -> list[str]:
    """Notes about a text that may not be meant as it is read: the name of a file, or with unknown parts."""
    text = prediction.source
    if predictor.task.recipe.source == "text" and os.path.isfile(text):
        how = f"regard predict {shlex.quote(run)} {shlex.quote(text)}"
        return [f"{text} is read as a text; for the lines of a file: {how}"]
    notes = Notes(predictor.task, with_maps=True)
    notes.add(prediction)
    return notes.sentences(1)


def _probability(predictor: "Predictor", prediction: "Prediction") -> str:
    """The probability of a classifier's label, to be printed behind it; empty for other tasks."""
    from regard.tasks.classify import Classify

    is_label = isinstance(predictor.task, Classify) and prediction.text
    return f"  (probability {math.exp(prediction.score):.2f})" if is_label else ""
