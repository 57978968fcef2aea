"""The table of fast paths: which code is a definition, which code computes the same faster, and when it runs.

`PATHS` is the only place that decides. Each entry names a definition, its fast twin, the condition under which the twin
may run, and the tests that hold both equal. A caller calls `takes(name, ...)` and, if it returns False, runs the
definition. A twin that cannot honour a hook, a replaced module or a dtype is not taken. With REGARD_PLAIN=1 in the
environment, or within `definitions_only`, no twin is taken; `regard doctor` prints the table, and which twins a run
takes.

Not paths are: `without_autocast` and `UncastLinear`, which are part of how scores are defined; properties such as
`Score.dot_scale` and `Score.keys_are_sums`, which state what a module computes and which conditions read; the meta
device, on which sequences cannot be packed; whether batches run in parallel (`device.map_in_parallel`); calls of a
module next to its twin, for hooks that record it; and the choice by layout or device inside a kernel.
"""

import os
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.modules import module as modules

from regard.kernels import gpu
from regard.types import Capturable

Reason = str | Literal[False]  # of a condition: why the twin may not run, in a few words; False if it may

# Sizes from which, or up to which, a twin is faster than its definition.
LEAST_DROPPED = 4096  # numbers from which our draw of a dropout mask is faster
DROPOUT_CHOICES = 1 << 16  # values of the sixteen bits that decide if a number is dropped
LEAST_SORTED = 1 << 16  # numbers from which `topk` by blocks is faster
MOST_KEYS = 128  # keys of additive attention that one program of a GPU holds
FEW_ROWS = 8  # rows up to which one fused attention operation is faster than three operations

# Reasons not to run a twin: those that several conditions share, and those too long to stand beside a check.
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
NOT_BFLOAT16 = "products are not in bfloat16"
FEW_DROPPED = "there are too few numbers, or all are dropped"
HEADS_DIFFER = "queries, keys and values differ in their number of heads"
TOKENS_BEFORE = "there are tokens before these, or positions change scores, queries or keys"
NOT_PLAIN = "it is not a softmax over dot products of all keys, or was hooked or replaced"
MANY_KEYS = "the keys are too many for a GPU's program, or not float32"
COMPILED_OR_TRANSFORMED = "torch.compile, or a function transform such as vmap, runs"


def takes(name: str, *arguments: Any) -> bool:
    """Whether to run the fast twin of that name in the table; `arguments` are those of its condition."""
    return not _definitions_only and not _conditions[name](*arguments)


@dataclass(frozen=True)
class Path:
    """A definition and its fast twin."""

    definition: str  # dotted name
    twin: str  # dotted name
    when: str  # for people: when the twin runs
    condition: Callable[..., Reason]
    test: str  # the file that holds both equal
    needs: str = ""  # of the machine: "gpu", or "triton" if a GPU alone is not enough


# ---- what conditions check: modules, autocast, function transforms, CUDA graphs


_pauses = threading.local()  # how many blocks of `pause_observers` a thread is in


def _pause_depth() -> int:
    return getattr(_pauses, "depth", 0)


@contextmanager
def pause_observers() -> Iterator[None]:
    """In the block, observers that were made before it are not called in this thread; those made in it are."""
    _pauses.depth = _pause_depth() + 1
    try:
        yield
    finally:
        _pauses.depth -= 1


class Observer:
    """A forward hook that changes nothing, such as those of `record`: fast paths still run, and call it too."""

    def __init__(self, hook: Callable[..., None]) -> None:
        self.hook, self.depth = hook, _pause_depth()

    def is_paused(self) -> bool:
        """Whether this thread is in a block of `pause_observers` that began after the observer was made."""
        return _pause_depth() > self.depth

    def __call__(self, *arguments: Any) -> None:
        """Call the hook, unless it is paused."""
        if not self.is_paused():
            self.hook(*arguments)


def is_observed(module: nn.Module) -> bool:
    """Whether a module has a forward hook that is not paused, so that it must be called even if a twin runs too."""
    if not module._forward_hooks:  # as at almost every call
        return False
    return not all(isinstance(hook, Observer) and hook.is_paused() for hook in module._forward_hooks.values())


def has_observers(module: nn.Module) -> bool:
    """Whether a module or one of its submodules has an observer that is not paused."""
    hooks = (hook for part in module.modules() for hook in part._forward_hooks.values())
    return any(isinstance(hook, Observer) and not hook.is_paused() for hook in hooks)


def is_hooked(module: nn.Module) -> bool:
    """Whether a hook other than an observer may change the module's inputs, outputs or gradients."""
    if module._forward_pre_hooks or module._backward_hooks or module._backward_pre_hooks:
        return True
    if module._forward_hooks and not all(isinstance(hook, Observer) for hook in module._forward_hooks.values()):
        return True
    return bool(modules._has_any_global_hook())


def is_unchanged(module: nn.Module, *kinds: type[nn.Module]) -> bool:
    """Whether the module computes what its weights imply: it is exactly of one of these classes, without hooks.

    A subclass or a replacement (LoRA, quantised layers, parametrizations) has its own forward; weight normalisation
    and pruning compute the weights in a hook. Such modules must be called.
    """
    return type(module) in kinds and "forward" not in module.__dict__ and not is_hooked(module)


def are_unchanged(module: nn.Module, kinds: Collection[type[nn.Module]]) -> bool:
    """Whether a module and all its submodules are unchanged in the sense of `is_unchanged`."""
    parts = [part for part in module._modules.values() if part is not None]
    return is_unchanged(module, *kinds) and all(are_unchanged(part, kinds) for part in parts)


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


# ---- conditions: each returns the reason why its twin may not run, or False; the cheapest check comes first
# In a chain `(check and REASON) or (check and REASON)`, the first check that holds gives the reason.


def _one_row(states: Tensor, weight: Tensor) -> Reason:
    return (
        ((states.ndim < 2 or states.numel() != states.shape[-1]) and "there are several rows")
        or (torch.is_grad_enabled() and weight.requires_grad and LEARNS)
        or (not states.is_cpu and NOT_CPU)
        or ((states.dtype != weight.dtype or torch.is_autocast_enabled("cpu")) and MIXED)
    )


def _linear_gradient(states: Tensor, weight: Tensor) -> Reason:
    return (
        (not (torch.is_grad_enabled() and weight.requires_grad) and NOTHING_LEARNS)
        or (not states.is_cpu and NOT_CPU)
        or ((states.ndim < 2 or states.dtype != weight.dtype or torch.is_autocast_enabled("cpu")) and MIXED)
        or (is_transformed() and TRANSFORMED)
    )


def _summed_linear(states: Tensor, weight: Tensor) -> Reason:
    if not torch.is_grad_enabled() or not weight.requires_grad:
        return NOTHING_LEARNS
    return (states.ndim < 2 or states.dtype != weight.dtype or is_autocast(states)) and MIXED


def _summed_mix(weights: Tensor, values: Tensor) -> Reason:
    several = weights.shape[:-2] != values.shape[:-2]
    return (several and "several rows share their values") or (not values.requires_grad and NOTHING_LEARNS)


def _dropout(values: Tensor, probability: float) -> Reason:
    return (
        (not values.is_cpu and NOT_CPU)
        or (values.dtype != torch.float32 and "the numbers are not float32")
        or ((values.numel() < LEAST_DROPPED or round(probability * DROPOUT_CHOICES) >= DROPOUT_CHOICES) and FEW_DROPPED)
        or _captured_or_transformed()
    )


def _add_dropped(states: Tensor, update: Tensor, probability: float) -> Reason:
    alike = states.dtype == update.dtype and states.shape == update.shape
    return (not alike and "the two tensors differ in shape or precision") or _dropout(update, probability)


def _cross_entropy(logits: Tensor) -> Reason:
    return (
        (not logits.is_cpu and NOT_CPU)
        or (not logits.requires_grad and NOTHING_LEARNS)
        or (not logits.numel() and "there are no rows")
        or _captured_or_transformed()
    )


def _ctc(log_probs: Tensor) -> Reason:
    exact = log_probs.is_cuda and torch.are_deterministic_algorithms_enabled()
    return (exact and "torch's own is not deterministic on a GPU") or _captured_or_transformed()


def _captured_or_transformed() -> Reason:
    return (_capturable and CAPTURED) or (is_transformed() and TRANSFORMED)


def _topk(values: Tensor, blocks: int, count: int) -> Reason:
    few = values.numel() < LEAST_SORTED or blocks <= 2 * count
    return (not values.is_cpu and NOT_CPU) or (few and "there are too few numbers")


def _columns(module: nn.Module, kinds: Collection[type[nn.Module]]) -> Reason:
    return (not are_unchanged(module, kinds) and CHANGED) or (not next(module.parameters()).is_cpu and NOT_CPU)


def _add_norm(states: Tensor, update: Tensor | None, norm: nn.LayerNorm | nn.RMSNorm) -> Reason:
    return (
        (update is None and "there is nothing to add")
        or (not states.is_cuda and NOT_GPU)
        or ((not is_unchanged(norm, nn.LayerNorm) or norm.weight is None or norm.bias is None) and CHANGED)
        or (not torch.is_grad_enabled() and NOTHING_LEARNS)
        or (not states.dtype == norm.weight.dtype == torch.float32 and "states and norm are not float32")
        or ((states.shape[-1] > gpu.WIDEST_ROW or states.numel() >= 1 << 31) and "the rows are too wide, or too many")
        or (not gpu.AVAILABLE and NO_TRITON)
    )


def _additive_attention(
    score: Any, is_softmax: bool, query: Tensor, keys: Tensor, values: Tensor, mask: Any, bias: object, drop: float
) -> Reason:
    return (
        (not torch.is_grad_enabled() and NOTHING_LEARNS)
        or (not score.has_kernel and "the score is not additive, or was hooked or replaced")
        or (not is_softmax and NO_SOFTMAX)
        or (drop != 0.0 and DROPS)
        or (bias is not None and BIASED)
        or ((torch.compiler.is_compiling() or is_transformed()) and COMPILED_OR_TRANSFORMED)
        or _additive_shapes(query, keys, values, mask)
        or (keys.is_cuda and (keys.dtype != torch.float32 or keys.shape[2] > MOST_KEYS) and MANY_KEYS)
        or (keys.is_cuda and not gpu.AVAILABLE and NO_TRITON)
    )


def _additive_shapes(query: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None) -> Reason:
    if not query.ndim == keys.ndim == values.ndim == 4 or not query.shape[1] == keys.shape[1] == 1:
        return "there are several heads or beams"
    if keys.dtype not in (torch.float32, torch.float64) or not query.dtype == keys.dtype == values.dtype:
        return MIXED
    if not query.device == keys.device == values.device or values.shape[:3] != keys.shape[:3]:
        return "keys and values do not belong together"
    if len(query) != len(keys) or (mask is not None and not mask.shape[1] == mask.shape[2] == 1):
        return "queries of one source see different keys"
    learned = keys.is_contiguous() and values.is_contiguous() and keys.requires_grad and values.requires_grad
    return not learned and "keys or values need no gradient, or are not contiguous"


def _fused_attention(query: Tensor, score: Any, is_softmax: bool, may_fuse: bool, drop: float) -> Reason:
    return (
        (not may_fuse and "its weights are requested, or masked keys are not zeroed yet")
        or (score.dot_scale is None and "the score is not a dot product, or was hooked or replaced")
        or (not is_softmax and NO_SOFTMAX)
        or (drop != 0.0 and query.is_cpu and "attention weights have dropout on the CPU")
        or (is_transformed() and TRANSFORMED)
    )


def _short_attention(
    query: Tensor, keys: Tensor, values: Tensor, mask: object, causal: bool, bias: object, drop: float
) -> Reason:
    return (
        (not query.is_cuda and NOT_GPU)
        or (not torch.is_grad_enabled() and NOTHING_LEARNS)
        or (drop != 0.0 and DROPS)
        or (bias is not None and BIASED)
        or ((query.ndim != 4 or not query.shape[:2] == keys.shape[:2] == values.shape[:2]) and HEADS_DIFFER)
        or (not query.dtype == keys.dtype == values.dtype == torch.bfloat16 and NOT_BFLOAT16)
        or (not (mask is None or isinstance(mask, Tensor) or causal) and "queries start after the first key")
        or (query.shape[-1] != values.shape[-1] and "keys and values differ in width")
        or _too_long(max(query.shape[-2], keys.shape[-2]), query.shape[-1], mask)
    )


def _packed_attention(
    attention: Any, wide: Tensor, mask: object, bias: object, before: object, rotates: bool
) -> Reason:
    return (
        (not wide.is_cuda and NOT_GPU)
        or (not torch.is_grad_enabled() and NOTHING_LEARNS)
        or (wide.dtype != torch.bfloat16 and NOT_BFLOAT16)
        or ((before is not None or bias is not None or rotates) and TOKENS_BEFORE)
        or (attention.groups != attention.heads and "heads share their keys in groups")
        or (attention.training and attention.attention.dropout > 0.0 and DROPS)
        or (is_observed(attention.attention) and "the attention is recorded")
        or (attention.attention.plain_scale() is None and NOT_PLAIN)
        or _too_long(wide.shape[1], attention.width, mask)
    )


def _too_long(longest: int, width: int, mask: object) -> Reason:
    if isinstance(mask, Tensor) and not mask.shape[1] == mask.shape[2] == 1:
        return "heads or queries see different keys"
    if longest > gpu.MOST_TOKENS or width not in gpu.HEAD_WIDTHS:
        return "the tokens are too many for a GPU's program, or a head is of another width"
    return not gpu.AVAILABLE and NO_TRITON


def _joint_projection(attentions: Sequence[Any], kind: type[Any], layer: type[nn.Module]) -> Reason:
    if not torch.is_grad_enabled():
        return NOTHING_LEARNS
    for cross in attentions:
        if type(cross) is not kind or not is_unchanged(cross.key, layer) or not is_unchanged(cross.value, layer):
            return CHANGED
    return False


def _unpacked_reading(recurrence: Any) -> Reason:
    return (not (_capturable and recurrence.training) and NOT_CAPTURED) or (not recurrence.is_unchanged() and CHANGED)


def _padded_letters(letters: nn.Module) -> Reason:
    is_captured = _capturable and letters.training
    return (not is_captured and NOT_CAPTURED) or (any(map(is_hooked, letters.modules())) and CHANGED)


def _recurrence_by_layers(recurrence: Any) -> Reason:
    return _unpacked_reading(recurrence) or (not recurrence.rnn.dropout and "nothing is dropped between its layers")


def _recurrent_gates(recurrence: Any, cells: Collection[str]) -> Reason:
    if not recurrence.is_unchanged():
        return CHANGED
    rnn = recurrence.rnn
    known = rnn.mode in cells and rnn.bias and not rnn.bidirectional and not rnn.proj_size
    return not known and "the layers have no bias, two directions, or are projected"


def _fused_cell(weight: Tensor, cell: str, cells: Collection[str]) -> Reason:
    return (not weight.is_cuda and NOT_GPU) or (cell not in cells and "torch has no fused kernel for this cell")


def _search_step(decoder: Any, mask: Tensor) -> Reason:
    """The reason against any search step without module calls; `_all_see` checks the mask's values after all else."""
    if decoder.training or torch.is_grad_enabled():
        return "the model is training, or gradients are computed"
    if is_autocast(mask) or decoder.embedding.weight.dtype not in (torch.float32, torch.float64):
        return "products are in half precision"
    if mask.is_meta:
        return "the meta device has no values"
    return is_transformed() and TRANSFORMED


def _all_see(mask: Tensor) -> Reason:
    """Called only without gradients: it reads the mask on the host, and a captured update may not wait for that."""
    return not bool(mask.any(-1).all()) and "a source has no key that may be attended to"


def _plain_transformer(decoder: Any, mask: Tensor, kinds: Collection[type[nn.Module]]) -> Reason:
    if reason := _search_step(decoder, mask):
        return reason
    if not all(are_unchanged(layer, kinds) for layer in decoder.layers):
        return "a layer's score is not a dot product of the states, or a module was hooked or replaced"
    if decoder.out is not None and not is_unchanged(decoder.out, *kinds):
        return CHANGED
    parts = [part for layer in decoder.layers for part in (layer.attention, layer.cross) if part is not None]
    if not all(part.attention.plain_scale() and part.groups == part.heads for part in parts):
        return "it is not a softmax over dot products of all keys, or heads share their keys in groups"
    return decoder.attends and _all_see(mask)


def _plain_recurrent(decoder: Any, mask: Tensor, scope: type[nn.Module], softmax: object) -> Reason:
    attention = decoder.attention
    if reason := _search_step(decoder, mask):
        return reason
    if attention is not None and not (is_unchanged(attention, scope) and attention.normalize is softmax):
        return "it is not a softmax over all keys with one head, or was hooked or replaced"
    if any(map(is_hooked, decoder.modules())):
        return CHANGED
    return attention is not None and _all_see(mask)


def _captured_updates(task: Any, model: nn.Module, data: Any) -> Reason:
    settings = task.recipe.train
    if not settings.capture:
        return "train.capture is false"
    if not next(model.parameters()).is_cuda:
        return "the model is not on a GPU"
    if settings.accumulate != 1 or settings.sampling or settings.guided:
        return "train.accumulate, train.sampling or train.guided is set"
    if any(map(is_hooked, model.modules())):
        return "a module is hooked: a graph would run its operations without the hook"
    with torch.random.fork_rng(devices=[]):  # collate may draw random numbers, and a resumed run calls this again
        return (
            not isinstance(task.collate(data, [0]), Capturable)
            and "a batch of this task cannot be taken from a table on the GPU"
        )


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
        lambda: (not torch.is_grad_enabled() and NOTHING_LEARNS) or (is_transformed() and TRANSFORMED),
        "tests/kernels/test_one_gradient.py"),
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
        lambda weight: (torch.is_grad_enabled() and LEARNS) or (not weight.is_cpu and NOT_CPU),
        "tests/laws/test_plain_laws.py"),
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
    "ctc": Path("regard.kernels.ctc.plain", "torch.nn.functional.ctc_loss",
        "updates are not captured, and on a GPU train.deterministic is false: torch's own reads lengths on the host",
        _ctc, "tests/kernels/test_ctc.py"),
    "ctc_both_ways": Path("regard.kernels.ctc.plain", "regard.kernels.ctc._BothWays",
        "the CTC loss is trained, and torch's own may not run",
        lambda log_probs: (not log_probs.requires_grad and NOTHING_LEARNS) or (is_transformed() and TRANSFORMED),
        "tests/kernels/test_ctc.py"),
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
        lambda: torch.is_grad_enabled() and LEARNS, "tests/kernels/test_choose.py"),
    "learned_positions": Path("torch.nn.Embedding", "regard.attention.positions.Learned.embed",
        "learned positions are a slice of their table, unless it was hooked or replaced",
        lambda table: not is_unchanged(table, nn.Embedding) and CHANGED, "tests/kernels/test_choose.py"),
    # recurrent layers
    "recurrent_gates": Path("regard.layers.recurrence.Recurrence.forward", "regard.layers.recurrence.Gates",
        "recurrent layers step token by token: one product computes the inputs' part of the gates for all steps",
        _recurrent_gates, "tests/kernels/test_choose.py"),
    "fused_cell": Path("regard.layers.recurrence.STEPS", "regard.layers.recurrence.FUSED_STEPS",
        "a GRU or LSTM steps token by token on a GPU",
        _fused_cell, "tests/kernels/test_gpu.py", "gpu"),
    "unpacked_reading": Path(
        "regard.layers.recurrence.Recurrence.read", "regard.layers.recurrence.Recurrence.read_unpacked",
        "recurrent layers read padded rows in an update that a CUDA graph must capture",
        _unpacked_reading, "tests/test_recurrence.py", "gpu"),
    "recurrence_by_layers": Path(
        "regard.layers.recurrence.Recurrence.forward", "regard.layers.recurrence.Recurrence.forward_by_layers",
        "recurrent layers with dropout between them run in an update that a CUDA graph must capture",
        _recurrence_by_layers, "tests/test_recurrence.py", "gpu"),
    # letters of words
    "padded_letters": Path("regard.models.letters.Letters.forward", "regard.models.letters.Letters.read_padded",
        "a tagger reads the letters of padded rows in an update that a CUDA graph must capture",
        _padded_letters, "tests/tasks/test_tag.py", "gpu"),
    # steps of a search
    "plain_transformer": Path(
        "regard.decoders.transformer.DecoderLayer.forward", "regard.decoders.plain.TransformerStep.step",
        "a search steps through a Transformer of dot-product attention in full precision, no module changed",
        _plain_transformer, "tests/laws/test_plain_laws.py"),
    "plain_recurrent": Path(
        "regard.decoders.recurrent.RecurrentDecoder.attend_ungated", "regard.decoders.plain.RecurrentStep.attend",
        "a search steps through a recurrent decoder with a softmax over all keys in full precision, no module changed",
        _plain_recurrent, "tests/laws/test_plain_laws.py"),
    "one_row_step": Path(LINEAR, "regard.kernels.linear.linear_one_row",
        "within plain_transformer, there is one row",
        lambda rows: rows != 1 and "there are several rows", "tests/laws/test_plain_laws.py"),
    "few_queries": Path(
        "regard.decoders.plain.SoftmaxAttention.context", "torch.nn.functional.scaled_dot_product_attention",
        f"within plain_transformer, an attention whose weights are not requested has at most {FEW_ROWS} rows",
        lambda rows: rows > FEW_ROWS and "there are many rows", "tests/laws/test_plain_laws.py"),
    "keys_by_columns": Path("regard.attention.heads.project_all", "regard.decoders.plain.keys_by_columns",
        f"within plain_transformer, more than {FEW_ROWS} sources are searched at once",
        lambda rows: rows <= FEW_ROWS and "there are few rows", "tests/laws/test_plain_laws.py"),
    "whole_beams": Path("regard.search.beam.Results.update", "regard.search.beam._advance",
        "no hypothesis of a beam search ends at this step: all rows continue, and none is checked by itself",
        lambda whole: not whole and "a hypothesis ends, or a sentence is done", "tests/kernels/test_choose.py"),
    # training
    "captured_updates": Path("regard.training.engine.eager.Eager", "regard.training.engine.captured.Captured",
        "a GPU trains on whole batches of pairs, or of texts with labels or tags, and train.capture is true",
        _captured_updates, "tests/training/test_capture.py", "gpu"),
}
# fmt: on

# Plain variables and functions, which torch.compile can trace.
_conditions: dict[str, Callable[..., Reason]] = {name: path.condition for name, path in PATHS.items()}
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
    """How often a twin was taken, and how often it was not taken, by reason."""

    taken: int = 0
    against: dict[str, int] = field(default_factory=dict)


@contextmanager
def count_answers() -> Iterator[Mapping[str, PathCounts]]:
    """In the block, the answers of all conditions are counted, by path; those never called are left out."""
    answers: dict[str, PathCounts] = {}
    before = dict(_conditions)

    def counted(name: str, condition: Callable[..., Reason], *arguments: Any) -> Reason:
        reason, counts = condition(*arguments), answers.setdefault(name, PathCounts())
        if reason:
            counts.against[reason] = counts.against.get(reason, 0) + 1
        else:
            counts.taken += 1
        return reason

    _conditions.update({name: partial(counted, name, condition) for name, condition in before.items()})
    try:
        yield answers
    finally:
        _conditions.update(before)
