"""`regard predict`: one line of output for each line of input, or for each recording or picture."""

import os
import shlex
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from regard.cli import core
from regard.cli.core import STDIN, Beam, Columns, Inputs, Json, Quiet, RunPath
from regard.cli.series import forecast_files
from regard.errors import DataError, RecipeError, plural, quantity, shown
from regard.visible import is_terminal

if TYPE_CHECKING:
    from regard.tasks import AnyTask
    from regard.types import Prediction

N_BEST = "With --json: outputs per text; if more than the beam, a wider search adds them."
SEARCH = "A key of the recipe's search, such as temperature=0.8; may be repeated."
MAPS = "With --json: attention maps, too; they are most of its size."
RAY = "Predict texts on a Ray cluster, HOST:PORT, or on a new one here: local. The outputs are the same."
LIST = "Of a run that reads recordings or pictures: a file with their names, one per line; may be repeated."
LONGEST_QUOTED = 100  # characters of a text that a suggested command repeats


def predict(
    run: RunPath,
    inputs: Inputs = None,
    text: Annotated[list[str] | None, typer.Option("--text", help="A text instead of files; may be repeated.")] = None,
    lists: Annotated[list[str] | None, typer.Option("--list", metavar="FILE", help=LIST)] = None,
    columns: Columns = None,
    beam: Beam = None,
    n_best: Annotated[int, typer.Option(min=1, help=N_BEST)] = 1,
    search: Annotated[list[str] | None, typer.Option(metavar="KEY=VALUE", help=SEARCH)] = None,
    seed: Annotated[int, typer.Option(min=0, help="The seed of sampling (temperature above 0).")] = 0,
    as_json: Json = False,
    maps: Annotated[bool, typer.Option("--maps", help=MAPS)] = False,
    ray: Annotated[str | None, typer.Option(metavar="ADDRESS", help=RAY)] = None,
    processes: Annotated[int, typer.Option(min=1, help="With --ray: so many processes, each with the run.")] = 1,
    quiet: Quiet = False,
) -> None:
    r"""Print a line of output for each of input.

    A language model prints the text and its continuation. Lines of stdin are answered as they come: one at a time if
    they are typed, many at once if they are waiting.

    If the run reads recordings or pictures, each file is one input, and a line of stdin names one. Of a folder, the
    files in it that are recordings or pictures are read, sorted by name; folders in it are not searched.

    A recording that is longer than the limit of training (data.max_length) is cut at silences; the outputs of its
    parts are joined.

    If the run forecasts series, a file is a CSV of series. The output is a CSV with mean and quantiles of each step;
    --json has the sample paths, too.

    A picture or a recording that cannot be read gets an empty line, a sentence on stderr says why, and the exit code is
    2. If none can be read, nothing is printed.

    A line of more than 5,000 tokens (or data.max_length, if that is more) gets an empty line, and a note on stderr.

    A line end within an output is printed as an escape, such as \n or \u2028; --json keeps the text unchanged.
    """
    from regard.console import ProgressLog, track
    from regard.recipe import parse_override
    from regard.storage import Run

    if n_best > 1 and not as_json:
        raise RecipeError("--n-best adds further outputs to JSON; add --json, or leave it out for the best alone")
    if maps and not as_json:
        raise RecipeError("--maps adds attention maps to JSON; add --json, or write: regard look RUN TEXT")
    if ray == "":
        raise RecipeError("--ray needs the address of a Ray cluster, HOST:PORT, or local")
    if processes > 1 and ray is None:
        raise RecipeError("--processes is for --ray; add --ray local, or leave it out")
    _check_inputs(inputs, text, lists, columns)
    Run.open(run)  # an error before torch is loaded
    with ProgressLog(quiet=quiet or not is_terminal(sys.stderr)) as log:
        log.begin("loading torch")
        from regard.predict import load

        log.begin("loading the run")
        predictor = load(run)
    core.note_unfinished(predictor.run, quiet=quiet)
    if ray is not None and (predictor.task.reads_files or predictor.task.recipe.task == "forecast"):
        raise RecipeError(f"--ray is for runs that read texts, which {run} does not; leave it out")
    if predictor.task.recipe.task == "forecast":
        _check_series(text, lists, beam, n_best, search)
        forecast_files(predictor, inputs or [], columns, seed, as_json=as_json, maps=maps, quiet=quiet)
        return
    if predictor.task.reads_files:
        batches = _named_files(run, predictor.task, inputs, text, lists, quiet=quiet)
    else:
        _check_texts(run, predictor.task, inputs, lists)
        batches = core.in_chunks(text) if text else core.read_batches(predictor.task, inputs, columns)
    if not (quiet or text or lists) and STDIN in (inputs or [STDIN]) and is_terminal(sys.stdin):
        what = "the name of a file" if predictor.task.reads_files else "a text"
        core.say(f"type {what} on each line; Ctrl-D ends")
    settings = dict(item for assignment in search or [] for item in parse_override(assignment).items())
    notes, number, unreadable = Notes(predictor.task, with_maps=maps), 0, 0
    remote: Iterator[list[Prediction]] = iter(())
    if ray is not None:
        from regard.training import clusters

        batches = list(batches)
        options = {"beam": beam, "n_best": n_best, "search": settings, "seed": seed}
        remote = clusters.predict(predictor.run, batches, options, ray, processes)
    is_known = isinstance(batches, Sequence)  # all inputs, and not those of stdin
    for batch in track(batches, "predicting", quiet=quiet):
        ask = partial(predictor.predict, beam=beam, n_best=n_best, search=settings, seed=seed + number)
        if ray is None:
            answered = _answer(predictor.task, batch, ask, one_must_be_readable=is_known and not number)
        else:
            answered = [Answered(prediction) for prediction in next(remote)]
        for answer, problem in answered:
            number += 1
            if problem:
                unreadable += 1
                core.note(problem)
            elif answer.problem:
                core.note(f"line {number:,} has {answer.problem}; it is answered with an empty line")
            elif not quiet:
                notes.add(answer)
        if maps:  # not at once: the maps of a batch as text may take gigabytes
            for one in answered:
                core.write_line(one.to_json(maps=True))
        elif as_json:
            core.write_lines([one.to_json(maps=False) for one in answered])
        else:
            core.write_lines([core.one_line(answer.text) for answer, _ in answered])
        print(end="", flush=True)
    for sentence in notes.sentences(number):
        core.note(sentence)
    if unreadable:
        line = "an empty text and the key error" if as_json else "an empty line"
        nouns = plural(predictor.task.noun_of_input)
        raise DataError(f"{unreadable:,} of {number:,} {nouns} cannot be read; each has {line} in the output")


class Answered(NamedTuple):
    """The answer to an input; a blank one if it cannot be read, and the reason."""

    prediction: "Prediction"
    problem: str = ""

    def to_json(self, *, maps: bool) -> str:
        """The line of --json."""
        return core.to_json(self.prediction.to_dict(maps=maps) | ({"error": self.problem} if self.problem else {}))


def _answer(
    task: "AnyTask",
    inputs: Sequence[str],
    ask: "Callable[[Sequence[str]], list[Prediction]]",
    *,
    one_must_be_readable: bool,
) -> list[Answered]:
    """The answers to inputs; those that cannot be read, such as damaged pictures, do not keep the others from theirs.

    If all are so, and `one_must_be_readable`, the error of the first is raised: then nothing is printed.
    """
    try:
        return [Answered(prediction) for prediction in ask(inputs)]
    except DataError:
        problems = [task.problem_of(source) for source in inputs]
        if not any(problems) or (one_must_be_readable and all(problems)):
            raise
    predictions = ask(["" if problem else source for source, problem in zip(inputs, problems, strict=True)])
    return [
        Answered(replace(prediction, source=source), problem)
        for source, prediction, problem in zip(inputs, predictions, problems, strict=True)
    ]


def _check_inputs(
    inputs: list[str] | None, texts: list[str] | None, lists: list[str] | None, columns: str | None
) -> None:
    """Refuse inputs that cannot be meant, whatever the run reads: files and texts, columns of lines."""
    if texts and (inputs or lists):
        raise RecipeError("give files or --text, not both")
    for text in texts or []:
        core.check_utf8(text, "--text")
    if "" in (inputs or []):
        raise RecipeError('the name of a file is empty; an empty text is given as --text ""')
    core.check_columns(columns, inputs or [])


def _check_series(
    texts: list[str] | None, lists: list[str] | None, beam: int | None, n_best: int, search: list[str] | None
) -> None:
    """Refuse options that a forecast does not have."""
    given = {"--text": texts, "--list": lists, "--beam": beam, "--n-best": n_best > 1, "--search": search}
    for option, value in given.items():
        if value:
            raise RecipeError(f"{option} is not for runs that forecast series; leave it out, and give a CSV file")


def _check_texts(run: str, task: "AnyTask", inputs: list[str] | None, lists: list[str] | None) -> None:
    """Refuse inputs that a run which reads texts cannot have: lists of files, a text in place of a file."""
    from regard.data.paths import is_there

    if lists:
        raise RecipeError(
            f"--list is for runs that read recordings or pictures; {run} reads texts: give the file itself"
        )
    for name in inputs or []:
        core.check_no_medium(run, task, name, "a file of texts, or --text TEXT")
        if name != STDIN and _looks_like_text(name) and not is_there(name):
            text = shlex.quote(name) if len(name) <= LONGEST_QUOTED else "TEXT"
            how = f"regard predict {shlex.quote(run)} --text {text}"
            raise RecipeError(f"there is no file {shown(name)}; if it is the text itself, write: {how}")


def _named_files(
    run: str,
    task: "AnyTask",
    inputs: list[str] | None,
    texts: list[str] | None,
    lists: list[str] | None,
    *,
    quiet: bool,
) -> Iterable[Sequence[str]]:
    """The names of files that are inputs themselves: arguments, lines of lists, otherwise lines of stdin."""
    from regard.data.files import load

    if STDIN in (inputs or []) and (len(inputs or []) > 1 or lists):
        raise RecipeError("- reads names from stdin; give it alone, without other files")
    if not (texts or lists) and inputs in (None, [], [STDIN]):
        return core.read_batches(task, None)
    listed = []
    for name in lists or []:
        lines = load(name)
        core.check_names_alone(run, task, name, lines)
        listed += [task.locate(line, name) if line.strip() else "" for line in lines]
    for name in inputs or []:
        core.check_no_list(run, task, name)
    named = [file for name in inputs or [] for file in _files_of(task, name, quiet=quiet)]
    return core.in_chunks([*(texts or named), *listed])


def _files_of(task: "AnyTask", name: str, *, quiet: bool) -> list[str]:
    """The files that an argument names: of a folder, those in it that the task reads."""
    if not os.path.isdir(name):
        return [name]
    names, others = task.files_in(name)
    if not names:
        files = "files of other kinds" if others else "nothing at all"
        raise DataError(f"{name} has no {task.noun_of_input} in it, but {files}; name another folder, or a file")
    if not quiet:
        skipped = f"; {others:,} other {'entry' if others == 1 else 'entries'} skipped" if others else ""
        core.note(f"{name}: {quantity(len(names), task.noun_of_input)}, sorted by name{skipped}")
    return names


def _looks_like_text(name: str) -> bool:
    """Whether an argument is more likely a text than the name of a file: it has a space, or neither . nor / in it."""
    return len(name.split()) > 1 or not set(name) & set("./")


class Notes:
    """Counts lines that a model cannot read as they are meant, cut outputs, and maps without rows, for notes."""

    def __init__(self, task: "AnyTask", *, with_maps: bool) -> None:
        self._task, self._with_maps = task, with_maps
        self._tabs = self._cut = self._divided = self._parts = self._blank = 0
        self._unknown = core.UnknownParts(task)

    def add(self, answer: "Prediction") -> None:
        """Count a line and its best output."""
        text = answer.source
        self._unknown.add(text)
        self._cut += not answer.finished
        self._blank += self._with_maps and answer.map is not None and not answer.map.rows
        self._divided += bool(answer.cuts)
        self._parts += len(answer.cuts) + bool(answer.cuts)
        self._tabs += "\t" in text and len(self._task.columns) <= 2  # with more, tabs separate the fields of a source

    def sentences(self, lines: int) -> list[str]:
        """The notes about this many lines; none if there is nothing to say."""
        sentences = []
        if self._tabs:
            have = "the text has" if lines == 1 else f"{self._tabs:,} of {lines:,} lines have"
            whole = "it is read with the tab in it" if lines == 1 else "each is read as one text with the tab in it"
            sentences.append(f"{have} a tab; {whole}; for one column, use: cut -f1")
        sentences += self._unknown.sentences(lines)
        if self._divided:
            sentences.append(core.parts_note(self._task, self._divided, self._parts, lines))
        if self._blank:
            sentences.append(core.blank_note(self._blank, lines))
        if self._cut:
            sentences.append(core.cut_note(self._cut, lines))
        return sentences
