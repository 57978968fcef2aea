"""Laws of the pointer, which copies words of the source: its equation, its sum, its steps and its beams."""

import pytest
import torch
from small import ATTENDING, draw_weights, make_sources, near

from regard import models
from regard import recipe as recipes
from regard.errors import RecipeError
from regard.models import Seq2Seq
from regard.search import beam
from regard.tasks import Transduce
from regard.types import BEGIN

LENGTHS = (7, 4, 2)
TOKENS = torch.tensor([[BEGIN, 5, 7, 4], [BEGIN, 6, 6, 8], [BEGIN, 4, 4, 5]])


def make_copying_model(order: str) -> Seq2Seq:
    recipe = recipes.Model(
        embedding=10,
        encoder=recipes.Encoder(dim=14),
        attention=recipes.Attention(dim=13),
        decoder=recipes.Decoder(order=order, dim=12, copies=True),
    )
    model = models.build(recipe, source_size=9, target_size=9, shared=True).double().eval()
    draw_weights(model, 0.5)
    return model


@pytest.mark.parametrize("order", ATTENDING)
def test_writing_and_copying_together_are_the_equation(order):
    model, source = make_copying_model(order), make_sources(*LENGTHS)
    memory = model.read(source)
    step = model.decoder(TOKENS, memory)
    near(step.logits.exp().sum(-1), torch.ones(3, 4, dtype=torch.float64))
    recorded = {}
    model.decoder.pointer.register_forward_hook(lambda module, inputs, result: recorded.update(inputs=inputs))
    model.decoder(TOKENS, memory)
    logits, parts, weights, ids = recorded["inputs"]
    for row, length in enumerate(LENGTHS):
        for at in range(4):
            gate = torch.sigmoid(model.decoder.pointer.writes(torch.cat([part[row, at] for part in parts])))
            probabilities = gate * logits[row, at].softmax(-1)
            for key in range(length):
                probabilities[ids[row, key]] += (1 - gate[0]) * weights[row, at, key]
            near(step.logits[row, at].exp(), probabilities)


@pytest.mark.parametrize("order", ATTENDING)
def test_steps_of_beams_copy_as_forward_does(order):
    model, source = make_copying_model(order), make_sources(*LENGTHS)
    memory = model.read(source)
    whole = model.decoder(TOKENS, memory)
    prepared = model.decoder.prepare(memory)
    state = model.decoder.start(prepared).repeat(2)
    for at in range(4):
        step = model.decoder.step(TOKENS[:, at : at + 1].repeat_interleave(2, dim=0), state, prepared)
        state = step.state
        near(step.logits[::2], whole.logits[:, at : at + 1])
        near(step.logits[1::2], whole.logits[:, at : at + 1])
    assert all(beam(model.decoder, memory, limits=[5, 5, 5], width=3))


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["tokens.shared=false"], "model.decoder.copies needs tokens.shared = true"),
        (["tokens.shared=true", "model.decoder.order=none"], "needs a recurrent decoder whose order attends"),
        (["tokens.shared=true", "model.decoder.kind=transformer"], "needs a recurrent decoder whose order attends"),
    ],
)
def test_models_that_cannot_copy_are_refused(overrides, message):
    recipe = recipes.load("copy", ["model.decoder.copies=true", *overrides])
    with pytest.raises(RecipeError, match=message):
        Transduce.check(recipe)
