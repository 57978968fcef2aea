"""Record attention weights and gates of forward passes and searches, without a change of their results.

Modules of regard are recorded by hooks that their fast paths call too; those of other packages by `foreign`.
"""

import operator
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import partial
from typing import Any, NamedTuple, Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from regard.attention.core import Attended
from regard.attention.foreign import (
    HOOKED,
    WITHOUT_KEYS,
    Call,
    Watcher,
    attention_names,
    check_can_be_seen,
    foreign_modules,
    watch,
)
from regard.attention.gates import ContextGate, SqueezeExcite, lstm_gates
from regard.attention.heads import MultiHead, SelfAttention
from regard.attention.intervene import Intervention
from regard.attention.lags import LagMixture
from regard.attention.masks import Causal
from regard.attention.scopes import Scope
from regard.attention.sites import DECODER_SELF, POOLING, Site, sites_of_any
from regard.errors import MOST_LISTED, RecipeError, did_you_mean, quantity, shown
from regard.kernels.choose import Observer
from regard.maps import OWN, TEXT, AttentionMap, AttentionMaps, Grid, LayerMaps, Layout, Place, numbered
from regard.types import Memory

OWN_MODULES = HOOKED | nn.LSTM
NAMED = 3  # number of modules that the repr of a recording names
NOTHING = (
    "nothing was recorded: run the model inside the block. Of modules that regard did not build, calls of "
    "torch.nn.functional.scaled_dot_product_attention, by this whole name, and of nn.MultiheadAttention are recorded, "
    "if not compiled"
)
ONE_BY_ONE = (
    "record each batch on its own, or call predict(texts, all_maps=True), which gives the maps of every text"  # of runs
)
# The sentence under maps of a model that is recorded without its run.
WITHOUT_RUN = "not measured; regard measure RUN measures the maps of runs, and record(predictor) says the result"
Rows = Sequence[int] | slice


@dataclass(frozen=True)
class Selection:
    """The heads and rows of the weights that are recorded; None means all."""

    heads: tuple[int, ...] | None = None  # counted from 1, ascending
    rows: Collection[int] | None = None  # counted from 0

    @staticmethod
    def of(heads: Sequence[int] | None, rows: Rows | None) -> "Selection":
        """Check the arguments of `record`."""
        for argument, given in (("heads", heads), ("rows", rows)):
            if given is not None and not isinstance(given, slice | Iterable):
                raise RecipeError(f"{argument}: {shown(given)} is no list of whole numbers; write {argument}=[...]")
        numbers = None if heads is None else tuple(sorted({_index(head, "heads", 1) for head in heads}))
        if numbers == ():
            raise RecipeError("heads=() records nothing; give numbers of heads, counted from 1, or None for all")
        if isinstance(rows, slice):
            start, stop = _index(rows.start or 0, "rows", 0), rows.stop
            stop = sys.maxsize if stop is None else _index(stop, "rows", 0)
            return Selection(numbers, range(start, stop, _index(1 if rows.step is None else rows.step, "rows", 1)))
        if isinstance(rows, range):
            _index(min(rows, default=0), "rows", 0)
            return Selection(numbers, rows)
        return Selection(numbers, None if rows is None else frozenset(_index(row, "rows", 0) for row in rows))

    def head_indices(self, name: str, heads: int | None) -> list[int] | None:
        """The indices of the selected heads of a module; None means all, or that there is no axis of heads."""
        count = heads or 1
        if self.heads is None:
            return None
        if self.heads[-1] > count:
            raise RecipeError(f"head {self.heads[-1]}: {_named(name)} has {numbered('head', count)}")
        return None if heads is None else [head - 1 for head in self.heads]

    def row_indices(self, first: int, count: int) -> list[int] | None:
        """The indices of the selected rows of a call whose rows have the numbers from `first` on; None means all."""
        return None if self.rows is None else [row for row in range(count) if first + row in self.rows]


def _index(number: int, argument: str, least: int) -> int:
    """A number of a head or row; RecipeError if it is not a whole number, or too small."""
    try:
        index = operator.index(number)
    except TypeError:
        index = least - 1
    if index < least:
        raise RecipeError(f"{argument}: {shown(number)} is not allowed; give whole numbers from {least}")
    return index


class Labels(NamedTuple):
    """The labels of both axes of a site's maps, in `Recording.maps`, and what the columns are.

    Unless given, the layout is that of the source, as the encoder of a regard model reports it, or text.
    """

    rows: Sequence[str]
    columns: Sequence[str]
    layout: Layout | None = None


AnyLabels = Labels | tuple[Sequence[str], Sequence[str]]


class Span(NamedTuple):
    """The rows of a recorded call: their numbers, and how many rows its module had with this call and those before."""

    numbers: Sequence[int]
    total: int


@dataclass
class Recording:
    """The recorded attention weights and gates, by the name of their module.

    An LSTM has several gates of shape (batch, time, units), each with its own name: `encoder.recurrence.rnn.forget_l0`.
    The gate of a decoder's context has the shape (batch, time, 1), the weights of lagged values (batch, time, lags).
    """

    calls: dict[str, list[Float[Tensor, "batch *heads query key"]]] = field(default_factory=dict)
    selection: Selection = Selection()
    spans: dict[str, list[Span]] = field(default_factory=dict)  # the rows of each of the calls
    totals: dict[str, int] = field(default_factory=dict)  # rows that each module had so far, recorded or not
    runs: dict[str, int] = field(default_factory=dict)  # calls of each module, recorded or not
    locate: Callable[[Collection[str]], dict[str, Site]] = field(default=lambda names: {})
    layout: Layout = TEXT  # of the source, if the encoder of a regard model ran
    of_beams: set[str] = field(default_factory=set)  # modules that a beam search of another package called
    not_chosen: dict[str, None] = field(default_factory=dict)  # modules that ran and are not in `layers`, in order
    active: Callable[[], Sequence[Intervention]] = field(default=lambda: ())  # interventions that act in the model now
    describe: Callable[[Sequence[Intervention]], str] = field(default=lambda changes: WITHOUT_RUN)
    changes: list[Intervention] = field(default_factory=list)  # interventions that acted in any call so far
    trust: dict[str, str] = field(default_factory=dict)  # how far the maps of each module may be trusted

    @property
    def weights(self) -> dict[str, Float[Tensor, "batch *heads query key"]]:
        """The weights by module, with the rows of all its calls joined: a decoder that steps makes many calls."""
        return {name: self.joined(name) for name in self.calls}

    @property
    def sites(self) -> dict[str, Site]:
        """Site and layer of each recorded attention, by the name of its module; gates have none."""
        return self.locate(self.calls)

    def joined(self, name: str) -> Float[Tensor, "batch *heads query key"]:
        """The weights of one module, with the rows of all its calls joined; RecipeError if it was not recorded."""
        if name not in self.calls:
            near = get_close_matches(name, list(self.calls), n=NAMED, cutoff=0)
            names = f"the nearest names are {_some(near)}" if near else self._nothing()
            raise RecipeError(f"{shown(name)} is not in the recording; {names}")
        return _joined(name, self.calls[name], [span.total for span in self._spans(name)])

    def row_numbers(self, name: str) -> tuple[int, ...]:
        """The number of each row of `joined`: rows are counted from 0 over all calls of the module in the block."""
        return tuple(number for span in self._spans(name) for number in span.numbers)

    def _nothing(self) -> str:
        """Why nothing was recorded."""
        if self.totals:
            rows = numbered("row", max(self.totals.values()), first=0)
            return f"the modules that ran have {rows}, and none of those in rows="
        if not self.not_chosen:
            return NOTHING
        return f"the modules in layers= ran no attention; {_some(self.not_chosen)} did"

    def _spans(self, name: str) -> list[Span]:
        """The rows of each call; calls that were not added by `record` have all rows."""
        spans = list(self.spans.get(name, ()))
        for weights in self.calls[name][len(spans) :]:
            first = spans[-1].total if spans else 0
            spans.append(Span(range(first, first + weights.shape[-2]), first + weights.shape[-2]))
        return spans

    def __repr__(self) -> str:
        names = ", ".join([*list(self.calls)[:NAMED], *["..."] * (len(self.calls) > NAMED)])
        return f"Recording({len(self.calls)} weights: {names})" if names else "Recording(nothing yet)"

    def map(
        self, name: str, row: int = 0, *, head: int | None = None, rows: Sequence[str] = (), columns: Sequence[str] = ()
    ) -> AttentionMap:
        """The map of one row of the batch: of one head or the mean of all, with labels or numbers on its axes.

        Heads are counted from 1, as in `AttentionMaps.pick` and on the command line; rows of the batch from 0, as in
        the list of texts. If only some rows of the map were recorded, `rows` has the labels of these, or of all.
        """
        weights = self.of_heads(name, row)
        numbers = self.selection.heads or tuple(range(1, len(weights) + 1))
        if head is not None and head not in numbers:
            recorded = f"{_named(name)} has {numbered('head', len(numbers))}"
            if self.selection.heads:
                recorded = f"of {_named(name)}, only {', '.join(map(str, numbers))} were recorded"
            raise RecipeError(f"head {head}: {recorded}")
        kept = self.row_numbers(name)
        labels = rows or tuple(map(str, range(self._total(name))))
        if len(labels) == self._total(name):
            labels = [labels[number] for number in kept]
        for axis, given, size in (("row", labels, len(kept)), ("column", columns, weights.shape[-1])):
            if given and len(given) != size:
                raise RecipeError(f"{_named(name)} has {quantity(size, axis)}; give as many labels, not {len(given)}")
        site = self.sites.get(name)
        only = numbers[0] if len(numbers) == 1 else head
        return AttentionMap(
            weights.mean(0) if head is None else weights[numbers.index(head)],
            tuple(labels),
            tuple(columns) or tuple(map(str, range(weights.shape[-1]))),
            self.layout_of(site, weights.shape[-1]),
            None if site is None else Place(site.name, site.layer, only),
            trust=self.trust.get(name, WITHOUT_RUN),
        )

    def maps(self, row: int = 0, *, labels: Mapping[str, AnyLabels] | None = None) -> AttentionMaps:
        """All maps of one row of the batch, by site, layer and head.

        `labels` has the labels of all rows and columns by site: {"encoder.self_attention": (tokens, tokens)}; `Labels`
        may have a layout too. Positions behind the last label are padding of the batch, and are left out. A site
        without labels has numbers.
        """
        places = self.sites
        if not places:
            raise RecipeError(f"there are no maps; {'only gates were recorded' if self.calls else self._nothing()}")
        names = dict.fromkeys(place.name for place in places.values())
        if not isinstance(labels, Mapping | None):
            raise RecipeError(f"labels: {shown(labels)} gives no labels by site; write {{SITE: (rows, columns)}}")
        unknown = next((site for site in labels or () if site not in names), None)
        if unknown is not None:
            raise RecipeError(f"labels of the site {shown(unknown)}: this recording has {', '.join(names)}")
        layers = [self._layer(name, row, place, (labels or {}).get(place.name)) for name, place in places.items()]
        return AttentionMaps(tuple(layers))

    def _layer(self, name: str, row: int, place: Site, labels: AnyLabels | None) -> LayerMaps:
        """The maps of all heads of one module."""
        weights, total = self.of_heads(name, row), self._total(name)
        if labels is None:
            labels = Labels(tuple(map(str, range(total))), tuple(map(str, range(weights.shape[-1]))))
        texts = isinstance(labels, tuple | list) and 2 <= len(labels) <= 3
        # two words, as in a list of two tokens, are no axes of letters
        words = not isinstance(labels, Labels) and texts and any(isinstance(axis, str) for axis in labels[:2])
        if not texts or words or not all(isinstance(axis, Sequence) for axis in labels[:2]):
            raise RecipeError(
                f"labels of the site {place.name}: give those of the rows and of the columns, (rows, columns), each a "
                f"list of texts, not {shown(labels)}"
            )
        rows, columns, layout = Labels(*labels)
        if len(rows) > total or len(columns) > weights.shape[-1]:
            sizes = f"{quantity(total, 'row')} and {quantity(weights.shape[-1], 'column')}"
            raise RecipeError(f"{place.name} has {sizes}, but {len(rows)} and {len(columns)} labels were given")
        kept = [(index, rows[number]) for index, number in enumerate(self.row_numbers(name)) if number < len(rows)]
        # copies, so that they do not keep the whole batch in memory
        weights = weights[:, [index for index, _ in kept], : len(columns)].clone()
        row_labels, heads = tuple(label for _, label in kept), self.selection.heads or ()
        trust = self.trust.get(name, WITHOUT_RUN)
        layout = layout or self.layout_of(place, len(columns))
        return LayerMaps(
            *place,
            weights,
            row_labels,
            tuple(columns),
            layout,
            head_numbers=heads,
            trust=trust,
            other_trust=trust,
        )

    def layout_of(self, site: Site | None, columns: int) -> Layout:
        """The layout of a map's columns: that of the source, unless they are tokens of the decoder."""
        layout = TEXT if site is None or site.name == DECODER_SELF else self.layout
        return TEXT if isinstance(layout, Grid) and layout.height * layout.width != columns else layout

    def of_heads(self, name: str, row: int) -> Float[Tensor, "heads query key"]:
        """The weights of one row of the batch, with one axis for heads (and beams, of which there is one)."""
        weights = self.joined(name)
        self._check_steps(name)
        try:
            index = operator.index(row)
        except TypeError:
            index = -1
        if not 0 <= index < len(weights):
            rows = f"rows 0 to {len(weights) - 1}" if len(weights) > 1 else "one row, row 0"
            raise RecipeError(f"row {shown(row)}: the batch that was recorded has {rows}")
        weights = weights[index]
        return weights.flatten(0, -3) if weights.ndim > 2 else weights.unsqueeze(0)

    def _check_steps(self, name: str) -> None:
        """RecipeError if the calls of a module are not the steps of one sequence, whose rows may be joined."""
        if name in self.of_beams:
            raise RecipeError(
                f"{name} ran in a beam search, whose rows are beams that change places, so that its maps are not those "
                "of the output; generate first, then run the winning sequence through the model once in a block of "
                "regard.record, and take the maps of this pass: model(**inputs, decoder_input_ids=output[:, :-1]), or "
                "model(output[:, :-1]) of a model without an encoder"
            )
        site, keys, rows = self.sites.get(name), self.calls[name][-1].shape[-1], self._total(name)
        if site is None or self.runs.get(name, 1) == 1:
            return
        whole = site.name.endswith(OWN) or site.name == POOLING
        most = 1 if site.name == POOLING else keys
        squares = keys > 1 and all(span.total % keys == 0 for span in self._spans(name))
        if rows > most and (whole or squares):
            raise RecipeError(
                f"{name} has {quantity(rows, 'row')} and {quantity(keys, 'column')}, since it was called "
                f"{self.runs[name]} times in the block, not for the steps of one search; {ONE_BY_ONE}"
            )

    def _total(self, name: str) -> int:
        return self.totals[name] if name in self.totals else self._spans(name)[-1].total

    def add(self, name: str, queries: int, weigh: Callable[[list[int] | None], Tensor]) -> None:
        """Store a call with so many rows; `weigh` computes the weights of the rows with these indices, or of all.

        A call after a change may read what changed modules computed, as a decoder reads the states of the encoder. So
        its sentence names the interventions of all calls so far, also of those that no longer act.
        """
        self.changes += [change for change in self.active() if change not in self.changes]
        self.trust[name] = self.describe(self.changes)
        self.runs[name] = self.runs.get(name, 0) + 1
        first = self.totals.get(name, 0)
        self.totals[name] = first + queries
        indices = self.selection.row_indices(first, queries)
        if indices == []:
            return
        self.calls.setdefault(name, []).append(weigh(indices))
        numbers = range(first, first + queries) if indices is None else [first + index for index in indices]
        self.spans.setdefault(name, []).append(Span(numbers, first + queries))


def _joined(name: str, calls: Sequence[Tensor], totals: Sequence[int]) -> Tensor:
    """Join the rows of all calls. If keys were added from call to call (a cache), later keys get weight 0 before.

    `totals` are the numbers of rows up to each call: a cache grows by as many keys as there are rows.
    """
    if len(calls) == 1:
        return calls[0]
    keys = [weights.shape[-1] for weights in calls]
    growing = [keys[0] + total - totals[0] for total in totals]
    in_cache = len(set(keys)) == 1 or keys == growing or _is_static_cache(calls, totals)
    if len({weights.shape[:-2] for weights in calls}) > 1 or not in_cache:
        raise RecipeError(
            f"{name} ran on batches of several sizes, or on steps without a cache, which cannot be joined to one map; "
            f"{ONE_BY_ONE}"
        )
    return torch.cat([functional.pad(weights, (0, keys[-1] - weights.shape[-1])) for weights in calls], dim=-2)


def _is_static_cache(calls: Sequence[Tensor], totals: Sequence[int]) -> bool:
    """Whether the calls are steps with a cache of fixed size, whose keys that are not there yet have weight 0.

    The first call, of a prompt, may have its own keys alone.
    """
    size = calls[-1].shape[-1]
    return totals[-1] <= size and all(
        weights.shape[-1] in (total, size) and not bool(weights[..., total:].any())
        for weights, total in zip(calls, totals, strict=True)
    )


def _named(name: str) -> str:
    """The name of a module, for messages."""
    return name or "the model itself"


def _some(names: Iterable[str]) -> str:
    """The first of the names, for messages."""
    names = [_named(name) for name in names]
    return ", ".join([*names[:MOST_LISTED], *["..."] * (len(names) > MOST_LISTED)])


@runtime_checkable
class HasModel(Protocol):
    """A `Predictor`, or another object with a model."""

    @property
    def model(self) -> nn.Module:
        """The model."""


@runtime_checkable
class HasTrust(Protocol):
    """A `Predictor`, whose run may have been measured."""

    @property
    def active_interventions(self) -> Sequence[Intervention]:
        """The interventions that act in the model now."""

    def trust_of_recorded(self, changes: Sequence[Intervention]) -> str:
        """The sentence under recorded maps of the model with these interventions."""


@contextmanager
def record(
    model: nn.Module | HasModel,
    *,
    layers: Sequence[str] | None = None,
    heads: Sequence[int] | None = None,
    rows: Rows | None = None,
) -> Iterator[Recording]:
    """Record the weights of all attentions and gates in a model, or of the modules whose names are in `layers`.

    `heads` are numbers of heads, counted from 1. `rows` are rows of the maps, by index or as a slice; they are counted
    from 0 over all calls of a module in the block. Only these weights are computed and kept.

    Results and gradients of the model stay the same, bit for bit: the recorded weights are copies. Weights of fused
    paths and gates are computed a second time, in the hook. The gates of an LSTM take about as long as stepping through
    the LSTM once more.

    A model that regard did not build is recorded too, with its fused attention left on, if it calls torch's attention
    functions: `nn.MultiheadAttention`, `nn.Transformer`, models of Hugging Face. It must not be compiled.

    A search (`Predictor.predict`) is recorded as if its best output had been forced: the steps of the search are not
    recorded, and after it the decoder runs once over the first output of every sentence of the batch. The rows are
    those of the output's tokens, without END; shorter outputs of a batch are padded. The rows of a language model begin
    with those of its prompt; with language_model.window, only the first window is recorded.
    """
    owner = model if isinstance(model, HasTrust) else None
    model = _model_of(model)
    check_can_be_seen(model)
    modules = dict(model.named_modules())
    foreign = foreign_modules(model)
    _check_layers(layers, modules, foreign.values(), model)
    located = partial(_attention_sites, model)
    recording = Recording(selection=Selection.of(heads, rows), locate=located)
    if owner is not None:
        recording.active, recording.describe = partial(getattr, owner, "active_interventions"), owner.trust_of_recorded
    with ExitStack() as stack:
        for name, module in modules.items():
            if isinstance(module, OWN_MODULES) and (layers is None or name in layers):
                outer = modules[name.rpartition(".")[0]]
                has_heads = name != "" and isinstance(outer, MultiHead | SelfAttention)
                hook = _recording_hook(recording, name, has_heads=has_heads)
                stack.callback(module.register_forward_hook(hook, with_kwargs=True).remove)
        encoder = modules.get("encoder")
        if encoder is not None and type(encoder).__module__.startswith("regard."):
            stack.callback(encoder.register_forward_hook(_layout_hook(recording)).remove)
        if foreign:
            stack.enter_context(watch(Watcher(foreign, Observer(partial(_record_call, recording, layers)))))
        yield recording


def _model_of(model: Any) -> nn.Module:
    """The model itself, or that of a `Predictor`; RecipeError if it is neither."""
    module = model if isinstance(model, nn.Module) else getattr(model, "model", None)
    if not isinstance(module, nn.Module):
        raise RecipeError(f"record takes a model, which is a torch.nn.Module, or a Predictor, not {shown(model)}")
    return module


def _check_layers(
    layers: Sequence[str] | None, modules: Mapping[str, nn.Module], foreign: Collection[str], model: nn.Module
) -> None:
    """RecipeError if one of the names is not that of a module that may have weights or gates."""
    if layers is None:
        return
    if isinstance(layers, str) or not isinstance(layers, Iterable):
        raise RecipeError(f"layers: {shown(layers)} is no list; write layers=[NAME] with names of modules")
    own = [name for name, module in modules.items() if isinstance(module, OWN_MODULES)]
    there = f"these modules have weights: {_some([*own, *attention_names(model)])}"
    if not layers:
        raise RecipeError(f"layers={shown(layers)} records nothing; leave it out, or give names; {there}")
    for name in layers:
        if not isinstance(name, str) or name not in modules:
            near = did_you_mean(name, modules) if isinstance(name, str) else "; give the name of a module"
            raise RecipeError(f"layers: the model has no module {shown(name)}{near}")
        if name not in own and name not in foreign:
            raise RecipeError(f"layers: {name or 'the model'} has no attention of its own; {there}")


def _layout_hook(recording: Recording) -> Observer:
    """A forward hook that keeps the layout of the source: of text, or the grid of a picture."""

    def hook(module: nn.Module, inputs: tuple[Any, ...], result: Any) -> None:
        if isinstance(result, Memory):
            recording.layout = result.layout

    return Observer(hook)


def _attention_sites(model: nn.Module, names: Collection[str]) -> dict[str, Site]:
    """The sites of the recorded attentions; gates of an LSTM have names that are not those of modules."""
    modules = dict(model.named_modules())
    return sites_of_any(
        model, [name for name in names if name in modules and not isinstance(modules[name], WITHOUT_KEYS)]
    )


def _is_in_backward() -> bool:
    """Whether autograd's backward pass runs in this thread: then a forward pass repeats one, for its checkpoint."""
    return not torch.compiler.is_compiling() and torch._C._current_graph_task_id() != -1


def _record_call(
    recording: Recording, layers: Collection[str] | None, name: str, read: Callable[[], Call], of_beams: bool
) -> None:
    """Add the weights of a module of another package to the recording, if they were chosen."""
    if _is_in_backward():
        return
    if layers is not None and name not in layers:
        recording.not_chosen[name] = None
        return
    if of_beams:
        recording.of_beams.add(name)
    call = read()
    heads = recording.selection.head_indices(name or "the model", call.heads)
    recording.add(name, call.queries, partial(call.weights, heads))


def _recording_hook(recording: Recording, name: str, *, has_heads: bool) -> Observer:
    """A forward hook that adds a module's weights or gates to the recording."""

    def hook(module: nn.Module, inputs: tuple[Any, ...], named: dict[str, Any], result: Any) -> None:
        if _is_in_backward():
            return
        with torch.no_grad():
            if isinstance(module, SqueezeExcite):
                gate = module.gate(*inputs, **named).unsqueeze(-2)
                recording.add(name, 1, partial(_part, gate, None))
            elif isinstance(module, ContextGate):
                gate = module.gate(inputs[0])
                recording.add(name, gate.shape[-2], partial(_part, gate, None))
            elif isinstance(module, LagMixture):
                recording.add(name, result.weights.shape[-2], partial(_part, result.weights.detach(), None))
            elif isinstance(module, nn.LSTM):
                arguments = dict(zip(("input", "hx"), inputs, strict=False)) | named  # torch's names of them
                for gate_name, values in lstm_gates(module, arguments["input"], arguments.get("hx")).items():
                    full_name = f"{name}.{gate_name}" if name else gate_name
                    recording.add(full_name, values.shape[-2], partial(_part, values, None))
            elif isinstance(module, Scope):
                query, keys, *_ = inputs
                heads = recording.selection.head_indices(name or "the model", query.shape[-3] if has_heads else None)
                if isinstance(result, Attended) and result.weights is not None:
                    weigh = partial(_part, result.weights.detach(), heads)
                else:
                    weigh = partial(_weigh, module, query, keys, named, heads)
                recording.add(name, query.shape[-2], weigh)

    return Observer(hook)


def _part(weights: Tensor, heads: list[int] | None, rows: list[int] | None) -> Tensor:
    """A copy of the weights, or of some of their heads and rows."""
    weights = weights if heads is None else weights[..., heads, :, :]
    return weights.clone() if rows is None else weights[..., rows, :]


def _weigh(
    scope: Scope,
    query: Tensor,
    keys: Tensor,
    named: Mapping[str, Any],
    heads: list[int] | None,
    rows: list[int] | None,
) -> Tensor:
    """The weights of a call whose context was computed by a fused path: of some heads, and of some rows.

    Rows that follow each other are computed together: their masks and windows depend on the index of the first.
    """
    mask, bias, start = named.get("mask"), named.get("bias"), named.get("start", 0)
    if heads is not None:
        query, keys, mask, bias = (_broadcast_part(values, -3, heads) for values in (query, keys, mask, bias))
    parts = []
    for first, last in [(0, query.shape[-2])] if rows is None else _runs(rows):
        near = [_broadcast_part(values, -2, range(first, last)) for values in (query, mask, bias)]
        parts.append(scope.weigh(near[0], keys, mask=near[1], bias=near[2], start=start + first))
    return torch.cat(parts, dim=-2) if len(parts) > 1 else parts[0]


def _broadcast_part(values: Any, axis: int, indices: Sequence[int]) -> Any:
    """A part of a tensor or mask along an axis, unless the axis is broadcast."""
    if isinstance(values, Causal):
        return Causal(values.start + indices[0]) if axis == -2 else values
    if values is None or values.ndim < -axis or values.shape[axis] == 1:
        return values
    if isinstance(indices, range):
        return values.narrow(axis, indices[0], len(indices))
    return values.index_select(axis, torch.tensor(indices, device=values.device))


def _runs(rows: Sequence[int]) -> list[tuple[int, int]]:
    """The runs of consecutive numbers in ascending rows, each as its first number and the one after its last."""
    firsts = [row for index, row in enumerate(rows) if index == 0 or rows[index - 1] != row - 1]
    lasts = [row + 1 for index, row in enumerate(rows) if index == len(rows) - 1 or rows[index + 1] != row + 1]
    return list(zip(firsts, lasts, strict=True))
