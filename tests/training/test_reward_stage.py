"""Training on the metric after the cross-entropy: what it learns, what it leaves alone, and that it resumes exactly."""

import math
import random
from functools import reduce
from pathlib import Path

import pytest
import torch

import regard
from regard import recipe as recipes
from regard import storage
from regard.data.batching import Batches
from regard.errors import CallbackError
from regard.recipe import Recipe, Train
from regard.storage import Run
from regard.tasks import Transduce
from regard.tasks.rewards import Rewards
from regard.training import engine
from regard.training.callbacks import Callback, Updated, Validated
from regard.training.engine import Captured, Eager, Engine, Rewarded, Staged
from regard.training.engine.captured import Table
from regard.training.schedules import SCHEDULES, learning_rate
from regard.training.session import OPTIMIZER, Session
from regard.training.stopping import Stopper

WALL_CLOCK = {"tokens_per_second", "seconds", "train_seconds"}
AFTER = 5  # updates with cross-entropy of the recipe below


def words(count: int, letters: str = "abcde") -> list[str]:
    """Different words of two to five letters."""
    generator, found = random.Random(3), dict[str, None]()
    while len(found) < count:
        found["".join(generator.choices(letters, k=generator.randint(2, 5)))] = None
    return [*found]


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Recipe:
    """A recipe with a reward and everything else that has a state; some sources have two targets."""
    folder = tmp_path_factory.mktemp("pairs")
    for name, own in {"train.tsv": words(40), "dev.tsv": words(50)[40:]}.items():
        lines = [f"{word}\t{word[::-1]}\n" for word in own] + [f"{word}\t{word}\n" for word in own[::7]]
        (folder / name).write_text("".join(lines), encoding="utf-8")
    data = ["name=tiny", f"data.train={folder}/train.tsv", f"data.dev={folder}/dev.tsv", "metric=character_errors"]
    sizes = ["model.embedding=8", "model.encoder.dim=12", "model.decoder.dim=10", "model.attention.dim=6"]
    settings = ["train.updates=11", "train.validate=3", "train.batch_tokens=36", "train.threads=1", "train.device=cpu"]
    states = ["model.encoder.dropout=0.1", "model.decoder.dropout=0.2", "train.ema=0.8", "train.average=2"]
    more = ["train.accumulate=2", "train.schedule=linear", "train.warmup=2", "train.best_by=metric"]
    reward = ["train.reward=character_errors,exact_match", f"train.reward_after={AFTER}", "train.reward_rate=0.002"]
    search = ["search.max_ratio=0", "search.max_extra=4"]
    return recipes.parse("", "tiny", [*data, *sizes, *settings, *states, *more, *reward, *search])


def outcome(run: Run) -> tuple[object, ...]:
    """Weights, optimizer, averages, generator states and metrics, without metrics that depend on the clock."""
    [last] = run.own_checkpoints()
    entries = [{key: value for key, value in entry.items() if key not in WALL_CLOCK} for entry in run.metrics()]
    return run.read(storage.MODEL), last.read(storage.MODEL), last.read(OPTIMIZER), entries


@pytest.fixture(scope="module")
def uninterrupted(recipe: Recipe, tmp_path_factory: pytest.TempPathFactory) -> tuple[object, ...]:
    """The outcome of a run that was never stopped."""
    return outcome(regard.train(recipe, runs=tmp_path_factory.mktemp("whole"), quiet=True))


class StopAfter(Callback):
    """Stops training after an update, with an error."""

    def __init__(self, update: int) -> None:
        self.update = update

    def on_update(self, event: Updated) -> None:
        if event.update == self.update:
            raise ValueError("enough")


class Recorder(Callback):
    """Keeps all events."""

    def __init__(self) -> None:
        self.updates: list[Updated] = []
        self.validations: list[Validated] = []

    def on_update(self, event: Updated) -> None:
        self.updates.append(event)

    def on_validation(self, event: Validated) -> None:
        self.validations.append(event)


# Learning


@pytest.mark.parametrize("metric", ["character_errors", "exact_match"])
def test_a_reward_improves_a_model_whose_cross_entropy_was_stopped_early(metric: str, tmp_path: Path) -> None:
    """Words are to be reversed. After 70 updates, half of the dev words are wrong in some letter."""
    pairs = [(word, word[::-1]) for word in words(400)]
    sizes = ["model.embedding=12", "model.encoder.dim=24", "model.decoder.dim=24", "model.attention.dim=12"]
    settings = ["train.batch_tokens=400", "train.learning_rate=0.01", "train.device=cpu", "train.threads=1"]
    length = ["train.updates=130", "train.reward_after=70", "train.validate=10", "train.keep=last"]
    reward = [f"metric={metric}", f"train.reward={metric}", "train.reward_rate=0.01", "search.max_ratio=1"]
    keys = [*sizes, *settings, *length, *reward, "search.max_extra=3", "model.decoder.order=luong"]
    run = regard.train(
        recipes.parse("", "reversed", keys), pairs=pairs[:300], dev=pairs[300:], runs=tmp_path, quiet=True
    )
    before, *stage = run.metrics()[6:-1]
    assert before["update"] == 70
    key, after = f"dev_{metric}", stage[-1]
    if metric == "exact_match":
        assert after[key] > before[key] + 0.3
    else:
        assert after[key] < 0.5 * before[key]
    assert stage[-1]["reward"] > stage[2]["reward"] > stage[0]["reward"]


SOURCES = {
    "reverse": ("model.encoder.dim=8", "train.reward=chrf", "metric=chrf"),
    "shapes": ("picture.channels=3", "picture.blocks=4", "model.encoder.dim=8", "train.reward=cider_d,rouge_l"),
    "tones": ("speech.bands=12", "speech.width=8", "model.encoder.dim=8", "train.reward=word_errors"),
}


@pytest.mark.parametrize("name", SOURCES)
def test_every_kind_of_source_has_rewards(name: str, tmp_path: Path) -> None:
    sizes = [
        "model.embedding=8",
        "model.decoder.dim=8",
        "model.attention.dim=8",
        "data.size=20",
        "train.batch_tokens=300",
    ]
    length = ["train.updates=4", "train.reward_after=2", "train.validate=2", "train.keep=last", "train.warmup=0"]
    search = ["search.max_ratio=0", "search.max_extra=3", "train.validate_examples=2", "train.device=cpu"]
    run = regard.train(name, *sizes, *length, *search, *SOURCES[name], runs=tmp_path, quiet=True)
    first, second, _ = run.metrics()
    assert "reward" not in first
    assert math.isfinite(second["reward"])
    assert 0 < second["gradient_norm"] < math.inf


def test_up_to_the_reward_training_is_that_of_so_many_updates(recipe: Recipe, tmp_path: Path) -> None:
    """So the cross-entropy is learned as ever, with its whole schedule; the optimizer goes on with its moments."""
    without = ["train.reward=", "train.reward_after=0", "train.reward_rate=0.00005", f"train.updates={AFTER}"]
    alone = regard.train(reduce(recipes.override, without, recipe), runs=tmp_path / "alone", quiet=True)
    with pytest.raises(CallbackError):
        regard.train(recipe, runs=tmp_path, quiet=True, callbacks=[StopAfter(AFTER)])
    mine, other = Run.open(tmp_path / "tiny").own_checkpoints()[0], alone.own_checkpoints()[0]
    assert mine.update == other.update == AFTER
    assert mine.read(storage.MODEL) == other.read(storage.MODEL)


def test_the_schedule_runs_once_for_each_stage() -> None:
    for name, schedule in SCHEDULES.items():
        settings = Train(updates=30, warmup=4, schedule=name, learning_rate=0.7, reward=("bleu",), reward_after=19)
        rates = [learning_rate(settings, update) for update in range(1, 31)]
        first = [0.7 * schedule(update, 4, 19) for update in range(1, 20)]
        assert rates == pytest.approx([*first, *(0.00005 * schedule(update, 4, 11) for update in range(1, 12))])
        shortened = Train(updates=12, warmup=4, schedule=name, learning_rate=0.7, reward=("bleu",), reward_after=19)
        assert learning_rate(shortened, 12) == pytest.approx(0.7 * schedule(12, 4, 12))


# Stopping and resuming


@pytest.mark.parametrize("update", [4, AFTER, AFTER + 1, 8, 10])
def test_a_run_stopped_in_either_stage_resumes_to_the_same_outcome(
    recipe: Recipe, uninterrupted: tuple[object, ...], tmp_path: Path, update: int
) -> None:
    with pytest.raises(CallbackError, match=r"enough"):
        regard.train(recipe, runs=tmp_path, quiet=True, callbacks=[StopAfter(update)])
    run = Run.open(tmp_path / "tiny")
    assert (run.finished(), run.newest_update()) == (False, update)
    assert outcome(regard.resume(run, quiet=True)) == uninterrupted


def test_a_stop_while_outputs_are_drawn_undoes_the_update(
    recipe: Recipe, uninterrupted: tuple[object, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, calls = Rewards.draw, []

    def draw(self: Rewards, *arguments: object) -> object:
        calls.append(1)
        if len(calls) == 4:  # the second batch of the second update with reward
            torch.rand(3)
            raise regard.errors.StoppedError(2)
        return real(self, *arguments)  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr(Rewards, "draw", draw)
        with pytest.raises(regard.errors.StoppedError):
            regard.train(recipe, runs=tmp_path, quiet=True)
    run = Run.open(tmp_path / "tiny")
    assert run.newest_update() == AFTER + 1
    assert outcome(regard.resume(run, quiet=True)) == uninterrupted


def test_another_seed_draws_other_outputs(recipe: Recipe, uninterrupted: tuple[object, ...], tmp_path: Path) -> None:
    run = regard.train(recipe, "train.seed=2", runs=tmp_path, quiet=True)
    rewards = [entry.get("reward") for entry in run.metrics()]
    assert rewards != [entry.get("reward") for entry in uninterrupted[3]]  # type: ignore[attr-defined]


# Reports


def test_the_mean_reward_is_in_metrics_events_and_messages(
    recipe: Recipe, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn, recorder, real = [], Recorder(), Rewards.draw

    def draw(self: Rewards, *arguments: object) -> object:
        drawn.append(real(self, *arguments))  # type: ignore[arg-type]
        return drawn[-1]

    monkeypatch.setattr(Rewards, "draw", draw)
    run = regard.train(recipe, runs=tmp_path, callbacks=[recorder])
    assert len(drawn) == 2 * 6
    values = [batch.rewards for batch in drawn]
    mean = torch.cat([rows.flatten() for rows in values[2:8]]).mean().item()  # of updates 7 to 9
    entries = {entry["update"]: entry for entry in run.metrics()[:-1]}
    assert entries[9]["reward"] == pytest.approx(mean)
    assert [update for update, entry in entries.items() if "reward" in entry] == [6, 9, 11]
    assert [event.reward is None for event in recorder.updates] == [True] * AFTER + [False] * 6
    assert [event.reward for event in recorder.validations] == [entry.get("reward") for entry in entries.values()]
    messages = capsys.readouterr().err
    assert "5 updates of at most 72 tokens, " in messages
    line = "6 updates on the reward character_errors + exact_match of 5 outputs drawn for each source of a batch"
    assert line in messages
    assert f", reward {mean:.4f}" in messages


# Engines


def make_engine(recipe: Recipe, *, on_device: bool) -> Rewarded:
    examples = Transduce.examples(recipe)
    task = Transduce.learn(recipe, examples.train)
    torch.manual_seed(3)
    session = Session.begin(task.build(), recipe.train)
    session.progress.update = AFTER
    rewards = task.rewards(task.within_length(task.encode(examples.train)))
    return Rewarded(task, session, rewards, on_device=on_device)


def test_a_table_of_sources_on_the_device_changes_nothing(recipe: Recipe) -> None:
    weights = []
    for on_device in (False, True):
        rewarded = make_engine(recipe, on_device=on_device)
        assert isinstance(rewarded.table, Table) == on_device
        for _ in range(3):
            rewarded.update(Batches(rewarded.lengths, 36, 1), Stopper())
        assert rewarded.session.progress.rewarded == sum(
            5 * len(rewarded.batches[number]) for number in range(2 * AFTER, 2 * AFTER + 6)
        )
        weights.append([*rewarded.session.model.state_dict().values()])
    assert all(torch.equal(one, other) for one, other in zip(*weights, strict=True))


def test_a_batch_that_does_not_fit_into_memory_is_split_with_its_outputs(
    recipe: Recipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    gradients, totals = [], []
    real = Rewards.loss
    for limit in (math.inf, 2):
        rewarded = make_engine(
            reduce(recipes.override, ["model.encoder.dropout=0", "model.decoder.dropout=0"], recipe), on_device=False
        )
        rewarded.session.model.double()

        def loss(self: Rewards, model: object, drawn: object, limit: float = limit) -> object:
            if len(drawn.examples) > limit:  # type: ignore[attr-defined]
                raise MemoryError
            return real(self, model, drawn)  # type: ignore[arg-type]

        monkeypatch.setattr(Rewards, "loss", loss)
        rewarded.update(rewarded.batches, Stopper())
        gradients.append([parameter.grad for parameter in rewarded.session.model.parameters()])
        totals.append((rewarded.session.progress.total, rewarded.session.progress.tokens))
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other, rtol=0.0, atol=1e-12)
    assert totals[0] == (pytest.approx(totals[1][0], abs=1e-12), totals[1][1])


def test_the_engine_changes_after_the_cross_entropy(recipe: Recipe) -> None:
    examples = Transduce.examples(recipe)
    task = Transduce.learn(recipe, examples.train)
    session = Session.begin(task.build(), recipe.train)
    data = task.encode(examples.train)
    batches = Batches(data.lengths(), 36, 1)
    staged = engine.choose(task, session, data)
    assert isinstance(staged, Staged)
    kinds = []
    for _ in range(AFTER + 2):
        staged.update(batches, Stopper())
        kinds.append(type(staged.current))
    assert kinds == [Eager] * AFTER + [Rewarded] * 2
    again = engine.choose(task, session, data)
    assert isinstance(again, Staged)
    assert type(again.current) is Rewarded


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.gpu
@pytest.mark.takes("captured_updates")
@pytest.mark.parametrize("update", [AFTER - 1, AFTER, 8])
def test_on_a_gpu_the_cross_entropy_is_captured_and_a_stopped_run_resumes_to_the_same_outcome(
    recipe: Recipe, tmp_path: Path, update: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    kinds: list[type[Engine]] = []
    real = Staged.update

    def staged_update(self: Staged, batches: Batches, stopper: Stopper) -> None:
        real(self, batches, stopper)
        kinds.append(type(self.current))

    monkeypatch.setattr(Staged, "update", staged_update)
    keys = ["train.device=cuda", "train.accumulate=1", "train.deterministic=true"]
    on_gpu = reduce(recipes.override, keys, recipe)
    whole = regard.train(on_gpu, runs=tmp_path / "whole", quiet=True)
    assert kinds == [Captured] * AFTER + [Rewarded] * 6
    with pytest.raises(CallbackError, match=r"enough"):
        regard.train(on_gpu, runs=tmp_path, quiet=True, callbacks=[StopAfter(update)])
    assert outcome(regard.resume(tmp_path / "tiny", quiet=True)) == outcome(whole)
