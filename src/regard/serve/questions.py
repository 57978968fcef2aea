"""From a body or a query string to a question: what is asked of which run, with which settings, all within bounds."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from regard.errors import UnknownNameError, did_you_mean, shown
from regard.predict import Predictor
from regard.recipe import Search
from regard.serve.inputs import UPLOADS, accept_interventions, accept_value
from regard.serve.limits import Bounds, RefusedError, check_unicode, too_large
from regard.serve.weights import NONE, Weights, sizes_of, weights_of
from regard.tasks import Transduce

KEYS = ("run", "inputs", "beam", "n_best", "search", "seed", "maps", "all_maps", "view", "interventions", "timeout")
SEARCH = ("length_penalty", "coverage_penalty", "no_repeat", "temperature", "top_k", "top_p", "max_ratio", "max_extra")
SEARCH_KEYS = (*SEARCH, "max_answer", "ctc")
LEAST_TIMEOUT = 0.01  # seconds
FLAGS = {"true": True, "1": True, "false": False, "0": False}


@dataclass(frozen=True)
class Options:
    """What a request asks for, besides its inputs; all values are of the right type and within bounds."""

    changes: Mapping[str, Any]  # keys of the recipe's search section
    n_best: int = 1
    seed: int = 0
    maps: bool = False
    all_maps: bool = False
    view: bool = False  # the data of the viewer, too
    interventions: tuple[str, ...] = ()  # short texts such as "erase 3"
    timeout: float = Bounds.deadline


@dataclass(frozen=True)
class Question:
    """Inputs for a run, with settings that are known to fit it."""

    inputs: Sequence[str]
    options: Options
    settings: Search
    work: int  # characters or positions of its inputs and of a fed source x the rows of a search
    weights: Weights = NONE  # that it takes at most

    @property
    def records(self) -> bool:
        """Whether all maps of the best outputs are recorded."""
        return self.weights.recorded > 0

    @property
    def key(self) -> tuple[object, ...]:
        """Requests with the same key may be answered in one batch: those of the same settings.

        A sampled output depends on its place in a batch, and an intervention changes the model: such requests share
        their key with no other.
        """
        options = self.options
        alone = id(self) if self.settings.temperature or options.interventions else 0
        return self.settings, options.n_best, options.seed, self.records, alone


def check_keys(given: Mapping[str, Any], known: Sequence[str], what: str) -> None:
    """Refuse a key that is unknown."""
    for key in given:
        if key not in known:
            near = did_you_mean(str(key)[:100], known)
            raise RefusedError(422, f"unknown {what} {shown(key)}; there are {', '.join(known)}{near}")


def options_of(given: Mapping[str, Any], bounds: Bounds) -> Options:
    """The options of a JSON body."""
    check_keys(given, KEYS, "key")
    changes = given.get("search", {})
    if not isinstance(changes, dict):
        raise RefusedError(422, f'search is {shown(changes)}; give an object such as {{"length_penalty": 0.6}}')
    check_keys(changes, SEARCH_KEYS, "key of search")
    changes = dict(changes)
    if "beam" in given:
        changes["beam"] = _whole(given["beam"], "beam", 1, bounds.beam)
    for name, most in (("max_ratio", bounds.max_ratio), ("max_extra", bounds.max_extra)):
        if name in changes:
            _number(changes[name], f"search.{name}", 0, most)
    return Options(
        changes,
        _whole(given.get("n_best", 1), "n_best", 1, bounds.beam),
        _whole(given.get("seed", 0), "seed", 0, bounds.seed),
        _flag(given.get("maps", False), "maps"),
        _flag(given.get("all_maps", False), "all_maps"),
        _flag(given.get("view", False), "view"),
        _interventions(given.get("interventions", []), bounds),
        _number(given.get("timeout", bounds.deadline), "timeout", LEAST_TIMEOUT, bounds.deadline),
    )


def options_of_query(given: Mapping[str, str], bounds: Bounds) -> Options:
    """The options of a query string, whose values are texts; keys of search are written without `search`.

    Several interventions are separated by semicolons.
    """
    check_keys(given, [key for key in (*KEYS, *SEARCH_KEYS) if key not in ("inputs", "search")], "parameter")
    texts = [part.strip() for part in given.get("interventions", "").split(";") if part.strip()]
    numbers = {key: text for key, text in given.items() if key not in ("run", "interventions")}
    values: dict[str, Any] = {key: _parsed(key, text) for key, text in numbers.items()} | {"interventions": texts}
    search = {key: values.pop(key) for key in SEARCH_KEYS if key in values}
    return options_of({**values, "search": search}, bounds)


def _parsed(key: str, text: str) -> bool | int | float:
    """The value of a parameter: a flag or a number."""
    if key in ("maps", "all_maps", "view"):
        if text not in FLAGS:
            raise RefusedError(422, f"{key} is {shown(text)}; give true or false")
        return FLAGS[text]
    try:
        number = float(text[:40])
        return int(text) if len(text) < 20 and text.lstrip("-").isdigit() else number
    except ValueError:
        raise RefusedError(422, f"{key} is {shown(text)}; give a number") from None


def _whole(value: Any, name: str, least: int, most: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise RefusedError(422, f"{name} is {shown(value)}; give a whole number from {least:,} to {most:,}")
    return value


def _number(value: Any, name: str, least: float, most: float) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool) or not least <= value <= most:
        raise RefusedError(422, f"{name} is {shown(value)}; give a number from {least:g} to {most:g}")
    return value


def _interventions(values: Any, bounds: Bounds) -> tuple[str, ...]:
    if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
        raise RefusedError(422, f'interventions is {shown(values)}; give a list of texts such as "erase 3"')
    if len(values) > bounds.interventions:
        raise too_large("the request has", f"{len(values):,} interventions", bounds.interventions, "give fewer")
    for value in values:
        if len(value) > bounds.characters:
            raise too_large("an intervention has", f"{len(value):,} characters", f"{bounds.characters:,}", "shorten it")
        check_unicode(value, "an intervention")
    return tuple(values)


def _flag(value: Any, name: str) -> bool:
    if not isinstance(value, bool):
        raise RefusedError(422, f"{name} is {shown(value)}; give true or false")
    return value


def name_of_run(given: Mapping[str, Any], names: Sequence[str]) -> str:
    """The run that a request names; if the server has only one, it need not."""
    name = given.get("run", names[0] if len(names) == 1 else None)
    if name is None:
        raise RefusedError(422, f"run is missing; choose from {', '.join(names)}")
    if not isinstance(name, str):
        raise RefusedError(422, f"run is {shown(name)}; give a name of {', '.join(names)}")
    check_unicode(name, "run")
    if name not in names:
        raise RefusedError(404, str(UnknownNameError("run", name[:200], names)))
    return name


def values_of(given: Mapping[str, Any], bounds: Bounds) -> list[Any]:
    """The inputs of a JSON body, as they are."""
    values = given.get("inputs")
    if not isinstance(values, list) or not values:
        raise RefusedError(422, f"inputs is {shown(values)}; give a list of at least one input")
    if len(values) > bounds.inputs:
        raise too_large("the request has", f"{len(values):,} inputs", f"{bounds.inputs}", "send fewer at a time")
    return values


def question_of(predictor: Predictor, inputs: Sequence[str], options: Options, bounds: Bounds) -> Question:
    """A question to a run; RecipeError if a setting does not fit the run, RefusedError if it is too much work."""
    settings = predictor.search_settings(options.changes, None)
    if options.interventions and (len(inputs) != 1 or options.n_best != 1):
        raise RefusedError(422, "interventions are for one input and one output (n_best = 1); send one at a time")
    fed = accept_interventions(predictor.task, options.interventions, bounds)
    read = [*inputs, *fed]  # all sources that the model reads
    rows = max(settings.beam, options.n_best)
    if (noun := predictor.task.noun_of_input) not in UPLOADS:
        check_work(sum(map(len, read)), "characters", rows, bounds)  # before they are split into tokens
    sizes = sizes_of(predictor.task, read, settings)
    work = sum(map(len, read)) if noun not in UPLOADS else sum(part.source for parts in sizes for part in parts)
    check_work(work, "positions", rows, bounds)
    found = weights_of(predictor, sizes, settings, options.n_best)
    found = found._replace(recorded=found.recorded * _recordings(predictor, options, fed))
    needs_all = options.all_maps or bool(options.interventions)
    check_weights("the beams or outputs of the search", found.searched, bounds.searched)
    if needs_all:
        check_weights("all maps of the request", found.recorded, bounds.recorded)
    sent = weights_of(predictor, sizes[len(inputs) :] or sizes, settings, options.n_best)  # maps after interventions
    if options.all_maps and sent.certain > bounds.cells:
        raise too_many_cells(sent.certain, bounds)
    records = needs_all or (options.view and found.recorded <= bounds.recorded)
    return Question(inputs, options, settings, work * rows, found if records else found._replace(recorded=0))


def _recordings(predictor: Predictor, options: Options, fed: Sequence[str]) -> int:
    """How many recordings of each source are held at once.

    An intervention holds those before and after it, and if outputs can be forced, that of the output before with and
    without it. A source that is fed takes the place of the input in half of them.
    """
    if not options.interventions:
        return 1
    return (4 if isinstance(predictor.task, Transduce) else 2) // (2 if fed else 1)


def check_weights(what: str, weights: int, most: int) -> None:
    """Refuse a question that may take too many attention weights."""
    if weights > most:
        how = "send shorter inputs or fewer, or lower beam, n_best, search.max_ratio or search.max_extra"
        raise too_large(f"{what} may have", f"{weights:,} attention weights", f"{most:,}", how)


def check_work(size: int, unit: str, rows: int, bounds: Bounds) -> None:
    """Refuse inputs that are too large for the number of beams or outputs."""
    if size * rows > bounds.work:
        found = f"{size:,} {unit} x {rows} beams or outputs"
        raise too_large("the request asks for", found, f"{bounds.work:,} in all", "send less at a time")


def too_many_cells(cells: int, bounds: Bounds) -> RefusedError:
    """The refusal of an answer with too many weights."""
    how = "send a shorter text, or ask without maps"
    return too_large("the maps of the answer have", f"{cells:,} weights", f"{bounds.cells:,}", how)


def accept_values(predictor: Predictor, values: Sequence[Any], bounds: Bounds) -> list[str]:
    """The inputs of a run for those of a JSON body."""
    return [
        accept_value(predictor.task, value, f"input {number}", bounds) for number, value in enumerate(values, start=1)
    ]
