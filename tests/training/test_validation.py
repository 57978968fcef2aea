"""Validations: the metric and samples on a part of dev, which weights are the best, and what is reported."""

import io
import math
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

import regard
from regard import recipe as recipes
from regard import storage
from regard.console import ProgressLog
from regard.errors import CorruptError, NotFiniteError, RecipeError
from regard.metrics import Cost, Measured, Outcome
from regard.metrics.examples import example_scorer
from regard.recipe import Recipe, Train
from regard.storage import Run
from regard.tasks import TASKS, AnyTask, Scored, Transduce
from regard.tasks.core import evenly
from regard.tasks.language_model import LanguageModelling
from regard.training import Callback, check, validation
from regard.training.callbacks import Ended, Sample, Started, Updated, Validated
from regard.training.overview import _passes
from regard.training.processes import Processes
from regard.training.report import Report, describe_sample, table
from regard.training.session import Session
from regard.training.stopping import Stopper
from regard.types import Example
from small_recipes import RECIPES

WORDS = ["abc", "cab", "bca", "ab", "ba", "cc", "acb", "bb", "cba", "aa", "bac", "ca"]
WALL_CLOCK = {"tokens_per_second", "seconds", "train_seconds"}


@pytest.fixture(scope="module", autouse=True)
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A few pairs, in the folder where `tiny` looks for them."""
    folder = tmp_path_factory.mktemp("pairs")
    (folder / "pairs.tsv").write_text("".join(f"{word}\t{word[::-1]}\n" for word in WORDS), encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("REGARD_DATA", str(folder))
        yield


def tiny(*overrides: str) -> Recipe:
    sizes = ["model.embedding=8", "model.encoder.dim=12", "model.decoder.dim=10", "model.attention.dim=6"]
    data = ["name=tiny", "data.train=pairs.tsv", "data.dev=pairs.tsv", "train.device=cpu", "train.batch_tokens=20"]
    settings = ["train.updates=6", "train.validate=2", "model.encoder.dropout=0.2", "metric=character_errors"]
    return recipes.parse("", "tiny", [*sizes, *data, *settings, "search.max_ratio=0", "search.max_extra=3", *overrides])


class Watching(Callback):
    """Keeps the events of validations."""

    def __init__(self) -> None:
        self.events: list[Validated] = []

    def on_validation(self, event: Validated) -> None:
        self.events.append(event)


def test_predicting_a_part_of_dev_changes_no_bit_of_the_run(tmp_path: Path) -> None:
    without, watching = regard.train(tiny("train.validate_examples=0"), runs=tmp_path, quiet=True), Watching()
    run = regard.train(tiny("search.temperature=0.7"), runs=tmp_path, quiet=True, callbacks=[watching])
    assert run.read(storage.MODEL) == without.read(storage.MODEL)
    added = {"dev_character_errors", *WALL_CLOCK}
    losses = [{key: value for key, value in entry.items() if key not in added} for entry in run.metrics()[:-1]]
    expected = [{key: value for key, value in entry.items() if key not in added} for entry in without.metrics()[:-1]]
    assert losses == expected
    assert "dev_character_errors" not in without.metrics()[0]
    values = [entry["dev_character_errors"] for entry in run.metrics()[:-1]]
    assert [event.value for event in watching.events] == values
    assert [len(event.samples) for event in watching.events] == [3, 3, 3]
    assert watching.events[0].samples[1].source in WORDS


def test_the_metric_of_the_best_validation_is_that_of_the_stored_weights(tmp_path: Path) -> None:
    recipe = tiny("train.learning_rate=0.02", "train.ema=0.5")
    run = regard.train(recipe, runs=tmp_path, quiet=True)
    best = min(run.metrics()[:-1], key=lambda entry: entry["dev_loss"])
    examples = [Example(word, word[::-1]) for word in WORDS]
    assert regard.load(run, device="cpu").score(examples).measured.value == best["dev_character_errors"]


@pytest.mark.parametrize("task", RECIPES)
def test_every_task_has_a_metric_and_samples(task: str) -> None:
    recipe = recipes.load(RECIPES[task], ["data.size=40", "train.validate_examples=8", "train.device=cpu"])
    examples = TASKS[task].examples(recipe)
    made = TASKS[task].learn(recipe, examples.train)
    torch.manual_seed(1)
    part, model = validation.part_of(made, examples.dev), made.build()
    before = torch.get_rng_state()
    value, samples, problem = validation.score(made, model, part)
    assert problem == ""
    assert len(part) == 8
    assert value is not None
    assert len(samples) == 3
    assert all(sample.source and sample.expected for sample in samples)
    assert sum(bool(sample.output) for sample in samples) >= (0 if task == "translate" else 3)
    assert torch.equal(torch.get_rng_state(), before)


def test_the_part_of_dev_has_all_references_of_its_sources() -> None:
    dev = [Example(str(number // 5), "abcde"[number % 5]) for number in range(50)]
    for metric, size in (("cider_d", 15), ("phoneme_errors", 15), ("bleu", 3)):
        task = TASKS["translate"].learn(tiny(f"metric={metric}", "train.validate_examples=3"), dev)
        part = validation.part_of(task, dev)
        assert [example.source for example in part] == [source for source in "036" for _ in range(size // 3)]
    assert [example.target for example in part] == ["a", "b", "d"]


def test_the_part_of_dev_is_bounded() -> None:
    task = TASKS["translate"].learn(tiny(), [Example("ab", "ba")])
    dev = [Example("ab", "ba")] * 30
    assert len(validation.part_of(task, dev)) == 30
    few: Any = TASKS["translate"].learn(tiny("train.validate_examples=4"), dev)
    assert list(validation.part_of(few, [Example(str(number), "x") for number in range(10)])) == [
        Example(str(number), "x") for number in (0, 2, 5, 7)
    ]
    assert len(validation.part_of(task, [Example("a" * 20_000, "b")] * 5)) == 2
    assert len(validation.part_of(task, [Example("a" * 200_000, "b")] * 5)) == 1
    assert validation.part_of(TASKS["translate"].learn(tiny("train.validate_examples=0"), dev), dev) == []


def test_items_are_spread_evenly() -> None:
    assert evenly("abc", 3) == evenly("abc", 5) == "abc"
    assert evenly(list(range(100)), 4) == [0, 25, 50, 75]


def test_a_search_that_does_not_fit_into_memory_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def measure(*_: object) -> Scored:
        raise torch.OutOfMemoryError("CUDA out of memory")

    task = TASKS["translate"].learn(tiny(), [Example("ab", "ba")])
    monkeypatch.setattr(type(task), "measure", measure)
    value, samples, problem = validation.score(task, nn.Linear(1, 1), [Example("ab", "ba")])
    assert (value, samples, problem[:29]) == (None, (), "there is too little memory to")
    task.recipe = tiny("train.best_by=metric")
    with pytest.raises(torch.OutOfMemoryError):
        validation.score(task, nn.Linear(1, 1), [Example("ab", "ba")])


def test_a_perplexity_too_large_for_a_number_is_reported_and_training_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    costs = iter([800.0, 3.0, 2.0, 1.0])  # nats for each token: of three validations, and of all dev texts at the end
    measure = LanguageModelling.measure

    def measure_next(task: LanguageModelling, *arguments: Any) -> Scored:
        nats = next(costs)
        monkeypatch.setattr(LanguageModelling, "cost", lambda *_: (Cost(1, 1, 1, 0, nats), ()))
        return measure(task, *arguments)

    monkeypatch.setattr(LanguageModelling, "measure", measure_next)
    settings = ("data.size=40", "train.updates=6", "train.validate=2", "train.device=cpu")
    recipe = recipes.load(RECIPES["language_model"], [*settings, "train.validate_examples=3", "metric=perplexity"])
    watching = Watching()
    run = regard.train(recipe, runs=tmp_path, quiet=True, callbacks=[watching])
    first, second, _ = watching.events
    assert first.value is None
    assert re.search(r"too large for a number: .* 800\.0 nats .*; train the model with a lower", first.problem)
    assert (second.value, second.problem) == (pytest.approx(math.exp(3)), "")
    assert run.metrics()[-1]["perplexity"] == pytest.approx(math.e)
    assert f"  {first.problem}" in report(first)
    costs = iter([800.0])
    best = recipes.override(recipe, "train.best_by=metric")
    with pytest.raises(NotFiniteError, match=r"lower train.learning_rate.*; or set train.best_by=loss") as caught:
        regard.train(best, runs=tmp_path, quiet=True)
    assert caught.value.exit_code == 3


class Recorded(Processes):
    """Records what the first process sends to the others."""

    def __init__(self) -> None:
        self.sent: list[Any] = []

    def broadcast(self, value: Any) -> Any:
        self.sent.append(value)
        return value


class Second(Processes):
    """The second of two processes; the first one has sent this."""

    rank = 1

    def __init__(self, received: Any) -> None:
        self.received = received

    def broadcast(self, value: Any) -> Any:
        return self.received


def test_a_search_that_is_not_finite_ends_all_processes_with_the_update_and_advice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The dev loss may be finite if the search is not: the search reaches other tokens."""
    recipe = tiny()
    task = Transduce.learn(recipe, [Example(word, word[::-1]) for word in WORDS])
    dev = task.encode([Example(word, word[::-1]) for word in WORDS])
    session = Session.begin(task.build(), recipe.train)
    session.progress.update = 4

    def measure(*_: Any) -> Scored:
        raise NotFiniteError("the model's predictions are not finite numbers; it cannot be searched")

    monkeypatch.setattr(type(task), "measure", measure)
    sentence = "update 4: the model's predictions are not finite .*; a lower train.learning_rate may help"
    for session.processes in (first := Recorded(), Second([None, "update 4: the first process says why"])):
        run = Run.create(tmp_path, "run", {})
        expected = sentence if session.processes.first else "update 4: the first process says why"
        with pytest.raises(NotFiniteError, match=f"^{expected}$"):
            validation.validate(task, session, dev, dev.examples, run, Stopper())
        assert not run.has_file(storage.MODEL)
    ((value, failure),) = first.sent
    assert value is None
    assert re.fullmatch(sentence, failure)


def test_a_metric_too_large_for_a_number_does_not_hide_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = recipes.load(RECIPES["language_model"], ["data.size=40"])
    examples = TASKS["language_model"].examples(recipe)
    task = TASKS["language_model"].learn(recipe, examples.train)
    monkeypatch.setattr(LanguageModelling, "cost", lambda *_: (Cost(1, 1, 1, 0, 800.0), ()))
    scored = task.measure(task.build(), examples.dev, "bits_per_character", recipe.search)
    assert scored.measured.value == pytest.approx(800 / math.log(2))
    assert (scored.others, scored.groups.keys() - {""}) == ({}, scored.groups.keys())
    outcome = Outcome("a", ("b",), "c", 0.0, Cost(1, 1, 1, 0, 800.0))
    assert example_scorer("perplexity", [outcome])(outcome) == math.inf


# The best by the metric


def set_values(monkeypatch: pytest.MonkeyPatch, values: Sequence[float]) -> None:
    """Replace the metric at each validation, and on all of dev, by these values."""
    given = iter(values)

    def measure(self: AnyTask, model: nn.Module, examples: Sequence[Example], *_: object) -> Scored:
        return Scored(self.recipe.metric, Measured(next(given), "given"), {})

    monkeypatch.setattr(TASKS["translate"], "measure", measure)


@pytest.mark.parametrize(
    ("metric", "values"),
    [("character_errors", [0.5, 0.2, 0.3, 0.2, 9.0]), ("chrf", [5.0, 7.0, 6.0, 7.0, 9.0])],
)
@pytest.mark.parametrize("last_loss", [1.0, 2.0, 3.0])
def test_the_metric_decides_if_asked_and_of_equal_ones_the_dev_loss(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, metric: str, values: list[float], last_loss: float
) -> None:
    set_values(monkeypatch, values)
    losses = iter([4.0, 2.0, 0.5, last_loss])
    monkeypatch.setattr(validation, "evaluate", lambda *_: (next(losses), None))
    watching = Watching()
    settings = ["train.updates=20", "train.patience=2", "train.best_by=metric", f"metric={metric}"]
    run = regard.train(tiny(*settings), runs=tmp_path, quiet=True, callbacks=[watching])
    assert [event.update for event in watching.events] == [2, 4, 6, 8]  # patience: an equal metric is no better one
    assert [event.best for event in watching.events] == [True, True, False, last_loss < 2.0]
    assert run.metrics()[-1][metric] == 9.0
    best = [line for line in table(run.metrics()[:-1], run.recipe(), 3) if line.startswith("best")]
    assert best[0].split()[1] == ("8" if last_loss < 2.0 else "4")
    assert validation.update_of_weights(run) == (8 if last_loss < 2.0 else 4)


def test_a_recorded_validation_without_the_metric_that_decides_is_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = regard.train(tiny("train.best_by=metric"), runs=tmp_path, quiet=True)
    entries = run.metrics()
    del entries[1]["dev_character_errors"]
    monkeypatch.setattr(Run, "metrics", lambda _: entries)
    with pytest.raises(CorruptError, match=r"metrics.jsonl is damaged: the validation of update 4 has no dev_char"):
        validation.update_of_weights(run)


def test_training_by_the_metric_resumes_to_the_same_end(tmp_path: Path) -> None:
    class Stop(Callback):
        def on_update(self, event: Updated) -> None:
            if event.update == 5:
                raise ValueError

    recipe = tiny("train.best_by=metric", "train.learning_rate=0.02")
    whole = regard.train(recipe, runs=tmp_path, quiet=True)
    with pytest.raises(regard.errors.CallbackError):
        regard.train(recipe, runs=tmp_path, quiet=True, callbacks=[Stop()])
    resumed = regard.resume(tmp_path / "tiny-2", quiet=True)
    assert resumed.read(storage.MODEL) == whole.read(storage.MODEL)
    values = [[entry.get("dev_character_errors") for entry in run.metrics()] for run in (whole, resumed)]
    assert values[0] == values[1]


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["train.best_by=metrik"], "unknown value of train.best_by 'metrik'; choose from loss, metric; did you mean"),
        (["train.best_by=metric", "train.validate_examples=0"], "best_by = metric needs train.validate_examples of at"),
    ],
)
def test_a_best_by_that_cannot_be_used_is_refused(overrides: list[str], message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        check(tiny(*overrides))


# The report


def report(*events: Any, settings: Train | None = None, done: int = 0) -> list[str]:
    """The lines that are printed for these events, without a terminal."""
    stream, before = io.StringIO(), sys.stderr
    sys.stderr = stream
    try:
        written = Report(ProgressLog())
    finally:
        sys.stderr = before
    run: Any = Run(Path("runs/tiny"))
    written.on_start(Started(run, replace(tiny(), train=settings or Train()), done, 1000, 1, "cpu"))
    for event in events:
        getattr(written, "on_validation" if isinstance(event, Validated) else "on_end")(event)
    return stream.getvalue().splitlines()


def validated(**changes: Any) -> Validated:
    """A validation with these numbers, the others made up."""
    times = {"tokens_per_second": 1234.5, "seconds": 40.0, "learning_rate": 0.1}
    numbers: dict[str, Any] = {"loss": 2.0, "gradient_norm": 1.25, "dev_loss": 1.5, "value": 31.5, "health": None}
    part = {"update": 250, "updates": 1000, "metric": "bleu", "examples": 100, "samples": ()}
    return Validated(**times | numbers | part | {"best": True, "waited": 0} | changes)


def test_a_validation_is_reported_with_time_speed_numbers_and_samples() -> None:
    samples = (Sample("a\tb", "c", "c"), Sample("x" * 100, "y", ""))
    first, second, third, fourth = report(validated(samples=samples))
    assert first.startswith("update 250 of 1,000: 40 s, 1,234 tokens/s, ")
    assert first.endswith(" left")
    assert second == (
        "  loss 2.0000, dev loss 1.5000, bleu 31.5000 (of 100 dev examples), gradient norm 1.25; the best so far"
    )
    assert third == "  sample: a␉b -> c, as expected"
    assert fourth == f"  sample: {'x' * 79}… -> (blank), expected y"
    assert report(validated(best=False, value=None, gradient_norm=None))[1] == "  loss 2.0000, dev loss 1.5000"


def test_a_sample_is_one_line_without_control_characters() -> None:
    assert describe_sample(Sample("a\nb\x1b[31m", "c", "d\r")) == "sample: a␊b␛[31m -> d␍, expected c"


def test_stopping_early_is_reported_by_what_decides() -> None:
    settings = Train(patience=2)
    line = "stopping: the dev loss has not fallen for 2 validations"
    assert report(validated(waited=2, best=False), settings=settings)[-1] == line
    settings = Train(patience=2, best_by="metric")
    line = "stopping: the bleu has not improved for 2 validations"
    assert report(validated(waited=2, best=False), settings=settings)[-1] == line
    assert "stopping" not in report(validated(waited=1, best=False), settings=settings)[-1]


def test_the_table_shows_the_best_and_the_last_validation_in_60_columns() -> None:
    recipe = tiny("metric=phoneme_errors")
    key = "dev_phoneme_errors"
    entries = [{"update": update, "dev_loss": 1 / update, key: update / 1e4} for update in (250, 500, 12_000)]
    lines = list(table(entries, replace(recipe, train=Train(best_by="metric")), 100))
    assert lines == [
        "         update   dev_loss  dev_phoneme_errors (of 100)",
        "best        250     0.0040                       0.0250",
        "last     12,000     0.0001                       1.2000",
    ]
    assert max(map(len, lines)) <= 60
    assert list(table(entries, recipe, 100))[1:] == ["best     12,000     0.0001                       1.2000"]
    assert list(table(entries[:1], recipe, 100)) == []


@pytest.mark.parametrize(("done", "since"), [(0, ""), (1250, " in all, resumed after update 1,250")])
def test_the_result_names_its_examples_and_since_when_it_learned(done: int, since: str) -> None:
    run: Any = SimpleNamespace(metrics=lambda: [{}])
    ended = Ended(run, True, 2000, 20.9, "bleu", 0.5, "bleu|n:500", "float32", 500)
    assert report(ended, done=done) == [f"learned in 20.9 s{since}; on all 500 dev examples: 0.5000 (bleu|n:500)"]


@pytest.mark.parametrize(
    ("updates", "passes"),
    [
        (1, "less than a tenth of a pass"),
        (10, "about 0.2 passes"),
        (50, "about one pass"),
        (120, "about 2.4 passes"),
        (75_000, "about 1,500 passes"),
    ],
)
def test_the_passes_over_the_data_are_counted(updates: int, passes: str) -> None:
    data: Any = SimpleNamespace(lengths=lambda: [(5, 7), (7, 3)] * 350)  # 100 batches of 7 x 7
    assert _passes(Train(updates=updates, batch_tokens=50, accumulate=2), data) == f"{passes} over the data"


def test_a_run_that_is_not_finished_has_no_result() -> None:
    assert report(Ended(Run(Path("runs/tiny")), False, 3, 1.0, "bleu")) == []
