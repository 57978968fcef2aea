"""Laws of hooked and replaced modules: they act in a search as in teacher forcing.

Fast paths read the weights of modules and do not call them; a hooked or replaced module must be called.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import cycle

import pytest
import torch
from setups import ATTENDING_KINDS, LIMITS, SETUP_KINDS, greedy, make_setup
from small import Case, Variant, make_model, make_sources, near, same, transformer
from torch import Tensor, nn

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
def unchecked_shapes() -> Iterator[None]:
    """Other laws run the same code with checked shapes."""
    with unchecked():
        yield


def checked_logits(model: Seq2Seq, beams: int = 2) -> Tensor:
    """The logits of teacher forcing, compared with those of steps of several beams, with and without gradients."""
    with torch.no_grad():
        memory = model.encoder(make_sources(*LENGTHS))
    whole = model.decoder(TOKENS, memory).logits
    for enabled in (False, True):
        with torch.set_grad_enabled(enabled):
            near(model.decoder(TOKENS, memory).logits, whole)
            prepared = model.decoder.prepare(memory)
            state, logits = model.decoder.start(prepared).repeat(beams), []
            for token in TOKENS.repeat_interleave(beams, dim=0).split(1, dim=1):
                step = model.decoder.step(token, state, prepared)
                state, logits = step.state, [*logits, step.logits]
            near(torch.cat(logits, dim=1)[::beams], whole)
    return whole.detach()


def make_seeded(case: Case) -> tuple[Seq2Seq, Tensor]:
    """A model, and its logits before it is changed."""
    model = make_model(case)
    torch.manual_seed(1)  # the same sources each time
    return model, checked_logits(model)


def seeded_logits(model: Seq2Seq) -> Tensor:
    """The logits of a model for the sources of `make_seeded`."""
    torch.manual_seed(1)
    return checked_logits(model)


def differs(one: Tensor, other: Tensor) -> bool:
    return bool((one - other).abs().max() > 1e-6)


@contextmanager
def hooked(modules: list[nn.Module], hook: Callable[..., object], *, before: bool = False) -> Iterator[None]:
    """Within the block, all these modules have the hook."""
    handles = [
        module.register_forward_pre_hook(hook) if before else module.register_forward_hook(hook) for module in modules
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def modules_of(model: nn.Module, *kinds: type) -> list[nn.Module]:
    """All modules of these classes."""
    return [module for module in model.modules() if isinstance(module, kinds)]


@every_case
def test_a_hook_that_changes_the_output_of_a_scope_acts_everywhere(case):
    model, before = make_seeded(case)
    scopes = modules_of(model.decoder, Scope)
    with hooked(scopes, lambda module, inputs, result: result._replace(context=1.5 * result.context)):
        assert differs(seeded_logits(model), before) == bool(scopes)
    same(seeded_logits(model), before)


@every_case
def test_a_hook_that_changes_the_input_of_a_scope_acts_everywhere(case):
    model, before = make_seeded(case)
    scopes = modules_of(model.decoder, Scope)
    may_cancel = case.variant.score == "linear_concat"  # its query cancels in the softmax
    with hooked(scopes, lambda module, inputs: (1.5 * inputs[0], 0.7 * inputs[1], *inputs[2:]), before=True):
        assert differs(seeded_logits(model), before) == bool(scopes) or may_cancel


@every_case
def test_a_hook_that_changes_the_output_of_recurrent_layers_acts_everywhere(case):
    model, before = make_seeded(case)
    layers = modules_of(model.decoder, nn.RNNBase)
    for kind in (nn.RNNBase, Recurrence):
        with hooked(modules_of(model.decoder, kind), lambda module, inputs, result: (1.5 * result[0], result[1])):
            assert differs(seeded_logits(model), before) == bool(layers)


@every_case
def test_a_hook_on_any_layer_acts_everywhere(case):
    model, before = make_seeded(case)
    # The score location reads the position of a key, not its content.
    unread = {"cross.key"} if case.variant.score == "location" else set()
    for name, module in model.decoder.named_modules():
        if isinstance(module, nn.Linear | nn.LayerNorm | nn.Embedding):
            with hooked([module], lambda module, inputs, result: 1.5 * result + 0.1 * result.square()):
                assert differs(seeded_logits(model), before) != any(name.endswith(ending) for ending in unread), name


class LoRA(nn.Module):
    """Hu et al. 2022: W x + b + B A x, around a layer whose own weights stay."""

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
    forward = base.forward
    base.forward = lambda states: 2 * forward(states)
    return base


def normalised(base: nn.Linear) -> nn.Module:
    """A layer with weight normalisation: each call computes its weight from other parameters."""
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
    assert differs(seeded_logits(model), before)


@pytest.mark.parametrize("case", [Case(cell="lstm"), transformer()], ids=str)
def test_storing_by_columns_keeps_replaced_layers(case):
    model, _ = make_seeded(case)
    for module in modules_of(model.decoder, Linear):
        normalised(module)
    for rnn in modules_of(model.decoder, nn.RNNBase):
        rnn.__class__ = Clipped
    before, weights = seeded_logits(model), {name: id(each) for name, each in model.decoder.named_parameters()}
    models.store_by_columns(model)
    near(seeded_logits(model), before)
    assert {name: id(each) for name, each in model.decoder.named_parameters()} == weights


@pytest.mark.parametrize("case", [transformer(), transformer("rotary", "post")], ids=str)
def test_cross_attention_with_lora_gives_the_same_keys_with_gradients_and_without(case):
    model = make_model(case)
    memory = model.encoder(make_sources(*LENGTHS))
    for cross in modules_of(model.decoder, MultiHead):
        cross.key = LoRA(cross.key)
    prepared = []
    for enabled in (False, True):
        with torch.set_grad_enabled(enabled):
            prepared.append(model.decoder.prepare(memory).layers)
    for without_grad, with_grad in zip(*prepared, strict=True):
        near(with_grad.keys, without_grad.keys)
        with_grad.keys.sum().backward(retain_graph=True)
    for cross in modules_of(model.decoder, MultiHead):
        assert cross.key.up.weight.grad.any()


class OwnDot(Dot):
    """A score that inherits everything but its forward."""

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
    for scope in modules_of(model.decoder, Scope):
        scope.score.__class__ = OwnDot if isinstance(scope.score, Dot) else OwnAdditive
    assert differs(seeded_logits(model), before)


class Clipped(nn.LSTM):
    """An LSTM with a forward of its own."""

    def forward(self, *inputs: object) -> object:
        outputs, last = super().forward(*inputs)
        return outputs.clamp(-0.1, 0.1), last


@pytest.mark.parametrize("order", ORDERS)
def test_another_kind_of_recurrent_layer_is_called_everywhere(order):
    model, before = make_seeded(Case(order, "lstm", 2))
    for rnn in modules_of(model.decoder, nn.LSTM):
        rnn.__class__ = Clipped
    assert differs(seeded_logits(model), before)


@pytest.mark.parametrize("kind", SETUP_KINDS)
def test_under_hooks_greedy_search_equals_greedy_teacher_forcing(kind):
    setup = make_setup(kind)
    changes = {
        Scope: lambda module, inputs, result: result._replace(context=-result.context),
        nn.RNNBase: lambda module, inputs, result: (1.5 * result[0], result[1]),
        nn.Linear: lambda module, inputs, result: 1.3 * result,
    }
    for module_class, change in changes.items():
        with hooked(modules_of(setup.model.decoder, module_class), change), torch.no_grad():
            results = beam(setup.model.decoder, setup.memory, width=1, limits=LIMITS)
            for (best,), memory, limit in zip(results, setup.alone, LIMITS, strict=True):
                assert (list(best.tokens), best.finished) == greedy(setup.model, memory, limit)


@pytest.mark.takes("plain_transformer", "plain_recurrent")
@pytest.mark.parametrize("kind", ATTENDING_KINDS)
def test_recording_keeps_the_fast_path(kind):
    """It changes no bit, with LSTMs too."""
    model = make_setup(kind).model
    if kind not in ("transformer_pre", "transformer_post"):
        model = make_model(Case(kind, "lstm", 2))
    memory = model.encoder(make_sources(*LENGTHS))
    with torch.no_grad():
        expected = model.decoder.prepare(memory)
        with record(model):
            prepared = model.decoder.prepare(memory)
            assert expected.plain is not None
            assert prepared.plain is not None
            step = model.decoder.step(TOKENS[:, :1], model.decoder.start(prepared), prepared)
    with torch.no_grad():
        same(step.logits, model.decoder.step(TOKENS[:, :1], model.decoder.start(expected), expected).logits)


@pytest.mark.parametrize("cell", CELLS)
def test_hooked_recurrent_layers_run_in_training_mode_at_each_step(cell):
    model = make_model(Case(cell=cell, layers=2), dropout=0.5, dtype=torch.float32).train()
    modes: list[bool] = []
    with hooked(modules_of(model.decoder, nn.RNNBase), lambda module, inputs, result: modes.append(module.training)):
        model.decoder(TOKENS, model.encoder(make_sources(*LENGTHS))).logits.sum().backward()
    assert modes == [True] * TOKENS.shape[1]
    assert all(each.grad is not None for each in model.decoder.recurrence.parameters())


@pytest.mark.parametrize("score", ["concat", "linear_concat", "location"])
def test_a_scope_with_a_past_refuses_a_hooked_layer_of_query_and_key(score):
    model = make_model(Case(variant=Variant(score, scope="coverage")))
    memory = model.encoder(make_sources(*LENGTHS))
    inner = model.decoder.attention.score
    layer = inner.query if isinstance(inner, Location) else inner.weight
    with (
        hooked([layer], lambda *inputs: None),
        pytest.raises(RegardError, match="was hooked or replaced and is called with query and key together"),
    ):
        model.decoder(TOKENS, memory)


def test_a_global_hook_acts_everywhere():
    model, before = make_seeded(transformer())
    linears = set(modules_of(model.decoder, nn.Linear))
    handle = nn.modules.module.register_module_forward_hook(
        lambda module, inputs, result: 1.5 * result if module in linears else None
    )
    try:
        assert differs(seeded_logits(model), before)
    finally:
        handle.remove()
