"""Shared by the commands: arguments and options, reading of texts, output by lines, and notes on stderr."""

import json
import os
import shlex
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer
from typer.core import TyperCommand
from typer.models import ArgumentInfo

from regard.cli import completion
from regard.errors import DataError, RecipeError, plural, shown
from regard.visible import ENCODING_ERRORS, WITHIN_LINES, is_terminal, make_visible, unguarded

if TYPE_CHECKING:
    from regard.maps import AttentionMap
    from regard.recipe import Recipe
    from regard.storage import Run
    from regard.tasks import AnyTask

UsageError: Any = typer.BadParameter.__base__  # of click, which some versions of typer have a copy of
STDIN = "-"  # the name of stdin in place of a file
PACKED = (".gz", ".parquet")  # endings of files whose bytes are no lines of text
LISTED = 5  # unknown characters or words that a note names
CHUNK = 2000  # lines that are computed and printed at a time
# Python decodes bytes of the command line that are not UTF-8 to these; they have no encoding, in JSON an escape.
SURROGATES = range(0xD800, 0xE000)
LINE_ENDS = "\n\r\v\f\x1c\x1d\x1e\x85\u2028\u2029"  # all line ends that str.splitlines knows
VISIBLE = {ord(end): repr(end)[1:-1] for end in LINE_ENDS}
IN_JSON = {ord(end): f"\\u{ord(end):04x}" for end in LINE_ENDS} | {code: f"\\u{code:04x}" for code in SURROGATES}


class Command(TyperCommand):
    """A command whose help shows the help texts of its arguments: click 8.5 ignores the texts that typer 0.21 sets."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        hints = get_type_hints(self.callback, include_extras=True)
        for parameter in self.params:
            for info in getattr(hints.get(parameter.name or ""), "__metadata__", ()):
                if isinstance(info, ArgumentInfo):
                    parameter.help = info.help

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the arguments; every error about them gets the context, which click leaves out of some."""
        try:
            return super().parse_args(ctx, args)
        except UsageError as error:
            error.ctx = error.ctx or ctx
            raise

    def format_arguments(self, ctx: Any, formatter: Any) -> None:
        """Print nothing: typer lists the arguments with the options, and click 8.5 would list them a second time."""


COLUMNS = "Of CSV, TSV, JSONL and Parquet files: the columns to read.  [default: the recipe's]"
RECIPE = typer.Argument(
    metavar="RECIPE", help="A name from `regard list`, or a .toml file.", autocompletion=completion.recipe_names
)
Overrides = Annotated[
    list[str] | None,
    typer.Argument(metavar="[KEY=VALUE]...", help="Keys to change.", autocompletion=completion.overrides),
]
Inputs = Annotated[
    list[str] | None, typer.Argument(metavar="[FILE]...", help="Texts, one per line; - or nothing is stdin.")
]
RUN = "A run in the folder runs, or its path; latest is the last one there."
RunPath = Annotated[str, typer.Argument(metavar="RUN", help=RUN, autocompletion=completion.run_names)]
Runs = Annotated[Path, typer.Option(help="The folder for run directories.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object per line on stdout.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print only errors on stderr.")]
Columns = Annotated[str | None, typer.Option(metavar="NAME,...", help=COLUMNS)]
Beam = Annotated[int | None, typer.Option(min=1, help="Width of the beam; 1 is greedy.  [default: as the recipe says]")]


def read_batches(task: "AnyTask", names: list[str] | None, columns: str | None = None) -> Iterable[Sequence[str]]:
    """The lines of all files, `CHUNK` at a time; those of stdin (`-`, or no names) as they come, see `stream_stdin`.

    All files are read before the first batch, so that their errors come before the first output. A file with named
    columns gives a text for each record, see `input_reader`.
    """
    from regard.data.files import stream_stdin
    from regard.data.store import joined

    read, names = input_reader(task, columns), names or [STDIN]
    loaded = {name: read(name) for name in names if name != STDIN}
    if STDIN not in names:
        return in_chunks(joined([loaded[name] for name in names]))

    def stream() -> Iterator[Sequence[str]]:
        for is_stdin, group in groupby(names, STDIN.__eq__):
            yield from stream_stdin(CHUNK) if is_stdin else in_chunks(joined([loaded[name] for name in group]))

    return stream()


def read_texts(task: "AnyTask", names: list[str] | None, columns: str | None = None) -> Sequence[str]:
    """The texts of all files; the name `-` is stdin, which is also read if there are no names."""
    from regard.data.files import read_stdin
    from regard.data.store import joined

    read = input_reader(task, columns)
    return joined([read_stdin() if name == STDIN else read(name) for name in names or [STDIN]])


def input_reader(task: "AnyTask", columns: str | None) -> Callable[[str], Sequence[str]]:
    """Returns the function that reads the inputs in a file: its lines, or its records if it has named columns.

    The columns are those of --columns, or of the recipe without that of the target. If a file has columns and neither
    names any, it is refused: its lines are hardly texts.
    """
    from regard.data import records
    from regard.data.files import load
    from regard.data.paths import find
    from regard.data.store import mapped

    own, roles = task.recipe.data.columns, task.columns[:-1] or task.columns  # the last is the target, if not the only
    chosen = split_columns(columns) or own[:-1] or own
    if columns is not None and len(chosen) != len(roles):
        named = records.list_names(chosen)
        raise RecipeError(f"--columns names the columns of {' and '.join(roles)}, {len(roles)} in all, not {named}")

    def read(name: str) -> Sequence[str]:
        if columns is None and not records.is_table(name, chosen):
            return load(name)
        if chosen:
            return mapped(records.read(name, chosen).all_fields(), records.source_of)
        find(name)  # an error if it is not there
        try:
            there = f"has the columns {records.list_names(records.column_names(name))}"
        except DataError:  # it may hold lines all the same
            there = "is named like a file with columns"
        those = "that" if len(roles) == 1 else "those"
        how = f"name {those} of {' and '.join(roles)} with --columns {','.join(roles).upper()}"
        lines = f"; if its lines are texts, give it on stdin: - < {shlex.quote(name)}"
        raise RecipeError(f"{name} {there}; {how}{'' if name.lower().endswith(PACKED) else lines}")

    return read


def check_columns(columns: str | None, names: Sequence[str]) -> None:
    """Raise RecipeError if --columns is given with inputs that have none: lines of a file or of stdin, or texts."""
    if columns is None:
        return
    from regard.data.records import check_tables, may_have_columns  # imports torch, of which the commands say so

    if not (names and all(map(may_have_columns, names))):
        check_tables([name for name in names if not may_have_columns(name)], split_columns(columns), "--columns")


def split_columns(columns: str | None) -> tuple[str, ...]:
    """The names of columns in the option --columns."""
    names = tuple(name for name in (columns or "").split(",") if name)
    if columns is not None and not names:
        raise RecipeError("--columns is empty; name columns, such as english,french")
    return names


def with_columns(task: "AnyTask", names: tuple[str, ...], columns: str | None) -> "Recipe":
    """The recipe of a task to read these files with references, by --columns if they have named columns."""
    from regard.data.records import check_tables, has_columns

    data = task.recipe.data
    data = replace(data, train=(), dev=(), test=names, columns=split_columns(columns) or data.columns)
    recipe = replace(task.recipe, data=data)
    if columns is not None:
        check_tables(names, data.columns, "--columns", data.limits)
    if columns is not None or any(map(has_columns, names)):
        task.check_columns(recipe)
    return recipe


def check_no_medium(run: str, task: "AnyTask", name: str, instead: str) -> None:
    """Raise RecipeError if a run that reads texts is given the name of a picture or a recording.

    A name with a space in it is one only if there is such a file: a text may end like one.
    """
    from regard.data.media import kind_by_names
    from regard.tasks.transduce import HINTS

    kind = kind_by_names([name])
    if kind and not task.reads_files and (len(name.split()) == 1 or os.path.isfile(name)):
        nouns, recipe = HINTS[kind]
        which = f"{shown(name)} is the name of a {nouns.removesuffix('s')}"
        how = f"give {instead}, or a run that reads {nouns}, such as that of: regard train {recipe}"
        raise RecipeError(f"{which}, but {shlex.quote(run)} reads texts; {how}")


def check_no_list(run: str, task: "AnyTask", name: str) -> None:
    """Raise RecipeError if a file that should be a picture or a recording is a list of some, alone or with texts."""
    from regard.data.files import load
    from regard.data.paths import find
    from regard.data.records import ending

    try:
        if not find(name).is_file() or task.is_medium(name):
            return
        lines = [] if ending(name) else load(name)
    except DataError:  # it is not there, or no text
        return
    quoted, noun, nouns = shlex.quote(name), task.noun_of_input, plural(task.noun_of_input)
    score = f"regard score {shlex.quote(run)} {quoted}"
    if ending(name):
        columns = "" if task.recipe.data.columns else f" --columns {','.join(task.columns).upper()}"
        raise RecipeError(f"{name} is no {noun}, but a table; if it has {nouns} and texts, write: {score}{columns}")
    first = next((line for line in lines if line.strip()), "")
    if _has_texts(task, first, name):
        raise RecipeError(f"{name} has {nouns} and texts; {_how_to_use(score, quoted)}")
    if _is_named(task, first, name):
        raise RecipeError(f"{name} is a list of {nouns}; write: regard predict {shlex.quote(run)} --list {quoted}")


def check_names_alone(run: str, task: "AnyTask", name: str, lines: Sequence[str]) -> None:
    """Raise RecipeError if a file of --list has texts beside the names of pictures or recordings."""
    first = next((line for line in lines if line.strip()), "")
    if _has_texts(task, first, name):
        score = f"regard score {shlex.quote(run)} {shlex.quote(name)}"
        raise RecipeError(f"{name} has {plural(task.noun_of_input)} and texts; {_how_to_use(score, shlex.quote(name))}")


def _has_texts(task: "AnyTask", line: str, name: str) -> bool:
    """Whether a line of a file has the name of a picture or a recording, and a text after a tab."""
    first, tab, _ = line.partition("\t")
    return bool(tab) and not _is_named(task, line, name) and _is_named(task, first, name)


def _is_named(task: "AnyTask", source: str, name: str) -> bool:
    """Whether a line of a file is the name of a picture or a recording that is there, or ends like one."""
    from regard.data.media import kind_by_names
    from regard.data.paths import is_there

    return bool(source.strip()) and (is_there(task.locate(source, name)) or kind_by_names([source]) != "")


def _how_to_use(score: str, name: str) -> str:
    return f"to score the run on them, write: {score}; --list takes names alone, such as those of: cut -f1 {name}"


def check_utf8(text: str, name: str) -> None:
    """Raise DataError if a text of the command line is not UTF-8."""
    if not text.isprintable() and any(ord(character) in SURROGATES for character in text):
        raise DataError(f"{name} is not UTF-8 text: {shown(text)}; convert it first")


def check_outputs(outputs: Sequence[Path], inputs: Iterable[Path]) -> None:
    """Raise RecipeError if an output would replace an input of the same command, or another output.

    Links of both kinds count as the file itself, and so does every way to write its path.
    """
    read = {identity: path for path in inputs for identity in _identities(path)}
    written: set[object] = set()
    for output in outputs:
        identities = _identities(output)
        for identity in identities:
            if identity in read:
                what = f"would replace {shown(str(read[identity]))}, which this command reads"
                raise RecipeError(f"the output {shown(str(output))} {what}; choose another name")
        if not written.isdisjoint(identities):
            raise RecipeError(f"the output {shown(str(output))} is named twice; choose another name for one of them")
        written.update(identities)


def check_outside_runs(output: Path) -> None:
    """Raise RecipeError if an output would be a new file in the folder of a run."""
    from regard.storage import Run

    if (run := Run.around(output.parent)) is not None:
        where = f"would be in the run {shown(str(run))}, where regard keeps its own files"
        raise RecipeError(f"the output {shown(str(output))} {where}; choose another folder")


def _identities(path: Path) -> list[object]:
    """What two paths share if they are of the same file: the path without links, or the number of the file."""
    try:
        status = os.stat(path)
    except (OSError, ValueError):  # it is not there, or no file can have this name
        return [os.path.realpath(os.fspath(path).replace("\0", ""))]
    return [os.path.realpath(path), (status.st_dev, status.st_ino)]


def input_files(run: str) -> list[Path]:
    """The files that a command with this run may read: its own, and the data that its recipe names.

    There are none if the run is not there, which is refused when it is loaded.
    """
    from regard.storage import Run

    if not Run.at(Path(run)):
        return []
    opened = Run.open(run)
    return [*opened.own_paths(), *data_files(opened.recipe())]


def data_files(recipe: "Recipe") -> list[Path]:
    """The paths of all data files that a recipe names."""
    return found_files([*recipe.data.train, *recipe.data.dev, *recipe.data.test, *recipe.data.pictures])


def found_files(names: Iterable[str]) -> list[Path]:
    """The paths of data files; those that are missing are refused when they are read."""
    from regard.data.paths import find

    paths = []
    for name in names:
        with suppress(DataError, OSError, ValueError):
            paths.append(find(name))
    return paths


def in_chunks(texts: Sequence[str]) -> list[Sequence[str]]:
    """The texts in order, `CHUNK` at a time."""
    return [texts[start : start + CHUNK] for start in range(0, len(texts), CHUNK)]


def write_line(line: str) -> None:
    """Print a line on stdout; in a terminal with visible control characters, elsewhere unchanged and in UTF-8."""
    write_lines([line])


def write_lines(lines: list[str]) -> None:
    """Print lines like `write_line`, at once: a progress bar in the terminal is drawn anew after each call."""
    if is_terminal(sys.stdout):
        print("\n".join(make_visible(line, WITHIN_LINES) for line in lines))
    elif sys.stdout is not None:  # it is if it was closed before the start
        sys.stdout.buffer.write("".join(f"{line}\n" for line in lines).encode("utf-8", ENCODING_ERRORS))


def stdout_width() -> int | None:
    """The number of columns of stdout if it is a terminal; None elsewhere, where lines are not broken."""
    if not is_terminal(sys.stdout):
        return None
    from rich.console import Console

    return Console().width


def write_beside(heading: str, text: str) -> None:
    """Print a text after its heading; in a terminal, broken between words, in a column of its own."""
    from regard.console import beside

    write_lines(beside(heading, text, stdout_width()))


def write_command(heading: str, command: str) -> None:
    """Print a command of a shell after its heading; in a terminal, one that is too wide goes on after a backslash."""
    from regard.console import wrapped

    line, width = f"{heading}{command}", stdout_width()
    write_lines([line] if width is None or len(line) <= width else wrapped(line, width, " \\").split("\n"))


def note(text: object) -> None:
    """Print a sentence on stderr, after the program's name."""
    say(f"regard: {text}")


def note_unfinished(run: "Run", *, quiet: bool = False) -> None:
    """Print a note if the training of a run is not finished: its weights are those of an earlier update."""
    if quiet or run.finished():
        return
    from regard.training import how_to_resume, update_of_weights

    update, updates = update_of_weights(run), run.recipe().train.updates
    weights = "" if update is None else f": its weights are those of update {update:,} of {updates:,}"
    note(f"the run {run.path} is not finished{weights}; if it was stopped, go on with: {how_to_resume(run)}")


def blank_note(blank: int, outputs: int) -> str:
    """The note about outputs without tokens, whose maps have no rows."""
    how = "look --target TEXT shows the map of a given output"
    if outputs == 1:
        return f"the output is blank, so that its map has no rows: the model ended it at once; {how}"
    return f"{blank:,} of {outputs:,} outputs are blank, so that their maps have no rows; {how}"


class UnknownParts:
    """Counts texts with characters or words that are not in the vocabulary, for a note."""

    def __init__(self, task: "AnyTask") -> None:
        self._task, self._lacking = task, 0
        self._parts: dict[str, None] = {}  # the first ones, in their order

    def add(self, text: str) -> None:
        """Count a text."""
        parts = self._task.unknown_parts(text)
        self._lacking += bool(parts)
        if len(self._parts) <= LISTED:
            self._parts.update(dict.fromkeys(parts))

    def sentences(self, texts: int, noun: str = "lines") -> list[str]:
        """The note about this many texts; none if all parts are known."""
        if not self._lacking:
            return []
        have = "the text has" if texts == 1 else f"{self._lacking:,} of {texts:,} {noun} have"
        named = ", ".join(map(shown, [*self._parts][:LISTED])) + (", ..." if len(self._parts) > LISTED else "")
        return [f"note: {have} parts that are not in the vocabulary: {named}"]


def cut_note(cut: int, outputs: int) -> str:
    """The note about outputs that reached the longest length, and are only beginnings."""
    which = f"{cut:,} of {outputs:,} outputs were cut at the longest length"
    return f"{which}; raise search.max_ratio or search.max_extra, or train longer if they repeat themselves"


def parts_note(task: "AnyTask", recordings: int, parts: int, inputs: int) -> str:
    """The note about recordings that were cut into parts."""
    verb = "is" if recordings == 1 else "are"
    have = f"the recording {verb}" if inputs == 1 else f"{recordings:,} of {inputs:,} recordings {verb}"
    longest = f"{task.longest_in_seconds:g} seconds, the limit of training (data.max_length)"
    return f"{have} longer than {longest}; cut at silences into {parts:,} parts"


def say(line: str) -> None:
    """Print a line on stderr; in a terminal with visible control characters, and broken between words."""
    from regard.console import for_terminal

    print(for_terminal(line, sys.stderr), file=sys.stderr)


def one_line(text: str) -> str:
    """The text with every line end as an escape, so that each line of input gives one line of output."""
    return text.translate(VISIBLE)


def to_json(content: Any) -> str:
    """JSON on one line, for any definition of a line: all line ends are JSON escapes."""
    return json.dumps(content, ensure_ascii=False).translate(IN_JSON)


def print_map(attention: "AttentionMap", *, pieces: bool = False, scale: str | None = None) -> None:
    """Print the map as text, with the width and the colours of this terminal; by words, or by pieces.

    Without a `scale`, the darkest shade is the weight 1, or the largest weight of the map if all are small.
    """
    from regard.show.terminal import drawing

    print_drawing(drawing(attention if pieces else attention.words(), scale))


def print_drawing(text: str) -> None:
    """Print a drawing of `show.terminal` on stdout."""
    if is_terminal(sys.stdout):
        print(text, end="", file=unguarded(sys.stdout))  # its colours are ours, its labels are visible already
    elif sys.stdout is not None:
        sys.stdout.buffer.write(text.encode())
