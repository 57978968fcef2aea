"""Recording changes no bit of any task: of losses, gradients and predictions; and its weights are exact."""

import copy
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from small import gradients, near, same
from torch import Tensor, nn

import regard
from regard import Predictor
from regard.attention.record import Recording, record
from regard.kernels.choose import definitions_only
from regard.models import sites
from regard.types import Prediction

GOLDEN = Path(__file__).parents[1] / "golden" / "runs"
NAMES = sorted(path.name for path in GOLDEN.iterdir())
COUNT = 3  # examples of a batch


class Stored(NamedTuple):
    """A stored run, a batch for its loss, and inputs for its predictions."""

    predictor: Predictor
    batch: Any
    inputs: list[str]

    def loss(self, model: nn.Module) -> Tensor:
        torch.manual_seed(5)
        loss: Tensor = self.predictor.task.loss(model, self.batch)
        return loss

    def backward(self, model: nn.Module) -> tuple[Tensor, dict[str, Tensor | None]]:
        model.zero_grad()
        loss = self.loss(model)
        loss.backward()
        return loss.detach(), gradients(model)

    def predict(self) -> list[Prediction]:
        return list(self.predictor.predict(self.inputs))


@cache
def stored(name: str) -> Stored:
    predictor = regard.load(GOLDEN / name / "finished", device="cpu")
    task = predictor.task
    examples = task.examples(task.recipe)
    batch = task.collate(task.encode(examples.dev[:COUNT]), range(COUNT))
    return Stored(predictor, batch, [example.source for example in examples.test[:COUNT]])


def subsets(model: nn.Module) -> list[dict[str, Any]]:
    """Recording all, some rows, the first head, one layer."""
    names = [*sites(model)]
    return [{}, {"rows": [0, 2]}, *([{"heads": [1]}, {"layers": names[-1:]}] if names else [])]


@pytest.mark.parametrize("name", NAMES)
def test_losses_gradients_and_predictions_are_the_same_bit_for_bit(name):
    own = stored(name)
    model = own.predictor.model.train()
    loss, expected = own.backward(model)
    for settings in subsets(model):
        with record(model, **settings) as recording:
            again, actual = own.backward(model)
        same(again, loss)
        for key in expected:
            same(actual[key], expected[key])
        assert set(recording.sites) == (set(sites(model)) if "layers" not in settings else set(settings["layers"]))
    model.eval().zero_grad()
    plain = own.predict()
    for settings in subsets(model):
        with record(model, **settings):
            found = own.predict()
        for one, other in zip(found, plain, strict=True):
            assert (one.text, one.tokens, one.score) == (other.text, other.tokens, other.score)
            if other.map is not None:
                same(one.map.weights, other.map.weights)


@pytest.mark.parametrize("name", NAMES)
def test_recorded_weights_equal_the_definition_in_float64(name):
    own = stored(name)
    model = own.predictor.model.eval()
    with torch.no_grad(), record(model) as recording:
        own.loss(model)
    exact = copy.deepcopy(model).double()
    with torch.no_grad(), definitions_only(), record(exact) as definition:
        own.loss(exact)
    assert set(recording.calls) == set(definition.calls) >= set(sites(model))
    for key, weights in definition.weights.items():
        assert weights.dtype == torch.float64
        near(recording.weights[key].double(), weights, 1e-5)


@pytest.mark.parametrize("name", NAMES)
def test_a_recorded_part_is_that_of_the_whole_recording(name):
    """In float64, as products of other sizes are rounded otherwise."""
    own = stored(name)
    model = copy.deepcopy(own.predictor.model).eval().double()

    def run(**settings: Any) -> Recording:
        with torch.no_grad(), record(model, **settings) as recording:
            own.loss(model)
        return recording

    whole = run()
    for settings in subsets(model)[1:]:
        part = run(**settings)
        assert set(part.weights) == set(settings.get("layers", whole.weights))
        for key, weights in part.weights.items():
            expected = whole.weights[key][..., part.row_numbers(key), :]
            if "rows" in settings:
                assert part.row_numbers(key) == tuple(row for row in settings["rows"] if row in whole.row_numbers(key))
            if "heads" in settings and expected.ndim > 3:  # a single pooling query has no axis of heads
                expected = expected[..., :1, :, :]
            near(weights, expected, 1e-12)
