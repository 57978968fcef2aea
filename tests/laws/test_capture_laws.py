"""Laws of captured updates: they read no tensor on the host. Tested on fake tensors, which have no values.

A CUDA graph records only kernels. Code that reads a value (`bool(mask.all())`, `.item()`, packing by lengths,
indexing with a mask) fails on a fake tensor as it would fail under capture, so the test needs no GPU.
"""

from collections.abc import Iterator

import pytest
import torch
from small import KINDS, VARIANTS, Case, Variant, make_recipe, make_sources, transformer
from torch import Tensor, nn
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode

from regard import recipe as recipes
from regard.attention import SCORES
from regard.attention.pooling import POOLINGS
from regard.device import precision
from regard.errors import RecipeError
from regard.kernels import choose
from regard.kernels.choose import capturable
from regard.layers.recurrence import CELLS
from regard.models import Seq2Seq, build
from regard.models.ctc import CTC
from regard.models.letters import LETTERS
from regard.tasks import TASKS
from regard.tasks.core import AnyTask
from regard.training.engine.captured import Table
from regard.types import Batch, Capturable, Padded
from shapes import unchecked

WORDS = 11
CPU = torch.device("cpu")
# Every order and cell, every kind of positions, every variant of attention, and a Transformer on one side only.
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
def unchecked_shapes() -> Iterator[None]:
    """The laws of the parts check their shapes."""
    with unchecked():
        yield


def make_examples() -> Batch:
    """Sources and targets of several lengths, with padding on both sides."""
    target = make_sources(6, 2, 4, size=WORDS)
    return Batch(make_sources(7, 4, 2), Padded(target.ids, target.mask), torch.arange(3))


def make_task(model: recipes.Model, **train: float) -> AnyTask:
    """The task `translate` without tokenizers, which its loss does not need."""
    recipe = recipes.Recipe(model=model, train=recipes.Train(**train))
    return TASKS["translate"](recipe, None, None)


def compute_gradients(
    task: AnyTask, model: nn.Module, examples: Capturable, dtype: str = "float32"
) -> list[Tensor | None]:
    """The gradients of one forward and backward pass, run as in a captured update."""
    model.train()
    with capturable(), precision(dtype, CPU):
        loss = task.loss(model, examples, 0.1)
    (loss / examples.count_predictions().clamp(min=1)).backward()
    nn.utils.clip_grad_norm_(list(model.parameters()), 1.0, foreach=True)
    return [parameter.grad for parameter in model.parameters()]


def run_on_fake_tensors(model: recipes.Model, shared: bool = False, dtype: str = "float32", **train: float) -> None:
    """Run forward and backward on fake tensors: reading a value raises."""
    task, examples = make_task(model, **train), make_examples()
    with FakeTensorMode(allow_non_fake_inputs=False) as mode:
        built = build(model, source_size=WORDS, target_size=WORDS, shared=shared)
        gradients = compute_gradients(task, built, examples.map_tensors(mode.from_tensor), dtype)
    assert any(gradient is not None for gradient in gradients)


@pytest.mark.filterwarnings("ignore:LSTM with projections")  # oneDNN has no projections; torch's own kernel runs
@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_loss_of_every_model_reads_nothing_on_the_host(case):
    recipe = make_recipe(case, dropout=0.2)
    try:
        run_on_fake_tensors(recipe, case.tied)
    except RecipeError:  # some models need encoder and decoder of one width
        dim = recipe.encoder.dim
        run_on_fake_tensors(
            recipes.fill(recipe, {"embedding": dim if case.tied else 10, "decoder": {"dim": dim}}, "", ""), case.tied
        )


WITH_LOSS_TERMS = [
    Case("bahdanau"),
    Case("luong", "lstm", 2),
    Case("bahdanau", variant=Variant(normalizer="hard")),
    Case("bahdanau", "lstm", gated=True),
    transformer(),
]


@pytest.mark.parametrize("case", WITH_LOSS_TERMS, ids=str)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_loss_terms_and_half_precision_read_nothing_on_the_host(case, dtype):
    terms = {} if case.decoder == "transformer" else {"coverage": 0.5, "doubly_stochastic": 0.5}
    run_on_fake_tensors(make_recipe(case, dropout=0.2), dtype=dtype, **terms)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_joint_ctc_loss_reads_nothing_on_the_host(dtype):
    recipe, examples = make_recipe(Case("bahdanau"), dropout=0.2), make_examples()
    task = make_task(recipe, ctc=0.3)
    with FakeTensorMode(allow_non_fake_inputs=False) as mode:
        plain = build(recipe, source_size=WORDS, target_size=WORDS)
        model = Seq2Seq(plain.encoder, plain.decoder, CTC(plain.encoder.dim, WORDS))
        compute_gradients(task, model, examples.map_tensors(mode.from_tensor), dtype)
    assert model.ctc.out.weight.grad is not None


def test_a_copying_decoder_reads_nothing_on_the_host():
    recipe = make_recipe(Case("bahdanau"))
    run_on_fake_tensors(recipes.fill(recipe, {"decoder": {"copies": True}}, "", ""))


@pytest.mark.parametrize("corpus", ["sentences", "sentences_recurrent"])
def test_a_language_model_reads_nothing_on_the_host(corpus):
    """It has no source at all."""
    overrides = ["model.decoder.layers=2", "model.decoder.dim=16", "model.embedding=16"]
    if corpus == "sentences_recurrent":
        overrides += ["model.decoder.kind=recurrent", "model.decoder.order=none", "model.decoder.dropout=0.2"]
    run_table_on_fake_tensors("sentences", *overrides)


def run_table_on_fake_tensors(name: str, *overrides: str, dtype: str = "float32") -> None:
    """Run forward and backward for a batch that is taken from the table of a recipe's data, as an update does it."""
    recipe = recipes.load(name, ["data.size=20", *overrides])
    task_class = TASKS[recipe.task]
    examples = task_class.examples(recipe).train
    task = task_class.learn(recipe, examples)
    table = Table.of(task, task.within_length(task.encode(examples)), CPU)
    with FakeTensorMode(allow_non_fake_inputs=False) as mode:
        fake = Table(table.batch.map_tensors(mode.from_tensor), mode.from_tensor(table.numbers))
        rows = fake.take(mode.from_tensor(torch.tensor([2, 0, table.empty])), (8, 8))
        gradients = compute_gradients(task, task.build(), rows, dtype)
    assert any(gradient is not None for gradient in gradients)


SMALL = ("model.embedding=12", "model.encoder.dim=12", "model.encoder.layers=2", "model.encoder.dropout=0.2")
ENCODERS = {
    **{cell: (f"model.encoder.cell={cell}",) for cell in CELLS},
    "gnmt": ("model.encoder.kind=gnmt", "model.encoder.cell=lstm"),
    "transformer": ("model.encoder.kind=transformer", "model.attention.score=scaled_dot", "model.attention.heads=2"),
}


@pytest.mark.parametrize("encoder", ENCODERS)
@pytest.mark.parametrize("pooling", POOLINGS)
def test_a_classifier_reads_nothing_on_the_host(encoder, pooling):
    overrides = (*SMALL, *ENCODERS[encoder], f"classify.pooling={pooling}", "train.word_dropout=0.3")
    run_table_on_fake_tensors("moods", *overrides)


@pytest.mark.parametrize("encoder", ENCODERS)
@pytest.mark.parametrize("letters", [*LETTERS, None])
def test_a_tagger_reads_nothing_on_the_host(encoder, letters):
    spelling = f"tag.letters.kind={letters}" if letters else "tag.letters.dim=0"
    run_table_on_fake_tensors("parts", *SMALL, *ENCODERS[encoder], spelling, "train.word_dropout=0.3")


@pytest.mark.parametrize("name", ["moods", "parts"])
def test_classifiers_and_taggers_in_half_precision_read_nothing_on_the_host(name):
    run_table_on_fake_tensors(name, *SMALL, dtype="bfloat16")


def test_a_value_read_on_the_host_fails_on_fake_tensors():
    """Packed sequences need their lengths on the host; `capturable` avoids them."""
    recipe, examples = make_recipe(Case("bahdanau")), make_examples()
    task = make_task(recipe)
    with FakeTensorMode(allow_non_fake_inputs=False) as mode:
        model = build(recipe, source_size=WORDS, target_size=WORDS).train()
        assert not choose._capturable
        with pytest.raises((DataDependentOutputException, RuntimeError)):
            task.loss(model, examples.map_tensors(mode.from_tensor))


@pytest.mark.parametrize("case", [Case("bahdanau", "lstm", 2), Case("luong", "gru"), Case("gnmt", "lstm", 3)], ids=str)
def test_capturable_paths_give_the_same_gradients(case):
    """`capturable` changes how the gradient is computed, not its value."""
    torch.manual_seed(0)
    recipe, examples = make_recipe(case), make_examples()
    model, task = build(recipe, source_size=WORDS, target_size=WORDS).double(), make_task(recipe)
    capturable_gradients = [gradient.clone() for gradient in compute_gradients(task, model, examples)]
    model.zero_grad()
    task.loss(model, examples, 0.1).div(examples.count_predictions()).backward()
    nn.utils.clip_grad_norm_(list(model.parameters()), 1.0, foreach=True)
    for gradient, parameter in zip(capturable_gradients, model.parameters(), strict=True):
        torch.testing.assert_close(gradient, parameter.grad, rtol=0.0, atol=1e-10)
