"""The joint CTC loss of a task: its value, what it leaves alone, what is refused, and a training with joint search."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

import regard
from regard import recipe as recipes
from regard.errors import RecipeError
from regard.kernels.choose import capturable
from regard.models.ctc import least_positions
from regard.recipe import Recipe
from regard.tasks import Transduce
from regard.training.engine.captured import Table
from regard.types import Batch

SMALL = (
    *("data.size=20", "model.embedding=6", "model.encoder.dim=8", "model.decoder.dim=8", "model.attention.dim=6"),
    *("speech.bands=12", "speech.width=8", "train.device=cpu", "train.threads=1", "train.batch_tokens=200"),
    *("search.max_ratio=0", "search.max_extra=3", "train.validate_examples=2", "data.limits.recording_seconds=60"),
)


def small(*keys: str) -> Recipe:
    return recipes.load("tones", [*SMALL, *keys])


def make(*keys: str):
    recipe = small(*keys)
    examples = Transduce.examples(recipe).train
    task = Transduce.learn(recipe, examples)
    torch.manual_seed(4)
    data = task.encode(examples)
    return task, task.build().double(), data


def in_double(batch: Batch) -> Batch:
    return replace(batch, source=replace(batch.source, features=batch.source.features.double()))


@pytest.mark.parametrize("weight", [0.3, 1.0])
def test_the_loss_is_the_weighted_sum_of_both_and_padding_adds_nothing(weight: float) -> None:
    task, model, data = make(f"train.ctc={weight}")
    batch = in_double(task.collate(data, [3, 7, 12, 1]))
    step = model(batch)
    attention = task.cross_entropy(step.logits, batch, 0.1)
    ctc = 0.0
    for index in (3, 7, 12, 1):
        alone = in_double(task.collate(data, [index]))
        log_probs = model.ctc(model.read(alone.source)).transpose(0, 1)
        targets = torch.tensor([data.targets[index]])
        sizes = torch.tensor([log_probs.shape[0]]), torch.tensor([targets.shape[1]])
        ctc += torch.nn.functional.ctc_loss(log_probs, targets, *sizes, reduction="sum").item()
    assert ctc > 1
    expected = (1 - weight) * attention.item() + weight * ctc
    assert task.loss(model, batch, 0.1).item() == pytest.approx(expected, rel=1e-9)
    plain = task.cross_entropy(step.logits, batch, 0.0)
    assert task.dev_loss(model, batch).loss.item() == pytest.approx((1 - weight) * plain.item() + weight * ctc)


def test_rows_that_fill_up_a_captured_batch_add_nothing() -> None:
    task, model, data = make("train.ctc=0.4")
    table = Table.of(task, data, torch.device("cpu"))
    width = int(data.lengths().max())
    whole = in_double(table.take(torch.tensor([5, 2]), (width, width)))
    filled = in_double(table.take(torch.tensor([5, 2, table.empty, table.empty]), (width, width)))
    with capturable():
        loss = task.loss(model, whole)
        assert task.loss(model, filled).item() == pytest.approx(loss.item(), rel=1e-9)
    assert task.loss(model, whole).item() == pytest.approx(loss.item(), rel=1e-9)
    loss.backward()
    assert model.ctc.out.weight.grad.any()
    assert all(parameter.grad is None or parameter.grad.isfinite().all() for parameter in model.parameters())


def test_without_the_key_there_is_no_layer_and_no_other_weight_changes() -> None:
    _, without, _ = make()
    _, model, _ = make("train.ctc=0.3")
    assert without.ctc is None
    own, other = without.state_dict(), model.state_dict()
    assert set(other) - set(own) == {"ctc.out.weight", "ctc.out.bias"}
    assert all(torch.equal(own[name], other[name]) for name in own)


def test_targets_that_cannot_be_aligned_are_counted() -> None:
    assert least_positions([5, 5, 4]) == 4
    assert least_positions([]) == 0
    task, _, data = make("train.ctc=0.3", "speech.layers=1")
    assert not [line for line in task.describe(data, data) if "CTC" in line]
    short = replace(data, sizes=data.sizes.clip(max=2))
    (line,) = (line for line in task.describe(short, short) if "CTC" in line)
    long = sum(least_positions(target) > 2 for target in data.targets)
    assert line.startswith(f"{long:,} of 20 training targets are without CTC loss: they need more positions")


@pytest.mark.parametrize(
    ("recipe", "keys", "message"),
    [
        (
            "shapes",
            ["train.ctc=0.3"],
            "train.ctc aligns the target with a source .* source = picture has no such order",
        ),
        ("tones", ["train.ctc=0.3", "train.sampling=0.1"], "train.ctc and train.sampling do not go together"),
        ("tones", ["search.ctc=0.3"], "search.ctc needs the CTC layer of a model that was trained with train.ctc"),
        (
            "tones",
            ["train.ctc=0.3", "search.ctc=0.3", "search.temperature=1"],
            "search.ctc is for beam search, and search.temperature samples",
        ),
    ],
)
def test_what_does_not_fit_is_refused(recipe: str, keys: list[str], message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        Transduce.check(recipes.load(recipe, keys))


@pytest.mark.parametrize("key", ["train.ctc=0.3", "search.ctc=0.3"])
@pytest.mark.parametrize("recipe", ["char_lstm", "moods", "facts"])
def test_other_tasks_refuse_the_keys(recipe: str, key: str) -> None:
    settings = recipes.load(recipe, [key])
    with pytest.raises(RecipeError, match="does not use"):
        regard.train(settings)


ENCODERS = {
    "recurrent": ("speech.front=convolution",),
    "transformer": (
        *("model.encoder.kind=transformer", "speech.front=convolution", "model.attention.heads=1"),
        *("model.decoder.kind=transformer", "model.attention.scope=global", "model.attention.score=scaled_dot"),
    ),
    "pyramid": ("speech.front=pyramid", "train.ctc=1.0"),
}


@pytest.mark.parametrize("name", ENCODERS)
def test_a_run_with_ctc_trains_stores_and_searches(name: str, tmp_path: Path) -> None:
    keys = ("train.ctc=0.3", "search.ctc=0.3", "train.updates=3", "train.validate=2", *ENCODERS[name])
    run = regard.train(small(*keys), runs=tmp_path, quiet=True)
    predictor = regard.load(run)
    sources = [example.source for example in Transduce.examples(run.recipe()).dev[:3]]
    joint = predictor.predict(sources, search={"beam": 3, "max_extra": 6})
    alone = predictor.predict(sources, search={"beam": 3, "max_extra": 6, "ctc": 0.0})
    assert [answer.score for answer in joint] != [answer.score for answer in alone]
    assert all(answer.map is None or len(answer.map.rows) == len(answer.tokens) for answer in joint)
    again = predictor.predict(sources[:1], search={"beam": 3, "max_extra": 6})
    assert again[0].score == pytest.approx(joint[0].score, rel=1e-4)
    (forced,) = regard.force(predictor, [(sources[0], alone[0].text)]) if alone[0].text else ((None),)
    assert forced is None or not alone[0].finished or forced.score == pytest.approx(alone[0].score, rel=1e-4)


def test_a_run_without_the_layer_refuses_joint_search(tmp_path: Path) -> None:
    run = regard.train(small("train.updates=1"), runs=tmp_path, quiet=True)
    with pytest.raises(RecipeError, match="needs the CTC layer of a model"):
        regard.load(run).predict(["tones:7:C4-E4-G4"], search={"ctc": 0.3})
