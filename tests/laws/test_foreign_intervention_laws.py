"""Interventions in models of other packages: they are the definition, and leave all else as it is."""

import copy
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from small import near, same
from torch import Tensor, nn
from torch.nn import functional

import regard
from regard import Force, Permute, Silence, Uniform
from regard.attention.foreign import DISPATCHES
from regard.attention.intervene import WeightIntervention
from regard.attention.record import record
from regard.attention.scopes import Weights
from regard.errors import RecipeError

BATCH, QUERY, KEY, DIM, HEADS = 3, 5, 7, 12, 2
LENGTHS = (7, 4, 2)
PADDING = torch.arange(KEY) >= torch.tensor(LENGTHS).unsqueeze(-1)
STATES = torch.randn(BATCH, KEY, DIM, generator=torch.Generator().manual_seed(1))
CHANGES = (Silence(head=2), Silence(), Uniform(), Permute(seed=3), Force(3, 2, head=1))


@pytest.fixture(autouse=True)
def prototypes() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The PyTorch API of nested tensors is in prototype stage")
        yield


def filled(module: nn.Module) -> nn.Module:
    torch.manual_seed(1)
    for parameter in module.parameters():
        nn.init.normal_(parameter, std=0.4)
    return module.eval()


def split(states: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return functional.linear(states, weight, bias).unflatten(-1, (HEADS, -1)).transpose(1, 2)


def by_hand(
    module: nn.MultiheadAttention, inputs: tuple[Tensor, ...], hidden: Tensor | None, change: WeightIntervention | None
) -> tuple[Tensor, Tensor]:
    """Output and weights of the definition in float64."""
    module, inputs = copy.deepcopy(module).double(), tuple(states.double() for states in inputs)
    query, keys, values = (
        split(states, *parts)
        for states, *parts in zip(inputs, module.in_proj_weight.chunk(3), module.in_proj_bias.chunk(3), strict=True)
    )
    scores = query @ keys.transpose(-2, -1) / query.shape[-1] ** 0.5
    visible = torch.ones_like(scores, dtype=torch.bool) if hidden is None else ~hidden[:, None, None].expand_as(scores)
    weights = scores.masked_fill(~visible, -torch.inf).softmax(-1)
    if change is not None:
        weights = change.change(Weights(weights, visible, visible, 0), True)
    return module.out_proj((weights @ values).transpose(1, 2).flatten(2)), weights


@pytest.mark.parametrize("change", CHANGES, ids=str)
@pytest.mark.parametrize("grad", [True, False])
@pytest.mark.parametrize("need_weights", [True, False])
@pytest.mark.parametrize("hidden", [None, PADDING], ids=["whole", "padded"])
def test_multi_head_attention_computes_with_the_changed_weights(hidden, need_weights, grad, change):
    module = filled(nn.MultiheadAttention(DIM, HEADS, batch_first=True))
    given: dict[str, Any] = {"key_padding_mask": hidden, "need_weights": need_weights}
    for inputs in ((STATES,) * 3, (STATES[:, :QUERY], STATES, STATES + 1)):
        with torch.set_grad_enabled(grad):
            before = module(*inputs, **given)[0]
            with record(module) as recording, regard.intervene(module, change):
                output, weights = module(*inputs, **given)
            same(module(*inputs, **given)[0], before)
        expected, own = by_hand(module, inputs, hidden, change)
        near(output.double(), expected, 1e-5)
        near(recording.weights[""].double(), own, 1e-6)
        assert (weights is None) == (not need_weights)
        if need_weights:
            near(weights.double(), own.mean(1), 1e-6)
        if isinstance(change, Force):  # the other rows are as they were, bit for bit
            rest = [row for row in range(inputs[0].shape[1]) if row != 2]
            same(output[:, rest], before[:, rest])
            same(recording.weights[""][:, 0, 2], torch.eye(KEY)[1].expand(BATCH, -1))


def test_a_silenced_head_takes_its_part_of_the_sum_away():
    module = filled(nn.MultiheadAttention(DIM, HEADS, batch_first=True))
    weights = by_hand(module, (STATES,) * 3, None, None)[1]
    double = copy.deepcopy(module).double()
    values = split(STATES.double(), double.in_proj_weight[2 * DIM :], double.in_proj_bias[2 * DIM :])
    part = (weights[:, 1] @ values[:, 1]) @ double.out_proj.weight[:, DIM // HEADS :].T
    with regard.intervene(module, Silence(head=2)):
        silenced = module(STATES, STATES, STATES)[0]
    near(silenced.double(), module(STATES, STATES, STATES)[0].double() - part, 1e-5)


SETTINGS: dict[str, dict[str, Any]] = {
    "time first": {"batch_first": False},
    "no bias": {"bias": False},
    "both keys": {"add_bias_kv": True, "add_zero_attn": True},
    "other widths": {"kdim": 11, "vdim": 13},
}


@pytest.mark.parametrize("single", [False, True])
@pytest.mark.parametrize("setting", SETTINGS)
def test_the_output_of_almost_the_same_weights_is_almost_the_same(setting, single):
    """The output is computed again from weights that are almost the module's own: it stays, up to rounding."""
    settings = {"batch_first": True, **SETTINGS[setting]}
    module = filled(nn.MultiheadAttention(DIM, HEADS, **settings))
    widths = [DIM, settings.get("kdim", DIM), settings.get("vdim", DIM)]
    inputs = [torch.randn(BATCH, KEY, width) for width in widths]
    inputs = [states[0] for states in inputs] if single else inputs

    class Close(Silence):
        """Weights that differ by rounding, so that every row is computed from them."""

        def replaced(self, call: Weights) -> Tensor:
            return call.weights + 1e-7

    before, weights = module(*inputs, average_attn_weights=False)
    with regard.intervene(module, Close()):
        output, after = module(*inputs, average_attn_weights=False)
    assert output.shape == before.shape
    near(output, before, 1e-4)
    near(after, weights, 1e-6)


def encoder(norm_first: bool) -> nn.TransformerEncoder:
    layer = nn.TransformerEncoderLayer(DIM, HEADS, 17, batch_first=True, norm_first=norm_first, activation="gelu")
    return filled(nn.TransformerEncoder(layer, 2, enable_nested_tensor=not norm_first))


@pytest.mark.parametrize("norm_first", [True, False])
@pytest.mark.parametrize("hidden", [None, PADDING], ids=["whole", "padded"])
def test_one_layer_of_an_encoder_is_changed_and_the_others_keep_their_bits_and_their_fast_path(hidden, norm_first):
    model = encoder(norm_first)
    real = torch.ones(BATCH, KEY, dtype=torch.bool) if hidden is None else ~hidden

    def run(*changes: WeightIntervention) -> tuple[Tensor, dict[str, Tensor]]:
        with regard.intervene(model, *changes), record(model) as recording:
            return model(STATES, src_key_padding_mask=hidden), recording.weights

    first, second = "layers.0.self_attn", "layers.1.self_attn"
    for change in CHANGES:
        place = type(change)(**vars(change) | {"layer": 2})
        with torch.no_grad():
            before, weights = run()
            output, fast = run(place)
            same(fast[first], weights[first])  # the changed layer read the same states
            same(model(STATES, src_key_padding_mask=hidden), before)
        slow_output, slow = run(place)  # with gradients, torch takes no fast path
        near(output[real], slow_output[real], 1e-5)
        near(fast[second].transpose(1, 2)[real], slow[second].transpose(1, 2)[real], 1e-5)
        assert not torch.allclose(output[real], before[real], atol=1e-3)
        if isinstance(change, Force):
            same(output[:, 3:], before[:, 3:])


def test_wrong_places_get_a_sentence_and_nothing_is_left_behind():
    originals = [getattr(dispatch.home, dispatch.name) for dispatch in DISPATCHES]
    model = encoder(True)
    for change, message in {
        "silence layer=3": "layer 3 is not there; encoder.self_attention has layers 1 to 2",
        "silence head=3": r"head 3 is not there; layers.0.self_attn has heads 1 to 2",
        "silence decoder.cross_attention": "is not in this model, which has encoder.self_attention$",
        "force row=1 column=9": "there are only 7 columns",
        "erase 2": "regard did not build this model, and can change its attention weights alone",
    }.items():
        with torch.no_grad(), pytest.raises(RecipeError, match=message), regard.intervene(model, change):
            model(STATES)
    with pytest.raises(RecipeError, match=r"not for training"), regard.intervene(model.train(), "silence"):
        model(STATES)
    with pytest.raises(RecipeError, match=r"no attention with keys.* classes with Attention in their name can"):
        regard.intervene(nn.Linear(2, 2), "silence").__enter__()
    with pytest.raises(RecipeError, match=r"^intervene takes a model"):
        regard.intervene("model", "silence").__enter__()
    assert [getattr(dispatch.home, dispatch.name) for dispatch in DISPATCHES] == originals


def test_of_nested_blocks_the_inner_one_changes_weights_first():
    module = filled(nn.MultiheadAttention(DIM, HEADS, batch_first=True))
    for inner, outer, expected in ((Silence(), Force(2, 3), 1.0), (Force(2, 3), Silence(), 0.0)):
        with record(module) as recording, regard.intervene(module, outer), regard.intervene(module, inner):
            module(STATES, STATES, STATES)
        assert recording.weights[""].sum() == expected * BATCH * HEADS
