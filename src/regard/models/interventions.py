"""Interventions in a model: hooks of its attentions, and changes of what its encoder reads."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from regard.attention.foreign import Changer, attention_names, change_weights, check_can_be_seen
from regard.attention.heads import MultiHead, SelfAttention
from regard.attention.intervene import Erase, Feed, Force, Intervention, Swap, WeightIntervention, read
from regard.attention.masks import materialize
from regard.attention.normalizers import Pairs
from regard.attention.scopes import Scope, WeightHook, Weights
from regard.attention.sites import DECODER_SELF, POOLING, Site, sites, sites_of_any
from regard.encoders import Encoder
from regard.errors import RecipeError, shown
from regard.maps import TEXT, Layout, numbered
from regard.models.forecaster import Forecaster
from regard.models.language import LanguageModel
from regard.models.seq2seq import Seq2Seq
from regard.models.span import SpanModel
from regard.sources import SourceBatch
from regard.types import UNKNOWN, Memory

TRAINING = "interventions are for predictions, not for training; call model.eval() before"


@contextmanager
def intervene(model: nn.Module, *interventions: Intervention | str) -> Iterator[None]:
    """In the block, the interventions act in forward passes and in searches; afterwards the model is as before.

    They are those of `attention.intervene`, or short texts; layers, heads, rows, columns and positions are counted from
    1. Interventions on weights act one after another; of those on the source, `Swap` acts before `Erase`. They act on
    all texts of a batch. Weights that are recorded, or returned as maps, are the changed ones. Of nested blocks, the
    inner one changes weights first. Training is refused.
    """
    chosen = read(interventions)
    if not isinstance(model, nn.Module):
        raise RecipeError(f"intervene takes a model, which is a torch.nn.Module, or a Predictor, not {shown(model)}")
    with ExitStack() as stack:
        for hooked in _hooks(model, [one for one in chosen if isinstance(one, WeightIntervention)]):
            stack.enter_context(hooked)
        _change_source(model, [one for one in chosen if not isinstance(one, WeightIntervention)], stack)
        stack.enter_context(_listed(model, chosen))
        yield


class _Block(NamedTuple):
    """A block in which interventions act."""

    modules: frozenset[nn.Module]
    interventions: Sequence[Intervention]


_OPEN: dict[int, _Block] = {}  # the blocks that are open, in the order in which they were entered


def active(model: nn.Module) -> tuple[Intervention, ...]:
    """The interventions that now act in a model, also those of blocks around a part of it or around a larger model."""
    blocks = list(_OPEN.values())
    modules = frozenset(model.modules()) if blocks else frozenset()
    return tuple(one for block in blocks if block.modules & modules for one in block.interventions)


@contextmanager
def _listed(model: nn.Module, chosen: Sequence[Intervention]) -> Iterator[None]:
    """In the block, `active` lists these interventions."""
    block = _Block(frozenset(model.modules()), chosen)
    _OPEN[id(block)] = block
    try:
        yield
    finally:
        del _OPEN[id(block)]


# ---- attention weights


def _places(model: nn.Module) -> dict[str, Site]:
    """The attentions whose weights can be changed, by the name of their module, also in models of other packages."""
    own = sites(model)
    if own:
        return own
    check_can_be_seen(model, "changed")
    return sites_of_any(model, attention_names(model))


def _hooks(model: nn.Module, changes: Sequence[WeightIntervention]) -> list[AbstractContextManager[None]]:
    """Blocks in which the weights of all attentions that are chosen are changed."""
    places = _places(model)
    names = list(dict.fromkeys(site for site, _ in places.values()))
    by_module: dict[str, list[WeightIntervention]] = {}
    for change in changes:
        if not names:
            raise RecipeError(
                f"{change}: this model has no attention with keys, whose weights could be changed (those of "
                "forecast.lag_mixture cannot; of other packages, nn.MultiheadAttention and classes with Attention in "
                "their name can)"
            )
        site = names[0] if change.site is None else change.site
        if site not in names:
            raise RecipeError(f"{change}: the site {shown(site)} is not in this model, which has {', '.join(names)}")
        _check_place(model, change, site)
        for module, place in places.items():
            if place.name == site and change.layer in (None, place.layer):
                by_module.setdefault(module, []).append(change)
    return [_changing(model, module, own) for module, own in by_module.items()]


def _check_place(model: nn.Module, change: WeightIntervention, site: str) -> None:
    """Raise RecipeError if the model has no such layer, head, row or column."""
    modules = [module for module, place in _places(model).items() if place.name == site]
    counts = [("layer", change.layer, len(modules))]
    if isinstance(model.get_submodule(modules[0]), Scope):  # others have their heads when they run
        counts.append(("head", change.head, _heads(model, modules[0]) or 1))
    for noun, value, count in counts:
        if value is not None and not 1 <= value <= count:
            raise RecipeError(f"{change}: {noun} {shown(value)} is not there; {site} has {numbered(noun, count)}")
    if not isinstance(change, Force):
        return
    _check_numbers(change, change.row, change.column)
    assert isinstance(change.row, int)
    assert isinstance(change.column, int)
    if site == POOLING and change.row != 1:
        raise RecipeError(f"{change}: {site} has one row, that of the label; write row=1")
    if site == DECODER_SELF and change.column > change.row:
        raise RecipeError(f"{change}: a row of {site} sees the columns up to its own number, {change.row}")


def _check_numbers(change: Intervention, *positions: object) -> None:
    """Raise RecipeError if a position is a word: a model alone does not know the words of its source."""
    for position in positions:
        if not isinstance(position, int):
            how = "give its number, counted from 1, or call Predictor.intervene, which finds words"
            raise RecipeError(f"{change}: a model has no words, so that {shown(position)} cannot be found; {how}")


def _heads(model: nn.Module, module: str) -> int | None:
    """The number of heads around a scope; None if its weights have no axis of heads."""
    outer = model.get_submodule(module.rpartition(".")[0])
    return outer.heads if isinstance(outer, MultiHead | SelfAttention) else None


@contextmanager
def _changing(model: nn.Module, name: str, changes: Sequence[WeightIntervention]) -> Iterator[None]:
    """In the block, the weights of one attention are changed: by a hook, or in torch's function if it has no scope."""

    def change(call: Weights, heads: bool) -> Pairs:
        for one in changes:
            call = call._replace(weights=one.change(call, heads))
        return call.weights

    def change_foreign(module: nn.Module, call: Weights, heads: bool) -> Pairs:
        if module.training:
            raise RecipeError(TRAINING)
        count = call.weights.shape[-3] if heads else 1
        for one in changes:
            if one.head is not None and not 1 <= one.head <= count:
                raise RecipeError(f"{one}: head {shown(one.head)} is not there; {name} has {numbered('head', count)}")
        return change(call, heads)

    attention = model.get_submodule(name)
    if not isinstance(attention, Scope):
        with change_weights(Changer({attention: name}, change_foreign)):
            yield
        return
    hook = WeightHook(partial(change, heads=_heads(model, name) is not None))
    # First of all hooks, so that those that record see the changed weights.
    handle = attention.register_forward_hook(hook, with_kwargs=True, prepend=True)
    try:
        yield
    finally:
        handle.remove()


# ---- the source


def _change_source(model: nn.Module, changes: Sequence[Intervention], stack: ExitStack) -> None:
    """Let the model read another source until the stack is closed: swapped, erased, or another memory."""
    if not changes:
        return
    swaps = [change for change in changes if isinstance(change, Swap)]
    erasures = [change for change in changes if isinstance(change, Erase)]
    fed = [change for change in changes if isinstance(change, Feed)]
    for swap in swaps:
        _check_numbers(swap, swap.first, swap.second)
    for erase in erasures:
        _check_numbers(erase, erase.first)
    if not sites(model) and attention_names(model):
        raise RecipeError(
            f"{changes[0]}: regard did not build this model, and can change its attention weights alone: by silence, "
            "force, uniform and permute; change the input itself"
        )
    encoder = getattr(model, "encoder", None)
    if not isinstance(encoder, Encoder):
        _change_prompt(model, changes, erasures, stack)
        return
    if isinstance(vars(encoder).get("read"), _Fed) or (fed and "read" in vars(encoder)):
        raise RecipeError("feed replaces the whole memory, so that nothing else is read; leave one of the blocks out")
    if fed:
        _check_fed(model, changes)
        memory = fed[0].source
        assert isinstance(memory, Memory)
        stack.enter_context(_replaced(encoder, "read", _Fed(encoder, memory)))
    else:
        stack.enter_context(_replaced(encoder, "read", _Reader(encoder, swaps, erasures)))
    if isinstance(model, Seq2Seq) and model.decoder.copies:
        ids = partial(_read_ids, model.read, swaps, fed[0].source if fed else None)
        stack.enter_context(_replaced(model, "read", ids))
    if isinstance(model, SpanModel) and erasures:
        handle = model.register_forward_pre_hook(partial(_erase_answers, erasures))
        stack.callback(handle.remove)


@contextmanager
def _replaced(module: nn.Module, name: str, function: Callable[..., Any]) -> Iterator[None]:
    """In the block, a method of one module is another function."""
    before = vars(module).get(name)
    setattr(module, name, function)
    try:
        yield
    finally:
        delattr(module, name)
        if before is not None:
            setattr(module, name, before)


class _Reader:
    """An encoder's `read` with swapped and erased positions.

    An erased position is masked, as if it were padding; its state is zero. If the encoder can mask no position before
    others, as recurrent ones cannot, the position is left out, and its zero state put back into the memory, so that all
    positions keep their numbers.
    """

    def __init__(self, encoder: Encoder, swaps: Sequence[Swap], erasures: Sequence[Erase]) -> None:
        self.encoder, self.read = encoder, encoder.read
        self.swaps, self.erasures = [*swaps], [*erasures]
        if isinstance(self.read, _Reader):  # in nested blocks, positions are those of the whole source, too
            self.swaps, self.erasures = self.read.swaps + self.swaps, self.read.erasures + self.erasures
            self.read = self.read.read

    def __call__(
        self, vectors: Float[Tensor, "batch source word"], mask: Bool[Tensor, "batch source"], layout: Layout = TEXT
    ) -> Memory:
        """Encode the vectors that are left."""
        if self.encoder.training:
            raise RecipeError(TRAINING)
        order = _swapped(self.swaps, mask)
        vectors, erased = vectors[:, order], _erased(self.erasures, mask)
        left = mask & ~erased
        if bool((mask.any(-1) & ~left.any(-1)).any()):
            raise RecipeError("every position of a source is erased, so that nothing is left to read; erase fewer")
        if not self.erasures or self.encoder.skips_holes:
            return self.read(vectors.masked_fill(erased.unsqueeze(-1), 0.0), left, layout)
        kept = (~erased).nonzero().squeeze(-1)
        memory = self.read(vectors[:, kept], mask[:, kept], layout)
        states = memory.states.new_zeros(*vectors.shape[:2], memory.states.shape[-1])
        return replace(memory, states=states.index_copy(1, kept, memory.states), mask=left)


def _swapped(swaps: Sequence[Swap], mask: Bool[Tensor, "batch source"]) -> list[int]:
    """The position that is read in place of each; RecipeError if a swapped one is not in every source."""
    order = list(range(mask.shape[1]))
    for swap in swaps:
        assert isinstance(swap.first, int)
        assert isinstance(swap.second, int)
        first, second = swap.first - 1, swap.second - 1
        if max(first, second) >= len(order) or not bool(mask[:, [first, second]].all()):
            raise RecipeError(f"{swap}: a source has only {int(mask.sum(-1).min())} positions, counted from 1")
        order[first], order[second] = order[second], order[first]
    return order


def _erased(erasures: Sequence[Erase], mask: Bool[Tensor, "batch source"]) -> Bool[Tensor, " source"]:
    """True at erased positions; RecipeError if one is in no source of the batch."""
    erased = torch.zeros_like(mask[0])
    for erase in erasures:
        positions = erase.positions()
        if positions.stop > len(erased):
            raise RecipeError(f"{erase}: the source has only {len(erased)} positions, counted from 1")
        erased[positions.start : positions.stop] = True
    return erased


def _check_fed(model: nn.Module, changes: Sequence[Intervention]) -> None:
    """Raise RecipeError if a memory cannot be fed: without a decoder, as a text, or beside other changes."""
    if not isinstance(model, Seq2Seq):
        raise RecipeError("feed gives a decoder another memory, but this model has no decoder with a source")
    if len(changes) > 1:
        raise RecipeError("feed replaces the whole memory, so that nothing else is read; erase or swap in its source")
    (change,) = changes
    assert isinstance(change, Feed)
    if not isinstance(change.source, Memory):
        how = "give the Memory of model.read, or call Predictor.intervene, which reads it"
        raise RecipeError(f"{change}: a model cannot read a text; {how}")
    if model.decoder.copies and change.source.ids is None:
        raise RecipeError("feed: this decoder copies source tokens, so that the memory needs ids; take model.read's")


class _Fed:
    """An encoder's `read` that returns a memory of another source."""

    def __init__(self, encoder: Encoder, memory: Memory) -> None:
        self.encoder, self.memory = encoder, memory

    def __call__(
        self, vectors: Float[Tensor, "batch source word"], mask: Bool[Tensor, "batch source"], layout: Layout = TEXT
    ) -> Memory:
        """The memory, for as many sources as there are."""
        if self.encoder.training:
            raise RecipeError(TRAINING)
        memory, rows = self.memory.to(mask.device), len(self.memory.mask)
        if rows not in (1, len(mask)):
            raise RecipeError(f"feed: the memory has {rows} rows, and the batch {len(mask)}; give 1, or as many")
        return memory.repeat(len(mask)) if rows == 1 else memory


def _read_ids(
    read_source: Callable[[SourceBatch], Memory],
    swaps: Sequence[Swap],
    fed: Memory | str | None,
    source: SourceBatch,
) -> Memory:
    """`Seq2Seq.read` of a decoder that copies: its tokens are swapped too, or those of the memory that is fed."""
    memory = read_source(source)
    if isinstance(fed, Memory) and fed.ids is not None:
        return replace(memory, ids=fed.ids.to(memory.mask.device).expand(len(memory.mask), -1))
    assert memory.ids is not None
    return replace(memory, ids=memory.ids[:, _swapped(swaps, memory.mask)])


def _erase_answers(erasures: Sequence[Erase], model: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    """A hook before a span model: erased tokens are no answers, and equal to no token of the context."""
    source, context = inputs
    erased = _erased(erasures, source.mask)
    return replace(source, ids=source.ids.masked_fill(erased, UNKNOWN)), context & ~erased


# ---- language models


def _change_prompt(
    model: nn.Module, changes: Sequence[Intervention], erasures: Sequence[Erase], stack: ExitStack
) -> None:
    """Hide the tokens of a prompt from the self-attention of a language model; RecipeError for other changes."""
    others = [change for change in changes if change not in erasures]
    if others:
        raise RecipeError(f"{others[0]}: this model has no encoder; change the text itself")
    scopes = [name for name, place in sites(model).items() if place.name == DECODER_SELF]
    if isinstance(model, Forecaster):
        raise RecipeError(
            f"{erasures[0]}: each step of a forecast reads earlier values directly; leave them out instead"
        )
    if not isinstance(model, LanguageModel) or not scopes:
        raise RecipeError(f"{erasures[0]}: this model has no attention that could skip a position")
    for name in scopes:
        hide = partial(_hide, erasures)
        handle = model.get_submodule(name).register_forward_pre_hook(hide, with_kwargs=True)
        stack.callback(handle.remove)


def _hide(
    erasures: Sequence[Erase], scope: nn.Module, inputs: tuple[Any, ...], named: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """A hook before an attention: no query may see the erased keys."""
    if scope.training:
        raise RecipeError(TRAINING)
    query, keys, _ = inputs
    visible = torch.ones(keys.shape[-2], dtype=torch.bool, device=keys.device)
    for erase in erasures:
        visible[erase.positions().start : erase.positions().stop] = False
    mask = materialize(named["mask"], query, keys)
    visible = visible.view(*[1] * (query.ndim - 1), -1)
    return inputs, named | {"mask": visible if mask is None else mask & visible}
