"""`regard force`: the log-probability and the maps of given outputs."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from regard.cli.core import Json, Quiet, RunPath, note, one_line, to_json, write_lines
from regard.cli.maps import All, Head, Layer, Out, Pieces, SiteName, check_files, choose, choose_all
from regard.errors import DataError
from regard.visible import is_terminal

if TYPE_CHECKING:
    from regard.maps import AttentionMap
    from regard.types import Prediction

    Chosen = tuple[str, dict[tuple[str, ...], AttentionMap]]  # the title of a pair, and its maps by their place

FILES = typer.Argument(metavar="FILE...", help="Pairs, as data.test: a TSV of source and target.")
TOKENS = "Print a line for each token: the pair's number, the log-probability and the token."
MOST_FILES = 1000  # that one -o writes
CHUNK = 500  # pairs that are computed and printed at a time
END = "</s>"  # the label of the end of an output
TITLE = 60  # letters of a pair in the list of pairs on a page


def force(
    run: RunPath,
    files: Annotated[list[str], FILES],
    out: Out = None,
    site: SiteName = None,
    layer: Layer = None,
    head: Head = None,
    all_maps: All = False,
    pieces: Pieces = False,
    tokens: Annotated[bool, typer.Option("--tokens", help=TOKENS)] = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Print the log-probability of given outputs, which the model is forced to write.

    A line has the natural logarithm of the probability, that of the end included, and the output after a tab. With -o,
    the maps are written: .html and .pharaoh hold those of all pairs; for the other formats and several pairs, each pair
    has its own file, with its number in the name. Pairs with a blank side are left out.
    """
    from regard import storage
    from regard.console import ProgressLog, counted, unwatched

    check_files(out or [], all_maps=all_maps)
    maps: list[Chosen] = []
    number = 0
    with ProgressLog(quiet=quiet) as log:
        log.begin("loading torch")
        from regard.analysis.forced import force
        from regard.predict import load

        predictor = load(run)
        examples, dropped = predictor.task.reader(predictor.task.recipe)(tuple(files))
        _check_count(out or [], len(examples))
        if dropped and not quiet:
            note(f"{dropped:,} {'pair' if dropped == 1 else 'pairs'} with a blank side left out")
    with ProgressLog(quiet=quiet or is_terminal(sys.stdout)):  # there, people see the results as they come
        for start in counted(range(0, len(examples), CHUNK), "forcing outputs", size=1):
            with unwatched():
                predictions = force(predictor, examples[start : start + CHUNK], all_maps=bool(out))
            lines = []
            for prediction in predictions:
                number += 1
                lines += _lines(number, prediction, tokens=tokens, as_json=as_json)
                if out and all_maps:
                    maps.append((prediction.title, choose_all(prediction, site, layer, head)))
                elif out:
                    maps.append((prediction.title, {(): choose(prediction, site, layer, head)}))
            write_lines(lines)
    drawings = [drawing for path in out or [] for drawing in _draw(path, maps, ", ".join(files), pieces)]
    for path, content in drawings:  # only after all are drawn without an error
        storage.write(path, content)


def _lines(number: int, prediction: "Prediction", *, tokens: bool, as_json: bool) -> list[str]:
    """What is printed for a pair: its log-probability, or that of each token."""
    if as_json:
        content = {"source": prediction.source, "target": prediction.text, "score": prediction.score}
        parts = {"tokens": [*prediction.tokens, END], "token_scores": list(prediction.token_scores)}
        return [to_json(content | parts)]
    if not tokens:
        return [f"{prediction.score:.4f}\t{one_line(prediction.text)}"]
    pairs = zip([*prediction.tokens, END], prediction.token_scores, strict=True)
    return [f"{number}\t{score:.4f}\t{one_line(token)}" for token, score in pairs]


def _check_count(paths: Sequence[Path], pairs: int) -> None:
    """Refuse to write a file for each of very many pairs."""
    for path in paths:
        if pairs > MOST_FILES and path.suffix.lower() not in (".html", ".pharaoh"):
            raise DataError(
                f"{pairs:,} pairs would be as many {path.suffix} files, and at most {MOST_FILES:,} are written; "
                "give fewer pairs, or write them to a .html or .pharaoh file"
            )


def _draw(path: Path, maps: "list[Chosen]", title: str, pieces: bool) -> list[tuple[Path, bytes]]:
    """The files of the maps of all pairs, with their content."""
    from regard.show.html import PLACES, html_of_several
    from regard.show.labels import make_visible
    from regard.show.maps import draw

    ending = path.suffix.lower()
    if ending == ".html":
        pairs = {
            (f"{number}: {make_visible(name, TITLE)}", *place): attention
            for number, (name, own) in enumerate(maps, start=1)
            for place, attention in own.items()
        }
        names = PLACES if any(len(key) > 1 for key in pairs) else ()
        return [(path, html_of_several(pairs, ("Pair", *names), title))]
    drawn = [draw(next(iter(own.values())), ending, name, pieces=pieces) for name, own in maps]
    if ending == ".pharaoh" or len(drawn) == 1:
        return [(path, b"".join(drawn))]
    width = len(str(len(drawn)))
    return [(path.with_stem(f"{path.stem}-{number:0{width}}"), drawing) for number, drawing in enumerate(drawn, 1)]
