"""Laws of the head that copies: its equation, its sum, its steps and its beams."""

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


def make(order: str) -> Seq2Seq:
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
def test_both_ways_together_are_the_equation(order):
    model, source = make(order), make_sources(*LENGTHS)
    memory = model.read(source)
    step = model.decoder(TOKENS, memory)
    near(step.logits.exp().sum(-1), torch.ones(3, 4, dtype=torch.float64))
    seen = {}
    model.decoder.pointer.register_forward_hook(lambda module, given, result: seen.update(given=given))
    model.decoder(TOKENS, memory)
    logits, parts, weights, ids = seen["given"]
    for row, length in enumerate(LENGTHS):
        for at in range(4):
            gate = torch.sigmoid(model.decoder.pointer.writes(torch.cat([part[row, at] for part in parts])))
            chances = gate * logits[row, at].softmax(-1)
            for place in range(length):
                chances[ids[row, place]] += (1 - gate[0]) * weights[row, at, place]
            near(step.logits[row, at].exp(), chances)


@pytest.mark.parametrize("order", ATTENDING)
def test_stepping_and_beams_copy_alike(order):
    model, source = make(order), make_sources(*LENGTHS)
    memory = model.read(source)
    whole = model.decoder(TOKENS, memory)
    prepared = model.decoder.prepare(memory)
    state = model.decoder.start(prepared).repeat(2)
    for at in range(4):
        step = model.decoder.step(TOKENS[:, at : at + 1].repeat_interleave(2, dim=0), state, prepared)
        state = step.state
        near(step.logits[::2], whole.logits[:, at : at + 1])
        near(step.logits[1::2], whole.logits[:, at : at + 1])
    found = beam(model.decoder, memory, limits=[5, 5, 5], width=3)
    assert all(hypotheses for hypotheses in found)


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (["tokens.shared=false"], "model.decoder.copies needs tokens.shared = true"),
        (["tokens.shared=true", "model.decoder.order=none"], "needs a recurrent decoder whose order looks"),
        (["tokens.shared=true", "model.decoder.kind=transformer"], "needs a recurrent decoder whose order looks"),
    ],
)
def test_who_cannot_copy_is_refused(overrides, said):
    recipe = recipes.load("copy", ["model.decoder.copies=true", *overrides])
    with pytest.raises(RecipeError, match=said):
        Transduce.check(recipe)
