"""Laws of changed modules: what a hook or a replaced layer does in teacher forcing it does in a search too.

Fast paths read the weights of modules and do not call them; a module that somebody changed is called.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import cycle

import pytest
import torch
from small import Case, Variant, make_model, make_sources, near, same, transformer
from torch import Tensor, nn
from worlds import LIMITS, LOOKERS, WRITERS, greedy, make_world

from regard import models
from regard.attention import MultiHead
from regard.attention.record import record
from regard.attention.scopes import Scope
from regard.attention.scores import SCORES, Additive, Dot, Location
from regard.decoders import ORDERS
from regard.errors import RegardError
from regard.kernels.linear import Linear
from regard.layers.recurrence import CELLS, Recurrence
from regard.models import Seq2Seq
from regard.search import beam
from regard.types import BEGIN
from shapes import unchecked

LENGTHS = (7, 4, 2)
TOKENS = torch.tensor([[BEGIN, 5, 7, 4, 9], [BEGIN, 6, 6, 8, 4], [BEGIN, 9, 4, 5, 5]])

FEW = [
    *(Case(order, cell, 2) for order, cell in zip(ORDERS, cycle(CELLS), strict=False)),
    transformer("learned"),
    transformer("rotary", "post", Variant("dot", heads=2), layers=1),
]
CASES = [
    *FEW,
    *(Case(variant=Variant(score)) for score in SCORES),
    Case("luong_feeding", variant=Variant("additive", scope="location_aware")),
    Case("luong", variant=Variant("scaled_dot", "softmax", "local_p", 2)),
    *(
        transformer(variant=Variant(score, heads=2), layers=1)
        for score in ("general", "additive", "concat", "location")
    ),
    transformer("alibi", "post", Variant("scaled_dot", heads=4, groups=2), layers=1),
    transformer(tied=True, layers=1),
]
every_case = pytest.mark.parametrize("case", CASES, ids=str)
few_cases = pytest.mark.parametrize("case", FEW, ids=str)


@pytest.fixture(autouse=True)
def quickly() -> Iterator[None]:
    """Other laws ask the same with the checks of shapes on."""
    with unchecked():
        yield


def in_all_ways(model: Seq2Seq, beams: int = 2) -> Tensor:
    """The logits of teacher forcing, held against those of steps, of beams, and of both with gradients."""
    with torch.no_grad():
        memory = model.encoder(make_sources(*LENGTHS))
    whole = model.decoder(TOKENS, memory).logits
    for learns in (False, True):
        with torch.set_grad_enabled(learns):
            near(model.decoder(TOKENS, memory).logits, whole)
            prepared = model.decoder.prepare(memory)
            state, logits = model.decoder.start(prepared).repeat(beams), []
            for token in TOKENS.repeat_interleave(beams, dim=0).split(1, dim=1):
                step = model.decoder.step(token, state, prepared)
                state, logits = step.state, [*logits, step.logits]
            near(torch.cat(logits, dim=1)[::beams], whole)
    return whole.detach()


def make_seeded(case: Case) -> tuple[Seq2Seq, Tensor]:
    """A model, and what it says before anything is changed."""
    model = make_model(case)
    torch.manual_seed(1)  # the same sources each time
    return model, in_all_ways(model)


def said(model: Seq2Seq) -> Tensor:
    torch.manual_seed(1)
    return in_all_ways(model)


def differs(one: Tensor, other: Tensor) -> bool:
    return bool((one - other).abs().max() > 1e-6)


@contextmanager
def hooked(modules: list[nn.Module], hook: Callable[..., object], *, before: bool = False) -> Iterator[None]:
    """While in the block, all these have the hook."""
    handles = [
        module.register_forward_pre_hook(hook) if before else module.register_forward_hook(hook) for module in modules
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def parts(model: nn.Module, *kinds: type) -> list[nn.Module]:
    return [module for module in model.modules() if isinstance(module, kinds)]


@every_case
def test_a_hook_that_changes_what_a_scope_says_acts_everywhere(case):
    model, before = make_seeded(case)
    scopes = parts(model.decoder, Scope)
    with hooked(scopes, lambda module, given, result: result._replace(context=1.5 * result.context)):
        assert differs(said(model), before) == bool(scopes)
    same(said(model), before)


@every_case
def test_a_hook_that_changes_what_a_scope_is_given_acts_everywhere(case):
    model, before = make_seeded(case)
    scopes = parts(model.decoder, Scope)
    deaf = case.variant.score == "linear_concat"  # whose query cancels
    with hooked(scopes, lambda module, given: (1.5 * given[0], 0.7 * given[1], *given[2:]), before=True):
        assert differs(said(model), before) == bool(scopes) or deaf


@every_case
def test_a_hook_that_changes_what_recurrent_layers_say_acts_everywhere(case):
    model, before = make_seeded(case)
    layers = parts(model.decoder, nn.RNNBase)
    for kind in (nn.RNNBase, Recurrence):
        with hooked(parts(model.decoder, kind), lambda module, given, result: (1.5 * result[0], result[1])):
            assert differs(said(model), before) == bool(layers)


@every_case
def test_a_hook_on_any_layer_acts_everywhere(case):
    model, before = make_seeded(case)
    unread = {"cross.key"} if case.variant.score == "location" else set()  # it asks where a key stands, not what it is
    for name, module in model.decoder.named_modules():
        if isinstance(module, nn.Linear | nn.LayerNorm | nn.Embedding):
            with hooked([module], lambda module, given, result: 1.5 * result + 0.1 * result.square()):
                assert differs(said(model), before) != any(name.endswith(each) for each in unread), name


class LoRA(nn.Module):
    """Hu et al. 2022: W x + b + B A x around a layer that stays as it is."""

    def __init__(self, base: nn.Linear) -> None:
        super().__init__()
        self.base = base
        self.down = nn.Linear(base.in_features, 2, bias=False, dtype=base.weight.dtype)
        self.up = nn.Linear(2, base.out_features, bias=False, dtype=base.weight.dtype)

    def forward(self, states: Tensor) -> Tensor:
        return self.base(states) + self.up(self.down(states))


class Doubled(Linear):
    """A subclass with a forward of its own."""

    def forward(self, states: Tensor) -> Tensor:
        return 2 * super().forward(states)


def doubled(base: nn.Linear) -> nn.Module:
    other = Doubled(base.in_features, base.out_features, bias=base.bias is not None, dtype=base.weight.dtype)
    other.load_state_dict(base.state_dict())
    return other


def patched(base: nn.Linear) -> nn.Module:
    plain = base.forward
    base.forward = lambda states: 2 * plain(states)
    return base


def normalised(base: nn.Linear) -> nn.Module:
    """Its weight is computed from others whenever it is called."""
    base = nn.utils.parametrizations.weight_norm(base)
    with torch.no_grad():
        base.parametrizations.weight.original0.mul_(1.5)
    return base


CHANGES = {"lora": LoRA, "subclass": doubled, "patched": patched, "weight_norm": normalised}


@pytest.mark.parametrize("change", CHANGES.values(), ids=list(CHANGES))
@few_cases
def test_a_replaced_layer_is_called_everywhere(case, change):
    model, before = make_seeded(case)
    for module in list(model.decoder.modules()):
        for name, part in list(module.named_children()):
            if isinstance(part, nn.Linear) and not isinstance(module, LoRA):
                setattr(module, name, change(part))
    assert differs(said(model), before)


@pytest.mark.parametrize("case", [Case(cell="lstm"), transformer()], ids=str)
def test_a_settled_model_keeps_its_changed_layers(case):
    model, _ = make_seeded(case)
    for module in parts(model.decoder, Linear):
        normalised(module)
    for rnn in parts(model.decoder, nn.RNNBase):
        rnn.__class__ = Clipped
    before, weights = said(model), {name: id(each) for name, each in model.decoder.named_parameters()}
    models.store_by_columns(model)
    near(said(model), before)
    assert {name: id(each) for name, each in model.decoder.named_parameters()} == weights


@pytest.mark.parametrize("case", [transformer(), transformer("rotary", "post")], ids=str)
def test_cross_attention_with_lora_gives_the_same_keys_with_gradients_and_without(case):
    model = make_model(case)
    memory = model.encoder(make_sources(*LENGTHS))
    for cross in parts(model.decoder, MultiHead):
        cross.key = LoRA(cross.key)
    ways = []
    for learns in (False, True):
        with torch.set_grad_enabled(learns):
            ways.append(model.decoder.prepare(memory).layers)
    for without, learned in zip(*ways, strict=True):
        near(learned.keys, without.keys)
        learned.keys.sum().backward(retain_graph=True)
    for cross in parts(model.decoder, MultiHead):
        assert cross.key.up.weight.grad.any()


class OwnDot(Dot):
    """A score that inherits all but what it is."""

    def forward(self, query: Tensor, keys: Tensor) -> Tensor:
        return super().forward(query, keys).square()


class OwnAdditive(Additive):
    def forward(self, query: Tensor, keys: Tensor) -> Tensor:
        return super().forward(query, keys).square()


@pytest.mark.parametrize(
    "case", [transformer(variant=Variant("dot", heads=2)), Case(), Case("gnmt", "lstm", 2)], ids=str
)
def test_a_score_with_a_forward_of_its_own_is_called_everywhere(case):
    model, before = make_seeded(case)
    for scope in parts(model.decoder, Scope):
        kind = OwnDot if isinstance(scope.score, Dot) else OwnAdditive
        scope.score.__class__ = kind
    assert differs(said(model), before)


class Clipped(nn.LSTM):
    """An LSTM with a forward of its own."""

    def forward(self, *given: object) -> object:
        outputs, last = super().forward(*given)
        return outputs.clamp(-0.1, 0.1), last


@pytest.mark.parametrize("order", ORDERS)
def test_another_kind_of_recurrent_layer_is_called_everywhere(order):
    model, before = make_seeded(Case(order, "lstm", 2))
    for rnn in parts(model.decoder, nn.LSTM):
        rnn.__class__ = Clipped
    assert differs(said(model), before)


@pytest.mark.parametrize("writer", WRITERS)
def test_a_search_finds_what_teacher_forcing_says_under_hooks(writer):
    world = make_world(writer)
    changes = {
        Scope: lambda module, given, result: result._replace(context=-result.context),
        nn.RNNBase: lambda module, given, result: (1.5 * result[0], result[1]),
        nn.Linear: lambda module, given, result: 1.3 * result,
    }
    for kind, change in changes.items():
        with hooked(parts(world.model.decoder, kind), change), torch.no_grad():
            found = beam(world.model.decoder, world.memory, width=1, limits=LIMITS)
            for (best,), memory, limit in zip(found, world.alone, LIMITS, strict=True):
                assert (list(best.tokens), best.finished) == greedy(world.model, memory, limit)


@pytest.mark.takes("plain_transformer", "plain_recurrent")
@pytest.mark.parametrize("writer", LOOKERS)
def test_what_records_is_no_change(writer):
    """The fast path stays on, bit for bit, with LSTMs too."""
    model = make_world(writer).model
    if writer not in ("transformer_pre", "transformer_post"):
        model = make_model(Case(writer, "lstm", 2))
    memory = model.encoder(make_sources(*LENGTHS))
    with torch.no_grad():
        alone = model.decoder.prepare(memory)
        with record(model):
            prepared = model.decoder.prepare(memory)
            assert alone.plain is not None
            assert prepared.plain is not None
            seen = model.decoder.step(TOKENS[:, :1], model.decoder.start(prepared), prepared)
    with torch.no_grad():
        same(seen.logits, model.decoder.step(TOKENS[:, :1], model.decoder.start(alone), alone).logits)


@pytest.mark.parametrize("cell", CELLS)
def test_dropout_between_changed_layers_is_that_of_the_layers(cell):
    model = make_model(Case(cell=cell, layers=2), dropout=0.5, dtype=torch.float32).train()
    drawn: list[bool] = []
    with hooked(parts(model.decoder, nn.RNNBase), lambda module, given, result: drawn.append(module.training)):
        model.decoder(TOKENS, model.encoder(make_sources(*LENGTHS))).logits.sum().backward()
    assert drawn == [True] * TOKENS.shape[1]
    assert all(each.grad is not None for each in model.decoder.recurrence.parameters())


@pytest.mark.parametrize("score", ["concat", "linear_concat", "location"])
def test_a_past_needs_keys_that_are_sums(score):
    model = make_model(Case(variant=Variant(score, scope="coverage")))
    memory = model.encoder(make_sources(*LENGTHS))
    inner = model.decoder.attention.score
    layer = inner.query if isinstance(inner, Location) else inner.weight
    with (
        hooked([layer], lambda *given: None),
        pytest.raises(RegardError, match="was hooked or replaced and is called with query and key together"),
    ):
        model.decoder(TOKENS, memory)


def test_a_global_hook_acts_everywhere():
    model, before = make_seeded(transformer())
    linears = set(parts(model.decoder, nn.Linear))
    handle = nn.modules.module.register_module_forward_hook(
        lambda module, given, result: 1.5 * result if module in linears else None
    )
    try:
        assert differs(said(model), before)
    finally:
        handle.remove()
