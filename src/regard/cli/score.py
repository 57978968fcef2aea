"""`regard score`: the score of a run on examples with references."""

import shlex
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from shutil import get_terminal_size
from typing import TYPE_CHECKING, Annotated

import typer

from regard.cli import core
from regard.cli.core import Beam, Columns, Json, Quiet, RunPath, note, say, to_json, write_beside, write_line
from regard.errors import DataError, plural, quantity
from regard.visible import ENCODING_ERRORS

if TYPE_CHECKING:
    from regard.analysis.mistakes import Mistakes
    from regard.console import ProgressLog
    from regard.metrics import Measured
    from regard.predict import Predictor
    from regard.types import Example

FILES = typer.Argument(
    metavar="[FILE]...", help="As data.test: a TSV, CSV or plain texts.  [default: the run's test set, or dev set]"
)

ERRORS = "Write the wrong answers to this TSV, worst first, and print the most frequent kinds of mistake."


def score(
    run: RunPath,
    files: Annotated[list[str] | None, FILES] = None,
    metric: Annotated[str | None, typer.Option(help="See `regard list metrics`.  [default: the recipe's]")] = None,
    columns: Columns = None,
    beam: Beam = None,
    errors: Annotated[Path | None, typer.Option(metavar="FILE", help=ERRORS)] = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    r"""Score a run's outputs against references.

    Scores are printed in total and by group. The file of --errors has the columns source, expected, answer, score and
    metric. The score is the log-probability of the answer, as in predict --json; of a language model, that of the text
    per token. The metric is that of the example alone; instead of BLEU it is chrF, instead of F1 accuracy. Tabs and
    line ends in texts are escapes, such as \t.
    """
    from regard import storage
    from regard.console import ProgressLog

    if errors is not None:
        # errors before the work begins
        core.check_outputs([errors], [*core.found_files(files or ()), *core.input_files(run)])
        core.check_outside_runs(errors)
        storage.check_place(errors)
    storage.Run.open(run)  # an error before torch is loaded
    with ProgressLog(quiet=quiet) as log:
        log.begin("loading torch")
        from regard.analysis import alignment, mistakes
        from regard.predict import load

        predictor = load(run)
        examples = examples_of(predictor, tuple(files or ()), columns, log)
        scored = predictor.score(examples, metric=metric, beam=beam)
        baselines = predictor.task.baselines(examples)
        wrong = mistakes.find(predictor.task, scored) if errors is not None else None
    core.note_unfinished(predictor.run, quiet=quiet)
    if errors is not None and wrong is not None:
        storage.write(errors, to_tsv(wrong.rows()))
    if not quiet:
        unknown = core.UnknownParts(predictor.task)
        for answer in scored.answers:
            unknown.add(answer.source)
        for sentence in unknown.sentences(len(scored.answers), "sources"):
            note(sentence)
    cut = sum(not answer.finished for answer in scored.answers)
    if cut and not quiet:
        note(core.cut_note(cut, len(scored.answers)))
    divided = [answer for answer in scored.answers if answer.cuts]
    if divided and not quiet:
        parts = sum(len(answer.cuts) + 1 for answer in divided)
        note(core.parts_note(predictor.task, len(divided), parts, len(scored.answers)))
    total, links = scored.measured, alignment.measure(scored.answers, scored.asked)
    if as_json:
        rates = {reading: error.value for reading, error in links.items()}
        others = {name: measured.value for name, measured in scored.others.items()}
        content = {"signature": total.signature, "groups": scored.groups, "alignment_error": rates}
        found = {} if wrong is None else wrong.to_dict()
        if baselines:
            rules = {rule: {name: one.value for name, one in scores.items()} for rule, scores in baselines.items()}
            found |= {"baselines": rules}
        write_line(to_json({scored.metric: total.value} | content | others | found))
        return
    write_beside(f"{scored.metric} {total.value:.4f}  ", total.signature)
    for group, value in scored.groups.items():
        write_line(f"  {group:<8} {value:.4f}")
    for name, measured in scored.others.items():
        write_beside(f"{name} {measured.value:.4f}  ", measured.signature)
    for reading, error in links.items():
        write_beside("", f"alignment error, read at the {reading}: {error.value:.4f}  {error.signature}")
    if baselines:
        print_baselines({"this run": {scored.metric: total, **scored.others}, **baselines})
    if wrong is not None:
        print_mistakes(wrong)
        if not quiet:
            say(f"written: {errors}")


def examples_of(
    predictor: "Predictor", files: tuple[str, ...], columns: str | None, log: "ProgressLog"
) -> "Sequence[Example]":
    """The examples of the files, or of the run's test set; if it names none, of a set held out, as a message says."""
    task = predictor.task
    recipe, named = task.recipe, files or task.recipe.data.test
    if recipe.data.train and not named and columns is None:
        return _held_out(predictor, log)
    if files or columns is not None:
        recipe = core.with_columns(task, named, columns)
    if not named:
        return task.examples(recipe).test
    examples = task.reader(recipe)(named).examples
    if files and task.reads_files and (problem := task.problem_of(examples[0].source)):
        raise DataError(
            f"{' and '.join(files)}: {problem}; its sources name {plural(task.noun_of_input)}, one per line"
        )
    if seen := _trained_on(predictor, named, examples):
        which = "the run was trained on this" if seen == len(examples) else f"the run was trained on {seen:,} of these"
        log.warn(f"{' and '.join(named)}: {which}; the score says little about other {plural(task.noun)}")
    return examples


def _trained_on(predictor: "Predictor", names: tuple[str, ...], examples: "Sequence[Example]") -> int:
    """How many of the examples are among those the run was trained on, if its data has not changed since.

    Large files are not compared, nor lines of plain text, which are often equal, unless the run was trained on one.
    """
    from regard import storage
    from regard.data.paths import are_large
    from regard.tasks.core import count_shared

    recipe = predictor.task.recipe
    learned, scored = ({path.resolve() for path in core.found_files(part)} for part in (recipe.data.train, names))
    is_text = len(predictor.task.columns) == 1
    if not learned or ((is_text or are_large((*recipe.data.train, *names))) and not learned & scored):
        return 0
    try:
        own = predictor.task.examples(recipe)
        return count_shared(own.train, examples) if own.digest() == predictor.run.read(storage.DATA) else 0
    except DataError:  # another file of data.train is missing
        return 0


def _held_out(predictor: "Predictor", log: "ProgressLog") -> "Sequence[Example]":
    """What was split off data.train as a test set (of series, their last windows), else the dev set of a run."""
    from regard import storage
    from regard.data.records import DEV, PAIRS

    task, run = predictor.task, predictor.run
    data, how = task.recipe.data, f"write: regard score {shlex.quote(str(run.path))} FILE.tsv"
    if DEV in data.dev or (PAIRS in data.train and not data.dev):
        raise DataError(f"the recipe of {run.path} names no test set, and its pairs are not stored; {how}")
    if data.dev:
        dev, origin = task.reader(task.recipe)(data.dev).examples, f"of {' and '.join(data.dev)}"
    else:
        examples = task.examples(task.recipe)
        if examples.digest() != run.read(storage.DATA):
            names = " and ".join(data.train)
            raise DataError(f"{names} has changed since {run.path} was trained, and so has its dev part; {how}")
        if examples.test:
            log.say(
                f"no test set is named; scored on {quantity(len(examples.test), 'window')} at the end of the series"
            )
            return examples.test
        dev, origin = examples.dev, "split off from data.train"
    log.say(f"no test set is named; scored on the dev set, {quantity(len(dev), task.noun)} {origin}")
    return dev


def print_baselines(scores: "Mapping[str, Mapping[str, Measured]]") -> None:
    """Print a table with a row for each metric and a column for each rule; - if it has no such score."""
    names = list(next(iter(scores.values())))
    width = max(map(len, names))
    write_line("")
    write_line(" " * width + "".join(f"  {rule:>14}" for rule in scores))
    for name in names:
        cells = [f"{rule[name].value:14.4f}" if name in rule else f"{'-':>14}" for rule in scores.values()]
        write_line(f"{name:<{width}}" + "".join(f"  {cell}" for cell in cells))


def print_mistakes(wrong: "Mistakes") -> None:
    """Print the most frequent kinds of mistake, in the width of this terminal."""
    write_line("")
    for line in wrong.table(get_terminal_size().columns).splitlines():
        write_line(line)


def to_tsv(rows: Iterable[tuple[str, ...]]) -> bytes:
    """The rows as the content of a TSV file; tabs and line ends within a field are escapes."""
    lines = ("\t".join(core.one_line(field).replace("\t", "\\t") for field in row) for row in rows)
    return "".join(f"{line}\n" for line in lines).encode("utf-8", ENCODING_ERRORS)
