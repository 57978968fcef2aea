"""The interface of sources: a new kind, rows of numbers, trains, is stored, loaded and has maps as text does."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

import regard
from regard import recipe as recipes
from regard.analysis.forced import force
from regard.data.batching import Batches
from regard.errors import DataError, RecipeError
from regard.maps import Frames, Steps
from regard.models.core import encoder
from regard.recipe import Model, Recipe
from regard.sources import SOURCES, Front, Source, Vectors
from regard.storage import Run
from regard.tasks import Transduce
from regard.training.engine import Captured, Eager
from regard.training.session import Session
from regard.training.stopping import Stopper
from regard.types import BatchFirst, Example

# The new source


@dataclass(frozen=True)
class NumbersBatch(BatchFirst):
    numbers: Float[Tensor, "batch length"]
    mask: Bool[Tensor, "batch length"]

    def crop(self, width: int) -> "NumbersBatch":
        return NumbersBatch(self.numbers[:, :width], self.mask[:, :width])


class NumbersFront(Front):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.layer = nn.Linear(1, width)

    @property
    def width(self) -> int:
        return self.layer.out_features

    def embed(self, source: NumbersBatch) -> Vectors:
        return Vectors(self.layer(source.numbers.unsqueeze(-1)), source.mask, Steps())


class Numbers(Source[list[float]]):
    """A row of numbers, such as `1.5 -2 1.25`."""

    @staticmethod
    def check(recipe: Recipe) -> None:
        if recipe.model.positions == "learned":
            raise RecipeError("this toy knows no learned positions")

    @classmethod
    def fit(cls, recipe: Recipe, sources: Sequence[str], origin: Run | None = None) -> "Numbers":
        return cls()

    @classmethod
    def restore(cls, recipe: Recipe, read: Callable[[str], bytes]) -> "Numbers":
        return cls()

    def files(self) -> dict[str, bytes]:
        return {}

    def encode(self, source: str) -> list[float]:
        try:
            return [float(number) for number in source.split()]
        except ValueError as error:
            raise DataError(f"{source!r} is not a row of numbers: {error}") from error

    def size(self, item: list[float]) -> int:
        return len(item)

    def collate(self, items: Sequence[list[float]]) -> NumbersBatch:
        width = max(map(len, items))
        numbers = torch.tensor([[*item, *[0.0] * (width - len(item))] for item in items])
        lengths = torch.tensor([len(item) for item in items])
        return NumbersBatch(numbers, torch.arange(width) < lengths.unsqueeze(1))

    def labels(self, item: list[float]) -> tuple[str, ...]:
        return tuple(f"{number:g}" for number in item)

    def front(self, model: Model) -> NumbersFront:
        return NumbersFront(model.encoder.dim if model.encoder.kind == "transformer" else model.embedding)


# Tests

TRANSFORMER = (
    *("model.encoder.kind=transformer", "model.encoder.dim=24", "model.encoder.inner_dim=48"),
    *("model.decoder.kind=transformer", "model.decoder.dim=24", "model.decoder.inner_dim=48"),
    *("model.attention.score=scaled_dot", "model.attention.heads=2"),
    *("train.updates=600", "train.validate=300", "train.learning_rate=0.003", "train.warmup=50"),
)
RECURRENT = ("model.embedding=16", "model.encoder.dim=24", "model.decoder.dim=24", "model.attention.dim=16")
KINDS = {"recurrent": RECURRENT, "transformer": TRANSFORMER}
MINIMUM = {"recurrent": 0.8, "transformer": 0.3}  # of exact match; a random guess has 0.06


@pytest.fixture(autouse=True)
def add_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SOURCES, "numbers", Numbers)


def pairs(count: int) -> list[Example]:
    """Rows of numbers as sources, and their signs, one letter each, as targets."""
    generator = torch.Generator().manual_seed(count)
    rows = [(4 * torch.rand(3 + index % 4, generator=generator) - 2).tolist() for index in range(count)]
    return [
        Example(" ".join(f"{number + (1 if number > 0 else -1):.2f}" for number in row), signs(row)) for row in rows
    ]


def signs(row: list[float]) -> str:
    return "".join("p" if number > 0 else "n" for number in row)


def make_recipe(folder: Path, *keys: str) -> Recipe:
    for name, count in (("train", 1000), ("dev", 50)):
        content = "".join(f"{example.source}\t{example.target}\n" for example in pairs(count))
        (folder / f"{name}.tsv").write_text(content, encoding="utf-8")
    data = (f"data.train={folder}/train.tsv", f"data.dev={folder}/dev.tsv", "source=numbers", "train.device=cpu")
    train = ("train.updates=400", "train.validate=200", "train.batch_tokens=300", "train.learning_rate=0.01")
    return recipes.parse("", "a test", ["name=numbers", *data, *train, *keys])


class HalvedFront(NumbersFront):
    """Joins every two neighbouring numbers to one position, as an encoder of speech would do with frames."""

    def embed(self, source: NumbersBatch) -> Vectors:
        width = source.mask.shape[1] + source.mask.shape[1] % 2
        numbers = nn.functional.pad(source.numbers, (0, width - source.mask.shape[1])).unflatten(1, (-1, 2)).sum(-1)
        mask = nn.functional.pad(source.mask, (0, width - source.mask.shape[1])).unflatten(1, (-1, 2)).any(-1)
        return Vectors(self.layer(numbers.unsqueeze(-1)), mask, Frames(0.5))


class Halved(Numbers):
    """Rows of numbers, of which the encoder reads half as many positions."""

    def labels(self, item: list[float]) -> tuple[str, ...]:
        return super().labels(item)[::2]

    def front(self, model: Model) -> HalvedFront:
        return HalvedFront(model.embedding)


def test_a_front_may_give_fewer_positions_than_the_batch_has(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(SOURCES, "numbers", Halved)
    keys = (*RECURRENT, "train.updates=4", "train.validate=2", "train.doubly_stochastic=1")
    run = regard.train(make_recipe(tmp_path, *keys), runs=tmp_path, quiet=True)
    predictor = regard.load(run)
    (answer,) = predictor.predict(["1.5 -2 1.25"])
    assert answer.map is not None
    assert (answer.map.columns, answer.map.layout) == (("1.5", "1.25"), Frames(0.5))
    assert answer.to_dict()["layout"] == {"kind": "frames", "seconds": 0.5}
    (forced,) = force(predictor, [Example("1.5 -2 1.25", "pn")])
    assert forced.map is not None
    assert forced.map.layout == Frames(0.5)


def test_keys_of_text_and_vectors_of_another_width_are_refused(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=r"tokens\.source is for source = text, not numbers"):
        regard.train(make_recipe(tmp_path, "tokens.source=word"), runs=tmp_path, quiet=True)
    model = make_recipe(tmp_path, *TRANSFORMER).model
    with pytest.raises(RecipeError, match=r"vectors of width 10, but a Transformer reads model\.encoder\.dim = 24"):
        encoder(model, NumbersFront(10))


@pytest.mark.parametrize("kind", KINDS)
def test_a_new_source_trains_is_stored_and_predicts_with_a_map(kind: str, tmp_path: Path) -> None:
    run = regard.train(make_recipe(tmp_path, *KINDS[kind]), runs=tmp_path, quiet=True)
    predictor = regard.load(Run.open(run.path))
    assert predictor.score(pairs(60)).measured.value > MINIMUM[kind]
    answer, blank = predictor.predict(["1.5 -2 1.25", ""])
    assert (answer.text, blank.text) == ("pnp", "")
    assert answer.map is not None
    assert (answer.map.rows, answer.map.columns, answer.map.layout) == (("p", "n", "p"), ("1.5", "-2", "1.25"), Steps())
    assert predictor.model.encoder(predictor.task.inputs.collate([[1.0, 2.0]])).layout == Steps()


def test_a_source_without_a_message_prints_no_line(tmp_path: Path) -> None:
    task = Transduce.learn(make_recipe(tmp_path), pairs(20))
    data = task.encode(pairs(20))
    [line] = task.describe(data, data)
    assert line == "a vocabulary of 6 target tokens, 0.00% of the dev tokens unknown"


def test_unusable_settings_and_rows_are_refused(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="this toy knows no learned positions"):
        regard.train(make_recipe(tmp_path, "model.positions=learned"), runs=tmp_path, quiet=True)
    with pytest.raises(RecipeError, match=r"tokens\.shared needs source = text"):
        regard.train(make_recipe(tmp_path, "tokens.shared=true"), runs=tmp_path, quiet=True)
    with pytest.raises(RecipeError, match=r"unknown source .number.*did you mean .numbers"):
        regard.train(make_recipe(tmp_path, "source=number"), runs=tmp_path, quiet=True)
    (tmp_path / "bad.tsv").write_text("1 two\tpp\n", encoding="utf-8")
    with pytest.raises(DataError, match="'1 two' is not a row of numbers"):
        regard.train(make_recipe(tmp_path, f"data.train={tmp_path}/bad.tsv"), runs=tmp_path, quiet=True)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("kind", KINDS)
def test_captured_updates_of_a_new_source_have_the_loss_of_eager_ones(kind: str, tmp_path: Path) -> None:
    losses = []
    for engine in (Captured, Eager):
        recipe, examples = make_recipe(tmp_path, *KINDS[kind]), pairs(200)
        task = Transduce.learn(recipe, examples)
        data = task.encode(examples)
        torch.manual_seed(1)
        session = Session.begin(task.build().cuda(), recipe.train)
        batches = Batches(data.lengths(), 200, 1, few_shapes=True)
        updater = engine(task, session, data)
        for _ in range(30):
            updater.update(batches, Stopper())
        updater.collect()
        losses.append(session.progress.total / session.progress.tokens)
    assert losses[0] == pytest.approx(losses[1], rel=1e-3)
