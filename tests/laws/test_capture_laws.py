"""What a captured update may not do is read a tensor on the host: held here on fake tensors, which have no values.

A CUDA graph records kernels alone. Whatever asks for a value on the way (`bool(mask.all())`, `.item()`, packing by
lengths, indexing with a mask) fails on a fake tensor as it would fail under capture, and no GPU is needed to see it.
"""

from collections.abc import Iterator

import pytest
import torch
from small import KINDS, VARIANTS, Case, Variant, make_recipe, make_sources, transformer
from torch import Tensor, nn
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode

from regard import recipe as recipes
from regard.attention import SCORES
from regard.device import precision
from regard.errors import RecipeError
from regard.kernels import choose
from regard.kernels.choose import capturable
from regard.layers.recurrence import CELLS
from regard.models import build
from regard.tasks import TASKS
from regard.tasks.core import AnyTask
from regard.types import Batch, Padded
from shapes import unchecked

WORDS = 11
CPU = torch.device("cpu")
# Every order and cell, every kind of positions, every way to look, and a Transformer on one side alone.
CASES = list(
    dict.fromkeys(
        [
            *KINDS,
            *(Case("luong_feeding", cell, 2) for cell in CELLS),
            *(Case(variant=variant) for variant in VARIANTS),
            *(transformer(variant=Variant(score, heads=2), layers=1) for score in SCORES),
            transformer("rotary", decoder="recurrent"),
            transformer("alibi", encoder="recurrent", cell="lstm"),
            transformer("none", encoder="gnmt", cell="lstm", tied=True),
            Case("luong", "lstm", 2, inner_dim=16),
            Case("bahdanau", tied=True),
        ]
    )
)


@pytest.fixture(autouse=True)
def fast() -> Iterator[None]:
    """Shapes are checked in the laws of each part."""
    with unchecked():
        yield


def batch() -> Batch:
    """Sources and targets of several lengths, with padding on both sides."""
    target = make_sources(6, 2, 4, size=WORDS)
    return Batch(make_sources(7, 4, 2), Padded(target.ids, target.mask), torch.arange(3))


def make_task(model: recipes.Model, **train: float) -> AnyTask:
    """The task `translate` with no more of a tokenizer than its loss needs: none."""
    recipe = recipes.Recipe(model=model, train=recipes.Train(**train))
    return TASKS["translate"](recipe, None, None)


def learn(task: AnyTask, model: nn.Module, examples: Batch, kind: str = "float32") -> list[Tensor | None]:
    """One forward and one backward as a captured update runs them; returns the gradients."""
    model.train()
    with capturable(), precision(kind, CPU):
        loss = task.loss(model, examples, 0.1)
    (loss / examples.target.mask[:, 1:].sum().clamp(min=1)).backward()
    nn.utils.clip_grad_norm_(list(model.parameters()), 1.0, foreach=True)
    return [parameter.grad for parameter in model.parameters()]


def fake_loss(model: recipes.Model, shared: bool = False, kind: str = "float32", **train: float) -> None:
    """Run it on fake tensors: any value that is read raises."""
    task, examples = make_task(model, **train), batch()
    with FakeTensorMode(allow_non_fake_inputs=False) as mode:
        built = build(model, source_size=WORDS, target_size=WORDS, shared=shared)
        given = learn(task, built, examples.map_tensors(mode.from_tensor), kind)
    assert any(gradient is not None for gradient in given)


@pytest.mark.filterwarnings("ignore:LSTM with projections")  # oneDNN has none; torch's own runs
@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_loss_of_every_model_reads_nothing_on_the_host(case):
    recipe = make_recipe(case, dropout=0.2)
    try:
        fake_loss(recipe, case.tied)
    except RecipeError:  # some need both sides to be of one width
        one = recipe.encoder.dim
        fake_loss(
            recipes.fill(recipe, {"embedding": one if case.tied else 10, "decoder": {"dim": one}}, "", ""), case.tied
        )


TERMS = [
    Case("bahdanau"),
    Case("luong", "lstm", 2),
    Case("bahdanau", variant=Variant(normalizer="hard")),
    transformer(),
]


@pytest.mark.parametrize("case", TERMS, ids=str)
@pytest.mark.parametrize("kind", ["float32", "bfloat16"])
def test_nor_in_half_precision_or_with_terms_of_the_map(case, kind):
    terms = {} if case.decoder == "transformer" else {"coverage": 0.5, "doubly_stochastic": 0.5}
    fake_loss(make_recipe(case, dropout=0.2), kind=kind, **terms)


def test_a_copying_decoder_reads_nothing_either():
    recipe = make_recipe(Case("bahdanau"))
    fake_loss(recipes.fill(recipe, {"decoder": {"copies": True}}, "", ""))


@pytest.mark.parametrize("corpus", ["sentences", "sentences_recurrent"])
def test_nor_does_a_language_model(corpus):
    """It has no source at all."""
    overrides = ["data.size=20", "model.decoder.layers=2", "model.decoder.dim=16", "model.embedding=16"]
    if corpus == "sentences_recurrent":
        overrides += ["model.decoder.kind=recurrent", "model.decoder.order=none", "model.decoder.dropout=0.2"]
    recipe = recipes.load("sentences", overrides)
    kind = TASKS[recipe.task]
    found = kind.examples(recipe).train
    task = kind.learn(recipe, found)
    data = task.within_length(task.encode(found))
    rows = task.collate(data, range(3))
    with FakeTensorMode(allow_non_fake_inputs=False) as mode:
        given = learn(task, task.build(), rows.map_tensors(mode.from_tensor))
    assert any(gradient is not None for gradient in given)


def test_the_law_sees_a_value_that_is_read():
    """Packed sequences need their lengths on the host; they are what the switch keeps out."""
    recipe, examples = make_recipe(Case("bahdanau")), batch()
    task = make_task(recipe)
    with FakeTensorMode(allow_non_fake_inputs=False) as mode:
        model = build(recipe, source_size=WORDS, target_size=WORDS).train()
        assert not choose._capturable
        with pytest.raises((DataDependentOutputException, RuntimeError)):
            task.loss(model, examples.map_tensors(mode.from_tensor))


@pytest.mark.parametrize("case", [Case("bahdanau", "lstm", 2), Case("luong", "gru"), Case("gnmt", "lstm", 3)], ids=str)
def test_capturable_paths_learn_what_the_others_learn(case):
    """The switch changes how the gradient is computed, not what it is."""
    torch.manual_seed(0)
    recipe, examples = make_recipe(case), batch()
    model, task = build(recipe, source_size=WORDS, target_size=WORDS).double(), make_task(recipe)
    with_switch = [each.clone() for each in learn(task, model, examples)]
    model.zero_grad()
    task.loss(model, examples, 0.1).div(examples.target.mask[:, 1:].sum()).backward()
    nn.utils.clip_grad_norm_(list(model.parameters()), 1.0, foreach=True)
    for mine, other in zip(with_switch, model.parameters(), strict=True):
        torch.testing.assert_close(mine, other.grad, rtol=0.0, atol=1e-10)
