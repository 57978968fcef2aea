"""Compare recipes and runs: train those that are not trained, score all on the same examples, also by length."""

import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import count
from pathlib import Path
from statistics import fmean, median, stdev
from textwrap import wrap
from typing import Any, NamedTuple

from rich.cells import cell_len, set_cell_size

from regard import recipe as recipes
from regard import storage, training
from regard.analysis import significance
from regard.console import ProgressLog, current_log
from regard.data.batching import length_array
from regard.data.records import DEV, PAIRS
from regard.errors import CorruptError, DataError, RecipeError, quantity
from regard.metrics import Measured, Outcome, better
from regard.predict import Predictor, load
from regard.recipe import Recipe
from regard.show import curves
from regard.show.curves import DRAWINGS, Curve, Labels, Point
from regard.storage import Run
from regard.storage.runs import resume_command
from regard.tasks import task_class, task_of
from regard.tasks.core import Examples
from regard.types import Example
from regard.visible import make_visible

MAX_BINS, MIN_BIN_SIZE = 10, 20  # maximum number of bins of lengths, and minimum number of examples in a bin
FINE = ("character_errors", "tag_accuracy", "accuracy")  # metrics that give credit for a part of an output
COUNTED = ("perplexity", "masked_accuracy")  # metrics per token: not comparable between different tokenizers


Read = Callable[[Recipe], Examples]  # cached, so that recipes with the same data read it once


@dataclass(frozen=True)
class Compared:
    """The results of one run."""

    name: str
    run: Run
    measured: Measured
    parameters: int
    tokens_per_second: float  # of training: the median over the intervals between validations
    train_seconds: float  # with validations, and also before the run was resumed
    curve: Curve  # the metric by length; no points if the examples are cut into windows
    outcomes: tuple[Outcome, ...] = field(repr=False)


@dataclass(frozen=True)
class System:
    """Runs whose recipes differ in seeds and name alone, in the order of train.seed."""

    name: str
    runs: tuple[Compared, ...]

    @property
    def mean(self) -> float:
        """The mean of the scores."""
        return fmean(run.measured.value for run in self.runs)

    @property
    def deviation(self) -> float | None:
        """The standard deviation of the scores between seeds, estimated from these runs; None for a single run."""
        return stdev(run.measured.value for run in self.runs) if len(self.runs) > 1 else None

    def curve(self) -> Curve:
        """The mean of the curves; all runs have the same bins."""
        points = []
        for bin_points in zip(*(run.curve.points for run in self.runs), strict=True):
            values = [point.value for point in bin_points]
            spread = stdev(values) if len(values) > 1 else 0.0
            points.append(bin_points[0]._replace(value=fmean(values), deviation=spread))
        return Curve(self.name, tuple(points))


class Difference(NamedTuple):
    """The difference of a system's mean score from that of the first system."""

    value: float
    p: float | None  # see `significance.p_value`; None if the outputs are not for the same examples
    seeds: int  # the number of seeds of either system whose outputs were tested
    trials: int


@dataclass(frozen=True)
class Comparison:
    """The results of all compared runs, in the order of the arguments of `compare`."""

    metric: str
    examples: str  # description of the examples that all were scored on
    lengths: str  # description of the unit of lengths
    entries: tuple[Compared, ...]
    systems: tuple[System, ...]  # the entries, with those of several seeds joined
    differences: tuple[Difference, ...]  # from the first system, of each of the others
    failed: Mapping[str, str] = field(default_factory=dict)  # of a sweep: what could not be trained, and why

    def table(self, width: int | None = None) -> str:
        """A text table with score, size and speed of each system, the tests of differences, and the signatures.

        If it would be wider than `width`, names stand on lines of their own.
        """
        rows = [["name", "seeds", self.metric, "deviation", "parameters", "tokens/s", "seconds"]]
        for system in self.systems:
            scores = [f"{system.mean:.4f}", "" if system.deviation is None else f"{system.deviation:.4f}"]
            speed = fmean(run.tokens_per_second for run in system.runs)
            seconds = fmean(run.train_seconds for run in system.runs)
            sizes = [f"{system.runs[0].parameters:,}", f"{speed:,.0f}", f"{seconds:,.1f}"]
            rows.append([system.name, str(len(system.runs)), *scores, *sizes])
        if all(len(system.runs) == 1 for system in self.systems):
            rows = [[name, score, *sizes] for name, _, score, _, *sizes in rows]
        failed = [f"{name} failed: {why}" for name, why in self.failed.items()]
        notes = [f"on {self.examples}", *self._signatures(), *self._folders(), *failed]
        return "\n".join([*_lines(rows, width), "", *self._tests(width), *map(make_visible, notes)]) + "\n"

    def _tests(self, width: int | None) -> list[str]:
        """The lines about differences from the first system, with their p-values."""
        if not self.differences:
            return []
        rows = [[f"against {self.systems[0].name}", "difference", "p"]]
        for system, difference in zip(self.systems[1:], self.differences, strict=True):
            p = "not tested" if difference.p is None else f"{difference.p:.4f}"
            rows.append([system.name, f"{difference.value:+.4f}", p])
        most = max(difference.seeds for difference in self.differences)
        joined = "" if most == 1 else f", with the outputs of up to {most} seeds of either"
        trials = min(difference.trials for difference in self.differences)
        notes = [f"p: approximate randomisation, {trials:,} trials{joined}", *self._within_spread(), *self._all_equal()]
        wrapped = [line for note in notes for line in wrap(note, width)] if width else notes
        return [*_lines(rows, width), *wrapped, ""]

    def _within_spread(self) -> list[str]:
        """The note about differences that are no larger than a standard deviation between seeds, if there are any."""
        first, *others = self.systems
        names = []
        for system, difference in zip(others, self.differences, strict=True):
            deviations = [each.deviation for each in (first, system) if each.deviation is not None]
            if deviations and 0 < abs(difference.value) <= max(deviations):
                names.append(make_visible(system.name))
        spread = "no larger than the standard deviation between seeds, which p does not test"
        return [f"difference {spread}: {', '.join(names)}"] if names else []

    def _all_equal(self) -> list[str]:
        """The note about scores that do not differ at all, with a metric that may, if the task has one."""
        if len({entry.measured.value for entry in self.entries}) > 1:
            return []
        fitting = task_class(self.entries[0].run.recipe().task).metrics
        finer = next((name for name in FINE if name in fitting and name != self.metric), "")
        return [f"all scores are equal; --metric {finer} may tell the systems apart"] if finer else []

    def _folders(self) -> list[str]:
        """The folder of each run whose name is another."""
        return [
            f"the run of {entry.name}: {entry.run.path}" for entry in self.entries if entry.name != entry.run.path.name
        ]

    def _signatures(self) -> list[str]:
        """The signature of the score: one line if it is the same for all, else one line for each run."""
        signatures = {entry.name: entry.measured.signature for entry in self.entries}
        if len(set(signatures.values())) == 1:
            return [self.entries[0].measured.signature]
        return [f"{name}: {signature}" for name, signature in signatures.items()]

    def draw(self, ending: str) -> bytes:
        """A chart of the score by length, one curve for each system, as the content of a .svg or .png file."""
        if not self.has_lengths():
            raise DataError(f"there is nothing to draw: {self.examples} have no lengths of their own")
        labels = Labels(self.examples, f"{self.lengths}, median of each bin", f"{self.metric} ({better(self.metric)})")
        return curves.draw([system.curve() for system in self.systems], ending, labels)

    def has_lengths(self) -> bool:
        """Whether there are curves to draw; there are none if texts are cut into windows."""
        return any(entry.curve.points for entry in self.entries)

    def pictures(self) -> list[Path]:
        """Default paths of the pictures: beside the first run, with a file name that does not exist yet."""
        paths = storage.numbered(self.entries[0].run.path.parent / "compare")
        choices = ([path.with_suffix(ending) for ending in DRAWINGS] for path in paths)
        free = next(pictures for pictures in choices if not any(map(Path.exists, pictures)))
        return free if self.has_lengths() else []

    def to_dicts(self) -> Iterator[dict[str, Any]]:
        """The results of each run as a dictionary for JSON, with those of the system it belongs to."""
        differences = [None, *self.differences]
        joined = {run.name: pair for pair in zip(self.systems, differences, strict=True) for run in pair[0].runs}
        for entry in self.entries:
            system, difference = joined[entry.name]
            yield {
                "name": entry.name,
                "run": str(entry.run.path),
                self.metric: entry.measured.value,
                "signature": entry.measured.signature,
                "parameters": entry.parameters,
                "tokens_per_second": entry.tokens_per_second,
                "train_seconds": entry.train_seconds,
                "system": {
                    "name": system.name,
                    "seeds": len(system.runs),
                    "mean": system.mean,
                    "deviation": system.deviation,
                    "difference": None if difference is None else difference.value,
                    "p": None if difference is None else difference.p,
                },
                "curve": [
                    {"length": point.length, "value": point.value, "examples": point.examples}
                    for point in entry.curve.points
                ],
            }
        for name, why in self.failed.items():
            yield {"name": name, "failed": why}

    def __repr__(self) -> str:
        return self.table().rstrip("\n")

    def _repr_svg_(self) -> str | None:
        """The picture that a notebook shows for this object."""
        return self.draw(".svg").decode() if self.has_lengths() else None


def _lines(rows: Sequence[Sequence[str]], width: int | None) -> list[str]:
    """The rows as lines with aligned columns; if these are wider than `width`, as a wrapped text for each row.

    The first row has the names of the columns, the first column the names of the rows.
    """
    cells = [[make_visible(row[0]), *row[1:]] for row in rows]
    widths = [max(map(cell_len, column)) for column in zip(*cells, strict=True)]
    if width is None or sum(widths) + 2 * len(widths) - 2 <= width:
        aligned = [[set_cell_size(row[0], widths[0]), *map(str.rjust, row[1:], widths[1:])] for row in cells]
        return ["  ".join(row) for row in aligned]
    lines = [] if cells[0][0] == "name" else wrap(cells[0][0], width)
    for name, *figures in cells[1:]:
        named = [f"{head} {figure}" for head, figure in zip(cells[0][1:], figures, strict=True) if figure]
        lines += [*wrap(name, width), *wrap(", ".join(named), width, initial_indent="  ", subsequent_indent="  ")]
    return lines


class Entrant(NamedTuple):
    """A recipe that is to be compared, or a run and the recipe it was trained with."""

    brief: str  # short name, used if no other entrant has the same
    full: str  # name with all changed keys
    recipe: Recipe
    run: Run | None


def compare(
    *arguments: Recipe | Run | str | Path,
    data: Sequence[str] = (),
    metric: str | None = None,
    beam: int | None = None,
    runs: str | Path = "runs",
    quiet: bool = False,
) -> Comparison:
    """Train recipes, or take finished runs, and score all of them on the same examples.

    An argument such as `a.b=c` changes the recipe before it; before the first recipe, it changes all of them. A recipe
    that was trained before, under `runs`, is not trained again. The examples are those of the files `data`; without
    `data`, those of the test set that all share, or of their dev set if there is no test set. Runs whose recipes differ
    in seeds and name alone are joined to one system; the differences of all systems from the first are tested.
    """
    with current_log(quiet=quiet) as log:

        def train_in_turn(named: Mapping[str, Entrant], read: Read) -> Mapping[str, Run]:
            return {name: _trained(name, entrant, Path(runs), read, log) for name, entrant in named.items()}

        return compare_entrants(_named(_entrants(arguments)), tuple(data), metric, beam, train_in_turn, log)


def compare_entrants(
    named: Mapping[str, Entrant],
    data: tuple[str, ...],
    metric: str | None,
    beam: int | None,
    train: Callable[[Mapping[str, Entrant], Read], Mapping[str, Run]],
    log: ProgressLog,
) -> Comparison:
    """Compare entrants by their names; `train` gives the runs of those that could be trained."""
    metric = _common_metric(named, metric)
    read = lru_cache(lambda source: task_class(source.task).examples(source))
    examples, description = _judging(named, data, read)
    trained = train(named, read)
    lengths = _lengths(next(iter(trained.values())), examples)
    entries = []
    for name, run in trained.items():
        log.say(f"scoring {name} on {description}")
        entries.append(_judged(name, load(run), examples, lengths, metric, beam))
    systems = _systems(entries)
    if len(systems) > 1:
        log.say(f"testing the differences from {systems[0].name}")
    differences = tuple(_difference(metric, systems[0], system) for system in systems[1:])
    return Comparison(metric, description, _counted(named), tuple(entries), systems, differences)


def recipes_and_runs(arguments: Sequence[Recipe | Run | str | Path]) -> list[tuple[Recipe, Run | None]]:
    """The recipes and runs that `compare` would compare; nothing is read of them but their recipes."""
    return [(entrant.recipe, entrant.run) for entrant in _entrants(arguments)]


def check_ending(ending: str) -> None:
    """Raise an error if no chart format has that ending, or if a package that it needs is not installed."""
    curves.draw([], ending, Labels("", "", ""))


# from arguments to entrants


def _entrants(arguments: Sequence[Recipe | Run | str | Path]) -> list[Entrant]:
    """The recipes and runs of the arguments, each with the overrides that follow it."""
    groups: list[list[Recipe | Run | str | Path]] = [[]]
    for argument in arguments:
        if isinstance(argument, str) and "=" in argument.partition("/")[0]:  # but ./a=b is a path
            groups[-1].append(argument)
        else:
            groups.append([argument])
    everyone, *others = groups
    if not others:
        raise RecipeError("nothing to compare: give recipes or runs, such as: regard compare reverse runs/mine")
    entrants = [_entrant(what, list(map(str, everyone)), list(map(str, own))) for what, *own in others]
    if everyone and all(entrant.run for entrant in entrants):
        raise RecipeError(f"runs are taken as they are; {everyone[0]} can only change a recipe")
    return entrants


def _entrant(what: Recipe | Run | str | Path, everyone: list[str], own: list[str]) -> Entrant:
    """One entrant; `everyone` are the overrides of all recipes, `own` those of this one."""
    if not isinstance(what, Recipe | Run) and _names_run(what):
        what = Run.open(what)
    if isinstance(what, Run):
        if own:
            raise RecipeError(f"{what.path} is a run, which is taken as it is; {own[0]} can only change a recipe")
        if not what.finished():
            raise DataError(f"the run {what.path} is not finished; go on with: {resume_command(what.path)}")
        task_of(what)  # an error now if the run needs a package that is missing
        return Entrant(what.path.name, str(what.path), what.recipe(), what)
    if not isinstance(what, Recipe) and Path(what).suffix != ".toml" and len(Path(what).parts) > 1:
        Run.open(what)  # raises an error that says what is wrong with the path
    recipe = recipes.override_all(what if isinstance(what, Recipe) else recipes.load(what), [*everyone, *own])
    changes = [text for text in own if not text.startswith("name=")]
    brief = [] if len(changes) < len(own) else [re.sub(r"^[^=]*\.", "", text) for text in changes]  # a.b=c: b=c
    return Entrant(" ".join([recipe.name, *brief]), " ".join([recipe.name, *changes]), recipe, None)


def _names_run(what: str | Path) -> bool:
    """Whether this is a run; the name of a recipe is one only if its folder is here, and not if it is in runs/."""
    return Run.at(Path(what).absolute() if str(what) in recipes.names() else Path(what))


def _named(entrants: Sequence[Entrant]) -> dict[str, Entrant]:
    """The entrants by unique names: the brief name, or the full one if several have the same brief name."""
    counts = Counter(entrant.brief for entrant in entrants)
    names = [entrant.brief if counts[entrant.brief] == 1 else entrant.full for entrant in entrants]
    for name, times in Counter(names).items():
        if times > 1:
            raise RecipeError(f"{name} is given twice; change a key of one, such as train.seed=2")
    return dict(zip(names, entrants, strict=True))


def _common_metric(named: Mapping[str, Entrant], metric: str | None) -> str:
    """The metric that all compared runs are scored by; RecipeError if their tasks, metrics or tokenizers differ."""
    (name, first), *others = named.items()
    for other, entrant in others:
        tasks = first.recipe.task, entrant.recipe.task
        if tasks[0] != tasks[1]:
            raise RecipeError(f"{name} and {other} do not compare: their tasks are {tasks[0]!r} and {tasks[1]!r}")
        metrics = first.recipe.metric, entrant.recipe.metric
        if metric is None and metrics[0] != metrics[1]:
            raise RecipeError(
                f"{name} is scored by {metrics[0]!r}, {other} by {metrics[1]!r}; choose one for all with --metric"
            )
    chosen = metric or first.recipe.metric
    for other, entrant in named.items():
        if entrant.run is None:
            training.check(entrant.recipe)
        task_class(entrant.recipe.task).check_metric(chosen)
        if chosen in COUNTED and entrant.recipe.tokens != first.recipe.tokens:
            raise RecipeError(
                f"{chosen} is counted by token, and {name} and {other} cut texts differently (tokens in their "
                "recipes); choose a metric that is not, or the same tokens"
            )
    return chosen


# the examples


def _judging(named: Mapping[str, Entrant], data: tuple[str, ...], read: Read) -> tuple[Sequence[Example], str]:
    """The examples that all are scored on, and a description of them."""
    (name, first), *others = named.items()
    noun = task_class(first.recipe.task).noun
    if data:
        examples = task_class(first.recipe.task).reader(first.recipe)(data).examples
        return examples, f"{quantity(len(examples), noun)} of {' and '.join(data)}"
    part, examples = _unseen(name, first.recipe, read)
    for other, entrant in others:
        if _texts(_unseen(other, entrant.recipe, read)[1]) != _texts(examples):
            raise DataError(f"{name} and {other} have different {part} sets; give one for all with --data FILE")
    files = first.recipe.data.test if part == "test" else first.recipe.data.dev
    origin = " and ".join(files or first.recipe.data.train) or first.recipe.data.corpus
    return examples, f"{quantity(len(examples), f'{part} {noun}')} of {origin}"


def _unseen(name: str, recipe: Recipe, read: Read) -> tuple[str, Sequence[Example]]:
    """The test set and its name, or the dev set if there is no test set.

    A run does not store pairs that were given in Python: of such a run, only what its recipe names as files is read.
    """
    data = recipe.data
    if PAIRS not in data.train:
        examples = read(_source(recipe))
        return ("test", examples.test) if examples.test else ("dev", examples.dev)
    files = data.test or data.dev
    if not files or DEV in files:
        how = "give those to compare on: --data FILE.tsv"
        raise DataError(f"{name} was trained on examples given in Python, which a run does not store; {how}")
    return "test" if data.test else "dev", task_class(recipe.task).reader(recipe)(files).examples


def _texts(examples: Sequence[Example]) -> list[tuple[str, str]]:
    return [(example.source, example.target) for example in examples]


def _source(recipe: Recipe) -> Recipe:
    """The recipe with defaults for all that its examples do not depend on, as the key of the cache."""
    default = Recipe()
    train = replace(default.train, seed=recipe.train.seed)
    return replace(recipe, name="", metric="", model=default.model, train=train, search=default.search)


# from recipes to runs


def _trained(name: str, entrant: Entrant, runs: Path, read: Read, log: ProgressLog) -> Run:
    """The entrant's run; for a recipe, a run of the same recipe on the same data, or a newly trained one."""
    if entrant.run is not None:
        return entrant.run
    run = trained_before(name, entrant.recipe, runs, read, log)
    if run is None:
        log.say(f"{name}: to be trained")
        return training.train(entrant.recipe, runs=runs, quiet=log.console.quiet)
    return run if run.finished() else training.resume(run, quiet=log.console.quiet)


def trained_before(name: str, recipe: Recipe, runs: Path, read: Read, log: ProgressLog) -> Run | None:
    """A run of the same recipe on the same data, finished or begun; None if there is none."""
    for path in sorted(runs.glob(f"*/{storage.MANIFEST}")):
        run = Run.open(path.parent)
        if not re.fullmatch(rf"{re.escape(recipe.name)}(-\d+)?", run.path.name) or not _same(run, recipe, read):
            continue
        if run.finished():
            log.say(f"{name}: trained before, on the same data; {run.path} is taken as it is")
        else:
            log.say(f"{name}: begun before, on the same data; resuming {run.path}")
        return run
    return None


def _same(run: Run, recipe: Recipe, read: Read) -> bool:
    """Whether a run was trained with exactly this recipe, and its data and train.start_from have not changed since.

    A prolonged run was not: a part of it had the schedule of another length.
    """
    origin = Path(recipe.train.start_from)
    with suppress(CorruptError, RecipeError):  # a damaged run, or one of another version, does not count
        if run.recipe() != recipe or run.has_file(storage.PROLONGED):
            return False
        if recipe.train.start_from and Run.at(origin) and not run.started_from(Run(origin)):
            return False
        return run.read(storage.DATA) == read(_source(recipe)).digest()
    return False


# from runs to scores


def _lengths(run: Run, examples: Sequence[Example]) -> list[int]:
    """The number of tokens of every source, or text if there are no sources; empty if texts are cut into windows."""
    both_sides = length_array(task_of(run).encode(examples).lengths()).tolist()
    lengths = [(source or target) - 1 for source, target in both_sides]  # without BEGIN or END, which is counted too
    return lengths if len(lengths) == len(examples) else []


def _counted(named: Mapping[str, Entrant]) -> str:
    """A description of the unit of lengths: tokens of the first entrant."""
    kinds = [entrant.recipe.tokens.source for entrant in named.values()]
    return f"source length in {kinds[0]} tokens" + (f" of {next(iter(named))}" if len(set(kinds)) > 1 else "")


def bins(lengths: Sequence[int]) -> list[int]:
    """The bin number of every length, shortest first; bins are about equally full, and equal lengths share a bin."""
    full = max(MIN_BIN_SIZE, math.ceil(len(lengths) / MAX_BINS))
    counts = Counter(lengths)
    edges, size = [0], 0  # the first length of every bin; the examples in the last bin so far
    for length in sorted(counts):
        if size >= full:
            edges.append(length)
            size = 0
        size += counts[length]
    if size < MIN_BIN_SIZE and len(edges) > 1:
        edges.pop()  # the last bin has too few examples: join it with the one before
    return [sum(edge <= length for edge in edges) - 1 for length in lengths]


def _judged(
    name: str, predictor: Predictor, examples: Sequence[Example], lengths: Sequence[int], metric: str, beam: int | None
) -> Compared:
    """The score of a run, over all examples and for each bin of lengths; the bins are used as groups of examples."""
    bin_numbers = bins(lengths)
    if bin_numbers:
        examples = [replace(example, group=str(number)) for example, number in zip(examples, bin_numbers, strict=True)]
    scored = predictor.score(examples, metric=metric, beam=beam)
    points = []
    for number in sorted(set(bin_numbers)) if scored.groups else []:  # there are none if texts are cut into windows
        in_bin = [length for length, its_bin in zip(lengths, bin_numbers, strict=True) if its_bin == number]
        points.append(Point(float(median(in_bin)), scored.groups[str(number)], len(in_bin)))
    parameters = sum(parameter.numel() for parameter in predictor.model.parameters())
    metrics = predictor.run.metrics()
    speeds = [line["tokens_per_second"] for line in metrics if "tokens_per_second" in line]
    speed = median(speeds) if speeds else 0.0  # an imported run was not trained here
    seconds = metrics[-1]["train_seconds"]
    curve = Curve(name, tuple(points))
    return Compared(name, predictor.run, scored.measured, parameters, speed, seconds, curve, tuple(scored.outcomes))


# from runs to systems


def _systems(entries: Sequence[Compared]) -> tuple[System, ...]:
    """Join the runs whose recipes differ in seeds and name alone; a run with the train.seed of another stays alone."""
    groups: dict[tuple[Recipe, int], dict[int, Compared]] = {}
    for entry in entries:
        recipe = entry.run.recipe()
        data, train = replace(recipe.data, split_seed=0), replace(recipe.train, seed=0)
        key = replace(recipe, name="", data=data, train=train, masked_lm=replace(recipe.masked_lm, mask_seed=0))
        place = next(number for number in count() if recipe.train.seed not in groups.get((key, number), ()))
        groups.setdefault((key, place), {})[recipe.train.seed] = entry
    systems = []
    for by_seed in groups.values():
        first = next(iter(by_seed.values())).name
        name = re.sub(r" (train\.)?seed=\d+", "", first) if len(by_seed) > 1 else first
        systems.append(System(name, tuple(by_seed[seed] for seed in sorted(by_seed))))
    return tuple(systems)


def _difference(metric: str, first: System, other: System) -> Difference:
    """The difference of two systems, tested on the outputs of as many seeds as both have.

    Clark et al. 2011: the outputs of several seeds are joined, each paired with that of a seed of the other system.
    """
    pairs = list(zip(first.runs, other.runs, strict=False))
    ours, theirs = ([outcome for pair in pairs for outcome in pair[side].outcomes] for side in (0, 1))
    is_paired = all(len(one.outcomes) == len(two.outcomes) > 0 for one, two in pairs)
    trials = significance.count_trials(metric, len(ours))
    p = significance.p_value(metric, ours, theirs, trials) if is_paired else None
    return Difference(other.mean - first.mean, p, len(pairs), trials)
