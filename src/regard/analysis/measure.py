"""How far an attention map may be trusted: compares it with what erasing each source position does to the output.

Jain and Wallace 2019 and Wiegreffe and Pinter 2019 ask whether attention explains an output. Here every source position
is erased in turn, and the change of the output's log-probability is exact. A map that shows what the output depends on
agrees with these changes better than a permuted map does; and a model that uses its attention answers otherwise if the
weights are made uniform or are permuted.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import count
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from regard.analysis import alignment
from regard.analysis.forced import force, translator
from regard.attention.intervene import HeadIntervention, Permute, Uniform
from regard.attention.normalizers import Pairs
from regard.attention.scopes import LocalM, LocalP, Weights
from regard.console import counted
from regard.errors import DataError, RecipeError
from regard.maps import MARKS, AttentionMap
from regard.models import CROSS, Seq2Seq
from regard.predict import Predictor, intervene
from regard.storage import MODEL, Run
from regard.tasks import Transduce
from regard.types import BEGIN, END, Example, Memory, Prediction

ERASED_TOKENS = 6000  # tokens of a batch of erased sources and their outputs
PAIRS = 2**18  # pairs of columns that are compared at once
SAMPLES, SEED = 1000, 12345  # of the bootstrap; as in `significance`
INTERVAL = 0.95
LEAST_CHANGE = 0.01  # nats a token; attention counts as unused if replaced weights change less than this on average
LEAST_CHANGED = 0.02  # share of outputs; and fewer than this
MARGIN = 0.1  # of agreement above the floor: weights of an untrained model agree a little, since both follow its keys
GOOD = 0.5  # agreement from which a map may be trusted, if no other run gives a ceiling
NEAR = 0.75  # or this share of the agreement of another run
FEWEST = 10  # examples from which the intervals of the bootstrap mean anything
VERSION = 1  # of the summary that a run stores


class Erased(NamedTuple):
    """The effect of erasing each source position on one output."""

    map: AttentionMap  # over the positions that were erased: without `</s>`, whose row and column are left out
    changes: Float[Tensor, "rows columns"]  # log-probability of a token, less that without this source position


class Estimate(NamedTuple):
    """A mean over examples, with its 95 % interval by the bootstrap (Efron 1979) over examples."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.2f} ({self.low:.2f} to {self.high:.2f})"


class Replaced(NamedTuple):
    """What happens to the outputs if attention weights are replaced."""

    changed: float  # share of outputs, by greedy search, that are not the same
    log_prob: float  # mean change of the log-probability of a token of the given outputs; negative: less likely


# ---- erasing source positions


class Choice(NamedTuple):
    """The map that is measured: a layer and a head of the attention to the source, counted from 1."""

    layer: int | None = None  # None: the last
    head: int | None = None  # None: the mean of all

    def __str__(self) -> str:
        layer = "last layer" if self.layer is None else f"layer {self.layer}"
        return f"{layer}, {'mean of heads' if self.head is None else f'head {self.head}'}"


SHOWN = Choice()  # the map that predictions show


def erasures(predictor: Predictor, examples: Sequence[Example], choice: Choice = SHOWN) -> list[Erased]:
    """The exact change of each output token's log-probability if one source position is erased, for all positions.

    The output is the example's target, which the model is forced to write. A token of a text is taken out of the
    source, which the model then reads without it. A cell of a picture or a frame of a recording is masked in the
    encoder's memory, so that the decoder cannot attend to it.
    """
    task, model = _parts(predictor)
    found = []
    for example in counted(examples, "erasing source positions"):
        with predictor.running():
            found.append(_erased(task, model, example, _chosen_map(predictor, example, choice)))
    return found


def _chosen_map(predictor: Predictor, example: Example, choice: Choice) -> AttentionMap:
    """The map of the example's target; RecipeError if there is none."""
    [forced] = force(predictor, [example], all_maps=choice != SHOWN)
    if forced.maps is not None:
        return forced.maps.pick(CROSS, *choice)
    if forced.map is None:
        raise RecipeError(
            f"{predictor.run.path} has no attention to the source, so there is no map to measure; measure a run whose "
            "decoder attends"
        )
    return forced.map


@torch.no_grad()
def _erased(task: Transduce, model: Seq2Seq, example: Example, attention: AttentionMap) -> Erased:
    """The map of an example over the positions that are erased, and the changes of its tokens' log-probabilities."""
    item, target = task.inputs.encode(example.source), task.target.encode(example.target)
    columns = [place for place, label in enumerate(attention.columns) if label not in MARKS]
    rows = len(target)
    device = next(model.parameters()).device
    full = _log_probs(model, _memory_of(task, model, [item]), target)[0]
    per_batch = max(1, ERASED_TOKENS // (len(attention.columns) + rows + 1))
    erased = []
    for start in range(0, len(columns), per_batch):
        chosen = columns[start : start + per_batch]
        if task.source is not None:
            memory = _memory_of(task, model, [item[:place] + item[place + 1 :] for place in chosen])
        else:
            memory = without_positions(_memory_of(task, model, [item]), torch.tensor(chosen, device=device))
        erased.append(_log_probs(model, memory, target))
    without = torch.cat(erased) if erased else full.new_zeros(0, rows)
    kept = AttentionMap(
        attention.weights[:rows][:, columns],
        attention.rows[:rows],
        tuple(attention.columns[place] for place in columns),
        attention.layout,
    )
    return Erased(kept, (full - without).T.cpu())


def _memory_of(task: Transduce, model: Seq2Seq, items: Sequence[Any]) -> Memory:
    """The memory of encoded sources."""
    return model.read(task.inputs.collate(items).to(next(model.parameters()).device))


def without_positions(memory: Memory, places: Tensor) -> Memory:
    """A memory with one row for each of these positions of the only source, which is masked in it."""
    rows = memory.select(torch.zeros_like(places))
    mask = rows.mask.clone()
    mask[torch.arange(len(places), device=places.device), places] = False
    return replace(rows, mask=mask)


def _log_probs(model: Seq2Seq, memory: Memory, target: Sequence[int]) -> Float[Tensor, "rows tokens"]:
    """The log-probability of each token of a target, END left out, after each row of the memory."""
    wanted = torch.tensor([*target, END], device=memory.mask.device)
    read = torch.tensor([BEGIN, *target], device=memory.mask.device).expand(len(memory.mask), -1)
    logits = model.decoder(read, memory).logits
    exact = logits.to(torch.promote_types(logits.dtype, torch.float32)).log_softmax(-1)
    return exact.gather(-1, wanted.expand(len(memory.mask), -1).unsqueeze(-1)).squeeze(-1)[:, :-1]


# ---- agreement


def kendall(first: Float[Tensor, "rows columns"], second: Float[Tensor, "rows columns"]) -> Float[Tensor, " rows"]:
    """Kendall's tau-b of each row: of all pairs of columns, those in the same order less those in the opposite one.

    Ties are as Kendall 1945 counts them. A row in which all values of a side are equal orders nothing: it has 0.
    Memory is bounded: at most `PAIRS` pairs, or those of one column, are compared at once. The sums are whole numbers,
    so the result does not depend on the blocks.
    """
    rows, columns = first.shape
    cells = torch.arange(rows * columns, device=first.device)
    sums = torch.zeros(3, rows * columns, dtype=torch.float64, device=first.device)
    for block in cells.split(max(1, PAIRS // max(1, columns))):
        one, other = _signs(first, block), _signs(second, block)
        sums[:, block] = torch.stack([(one * other).sum(-1), one.abs().sum(-1), other.abs().sum(-1)])
    same, *ordered = sums.view(3, rows, columns).sum(-1)
    untied = (ordered[0] * ordered[1]).sqrt()
    return torch.where(untied > 0, same / untied.clamp(min=1.0), torch.zeros_like(untied))


def _signs(values: Float[Tensor, "rows columns"], cells: Tensor) -> Float[Tensor, "cells columns"]:
    """The signs of the differences between each of these cells, numbered row by row, and all cells of its row."""
    exact = values.double()
    return torch.sign(exact.flatten()[cells].unsqueeze(-1) - exact[cells // max(1, values.shape[1])])


def agreement(maps: Sequence[Tensor], changes: Sequence[Tensor]) -> list[float]:
    """The agreement of maps with the sizes of changes, for each example: tau-b of its rows, averaged over them.

    Examples with fewer than two source positions, or without rows, have no order to agree on: they are left out.
    """
    return [
        kendall(weights, change.abs()).mean().item()
        for weights, change in zip(maps, changes, strict=True)
        if weights.shape[0] and weights.shape[1] > 1
    ]


def permuted_columns(
    weights: Float[Tensor, "rows columns"], generator: torch.Generator, *, in_window: bool = False
) -> Tensor:
    """The weights with the columns of each row in a random order of its own: a map that knows nothing of the source.

    With `in_window`, columns without weight keep their places: the map knows the window of a local scope, and no more.
    """
    outside = (weights == 0) if in_window else torch.zeros_like(weights, dtype=torch.bool)
    places = outside.byte().argsort(dim=-1, stable=True)
    order = (torch.rand(weights.shape, generator=generator) + 2 * outside).argsort(-1)
    return weights.scatter(-1, places, weights.gather(-1, order))


def has_window(model: nn.Module) -> bool:
    """Whether the model's attention reaches only a window: outside, neither a weight nor an effect can be large."""
    return any(isinstance(module, LocalM | LocalP) for module in model.modules())


def estimate(values: Sequence[float]) -> Estimate:
    """The mean of the values, with a percentile interval by the bootstrap."""
    if not values:
        raise DataError("no example has two source positions and an output; give longer ones")
    own = torch.tensor(values, dtype=torch.float64)
    random = torch.Generator().manual_seed(SEED)
    means = own[torch.randint(len(own), (SAMPLES, len(own)), generator=random)].mean(-1)
    tail = (1 - INTERVAL) / 2
    low, high = torch.quantile(means, torch.tensor([tail, 1 - tail], dtype=torch.float64)).tolist()
    return Estimate(own.mean().item(), low, high)


# ---- replacing weights


@dataclass(frozen=True)
class Reshuffle(HeadIntervention):
    """Permutes the weights in another order at each call, so that no call reads where the map of another one points."""

    name = "reshuffle"
    seeds: Iterator[int] = field(default_factory=lambda: count(SEED))  # of `Permute`

    def replaced(self, call: Weights) -> Pairs:
        """The weights, permuted with the next seed."""
        return Permute(seed=next(self.seeds)).replaced(call)


def replacements(predictor: Predictor, examples: Sequence[Example]) -> dict[str, Replaced]:
    """What uniform and permuted weights do to the outputs; all layers and heads that attend to the source have them."""
    changes = {"uniform": Uniform(CROSS), "permuted": Reshuffle(CROSS)}
    outputs, scores = _outputs(predictor, examples), _token_scores(predictor, examples)
    found = {}
    for name, change in changes.items():
        with intervene(predictor, change):
            others, changed_scores = _outputs(predictor, examples), _token_scores(predictor, examples)
        share = sum(one != other for one, other in zip(outputs, others, strict=True)) / len(outputs)
        found[name] = Replaced(share, (changed_scores - scores).mean().item())
    return found


def _outputs(predictor: Predictor, examples: Sequence[Example]) -> list[str]:
    """The outputs of greedy search."""
    return [prediction.text for prediction in predictor.predict([example.source for example in examples], beam=1)]


def _token_scores(predictor: Predictor, examples: Sequence[Example]) -> Float[Tensor, " tokens"]:
    """The log-probabilities of all tokens of the examples' targets, ends included."""
    forced = force(predictor, examples)
    return torch.tensor([score for prediction in forced for score in prediction.token_scores], dtype=torch.float64)


# ---- the result


@dataclass(frozen=True)
class Trust:
    """How far the maps of a run may be trusted, measured on some examples; `line` is the sentence."""

    examples: int
    positions: int  # that were erased
    agreement: Estimate  # Kendall's tau-b between the map and the effect of erasing, averaged over rows and examples
    floor: Estimate  # that of a permuted map; a uniform map has 0
    ceiling: Estimate | None  # that of another run's effects with this run's, if one was given
    uniform: Replaced
    permuted: Replaced
    end_mass: float  # mean share of the weight on `</s>`
    punctuation_mass: float
    alignment: dict[str, float]  # alignment error by reading, if the examples have known links
    place: str  # the map that was measured
    erased: str  # how a position is erased
    left_out: int = 0  # pairs that were not measured, because a side is too long for the model

    @property
    def is_used(self) -> bool:
        """Whether the outputs depend on the attention weights at all."""
        both = self.uniform, self.permuted
        return any(one.changed >= LEAST_CHANGED or abs(one.log_prob) >= LEAST_CHANGE for one in both)

    @property
    def is_above_floor(self) -> bool:
        """Whether the map agrees with erasing clearly better than chance: the intervals are `MARGIN` apart."""
        return self.agreement.low > self.floor.high + MARGIN

    @property
    def has_enough(self) -> bool:
        """Whether there were enough examples to show how far the maps may be trusted."""
        return self.examples >= FEWEST

    @property
    def line(self) -> str:
        """One sentence that says how far the maps may be trusted."""
        if not self.has_enough:
            few = "1 example is" if self.examples == 1 else f"{self.examples} examples are"
            return f"{few} too few to show how far the map may be trusted; measure on at least {FEWEST}"
        weights = f"uniform weights change {self.uniform.changed:.0%} of the outputs, permuted ones "
        weights += f"{self.permuted.changed:.0%}"
        if not self.is_used:
            return f"attention is not used, so the map explains nothing: {weights}"
        effects = f"its agreement with erasing source positions is {self.agreement}, a permuted map's {self.floor}"
        if self.ceiling is not None:
            effects += f", another run's {self.ceiling}"
        if not self.is_above_floor:
            return f"do not trust the map: {effects}; {weights}"
        top = GOOD if self.ceiling is None else self.ceiling.value * NEAR
        return f"trust the map{'' if self.agreement.value >= top else ' in part'}: {effects}; {weights}"

    @property
    def signature(self) -> str:
        """What was measured and how, for reports."""
        counts = [f"n:{self.examples}", *([f"skipped:{self.left_out}"] if self.left_out else [])]
        parts = [*counts, f"positions:{self.positions}", f"map:{self.place}", f"erased:{self.erased}"]
        return "|".join(["trust", *parts, "tau-b:rows", f"bootstrap:{SAMPLES}", f"seed:{SEED}", f"version:{VERSION}"])

    def to_dict(self) -> dict[str, Any]:
        """A dictionary for JSON."""
        return asdict(self) | {
            **{name: estimate._asdict() for name, estimate in self._estimates().items()},
            "uniform": self.uniform._asdict(),
            "permuted": self.permuted._asdict(),
            "line": self.line,
            "is_used": self.is_used,
            "signature": self.signature,
        }

    def _estimates(self) -> dict[str, Estimate]:
        named = {"agreement": self.agreement, "floor": self.floor}
        return named if self.ceiling is None else named | {"ceiling": self.ceiling}


def measure(
    predictor: Predictor,
    examples: Sequence[Example],
    *,
    other: Predictor | None = None,
    choice: Choice = SHOWN,
) -> Trust:
    """Measure how far the maps of a run may be trusted, on examples with targets, which it is forced to write.

    `other` is a run of the same recipe with another seed: the agreement of its effects of erasing with those of this
    run is the ceiling, since no map can be expected to foretell them better. Examples with a side that is too long for
    one of the models are left out, and counted.
    """
    if not examples:
        raise DataError("there are no examples to measure on; give a file of pairs")
    task, _ = _parts(predictor)
    tasks = [task] if other is None else [task, _parts(other)[0]]
    count_given = len(examples)
    examples = _short_enough(tasks, examples)
    erased = erasures(predictor, examples, choice)
    maps, changes = [one.map.weights for one in erased], [one.changes for one in erased]
    random = torch.Generator().manual_seed(SEED)
    permuted = [permuted_columns(weights, random, in_window=has_window(predictor.model)) for weights in maps]
    replaced = replacements(predictor, examples)
    forced = [_chosen_map(predictor, example, choice) for example in examples]
    judged = [
        Prediction(example.source, example.target, 0.0, one.map.rows, one.map)
        for example, one in zip(examples, erased, strict=True)
    ]
    return Trust(
        examples=len(examples),
        positions=sum(len(one.map.columns) for one in erased),
        agreement=estimate(agreement(maps, changes)),
        floor=estimate(agreement(permuted, changes)),
        ceiling=None if other is None else estimate(agreement(_effects(other, examples, erased), changes)),
        **replaced,
        end_mass=_mean_of(forced, AttentionMap.mass_on_end),
        punctuation_mass=_mean_of(forced, AttentionMap.mass_on_punctuation),
        alignment={name: error.value for name, error in alignment.measure(judged, examples).items()},
        place=str(choice),
        erased="source tokens removed" if task.source is not None else "positions masked in the memory",
        left_out=count_given - len(examples),
    )


def _short_enough(tasks: Sequence[Transduce], examples: Sequence[Example]) -> list[Example]:
    """The examples with sides that all tasks can force (`Transduce.force`); DataError if there are none."""
    kept = list(examples)
    for task in tasks:
        lengths = task.encode(kept).lengths()
        kept = [example for example, sides in zip(kept, lengths, strict=True) if max(sides) <= task.longest + 1]
        if not kept:
            raise DataError(f"every pair has a side of more than {task.longest:,} tokens; give shorter pairs")
    return kept


def _effects(other: Predictor, examples: Sequence[Example], erased: Sequence[Erased]) -> list[Tensor]:
    """The sizes of another run's changes, which must be over the same tokens."""
    found = erasures(other, examples)
    for one, own in zip(found, erased, strict=True):
        if (one.map.rows, one.map.columns) != (own.map.rows, own.map.columns):
            raise RecipeError(
                f"{other.run.path} splits texts into other tokens, so its positions cannot be compared; give a run of "
                "the same recipe and data, with another train.seed"
            )
    return [one.changes.abs() for one in found]


def _mean_of(maps: Sequence[AttentionMap], mass: Callable[[AttentionMap], Tensor]) -> float:
    """The mean of a share of weight over all rows of all maps."""
    return torch.cat([mass(attention) for attention in maps]).double().mean().item()


def store(run: Run, trust: Trust) -> None:
    """Keep the result in the run, for `regard look` and predictions; it counts as long as the weights are the same.

    It replaces that of an earlier measurement.
    """
    weights = run.manifest().files.get(MODEL, [])
    content = {"format": VERSION, "weights": weights} | trust.to_dict()
    run.store_measures(json.dumps(content, indent=1).encode() + b"\n")


def _parts(predictor: Predictor) -> tuple[Transduce, Seq2Seq]:
    """The task and the model of a run that writes texts; RecipeError for another."""
    task = translator(predictor)
    assert isinstance(predictor.model, Seq2Seq)
    return task, predictor.model
