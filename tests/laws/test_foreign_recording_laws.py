"""Recording of torch's own attention: it changes no bit, leaves fast paths on, and gives the exact weights."""

import copy
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from small import gradients, near, same
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from regard.attention.foreign import DISPATCHES
from regard.attention.record import record
from regard.errors import RecipeError

BATCH, QUERY, KEY, DIM, HEADS = 3, 5, 7, 12, 2
LENGTHS = (7, 4, 2)
FAST = {"_native_multi_head_attention", "_transformer_encoder_layer_fwd"}  # the fast paths of inference


def padding(length: int = KEY) -> Tensor:
    """True at the padding of a batch."""
    return torch.arange(length) >= torch.tensor(LENGTHS).clamp(max=length).unsqueeze(-1)


def later(length: int) -> Tensor:
    """True at the keys after each query."""
    return torch.ones(length, length, dtype=torch.bool).triu(1)


def additive(mask: Tensor) -> Tensor:
    """The mask as numbers, with a bias where a key is visible."""
    return torch.randn(mask.shape).masked_fill(mask, -torch.inf)


@pytest.fixture(autouse=True)
def prototypes() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The PyTorch API of nested tensors is in prototype stage")
        yield


@contextmanager
def counting() -> Iterator[dict[str, int]]:
    """Count the calls of torch's attention functions."""
    counts = {dispatch.name: 0 for dispatch in DISPATCHES}
    originals = [getattr(dispatch.home, dispatch.name) for dispatch in DISPATCHES]

    def counted(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        def function(*arguments: Any, **named: Any) -> Any:
            counts[name] += 1
            return original(*arguments, **named)

        return function

    for dispatch, original in zip(DISPATCHES, originals, strict=True):
        setattr(dispatch.home, dispatch.name, counted(dispatch.name, original))
    try:
        yield counts
    finally:
        for dispatch, original in zip(DISPATCHES, originals, strict=True):
            setattr(dispatch.home, dispatch.name, original)


def in_float64(values: Any) -> Any:
    return values.double() if isinstance(values, Tensor) and values.is_floating_point() else values


def definition(model: nn.Module, run: Callable[[nn.Module, Callable[[Any], Any]], Any]) -> dict[str, Tensor]:
    """The weights of all `nn.MultiheadAttention`, computed by torch itself in float64, without fast paths."""
    model = copy.deepcopy(model).double()
    names = {module: name for name, module in model.named_modules()}
    weights, original = {}, nn.MultiheadAttention.forward

    def forward(self: nn.MultiheadAttention, *inputs: Any, **named: Any) -> Any:
        named |= {"need_weights": True, "average_attn_weights": False}
        output, own = original(self, *inputs, **named)
        weights[names[self]] = own.detach()
        return output, own

    torch.backends.mha.set_fastpath_enabled(False)
    nn.MultiheadAttention.forward = forward
    try:
        run(model, in_float64)
    finally:
        nn.MultiheadAttention.forward = original
        torch.backends.mha.set_fastpath_enabled(True)
    return weights


def as_given(value: Any) -> Any:
    return value


def check(
    model: nn.Module,
    run: Callable[[nn.Module, Callable[[Any], Any]], Tensor],
    fast: str | None = None,
    *,
    nested: bool = False,
) -> None:
    """Assert that recording changes no bit, leaves the paths as they are, and gives the weights of the definition.

    If the states are `nested`, an encoder does not compute rows of padding.
    """
    torch.manual_seed(3)
    with counting() as plain_paths:
        expected = run(model, as_given)
    assert (plain_paths[fast] > 0) if fast else not any(plain_paths[name] for name in FAST)
    names = [name for name, module in model.named_modules() if isinstance(module, nn.MultiheadAttention)]
    for settings in ({}, {"heads": [2], "rows": [0, 3]}, {"layers": names[:1]}):
        torch.manual_seed(3)
        with counting() as paths, record(model, **settings) as recording:
            actual = run(model, as_given)
        torch.testing.assert_close(actual, expected, rtol=0, atol=0, equal_nan=True)
        assert paths == plain_paths
        assert list(recording.weights) == (names[:1] if "layers" in settings else names)
    if model.training:
        return  # the definition in float64 would draw another dropout mask
    with record(model) as whole, record(model, heads=[2], rows=[0, 3]) as part:
        run(model, as_given)
    for name, wanted in definition(model, run).items():
        weights = whole.weights[name]
        wanted = (wanted if wanted.ndim == 4 else wanted.unsqueeze(0)).nan_to_num(0.0).float()
        if nested and not name.startswith("decoder"):
            wanted = wanted * ~padding()[:, None, :, None]
        assert weights.dtype == torch.float32
        near(weights, wanted, 1e-5)
        near(part.weights[name], weights[:, [1]][..., [0, 3], :], 1e-6)


def attention(**settings: Any) -> nn.MultiheadAttention:
    torch.manual_seed(1)
    module = nn.MultiheadAttention(DIM, settings.pop("heads", HEADS), **{"batch_first": True, **settings}).eval()
    for parameter in module.parameters():
        nn.init.normal_(parameter, std=0.4)
    return module


SELF = torch.randn(BATCH, KEY, DIM, generator=torch.Generator().manual_seed(1))
MASKS: dict[str, dict[str, Tensor]] = {
    "no mask": {},
    "padding": {"key_padding_mask": padding()},
    "causal": {"attn_mask": later(KEY)},
    "both": {"attn_mask": later(KEY), "key_padding_mask": padding()},
    "of each head": {"attn_mask": later(KEY).expand(BATCH * HEADS, -1, -1)},
    "numbers": {"attn_mask": additive(later(KEY))},
    "numbers and padding": {"attn_mask": additive(later(KEY)), "key_padding_mask": additive(padding())},
}


@pytest.mark.parametrize("need_weights", [True, False])
@pytest.mark.parametrize("mask", MASKS)
def test_self_attention(mask, need_weights):
    def run(module: nn.Module, cast: Callable[[Any], Any]) -> Tensor:
        masks = {key: cast(value) for key, value in MASKS[mask].items()}
        states = cast(SELF)
        return module(states, states, states, need_weights=need_weights, **masks)[0]

    with torch.no_grad():
        check(attention(), run, None if "numbers" in mask else "_native_multi_head_attention")
        if mask != "of each head":
            check(attention(heads=3), run)  # an odd number of heads has no fast path
    check(attention(), run)  # gradients are enabled


SETTINGS: dict[str, dict[str, Any]] = {
    "plain": {},
    "time first": {"batch_first": False},
    "no bias": {"bias": False},
    "bias of keys": {"add_bias_kv": True},
    "a zero key": {"add_zero_attn": True},
    "both keys": {"add_bias_kv": True, "add_zero_attn": True},
    "other widths": {"kdim": 11, "vdim": 13},
    "other widths without bias": {"kdim": 11, "vdim": 13, "bias": False},
}


@pytest.mark.parametrize("hidden", [False, True])
@pytest.mark.parametrize("single", [False, True])
@pytest.mark.parametrize("setting", SETTINGS)
def test_cross_attention(setting, single, hidden):
    torch.manual_seed(2)
    settings = SETTINGS[setting]
    widths = [DIM, settings.get("kdim", DIM), settings.get("vdim", DIM)]
    inputs = [torch.randn(BATCH, length, width) for length, width in zip((QUERY, KEY, KEY), widths, strict=True)]
    mask = padding() if hidden else None
    if single:
        inputs, mask = [states[1] for states in inputs], mask[1] if hidden else None
    elif not settings.get("batch_first", True):
        inputs = [states.transpose(0, 1) for states in inputs]

    def run(module: nn.Module, cast: Callable[[Any], Any]) -> Tensor:
        return module(*map(cast, inputs), key_padding_mask=mask)[0]

    check(attention(**settings), run)


def encoder(layers: int = 2, **settings: Any) -> nn.TransformerEncoder:
    torch.manual_seed(1)
    layer = nn.TransformerEncoderLayer(DIM, HEADS, 17, batch_first=True, dropout=0.3, **settings)
    model = nn.TransformerEncoder(layer, layers, enable_nested_tensor=not settings.get("norm_first", False))
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.4)
    return model.eval()


@pytest.mark.parametrize("norm_first", [True, False])
@pytest.mark.parametrize("mask", ["no mask", "padding", "causal", "both"])
def test_an_encoder_keeps_its_fast_path(mask, norm_first):
    names = {"key_padding_mask": "src_key_padding_mask", "attn_mask": "mask"}
    masks = {names[key]: value for key, value in MASKS[mask].items()}

    def run(module: nn.Module, cast: Callable[[Any], Any]) -> Tensor:
        return module(cast(SELF), **masks)

    model = encoder(norm_first=norm_first)
    for context in (torch.no_grad, torch.inference_mode):
        with context():
            check(model, run, "_transformer_encoder_layer_fwd", nested=mask == "padding" and not norm_first)
            with record(model) as recording:
                run(model, as_given)
        assert not any(weights.is_inference() for weights in recording.weights.values())
    check(model, run)
    check(model.train(), run)


def test_rows_of_padding_that_a_nested_tensor_does_not_have_are_zero():
    model = encoder()
    with torch.no_grad(), record(model) as recording:
        model(SELF[:, :6], src_key_padding_mask=padding()[:, :6])
    assert list(recording.sites.values()) == [("encoder.self_attention", 1), ("encoder.self_attention", 2)]
    for weights in recording.weights.values():
        for row, length in zip(weights, LENGTHS, strict=True):
            near(row[:, :length].sum(-1), torch.ones(HEADS, min(length, 6)), 1e-6)
            assert not row[:, length:].any()
            assert not row[..., length:].any()


def test_a_whole_transformer():
    torch.manual_seed(1)
    model = nn.Transformer(DIM, HEADS, 2, 2, 17, dropout=0.3, batch_first=True).eval()
    target = torch.randn(BATCH, QUERY, DIM)
    mask = nn.Transformer.generate_square_subsequent_mask(QUERY)

    def run(module: nn.Module, cast: Callable[[Any], Any]) -> Tensor:
        source_mask = {"src_key_padding_mask": padding(), "memory_key_padding_mask": padding()}
        return module(cast(SELF), cast(target), tgt_mask=cast(mask), tgt_is_causal=True, **source_mask)

    check(model, run)
    with torch.no_grad():
        check(model, run, "_transformer_encoder_layer_fwd", nested=True)
    check(model.train(), run)
    with record(model) as recording:
        run(model, as_given)
    assert recording.maps().sites == ("decoder.cross_attention", "decoder.self_attention", "encoder.self_attention")
    attention_map = recording.maps(1).pick("decoder.self_attention", layer=2, head=2)
    same(attention_map.weights, recording.weights["decoder.layers.1.self_attn"][1, 1])
    same(attention_map.weights, attention_map.weights.tril())


def test_gradients_are_the_same_and_weights_are_detached():
    model = encoder().train()

    def run() -> tuple[Tensor, dict[str, Tensor | None]]:
        torch.manual_seed(7)
        model.zero_grad()
        output = model(SELF, src_key_padding_mask=padding())
        output.logsumexp(-1).sum().backward()
        return output.detach(), gradients(model)

    output, expected = run()
    for settings in ({}, {"rows": slice(2, 4)}, {"layers": ["layers.1.self_attn"], "heads": [1]}):
        with record(model, **settings) as recording:
            again, actual = run()
        same(again, output)
        for name in expected:
            same(actual[name], expected[name])
        assert not any(weights.requires_grad for weights in recording.weights.values())


@pytest.mark.parametrize("reentrant", [True, False])
def test_what_a_gradient_checkpoint_computes_again_is_not_recorded(reentrant):
    model = attention().train()

    def run(states: Tensor) -> Tensor:
        output: Tensor = model(states, states, states)[0]
        return output.square()  # saves its input, so that the attention is computed again to its end

    results = []
    for repeats in (False, True):
        states = SELF.clone().requires_grad_()
        with record(model) as recording:
            output = checkpoint(run, states, use_reentrant=reentrant) if repeats else run(states)
            output.sum().backward()
        assert recording.runs == {"": 1}
        results.append((recording.weights[""], states.grad))
    for plain, repeated in zip(*results, strict=True):
        same(repeated, plain)
    with record(model) as recording:  # outside of a backward pass, calls of a model that was checkpointed are recorded
        run(SELF)
    same(recording.weights[""], results[0][0])


@pytest.mark.parametrize("fast", [True, False])
@pytest.mark.parametrize("need_weights", [True, False])
def test_rows_without_a_visible_key_are_zero_whatever_the_module_gives(need_weights, fast):
    """torch gives NaN there, but for scaled_dot_product_attention, which gives a context of zeros."""
    hidden = padding()
    hidden[1] = True
    module = attention()
    with torch.set_grad_enabled(not fast), record(module) as recording:
        output, _ = module(SELF, SELF, SELF, key_padding_mask=hidden, need_weights=need_weights)
    assert output[1].isnan().any() == (fast or need_weights)
    assert recording.weights[""].isfinite().all()
    assert not recording.weights[""][1].any()
    near(recording.weights[""][0].sum(-1), torch.ones(HEADS, KEY), 1e-6)


class Own(nn.Module):
    """A module that calls torch's function itself: grouped heads, a scale and a mask of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = 0.7

    def forward(self, query: Tensor, keys: Tensor, mask: Tensor | None = None, causal: bool = False) -> Tensor:
        grouped = {"enable_gqa": True} if query.ndim > 3 and query.shape[1] != keys.shape[1] else {}
        return functional.scaled_dot_product_attention(
            query, keys, keys, mask, is_causal=causal, scale=self.scale, **grouped
        )


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("heads", [(), (6, 2), (4, 4)])
@pytest.mark.parametrize("causal", [False, True])
def test_a_module_that_calls_the_function_itself(causal, heads, dtype):
    torch.manual_seed(4)
    query, keys = (torch.randn(BATCH, *heads[part : part + 1], size, 8) for part, size in enumerate((QUERY, KEY)))
    query, keys = query.to(dtype), keys.to(dtype)
    mask = None if causal else ~padding()[:, None] if not heads else ~padding()[:, None, None]
    model = nn.Sequential(Own())
    expected = model[0](query, keys, mask, causal)
    with record(model) as recording, record(model, rows=[4, 1]) as part:
        same(model[0](query, keys, mask, causal), expected)
    visible = ~torch.ones(QUERY, KEY, dtype=torch.bool).triu(1) if causal else mask
    wide = keys.repeat_interleave(heads[0] // heads[1], 1) if heads else keys
    scores = 0.7 * query.double() @ wide.double().transpose(-2, -1)
    wanted = scores.masked_fill(~visible, -torch.inf).softmax(-1)
    assert recording.weights["0"].dtype == torch.promote_types(dtype, torch.float32)
    near(recording.weights["0"].double(), wanted, 1e-5)
    near(part.weights["0"].double(), wanted[..., [1, 4], :], 1e-5)
    assert part.row_numbers("0") == (1, 4)
    assert next(iter(recording.sites.values())) == ("*", 1)
    if heads == (6, 2):
        with record(model, heads=[2, 5]) as some:
            model[0](query, keys, mask, causal)
        near(some.weights["0"].double(), wanted[:, [1, 4]], 1e-5)


def test_only_modules_of_the_model_are_recorded_also_in_other_threads():
    model, other = attention(), attention()
    with record(model) as recording:
        other(SELF, SELF, SELF)
        functional.scaled_dot_product_attention(SELF, SELF, SELF)
        assert not recording.calls
        with ThreadPoolExecutor(1) as pool:
            pool.submit(model, SELF, SELF, SELF).result()
    assert len(recording.calls[""]) == 1
    model(SELF, SELF, SELF)
    assert len(recording.calls[""]) == 1


def test_torch_is_as_before_after_the_block_even_after_an_error():
    before = [getattr(dispatch.home, dispatch.name) for dispatch in DISPATCHES]
    model = attention()
    with pytest.raises(RuntimeError, match="on purpose"), record(model), record(model):
        raise RuntimeError("on purpose")
    assert [getattr(dispatch.home, dispatch.name) for dispatch in DISPATCHES] == before
    assert not any(module._forward_hooks for module in model.modules())


def test_a_compiled_model_is_refused_with_a_sentence():
    model = nn.Sequential(encoder())
    compiled = torch.compile(model, backend="eager")
    with pytest.raises(RecipeError, match=r"^OptimizedModule is compiled by torch.compile, and attention cannot be"):
        record(compiled).__enter__()
    model[0].layers[1].compile(backend="eager")
    with pytest.raises(RecipeError, match=r"^0.layers.1 \(TransformerEncoderLayer\) is compiled by torch.compile"):
        record(model).__enter__()


class Twice(nn.Module):
    """Calls the same attention twice in a pass."""

    def __init__(self) -> None:
        super().__init__()
        self.first = self.second = attention()

    def forward(self, states: Tensor) -> Tensor:
        for module in (self.first, self.second):
            states = module(states, states, states)[0]
        return states


def test_calls_that_are_no_steps_of_one_search_are_not_joined():
    model = encoder()
    for calls in ((Twice(), 1), (attention(), 2), (model, 2)):
        module, count = calls
        with torch.no_grad(), record(module) as recording:
            for _ in range(count):
                module(*[SELF] * (3 if isinstance(module, nn.MultiheadAttention) else 1))
        with pytest.raises(RecipeError, match=r"has 14 rows and 7 columns, since it was called 2 times in the block"):
            recording.maps()
    with torch.no_grad(), record(model) as recording:
        model(SELF)
        model(SELF[:, :5])
    with pytest.raises(RecipeError, match=r"ran on batches of several sizes|has 12 rows and 5 columns"):
        recording.maps()


def test_layers_without_attention_are_refused_or_named():
    model = encoder()
    for layers in ([], ["layers.0"]):
        with pytest.raises(RecipeError, match=r"weights: layers.0.self_attn, layers.1.self_attn$"):
            record(model, layers=layers).__enter__()
    own = nn.Sequential(Own(), nn.Sequential(Own()), nn.Identity())
    with record(own, layers=["0"]) as recording:
        own[1][0](SELF, SELF)
    with pytest.raises(RecipeError, match=r"^there are no maps; the modules in layers= ran no attention; 1.0 did$"):
        recording.maps()


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_a_function_that_is_compiled_in_the_block_gives_the_same_result_and_no_weights(backend):
    model = attention()

    @torch.compile(backend=backend, fullgraph=True)
    def run(states: Tensor) -> Tensor:
        output: Tensor = model(states, states, states, need_weights=False)[0]
        return output

    expected = model(SELF, SELF, SELF, need_weights=False)[0]
    with record(model) as recording:
        near(run(SELF), expected)
    near(run(SELF), expected)
    with pytest.raises(RecipeError, match=r"run the model inside the block.*if not compiled"):
        recording.map("")
    torch._dynamo.reset()


def test_a_first_page_imports_only_what_it_needs(tmp_path):
    """No part of regard that builds, trains or loads models, and no package that draws or reads anything."""
    script = f"""
import sys, torch, regard
before = set(sys.modules)
attention = torch.nn.MultiheadAttention(4, 2)
states = torch.ones(3, 4)
with torch.no_grad(), regard.record(attention) as recording:
    attention(states, states, states)
recording.maps().save({str(tmp_path / "maps.html")!r})
print(*set(sys.modules) - before)
"""
    output = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    modules = set(output.split())
    packages = {name.partition(".")[0] for name in modules} - sys.stdlib_module_names
    assert packages <= {"regard", "jaxtyping", "numpy", "rich"}
    assert "rich.console" not in modules  # of `rich`, only the widths of letters
    parts = {".".join(name.split(".")[:2]) for name in modules if name.startswith("regard.")}
    needed = {"attention", "errors", "kernels", "maps", "plugins", "recipe", "show", "specials", "storage", "types"}
    assert parts <= {f"regard.{part}" for part in (*needed, "visible")}
