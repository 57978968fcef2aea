"""`regard intervene`: what a run predicts for one input before and after interventions."""

import sys
from pathlib import Path
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
    note_unfinished,
    one_line,
    print_map,
    say,
    to_json,
    write_line,
)
from regard.cli.maps import Head, Layer, Out, Pieces, Scale, SiteName, check_files, choose
from regard.errors import RecipeError
from regard.visible import is_terminal

if TYPE_CHECKING:
    from regard.maps import AttentionMap
    from regard.tasks.intervened import Intervened

SOURCE = "The source: a text, or the name of a picture, a recording or a series."
CHANGES = "What to change, such as 'erase 3', 'erase WORD', 'swap 2 5', 'force row=4 column=2', 'feed TEXT', "
CHANGES += "'silence SITE layer=2 head=3', 'uniform SITE', 'permute SITE seed=1'."
TARGET = "Force this output before and after, in place of a search."
MARKS = {"same": " ", "replaced": "~", "removed": "-", "added": "+"}


def intervene(
    run: RunPath,
    text: Annotated[str, typer.Argument(metavar="TEXT", help=SOURCE)],
    changes: Annotated[list[str], typer.Argument(metavar="CHANGE...", help=CHANGES)],
    out: Out = None,
    beam: Beam = None,
    target: Annotated[str | None, typer.Option(metavar="TEXT", help=TARGET)] = None,
    site: SiteName = None,
    layer: Layer = None,
    head: Head = None,
    pieces: Pieces = False,
    scale: Scale = None,
    as_json: Json = False,
) -> None:
    """Show what interventions do to an output.

    The output is printed before and after, and the difference token by token: ~ replaced, - removed, + added. The
    numbers are the log-probability of each token of the first output, before, after, and the change; both are forced,
    so that they are about the same tokens. They are followed by both maps.

    Layers, heads, rows, columns and positions are counted from 1. A row is the step that writes a token, a column and a
    position is a token of the source. A word that is there once may stand for its position; one of digits is put in
    double quotes. SITE is as in --site; without it, layer or head, all are changed.

    With -o, .html holds both maps; of other formats two files are written, with -before and -after in their names.
    """
    from regard import storage
    from regard.console import ProgressLog

    for value in (text, target or "", *changes):
        check_utf8(value, "an argument")
    storage.Run.open(run)  # errors before torch is loaded
    paths = [own for path in out or [] for own in _paths(path)]
    check_outputs(paths, input_files(run))
    for path in paths:
        storage.check_place(path)
    with ProgressLog(quiet=not is_terminal(sys.stderr)) as log:
        log.begin("loading torch")
        from regard.attention.intervene import read
        from regard.predict import load

        check_files(out or [], all_maps=False, scale=scale)
        interventions = read(changes)
        log.begin("loading the run")
        predictor = load(run)
        if predictor.task.reads_files:
            check_no_list(run, predictor.task, text)
        elif predictor.task.recipe.task != "forecast":
            check_no_medium(run, predictor.task, text, "a text")
        log.begin("predicting")
        result = predictor.intervene(text, interventions, target=target, beam=beam)
        maps = _maps(result, site, layer, head)
        drawings = [drawing for path in out or [] for drawing in _drawings(path, result, maps, pieces, scale)]
    note_unfinished(predictor.run)
    for path, content in drawings:
        storage.write(path, content)
        if not as_json:
            say(f"written: {path}")
    if as_json:
        write_line(to_json(result.to_dict()))
        return
    for line in _lines(result, forced=target is not None):
        write_line(line)
    for name, attention in maps.items():
        write_line("")
        write_line(name if attention.place is None else f"{name}: {attention.place}")
        print_map(attention, pieces=pieces, scale=scale)


def _maps(result: "Intervened", site: str | None, layer: int | None, head: int | None) -> "dict[str, AttentionMap]":
    """The chosen map before and after; none if the model has no attention, and no map was chosen."""
    chosen = {}
    for name, prediction in (("before", result.before), ("after", result.after)):
        if (site, layer, head) == (None, None, None) and prediction.map is None and prediction.maps is None:
            continue
        chosen[name] = choose(prediction, site, layer, head)
    return chosen


def _paths(path: Path) -> list[Path]:
    """The files that an output stands for: a page holds both maps, other formats one each."""
    if path.suffix.lower() == ".html":
        return [path]
    return [path.with_name(f"{path.stem}-{name}{path.suffix}") for name in ("before", "after")]


def _drawings(
    path: Path, result: "Intervened", maps: "dict[str, AttentionMap]", pieces: bool, scale: str | None
) -> list[tuple[Path, bytes]]:
    """The files of an output with their contents."""
    from regard.show.html import html_of_several
    from regard.show.maps import draw

    if len(maps) < 2:
        raise RecipeError("there are no maps to write: the model has no attention, or an output is blank")
    titles = {"before": result.before.title, "after": f"{result.after.title}, {_what(result)}"}
    if path.suffix.lower() == ".html":
        title = f"{result.before.title}, {_what(result)}: {result.after.text}"
        return [(path, html_of_several({(name,): own for name, own in maps.items()}, ("Map",), title, scale))]
    pairs = zip(_paths(path), maps.items(), strict=True)
    return [(own, draw(one, own.suffix, title=titles[name], pieces=pieces, scale=scale)) for own, (name, one) in pairs]


def _what(result: "Intervened") -> str:
    return ", ".join(map(str, result.interventions))


def _lines(result: "Intervened", *, forced: bool) -> list[str]:
    """The outputs, which are the same if they are forced, and the difference token by token."""
    changed = result.marked if result.changed else "nothing"
    lines = [
        f"before   {one_line(result.before.text)}\t{result.before.score:.3f}",
        f"after    {one_line(result.after.text)}\t{result.after.score:.3f}",
        *([] if forced else [f"changed  {one_line(changed)}"]),
        f"by       {one_line(_what(result))}",
    ]
    shown_tokens = [one for one in result.diff if one.kind != "same" or one.change is not None]
    width = max((len(one_line(_label(one.before, one.after))) for one in shown_tokens), default=0)
    for one in shown_tokens:
        label = one_line(_label(one.before, one.after))
        numbers = "" if one.change is None else f"  {one.log_prob:9.3f}  {one.log_prob_after:9.3f}  {one.change:+9.3f}"
        lines.append(f"{MARKS[one.kind]} {label:{width}}{numbers}".rstrip())
    return lines


def _label(before: str, after: str) -> str:
    return before if before == after else f"{before} → {after}".strip()
