"""Attention maps: weights with the labels of both axes; their entropy, coverage, hard alignment and words.

`AttentionMap` is one map, `AttentionMaps` all maps of one output: every site, layer and head of its model.
"""

import dataclasses
import sys
import unicodedata
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import torch
from jaxtyping import Float, UInt8
from torch import Tensor

from regard.errors import RecipeError, quantity, shown

ENCODER, OWN = "encoder.", "self_attention"  # of the names of sites
# The sentence under a difference; what is measured is a map by itself.
DIFFERENCE = "a difference of two maps is not measured; regard measure RUN measures the map that predictions show"
MARKS = frozenset({"<pad>", "<s>", "</s>"})  # labels that are not words; `<unk>` counts as a word


@dataclass(frozen=True)
class Tokens:
    """The layout of a text: each source position is a token."""


@dataclass(frozen=True)
class Grid:
    """The layout of a picture: source positions are its cells, row by row."""

    height: int
    width: int


@dataclass(frozen=True)
class Frames:
    """The layout of a recording: source positions are frames, so many seconds apart."""

    seconds: float


@dataclass(frozen=True)
class Steps:
    """The layout of a series: source positions are its values, in their order."""

    lags: tuple[int, ...] = ()  # ascending: a row can look only so many steps back; empty: at all columns before it


TEXT = Tokens()
Layout = Tokens | Grid | Frames | Steps


@dataclass(frozen=True, eq=False)
class PictureView:
    """The part of a picture that a model reads, at a size for display: the cells of a `Grid` cover all of it."""

    pixels: UInt8[Tensor, "height width 3"]  # RGB


@dataclass(frozen=True, eq=False)
class Spectrogram:
    """The log-mel spectrogram of a recording, whose positions are `Frames`; both begin at second 0."""

    features: Float[Tensor, "frames bands"]  # natural logarithms of power
    seconds: float  # between two frames
    highest: float  # frequency of the last band, in hertz
    samples: Float[Tensor, " samples"] | None = None  # of the sound that is played on a page; full scale is 1
    rate: int = 0  # samples per second


@dataclass(frozen=True, eq=False)
class SeriesView:
    """The values of a series that a model read, and its forecast of the values after them."""

    name: str
    times: tuple[str, ...]  # the label of each step: first those of `history`, then those of the forecast
    history: Float[Tensor, " steps"]  # NaN where no value was observed
    levels: tuple[float, ...]  # of the quantiles, ascending, between 0 and 1; 0.5, the median, is one of them
    quantiles: Float[Tensor, "levels horizon"]
    mean: Float[Tensor, " horizon"]
    observed: Float[Tensor, " horizon"] | None = None  # what came after the history, if it is known; NaN where not

    def show(self) -> None:
        """Print the forecast as text, with the width and the colours of the terminal."""
        from regard.show.terminal import drawing_of_series

        sys.stdout.write(drawing_of_series(self))

    def save(self, path: str | Path, title: str = "") -> Path:
        """Write the forecast to a file: .html, .svg, .png, or as a table .csv; returns the path."""
        from regard.show.forecasts import save

        return save(self, path, title)

    def _repr_html_(self, title: str = "") -> str:
        """The interactive page that a notebook shows for this object."""
        from regard.show.html import framed

        return framed(self, title)

    def _repr_svg_(self) -> str:
        """The picture that a notebook shows for this object if it shows no HTML."""
        from regard.show.forecasts import svg

        return svg(self).decode()


SourceView = PictureView | Spectrogram | SeriesView


class Place(NamedTuple):
    """The attention of a model that a map comes from; layers and heads are counted from 1."""

    site: str  # as in a recipe, such as decoder.cross_attention
    layer: int
    head: int | None  # None: the mean of all heads

    def names(self) -> tuple[str, str, str]:
        """Site, layer and head as texts."""
        return self.site, f"layer {self.layer}", "mean of heads" if self.head is None else f"head {self.head}"

    def __str__(self) -> str:
        return ", ".join(self.names())


@dataclass(frozen=True)
class AttentionMap:
    """Attention weights with the labels of both axes: rows are outputs, columns are sources.

    Two maps are equal if labels, layout, dtype and all weights are equal; the hash ignores the weights.
    """

    weights: Float[Tensor, "rows columns"] = field(hash=False)
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    layout: Layout = TEXT
    place: Place | None = field(default=None, compare=False)  # of the maps in `AttentionMaps`
    # Loads the picture, recording or series that the map is drawn on: a function, because many would fill memory.
    view: Callable[[], SourceView | None] | None = field(default=None, compare=False)
    trust: str = field(default="", compare=False)  # the sentence that says how far it may be trusted, if a run gave it

    def __post_init__(self) -> None:
        if tuple(self.weights.shape) != (len(self.rows), len(self.columns)):
            labels = f"{len(self.rows)} rows and {len(self.columns)} columns"
            raise ValueError(f"weights of shape {tuple(self.weights.shape)} do not fit {labels}")

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, AttentionMap):
            return NotImplemented
        labels = (self.rows, self.columns, self.layout, self.weights.dtype)
        same = labels == (other.rows, other.columns, other.layout, other.weights.dtype)
        return same and torch.equal(self.weights.cpu(), other.weights.cpu())

    def __iter__(self) -> Iterator[tuple[str, list[tuple[str, float]]]]:
        """Iterate over the rows: the label of the output, and (source label, weight) pairs."""
        for label, weights in zip(self.rows, self.weights.tolist(), strict=True):
            yield label, list(zip(self.columns, weights, strict=True))

    def entropy(self) -> Float[Tensor, " rows"]:
        """The entropy of each row in nats: 0 if all weight is on one source, log(columns) if it is uniform."""
        return torch.special.entr(self.weights).sum(-1)

    def coverage(self) -> Float[Tensor, " columns"]:
        """The attention that each source received in total: its weights, summed over the rows."""
        return self.weights.sum(0)

    def monotonicity(self) -> float:
        """The share of steps from row to row at which the expected column does not go back: 1.0 is left to right.

        The expected column of a row is sum(weight * column) / sum(weight). Going back by less than 1e-6 of a column
        counts as rounding. Rows without weight are ignored; fewer than two rows give 1.0.
        """
        weights = self.weights.double()
        weights = weights[weights.sum(-1) > 0]
        columns = torch.arange(weights.shape[1], dtype=weights.dtype, device=weights.device)
        expected = (weights * columns).sum(-1) / weights.sum(-1)
        forward = expected[1:] >= expected[:-1] - 1e-6
        return forward.double().mean().item() if len(forward) else 1.0

    def mass_on_end(self) -> Float[Tensor, " rows"]:
        """The share of each row's weight that lies on the marks `<pad>`, `<s>` and `</s>`; 0 for a row without any."""
        return self._share([label in MARKS for label in self.columns])

    def mass_on_punctuation(self) -> Float[Tensor, " rows"]:
        """The share of each row's weight that lies on punctuation: on columns with no other letters."""
        return self._share([_is_punctuation(label) for label in self.columns])

    def _share(self, chosen: list[bool]) -> Float[Tensor, " rows"]:
        """The share of each row's weight on the chosen columns; 0 for a row without weight."""
        own = self.weights[:, torch.tensor(chosen, dtype=torch.bool, device=self.weights.device)].sum(-1)
        total = self.weights.sum(-1)
        return torch.where(total > 0, own / total, torch.zeros_like(total))

    @property
    def is_signed(self) -> bool:
        """Whether a weight is negative, as in a difference of two maps, which is drawn in two colours."""
        return bool((self.weights < 0).any())

    def minus(self, other: "AttentionMap") -> "AttentionMap":
        """The difference of two maps over the same tokens: positive if this map has more weight there."""
        if (self.rows, self.columns) != (other.rows, other.columns):
            sizes = f"{len(self.rows)} × {len(self.columns)} and {len(other.rows)} × {len(other.columns)}"
            raise RecipeError(
                f"a difference needs two maps with the same rows and columns, not maps of {sizes} or of other tokens; "
                "force both models to write the same output, and give them the same source"
            )
        weights = self.weights - other.weights.to(self.weights)
        return dataclasses.replace(self, weights=weights, place=None, view=None, trust=DIFFERENCE)

    def links(self, shift: int = 0) -> list[tuple[int, int]]:
        """The hard alignment as (column, row) pairs, counted from zero: each row with the column of its largest weight.

        Of equal weights the first counts. The marks `<pad>`, `<s>` and `</s>` are not words: as columns they are
        skipped, as rows they get no link, and neither does a row without weight on any word. Alignment errors and the
        Pharaoh format both use these links.

        `shift` 0 takes the row of the step that writes a token (output step), `shift` 1 the row of the next step, whose
        input is this token (input step; Chen et al. 2020). Which is better depends on the model. If there is no such
        row, the last row is taken.
        """
        words = [column for column, label in enumerate(self.columns) if label not in MARKS]
        if not words or not self.rows:
            return []
        heaviest, places = self.weights[:, words].max(dim=-1)
        weights, columns = heaviest.tolist(), [words[place] for place in places.tolist()]
        steps = [min(row + shift, len(self.rows) - 1) for row in range(len(self.rows))]
        pairs = [(row, step) for row, step in enumerate(steps) if self.rows[row] not in MARKS]
        return [(columns[step], row) for row, step in pairs if weights[step] > 0]

    def words(self) -> "AttentionMap":
        """The map between words: columns of the pieces of a word are summed, rows are averaged.

        So the sums of rows do not change. A piece that begins with sentencepiece's `▁` begins a word, and the pieces
        after it, `<unk>` too, belong to this word; so do further spaces before it. `<pad>`, `<s>` and `</s>` are never
        merged. An axis without any `▁`, such as one of characters, is not changed.
        """
        return self.merged(words_of(self.rows), words_of(self.columns))

    def merged(self, rows: "Words", columns: "Words") -> "AttentionMap":
        """The map between the given words, merged as in `words`."""
        weights, device = self.weights, self.weights.device
        home = torch.tensor(columns.home, dtype=torch.long, device=device)
        weights = weights.new_zeros(len(weights), len(columns.labels)).index_add(1, home, weights)
        home = torch.tensor(rows.home, dtype=torch.long, device=device)
        sums = weights.new_zeros(len(rows.labels), weights.shape[1]).index_add(0, home, weights)
        weights = sums / home.bincount(minlength=len(rows.labels)).clamp(min=1).unsqueeze(-1)
        return dataclasses.replace(self, weights=weights, rows=rows.labels, columns=columns.labels)

    def without_view(self) -> "AttentionMap":
        """The same map without its picture, recording or series, so that it is drawn as a matrix of weights."""
        return dataclasses.replace(self, view=None)

    def show(self, *, pieces: bool = False, scale: str | None = None) -> None:
        """Print the map as text, with the width and the colours of the terminal; by words, or by pieces.

        `scale` as in `save`; by default "one", or "map" if all weights are small.
        """
        from regard.show.terminal import drawing

        sys.stdout.write(drawing(self if pieces else self.words(), scale))

    def save(self, path: str | Path, title: str = "", *, pieces: bool = False, scale: str | None = None) -> Path:
        """Write the map to a file: .html, .svg, .png, .gif, .csv or .pharaoh; returns the path.

        .gif is a moving picture, in which the output appears token by token. It, .svg and .png merge sub-words to
        words, as `words` does, unless `pieces` is True; .html has both, .csv the pieces, .pharaoh the words. The
        darkest shade is the weight 1, so that pictures are comparable; with `scale` "map" or "row" it is the largest
        weight of the map, or of each row. A map over a picture is drawn on it, one
        panel for each word, one over a recording above its spectrogram, and one over a series below its forecast;
        unless given, their scales are "row", "map" and "map". `without_view().save(...)` draws the matrix of such a
        map.
        """
        from regard.show.maps import save  # imported here, because `show` imports this module

        return save(self, path, title, pieces=pieces, scale=scale)

    def __repr__(self) -> str:
        rows, columns = self.weights.shape
        return f"AttentionMap({rows} × {columns}{f', {self.place}' if self.place else ''})"

    def _repr_html_(self, title: str = "") -> str:
        """The interactive page that a notebook shows for this object."""
        from regard.show.html import framed

        return framed(self, title)

    def _repr_svg_(self) -> str:
        """The picture that a notebook shows for this object if it shows no HTML."""
        from regard.show.maps import svg

        return svg(self.words())


@dataclass(frozen=True, eq=False)
class LayerMaps:
    """The maps of all heads of one layer at one site of a model."""

    site: str
    layer: int  # counted from 1
    weights: Float[Tensor, "heads rows columns"]
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    layout: Layout = TEXT
    view: Callable[[], SourceView | None] | None = None  # as in `AttentionMap`
    head_numbers: tuple[int, ...] = ()  # of the heads that are here, if not of all
    norms: Float[Tensor, "heads columns"] | None = None  # of the vectors that the weights scale, if recorded
    trust: str = ""  # of the mean of all heads, as in `AttentionMap`
    other_trust: str = ""  # of other maps: of one of several heads, or computed otherwise

    @property
    def heads(self) -> int:
        """The number of heads."""
        return len(self.weights)

    @property
    def numbers(self) -> tuple[int, ...]:
        """The number of each head, counted from 1."""
        return self.head_numbers or tuple(range(1, self.heads + 1))

    def map(self, head: int | None = None) -> AttentionMap:
        """The map of one head, counted from 1, or the mean of all heads that are here."""
        if head is not None and head not in self.numbers:
            if self.head_numbers:
                raise RecipeError(f"head {head}: {self.site} was recorded for {', '.join(map(str, self.numbers))} only")
            raise RecipeError(f"head {head}: {self.site} of this model has {numbered('head', self.heads)}")
        weights = self.weights.mean(0) if head is None else self.weights[self.numbers.index(head)]
        head = self.numbers[0] if self.heads == 1 else head
        place = Place(self.site, self.layer, head)
        trust = self.trust if head is None or self.heads == 1 else self.other_trust
        return AttentionMap(weights, self.rows, self.columns, self.layout, place, self.view, trust)

    def by_norm(self) -> "LayerMaps":
        """The maps with every weight scaled by the norm of its vector, ||a f(x)|| (Kobayashi et al. 2020).

        A weight on a vector near zero moves the context little, which the weight alone does not show. The rows of all
        heads together are scaled so that the mean map sums to 1 (0 if it has no weight): heads stay comparable.
        """
        if self.norms is None:
            raise RecipeError(
                f"the vectors of {self.site} were not recorded; maps of `predict` and `force` with all_maps=True have "
                "them, for runs of the task translate"
            )
        scaled = self.weights * self.norms.unsqueeze(-2)
        total = scaled.mean(0).sum(-1, keepdim=True)
        weights = torch.where(total > 0, scaled / total, torch.zeros_like(scaled))
        return dataclasses.replace(self, weights=weights, norms=None, trust=self.other_trust)


@dataclass(frozen=True, eq=False)
class AttentionMaps:
    """All attention maps of one output, by site, layer and head; layers and heads are counted from 1.

    The site that `Prediction.map` shows comes first.
    """

    layers: tuple[LayerMaps, ...]

    def __post_init__(self) -> None:
        if not self.layers:
            raise ValueError("there are no maps without a layer")

    @property
    def sites(self) -> tuple[str, ...]:
        """The names of the sites, as in a recipe: `decoder.cross_attention`, `encoder.self_attention` and so on."""
        return tuple(dict.fromkeys(layer.site for layer in self.layers))

    def select(self, site: str | None = None, layer: int | None = None) -> "AttentionMaps":
        """The maps of one site, of one layer, or of both; RecipeError if they are not there."""
        if site is not None and site not in self.sites:
            raise RecipeError(f"site {shown(site)}: this model has {', '.join(self.sites)}")
        layers = [own for own in self.layers if site in (None, own.site)]
        if layer is not None and not any(own.layer == layer for own in layers):
            where, numbers = site or "this model", sorted({own.layer for own in layers})
            there = f"{where} has {numbered('layer', len(numbers))}"
            if numbers[-1] != len(numbers):
                there = (
                    f"of {where}, only {', '.join(map(str, numbers))} {'was' if len(numbers) == 1 else 'were'} recorded"
                )
            raise RecipeError(f"layer {layer}: {there}")
        return AttentionMaps(tuple(own for own in layers if layer in (None, own.layer)))

    def pick(self, site: str | None = None, layer: int | None = None, head: int | None = None) -> AttentionMap:
        """One map; what is not given is the first of the `sites`, its last layer, and the mean of all heads."""
        return self.select(site or self.sites[0], layer).layers[-1].map(head)

    def by_norm(self) -> "AttentionMaps":
        """The maps with every weight scaled by the norm of its vector, as `LayerMaps.by_norm` does."""
        return AttentionMaps(tuple(layer.by_norm() for layer in self.layers))

    def mean(self, site: str | None = None, layer: int | None = None) -> AttentionMap:
        """The mean over all heads of a site, or of one of its layers; the site is the first unless given."""
        return self._joined(site, layer, lambda weights: weights.mean(0))

    def max(self, site: str | None = None, layer: int | None = None) -> AttentionMap:
        """The largest weight of any head of a site, or of one of its layers; rows may sum to more than 1."""
        return self._joined(site, layer, lambda weights: weights.amax(0))

    def _joined(self, site: str | None, layer: int | None, join: Callable[[Tensor], Tensor]) -> AttentionMap:
        """One map from the weights of all heads of a site, or of one of its layers."""
        layers = self.select(site or self.sites[0], layer).layers
        weights = join(torch.cat([own.weights for own in layers]))
        return dataclasses.replace(layers[-1].map(), weights=weights, place=None, trust=layers[-1].other_trust)

    def rollout(self, site: str | None = None) -> AttentionMap:
        """Abnar and Zuidema 2020, attention rollout: how much of each input token reaches each output, layer by layer.

        R_l = (A_l + I) / 2 R_(l-1), where A_l is the mean of a layer's heads and I stands for the residual connection.
        Of a self-attention site, this is the product over its layers. Of an attention to the source, it is the last
        layer's mean map times the rollout of encoder.self_attention: the encoder mixes tokens, and this undoes it.
        RecipeError if a layer, or a row of a self-attention, was not recorded.
        """
        site = site or self.sites[0]
        top = self.pick(site)
        top = dataclasses.replace(top, place=None, trust=self.select(site).layers[-1].other_trust)
        if not site.endswith(OWN):
            encoder = ENCODER + OWN
            if encoder not in self.sites:
                raise RecipeError(f"rollout of {site} needs the maps of {encoder}, and this model has none")
            return dataclasses.replace(top, weights=top.weights @ self.rollout(encoder).weights)
        layers = self.select(site).layers
        numbers = [own.layer for own in layers]
        if numbers != list(range(1, len(numbers) + 1)):
            raise RecipeError(
                f"rollout of {site} needs every layer from 1 on, but only {', '.join(map(str, numbers))} "
                f"{'was' if len(numbers) == 1 else 'were'} recorded; leave out layers="
            )
        missing = next((own for own in layers if own.weights.shape[-2] != own.weights.shape[-1]), None)
        if missing is not None:
            sizes = f"{quantity(len(missing.rows), 'row')} and {quantity(len(missing.columns), 'column')}"
            raise RecipeError(f"rollout of {site} needs a row for each column, but it has {sizes}; leave out rows=")
        identity = torch.eye(len(top.columns), dtype=top.weights.dtype, device=top.weights.device)
        rolled = identity
        for own in layers:
            rolled = (own.map().weights + identity) / 2 @ rolled
        return dataclasses.replace(top, weights=rolled)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __iter__(self) -> Iterator[AttentionMap]:
        """Iterate over the maps, layer by layer: the mean of its heads if there are several, then each head."""
        for layer in self.layers:
            heads = [*([None] if layer.heads > 1 else []), *layer.numbers]
            yield from map(layer.map, heads)

    def save(self, path: str | Path, title: str = "", *, scale: str | None = None) -> Path:
        """Write all maps to one interactive page: a file that ends with .html; returns the path.

        `scale` as in `AttentionMap.save`.
        """
        from regard.show.maps import save

        return save(self, path, title, scale=scale)

    def __repr__(self) -> str:
        parts = []
        for site in self.sites:
            layers = [own for own in self.layers if own.site == site]
            parts.append(f"{site} with {quantity(len(layers), 'layer')} of {quantity(layers[0].heads, 'head')}")
        return f"AttentionMaps({', '.join(parts)})"

    def _repr_html_(self, title: str = "") -> str:
        """The interactive page that a notebook shows for this object."""
        from regard.show.html import framed

        return framed(self, title)


def numbered(noun: str, count: int, first: int = 1) -> str:
    """The numbers of so many heads, layers or rows, for error messages."""
    return f"{noun}s {first} to {first + count - 1}" if count > 1 else f"one {noun}, {noun} {first}"


def _is_punctuation(label: str) -> bool:
    """Whether a label has punctuation and symbols alone; sentencepiece's `▁` does not count."""
    letters = label.replace("▁", "").strip()
    return bool(letters) and label not in MARKS and all(unicodedata.category(letter)[0] in "PS" for letter in letters)


class Words(NamedTuple):
    """The words of an axis, and for each of its pieces the index of the word it belongs to."""

    labels: tuple[str, ...]
    home: tuple[int, ...]

    def ends(self) -> tuple[int, ...]:
        """The number of the last piece of each word, counted from 1; nothing if each word is one piece."""
        last = {word: number for number, word in enumerate(self.home, start=1)}
        return tuple(last.values()) if len(last) < len(self.home) else ()


@lru_cache(maxsize=8)  # the maps of all layers and heads have the same axes
def words_of(pieces: tuple[str, ...]) -> Words:
    """Group the pieces of an axis into words; if no piece marks the beginning of a word, each piece is one."""
    if not any("▁" in piece for piece in pieces):
        return Words(pieces, tuple(range(len(pieces))))
    words: list[str] = []
    home: list[int] = []
    for piece in pieces:
        last = words[-1] if words else ""
        if not words or last in MARKS or piece in MARKS or (piece.startswith("▁") and last.strip("▁")):
            words.append("")
        words[-1] += piece
        home.append(len(words) - 1)
    return Words(tuple(word.replace("▁", " ").strip(" ") or " " for word in words), tuple(home))
