"""The parts of training: averages of weights, gradients of split batches, scheduled sampling, entropy of attention."""

import math
from itertools import pairwise, product
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn

from regard import recipe as recipes
from regard.attention import NORMALIZERS, SCOPES
from regard.data.batching import Batches, pad
from regard.decoders import ORDERS
from regard.errors import ResourceError
from regard.models import Seq2Seq
from regard.recipe import Recipe
from regard.storage import Run
from regard.tasks import Transduce
from regard.tasks.core import DevLoss
from regard.tasks.transduce import _sampled
from regard.training import engine, loop, session, train, validation
from regard.training.averaging import Averager
from regard.training.callbacks import Callbacks
from regard.training.engine import Captured, Eager, eager
from regard.training.health import Health, health
from regard.training.session import Session
from regard.training.stopping import Stopper
from regard.types import BEGIN, END, PAD, Batch, Example

EXAMPLES = [
    Example(text, text[::-1]) for text in ("abc", "b", "cabbage", "de", "feed", "bad", "a", "decade", "fab", "cab")
]


def make_recipe(*overrides: str) -> Recipe:
    sizes = ["model.embedding=6", "model.encoder.dim=8", "model.decoder.dim=7", "model.attention.dim=5"]
    return recipes.parse("", "parts", [*sizes, "train.device=cpu", "train.clip=0", *overrides])


def of_pairs(sources: list[list[int]], targets: list[list[int]]) -> Batch:
    """The batch of these pairs, with END after sources and BEGIN and END around targets."""
    source = pad([[*ids, END] for ids in sources])
    return Batch(source, pad([[BEGIN, *ids, END] for ids in targets]), torch.arange(len(sources)))


class Bench:
    """A task with its data and a session in float64."""

    def __init__(self, *overrides: str) -> None:
        self.recipe = make_recipe(*overrides)
        self.task = Transduce.learn(self.recipe, EXAMPLES)
        self.data = self.task.encode(EXAMPLES)
        torch.manual_seed(3)
        self.session = Session.begin(self.task.build().double(), self.recipe.train)
        self.model = self.session.model

    def batch(self, *indices: int) -> Batch:
        return self.task.collate(self.data, indices or range(len(EXAMPLES)))

    def gradient(self, *pieces: Batch) -> tuple[list[Tensor], float, int]:
        """Gradients, summed loss and number of target tokens, computed by the function of the loop."""
        total, tokens = eager._gradient(Eager(self.task, self.session, self.data), pieces, sampling=0.0)
        return [parameter.grad.clone() for parameter in self.model.parameters()], total, tokens


class FixedBatches(Batches):
    """Batches that the test chooses."""

    def __init__(self, *batches: list[int]) -> None:
        self.batches = batches

    def __getitem__(self, update: int) -> list[int]:
        return self.batches[update]


def assert_near(actual: Tensor, expected: Tensor, tolerance: float = 1e-12) -> None:
    torch.testing.assert_close(actual, expected, rtol=0.0, atol=tolerance)


# Averages of weights


def random_weights(model: nn.Module, steps: int) -> list[dict[str, Tensor]]:
    """Different weights for each step, as if the model had been trained."""
    states = []
    for step in range(steps):
        torch.manual_seed(step)
        states.append({name: torch.randn_like(value) for name, value in model.state_dict().items()})
    return states


@pytest.mark.parametrize("decay", [0.5, 0.9, 0.999])
def test_the_moving_average_follows_its_recursion(decay):
    model = nn.Linear(3, 5).double()
    averager = Averager(model, decay=decay, last=1)
    expected = {name: value.clone() for name, value in model.state_dict().items()}
    for state in random_weights(model, 7):
        model.load_state_dict(state)
        averager.after_update(model, judged=False)
        expected = {name: decay * value + (1 - decay) * state[name] for name, value in expected.items()}
    with averager.applied(model):
        for name, value in model.state_dict().items():
            assert_near(value, expected[name])
    for name, value in model.state_dict().items():
        assert_near(value, state[name], 0.0)  # after the block, the model has its own weights again


@pytest.mark.parametrize("last", [2, 3])
@pytest.mark.parametrize("decay", [0.0, 0.8])
def test_the_average_is_over_the_last_validations(last, decay):
    model = nn.Linear(3, 5).double()
    averager = Averager(model, decay=decay, last=last)
    moving, validated = {name: value.clone() for name, value in model.state_dict().items()}, []
    for number, state in enumerate(random_weights(model, 12)):
        model.load_state_dict(state)
        moving = {name: decay * value + (1 - decay) * state[name] for name, value in moving.items()}
        due = number % 3 == 2
        averager.after_update(model, judged=due)
        if due:
            validated.append(moving)
        last_means = validated[-last:]
        with averager.applied(model):
            for name, value in model.state_dict().items():
                assert_near(
                    value, sum(mean[name] for mean in last_means) / len(last_means) if last_means else moving[name]
                )


def test_without_an_average_the_current_weights_are_used():
    model = nn.Linear(3, 5)
    averager = Averager(model, decay=0.0, last=1)
    averager.after_update(model, judged=True)
    before = model.weight.clone()
    with averager.applied(model):
        assert torch.equal(model.weight, before)
    assert averager.tensors() == {}


def test_the_own_weights_of_the_model_are_restored_after_an_error():
    model = nn.Linear(3, 5)
    averager = Averager(model, decay=0.5, last=1)
    own = model.weight.detach().clone()
    averager.moving = {name: value + 1 for name, value in averager.moving.items()}
    with pytest.raises(RuntimeError, match="on purpose"), averager.applied(model):
        raise RuntimeError("on purpose")
    assert torch.equal(model.weight, own)


@pytest.mark.parametrize(("decay", "last"), [(0.9, 1), (0.0, 3), (0.9, 3)])
def test_an_average_continues_after_it_was_stored_and_loaded(decay, last):
    model, other = nn.Linear(3, 5), nn.Linear(3, 5)
    averager = Averager(model, decay=decay, last=last)
    states = random_weights(model, 8)
    for state in states[:5]:
        model.load_state_dict(state)
        averager.after_update(model, judged=True)
    restored = Averager(other, decay=decay, last=last)
    restored.load({name: value.clone() for name, value in averager.tensors().items()})
    for state in states[5:]:
        for each, network in ((averager, model), (restored, other)):
            network.load_state_dict(state)
            each.after_update(network, judged=True)
    with averager.applied(model), restored.applied(other):
        assert torch.equal(model.weight, other.weight)


# The gradient of an update


def expected_gradient(bench: Bench) -> list[Tensor]:
    """The gradient of the mean over all target tokens, without splitting the batch."""
    batch = bench.batch()
    targets = batch.target.ids[:, 1:].flatten()
    logits = bench.model(batch).logits.flatten(0, 1)
    mean = nn.functional.cross_entropy(logits, targets, ignore_index=PAD)
    return list(torch.autograd.grad(mean, list(bench.model.parameters())))


PIECES = [(5,), (1, 4), (2, 2, 3)]


@pytest.mark.parametrize("cuts", [(), *PIECES])
def test_pieces_give_the_gradient_of_the_whole_batch(cuts):
    """Pieces are weighted by their number of target tokens, not equally."""
    bench = Bench()
    expected = expected_gradient(bench)
    edges = [0, *torch.tensor(cuts, dtype=torch.long).cumsum(0).tolist(), len(EXAMPLES)]
    pieces = [bench.batch(*range(low, high)) for low, high in pairwise(edges)]
    gradients, total, tokens = bench.gradient(*pieces)
    assert tokens == sum(len(each.target) + 1 for each in EXAMPLES)
    assert total == pytest.approx(bench.task.loss(bench.model, bench.batch()).item(), abs=1e-10)
    for mine, other in zip(gradients, expected, strict=True):
        assert_near(mine, other)


def test_accumulating_is_one_update_of_all_batches():
    """A whole update by `Eager`: two batches accumulated, or one batch with the rows of both."""
    sessions = []
    for accumulate in (1, 2):
        bench = Bench(f"train.accumulate={accumulate}", "train.updates=1", "train.ema=0.5")
        halves = [list(range(5)), list(range(5, len(EXAMPLES)))]
        batches = halves if accumulate == 2 else [halves[0] + halves[1]]
        Eager(bench.task, bench.session, bench.data).update(FixedBatches(*batches), Stopper())
        assert bench.session.progress.update == 1
        sessions.append(bench.session)
    for mine, other in zip(sessions[0].model.parameters(), sessions[1].model.parameters(), strict=True):
        assert_near(mine.grad, other.grad)
    assert sessions[0].progress.total == pytest.approx(sessions[1].progress.total, abs=1e-10)
    assert sessions[0].progress.tokens == sessions[1].progress.tokens


def fail_if_larger(limit: int, monkeypatch: pytest.MonkeyPatch, error: Exception) -> list[int]:
    """Raise the error for batches with more rows than the limit; returns a list of the rows of every try."""
    tries: list[int] = []
    real = Transduce.loss

    def loss(self: Transduce, model: Seq2Seq, batch: Batch, *settings: float) -> Tensor:
        tries.append(len(batch.examples))
        if len(batch.examples) > limit:
            raise error
        return real(self, model, batch, *settings)

    monkeypatch.setattr(Transduce, "loss", loss)
    return tries


MEMORY_ERRORS = [
    torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."),
    torch.OutOfMemoryError("no words"),
    MemoryError(),
    RuntimeError("[enforce fail at alloc_cpu.cpp:124] . DefaultCPUAllocator: can't allocate memory: you tried to"),
]


@pytest.mark.parametrize("error", MEMORY_ERRORS, ids=repr)
@pytest.mark.parametrize("limit", [1, 3, 5])
def test_a_batch_that_does_not_fit_into_memory_is_split_and_gives_the_same_gradient(monkeypatch, error, limit):
    bench = Bench()
    expected = expected_gradient(bench)
    tries = fail_if_larger(limit, monkeypatch, error)
    gradients, total, tokens = bench.gradient(bench.batch(*range(4)), bench.batch(*range(4, len(EXAMPLES))))
    assert max(tries) > limit
    assert tokens == sum(len(each.target) + 1 for each in EXAMPLES)
    for mine, other in zip(gradients, expected, strict=True):
        assert_near(mine, other)
    monkeypatch.undo()
    assert total == pytest.approx(bench.task.loss(bench.model, bench.batch()).item(), abs=1e-10)


def test_a_batch_that_fails_in_backward_is_split_too(monkeypatch):
    """Most out-of-memory errors happen in `backward`, when some gradients are accumulated already."""
    bench = Bench()
    expected = expected_gradient(bench)

    class Fails(torch.autograd.Function):
        @staticmethod
        def forward(context: object, value: Tensor) -> Tensor:
            return value.clone()

        @staticmethod
        def backward(context: object, gradient: Tensor) -> Tensor:
            raise torch.OutOfMemoryError("out of memory")

    real = Transduce.loss

    def loss(self: Transduce, model: Seq2Seq, batch: Batch, *settings: float) -> Tensor:
        value = real(self, model, batch, *settings)
        return value / 2 + Fails.apply(value / 2) if len(batch.examples) > 3 else value

    monkeypatch.setattr(Transduce, "loss", loss)
    gradients, _, _ = bench.gradient(bench.batch())
    for mine, other in zip(gradients, expected, strict=True):
        assert_near(mine, other)


def test_generator_states_are_restored_by_gpu_index_for_any_number_of_gpus(monkeypatch):
    states = {f"cuda{index}": torch.full((1,), index, dtype=torch.uint8) for index in range(12)}
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    for count in (1, 12, 13):
        restored: dict[int, int] = {}
        monkeypatch.setattr(torch.cuda, "device_count", lambda count=count: count)
        monkeypatch.setattr(
            torch.cuda, "set_rng_state", lambda state, index, restored=restored: restored.update({index: int(state)})
        )
        session._set_generators({"cpu": torch.get_rng_state(), **dict(sorted(states.items()))})
        assert restored == {index: index for index in range(min(12, count))}


def test_the_learning_rate_is_a_tensor_on_the_gpu_of_the_model(monkeypatch):
    model, devices = nn.Linear(2, 2), []
    gpu = torch.device("cuda:1")
    monkeypatch.setattr(model, "parameters", lambda: iter([SimpleNamespace(device=gpu, is_cuda=True)]))
    monkeypatch.setattr(torch, "zeros", lambda *_, device: devices.append(torch.device(device)))
    monkeypatch.setattr(torch.optim, "AdamW", lambda *_, **__: None)
    monkeypatch.setattr(session, "Averager", lambda *_, **__: None)
    monkeypatch.setattr(session, "Session", lambda *_, **__: None)
    Session.begin(model, make_recipe().train)
    assert devices == [gpu]


@pytest.mark.parametrize("error", MEMORY_ERRORS, ids=repr)
def test_dev_batches_that_do_not_fit_are_split_too(monkeypatch, error):
    bench, real, tries = Bench(), Transduce.dev_loss, []
    expected, expected_health = validation.evaluate(bench.task, bench.model, bench.data, Stopper())

    def dev_loss(self: Transduce, model: Seq2Seq, batch: Batch) -> DevLoss:
        tries.append(len(batch.examples))
        if len(batch.examples) > limit:
            raise error
        return real(self, model, batch)

    monkeypatch.setattr(Transduce, "dev_loss", dev_loss)
    limit = 2
    loss, measured_health = validation.evaluate(bench.task, bench.model, bench.data, Stopper())
    assert max(tries) > limit
    assert loss == pytest.approx(expected, rel=1e-6)
    assert list(measured_health) == pytest.approx(list(expected_health), rel=1e-6)
    limit = 0
    with pytest.raises(ResourceError, match="a single example does not fit into memory"):
        validation.evaluate(bench.task, bench.model, bench.data, Stopper())


@pytest.mark.parametrize("error", MEMORY_ERRORS, ids=repr)
def test_a_captured_update_that_does_not_fit_is_a_resource_error(monkeypatch, tmp_path, error):
    def launch(*_: object) -> None:
        raise error

    bench = Bench()
    updater = object.__new__(Captured)  # its constructor needs a GPU
    monkeypatch.setattr(Captured, "_launch", launch)
    monkeypatch.setattr(engine, "choose", lambda *_: updater)
    run = Run.create(tmp_path, "bench", {})
    run.save(0, bench.session.files())
    with pytest.raises(ResourceError, match=r"memory for a captured update; lower .*, or set train\.capture=false"):
        loop.fit(bench.task, bench.session, bench.data, bench.data, run, Callbacks([]), Stopper())
    assert [each.path.name for each in run.checkpoints()] == ["00000000"]


def test_any_other_out_of_memory_error_in_training_is_a_resource_error(monkeypatch, tmp_path):
    def step(*_: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(torch.optim.AdamW, "step", step)
    with pytest.raises(ResourceError, match=r"not enough memory for training; lower train\.batch_tokens"):
        train("copy", "data.size=20", "train.device=cpu", "train.updates=1", runs=tmp_path, quiet=True)


@pytest.mark.parametrize("error", MEMORY_ERRORS, ids=repr)
def test_a_single_row_that_does_not_fit_is_a_resource_error(monkeypatch, error):
    bench = Bench()
    fail_if_larger(0, monkeypatch, error)
    with pytest.raises(
        ResourceError, match=r"a single example does not fit into memory; lower data.max_length"
    ) as caught:
        bench.gradient(bench.batch())
    assert caught.value.exit_code == 6


@pytest.mark.parametrize("message", ["CUDA error: an illegal memory access was encountered", "shapes do not fit"])
def test_other_errors_are_not_taken_for_out_of_memory(monkeypatch, message):
    bench = Bench()
    tries = fail_if_larger(0, monkeypatch, RuntimeError(message))
    with pytest.raises(RuntimeError, match=message):
        bench.gradient(bench.batch())
    assert len(tries) == 1


# Scheduled sampling


@pytest.mark.parametrize("order", ORDERS)
def test_sampling_probability_zero_is_teacher_forcing(order):
    bench = Bench(f"model.decoder.order={order}")
    batch = bench.batch()
    assert_near(_sampled(bench.model, batch, 0.0), bench.model(batch).logits)
    forced = bench.task.loss(bench.model, batch)
    assert_near(bench.task.cross_entropy(_sampled(bench.model, batch, 0.0), batch, 0.0), forced, 1e-10)
    assert bench.task.loss(bench.model, batch, 0.0, 0.0).item() == forced.item()


@pytest.mark.parametrize("order", ORDERS)
def test_sampling_probability_one_feeds_the_predictions_of_the_model(order):
    bench = Bench(f"model.decoder.order={order}")
    batch = bench.batch()
    for parameter in bench.model.parameters():
        nn.init.normal_(parameter, std=0.8)
    logits = _sampled(bench.model, batch, 1.0)
    fed = torch.cat([torch.full((len(EXAMPLES), 1), BEGIN), logits[:, :-1].argmax(-1)], dim=1)
    assert_near(logits, bench.model.decoder(fed, bench.model.encoder(batch.source)).logits)
    assert not torch.equal(fed, batch.target.ids[:, :-1])
    assert_near(bench.task.loss(bench.model, batch, 0.0, 1.0), bench.task.cross_entropy(logits, batch, 0.0), 1e-10)


def test_sampling_replaces_the_given_share_of_inputs():
    bench = Bench()
    batch = of_pairs([[4, 5]] * 300, [[6, 7, 8, 5]] * 300)
    with torch.no_grad():
        bench.model.decoder.out.bias[9] = 50.0  # the model always predicts token 9, which is never the target
        fed: list[Tensor] = []
        bench.model.decoder.embedding.register_forward_hook(lambda module, inputs, result: fed.append(inputs[0]))
        torch.manual_seed(0)
        _sampled(bench.model, batch, 0.3)
    tokens = torch.cat(fed, dim=1)
    own = tokens[:, 1:] == 9
    assert (tokens[:, 0] == BEGIN).all()
    assert torch.equal(tokens[:, 1:][~own], batch.target.ids[:, 1:-1][~own])
    assert own.double().mean().item() == pytest.approx(0.3, abs=0.05)
    assert own.any(0).all()


def test_the_sampling_probability_grows_from_zero_to_the_value_of_the_recipe(monkeypatch):
    bench = Bench("train.sampling=0.8", "train.updates=4", "train.validate=4")
    shares: list[float] = []
    real = Transduce.loss

    def loss(self: Transduce, model: Seq2Seq, batch: Batch, smoothing: float, sampling: float) -> Tensor:
        shares.append(sampling)
        return real(self, model, batch, smoothing, sampling)

    monkeypatch.setattr(Transduce, "loss", loss)
    for _ in range(4):
        Eager(bench.task, bench.session, bench.data).update(FixedBatches(*[list(range(10))] * 4), Stopper())
    assert shares == pytest.approx([0.2, 0.4, 0.6, 0.8])


# Entropy of attention, and its weight on the end of the source


def make_batch() -> Batch:
    return of_pairs([[4, 5, 6, 7], [4, 5], [4]], [[8, 9], [8, 9, 10, 11], [8]])  # with END: 5, 3, 2 sources


def with_masks(weights: Tensor, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
    """A map with the masks of its source and target."""
    return weights, batch.source.mask, batch.target.mask[:, 1:]


def maps(batch: Batch, fill: float = 0.0) -> Tensor:
    return torch.full((3, batch.target.ids.shape[1] - 1, batch.source.ids.shape[1]), fill, dtype=torch.float64)


def test_a_uniform_map_has_relative_entropy_one():
    batch = make_batch()
    flat = maps(batch) + (batch.source.mask.double() / batch.source.mask.sum(-1, keepdim=True)).unsqueeze(1)
    measured = health([with_masks(flat, batch)])
    assert measured.attention_entropy == pytest.approx(1.0, abs=1e-6)  # logarithms of lengths are float32
    tokens, ends = [3, 5, 2], [1 / 5, 1 / 3, 1 / 2]
    expected = sum(count * end for count, end in zip(tokens, ends, strict=True)) / 10
    assert measured.attention_on_end == pytest.approx(expected, abs=1e-12)
    assert measured.attention_near_end == pytest.approx(expected, abs=1e-12)
    assert measured.flat()
    for entropy, word in ((0.896, "spread out"), (0.904, "spread out"), (0.906, "flat"), (0.254, "sharp")):
        nearly = Health(entropy, None, None)
        assert nearly.describe() == f"attention is {word} (entropy {entropy:.2f} of 1)"
        assert nearly.flat() == (word == "flat")
    assert measured.describe() == "attention is flat (entropy 1.00 of 1), 33% on the end mark, 33% just before it"


@pytest.mark.parametrize(("back", "on_end", "near_end"), [(1, 1.0, 0.0), (2, 0.0, 1.0)])
def test_a_one_hot_map_has_entropy_zero(back, on_end, near_end):
    batch = make_batch()
    sharp = maps(batch)
    for row, length in enumerate((5, 3, 2)):
        sharp[row, :, length - back] = 1.0
    measured = health([with_masks(sharp, batch)])
    assert measured.attention_entropy == pytest.approx(0.0, abs=1e-12)
    assert (measured.attention_on_end, measured.attention_near_end) == pytest.approx((on_end, near_end))
    assert not measured.flat()


def test_sources_without_an_end_have_no_weight_on_it() -> None:
    measured = Health(0.3, None, None)
    assert measured.values() == {"attention_entropy": 0.3}
    assert measured.describe() == "attention is focused (entropy 0.30 of 1)"
    assert health([(torch.full((1, 2, 3), 1 / 3), torch.ones(1, 3).bool(), torch.ones(1, 2).bool())], ends=False) == (
        pytest.approx(1.0),
        None,
        None,
    )


def test_padded_rows_do_not_change_the_health():
    batch = make_batch()
    one = maps(batch)
    one[..., 0] = 1.0
    other = torch.where(batch.target.mask[:, 1:].unsqueeze(-1), one, maps(batch, 0.2))
    assert health([with_masks(one, batch)]) == health([with_masks(other, batch)])


def test_batches_are_weighted_by_their_target_tokens():
    batch = make_batch()
    first, second = maps(batch), maps(batch)
    first[..., 0] = 1.0
    second[..., 1] = 1.0
    single = batch.select(torch.tensor([2]))
    measured = health([with_masks(first, batch), with_masks(second[2:], single)])
    assert measured.attention_on_end == pytest.approx(2 / 12)  # the last sentence's END is its second source
    assert health([]) is None


def test_weights_that_do_not_sum_to_one_are_normalized_first():
    batch = make_batch()
    flat = maps(batch) + batch.source.mask.unsqueeze(1) * 0.9
    assert health([with_masks(flat, batch)]).attention_entropy == pytest.approx(1.0, abs=1e-6)
    assert health([with_masks(maps(batch), batch)]).attention_entropy == 0.0


COMBINATIONS = [pair for pair in product(NORMALIZERS, SCOPES) if pair != ("hard", "local_p")]  # refused together


@pytest.mark.parametrize(("normalizer", "scope"), COMBINATIONS)
def test_every_normalizer_and_scope_has_an_entropy_from_zero_to_one(normalizer, scope):
    bench = Bench(f"model.attention.normalizer={normalizer}", f"model.attention.scope={scope}")
    batch = bench.batch()
    measured = health([with_masks(bench.model(batch).attention, batch)])
    assert 0 <= measured.attention_entropy <= 1 + 1e-6
    assert math.isfinite(measured.attention_on_end)


def test_dev_files_replace_those_of_a_corpus(tmp_path: Path) -> None:
    pairs = tmp_path / "pairs.tsv"
    pairs.write_text("ab\tba\n", encoding="utf-8")
    examples = Transduce.examples(recipes.load("reverse", [f"data.dev={pairs}", "data.size=30"]))
    assert [each.source for each in examples.dev] == ["ab"]
    assert len(examples.train) == 30
    assert len(examples.test) > 1
