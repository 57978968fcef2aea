"""LoRA: it begins as the model that it adapts, learns nothing else, can be merged, and resumes exactly."""

from pathlib import Path

import pytest
import torch

from regard import load, models, resume, train
from regard.errors import RecipeError
from regard.models.lora import DOWN, UP, LowRank
from regard.storage import Run
from regard.tasks import task_of

SMALL = ["data.size=60", "train.batch_tokens=300", "train.validate=2", "train.device=cpu", "data.corpus=moods"]
MODEL = ["model.encoder.kind=transformer", "model.encoder.dim=20", "model.encoder.layers=2", "model.attention.heads=4"]
MODEL += ["model.attention.score=scaled_dot", "tokens.source=word", "classify.pooling=mean"]


@pytest.fixture(scope="module")
def origin(tmp_path_factory) -> Run:
    return train(
        "moods", *MODEL, *SMALL, "name=origin", "train.updates=4", runs=tmp_path_factory.mktemp("r"), quiet=True
    )


def adapted(origin: Run, folder: Path, *overrides: str) -> Run:
    lora = [f"train.start_from={origin.path}", "train.lora_rank=3", "train.learning_rate=0.01"]
    return train("moods", *MODEL, *SMALL, *lora, *overrides, runs=folder, quiet=True)


def test_with_new_matrices_every_bit_is_as_before(origin):
    task, texts = task_of(origin), ["a good film", "bad"]
    plain = load(origin).model
    before = plain(task.padded([task.ids(text) for text in texts])).logits
    torch.manual_seed(1)
    after = models.with_lora(plain, 3)(task.padded([task.ids(text) for text in texts])).logits
    assert torch.equal(before, after)
    assert sum(isinstance(part, LowRank) for part in plain.modules()) == 2 * 2
    assert models.with_lora(task.build(), 0).state_dict().keys() == task.build().state_dict().keys()


def test_merged_weights_compute_the_same(origin):
    task = task_of(origin)
    torch.manual_seed(2)
    model = models.with_lora(task.build(), 3).eval()
    for name, parameter in model.named_parameters():
        if name.endswith(UP):
            torch.nn.init.normal_(parameter, std=0.5)
    plain = task.build().eval()
    merged = models.merged(models.weights(model))
    models.load_weights(plain, merged)
    batch = task.padded([task.ids("a good film"), task.ids("bad")])
    first = "encoder.stack.0.attention.all.weight"
    assert (merged[first] - models.weights(model)[first]).abs().max() > 0.1
    assert (plain(batch).logits - model(batch).logits).abs().max() < 1e-6


def test_only_its_matrices_and_the_output_layer_get_gradients(origin):
    task = task_of(origin)
    model = models.with_lora(task.build(), 3)
    model(task.padded([task.ids("a good film")])).logits.sum().backward()
    learned = {name for name, parameter in model.named_parameters() if parameter.grad is not None}
    expected = {
        name for name, _ in model.named_parameters() if name.endswith((DOWN, UP)) or not name.startswith("encoder")
    }
    assert learned == expected
    assert {"out.weight", "encoder.stack.1.attention.out.lora_up"} <= learned


def test_a_run_keeps_the_weights_it_started_from_and_predicts_merged(origin, tmp_path):
    run = adapted(origin, tmp_path, "train.updates=4")
    own, stored = (models.read_weights(each, shape) for each, shape in ((run, shapes(run)), (origin, shapes(origin))))
    kept = [name for name in stored if name.startswith("encoder.")]
    assert all(torch.equal(own[name], stored[name]) for name in kept)
    assert any(own[name].abs().max() > 0 for name in own if name.endswith(UP))
    assert not torch.equal(own["out.weight"], stored["out.weight"])
    predictor = load(run)
    assert not any(isinstance(part, LowRank) for part in predictor.model.modules())
    task = predictor.task
    unmerged = shapes(run)
    models.load_weights(unmerged, own)
    batch = task.padded([task.ids("a good film")])
    assert (predictor.model(batch).logits - unmerged.eval()(batch).logits).abs().max() < 1e-6
    again = train("moods", *MODEL, *SMALL, f"train.start_from={run.path}", "train.updates=1", "train.learning_rate=0",
                  "name=again", runs=tmp_path, quiet=True)  # fmt: skip
    assert (load(again).model(batch).logits - predictor.model(batch).logits).abs().max() < 1e-6


def shapes(run: Run) -> torch.nn.Module:
    task = task_of(run)
    return models.with_lora(task.build(), task.recipe.train.lora_rank)


def test_a_prolonged_run_has_the_bits_of_an_uninterrupted_one(origin, tmp_path):
    whole = adapted(origin, tmp_path, "name=whole", "train.updates=4", "train.keep=last")
    parts = adapted(origin, tmp_path, "name=parts", "train.updates=2", "train.keep=last")
    resume(parts, "train.updates=4", quiet=True)
    one, other = (models.read_weights(run, shapes(run)) for run in (whole, parts))
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_it_is_refused_where_it_has_no_meaning(origin, tmp_path):
    with pytest.raises(RecipeError, match=r"train.lora_rank is for train.start_from=RUN, which is not set"):
        train("moods", "train.lora_rank=2", runs=tmp_path, quiet=True)
    lora = (f"train.start_from={origin.path}", "train.lora_rank=2")
    with pytest.raises(RecipeError, match=r"train.lora_rank is for Transformers, and this model has none"):
        train("moods", *SMALL, "tokens.source=word", *lora, runs=tmp_path, quiet=True)
