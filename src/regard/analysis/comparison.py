"""Recipes and runs side by side: trained where they are not, judged on the same examples, in all and by length."""

import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import count
from pathlib import Path
from statistics import fmean, median
from typing import Any, NamedTuple

from regard import plugins, storage, training
from regard import recipe as recipes
from regard.console import Teller
from regard.errors import CorruptError, DataError, RecipeError
from regard.metrics import Measured, better
from regard.predict import Predictor, load
from regard.recipe import Recipe
from regard.show import curves
from regard.show.curves import DRAWINGS, Curve, Labels, Point
from regard.storage import Run
from regard.tasks import task_class
from regard.tasks.core import Examples
from regard.types import Example

MOST, LEAST = 10, 20  # bins of lengths at most, and the examples of a bin at least
COUNTED = ("perplexity", "masked_accuracy")  # metrics of tokens: they say nothing across ways to cut a text


@dataclass(frozen=True)
class Compared:
    """One of those that are compared."""

    name: str
    run: Run
    measured: Measured
    parameters: int
    tokens_per_second: float  # of training, between validations: the median
    train_seconds: float  # validations counted; of a run that was resumed, those of its last process
    curve: Curve  # the metric by length; without points where examples have no lengths of their own


@dataclass(frozen=True)
class Comparison:
    """All that are compared, in the order in which they were given."""

    metric: str
    examples: str  # what all were judged on, in words
    lengths: str  # what lengths are counted in, in words
    entries: tuple[Compared, ...]

    def table(self) -> str:
        """A line for each, with its score, size and speed, and under them how the score was computed."""
        head = ["name", self.metric, "parameters", "tokens/s", "seconds"]
        rows = [
            [
                each.name,
                f"{each.measured.value:.4f}",
                f"{each.parameters:,}",
                f"{each.tokens_per_second:,.0f}",
                f"{each.train_seconds:,.1f}",
            ]
            for each in self.entries
        ]
        widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
        lines = ["  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]) for row in (head, *rows)]
        return "\n".join([*lines, "", f"on {self.examples}", *self._signatures()]) + "\n"

    def _signatures(self) -> list[str]:
        """One for all where it is the same, else one for each."""
        told = {each.name: each.measured.signature for each in self.entries}
        same = len(set(told.values())) == 1
        return [self.entries[0].measured.signature] if same else [f"{name}: {said}" for name, said in told.items()]

    def draw(self, ending: str) -> bytes:
        """The score against length, a curve for each, as a picture file of that ending: .svg or .png."""
        if not self.has_lengths():
            raise DataError(f"there is nothing to draw: of {self.examples}, none has a length of its own")
        labels = Labels(self.examples, f"{self.lengths}, mean of each bin", f"{self.metric} ({better(self.metric)})")
        return curves.draw([each.curve for each in self.entries], ending, labels)

    def has_lengths(self) -> bool:
        """Whether there is something to draw; of texts that are cut into windows, there is not."""
        return any(each.curve.points for each in self.entries)

    def pictures(self) -> list[Path]:
        """Where pictures go that nobody named: beside the first run, under a name that is not taken."""
        folder = self.entries[0].run.path.parent
        names = (f"compare-{number}" if number > 1 else "compare" for number in count(1))
        name = next(name for name in names if not any((folder / f"{name}{ending}").exists() for ending in DRAWINGS))
        return [folder / f"{name}{ending}" for ending in DRAWINGS] if self.has_lengths() else []

    def told(self) -> Iterator[dict[str, Any]]:
        """Each as JSON."""
        for each in self.entries:
            yield {
                "name": each.name,
                "run": str(each.run.path),
                self.metric: each.measured.value,
                "signature": each.measured.signature,
                "parameters": each.parameters,
                "tokens_per_second": each.tokens_per_second,
                "train_seconds": each.train_seconds,
                "curve": [point._asdict() for point in each.curve.points],
            }

    def _repr_svg_(self) -> str | None:
        """How a notebook shows it."""
        return self.draw(".svg").decode() if self.has_lengths() else None


Read = Callable[[Recipe], Examples]  # once for each way to come by examples


class Entrant(NamedTuple):
    """One that is to be compared: a recipe, or a run and the recipe it was trained by."""

    brief: str  # names: this one, but the other where this is another's too
    full: str
    recipe: Recipe
    run: Run | None


def compare(
    *given: Recipe | Run | str | Path,
    data: Sequence[str] = (),
    metric: str | None = None,
    beam: int | None = None,
    runs: str | Path = "runs",
    quiet: bool = False,
) -> Comparison:
    """Train recipes, or take finished runs as they are, and judge all on the same examples.

    `a.b=c` changes the recipe it follows; before the first, it changes all. A recipe that was trained before, under
    `runs`, is not trained again. The examples are those of the files `data`, else the test set that all share, or
    their dev set where there is no test set.
    """
    teller = Teller(quiet=quiet)
    named = _named(_entrants(given))
    metric = _common_metric(named, metric)
    read = lru_cache(_examples)
    examples, words = _judging(named, tuple(data), read)
    trained = {name: _trained(name, each, Path(runs), read, teller) for name, each in named.items()}
    lengths = _lengths(next(iter(trained.values())), examples)
    entries = []
    for name, run in trained.items():
        teller.say(f"judging {name} on {words}")
        entries.append(_judged(name, load(run), examples, lengths, metric, beam))
    return Comparison(metric, words, _counted(named), tuple(entries))


def drawable(ending: str) -> None:
    """Refuse an ending that no picture has, or for which a package is missing."""
    curves.draw([], ending, Labels("", "", ""))


# who is compared


def _entrants(given: Sequence[Recipe | Run | str | Path]) -> list[Entrant]:
    """Recipes and runs with the overrides that are theirs."""
    groups: list[list[Recipe | Run | str | Path]] = [[]]
    for each in given:
        if isinstance(each, str) and "=" in each.partition("/")[0]:  # ./a=b is a path still
            groups[-1].append(each)
        else:
            groups.append([each])
    everyone, *others = groups
    if not others:
        raise RecipeError("nothing to compare: give recipes or runs, such as: regard compare reverse runs/mine")
    entrants = [_entrant(what, list(map(str, everyone)), list(map(str, own))) for what, *own in others]
    if everyone and all(each.run for each in entrants):
        raise RecipeError(f"runs are taken as they are; {everyone[0]} can only change a recipe")
    return entrants


def _entrant(what: Recipe | Run | str | Path, everyone: list[str], own: list[str]) -> Entrant:
    if not isinstance(what, Recipe | Run) and Run.at(Path(what)):
        what = Run.open(what)
    if isinstance(what, Run):
        if own:
            raise RecipeError(f"{what.path} is a run, which is taken as it is; {own[0]} can only change a recipe")
        if not what.finished():
            raise DataError(f"the run {what.path} is not finished; go on with: regard train --resume {what.path}")
        recipe = what.recipe()
        with plugins.loading(what.needs()):
            task_class(recipe.task)
        return Entrant(what.path.name, str(what.path), recipe, what)
    if not isinstance(what, Recipe) and Path(what).suffix != ".toml" and len(Path(what).parts) > 1:
        Run.open(what)  # says what is wrong with it
    recipe = what if isinstance(what, Recipe) else recipes.load(what)
    for text in [*everyone, *own]:
        recipe = recipes.override(recipe, text)
    changes = [text for text in own if not text.startswith("name=")]
    if len(changes) < len(own):
        return Entrant(recipe.name, " ".join([recipe.name, *changes]), recipe, None)
    brief = [re.sub(r"^[^=]*\.", "", text) for text in changes]  # order=none of model.decoder.order=none
    return Entrant(" ".join([recipe.name, *brief]), " ".join([recipe.name, *changes]), recipe, None)


def _named(entrants: Sequence[Entrant]) -> dict[str, Entrant]:
    """Each under a name of its own."""
    counts = Counter(each.brief for each in entrants)
    names = [each.brief if counts[each.brief] == 1 else each.full for each in entrants]
    for name, times in Counter(names).items():
        if times > 1:
            raise RecipeError(f"{name} is given twice; change a key of one, such as train.seed=2")
    return dict(zip(names, entrants, strict=True))


def _common_metric(named: dict[str, Entrant], metric: str | None) -> str:
    """The metric that all are judged by; those that do not fit each other are refused."""
    (name, first), *others = named.items()
    for other, entrant in others:
        tasks = first.recipe.task, entrant.recipe.task
        if tasks[0] != tasks[1]:
            raise RecipeError(f"{name} and {other} do not compare: their tasks are {tasks[0]!r} and {tasks[1]!r}")
        metrics = first.recipe.metric, entrant.recipe.metric
        if metric is None and metrics[0] != metrics[1]:
            raise RecipeError(
                f"{name} is judged by {metrics[0]!r}, {other} by {metrics[1]!r}; choose one for all with --metric"
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


# what they are judged on


def _judging(named: dict[str, Entrant], data: tuple[str, ...], read: Read) -> tuple[list[Example], str]:
    """The examples that all are judged on, and what to call them."""
    (name, first), *others = named.items()
    noun = task_class(first.recipe.task).noun
    if data:
        examples = task_class(first.recipe.task).reader(first.recipe)(data).examples
        return examples, f"{len(examples):,} {noun}s of {' and '.join(data)}"
    part, examples = _unseen(read(_source(first.recipe)))
    for other, entrant in others:
        if _texts(_unseen(read(_source(entrant.recipe)))[1]) != _texts(examples):
            raise DataError(f"{name} and {other} have different {part} sets; give one for all with --data FILE")
    named_files = first.recipe.data.test if part == "test" else first.recipe.data.dev
    home = " and ".join(named_files or first.recipe.data.train) or first.recipe.data.corpus
    return examples, f"{len(examples):,} {part} {noun}s of {home}"


def _unseen(examples: Examples) -> tuple[str, list[Example]]:
    return ("test", examples.test) if examples.test else ("dev", examples.dev)


def _texts(examples: Sequence[Example]) -> list[tuple[str, str]]:
    return [(each.source, each.target) for each in examples]


def _source(recipe: Recipe) -> Recipe:
    """What of a recipe its examples depend on."""
    plain = Recipe()
    train = replace(plain.train, seed=recipe.train.seed)
    return replace(recipe, name="", metric="", model=plain.model, train=train, search=plain.search)


def _examples(source: Recipe) -> Examples:
    return task_class(source.task).examples(source)


# from recipes to runs


def _trained(name: str, entrant: Entrant, runs: Path, read: Read, teller: Teller) -> Run:
    """The run itself, one that was trained by the same recipe on the same data, or a new one."""
    if entrant.run is not None:
        return entrant.run
    recipe = entrant.recipe
    for path in sorted(runs.glob(f"*/{storage.MANIFEST}")):
        run = Run(path.parent)
        if not re.fullmatch(rf"{re.escape(recipe.name)}(-\d+)?", run.path.name) or not _same(run, recipe, read):
            continue
        if run.finished():
            teller.say(f"{name}: trained before, on the same data; {run.path} is taken as it is")
            return run
        teller.say(f"{name}: begun before, on the same data; {run.path} goes on")
        return training.resume(run, quiet=teller.console.quiet)
    teller.say(f"{name}: to be trained")
    return training.train(recipe, runs=runs, quiet=teller.console.quiet)


def _same(run: Run, recipe: Recipe, read: Read) -> bool:
    """Whether a run was trained by this very recipe, on the data that it names today."""
    with suppress(CorruptError, RecipeError):  # a damaged run, or one of another regard, is none of ours
        return run.recipe() == recipe and run.read(storage.DATA) == read(_source(recipe)).digest()
    return False


# from runs to scores


def _lengths(run: Run, examples: Sequence[Example]) -> list[int]:
    """The tokens of every source, or text where there are no sources; none where examples are cut into windows."""
    recipe = run.recipe()
    rooms = task_class(recipe.task).restore(recipe, run.read).encode(examples).lengths()
    lengths = [(source or target) - 1 for source, target in rooms]  # less the mark that is counted with each
    return lengths if len(lengths) == len(examples) else []


def _counted(named: dict[str, Entrant]) -> str:
    """What lengths are counted in: the tokens of the first."""
    kinds = [each.recipe.tokens.source for each in named.values()]
    return f"source length in {kinds[0]} tokens" + (f" of {next(iter(named))}" if len(set(kinds)) > 1 else "")


def bins(lengths: Sequence[int]) -> list[int]:
    """The bin of every length: equally full, about, the shortest in the first; equal lengths stay together."""
    full = max(LEAST, math.ceil(len(lengths) / MOST))
    counts = Counter(lengths)
    edges, held = [0], 0  # the first length of every bin
    for length in sorted(counts):
        if held >= full:
            edges.append(length)
            held = 0
        held += counts[length]
    if held < LEAST and len(edges) > 1:
        edges.pop()  # too few are left for a bin of their own
    return [sum(edge <= length for edge in edges) - 1 for length in lengths]


def _judged(
    name: str,
    predictor: Predictor,
    examples: Sequence[Example],
    lengths: Sequence[int],
    metric: str,
    beam: int | None,
) -> Compared:
    """The score of a run, in all and for each bin of lengths: bins are the groups of examples."""
    placed = bins(lengths)
    if placed:
        examples = [replace(each, group=str(number)) for each, number in zip(examples, placed, strict=True)]
    scored = predictor.score(examples, metric=metric, beam=beam)
    points = []
    for number in sorted(set(placed)):
        own = [length for length, other in zip(lengths, placed, strict=True) if other == number]
        points.append(Point(fmean(own), scored.groups[str(number)], len(own)))
    parameters = sum(each.numel() for each in predictor.model.parameters())
    metrics = predictor.run.metrics()
    speed = median(each["tokens_per_second"] for each in metrics if "tokens_per_second" in each)
    seconds = metrics[-1]["train_seconds"]
    return Compared(name, predictor.run, scored.measured, parameters, speed, seconds, Curve(name, tuple(points)))
