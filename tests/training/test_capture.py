"""Updates captured in CUDA graphs: their parts on the CPU, and, if there is a GPU, the same loss as eager updates."""

import math
from contextlib import contextmanager

import pytest
import torch

import captured_on_cpu
import regard
from regard import recipe as recipes
from regard.data.batching import Batches, rounded_lengths, rounded_width
from regard.device import choose_precision
from regard.errors import NotFiniteError, RecipeError
from regard.tasks import TASKS
from regard.training import engine
from regard.training.engine import Captured, Eager, Engine, captured
from regard.training.processes import ALONE, joined
from regard.training.session import Session
from regard.training.stopping import Stopper
from regard.types import BEGIN, END, PAD

gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
CPU, GPU = torch.device("cpu"), torch.device("cuda")


SMALL = (
    *("model.embedding=4", "model.encoder.dim=6", "model.decoder.dim=6", "model.attention.dim=6"),
    *("search.max_ratio=0", "search.max_extra=1"),
)


def make_bench(*overrides: str, name: str = "copy", device: torch.device = CPU):
    recipe = recipes.load(name, ["data.size=50", "train.batch_tokens=200", *overrides])
    examples = TASKS[recipe.task].examples(recipe).train
    task = TASKS[recipe.task].learn(recipe, examples)
    torch.manual_seed(3)
    session = Session.begin(task.build().to(device), recipe.train)
    return task, session, task.encode(examples)


@pytest.mark.parametrize(
    ("length", "width"), [(1, 8), (8, 8), (9, 16), (64, 64), (65, 96), (256, 256), (257, 384), (600, 640)]
)
def test_lengths_are_rounded_up_to_few_widths(length, width):
    assert rounded_width(length) == width


def test_no_batch_is_wider_than_the_longest_of_all():
    assert rounded_lengths([(3, 9), (257, 200)]).tolist() == [[16, 16], [257, 257]]
    assert rounded_lengths([(3, 9), (257, 1)]).tolist() == [[8, 9], [257, 8]]
    assert {rounded_width(length) for length in range(1, 257)} == {*range(8, 65, 8), *range(96, 257, 32)}


def test_batches_of_few_shapes_hold_every_example_under_the_budget():
    lengths = [(1 + index % 23, 1 + index % 17) for index in range(300)]
    batches = Batches(lengths, 96, seed=1, few_shapes=True)
    indices = []
    for number in range(batches.per_epoch):
        width, target_width = batches.widths(number)
        assert width == target_width
        assert width in {8, 16, 23}
        assert max(max(lengths[index]) for index in batches[number]) <= width
        assert len(batches[number]) * width <= 96
        indices += batches[number]
    assert sorted(indices) == list(range(300))


def test_long_sources_leave_targets_a_width_of_their_own():
    lengths = [(49, 5 + index % 37) for index in range(300)] + [(49, 60)]
    batches = Batches(lengths, 600, seed=1, few_shapes=True)
    widths = {batches.widths(number) for number in range(batches.per_epoch)}
    assert widths == {(49, 8), (49, 16), (49, 24), (49, 32), (49, 40), (49, 48), (49, 60)}
    indices = []
    for number in range(batches.per_epoch):
        source, target = batches.widths(number)
        assert max(lengths[index][1] for index in batches[number]) <= target
        assert len(batches[number]) * max(source, target) <= 600
        indices += batches[number]
    assert sorted(indices) == list(range(301))
    assert Batches([(49, 30)] * 5, 600, seed=1, few_shapes=True).widths(0) == (49, 49)


def test_a_table_gives_the_batch_that_collate_gives():
    task, _, data = make_bench()
    table = captured.Table.of(task, data, CPU)
    examples = [4, 17, 2]
    width = max(max(data.lengths()[index]) for index in examples) + 3
    from_table = table.take(torch.tensor([*examples, table.empty]), (width, width))
    collated = task.collate(data, examples)
    for side, other in ((from_table.source, collated.source), (from_table.target, collated.target)):
        width_of_collated = other.ids.shape[1]
        assert torch.equal(side.ids[:3, :width_of_collated], other.ids)
        assert torch.equal(side.mask[:3, :width_of_collated], other.mask)
        assert not side.mask[:3, width_of_collated:].any()
        assert (side.ids[:3, width_of_collated:] == PAD).all()
    assert from_table.target.ids.shape[1] == min(width + 1, table.batch.target.ids.shape[1])
    assert {BEGIN, END} <= set(from_table.target.ids.flatten().tolist())


def test_an_empty_example_has_no_target_token_and_one_source_token():
    task, session, data = make_bench("model.encoder.kind=transformer", "model.decoder.kind=transformer")
    table = captured.Table.of(task, data, CPU)
    alone = table.take(torch.tensor([table.empty]), (8, 8))
    assert task.tokens(alone) == 0
    assert alone.source.mask.tolist() == [[True] + [False] * 7]
    with torch.no_grad():
        both = task.loss(session.model.eval(), table.take(torch.tensor([5, table.empty]), (32, 32)))
        one = task.loss(session.model, table.take(torch.tensor([5]), (32, 32)))
    assert both.item() == pytest.approx(one.item(), rel=1e-5)


# classifiers and taggers, with what a batch can hold besides words and labels
READERS = {
    "classifier": ("moods", "train.word_dropout=0.2"),
    "classifier by cls": ("moods", "classify.pooling=cls", "classify.consistency=2", "model.encoder.dropout=0.2"),
    "tagger": ("parts", "train.word_dropout=0.2"),
    "tagger without letters": ("parts", "tag.letters.dim=0"),
    "tagger of pieces": ("parts", "tokens.source=sentencepiece", "tokens.size=120", "tokens.lower=true"),
}


def without_chance(reader):
    """The recipe and the settings of a reader of which nothing is dropped."""
    still = [key for key in reader if "dropout" not in key and "consistency" not in key]
    return [*still, "train.word_dropout=0", "model.encoder.dropout=0"]


@contextmanager
def in_double_precision():
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize("kind", READERS)
def test_a_table_of_labels_or_tags_gives_the_loss_that_collate_gives(kind):
    name, *overrides = READERS[kind]
    task, session, data = make_bench(*overrides, name=name)
    model, table = session.model.eval().double(), captured.Table.of(task, data, CPU)
    assert captured.Table.bytes(task, data) == pytest.approx(
        sum(tensor.nbytes for tensor in tensors_of(table.batch)), rel=0.1
    )
    shortest = data.lengths()[:, 0].argsort().tolist()
    for examples in (shortest[:3], shortest[4:5]):
        source, target = data.lengths()[examples].max(0).tolist()
        taken = table.take(torch.tensor([*examples, table.empty, table.empty]), (source, target))
        collated = task.collate(data, examples)
        assert taken.source.ids.shape[1] < table.batch.source.ids.shape[1]
        assert task.tokens(taken) == task.tokens(collated)
        assert taken.examples[: len(examples)].tolist() == examples
        assert task.loss(model, taken).item() == pytest.approx(task.loss(model, collated).item(), rel=1e-12)


def tensors_of(batch):
    tensors = []
    batch.map_tensors(lambda tensor: tensors.append(tensor) or tensor)
    return tensors


@pytest.mark.parametrize("kind", READERS)
def test_the_empty_example_of_labels_or_tags_adds_nothing(kind):
    name, *overrides = READERS[kind]
    task, session, data = make_bench(*overrides, name=name)
    table = captured.Table.of(task, data, CPU)
    empty = table.take(torch.tensor([table.empty] * 3), (8, 8))
    assert task.tokens(empty) == 0
    loss = task.loss(session.model.double().train(), empty, 0.1)
    assert loss.item() == 0
    loss.backward()
    assert all((parameter.grad == 0).all() for parameter in session.model.parameters() if parameter.grad is not None)


@pytest.mark.parametrize("kind", READERS)
def test_captured_updates_of_classifiers_and_taggers_are_those_of_eager_ones(kind, monkeypatch):
    """Operations on the CPU stand in for the graphs; without random numbers, both engines give the same weights."""
    name, *still = without_chance(READERS[kind])
    captured_on_cpu.stand_in(monkeypatch.setattr)
    weights = {}
    with in_double_precision():
        for engine_class in (Captured, Eager):
            task, session, data = make_bench(*still, name=name)
            batches = Batches(data.lengths(), 200, 1, few_shapes=True)
            updater = engine_class(task, session, data)
            for _ in range(8):
                updater.update(batches, Stopper())
            updater.collect()
            assert session.progress.tokens > 8
            weights[engine_class] = [parameter.detach() for parameter in session.model.parameters()]
    for one, other in zip(*weights.values(), strict=True):
        torch.testing.assert_close(one, other, rtol=0.0, atol=1e-10)


def test_on_a_cpu_nothing_is_captured():
    assert isinstance(engine.choose(*make_bench()), Eager)


@pytest.mark.parametrize("kind", [Eager, pytest.param(Captured, marks=[gpu, pytest.mark.gpu])])
def test_loss_and_tokens_are_counted_over_all_processes(monkeypatch, kind):
    counts = []
    for processes in (1, 2):
        monkeypatch.setattr(Engine, "global_sum", lambda self, number, processes=processes: processes * number)
        task, session, data = make_bench(device=CPU if kind is Eager else torch.device("cuda"))
        updater = kind(task, session, data)
        updater.update(Batches(data.lengths(), 200, 1, few_shapes=True), Stopper())
        updater.collect()
        counts.append((session.progress.total, session.progress.tokens))
    (total, tokens), doubled = counts
    assert tokens > 0
    assert doubled == (pytest.approx(2 * total), 2 * tokens)


def test_a_warm_up_leaves_no_trace_in_parameters_buffers_optimizer_and_sums():
    task, session, data = make_bench("model.attention.normalizer=hard")
    assert [name for name, _ in session.model.named_buffers()] == ["decoder.baseline"]
    batches, total = Batches(data.lengths(), 200, 1), torch.ones(())
    Eager(task, session, data).update(batches, Stopper())

    def all_tensors():
        state = [value for row in session.optimizer.state.values() for value in row.values()]
        return [*session.model.state_dict().values(), *state, total]

    before, baseline = [each.clone() for each in all_tensors()], session.model.decoder.baseline.item()
    with captured.restored(session.model, session.optimizer, [total]):
        Eager(task, session, data).update(batches, Stopper())
        total += 1
        assert session.model.decoder.baseline != baseline
    assert all(torch.equal(after, earlier) for after, earlier in zip(all_tensors(), before, strict=True))


def test_an_unknown_precision_is_refused(tmp_path):
    with pytest.raises(RecipeError, match="unknown precision 'half'; choose from auto, float32, bfloat16"):
        regard.train("copy", "train.precision=half", runs=tmp_path, quiet=True)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("precision", "dtypes", "notices"),
    [
        ("auto", {torch.float32}, ["precision: float32 on cpu (train.precision=auto is bfloat16 on a GPU"]),
        ("bfloat16", {torch.bfloat16}, ["precision: bfloat16 on cpu, as forced; this may be slow"]),
        ("float32", {torch.float32}, []),
    ],
)
def test_on_a_cpu_bfloat16_is_used_only_if_it_is_forced(tmp_path, monkeypatch, capsys, precision, dtypes, notices):
    task = TASKS[recipes.load("copy").task]
    loss, product_dtypes = task.loss, set()

    def recording_loss(self, model, batch, *more):
        product_dtypes.add((torch.ones(1, 1) @ torch.ones(1, 1)).dtype)
        return loss(self, model, batch, *more)

    monkeypatch.setattr(task, "loss", recording_loss)
    small = ["data.size=50", "train.updates=1", "train.device=cpu", *SMALL]
    run = regard.train("copy", *small, f"train.precision={precision}", runs=tmp_path)
    assert product_dtypes == dtypes
    lines = [line for line in capsys.readouterr().err.split("\n") if "precision" in line]
    assert [line.startswith(notice) for line, notice in zip(lines, notices, strict=True)] == [True] * len(notices)
    assert [f"torch.{run.metrics()[-1]['precision']}"] == [str(dtype) for dtype in dtypes]


@pytest.mark.parametrize(("capability", "precision"), [((7, 5), "float32"), ((8, 0), "bfloat16"), ((9, 0), "bfloat16")])
def test_on_a_gpu_auto_is_bfloat16_if_the_gpu_computes_in_it(monkeypatch, capability, precision):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    assert choose_precision("auto", torch.device("cuda:1")) == precision
    assert choose_precision("float32", torch.device("cuda:1")) == "float32"
    assert choose_precision("bfloat16", torch.device("cuda:1")) == "bfloat16"


def test_no_recipe_that_comes_with_regard_forces_bfloat16():
    assert {recipes.load(name).train.precision for name in recipes.names()} == {"auto", "float32"}


def test_bfloat16_products_learn_and_the_weights_stay_float32():
    task, session, data = make_bench("train.precision=bfloat16", "train.batch_tokens=400")
    batches = Batches(data.lengths(), 400, 1)
    first = None
    for _ in range(20):
        Eager(task, session, data).update(batches, Stopper())
        first = first or session.progress.total / session.progress.tokens
    assert session.progress.total / session.progress.tokens < first
    assert all(parameter.dtype == torch.float32 for parameter in session.model.parameters())


MODELS = {
    "recurrent": ["model.encoder.cell=lstm", "model.decoder.cell=lstm"],
    "transformer": [
        *("model.encoder.kind=transformer", "model.decoder.kind=transformer"),
        *("model.attention.score=scaled_dot", "model.attention.heads=4", "model.attention.scope=global"),
    ],
}


EQUAL = {name: ("copy", *settings) for name, settings in MODELS.items()} | {
    name: without_chance(reader) for name, reader in READERS.items()
}


@gpu
@pytest.mark.gpu
@pytest.mark.takes("captured_updates")
@pytest.mark.parametrize("model", EQUAL)
def test_captured_updates_give_the_same_loss_as_eager_updates(model):
    name, *settings = EQUAL[model]
    losses = {}
    for graphs in (True, False):
        task, session, data = make_bench(*settings, name=name, device=GPU)
        batches = Batches(data.lengths(), 200, 1, few_shapes=True)
        updater = engine.choose(task, session, data) if graphs else Eager(task, session, data)
        assert isinstance(updater, Captured if graphs else Eager)
        for _ in range(30):
            updater.update(batches, Stopper())
        updater.collect()
        losses[graphs] = session.progress.total / session.progress.tokens
    assert losses[True] == pytest.approx(losses[False], rel=1e-3)


@gpu
@pytest.mark.gpu
@pytest.mark.takes("captured_updates")
def test_a_captured_classifier_learns_with_consistency_on_a_gpu():
    """Each replay draws other dropout masks, so the readings differ, and the loss still falls."""
    overrides = ("classify.consistency=2", "model.encoder.dropout=0.3", "data.size=400", "train.warmup=1")
    task, session, data = make_bench(*overrides, "train.schedule=constant", name="moods", device=GPU)
    batches = Batches(data.lengths(), 200, 1, few_shapes=True)
    updater, losses = engine.choose(task, session, data), []
    assert isinstance(updater, Captured)
    for _ in range(8):
        for _ in range(40):
            updater.update(batches, Stopper())
        updater.collect()
        losses.append(session.progress.total / session.progress.tokens)
        session.progress.total = session.progress.tokens = 0
    assert losses[-1] < 0.7 * losses[0]


@gpu
@pytest.mark.gpu
@pytest.mark.takes("captured_updates")
def test_a_hooked_model_is_not_captured():
    task, session, data = make_bench(device=GPU)
    next(session.model.modules()).register_forward_hook(lambda *call: None)
    assert isinstance(engine.choose(task, session, data), Eager)


@gpu
@pytest.mark.gpu
@pytest.mark.takes("captured_updates")
def test_a_graph_that_sums_by_nccl_gives_the_same_loss_in_a_group_of_one():
    losses = {}
    for parallel in ("auto", "ddp"):
        with joined(recipes.Train(parallel=parallel)) as processes:
            assert (processes is ALONE) == (parallel == "auto")
            task, session, data = make_bench(*MODELS["transformer"], device=GPU)
            session.processes = processes
            batches = Batches(data.lengths(), 200, 1, few_shapes=True)
            updater = engine.choose(task, session, data)
            assert isinstance(updater, Captured)
            for _ in range(30):
                updater.update(batches, Stopper())
            updater.end()
            losses[parallel] = session.progress.total / session.progress.tokens
    assert losses["ddp"] == pytest.approx(losses["auto"], rel=1e-3)


@gpu
@pytest.mark.gpu
@pytest.mark.takes("captured_updates")
def test_a_captured_update_that_is_not_finite_changes_no_weight():
    device = torch.device("cuda")
    task, session, data = make_bench(device=device)
    batches = Batches(data.lengths(), 200, 1, few_shapes=True)
    updater = Captured(task, session, data)
    updater.update(batches, Stopper())
    updater.collect()
    before = [parameter.detach().clone() for parameter in session.model.parameters()]
    with torch.no_grad():
        next(iter(session.model.parameters())).fill_(math.nan)
    updater.update(batches, Stopper())
    with pytest.raises(NotFiniteError, match="updates 2 to 2: a loss or the norm of its gradient is not finite"):
        updater.collect()
    for after, earlier in list(zip(session.model.parameters(), before, strict=True))[1:]:
        assert torch.equal(after, earlier)
