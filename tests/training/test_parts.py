"""The parts of training one by one: means of weights, gradients of pieces, sampled inputs, the health of maps."""

import math
from itertools import pairwise, product
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn

from regard import recipe as recipes
from regard.attention import NORMALIZERS, SCOPES
from regard.console import ProgressLog
from regard.data.batching import Batches, pad
from regard.decoders import ORDERS
from regard.errors import ResourceError
from regard.models import Seq2Seq
from regard.recipe import Recipe
from regard.storage import Run
from regard.tasks import Transduce
from regard.tasks.core import DevLoss
from regard.tasks.transduce import _sampled
from regard.training import engine, loop, session, train
from regard.training.averaging import Averager
from regard.training.engine import Captured, Eager, eager
from regard.training.health import health
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
        """Through the loop's own function."""
        total, tokens = eager._gradient(Eager(self.task, self.session, self.data), pieces, sampling=0.0)
        return [parameter.grad.clone() for parameter in self.model.parameters()], total, tokens


class Fixed(Batches):
    """The batches of a test."""

    def __init__(self, *batches: list[int]) -> None:
        self.batches = batches

    def __getitem__(self, update: int) -> list[int]:
        return self.batches[update]


def near(actual: Tensor, expected: Tensor, tolerance: float = 1e-12) -> None:
    torch.testing.assert_close(actual, expected, rtol=0.0, atol=tolerance)


# Means of weights


def walk(model: nn.Module, steps: int) -> list[dict[str, Tensor]]:
    """Weights that wander, as training lets them."""
    places = []
    for step in range(steps):
        torch.manual_seed(step)
        places.append({name: torch.randn_like(value) for name, value in model.state_dict().items()})
    return places


@pytest.mark.parametrize("decay", [0.5, 0.9, 0.999])
def test_the_moving_mean_is_its_recursion(decay):
    model = nn.Linear(3, 5).double()
    averager = Averager(model, decay=decay, last=1)
    expected = {name: value.clone() for name, value in model.state_dict().items()}
    for place in walk(model, 7):
        model.load_state_dict(place)
        averager.after_update(model, judged=False)
        expected = {name: decay * value + (1 - decay) * place[name] for name, value in expected.items()}
    with averager.applied(model):
        for name, value in model.state_dict().items():
            near(value, expected[name])
    for name, value in model.state_dict().items():
        near(value, place[name], 0.0)  # and after the block, its own again


@pytest.mark.parametrize("last", [2, 3])
@pytest.mark.parametrize("decay", [0.0, 0.8])
def test_the_mean_of_validations_is_that_of_the_last_ones(last, decay):
    model = nn.Linear(3, 5).double()
    averager = Averager(model, decay=decay, last=last)
    moving, judged = {name: value.clone() for name, value in model.state_dict().items()}, []
    for number, place in enumerate(walk(model, 12)):
        model.load_state_dict(place)
        moving = {name: decay * value + (1 - decay) * place[name] for name, value in moving.items()}
        due = number % 3 == 2
        averager.after_update(model, judged=due)
        if due:
            judged.append(moving)
        kept = judged[-last:]
        with averager.applied(model):
            for name, value in model.state_dict().items():
                near(value, sum(each[name] for each in kept) / len(kept) if kept else moving[name])


def test_without_a_mean_the_weights_are_those_of_now():
    model = nn.Linear(3, 5)
    averager = Averager(model, decay=0.0, last=1)
    averager.after_update(model, judged=True)
    before = model.weight.clone()
    with averager.applied(model):
        assert torch.equal(model.weight, before)
    assert averager.tensors() == {}


def test_the_models_own_weights_come_back_after_an_error():
    model = nn.Linear(3, 5)
    averager = Averager(model, decay=0.5, last=1)
    own = model.weight.detach().clone()
    averager.moving = {name: value + 1 for name, value in averager.moving.items()}
    with pytest.raises(RuntimeError, match="on purpose"), averager.applied(model):
        raise RuntimeError("on purpose")
    assert torch.equal(model.weight, own)


@pytest.mark.parametrize(("decay", "last"), [(0.9, 1), (0.0, 3), (0.9, 3)])
def test_a_mean_that_was_stored_goes_on(decay, last):
    model, other = nn.Linear(3, 5), nn.Linear(3, 5)
    averager = Averager(model, decay=decay, last=last)
    places = walk(model, 8)
    for place in places[:5]:
        model.load_state_dict(place)
        averager.after_update(model, judged=True)
    again = Averager(other, decay=decay, last=last)
    again.load({name: value.clone() for name, value in averager.tensors().items()})
    for place in places[5:]:
        for each, learner in ((averager, model), (again, other)):
            learner.load_state_dict(place)
            each.after_update(learner, judged=True)
    with averager.applied(model), again.applied(other):
        assert torch.equal(model.weight, other.weight)


# The gradient of an update


def straight(bench: Bench) -> list[Tensor]:
    """Of the mean over all target tokens, by one pass."""
    batch = bench.batch()
    wanted = batch.target.ids[:, 1:].flatten()
    logits = bench.model(batch).logits.flatten(0, 1)
    mean = nn.functional.cross_entropy(logits, wanted, ignore_index=PAD)
    return list(torch.autograd.grad(mean, list(bench.model.parameters())))


PIECES = [(5,), (1, 4), (2, 2, 3)]


@pytest.mark.parametrize("cuts", [(), *PIECES])
def test_pieces_give_the_gradient_of_the_whole(cuts):
    """Token-exact: long and short pieces count by their target tokens, not by their number."""
    bench = Bench()
    expected = straight(bench)
    edges = [0, *torch.tensor(cuts, dtype=torch.long).cumsum(0).tolist(), len(EXAMPLES)]
    pieces = [bench.batch(*range(low, high)) for low, high in pairwise(edges)]
    found, total, tokens = bench.gradient(*pieces)
    assert tokens == sum(len(each.target) + 1 for each in EXAMPLES)
    assert total == pytest.approx(bench.task.loss(bench.model, bench.batch()).item(), abs=1e-10)
    for mine, other in zip(found, expected, strict=True):
        near(mine, other)


def test_accumulating_is_one_update_of_all_batches():
    """The whole update, through `Eager`: two batches of half the budget, or one of both."""
    ends = []
    for accumulate in (1, 2):
        bench = Bench(f"train.accumulate={accumulate}", "train.updates=1", "train.ema=0.5")
        halves = [list(range(5)), list(range(5, len(EXAMPLES)))]
        batches = halves if accumulate == 2 else [halves[0] + halves[1]]
        Eager(bench.task, bench.session, bench.data).update(Fixed(*batches), Stopper())
        assert bench.session.progress.update == 1
        ends.append(bench.session)
    for mine, other in zip(ends[0].model.parameters(), ends[1].model.parameters(), strict=True):
        near(mine.grad, other.grad)
    assert ends[0].progress.total == pytest.approx(ends[1].progress.total, abs=1e-10)
    assert ends[0].progress.tokens == ends[1].progress.tokens


def too_large(most: int, monkeypatch: pytest.MonkeyPatch, error: Exception) -> list[int]:
    """Let batches of more rows than that not fit; gives the rows of every try."""
    tries: list[int] = []
    real = Transduce.loss

    def loss(self: Transduce, model: Seq2Seq, batch: Batch, *settings: float) -> Tensor:
        tries.append(len(batch.examples))
        if len(batch.examples) > most:
            raise error
        return real(self, model, batch, *settings)

    monkeypatch.setattr(Transduce, "loss", loss)
    return tries


SHORT_OF_MEMORY = [
    torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."),
    torch.OutOfMemoryError("no words"),
    MemoryError(),
    RuntimeError("[enforce fail at alloc_cpu.cpp:124] . DefaultCPUAllocator: can't allocate memory: you tried to"),
]


@pytest.mark.parametrize("error", SHORT_OF_MEMORY, ids=repr)
@pytest.mark.parametrize("most", [1, 3, 5])
def test_what_does_not_fit_is_split_and_gives_the_same_gradient(monkeypatch, error, most):
    bench = Bench()
    expected = straight(bench)
    tries = too_large(most, monkeypatch, error)
    found, total, tokens = bench.gradient(bench.batch(*range(4)), bench.batch(*range(4, len(EXAMPLES))))
    assert max(tries) > most
    assert tokens == sum(len(each.target) + 1 for each in EXAMPLES)
    for mine, other in zip(found, expected, strict=True):
        near(mine, other)
    monkeypatch.undo()
    assert total == pytest.approx(bench.task.loss(bench.model, bench.batch()).item(), abs=1e-10)


def test_a_failure_on_the_way_back_is_split_too(monkeypatch):
    """Memory mostly ends in `backward`, when half a gradient is there already."""
    bench = Bench()
    expected = straight(bench)

    class Fails(torch.autograd.Function):
        @staticmethod
        def forward(context: object, value: Tensor) -> Tensor:
            return value.clone()

        @staticmethod
        def backward(context: object, gradient: Tensor) -> Tensor:
            raise torch.OutOfMemoryError("out of memory")

    real = Transduce.loss

    def loss(self: Transduce, model: Seq2Seq, batch: Batch, *settings: float) -> Tensor:
        found = real(self, model, batch, *settings)
        return found / 2 + Fails.apply(found / 2) if len(batch.examples) > 3 else found

    monkeypatch.setattr(Transduce, "loss", loss)
    found, _, _ = bench.gradient(bench.batch())
    for mine, other in zip(found, expected, strict=True):
        near(mine, other)


def test_the_generators_of_gpus_are_told_apart_by_number_and_any_count_resumes(monkeypatch):
    states = {f"cuda{index}": torch.full((1,), index, dtype=torch.uint8) for index in range(12)}
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    for count in (1, 12, 13):
        put: dict[int, int] = {}
        monkeypatch.setattr(torch.cuda, "device_count", lambda count=count: count)
        monkeypatch.setattr(torch.cuda, "set_rng_state", lambda state, index, put=put: put.update({index: int(state)}))
        session._set_generators({"cpu": torch.get_rng_state(), **dict(sorted(states.items()))})
        assert put == {index: index for index in range(min(12, count))}


def test_the_learning_rate_lives_on_the_gpu_of_the_model(monkeypatch):
    model, asked = nn.Linear(2, 2), []
    there = torch.device("cuda:1")
    monkeypatch.setattr(model, "parameters", lambda: iter([SimpleNamespace(device=there, is_cuda=True)]))
    monkeypatch.setattr(torch, "zeros", lambda *_, device: asked.append(torch.device(device)))
    monkeypatch.setattr(torch.optim, "AdamW", lambda *_, **__: None)
    monkeypatch.setattr(session, "Averager", lambda *_, **__: None)
    monkeypatch.setattr(session, "Session", lambda *_: None)
    Session.begin(model, make_recipe().train)
    assert asked == [there]


@pytest.mark.parametrize("error", SHORT_OF_MEMORY, ids=repr)
def test_dev_batches_that_do_not_fit_are_split_too(monkeypatch, error):
    bench, real, tries = Bench(), Transduce.dev_loss, []
    expected, seen = loop.evaluate(bench.task, bench.model, bench.data, Stopper())

    def dev_loss(self: Transduce, model: Seq2Seq, batch: Batch) -> DevLoss:
        tries.append(len(batch.examples))
        if len(batch.examples) > most:
            raise error
        return real(self, model, batch)

    monkeypatch.setattr(Transduce, "dev_loss", dev_loss)
    most = 2
    found, again = loop.evaluate(bench.task, bench.model, bench.data, Stopper())
    assert max(tries) > most
    assert found == pytest.approx(expected, rel=1e-6)
    assert list(again) == pytest.approx(list(seen), rel=1e-6)
    most = 0
    with pytest.raises(ResourceError, match="a single example does not fit into memory"):
        loop.evaluate(bench.task, bench.model, bench.data, Stopper())


@pytest.mark.parametrize("error", SHORT_OF_MEMORY, ids=repr)
def test_a_captured_update_that_does_not_fit_is_said(monkeypatch, tmp_path, error):
    def launch(*_: object) -> None:
        raise error

    bench = Bench()
    running = object.__new__(Captured)  # a whole one needs a GPU
    monkeypatch.setattr(Captured, "_launch", launch)
    monkeypatch.setattr(engine, "choose", lambda *_: running)
    run, log = Run.create(tmp_path, "bench", {}), ProgressLog(quiet=True)
    run.save(0, bench.session.files())
    with pytest.raises(ResourceError, match=r"memory for a captured update; lower .*, or set train\.capture=false"):
        loop.fit(bench.task, bench.session, bench.data, bench.data, run, log, Stopper())
    assert [each.path.name for each in run.checkpoints()] == ["00000000"]


def test_any_other_want_of_memory_while_training_is_said(monkeypatch, tmp_path):
    def step(*_: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(torch.optim.AdamW, "step", step)
    with pytest.raises(ResourceError, match=r"not enough memory for training; lower train\.batch_tokens"):
        train("copy", "data.size=20", "train.device=cpu", "train.updates=1", runs=tmp_path, quiet=True)


@pytest.mark.parametrize("error", SHORT_OF_MEMORY, ids=repr)
def test_a_single_row_that_does_not_fit_is_said(monkeypatch, error):
    bench = Bench()
    too_large(0, monkeypatch, error)
    with pytest.raises(
        ResourceError, match=r"a single example does not fit into memory; lower data.max_length"
    ) as told:
        bench.gradient(bench.batch())
    assert told.value.exit_code == 6


@pytest.mark.parametrize("words", ["CUDA error: an illegal memory access was encountered", "shapes do not fit"])
def test_other_errors_are_not_taken_for_it(monkeypatch, words):
    bench = Bench()
    tries = too_large(0, monkeypatch, RuntimeError(words))
    with pytest.raises(RuntimeError, match=words):
        bench.gradient(bench.batch())
    assert len(tries) == 1


# Scheduled sampling


@pytest.mark.parametrize("order", ORDERS)
def test_sampling_nothing_is_teacher_forcing(order):
    bench = Bench(f"model.decoder.order={order}")
    batch = bench.batch()
    near(_sampled(bench.model, batch, 0.0), bench.model(batch).logits)
    forced = bench.task.loss(bench.model, batch)
    near(bench.task.cross_entropy(_sampled(bench.model, batch, 0.0), batch, 0.0), forced, 1e-10)
    assert bench.task.loss(bench.model, batch, 0.0, 0.0).item() == forced.item()


@pytest.mark.parametrize("order", ORDERS)
def test_sampling_all_feeds_its_own_best_guess(order):
    bench = Bench(f"model.decoder.order={order}")
    batch = bench.batch()
    for parameter in bench.model.parameters():
        nn.init.normal_(parameter, std=0.8)
    logits = _sampled(bench.model, batch, 1.0)
    fed = torch.cat([torch.full((len(EXAMPLES), 1), BEGIN), logits[:, :-1].argmax(-1)], dim=1)
    near(logits, bench.model.decoder(fed, bench.model.encoder(batch.source)).logits)
    assert not torch.equal(fed, batch.target.ids[:, :-1])
    near(bench.task.loss(bench.model, batch, 0.0, 1.0), bench.task.cross_entropy(logits, batch, 0.0), 1e-10)


def test_sampling_some_feeds_some():
    bench = Bench()
    batch = of_pairs([[4, 5]] * 300, [[6, 7, 8, 5]] * 300)
    with torch.no_grad():
        bench.model.decoder.out.bias[9] = 50.0  # its own guess is always the same, and never right
        fed: list[Tensor] = []
        bench.model.decoder.embedding.register_forward_hook(lambda module, given, result: fed.append(given[0]))
        torch.manual_seed(0)
        _sampled(bench.model, batch, 0.3)
    tokens = torch.cat(fed, dim=1)
    own = tokens[:, 1:] == 9
    assert (tokens[:, 0] == BEGIN).all()
    assert torch.equal(tokens[:, 1:][~own], batch.target.ids[:, 1:-1][~own])
    assert own.double().mean().item() == pytest.approx(0.3, abs=0.05)
    assert own.any(0).all()


def test_the_share_grows_from_nothing_to_the_recipes(monkeypatch):
    bench = Bench("train.sampling=0.8", "train.updates=4", "train.validate=4")
    shares: list[float] = []
    real = Transduce.loss

    def loss(self: Transduce, model: Seq2Seq, batch: Batch, smoothing: float, sampling: float) -> Tensor:
        shares.append(sampling)
        return real(self, model, batch, smoothing, sampling)

    monkeypatch.setattr(Transduce, "loss", loss)
    for _ in range(4):
        Eager(bench.task, bench.session, bench.data).update(Fixed(*[list(range(10))] * 4), Stopper())
    assert shares == pytest.approx([0.2, 0.4, 0.6, 0.8])


# The health of maps


def make_batch() -> Batch:
    return of_pairs([[4, 5, 6, 7], [4, 5], [4]], [[8, 9], [8, 9, 10, 11], [8]])  # with END: 5, 3, 2 sources


def maps(batch: Batch, fill: float = 0.0) -> Tensor:
    return torch.full((3, batch.target.ids.shape[1] - 1, batch.source.ids.shape[1]), fill, dtype=torch.float64)


def test_a_flat_map_has_all_the_entropy_there_is():
    batch = make_batch()
    flat = maps(batch) + (batch.source.mask.double() / batch.source.mask.sum(-1, keepdim=True)).unsqueeze(1)
    found = health([(flat, batch)])
    assert found.attention_entropy == pytest.approx(1.0, abs=1e-6)  # logarithms of lengths are float32
    tokens, ends = [3, 5, 2], [1 / 5, 1 / 3, 1 / 2]
    expected = sum(count * end for count, end in zip(tokens, ends, strict=True)) / 10
    assert found.attention_on_end == pytest.approx(expected, abs=1e-12)
    assert found.attention_near_end == pytest.approx(expected, abs=1e-12)
    assert found.flat()
    assert found.told() == "attention entropy 1.00 of 1, 33% on the end, 33% just before it"


@pytest.mark.parametrize(("back", "on_end", "near_end"), [(1, 1.0, 0.0), (2, 0.0, 1.0)])
def test_a_map_of_one_place_has_none(back, on_end, near_end):
    batch = make_batch()
    sharp = maps(batch)
    for row, length in enumerate((5, 3, 2)):
        sharp[row, :, length - back] = 1.0
    found = health([(sharp, batch)])
    assert found.attention_entropy == pytest.approx(0.0, abs=1e-12)
    assert (found.attention_on_end, found.attention_near_end) == pytest.approx((on_end, near_end))
    assert not found.flat()


def test_padded_rows_do_not_count():
    batch = make_batch()
    one = maps(batch)
    one[..., 0] = 1.0
    other = torch.where(batch.target.mask[:, 1:].unsqueeze(-1), one, maps(batch, 0.2))
    assert health([(one, batch)]) == health([(other, batch)])


def test_batches_count_by_their_tokens():
    batch = make_batch()
    first, second = maps(batch), maps(batch)
    first[..., 0] = 1.0
    second[..., 1] = 1.0
    single = batch.select(torch.tensor([2]))
    found = health([(first, batch), (second[2:], single)])
    assert found.attention_on_end == pytest.approx(2 / 12)  # the last sentence's END is its second source
    assert health([]) is None


def test_weights_that_do_not_sum_to_one_are_judged_by_their_shares():
    batch = make_batch()
    flat = maps(batch) + batch.source.mask.unsqueeze(1) * 0.9
    assert health([(flat, batch)]).attention_entropy == pytest.approx(1.0, abs=1e-6)
    assert health([(maps(batch), batch)]).attention_entropy == 0.0


WAYS = [way for way in product(NORMALIZERS, SCOPES) if way != ("hard", "local_p")]  # which are not for each other


@pytest.mark.parametrize(("normalizer", "scope"), WAYS)
def test_every_way_to_look_has_an_entropy_from_zero_to_one(normalizer, scope):
    bench = Bench(f"model.attention.normalizer={normalizer}", f"model.attention.scope={scope}")
    batch = bench.batch()
    found = health([(bench.model(batch).attention, batch)])
    assert 0 <= found.attention_entropy <= 1 + 1e-6
    assert math.isfinite(found.attention_on_end)


def test_dev_and_test_files_stand_in_for_those_of_a_corpus(tmp_path: Path) -> None:
    pairs = tmp_path / "pairs.tsv"
    pairs.write_text("ab\tba\n", encoding="utf-8")
    given = Transduce.examples(recipes.load("reverse", [f"data.dev={pairs}", "data.size=30"]))
    assert [each.source for each in given.dev] == ["ab"]
    assert len(given.train) == 30
    assert len(given.test) > 1
