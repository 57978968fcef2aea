"""The table of fast paths: which code is a definition, which code computes the same faster, and when it runs.

`PATHS` is the only place that decides. Each entry names a definition, its fast twin, the condition under which the twin
may run, and the tests that hold both equal. A caller calls `takes(name, ...)` and, if it returns False, runs the
definition. A twin that cannot honour a hook, a replaced module or a dtype is not taken. With REGARD_PLAIN=1 in the
environment, or within `definitions_only`, no twin is taken; `regard doctor` prints the table, and which twins a run
takes.

Not paths are: `without_autocast` and `UncastLinear`, which are part of how scores are defined; properties such as
`Score.dot_scale` and `Score.keys_are_sums`, which state what a module computes and which conditions read; the meta
device, on which sequences cannot be packed; calls of a module next to its twin, for hooks that record it; and the
choice by layout or device inside a kernel.
"""

import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.modules import module as modules

from regard.kernels import gpu
from regard.types import Batch

Hook = TypeVar("Hook", bound=Callable[..., Any])

# Sizes from which, or up to which, a twin is faster than its definition.
LEAST_DROPPED = 4096  # numbers from which our draw of a dropout mask is faster
DROPOUT_CHOICES = 1 << 16  # values of the sixteen bits that decide if a number is dropped
LEAST_SORTED = 1 << 16  # numbers from which `topk` by blocks is faster
MOST_KEYS = 128  # keys of additive attention that one program of a GPU holds
FEW_ROWS = 8  # rows up to which one fused attention operation is faster than three operations

# Reasons against a twin that several conditions share.
NOT_CPU = "the tensors are not on the CPU"
NOT_GPU = "the tensors are not on a GPU"
NO_TRITON = "Triton is not installed"
NOTHING_LEARNS = "no gradients are computed"
LEARNS = "gradients are computed"
MIXED = "products are in half precision, or of two precisions"
CHANGED = "a module was hooked or replaced"
TRANSFORMED = "a function transform such as vmap runs"
CAPTURED = "the update must be capturable in a CUDA graph"
NOT_CAPTURED = "the update need not be capturable in a CUDA graph"
NO_SOFTMAX = "the normaliser is not softmax"
BIASED = "scores have a bias"
DROPS = "attention weights have dropout"


def takes(name: str, *arguments: Any) -> bool:
    """Whether to run the fast twin of that name in the table; `arguments` are those of its condition."""
    return not _definitions_only and not _conditions[name](*arguments)


@dataclass(frozen=True)
class Path:
    """A definition and its fast twin."""

    definition: str  # dotted name
    twin: str  # dotted name
    when: str  # for people: when the twin runs
    condition: Callable[..., str]  # returns the reason why the twin may not run, in a few words; "" if it may
    test: str  # the file that holds both equal
    needs: str = ""  # of the machine: "gpu", or "triton" if a GPU alone is not enough


# ---- what conditions check: modules, autocast, function transforms, CUDA graphs


def observer(hook: Hook) -> Hook:
    """Mark a forward hook that changes nothing, such as those of `record`: fast paths still run, and call it too."""
    hook.only_observes = True  # type: ignore[attr-defined]
    return hook


def is_observed(module: nn.Module) -> bool:
    """Whether a module has a forward hook, so that it must be called even if a twin computes its result."""
    return bool(module._forward_hooks)


def is_hooked(module: nn.Module) -> bool:
    """Whether a hook other than an observer may change the module's inputs, outputs or gradients."""
    if module._forward_pre_hooks or module._backward_hooks or module._backward_pre_hooks:
        return True
    if module._forward_hooks and not all(hasattr(hook, "only_observes") for hook in module._forward_hooks.values()):
        return True
    return bool(modules._has_any_global_hook())


def is_unchanged(module: nn.Module, *kinds: type[nn.Module]) -> bool:
    """Whether the module computes what its weights imply: it is exactly of one of these classes, without hooks.

    A subclass or a replacement (LoRA, quantised layers, parametrizations) has its own forward; weight normalisation
    and pruning compute the weights in a hook. Such modules must be called.
    """
    return _is_unchanged(module, kinds)


def are_unchanged(module: nn.Module, kinds: Collection[type[nn.Module]]) -> bool:
    """Whether a module and all its submodules are unchanged in the sense of `is_unchanged`."""
    if not _is_unchanged(module, kinds):
        return False
    return all(are_unchanged(part, kinds) for part in module._modules.values() if part is not None)


def _is_unchanged(module: nn.Module, kinds: Collection[type[nn.Module]]) -> bool:
    return type(module) in kinds and "forward" not in module.__dict__ and not is_hooked(module)


def is_autocast(values: Tensor) -> bool:
    """Whether autocast is on for the tensor's device, so that products are in half precision; never on meta."""
    return not values.is_meta and torch.is_autocast_enabled(values.device.type)


def without_autocast(values: Tensor) -> AbstractContextManager[Any]:
    """In the block, autocast is off for the tensor's device: products keep the precision of their inputs."""
    return torch.autocast(values.device.type, enabled=False) if is_autocast(values) else nullcontext()


def is_transformed() -> bool:
    """Whether a function transform (`torch.func.vmap`, `grad`) runs: it needs torch's own operations."""
    return not torch.compiler.is_compiling() and bool(torch._C._are_functorch_transforms_active())


_capturable = False  # a plain variable: torch.compile can trace it


@contextmanager
def capturable(on: bool = True) -> Iterator[None]:
    """In the block, layers in training take paths that a CUDA graph can capture: none reads a tensor on the host."""
    global _capturable
    before, _capturable = _capturable, on
    try:
        yield
    finally:
        _capturable = before


def is_capturable() -> bool:
    """Whether a `capturable` block is active."""
    return _capturable


# ---- conditions: each returns the reason why its twin may not run, or ""; the cheapest check comes first


def _one_row(states: Tensor, weight: Tensor) -> str:
    if states.ndim < 2 or states.numel() != states.shape[-1]:
        return "there are several rows"
    if torch.is_grad_enabled() and weight.requires_grad:
        return LEARNS
    if not states.is_cpu:
        return NOT_CPU
    return MIXED if states.dtype != weight.dtype or torch.is_autocast_enabled("cpu") else ""


def _linear_gradient(states: Tensor, weight: Tensor) -> str:
    if not torch.is_grad_enabled() or not weight.requires_grad:
        return NOTHING_LEARNS
    if not states.is_cpu:
        return NOT_CPU
    if states.ndim < 2 or states.dtype != weight.dtype or torch.is_autocast_enabled("cpu"):
        return MIXED
    return TRANSFORMED if is_transformed() else ""


def _one_gradient() -> str:
    if not torch.is_grad_enabled():
        return NOTHING_LEARNS
    return TRANSFORMED if is_transformed() else ""


def _summed_linear(states: Tensor, weight: Tensor) -> str:
    if not torch.is_grad_enabled() or not weight.requires_grad:
        return NOTHING_LEARNS
    return MIXED if states.ndim < 2 or states.dtype != weight.dtype or is_autocast(states) else ""


def _summed_mix(weights: Tensor, values: Tensor) -> str:
    if weights.shape[:-2] != values.shape[:-2]:
        return "several rows share their values"
    return "" if values.requires_grad else NOTHING_LEARNS


def _dropout(values: Tensor, share: float) -> str:
    if not values.is_cpu:
        return NOT_CPU
    if values.dtype != torch.float32:
        return "the numbers are not float32"
    if values.numel() < LEAST_DROPPED or round(share * DROPOUT_CHOICES) >= DROPOUT_CHOICES:
        return "there are too few numbers, or all are dropped"
    if _capturable:
        return CAPTURED
    return TRANSFORMED if is_transformed() else ""


def _add_dropped(states: Tensor, change: Tensor, share: float) -> str:
    if states.dtype != change.dtype or states.shape != change.shape:
        return "the two tensors differ in shape or precision"
    return _dropout(change, share)


def _cross_entropy(logits: Tensor) -> str:
    if not logits.is_cpu:
        return NOT_CPU
    if not logits.requires_grad:
        return NOTHING_LEARNS
    if not logits.numel():
        return "there are no rows"
    if _capturable:
        return CAPTURED
    return TRANSFORMED if is_transformed() else ""


def _topk(values: Tensor, blocks: int, count: int) -> str:
    if not values.is_cpu:
        return NOT_CPU
    return "there are too few numbers" if values.numel() < LEAST_SORTED or blocks <= 2 * count else ""


def _tied_columns(weight: Tensor) -> str:
    if torch.is_grad_enabled():
        return LEARNS
    return "" if weight.is_cpu else NOT_CPU


def _columns(module: nn.Module, kinds: Collection[type[nn.Module]]) -> str:
    if not are_unchanged(module, kinds):
        return CHANGED
    return "" if next(module.parameters()).is_cpu else NOT_CPU


def _add_norm(states: Tensor, change: Tensor | None, norm: nn.LayerNorm) -> str:
    if change is None:
        return "there is nothing to add"
    if not states.is_cuda:
        return NOT_GPU
    if not is_unchanged(norm, nn.LayerNorm) or norm.weight is None or norm.bias is None:
        return CHANGED
    if not torch.is_grad_enabled():
        return NOTHING_LEARNS
    if not states.dtype == norm.weight.dtype == torch.float32:
        return "states and norm are not float32"
    if states.shape[-1] > gpu.WIDEST_ROW or states.numel() >= 1 << 31:
        return "the rows are too wide, or too many"
    return "" if gpu.AVAILABLE else NO_TRITON


def _additive_attention(
    score: Any,
    is_softmax: bool,
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    mask: Tensor | None,
    bias: Tensor | None,
    drop: float,
) -> str:
    if not torch.is_grad_enabled():
        return NOTHING_LEARNS
    if not score.has_kernel:
        return "the score is not additive, or was hooked or replaced"
    if not is_softmax:
        return NO_SOFTMAX
    if bias is not None or drop:
        return BIASED if drop == 0.0 else DROPS
    if torch.compiler.is_compiling() or is_transformed():
        return "torch.compile, or a function transform such as vmap, runs"
    if not query.ndim == keys.ndim == values.ndim == 4 or not query.shape[1] == keys.shape[1] == 1:
        return "there are several heads or beams"
    if keys.dtype not in (torch.float32, torch.float64) or not query.dtype == keys.dtype == values.dtype:
        return MIXED
    if not query.device == keys.device == values.device or values.shape[:3] != keys.shape[:3]:
        return "keys and values do not belong together"
    if len(query) != len(keys) or (mask is not None and not mask.shape[1] == mask.shape[2] == 1):
        return "queries of one source see different keys"
    if not (keys.is_contiguous() and values.is_contiguous() and keys.requires_grad and values.requires_grad):
        return "keys or values need no gradient, or are not contiguous"
    if not keys.is_cuda:
        return ""
    if keys.dtype != torch.float32 or keys.shape[2] > MOST_KEYS:
        return "the keys are too many for a GPU's program, or not float32"
    return "" if gpu.AVAILABLE else NO_TRITON


def _fused_attention(query: Tensor, score: Any, is_softmax: bool, may_fuse: bool, drop: float) -> str:
    if not may_fuse:
        return "its weights are requested, or masked keys are not zeroed yet"
    if score.dot_scale is None:
        return "the score is not a dot product, or was hooked or replaced"
    if not is_softmax:
        return NO_SOFTMAX
    if drop and query.is_cpu:
        return "attention weights have dropout on the CPU"
    return TRANSFORMED if is_transformed() else ""


def _short_attention(
    query: Tensor, keys: Tensor, values: Tensor, mask: object, causal: bool, bias: Tensor | None, drop: float
) -> str:
    if not query.is_cuda:
        return NOT_GPU
    if not torch.is_grad_enabled():
        return NOTHING_LEARNS
    if bias is not None or drop:
        return BIASED if drop == 0.0 else DROPS
    if query.ndim != 4 or not query.shape[:2] == keys.shape[:2] == values.shape[:2]:
        return "queries, keys and values differ in their number of heads"
    if not query.dtype == keys.dtype == values.dtype == torch.bfloat16:
        return "products are not in bfloat16"
    if mask is not None and not isinstance(mask, Tensor) and not causal:
        return "queries start after the first key"
    if query.shape[-1] != values.shape[-1]:
        return "keys and values differ in width"
    return _too_long(max(query.shape[-2], keys.shape[-2]), query.shape[-1], mask)


def _packed_attention(
    attention: Any, wide: Tensor, mask: object, bias: Tensor | None, before: object | None, turned: bool
) -> str:
    if not wide.is_cuda:
        return NOT_GPU
    if not torch.is_grad_enabled():
        return NOTHING_LEARNS
    if wide.dtype != torch.bfloat16:
        return "products are not in bfloat16"
    if before is not None or bias is not None or turned:
        return "there are tokens before these, or positions change scores, queries or keys"
    if attention.groups != attention.heads:
        return "heads share their keys in groups"
    if attention.training and attention.attention.dropout > 0.0:
        return DROPS
    if is_observed(attention.attention):
        return "the attention is recorded"
    if attention.attention.plain_scale() is None:
        return "it is not a softmax over dot products of all keys, or was hooked or replaced"
    return _too_long(wide.shape[1], attention.width, mask)


def _too_long(longest: int, width: int, mask: object) -> str:
    if isinstance(mask, Tensor) and not mask.shape[1] == mask.shape[2] == 1:
        return "heads or queries see different keys"
    if longest > gpu.MOST_TOKENS or width not in gpu.HEAD_WIDTHS:
        return "the tokens are too many for a GPU's program, or a head is of another width"
    return "" if gpu.AVAILABLE else NO_TRITON


def _joint_projection(attentions: Sequence[Any], kind: type[Any], layer: type[nn.Module]) -> str:
    if not torch.is_grad_enabled():
        return NOTHING_LEARNS
    for cross in attentions:
        if type(cross) is not kind or not is_unchanged(cross.key, layer) or not is_unchanged(cross.value, layer):
            return CHANGED
    return ""


def _cache_buffer() -> str:
    return LEARNS if torch.is_grad_enabled() else ""


def _learned_positions(table: nn.Module) -> str:
    return "" if is_unchanged(table, nn.Embedding) else CHANGED


def _unpacked_reading(recurrence: Any) -> str:
    if not _capturable or not recurrence.training:
        return NOT_CAPTURED
    return "" if recurrence.is_unchanged() else CHANGED


def _recurrence_by_layers(recurrence: Any) -> str:
    if not _capturable or not recurrence.training:
        return NOT_CAPTURED
    if not recurrence.rnn.dropout:
        return "nothing is dropped between its layers"
    return "" if recurrence.is_unchanged() else CHANGED


def _recurrent_gates(recurrence: Any, cells: Collection[str]) -> str:
    if not recurrence.is_unchanged():
        return CHANGED
    rnn = recurrence.rnn
    known = rnn.mode in cells and rnn.bias and not rnn.bidirectional and not rnn.proj_size
    return "" if known else "the layers have no bias, two directions, or are projected"


def _fused_cell(weight: Tensor, cell: str, cells: Collection[str]) -> str:
    if not weight.is_cuda:
        return NOT_GPU
    return "" if cell in cells else "torch has no fused kernel for this cell"


def _search_step(decoder: Any, mask: Tensor) -> str:
    """The reason against any search step without module calls; `_all_see` checks the mask's values after all else."""
    if decoder.training or torch.is_grad_enabled():
        return "the model is training, or gradients are computed"
    if is_autocast(mask) or decoder.embedding.weight.dtype not in (torch.float32, torch.float64):
        return "products are in half precision"
    if mask.is_meta:
        return "the meta device has no values"
    return TRANSFORMED if is_transformed() else ""


def _all_see(mask: Tensor) -> str:
    """Called only without gradients: it reads the mask on the host, and a captured update may not wait for that."""
    return "" if bool(mask.any(-1).all()) else "a source has no key that may be attended to"


def _plain_transformer(decoder: Any, mask: Tensor, kinds: Collection[type[nn.Module]]) -> str:
    if reason := _search_step(decoder, mask):
        return reason
    if not all(are_unchanged(layer, kinds) for layer in decoder.layers):
        return "a layer's score is not a dot product of the states, or a module was hooked or replaced"
    if decoder.out is not None and not is_unchanged(decoder.out, *kinds):
        return CHANGED
    parts = [part for layer in decoder.layers for part in (layer.attention, layer.cross) if part is not None]
    if not all(part.attention.plain_scale() and part.groups == part.heads for part in parts):
        return "it is not a softmax over dot products of all keys, or heads share their keys in groups"
    return _all_see(mask) if decoder.attends else ""


def _plain_recurrent(decoder: Any, mask: Tensor, scope: type[nn.Module], softmax: object) -> str:
    attention = decoder.attention
    if reason := _search_step(decoder, mask):
        return reason
    if attention is not None and not (is_unchanged(attention, scope) and attention.normalize is softmax):
        return "it is not a softmax over all keys with one head, or was hooked or replaced"
    if any(map(is_hooked, decoder.modules())):
        return CHANGED
    return "" if attention is None else _all_see(mask)


def _few_rows(rows: int) -> str:
    return "" if rows <= FEW_ROWS else "there are many rows"


def _many_rows(rows: int) -> str:
    return "there are few rows" if rows <= FEW_ROWS else ""


def _single_row(rows: int) -> str:
    return "" if rows == 1 else "there are several rows"


def _whole_beams(whole: bool) -> str:
    return "" if whole else "a hypothesis ends, or a sentence is done"


def _captured_updates(task: Any, model: nn.Module, data: Any) -> str:
    settings = task.recipe.train
    if not settings.capture:
        return "train.capture is false"
    if not next(model.parameters()).is_cuda:
        return "the model is not on a GPU"
    if settings.accumulate != 1 or settings.sampling or settings.guided:
        return "train.accumulate, train.sampling or train.guided is set"
    with torch.random.fork_rng(devices=[]):  # collate may draw random numbers, and a resumed run calls this again
        return "" if isinstance(task.collate(data, [0]), Batch) else "a batch of this task does not hold pairs"


# ---- the table

LINEAR = "torch.nn.functional.linear"
ATTEND = "regard.attention.core.attend"

# fmt: off
PATHS: dict[str, Path] = {
    # products
    "one_row": Path(LINEAR, "regard.kernels.linear.linear_one_row",
        "a single row is multiplied on the CPU, and the weight gets no gradient",
        _one_row, "tests/kernels/test_linear.py"),
    "linear_gradient": Path(LINEAR, "regard.kernels.linear._Linear",
        "a linear layer is trained on the CPU in one precision",
        _linear_gradient, "tests/kernels/test_linear.py"),
    "one_gradient": Path("torch.autograd.grad", "regard.kernels.linear.DeferredGradients",
        "a decoder is trained token by token: the gradient of a tensor that all steps share is computed by one product",
        _one_gradient, "tests/kernels/test_one_gradient.py"),
    "summed_linear": Path(LINEAR, "regard.kernels.linear.SharedWeight",
        "within such a loop, rows are multiplied by a weight that gets a gradient, in one precision",
        _summed_linear, "tests/kernels/test_one_gradient.py"),
    "summed_mix": Path("torch.matmul", "regard.kernels.linear.SharedWeight",
        "within such a loop, values that get a gradient are summed by attention weights, each row its own values",
        _summed_mix, "tests/kernels/test_one_gradient.py"),
    "columns": Path("torch.nn.Linear", "regard.kernels.columns.by_columns",
        "a trained model is loaded on the CPU: matrices of unchanged layers are laid out by columns",
        _columns, "tests/laws/test_plain_laws.py"),
    "tied_columns": Path("torch.nn.Embedding", "regard.kernels.columns.ColumnMajorCopy",
        "an embedding of a loaded model predicts words on the CPU, without gradients, from a copy by columns",
        _tied_columns, "tests/laws/test_plain_laws.py"),
    # single operations
    "dropout": Path("torch.nn.functional.dropout", "regard.kernels.dropout._Dropped",
        f"at least {LEAST_DROPPED:,} numbers in float32 on the CPU; other numbers are drawn, of the same distribution",
        _dropout, "tests/kernels/test_dropout.py"),
    "add_dropped": Path("regard.kernels.dropout.dropout", "regard.kernels.dropout._AddDropped",
        "as dropout, and the result is added to states of the same shape",
        _add_dropped, "tests/kernels/test_dropout.py"),
    "relu_dropped": Path("regard.kernels.dropout.dropout", "regard.kernels.dropout._ReluDropped",
        "as dropout, applied to the output of a ReLU",
        _dropout, "tests/kernels/test_dropout.py"),
    "cross_entropy": Path("regard.kernels.cross_entropy.plain", "regard.kernels.cross_entropy._CrossEntropy",
        "logits on the CPU that need a gradient",
        _cross_entropy, "tests/kernels/test_cross_entropy.py"),
    "topk": Path("torch.topk", "regard.kernels.topk.by_blocks",
        f"the few best of at least {LEAST_SORTED:,} numbers on the CPU",
        _topk, "tests/kernels/test_topk.py"),
    "add_norm": Path("regard.kernels.add_norm.plain", "regard.kernels.gpu.add_norm.add_norm",
        "residual sum and layer norm between two sub-layers of a Transformer that is trained on a GPU, in float32",
        _add_norm, "tests/kernels/test_gpu.py", "triton"),
    # attention
    "additive_attention": Path(ATTEND, "regard.kernels.additive.additive_attention",
        f"additive attention with one head and softmax is trained; on a GPU over at most {MOST_KEYS} keys in float32",
        _additive_attention, "tests/kernels/test_additive.py"),
    "fused_attention": Path(ATTEND, "regard.attention.fused.dot",
        "a Transformer's attention is a softmax over dot products; on the CPU without attention dropout",
        _fused_attention, "tests/laws/test_transformer_laws.py"),
    "short_attention": Path(ATTEND, "regard.kernels.gpu.short_attention.short_attention",
        f"as fused_attention, in training on a GPU in bfloat16 with at most {gpu.MOST_TOKENS} queries "
        f"and {gpu.MOST_TOKENS} keys",
        _short_attention, "tests/kernels/test_gpu.py", "triton"),
    "packed_attention": Path("regard.attention.heads.SelfAttention.forward", "regard.attention.fused.packed",
        "as short_attention, for self-attention without groups, dropout or recording",
        _packed_attention, "tests/kernels/test_gpu.py", "triton"),
    "joint_projection": Path("regard.attention.heads.MultiHead.project", "regard.attention.heads.project_jointly",
        "a Transformer's decoder is trained: keys and values of all its layers are one product",
        _joint_projection, "tests/kernels/test_choose.py"),
    "cache_buffer": Path("torch.cat", "regard.attention.heads.CacheBuffer",
        "keys and values of one more token enter the cache without gradients: they are written after the earlier ones",
        _cache_buffer, "tests/kernels/test_choose.py"),
    "learned_positions": Path("torch.nn.Embedding", "regard.attention.positions.Learned.embed",
        "learned positions are a slice of their table, unless it was hooked or replaced",
        _learned_positions, "tests/kernels/test_choose.py"),
    # recurrent layers
    "recurrent_gates": Path("regard.layers.recurrence.Recurrence.forward", "regard.layers.recurrence.Gates",
        "recurrent layers step token by token: one product computes the inputs' part of the gates for all steps",
        _recurrent_gates, "tests/kernels/test_choose.py"),
    "fused_cell": Path("regard.layers.recurrence.STEPS", "regard.layers.recurrence.FUSED_STEPS",
        "a GRU or LSTM steps token by token on a GPU",
        _fused_cell, "tests/kernels/test_gpu.py", "gpu"),
    "unpacked_reading": Path(
        "regard.layers.recurrence.Recurrence.read",
        "regard.layers.recurrence.Recurrence.read_unpacked",
        "recurrent layers read padded rows in an update that a CUDA graph must capture",
        _unpacked_reading, "tests/test_recurrence.py", "gpu"),
    "recurrence_by_layers": Path(
        "regard.layers.recurrence.Recurrence.forward",
        "regard.layers.recurrence.Recurrence.forward_by_layers",
        "recurrent layers with dropout between them run in an update that a CUDA graph must capture",
        _recurrence_by_layers, "tests/test_recurrence.py", "gpu"),
    # steps of a search
    "plain_transformer": Path(
        "regard.decoders.transformer.DecoderLayer.forward", "regard.decoders.plain.TransformerStep.step",
        "a search steps through a Transformer of dot-product attention in full precision, no module changed",
        _plain_transformer, "tests/laws/test_plain_laws.py"),
    "plain_recurrent": Path(
        "regard.decoders.recurrent.RecurrentDecoder.attend", "regard.decoders.plain.RecurrentStep.attend",
        "a search steps through a recurrent decoder with a softmax over all keys in full precision, no module changed",
        _plain_recurrent, "tests/laws/test_plain_laws.py"),
    "one_row_step": Path(LINEAR, "regard.kernels.linear.linear_one_row",
        "within plain_transformer, there is one row",
        _single_row, "tests/laws/test_plain_laws.py"),
    "few_queries": Path(
        "regard.decoders.plain.SoftmaxAttention.context", "torch.nn.functional.scaled_dot_product_attention",
        f"within plain_transformer, an attention whose weights are not requested has at most {FEW_ROWS} rows",
        _few_rows, "tests/laws/test_plain_laws.py"),
    "keys_by_columns": Path("regard.attention.heads.project_all", "regard.decoders.plain.keys_by_columns",
        f"within plain_transformer, more than {FEW_ROWS} sources are searched at once",
        _many_rows, "tests/laws/test_plain_laws.py"),
    "whole_beams": Path("regard.search.beam.Results.update", "regard.search.beam._advance",
        "no hypothesis of a beam search ends at this step: all rows continue, and none is checked by itself",
        _whole_beams, "tests/kernels/test_choose.py"),
    # training
    "captured_updates": Path("regard.training.engine.eager.Eager", "regard.training.engine.captured.Captured",
        "a GPU trains on whole batches of pairs, and train.capture is true",
        _captured_updates, "tests/training/test_capture.py", "gpu"),
}
# fmt: on

# Plain variables and functions, which torch.compile can trace.
_conditions: dict[str, Callable[..., str]] = {name: path.condition for name, path in PATHS.items()}
_definitions_only = os.environ.get("REGARD_PLAIN", "") not in ("", "0")


@contextmanager
def definitions_only(on: bool = True) -> Iterator[None]:
    """In the block, no fast twin is taken: every definition runs itself."""
    global _definitions_only
    before, _definitions_only = _definitions_only, on
    try:
        yield
    finally:
        _definitions_only = before


def are_definitions_only() -> bool:
    """Whether no fast twin is taken now, as with REGARD_PLAIN=1."""
    return _definitions_only


@dataclass
class PathCounts:
    """How often a twin was taken, and how often each reason spoke against it."""

    taken: int = 0
    against: dict[str, int] = field(default_factory=dict)


@contextmanager
def count_answers() -> Iterator[Mapping[str, PathCounts]]:
    """In the block, the answers of all conditions are counted, by path; those never called are left out."""
    answers: dict[str, PathCounts] = {}
    before = dict(_conditions)

    def watch(name: str, condition: Callable[..., str]) -> Callable[..., str]:
        def counted(*arguments: Any) -> str:
            reason, counts = condition(*arguments), answers.setdefault(name, PathCounts())
            if reason:
                counts.against[reason] = counts.against.get(reason, 0) + 1
            else:
                counts.taken += 1
            return reason

        return counted

    _conditions.update({name: watch(name, condition) for name, condition in before.items()})
    try:
        yield answers
    finally:
        _conditions.update(before)
