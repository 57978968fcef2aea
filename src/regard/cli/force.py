"""`regard force`: the log-probability and the maps of given outputs."""

import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from regard.cli import core
from regard.cli.core import Columns, Json, Quiet, RunPath, note, one_line, say, to_json, write_lines
from regard.cli.maps import (
    All,
    HeadOrBest,
    Layer,
    Out,
    Pieces,
    Scale,
    SiteName,
    check_files,
    choose,
    choose_all,
    head_number,
    reading_of,
)
from regard.errors import DataError
from regard.visible import is_terminal

if TYPE_CHECKING:
    from regard.maps import AttentionMap
    from regard.show.viewer_data import Page
    from regard.storage import GrowingFile
    from regard.types import Example, Prediction

FILES = typer.Argument(metavar="FILE...", help="Pairs, as data.test: a TSV or CSV of source and target.")
TOKENS = "Print a line for each token: the pair's number, the log-probability and the token."
MOST_FILES = 1000  # that one -o writes
CHUNK = 500  # pairs that are computed and printed at a time
CELLS = 1_000_000  # of the maps of one head of so many pairs, if all their maps are computed
END = "</s>"  # the label of the end of an output
TITLE = 60  # letters of a pair in the list of pairs on a page


def force(
    run: RunPath,
    files: Annotated[list[str], FILES],
    columns: Columns = None,
    out: Out = None,
    site: SiteName = None,
    layer: Layer = None,
    head: HeadOrBest = None,
    all_maps: All = False,
    pieces: Pieces = False,
    scale: Scale = None,
    tokens: Annotated[bool, typer.Option("--tokens", help=TOKENS)] = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Print the log-probability of given outputs.

    The model is forced to write them. A line has the natural logarithm of the probability, that of the end included,
    and the output after a tab. With -o, the maps are written: .html and .pharaoh hold those of all pairs; for the other
    formats and several pairs, each pair has its own file, with its number in the name. Maps are written pair by pair, a
    page at the end. A numbered name that is taken is an error at the start: no such file is replaced. Pairs with a
    blank side are left out.
    """
    from regard.console import ProgressLog, counted, unwatched

    chosen_head = head_number(head, alone=site is None and layer is None and not all_maps)
    with ProgressLog(quiet=quiet) as log:
        log.begin("loading torch")
        from regard.analysis.forced import force
        from regard.predict import load

        check_files(out or [], all_maps=all_maps, scale=scale)
        predictor = load(run)
        recipe = core.with_columns(predictor.task, tuple(files), columns)
        examples, dropped = predictor.task.reader(recipe)(tuple(files))
    reading = reading_of(head, predictor.run)
    core.note_unfinished(predictor.run, quiet=quiet)
    drawings = [Drawing(path, len(examples), ", ".join(files), pieces, scale) for path in out or []]
    if drawings:  # a name that is taken is an error before the work begins
        paths = [path for drawing in drawings for path in drawing.paths]
        core.check_outputs(paths, [*core.found_files(files), *core.input_files(run)])
        for drawing in drawings:
            drawing.check_names()
    if dropped and not quiet:
        note(f"{dropped:,} {'pair' if dropped == 1 else 'pairs'} with a blank side left out")
    number = 0
    with ExitStack() as stack:
        stack.enter_context(ProgressLog(quiet=quiet or is_terminal(sys.stdout)))  # there, people see the results
        for drawing in drawings:
            stack.enter_context(drawing)
        for batch in counted(list(_batches(examples, with_maps=bool(drawings))), "forcing outputs", size=1):
            with unwatched():
                predictions = force(predictor, batch, all_maps=bool(drawings))
            lines = []
            for prediction in predictions:
                number += 1
                lines += _lines(number, prediction, tokens=tokens, as_json=as_json)
                for drawing in drawings:
                    if all_maps:
                        drawing.add(prediction.title, choose_all(prediction, site, layer, chosen_head))
                    else:
                        drawing.add(prediction.title, {(): choose(prediction, site, layer, chosen_head, reading)})
            write_lines(lines)
    for drawing in drawings:
        if not (quiet or as_json):
            say(f"written: {drawing.describe()}")


def _batches(examples: "Sequence[Example]", *, with_maps: bool) -> "Iterator[Sequence[Example]]":
    """The pairs in order, at most `CHUNK` at a time; with maps, so few that those of all heads fit into memory."""
    start = cells = 0
    for end, example in enumerate(examples):
        own = (len(example.source) + len(example.target)) ** 2 if with_maps else 0
        if end > start and (end - start >= CHUNK or cells + own > CELLS):
            yield examples[start:end]
            start, cells = end, 0
        cells += own
    if start < len(examples):
        yield examples[start:]


class Drawing:
    """Writes the maps of all pairs to the files of one -o as they come, so that they are not kept in memory.

    A page of all maps is written at the end; it keeps no more of them than it shows.
    """

    def __init__(self, path: Path, pairs: int, title: str, pieces: bool, scale: str | None) -> None:
        self.path, self.ending, self.pairs, self.pieces = path, path.suffix.lower(), pairs, pieces
        self.title, self.scale = title, scale
        self.drawn = 0  # pairs
        self.paths = self._paths()  # all files that are written
        self._page: Page | None = None
        self._file: GrowingFile | None = None

    def _paths(self) -> list[Path]:
        """A path for each pair if the format holds one map; DataError if that is too many."""
        if self.ending in (".html", ".pharaoh") or self.pairs == 1:
            return [self.path]
        if self.pairs > MOST_FILES:
            raise DataError(
                f"{self.pairs:,} pairs would be as many {self.path.suffix} files, and at most {MOST_FILES:,} are "
                "written; give fewer pairs, or write them to a .html or .pharaoh file"
            )
        width = len(str(self.pairs))
        return [self.path.with_stem(f"{self.path.stem}-{number:0{width}}") for number in range(1, self.pairs + 1)]

    def describe(self) -> str:
        """The names of its files: of several, the first and the last."""
        first, last = self.paths[0], self.paths[-1]
        return str(first) if first == last else f"{len(self.paths):,} files, {first} to {last}"

    def check_names(self) -> None:
        """Raise StorageError if a file cannot be written, or has a numbered name that is taken."""
        from regard import storage

        for path in self.paths:
            (storage.check_place if path == self.path else storage.check_new)(path)

    def __enter__(self) -> "Drawing":
        from regard import storage
        from regard.show.viewer_data import check_count

        if self.ending == ".html":
            check_count(self.pairs)
        if self.ending == ".pharaoh":
            self._file = storage.GrowingFile(self.path).__enter__()
        return self

    def add(self, name: str, maps: "dict[tuple[str, ...], AttentionMap]") -> None:
        """Draw the maps of the next pair, which are given by their place."""
        from regard.show.maps import draw

        self.drawn += 1
        if self.ending == ".html":
            self._add_to_page(name, maps)
            return
        content = draw(next(iter(maps.values())), self.ending, name, pieces=self.pieces, scale=self.scale)
        if self._file is not None:
            self._file.write(content)
        else:
            self._write(self.paths[self.drawn - 1], content)

    def _write(self, path: Path, content: bytes) -> None:
        """Write a file; one that the user has named is replaced, a numbered one must be new."""
        from regard import storage

        (storage.write if path == self.path else storage.create)(path, content)

    def _add_to_page(self, name: str, maps: "dict[tuple[str, ...], AttentionMap]") -> None:
        from regard.show.labels import make_visible
        from regard.show.viewer_data import PLACES, Page, check_count

        if self._page is None:
            check_count(len(maps) * self.pairs)
            self._page = Page(("Pair", *(PLACES if any(maps) else ())), self.title, scale=self.scale)
        for place, attention in maps.items():
            self._page.add((f"{self.drawn}: {make_visible(name, TITLE)}", *place), attention)

    def __exit__(self, *error: Any) -> None:
        from regard import storage
        from regard.show.html import page

        if self._file is not None:
            self._file.__exit__(*error)
        if self._page is not None and error[0] is None:
            storage.write(self.path, page(self._page.data()))


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
