"""The training loop: schedules, determinism, falling loss, early stopping, and errors if a value is not finite."""

import math
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from safetensors.torch import load as load_tensors
from torch import Tensor

import regard
from regard import recipe as recipes
from regard import storage
from regard.data.corpora import reverse
from regard.errors import NotFiniteError, RecipeError
from regard.models import Seq2Seq
from regard.recipe import Recipe
from regard.storage import Run
from regard.tasks import Transduce
from regard.training import loop, validation
from regard.training.callbacks import Callbacks, MetricsFile
from regard.training.schedules import SCHEDULES
from regard.training.session import Session
from regard.training.stopping import Stopper
from regard.types import PAD, UNKNOWN, Batch

WALL_CLOCK = {"tokens_per_second", "seconds", "train_seconds"}


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Tiny models are faster with one thread, and other processes slow them down less."""
    before, set_threads = torch.get_num_threads(), torch.set_num_threads
    set_threads(1)
    yield
    set_threads(before)


def tiny(*overrides: str) -> Recipe:
    """A recipe that learns a little in a second."""
    sizes = ["model.embedding=16", "model.encoder.dim=24", "model.decoder.dim=20", "model.attention.dim=12"]
    data = ["name=tiny", "data.corpus=reverse", "data.size=300", "data.max_length=8", "train.device=cpu"]
    order = ["model.decoder.order=luong"]  # computes all steps at once: the fastest order with attention
    search = ["search.max_ratio=0", "search.max_extra=3"]  # outputs of untrained models stay short
    settings = ["train.updates=30", "train.validate=10", "train.batch_tokens=200", "train.learning_rate=0.01"]
    return recipes.parse("", "tiny", [*sizes, *data, *order, *settings, *search, *overrides])


class Bench:
    """A task with its data, a fresh model and a run, to call `fit` on."""

    def __init__(self, folder: Path, *overrides: str) -> None:
        self.recipe = tiny(*overrides)
        examples = reverse(1, self.recipe.data.size)
        self.task = Transduce.learn(self.recipe, examples.train)
        self.data = self.task.within_length(self.task.encode(examples.train))
        self.dev = self.task.within_length(self.task.encode(examples.dev))
        torch.manual_seed(self.recipe.train.seed)
        self.session = Session.begin(self.task.build(), self.recipe.train)
        self.model = self.session.model
        self.run = Run.create(folder, "bench", {})

    def fit(self) -> None:
        callbacks = Callbacks([MetricsFile(self.run)])
        loop.fit(self.task, self.session, self.data, self.dev, self.run, callbacks, Stopper())

    def entries(self) -> list[dict[str, float]]:
        return self.run.metrics()

    def stored(self) -> dict[str, Tensor]:
        return load_tensors(self.run.read(storage.MODEL))


def weights(model: Seq2Seq) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


# Schedules


@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize(("warmup", "updates"), [(0, 1), (0, 50), (1, 50), (7, 50), (50, 50), (90, 50)])
def test_a_schedule_stays_within_zero_and_one(name: str, warmup: int, updates: int) -> None:
    shares = [SCHEDULES[name](update, warmup, updates) for update in range(1, updates + 1)]
    assert all(0 < share <= 1 for share in shares)


@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize("warmup", [1, 2, 7])
def test_warm_up_is_linear_and_reaches_one(name: str, warmup: int) -> None:
    for update in range(1, warmup + 1):
        assert SCHEDULES[name](update, warmup, 50) == pytest.approx(update / warmup)


@pytest.mark.parametrize("name", SCHEDULES)
def test_without_warm_up_the_first_update_has_the_full_rate(name: str) -> None:
    assert SCHEDULES[name](1, 0, 50) == pytest.approx(1.0, abs=1 / 50)  # `linear` has made one of 51 steps down


def test_constant_stays_at_one() -> None:
    assert {SCHEDULES["constant"](update, 7, 50) for update in range(7, 51)} == {1.0}


@pytest.mark.parametrize("warmup", [1, 7])
def test_inverse_sqrt_is_the_formula(warmup: int) -> None:
    for update in range(1, 51):  # Vaswani et al. 2017, eq. 3, scaled to reach 1
        formula = min(update**-0.5, update * warmup**-1.5) * warmup**0.5
        assert SCHEDULES["inverse_sqrt"](update, warmup, 50) == pytest.approx(formula)


@pytest.mark.parametrize("warmup", [0, 1, 7])
def test_linear_falls_evenly_to_just_above_zero(warmup: int) -> None:
    falling = [SCHEDULES["linear"](update, warmup, 50) for update in range(max(1, warmup), 51)]
    drops = [before - after for before, after in pairwise(falling)]
    assert drops == pytest.approx([drops[0]] * len(drops))
    assert drops[0] > 0
    assert falling[-1] == pytest.approx(drops[0])


def test_the_learning_rate_of_an_update_follows_the_schedule(tmp_path: Path) -> None:
    overrides = ["train.updates=8", "train.validate=1", "train.schedule=linear", "train.warmup=3"]
    bench = Bench(tmp_path, *overrides)
    bench.fit()
    rates = [entry["learning_rate"] for entry in bench.entries()]
    assert rates == pytest.approx([0.01 * SCHEDULES["linear"](update, 3, 8) for update in range(1, 9)])


# Determinism and learning


def test_the_same_seed_gives_the_same_run_and_another_seed_another(tmp_path: Path) -> None:
    settings = ["model.encoder.dropout=0.1", "train.updates=7", "train.validate=3"]
    one, two, other = (
        regard.train(tiny(f"train.seed={seed}", *settings), runs=tmp_path, quiet=True) for seed in (1, 1, 2)
    )
    assert [run.path.name for run in (one, two, other)] == ["tiny", "tiny-2", "tiny-3"]
    assert one.read(storage.MODEL) == two.read(storage.MODEL)
    assert one.read(storage.MODEL) != other.read(storage.MODEL)
    entries = [
        [{key: entry[key] for key in entry.keys() - WALL_CLOCK} for entry in run.metrics()] for run in (one, two)
    ]
    assert entries[0] == entries[1]
    assert [entry.get("update") for entry in entries[0]] == [3, 6, 7, None]


def test_the_loss_falls(tmp_path: Path) -> None:
    bench = Bench(tmp_path, "train.updates=60", "train.validate=20")
    bench.fit()
    entries = bench.entries()
    assert entries[0]["loss"] < math.log(bench.task.target.size) + 0.1
    assert entries[0]["loss"] > entries[1]["loss"] > entries[2]["loss"]
    assert entries[0]["dev_loss"] > entries[1]["dev_loss"] > entries[2]["dev_loss"]


def test_the_lowest_dev_loss_is_that_of_the_stored_weights(tmp_path: Path) -> None:
    bench = Bench(tmp_path, "model.decoder.dropout=0.3")  # with dropout in evaluation the losses would differ
    bench.fit()
    bench.model.load_state_dict(bench.stored())
    lowest = min(entry["dev_loss"] for entry in bench.entries())
    assert validation.evaluate(bench.task, bench.model, bench.dev, Stopper())[0] == lowest


# Early stopping


def set_dev_losses(monkeypatch: pytest.MonkeyPatch, losses: list[float]) -> list[dict[str, Tensor]]:
    """Replace the dev losses by these; returns a list of the weights at each validation."""
    weights_at: list[dict[str, Tensor]] = []

    def evaluate(task: Transduce, model: Seq2Seq, *_: object) -> tuple[float, None]:
        weights_at.append(weights(model))
        return losses[len(weights_at) - 1], None

    monkeypatch.setattr(validation, "evaluate", evaluate)
    return weights_at


def test_patience_ends_training_and_the_best_weights_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    weights_at = set_dev_losses(monkeypatch, [3.0, 2.0, 2.5, 1.0, 1.5, 1.0, 0.5])
    bench = Bench(tmp_path, "train.updates=14", "train.validate=2", "train.patience=2")
    bench.fit()
    assert len(weights_at) == 6  # 1.5 and 1.0 are not better than 1.0, so there is no seventh validation
    assert [entry["update"] for entry in bench.entries()] == [2, 4, 6, 8, 10, 12]
    assert same(bench.stored(), weights_at[3])
    assert not same(bench.stored(), weights_at[5])


def test_without_patience_training_goes_on_and_the_best_weights_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    weights_at = set_dev_losses(monkeypatch, [1.0, 2.0, 3.0, 4.0])
    bench = Bench(tmp_path, "train.updates=7", "train.validate=2")
    bench.fit()
    assert len(weights_at) == 4  # after 2, 4, 6 and, at the end, 7
    assert same(bench.stored(), weights_at[0])


@pytest.mark.parametrize("patience", [0, 2])
def test_the_last_weights_are_kept_with_keep_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, patience: int
) -> None:
    weights_at = set_dev_losses(monkeypatch, [1.0, 2.0, 3.0, 0.5])
    bench = Bench(tmp_path, "train.updates=7", "train.validate=2", "train.keep=last", f"train.patience={patience}")
    bench.fit()
    assert len(weights_at) == (3 if patience else 4)
    assert same(bench.stored(), weights_at[-1])


# Not finite


def spoil_loss_at(update: int, monkeypatch: pytest.MonkeyPatch, factor: float) -> list[dict[str, Tensor]]:
    """Multiply the loss of that update by a factor; returns a list of the weights before each update."""
    weights_before: list[dict[str, Tensor]] = []
    real = Transduce.loss

    def loss(self: Transduce, model: Seq2Seq, batch: Batch, smoothing: float = 0.0, sampling: float = 0.0) -> Tensor:
        weights_before.append(weights(model))
        value = real(self, model, batch, smoothing, sampling)
        return value * factor if len(weights_before) == update else value

    monkeypatch.setattr(Transduce, "loss", loss)
    return weights_before


@pytest.mark.parametrize("spoil", [math.nan, math.inf])
def test_a_loss_that_is_not_finite_stops_training_before_the_weights_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spoil: float
) -> None:
    weights_before = spoil_loss_at(3, monkeypatch, spoil)
    bench = Bench(tmp_path)
    with pytest.raises(NotFiniteError, match=rf"^update 3: the loss is {spoil}") as caught:
        bench.fit()
    assert caught.value.exit_code == 3
    assert len(weights_before) == 3
    assert not same(weights_before[1], weights_before[2])
    assert same(weights_before[2], weights(bench.model))
    message = str(caught.value)
    indices = loop.Batches(bench.data.lengths(), bench.recipe.train.batch_tokens, 1)[2]
    for index in indices[:8]:
        assert f"{bench.data.examples[index].origin}" in message
    assert bench.data.examples[indices[0]].origin.startswith("reverse:train:")
    assert (f"and {len(indices) - 8} more" in message) == (len(indices) > 8)


def test_a_gradient_that_is_not_finite_stops_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(tmp_path)
    real = torch.nn.utils.clip_grad_norm_
    calls = []

    def norm(parameters: Iterator[Tensor], most: float) -> Tensor:
        calls.append(real(parameters, most))
        return torch.tensor(math.nan) if len(calls) == 2 else calls[-1]

    monkeypatch.setattr(torch.nn.utils, "clip_grad_norm_", norm)
    with pytest.raises(NotFiniteError, match=r"^update 2: .*the norm of its gradient nan"):
        bench.fit()


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_dev_loss_that_is_never_finite_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: float
) -> None:
    set_dev_losses(monkeypatch, [value] * 3)
    with pytest.raises(NotFiniteError, match=f"dev loss.*{value}"):
        regard.train(tiny("train.updates=3", "train.validate=1"), runs=tmp_path, quiet=True)


@pytest.mark.parametrize("rate", ["1e37", "1e38"])
def test_a_huge_learning_rate_is_stopped(tmp_path: Path, rate: str) -> None:
    with pytest.raises((NotFiniteError, RecipeError), match=r"learning_rate"):
        regard.train(tiny(f"train.learning_rate={rate}", "train.clip=0"), runs=tmp_path, quiet=True)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_weights_that_are_not_finite_are_never_stored(tmp_path: Path, value: float) -> None:
    """No example holds UNKNOWN, so no loss depends on its embedding, and no gradient changes it."""
    bench = Bench(tmp_path, "train.updates=4", "train.validate=2")
    with torch.no_grad():
        bench.model.decoder.embedding.weight[UNKNOWN, 3] = value
    with pytest.raises(NotFiniteError, match=r"^update 2: the tensor decoder.embedding.weight holds NaN or infinite"):
        bench.fit()
    assert not bench.run.has_file(storage.MODEL)
    assert bench.run.checkpoints() == []


def test_an_embedding_that_weight_decay_grows_beyond_float32_is_noticed(tmp_path: Path) -> None:
    """If rate x decay is above 2, each update makes weights larger; here only one that no example uses overflows."""
    too_much = ("train.learning_rate=0.3", "train.weight_decay=10", "train.warmup=0")
    bench = Bench(tmp_path, "train.updates=2", "train.validate=2", *too_much)
    with torch.no_grad():
        bench.model.decoder.embedding.weight[UNKNOWN] = 2e38
    with pytest.raises(NotFiniteError, match=r"^update 2: the tensor decoder.embedding.weight holds NaN or infinite"):
        bench.fit()
    assert not bench.run.has_file(storage.MODEL)


# The loss itself


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.5])
def test_the_loss_is_the_cross_entropy_formula(tmp_path: Path, smoothing: float) -> None:
    bench = Bench(tmp_path)
    bench.model.double().eval()
    batch = bench.task.collate(bench.data, [0, 4, 2])  # three lengths, so there is padding
    loss = bench.task.loss(bench.model, batch, smoothing)
    logits = bench.model(batch).logits
    total, tokens = 0.0, 0
    for row in range(3):
        for position, token in enumerate(batch.target.ids[row, 1:].tolist()):
            if token != PAD:
                log_probabilities = torch.log_softmax(logits[row, position], dim=-1)
                uniform = log_probabilities.mean().item()
                total -= (1 - smoothing) * log_probabilities[token].item() + smoothing * uniform
                tokens += 1
    assert bench.task.tokens(batch) == tokens == sum(len(bench.data.targets[index]) + 1 for index in (0, 4, 2))
    assert loss.item() == pytest.approx(total, rel=1e-5)  # the loss is computed in float32


def test_the_loss_of_a_batch_is_the_sum_over_its_rows(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.model.eval()
    indices = [0, 4, 2, 7, 5]
    together, rows = bench.task.collate(bench.data, indices), [bench.task.collate(bench.data, [i]) for i in indices]
    assert bench.task.tokens(together) == sum(bench.task.tokens(row) for row in rows)
    alone = sum(bench.task.loss(bench.model, row).item() for row in rows)
    assert bench.task.loss(bench.model, together).item() == pytest.approx(alone, rel=1e-5)


def test_the_gradient_is_that_of_the_mean_over_target_tokens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(tmp_path, "train.updates=1", "train.clip=0")
    [indices] = [loop.Batches(bench.data.lengths(), 200, 1)[0]]
    loss = bench.task.loss(bench.model, bench.task.collate(bench.data, indices))
    tokens = sum(len(bench.data.targets[index]) + 1 for index in indices)
    gradients = torch.autograd.grad(loss / tokens, list(bench.model.parameters()))
    norm = math.sqrt(sum(gradient.square().sum().item() for gradient in gradients))
    real, norms = torch.nn.utils.clip_grad_norm_, []

    def clip(parameters: Iterator[Tensor], most: float) -> Tensor:
        norms.append(real(parameters, most))
        return norms[-1]

    monkeypatch.setattr(torch.nn.utils, "clip_grad_norm_", clip)
    bench.fit()
    [entry], [measured_norm] = bench.entries(), norms
    assert measured_norm.item() == pytest.approx(norm, rel=1e-5)
    assert entry["loss"] == pytest.approx(loss.item() / tokens, rel=1e-6)


def test_the_dev_loss_weighs_tokens_not_batches(tmp_path: Path) -> None:
    few = Bench(tmp_path, "train.batch_tokens=40")
    many = Bench(tmp_path, "train.batch_tokens=4000")
    assert len(validation.sorted_batches(few.dev.lengths(), 40)) > len(
        validation.sorted_batches(many.dev.lengths(), 4000)
    )
    losses = [validation.evaluate(bench.task, bench.model, bench.dev, Stopper())[0] for bench in (few, many)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-6)


# What is refused before anything is written


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("task=translat", "unknown task 'translat'.*did you mean 'translate'"),
        ("metric=blue", "unknown metric 'blue'.*did you mean 'bleu'"),
        ("train.schedule=linea", "unknown schedule 'linea'.*did you mean 'linear'"),
        ("train.keep=lst", "unknown weights to keep 'lst'; choose from best, last.*did you mean 'last'"),
        ("model.attention.score=additiv", "unknown score 'additiv'.*did you mean 'additive'"),
        ("model.decoder.order=bahdano", "unknown order 'bahdano'.*did you mean 'bahdanau'"),
        ("model.encoder.cell=grue", "unknown cell 'grue'.*did you mean 'gru'"),
        ("tokens.source=charakter", "unknown tokenizer 'charakter'.*did you mean 'character'"),
        ("data.corpus=revers", "unknown corpus 'revers'.*did you mean 'reverse'"),
        ("model.encoder.dim=7", "model.encoder.dim is split between two directions"),
        ("model.attention.score=dot", "needs queries and keys of one width, but has 20 and 24"),
        ("train.device=cupboard", "the device 'cupboard' cannot be used"),
        ("data.corpus=", "nothing to learn from"),
        ("data.max_length=0", "data.max_length .* is at least 1"),
        ("name=a/b", "the name of a run is made of"),
    ],
)
def test_a_recipe_that_cannot_be_used_writes_nothing(tmp_path: Path, override: str, message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        regard.train(tiny(), override, runs=tmp_path / "runs", quiet=True)
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(("threads", "expected"), [(0, []), (3, [3])])
def test_the_number_of_threads_comes_from_the_recipe(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, threads: int, expected: list[int]
) -> None:
    calls: list[int] = []
    monkeypatch.setattr(torch, "set_num_threads", calls.append)  # recorded, not set: the setting would outlast the test
    regard.train(tiny("train.updates=1", f"train.threads={threads}"), runs=tmp_path, quiet=True)
    assert calls == expected


def test_the_stored_recipe_is_the_one_that_was_run(tmp_path: Path) -> None:
    recipe = tiny("train.updates=1")
    run = regard.train(recipe, "train.seed=7", runs=tmp_path, quiet=True)
    assert run.recipe() == replace(recipe, train=replace(recipe.train, seed=7))
    again = regard.train(run.path / storage.RECIPE, runs=tmp_path, quiet=True)
    assert again.read(storage.MODEL) == run.read(storage.MODEL)
