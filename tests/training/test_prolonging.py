"""A run, finished or stopped, goes on with more updates; after any interruption it ends with the same bits."""

import json
import random
import shutil
import signal
from collections.abc import Callable
from dataclasses import replace
from functools import reduce
from pathlib import Path

import pytest

from regard import recipe as recipes
from regard import storage
from regard.errors import CorruptError, DataError, RecipeError, StoppedError
from regard.recipe import Recipe
from regard.storage import CARD, CHECKPOINTS, LOCK, METRICS, MODEL, Run
from regard.tasks import Transduce
from regard.training import environment, loop, resume, train
from regard.training.session import OPTIMIZER, Progress
from regard.training.stopping import Stopper

WALL_CLOCK = {"tokens_per_second", "seconds", "train_seconds"}
Outcome = tuple[object, ...]


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Recipe:
    """Five updates, with a validation after 2, 4 and 5; averages of weights, and a schedule that ends at zero."""
    folder = tmp_path_factory.mktemp("pairs")
    generator = random.Random(7)
    for name, count in {"train.tsv": 30, "dev.tsv": 6}.items():
        words = ["".join(generator.choices("abcdef", k=generator.randint(2, 5))) for _ in range(count)]
        (folder / name).write_text("".join(f"{word}\t{word[::-1]}\n" for word in words), encoding="utf-8")
    data = ["name=tiny", f"data.train={folder}/train.tsv", f"data.dev={folder}/dev.tsv"]
    sizes = ["model.embedding=4", "model.encoder.dim=6", "model.decoder.dim=6", "model.attention.dim=4"]
    settings = ["train.updates=5", "train.validate=2", "train.batch_tokens=60", "train.threads=1", "train.device=cpu"]
    states = ["model.encoder.dropout=0.1", "train.ema=0.8", "train.average=4", "train.sampling=0.5"]
    search = ["train.schedule=linear", "search.max_ratio=0", "search.max_extra=3"]
    return recipes.parse("", "tiny", [*data, *sizes, *settings, *states, *search])


@pytest.fixture(scope="module")
def trained(recipe: Recipe, tmp_path_factory: pytest.TempPathFactory) -> Run:
    return train(recipe, runs=tmp_path_factory.mktemp("trained"), quiet=True)


@pytest.fixture
def finished(trained: Run, tmp_path: Path) -> Run:
    """A copy of a finished run."""
    return Run(Path(shutil.copytree(trained.path, tmp_path / "tiny")))


@pytest.fixture(scope="module")
def prolonged(trained: Run, tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    """The outcome of a finished run that was prolonged without an interruption."""
    run = Path(shutil.copytree(trained.path, tmp_path_factory.mktemp("prolonged") / "tiny"))
    return outcome(resume(run, "train.updates=9", quiet=True))


def outcome(run: Run) -> Outcome:
    """Recipe, weights, the last checkpoint, and the metrics that do not depend on the clock."""
    assert run.finished()
    [last] = run.own_checkpoints()
    entries = [{key: value for key, value in entry.items() if key not in WALL_CLOCK} for entry in run.metrics()]
    return run.recipe(), run.read(MODEL), last.read(MODEL), last.read(OPTIMIZER), entries, run.read(CARD)


def contents(run: Run) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in run.path.rglob("*") if path.is_file()}


class StoppingAt(Stopper):
    """Raises StoppedError before an update or in a validation, at the check with number `last`."""

    last = 0
    checks = 0

    def check(self) -> None:
        StoppingAt.checks += 1
        if StoppingAt.checks == StoppingAt.last:
            raise StoppedError(signal.SIGINT)
        super().check()


def interrupt(check: int, work: Callable[[], object]) -> None:
    """Train, and stop at this check."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(StoppingAt, "last", check)
        patch.setattr(StoppingAt, "checks", 0)
        patch.setattr(loop, "Stopper", StoppingAt)
        with pytest.raises(StoppedError):
            work()


@pytest.fixture(scope="module")
def stopped(recipe: Recipe, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run that was stopped after update 3."""
    folder = tmp_path_factory.mktemp("stopped")
    interrupt(5, lambda: train(recipe, runs=folder, quiet=True))
    return Run.open(folder / "tiny")


def test_a_finished_run_goes_on_to_its_new_end(
    finished: Run, trained: Run, prolonged: Outcome, capsys: pytest.CaptureFixture[str]
) -> None:
    run = resume(finished, "train.updates=9")
    assert outcome(run) == prolonged
    assert [entry["update"] for entry in run.metrics()[:-1]] == [2, 4, 5, 6, 8, 9]  # the end before was validated
    assert [entry["dev_loss"] for entry in run.metrics()[:3]] == [entry["dev_loss"] for entry in trained.metrics()[:3]]
    rates = "0.0004 at update 6 (it was 0.000167 at update 5), and 0.0001 at update 9"
    said = f"train.updates is 9 now (was 5): by the schedule linear, the learning rate is {rates}\n"
    assert said in capsys.readouterr().err
    assert run.newest_update() == 9
    assert Progress.of(run.own_checkpoints()[0], run.recipe().train).validations == 6
    assert not (run.path / LOCK).exists()
    lengths = [{"update": 5, "train.updates": 5, "train.patience": 0}]
    assert json.loads(run.read(storage.PROLONGED)) == lengths


@pytest.mark.parametrize("check", [1, 4])
def test_a_prolonged_run_that_was_stopped_ends_with_the_same_bits(
    finished: Run, prolonged: Outcome, check: int
) -> None:
    interrupt(check, lambda: resume(finished, "train.updates=9", quiet=True))
    assert not finished.finished()
    assert outcome(resume(finished, *(["train.updates=9"] if check % 2 else []), quiet=True)) == prolonged


def test_a_signal_before_the_new_recipe_is_stored_leaves_the_run_finished(
    finished: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = contents(finished)
    monkeypatch.setattr(Transduce, "encode", lambda *_: signal.raise_signal(signal.SIGINT))
    with pytest.raises(StoppedError, match=r"stopped by SIGINT; .*tiny is finished, as it was before"):
        resume(finished, "train.updates=9", quiet=True)
    assert contents(finished) == before


def test_a_run_is_prolonged_twice(finished: Run, prolonged: Outcome) -> None:
    resume(finished, "train.updates=7", quiet=True)
    run = resume(finished, "train.updates=9", quiet=True)
    assert [entry["update"] for entry in run.metrics()[:-1]] == [2, 4, 5, 6, 7, 8, 9]
    assert [length["update"] for length in json.loads(run.read(storage.PROLONGED))] == [5, 7]
    assert Progress.of(run.own_checkpoints()[0], run.recipe().train).validations == 7
    assert outcome(run) != prolonged  # it has seen other learning rates


def test_a_stopped_run_is_shortened_or_prolonged(stopped: Run, tmp_path: Path) -> None:
    names = ("short", "once", "twice")
    short, once, twice = [Run(Path(shutil.copytree(stopped.path, tmp_path / name))) for name in names]
    assert short.newest_update() == 3
    assert [entry["update"] for entry in resume(short, "train.updates=4", quiet=True).metrics()[:-1]] == [2, 4]
    resume(once, "train.updates=7", quiet=True)
    interrupt(1, lambda: resume(twice, "train.updates=7", quiet=True))
    assert twice.recipe().train.updates == 7
    assert outcome(resume(twice, quiet=True)) == outcome(once)
    assert [entry["update"] for entry in once.metrics()[:-1]] == [2, 4, 6, 7]


def test_a_run_stopped_in_its_last_validation_can_be_prolonged(recipe: Recipe, tmp_path: Path) -> None:
    """The weights of update 5 are averaged, as the recipe said when they were computed; they are not validated."""
    interrupt(8, lambda: train(recipe, runs=tmp_path, quiet=True))
    run = Run.open(tmp_path / "tiny")
    state = Progress.of(run.own_checkpoints()[0], recipe.train)
    assert (state.update, state.validated, state.validations) == (5, 4, 3)
    resume(run, "train.updates=6", quiet=True)
    assert [entry["update"] for entry in run.metrics()[:-1]] == [2, 4, 6]


def test_with_a_constant_rate_a_prolonged_run_equals_a_longer_one(recipe: Recipe, tmp_path: Path) -> None:
    constant = reduce(recipes.override, ["train.schedule=constant", "train.sampling=0", "train.average=3"], recipe)
    short, long = [recipes.override(constant, f"train.updates={updates}") for updates in (4, 8)]
    run = resume(train(short, runs=tmp_path / "short", quiet=True), "train.updates=8", quiet=True)
    assert outcome(run) == outcome(train(long, runs=tmp_path / "long", quiet=True))


def test_checkpoints_of_older_versions_have_no_count_of_validations(finished: Run) -> None:
    [checkpoint] = finished.own_checkpoints()
    state = checkpoint.path / "state.json"
    counted = Progress.of(checkpoint, finished.recipe().train)
    state.write_bytes(state.read_bytes().replace(b', "validations": 3', b""))
    manifest = checkpoint.manifest()
    listed = manifest.files | {"state.json": [storage.files.digest(state.read_bytes())]}
    (checkpoint.path / storage.MANIFEST).write_bytes(manifest._replace(files=listed).to_json())
    assert b"validations" not in state.read_bytes()
    assert Progress.of(checkpoint, finished.recipe().train) == counted


REFUSED = {
    "model.embedding=5": "model.embedding cannot change when a run goes on, only train.updates and train.patience can; "
    r"train a new run, or one that starts from the weights of this one: regard train \S*/recipe.toml "
    r"train.start_from=\S*tiny model.embedding=5$",
    "train.validate=3": "train.validate cannot change when a run goes on",
    "train.learning_rate=0.1": "train.learning_rate cannot change when a run goes on",
    "train.update=9": "unknown key 'train.update' in the overrides; did you mean 'train.updates'",
    "train.updates=4": r"train.updates=4: the run \S*tiny has done 5 updates; give more",
    "train.patience=3": r"train.updates=5: the run \S*tiny has done 5 updates; give more",
    "train.updates=0": "train.updates in the overrides is at least 1",
}


@pytest.mark.parametrize("override", REFUSED)
def test_any_other_change_is_refused_and_the_run_stays_as_it_is(finished: Run, override: str) -> None:
    before = contents(finished)
    with pytest.raises(RecipeError, match=REFUSED[override]):
        resume(finished, override, quiet=True)
    assert contents(finished) == before


def test_values_that_do_not_change_are_allowed(finished: Run, capsys: pytest.CaptureFixture[str]) -> None:
    before = contents(finished)
    resume(finished, "train.updates=5", "train.seed=1")
    assert "is finished already" in capsys.readouterr().err
    assert contents(finished) == before


def test_a_finished_run_without_its_checkpoint_is_refused(finished: Run) -> None:
    shutil.rmtree(finished.path / CHECKPOINTS)
    before = contents(finished)
    how = r"train a new run that starts from its weights: regard train \S*recipe.toml train.start_from=\S*tiny"
    with pytest.raises(DataError, match=rf"tiny is finished and has no checkpoint .*; {how} train.updates=9$"):
        resume(finished, "train.updates=9", quiet=True)
    assert contents(finished) == before


@pytest.mark.parametrize("name", [MODEL, OPTIMIZER, METRICS])
def test_a_finished_run_with_a_damaged_checkpoint_stays_finished(finished: Run, name: str) -> None:
    [checkpoint] = finished.own_checkpoints()
    (checkpoint.path / name).write_bytes((checkpoint.path / name).read_bytes()[:-1])
    before = contents(finished)
    with pytest.raises(CorruptError, match=f"{name} is damaged"):
        resume(finished, "train.updates=9", quiet=True)
    assert contents(finished) == before
    assert finished.finished()


def test_changed_data_and_another_environment_are_noticed(
    finished: Run, recipe: Recipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = contents(finished)
    monkeypatch.setattr(environment, "__version__", "9.9")
    with pytest.raises(DataError, match="--exact resumes a run only in the environment it was trained in"):
        resume(finished, "train.updates=9", exact=True, quiet=True)
    train_file = Path(recipe.data.train[0])
    content = train_file.read_bytes()
    train_file.write_bytes(content.replace(b"a", b"e", 1))
    with pytest.raises(DataError, match="has changed since its training began"):
        resume(finished, "train.updates=9", quiet=True)
    train_file.write_bytes(content)
    assert contents(finished) == before
    resume(finished, "train.updates=6", quiet=True)
    assert [each["update"] for each in finished.environments()] == [0, 5]


@pytest.mark.parametrize(
    ("best_by", "what"), [("loss", "dev loss had not fallen"), ("metric", "exact_match had not improved")]
)
def test_a_run_that_ended_by_patience_needs_more_of_it(
    recipe: Recipe, tmp_path: Path, capsys: pytest.CaptureFixture[str], best_by: str, what: str
) -> None:
    settings = replace(recipe.train, patience=1, learning_rate=0.0, updates=20, best_by=best_by, validate_examples=3)
    run = train(replace(recipe, metric="exact_match", train=settings), runs=tmp_path, quiet=True)
    assert run.newest_update() == 4  # neither ever gets better: one validation is the best, the next one ends it
    before = contents(run)
    how = "to go on, give train.patience too: more than 1, or 0 for no limit"
    with pytest.raises(RecipeError, match=rf"tiny ended because its {what} for 1 validations; {how}"):
        resume(run, "train.updates=30", quiet=True)
    assert contents(run) == before
    resume(run, "train.patience=2")
    assert "train.patience is 2 now (was 1)\n" in capsys.readouterr().err
    assert run.newest_update() == 6
