"""Attention of modules that regard did not build, seen at the functions of torch that compute it.

`torch.nn.MultiheadAttention`, `torch.nn.Transformer*`, the models of Hugging Face's transformers and most others end in
one of four functions of torch. In a block of `watch` each of them is replaced by a wrapper, which calls the function
with the same arguments, returns its result, and then hands the call to the watchers. The weights are computed from the
same queries, keys and masks, beside the result. In a block of `change_weights` the wrapper does the same, but of the
chosen modules, those rows of the result whose weights were changed are computed from the changed weights.

No module gets a hook: a hook switches off the fast path of `nn.TransformerEncoderLayer`, and so would a
`TorchFunctionMode`. The module that a call belongs to is the innermost one whose `forward` is running: it is found in
the frames of the Python stack.
"""

import functools
import inspect
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Any, NamedTuple, TypeVar

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn import functional

from regard.attention.gates import ContextGate, SqueezeExcite
from regard.attention.lags import LagMixture
from regard.attention.masks import causal as causal_mask
from regard.attention.masks import from_lengths
from regard.attention.normalizers import Pairs, softmax
from regard.attention.scopes import Scope, Weights
from regard.errors import RecipeError
from regard.kernels.choose import is_transformed, without_autocast

Entry = TypeVar("Entry")

OWN = ("regard", "torch")  # packages whose modules are known: they have hooks, or no attention
WITHOUT_KEYS = SqueezeExcite | ContextGate | LagMixture  # modules of regard whose weights are not those of keys
HOOKED = Scope | WITHOUT_KEYS  # modules that have a hook in a recording, also as subclasses of other packages


@dataclass(frozen=True)
class DotProduct:
    """softmax(scale query . keys + mask), the call of `scaled_dot_product_attention`; without dropout."""

    query: Float[Tensor, "*batch query dim"]
    keys: Float[Tensor, "*keys key dim"]
    values: Float[Tensor, "*keys key dim2"]
    mask: Tensor | None  # boolean, True = may be attended; or a number that is added to the score
    causal: bool
    scale: float

    @property
    def queries(self) -> int:
        """The number of rows."""
        return self.query.shape[-2]

    @property
    def heads(self) -> int | None:
        """The size of the axis before that of the rows, if there is a further one for the batch."""
        return self.query.shape[-3] if self.query.ndim > 3 else None

    def weights(self, heads: Sequence[int] | None, rows: Sequence[int] | None) -> Pairs:
        """The exact weights of heads and rows, given by index, or of all; 0 in a row in which every key is masked."""
        return self.weigh(heads, rows)[0]

    def context(self, weights: Pairs) -> Float[Tensor, "*batch query dim2"]:
        """The sums of the values by these weights, of all heads."""
        values = self.values
        if self.heads is not None and values.shape[-3] != self.heads:
            values = values.repeat_interleave(self.heads // values.shape[-3], -3)
        with without_autocast(values):
            return weights.to(values.dtype) @ values

    def weigh(self, heads: Sequence[int] | None, rows: Sequence[int] | None) -> tuple[Pairs, Tensor | None]:
        """The weights, and a mask of the keys that are visible; None if all are."""
        query, keys, mask = self.query, self.keys, self.mask
        if self.heads is not None:
            chosen = range(self.heads) if heads is None else heads
            shared = self.heads // keys.shape[-3]  # how many heads share the keys of a group
            query = _part(query, heads, -3)
            if heads is not None or shared > 1:
                keys = _part(keys, [head // shared for head in chosen], -3)
            mask = None if mask is None else _part(mask, heads, -3)
        query = _part(query, rows, -2)
        visible, bias = _visible_and_bias(None if mask is None else _part(mask, rows, -2))
        if self.causal:
            lower = _part(causal_mask(self.queries, keys.shape[-2], device=query.device), rows, -2)
            visible = lower if visible is None else visible & lower
        with without_autocast(query):
            precision = torch.promote_types(query.dtype, torch.float32)
            scores = (query.to(precision) * self.scale) @ keys.to(precision).transpose(-2, -1)
            scores = scores if bias is None else scores + bias
            return softmax(scores, visible), visible


@dataclass(frozen=True)
class Projection:
    """The query or the key projection of all heads: weight states + bias."""

    weight: Float[Tensor, "wide dim"]
    bias: Float[Tensor, " wide"] | None

    def __call__(self, states: Tensor, heads: int) -> Float[Tensor, "batch heads time part"]:
        """Project the states, and split the result into heads."""
        return functional.linear(states, self.weight, self.bias).unflatten(-1, (heads, -1)).transpose(-2, -3)


@dataclass(frozen=True)
class Projected:
    """Multi-head attention before its projections, the call of `nn.MultiheadAttention`'s functions."""

    query: Float[Tensor, "batch query dim"]
    states: Float[Tensor, "batch key dim2"]  # the keys, not projected yet
    value_states: Float[Tensor, "batch key dim3"]
    query_projection: Projection
    key_projection: Projection
    value_projection: Projection
    out: tuple[Tensor, Tensor | None]  # weight and bias of the projection of the output
    heads: int
    mask: Tensor | None  # as in `DotProduct`, with an axis for each of (batch, heads, query, key)
    causal: bool = False  # instead of a mask
    more_keys: Sequence[Tensor] = ()  # (batch, heads, 1, part): bias_k, and the zeros of add_zero_attn
    more_values: Sequence[Tensor] = ()  # the same for bias_v
    real: Tensor | None = None  # (batch, query), False for rows that the module does not compute

    @property
    def queries(self) -> int:
        """The number of rows."""
        return self.query.shape[-2]

    def weights(self, heads: Sequence[int] | None, rows: Sequence[int] | None) -> Pairs:
        """Project these rows and all keys again, and compute the weights from them."""
        return self.weigh(heads, rows)[0]

    def context(self, weights: Pairs) -> Float[Tensor, "batch query dim"]:
        """The output of the module: sums of the projected values by these weights, of all heads, projected again."""
        values = torch.cat([self.value_projection(self.value_states, self.heads), *self.more_values], dim=-2)
        return functional.linear((weights.to(values.dtype) @ values).transpose(-2, -3).flatten(-2), *self.out)

    def weigh(self, heads: Sequence[int] | None, rows: Sequence[int] | None) -> tuple[Pairs, Tensor | None]:
        """The weights, and a mask of the keys that are visible; None if all are."""
        every_row = self.queries if rows is None else len(rows)
        query = self.query_projection(_part(self.query, rows, -2), self.heads)
        keys = torch.cat([self.key_projection(self.states, self.heads), *self.more_keys], dim=-2)
        mask = causal_mask(self.queries, keys.shape[-2], device=query.device) if self.causal else self.mask
        mask = None if mask is None else _part(mask, rows, -2)
        weights, visible = DotProduct(query, keys, keys, mask, False, query.shape[-1] ** -0.5).weigh(heads, None)
        if self.real is not None:
            weights = weights * _part(self.real, rows, -1).view(len(weights), 1, every_row, 1)
        return weights, visible


Original = DotProduct | Projected  # one call of an attention function, as the model makes it


@dataclass(frozen=True)
class Changed:
    """A call whose weights were changed."""

    call: Original
    after: Pairs

    @property
    def queries(self) -> int:
        """The number of rows."""
        return self.call.queries

    @property
    def heads(self) -> int | None:
        """The number of heads, as of the call."""
        return self.call.heads

    def weights(self, heads: Sequence[int] | None, rows: Sequence[int] | None) -> Pairs:
        """A copy of the changed weights of heads and rows, given by index, or of all."""
        chosen = _part(self.after.detach(), None if self.heads is None else heads, -3)
        return _part(chosen, rows, -2).clone()


Call = Original | Changed
Read = Callable[[Mapping[str, Any]], Original]


def _part(values: Tensor, indices: Sequence[int] | None, axis: int) -> Tensor:
    """Values at these indices of an axis; all if it has size 1 or is not there, since it is broadcast then."""
    if indices is None or values.ndim < -axis or values.shape[axis] == 1:
        return values
    return values.index_select(axis, torch.tensor(indices, dtype=torch.long, device=values.device))


def _visible_and_bias(mask: Tensor | None) -> tuple[Tensor | None, Tensor | None]:
    """Which keys may be attended, and what is added to their scores, from either kind of torch's masks.

    A number that is lower than half of the lowest one means that the key is masked: models write -inf, or the lowest
    finite number of a dtype, to which a bias may have been added.
    """
    if mask is None or mask.dtype == torch.bool:
        return mask, None
    visible = mask > torch.finfo(mask.dtype).min / 2
    return visible, mask.masked_fill(~visible, 0.0)


# ---- the four functions, and how their arguments are read


def _read_dot_product(given: Mapping[str, Any]) -> Original:
    query, scale = given["query"], given.get("scale")
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    mask, causal = given.get("attn_mask"), bool(given.get("is_causal"))
    return DotProduct(query, given["key"], given["value"], mask, causal, scale)


def _read_multi_head(given: Mapping[str, Any]) -> Original:
    """Arguments of `multi_head_attention_forward`: (time, batch, dim), or (time, dim) of a single sentence."""
    query, states, value_states = (
        given[name].unsqueeze(1) if given[name].ndim == 2 else given[name] for name in ("query", "key", "value")
    )
    heads, batch = given["num_heads"], query.shape[1]
    if given.get("static_k") is not None:
        raise RecipeError(
            "multi_head_attention_forward with static_k cannot be recorded; leave its module out of `layers`"
        )
    if given.get("use_separate_proj_weight"):
        weights = given["q_proj_weight"], given["k_proj_weight"], given["v_proj_weight"]
    else:
        weights = given["in_proj_weight"].chunk(3)
    biases = (None, None, None) if given["in_proj_bias"] is None else given["in_proj_bias"].chunk(3)
    hidden, padding = given.get("attn_mask"), given.get("key_padding_mask")
    # as torch does: the hint replaces the mask if the weights are not requested
    causal = bool(given.get("is_causal")) and padding is None and not given.get("need_weights", True)
    mask = None
    if hidden is not None and not causal:
        mask = _allowed(hidden.view(-1, heads, *hidden.shape[-2:]) if hidden.ndim == 3 else hidden[None, None])
    if padding is not None:
        mask = _both(mask, _allowed(padding.view(batch, 1, 1, -1)))
    more_keys: list[Tensor] = []
    more_values: list[Tensor] = []
    for name, more in (("bias_k", more_keys), ("bias_v", more_values)):
        if given[name] is not None:
            more.append(given[name].view(1, 1, heads, -1).transpose(1, 2).expand(batch, -1, -1, -1))
        if given["add_zero_attn"]:
            more.append(query.new_zeros(batch, heads, 1, query.shape[-1] // heads))
    if mask is not None and more_keys:
        mask = functional.pad(mask, (0, len(more_keys)), value=mask.dtype == torch.bool)
    return Projected(
        query.transpose(0, 1),
        states.transpose(0, 1),
        value_states.transpose(0, 1),
        Projection(weights[0], biases[0]),
        Projection(weights[1], biases[1]),
        Projection(weights[2], biases[2]),
        (given["out_proj_weight"], given["out_proj_bias"]),
        heads,
        mask,
        causal,
        more_keys,
        more_values,
    )


def _allowed(mask: Tensor) -> Tensor:
    """A mask of `nn.MultiheadAttention`, whose boolean masks are True where a key is hidden, as torch's other masks."""
    return ~mask if mask.dtype == torch.bool else mask


def _both(mask: Tensor | None, other: Tensor) -> Tensor:
    """Two masks as one."""
    if mask is None:
        return other
    if mask.dtype == other.dtype == torch.bool:
        return mask & other
    return _as_numbers(mask) + _as_numbers(other)


def _as_numbers(mask: Tensor) -> Tensor:
    """The mask as numbers that are added to the scores."""
    if mask.dtype != torch.bool:
        return mask
    return torch.zeros_like(mask, dtype=torch.float32).masked_fill(~mask, -torch.inf)


def _read_native(given: Mapping[str, Any]) -> Original:
    """Arguments of the fast path of `nn.MultiheadAttention`, which is self-attention, batch first."""
    return _read_packed(given["query"], given["num_head"], given)


def _read_encoder_layer(given: Mapping[str, Any]) -> Original:
    """Arguments of the fast path of `nn.TransformerEncoderLayer`; with pre-norm, the attention reads normed states."""
    states = given["src"]
    if given["norm_first"]:
        states = _norm(given, 1, states)
    return _read_packed(states, given["num_heads"], given)


def _norm(given: Mapping[str, Any], number: int, states: Tensor) -> Tensor:
    """One of the two norms of an encoder layer."""
    weight = given[f"norm_weight_{number}"]
    return functional.layer_norm(states, weight.shape, weight, given[f"norm_bias_{number}"], given["eps"])


def _read_packed(states: Tensor, heads: int, given: Mapping[str, Any]) -> Original:
    """Self-attention with one matrix for queries, keys and values; its mask is not 0 where a key is masked.

    A nested tensor, which `nn.TransformerEncoder` makes of padded sentences, is padded to its longest sentence. Rows of
    padding are not computed by the model, so their weights are 0.
    """
    real, mask, hidden = None, None, given["mask"]
    if states.is_nested:
        lengths = torch.tensor([len(sentence) for sentence in states.unbind()], device=states.device)
        states = _padded(states)
        real = from_lengths(lengths, states.shape[1])
        mask = real[:, None, None]
    elif hidden is not None:
        mask = ~hidden.bool()
        mask = mask[:, None, None] if mask.ndim == 2 else mask
    query, keys, values = map(Projection, given["qkv_weight"].chunk(3), given["qkv_bias"].chunk(3))
    out = given["proj_weight"], given["proj_bias"]
    return Projected(states, states, states, query, keys, values, out, heads, mask, real=real)


# ---- and how their results are replaced


def _write_dot_product(given: Mapping[str, Any], change: Changed, changed: Tensor, result: Tensor) -> Tensor:
    context = change.call.context(change.after)
    return torch.where(changed.unsqueeze(-1), context, result.reshape(context.shape)).reshape(result.shape)


def _write_multi_head(given: Mapping[str, Any], change: Changed, changed: Tensor, result: Any) -> Any:
    """The result has the time before the batch."""
    output = change.call.context(change.after).transpose(0, 1)
    rows = changed.any(1).transpose(0, 1).unsqueeze(-1)
    output = torch.where(rows, output, result[0].reshape(output.shape)).reshape(result[0].shape)
    return output, _returned(given, change, changed, result[1])


def _write_native(given: Mapping[str, Any], change: Changed, changed: Tensor, result: Any) -> Any:
    output = _rows_replaced(changed, change.call.context(change.after), result[0])
    return output, _returned(given, change, changed, result[1])


def _returned(given: Mapping[str, Any], change: Changed, changed: Tensor, result: Tensor | None) -> Tensor | None:
    """The weights that `nn.MultiheadAttention` returns if they are requested: of each head, or their mean."""
    if result is None or not given.get("need_weights", True):
        return result
    weights = change.after.to(result.dtype)
    if given.get("average_attn_weights", True):
        weights, changed = weights.mean(1), changed.any(1)
    return torch.where(changed.unsqueeze(-1), weights, result.reshape(weights.shape)).reshape(result.shape)


def _write_encoder_layer(given: Mapping[str, Any], change: Changed, changed: Tensor, result: Tensor) -> Tensor:
    """Residual connections, norms and the feed-forward part, as `nn.TransformerEncoderLayer` defines them."""
    states, attended = _padded(given["src"]), change.call.context(change.after)
    activation = functional.gelu if given["use_gelu"] else functional.relu

    def feed_forward(states: Tensor) -> Tensor:
        inner = activation(functional.linear(states, given["ffn_weight_1"], given["ffn_bias_1"]))
        return functional.linear(inner, given["ffn_weight_2"], given["ffn_bias_2"])

    if given["norm_first"]:
        states = states + attended
        states = states + feed_forward(_norm(given, 2, states))
    else:
        states = _norm(given, 1, states + attended)
        states = _norm(given, 2, states + feed_forward(states))
    return _rows_replaced(changed, states, result)


def _rows_replaced(changed: Tensor, after: Tensor, before: Tensor) -> Tensor:
    """Rows (batch, time) of which any head was changed, and the other rows as before; nested if they were."""
    rows = torch.where(changed.any(1).unsqueeze(-1), after, _padded(before))
    if not before.is_nested:
        return rows
    lengths = [len(sentence) for sentence in before.unbind()]
    return torch.nested.as_nested_tensor([row[:length] for row, length in zip(rows, lengths, strict=True)])


def _padded(states: Tensor) -> Tensor:
    """The states, with rows of zeros for padding if they are nested."""
    return torch.nested.to_padded_tensor(states, 0.0) if states.is_nested else states


class Dispatch(NamedTuple):
    """A function of torch that computes attention: where its name is looked up, and how it is read and written."""

    home: Any
    name: str
    arguments: tuple[str, ...]  # the names of positional arguments
    read: Read
    write: Callable[[Mapping[str, Any], Changed, Tensor, Any], Any]  # the result of changed weights


ENCODER_LAYER = (
    *("src", "embed_dim", "num_heads", "qkv_weight", "qkv_bias", "proj_weight", "proj_bias", "use_gelu", "norm_first"),
    *("eps", "norm_weight_1", "norm_bias_1", "norm_weight_2", "norm_bias_2"),
    *("ffn_weight_1", "ffn_bias_1", "ffn_weight_2", "ffn_bias_2", "mask", "mask_type"),
)
NATIVE = (
    *("query", "key", "value", "embed_dim", "num_head", "qkv_weight", "qkv_bias", "proj_weight", "proj_bias", "mask"),
    *("need_weights", "average_attn_weights", "mask_type"),
)
DOT_PRODUCT = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")
MULTI_HEAD = tuple(inspect.signature(functional.multi_head_attention_forward).parameters)
MULTI_HEAD_CODE = functional.multi_head_attention_forward.__code__
DISPATCHES = (
    Dispatch(functional, "scaled_dot_product_attention", DOT_PRODUCT, _read_dot_product, _write_dot_product),
    Dispatch(functional, "multi_head_attention_forward", MULTI_HEAD, _read_multi_head, _write_multi_head),
    Dispatch(torch, "_native_multi_head_attention", NATIVE, _read_native, _write_native),
    Dispatch(torch, "_transformer_encoder_layer_fwd", ENCODER_LAYER, _read_encoder_layer, _write_encoder_layer),
)


# ---- watching and changing


@dataclass(frozen=True, eq=False)
class Watcher:
    """A function that is called with the name of a module and its call, for the modules in `names`."""

    names: Mapping[nn.Module, str]
    observe: Callable[[str, Callable[[], Call], bool], None]  # also: a function that reads the call; is it of beams?


@dataclass(frozen=True, eq=False)
class Changer:
    """A function that gives the new weights of a call of one of the modules; with True, they have an axis of heads."""

    names: Mapping[nn.Module, str]
    change: Callable[[nn.Module, Weights, bool], Pairs]


_watchers: list[Watcher] = []
_changers: list[Changer] = []
_lock = threading.Lock()
_originals: list[Callable[..., Any]] = []


@contextmanager
def watch(watcher: Watcher) -> Iterator[None]:
    """In the block, the watcher is called after each attention of its modules, in every thread."""
    with _registered(_watchers, watcher):
        yield


@contextmanager
def change_weights(changer: Changer) -> Iterator[None]:
    """In the block, the modules compute with changed weights, in every thread; an inner block acts first."""
    with _registered(_changers, changer):
        yield


@contextmanager
def _registered(entries: list[Entry], entry: Entry) -> Iterator[None]:
    """In the block, the entry is in its list, and the functions of torch are wrapped."""
    with _lock:
        entries.append(entry)
        if not _originals:
            for dispatch in DISPATCHES:
                _originals.append(getattr(dispatch.home, dispatch.name))
                setattr(dispatch.home, dispatch.name, _wrapper(_originals[-1], dispatch))
    try:
        yield
    finally:
        with _lock:
            entries.remove(entry)
            if not _watchers and not _changers:
                for dispatch in reversed(DISPATCHES):
                    setattr(dispatch.home, dispatch.name, _originals.pop())


def _wrapper(original: Callable[..., Any], dispatch: Dispatch) -> Callable[..., Any]:
    """The function itself, whose calls are then changed, and handed to the watchers of their module."""

    @functools.wraps(original)
    def watched(*arguments: Any, **named: Any) -> Any:
        result = original(*arguments, **named)
        # a compiled or traced graph has the function alone, and nothing is recorded or changed
        if torch.compiler.is_compiling() or torch._C._get_tracing_state() or is_transformed():
            return result
        caller = sys._getframe(1)
        module = _running_module(caller)
        if module is None:
            return result
        given = dict(zip(dispatch.arguments, arguments, strict=False)) | named
        changers = [changer for changer in reversed(_changers) if module in changer.names]
        if not changers:
            _notify(module, functools.partial(_read_call, dispatch.read, given, module), caller)
            return result
        call = _read_call(dispatch.read, given, module)
        change, changed = _changed(call, changers, module, _first_row(caller, call.queries))
        result = dispatch.write(given, change, changed, result)
        _notify(module, lambda: change, caller)
        return result

    return watched


def _changed(
    call: Original, changers: Sequence[Changer], module: nn.Module, start: int
) -> tuple[Changed, Bool[Tensor, "*batch query"]]:
    """A call with changed weights, and which of its rows they differ in."""
    before, visible = call.weigh(None, None)
    after = before
    for changer in changers:
        after = changer.change(module, Weights(after, visible, visible, start), call.heads is not None)
    return Changed(call, after), (after != before).any(-1)


def _first_row(frame: FrameType | None, queries: int) -> int:
    """The number of a call's first row: in a search of Hugging Face, the cache has the tokens so far, and its own.

    The outermost cache is that of the decoder's own tokens; within an attention to the source it may be another one.
    """
    length = queries
    while frame is not None:
        cache = frame.f_locals.get("past_key_values")
        if cache is not None and hasattr(cache, "get_seq_length"):
            length = int(cache.get_seq_length())
        frame = frame.f_back
    return max(length - queries, 0)


def _notify(module: nn.Module, call: Callable[[], Call], caller: FrameType) -> None:
    """Hand a call to the watchers of its module."""
    for watcher in tuple(_watchers):
        if module in watcher.names:
            # weights are ordinary tensors, also of a model that runs in inference mode
            with torch.inference_mode(False), torch.no_grad():
                watcher.observe(watcher.names[module], call, _is_of_beams(caller))


def _read_call(read: Read, given: Mapping[str, Any], module: nn.Module) -> Original:
    return _with_separate_heads(read(given), module)


def _is_of_beams(frame: FrameType | None) -> bool:
    """Whether a beam search of Hugging Face's `generate` made the call."""
    while frame is not None:
        if frame.f_code.co_name == "_beam_search" and isinstance(frame.f_locals.get("self"), nn.Module):
            return True
        frame = frame.f_back
    return False


def _running_module(frame: FrameType | None) -> nn.Module | None:
    """The innermost module whose method is running, or the attention in it if that is an encoder layer of torch.

    None within `multi_head_attention_forward`, which is watched as a whole.
    """
    while frame is not None and frame.f_code is not MULTI_HEAD_CODE:
        owner = frame.f_locals.get("self")
        if isinstance(owner, nn.Module):
            return owner.self_attn if isinstance(owner, nn.TransformerEncoderLayer) else owner
        frame = frame.f_back
    return None


def _with_separate_heads(call: Original, module: nn.Module) -> Original:
    """Hugging Face's grouped attention of a single token: it has the heads of a group on the axis of the queries."""
    groups = getattr(module, "num_key_value_groups", 1)
    heads = getattr(getattr(module, "config", None), "num_attention_heads", None)
    if groups == 1 or not isinstance(call, DotProduct) or call.heads is None:
        return call
    if heads != call.heads * groups or call.queries != groups:
        return call
    query, mask = call.query.flatten(1, 2).unsqueeze(2), call.mask
    if mask is not None and mask.shape[1] > 1:
        mask = mask.flatten(1, 2).unsqueeze(2)
    return DotProduct(query, call.keys, call.values, mask, call.causal, call.scale)


# ---- which modules


def foreign_modules(model: nn.Module) -> dict[nn.Module, str]:
    """The modules of a model that may call an attention function, with their names.

    Modules with a hook of regard, and the parts of these, are left out: the hook sees their calls already.
    """
    hooked = {part for module in model.modules() if isinstance(module, HOOKED) for part in module.modules()}
    return {module: name for name, module in model.named_modules() if module not in hooked and _is_foreign(module)}


def attention_names(model: nn.Module) -> list[str]:
    """The names of the modules that have attention, as far as their classes say: those within no other one."""
    names = [name for module, name in foreign_modules(model).items() if "attention" in type(module).__name__.lower()]
    return [
        name
        for name in names
        if not any(other.startswith(f"{name}." if name else "") and other != name for other in names)
    ]


def _is_foreign(module: nn.Module) -> bool:
    return isinstance(module, nn.MultiheadAttention) or type(module).__module__.partition(".")[0] not in OWN


def check_can_be_seen(model: nn.Module, done: str = "recorded") -> None:
    """RecipeError if the model is compiled, or computes its attention in a function that cannot be watched."""
    foreign = foreign_modules(model)
    for name, module in model.named_modules():
        title = f"{name} ({type(module).__name__})" if name else type(module).__name__
        if "_orig_mod" in module._modules or module._compiled_call_impl is not None:
            raise RecipeError(
                f"{title} is compiled by torch.compile, and attention cannot be {done} in a compiled graph; give "
                "the module that was compiled, without calling the compiled one: model._orig_mod has the same weights"
            )
        implementation = getattr(getattr(module, "config", None), "_attn_implementation", None)
        if module in foreign and implementation not in (None, "sdpa"):
            raise RecipeError(
                f"{title} computes its attention by {implementation!r}, which cannot be {done}; call "
                "model.set_attn_implementation('sdpa') before, or load the model with attn_implementation='sdpa'"
            )
