"""Forecasting: learns from series, and samples what comes after them; forecasts have quantiles, paths and a map."""

import json
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from regard.attention.record import Recording, record
from regard.console import counted
from regard.data import series_files, series_given
from regard.data.batching import Lengths
from regard.data.corpora import CORPORA
from regard.data.corpora.waves import PREFIX as WAVES
from regard.data.corpora.waves import wave
from regard.data.files import Loaded
from regard.data.frequency import Frequency
from regard.data.media import Medium
from regard.data.needs import check_found
from regard.data.paths import expanded
from regard.data.records import NOTHING_GIVEN, PAIRS, Given
from regard.data.series import Series, continued, first_where
from regard.data.series_files import Reading
from regard.data.store import Indices
from regard.data.tables import Columns, LoadedSeries
from regard.data.windows import SCALINGS, Panel, Standard, Windows, WindowShape, count_features
from regard.device import only_shapes
from regard.errors import CorruptError, DataError, RecipeError, did_you_mean, pick, shown
from regard.maps import AttentionMaps, LayerMaps, SeriesView, Steps
from regard.metrics import METRICS, Measured
from regard.metrics.forecasts import Forecasts, quantiles
from regard.models import DECODER_SELF, forecaster, sites
from regard.models.baselines import BASELINES
from regard.models.forecaster import Forecaster
from regard.models.likelihoods import LIKELIHOODS, series_key, uniform_numbers
from regard.recipe import Forecast as Settings
from regard.recipe import Recipe, Search
from regard.search import check_step
from regard.storage import Run
from regard.tasks import core
from regard.tasks.core import Axes, Encoded, Examples, Scored, Task
from regard.types import Example, Prediction, Vocabulary

Numbers = NDArray[np.float64]

FILE = "series.json"  # of a run: frequency, lags, categories and covariates of the training data
LEVELS = (0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95)  # quantiles of a forecast
PATHS_AT_ONCE = 20_000  # sample paths that are computed together
SHOWN = 3  # the history in a picture is at least so many times as long as the forecast
CALENDAR = "calendar"  # the value of forecast.lags that chooses them by the frequency
LARGEST_LAG = 10_000
LAG_MIXTURE, MIXTURE = "forecast.lag_mixture", "mix"  # the site of its map, and the module
LARGEST_VALUE = 1e15  # sums of the squares of values stay finite in float32


@dataclass(frozen=True, repr=False, eq=False)
class Forecast(Prediction):
    """A forecast: sample paths of the values after a series, their mean and quantiles; `text` is the median.

    A row of its map is a step of the forecast, a column a value that the model read before. The weights are those of
    the median: the model reads the median as if it had been observed. `score` is its log-density.
    """

    series: Series | None = None  # what came before
    times: tuple[str, ...] = ()  # the time of each step of the forecast
    paths: Float[Tensor, "paths horizon"] | None = None
    observed: tuple[float, ...] = ()  # what came then, if it is known; NaN where it is not
    context: int = 0  # how many steps the model read before the forecast

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Forecast):
            return NotImplemented
        ours, theirs = ({name: value for name, value in vars(one).items() if name != "paths"} for one in (self, other))
        if self.paths is None or other.paths is None:
            return ours == theirs and self.paths is other.paths
        return ours == theirs and torch.equal(self.paths.cpu(), other.paths.cpu())

    __hash__ = Prediction.__hash__

    @property
    def mean(self) -> list[float]:
        """The mean of the sample paths at each step."""
        assert self.paths is not None
        return self.paths.double().mean(0).tolist()

    def quantile(self, level: float) -> list[float]:
        """The quantile at each step: a path does not exceed it with this probability."""
        assert self.paths is not None
        return quantiles(self.paths.double().numpy(), [level])[0].tolist()

    @property
    def title(self) -> str:
        """The title of its pictures: the series, and what is forecast."""
        assert self.series is not None
        horizon = len(self.times)
        what = "the step" if horizon == 1 else f"{horizon:,} steps"
        return f"{self.series.name}: {what} after {self.series.label(len(self.series) - 1)}"

    def view(self) -> SeriesView:
        """The end of the history, with all that the model read, and the forecast, to be drawn."""
        assert self.series is not None
        assert self.paths is not None
        steps = min(len(self.series), max(SHOWN * len(self.times), self.context + 1))
        return SeriesView(
            self.series.name,
            (*self.series.labels()[-steps:], *self.times),
            torch.from_numpy(self.series.values[-steps:].copy()),
            LEVELS,
            torch.tensor([self.quantile(level) for level in LEVELS], dtype=torch.float64),
            torch.tensor(self.mean, dtype=torch.float64),
            torch.tensor(self.observed, dtype=torch.float64) if self.observed else None,
        )

    def with_observed(self, values: Numbers) -> "Forecast":
        """The forecast with what came then, if anything did, also in the pictures of its maps."""
        observed: tuple[float, ...] = tuple(values.tolist())
        view = replace(self, observed=observed, map=None, maps=None).view
        layers = [replace(layer, view=view) for layer in self.maps.layers] if self.maps else []
        return replace(
            self,
            observed=observed,
            map=replace(self.map, view=view) if self.map else None,
            maps=AttentionMaps(tuple(layers)) if layers else None,
        )

    def save(self, path: str | Path, *, pieces: bool = False, scale: str | None = None) -> Path:
        """Write the forecast to a file: .html, .svg and .png with its map below, if it has one; returns the path.

        .csv is a table of times, mean and quantiles; `map.save` writes the weights to one. `scale` is that of the map.
        """
        if self.map is None or Path(path).suffix.lower() == ".csv":
            return self.view().save(path, self.title)
        return super().save(path, pieces=pieces, scale=scale)

    def show(self) -> None:
        """Print the forecast as text, with the width and the colours of the terminal, and its map below."""
        (self.map or self.view()).show()

    def to_dict(self, *, maps: bool = True) -> dict[str, Any]:
        """A dictionary for JSON: times, mean, quantiles, sample paths, and the map if there is one."""
        content = super().to_dict(maps=maps and self.map is not None)
        paths = self.paths.tolist() if self.paths is not None else []
        quantiles = {f"{level:g}": self.quantile(level) for level in LEVELS}
        content |= {"times": list(self.times), "mean": self.mean, "quantiles": quantiles, "paths": paths}
        if self.observed:
            content["observed"] = [None if math.isnan(value) else value for value in self.observed]
        return content

    def __repr__(self) -> str:
        assert self.paths is not None
        parts = [shown(self.title), f"median {shown(self.text)}", f"{len(self.paths):,} paths"]
        parts += [f"map {len(self.map.rows)} × {len(self.map.columns)}"] if self.map is not None else []
        parts += [f"{len(self.maps)} maps"] if self.maps is not None else []
        return f"Forecast({', '.join(parts)})"

    def _repr_html_(self) -> str:
        """The interactive page that a notebook shows for this object."""
        return super()._repr_html_() or self.view()._repr_html_(self.title)

    def _repr_svg_(self) -> str:
        """The picture that a notebook shows for this object if it shows no HTML."""
        return super()._repr_svg_() or self.view()._repr_svg_()


class Learned(NamedTuple):
    """What is taken from the training series besides the weights: how steps, categories and covariates are read."""

    frequency: str
    season: int
    lags: tuple[int, ...]
    features: int  # of each step
    names: tuple[str, ...]  # of the series, with forecast.by_series
    categories: tuple[tuple[str, ...], ...]  # the entries of each column
    known: Standard
    past: Standard

    def to_bytes(self) -> bytes:
        """The content of the run's file."""
        return json.dumps(self._asdict() | {"known": vars(self.known), "past": vars(self.past)}, indent=1).encode()

    @staticmethod
    def from_bytes(content: bytes) -> "Learned":
        """Restores `to_bytes`; raises CorruptError if the content is damaged."""
        try:
            stored = json.loads(content)
            known, past = (
                Standard(*(tuple(map(float, stored[part][key])) for key in ("mean", "deviation")))
                for part in ("known", "past")
            )
            learned = Learned(
                str(Frequency.parse(stored["frequency"])),
                int(stored["season"]),
                tuple(map(int, stored["lags"])),
                int(stored["features"]),
                tuple(map(str, stored["names"])),
                tuple(tuple(map(str, column)) for column in stored["categories"]),
                known,
                past,
            )
            if not learned.lags or not 1 <= min(learned.lags) <= max(learned.lags) <= LARGEST_LAG:
                raise ValueError("a lag is out of range")
            if learned.season < 1:
                raise ValueError("the season is not positive")
            for standard in (known, past):
                if len(standard.mean) != len(standard.deviation):
                    raise ValueError("covariates with a mean or a deviation alone")
                if not np.isfinite(standard.mean).all() or not all(0 < one < np.inf for one in standard.deviation):
                    raise ValueError("a mean or deviation of a covariate is no finite number")
            frequency = Frequency.parse(learned.frequency)
            if learned.features != count_features(frequency, len(known.mean), len(past.mean)):
                raise ValueError("another number of features than its frequency and covariates have")
        except (ValueError, TypeError, KeyError, RecursionError, AttributeError, OverflowError, RecipeError) as error:
            raise CorruptError(f"{FILE} is damaged ({shown(str(error))}); train the run again") from error
        return learned


@dataclass(frozen=True)
class SeriesWindows(Encoded):
    """Encoded series: a panel of them, and the windows in it."""

    panel: Panel

    def lengths(self) -> Lengths:
        """The steps of each window, as (0, steps): there is no source."""
        steps = np.full(len(self.panel.rows), self.panel.shape.steps, np.int32)
        return np.stack([np.zeros_like(steps), steps], axis=1)

    def only(self, indices: Indices) -> "SeriesWindows":
        """The data of the windows at these indices."""
        return replace(self, panel=self.panel.only(torch.as_tensor(indices, dtype=torch.long)))


class Known(NamedTuple):
    """A series, and how many of its values come before the forecast."""

    series: Series
    values: int


class Judged(NamedTuple):
    """A window to be scored: the series before it, and what was observed in it."""

    history: Series
    observed: Numbers


class Cut(NamedTuple):
    """The parts of one series: what training sees, and the windows of dev and test, each with its history."""

    train: Series | None  # None if nothing is left
    dev: list[Series]
    test: list[Series]


class Forecasting(Task[Forecaster, SeriesWindows, Windows]):
    """Forecasting: learns the distribution of the next value of a series, and samples the values after its end.

    An example is a series: its source is the name, its target the series as text. The last values of a dev or test
    series, as many as forecast.horizon, are those to be forecast from the ones before them.
    """

    metrics = (
        *("crps", "weighted_quantile_loss", "nd", "rmse", "nrmse", "mase", "smape", "msis"),
        *("coverage_50", "coverage_80", "coverage_90"),
    )
    noun = "series"
    columns = ("series", "time", "value")
    mistakes = "texts"
    aligned = True
    ignores = (
        *(*core.OF_PAIRS, "source", "tokens", "search", "data.dev", "data.split_seed", "data.max_length"),
        *(
            "model.embedding",
            "model.embedding_from",
            "model.tied",
            "model.encoder",
            "train.smoothing",
            "train.word_dropout",
            "train.capture",
        ),
        *("model.decoder.start", "model.decoder.copies", "model.decoder.gated_context", "train.compile"),
        *("model.decoder.cross_attention", *core.ATTENTION_TERMS, *core.REWARD),
    )

    def __init__(self, recipe: Recipe, learned: Learned) -> None:
        super().__init__(recipe)
        self.learned = learned
        self.frequency = Frequency.parse(learned.frequency)
        self.shape = window_shape(recipe, learned.lags)

    # before training

    @classmethod
    def check(cls, recipe: Recipe) -> None:
        """Refuse a recipe with unknown names or sizes that do not fit, before any data is read."""
        settings = recipe.forecast
        likelihood = pick(LIKELIHOODS, settings.likelihood, "likelihood")
        pick(SCALINGS, settings.scaling, "scaling")
        if settings.scaling == "standard" and not likelihood.is_real:
            raise RecipeError(
                f"forecast.scaling = standard subtracts the mean, but forecast.likelihood = {settings.likelihood} is "
                f"of {likelihood.support}; choose forecast.scaling = mean"
            )
        if settings.lag_mixture and not likelihood.is_real:
            raise RecipeError(
                f"forecast.lag_mixture adds values to the location of a distribution of any number, but "
                f"forecast.likelihood = {settings.likelihood} is of {likelihood.support}; choose gaussian or student_t"
            )
        reading_of(recipe)
        pick(dict.fromkeys(("", *series_files.FORMATS)), settings.format, "format of series")
        lags = (1,) if settings.lags == CALENDAR else parse_lags(settings.lags)
        with only_shapes():  # fails if sizes do not fit
            forecaster.build(recipe.model, settings, window_shape(recipe, lags), features=1, categories=())

    @classmethod
    def check_columns(cls, recipe: Recipe) -> None:
        """Refuse data.columns unless it names three; which columns a file has is known when it is read."""
        if recipe.data.columns and len(recipe.data.columns) != len(cls.columns):
            named = ", ".join(recipe.data.columns)
            raise RecipeError(f"data.columns names the columns of series, time and value, three in all, not {named}")

    @classmethod
    def read_series(cls, recipe: Recipe, names: Sequence[str], given: Given = NOTHING_GIVEN) -> LoadedSeries:
        """Reads all series of some files, or of what is `given` in Python, as the recipe names columns and so on."""
        how, settings = reading_of(recipe), recipe.forecast
        parts = [
            series_given.given(given[name], how, name)
            if name in given
            else series_files.read(name, settings.format, how, recipe.data.limits)
            for name in expanded(names)
        ]
        loaded = [each for part in parts for each in part.series]
        first: dict[str, Series] = {}
        for each in loaded:
            if each is not first.setdefault(each.name, each):
                raise DataError(
                    f"{each.where(0)}: the series {shown(each.name)} is also in {first[each.name].where(0)}"
                )
        return LoadedSeries(loaded, tuple(note for part in parts for note in part.notes))

    @classmethod
    def examples(cls, recipe: Recipe, given: Given = NOTHING_GIVEN) -> Examples:
        """Reads or generates all series, and cuts off the windows to validate on and to be scored on.

        Without data.test these are the last forecast.windows windows of every series. The window before them is that
        of dev. Training sees no value of either.
        """
        data, settings = recipe.data, recipe.forecast
        if not data.train:
            if not data.corpus:
                raise RecipeError("nothing to learn from: give data.train=FILE.csv or data.corpus=NAME")
            splits = pick(CORPORA, data.corpus, "corpus")(recipe.train.seed, data.size)
            check_possible(map(series_of, splits.train), settings.likelihood)
            return Examples(splits.train, splits.dev, splits.test, [])
        check_found(recipe, [name for name in (*data.train, *data.test) if name != PAIRS])
        series, notes = cls.read_series(recipe, data.train, given)
        whole = {each.name: each for each in series}
        if data.test:
            later, later_notes = cls.read_series(recipe, data.test)
            whole |= {each.name: each for each in continued(series, later)}
            notes = (*notes, *later_notes)
        check_possible(whole.values(), settings.likelihood)
        cuts = [cut(whole[each.name], len(each) if data.test else None, settings) for each in series]
        short = sum(part.train is None for part in cuts)
        if short == len(cuts):
            least = 2 + (1 + settings.windows) * settings.horizon
            raise DataError(
                f"every series is too short: to learn, to validate and to score, one needs about {least:,} values; "
                "lower forecast.horizon or forecast.windows"
            )
        if short:
            notes = (*notes, f"{short:,} of {len(cuts):,} series are too short to learn from; they are left out")
        return Examples(
            [example_of(part.train) for part in cuts if part.train is not None],
            [example_of(window) for part in cuts for window in part.dev],
            [example_of(window) for part in cuts for window in part.test],
            [*notes],
        )

    @classmethod
    def reader(cls, recipe: Recipe, given: Given = NOTHING_GIVEN) -> Callable[[tuple[str, ...]], Loaded]:
        """Returns the function that reads the windows to be scored of some files: of data.test, or those at the end."""

        def read(names: tuple[str, ...]) -> Loaded:
            if names == recipe.data.test and recipe.data.train:
                return Loaded(cls.examples(recipe).test, 0)
            check_found(recipe, names)
            series = cls.read_series(recipe, names).series
            check_possible(series, recipe.forecast.likelihood)
            windows = [window for each in series for window in cut(each, None, recipe.forecast).test]
            if not windows:
                least = recipe.forecast.horizon + 1
                raise DataError(f"{' and '.join(names)}: every series is too short; give {least:,} values or more")
            return Loaded([example_of(window) for window in windows], 0)

        return read

    @classmethod
    def learn(cls, recipe: Recipe, examples: Sequence[Example], origin: Run | None = None) -> "Forecasting":
        """Builds the task with the frequency, categories and covariates of the training series, or of `origin`."""
        if origin is not None:
            return cls.restore(recipe, origin.read)
        series = [series_of(example) for example in counted(examples, "reading series")]
        settings, frequency = recipe.forecast, series[0].frequency
        for each in series:
            if each.frequency != frequency:
                raise DataError(
                    f"{each.where(0)} has steps of {each.frequency.in_words}, but {series[0].name} of "
                    f"{frequency.in_words}; train a run for each frequency"
                )
            for noun, count in widths(each).items():
                if count != (wanted := widths(series[0])[noun]):
                    raise DataError(f"{each.where(0)}: {count} {noun}, but {shown(series[0].name)} has {wanted}")
        lags = frequency.lags() if settings.lags == CALENDAR else parse_lags(settings.lags)
        columns = zip(*(each.categories for each in series), strict=True)
        known, past = len(series[0].known.T), len(series[0].past.T)
        learned = Learned(
            str(frequency),
            settings.season or frequency.season,
            lags,
            count_features(frequency, known, past),
            tuple(sorted({each.name for each in series})) if settings.by_series else (),
            tuple(tuple(sorted(set(column))) for column in columns),
            Standard.of([each.known for each in series], known),
            Standard.of([each.past for each in series], past),
        )
        return cls(recipe, learned)

    @classmethod
    def restore(cls, recipe: Recipe, read: Callable[[str], bytes]) -> "Forecasting":
        """Builds the task of a stored run."""
        return cls(recipe, Learned.from_bytes(read(FILE)))

    def files(self) -> dict[str, bytes]:
        """The content of the file that a run must store besides the weights."""
        return {FILE: self.learned.to_bytes()}

    def build(self) -> Forecaster:
        """Builds the model with newly initialised weights."""
        return forecaster.build(
            self.recipe.model,
            self.recipe.forecast,
            self.shape,
            features=self.learned.features,
            categories=tuple(map(len, self._columns())),
        )

    def vocabularies(self) -> dict[str, Vocabulary]:
        """The entries of each embedding of categories; the first row is that of unknown ones."""
        return {
            f"categories.{number}.weight": Vocabulary("categories", (("",), *entries))
            for number, entries in enumerate(self._columns())
        }

    def _columns(self) -> list[tuple[str, ...]]:
        """The entries of each column of categories; the names of the series are one, with forecast.by_series."""
        return [*([self.learned.names] if self.learned.names else []), *self.learned.categories]

    # from series to the loss

    def encode(self, examples: Sequence[Example]) -> SeriesWindows:
        """Encodes all series, each with one window: its horizon is the end of the series."""
        series = [series_of(example) for example in counted(examples, "encoding")]
        return SeriesWindows(examples, self._panel(series, [len(each) - self.shape.horizon for each in series]))

    def _panel(self, series: Sequence[Series], ends: Sequence[int]) -> Panel:
        """The panel of some series, whose windows forecast what comes after `ends` values."""
        columns = self._columns()
        numbers = [{entry: number for number, entry in enumerate(entries, start=1)} for entries in columns]
        rows = []
        for each in series:
            self._check(each)
            entries = [*([each.name] if self.learned.names else []), *each.categories]
            rows.append([table.get(entry, 0) for table, entry in zip(numbers, entries, strict=True)])
        categories = torch.tensor(rows, dtype=torch.long).view(len(series), len(columns))
        return Panel.of(series, ends, self.shape, categories, self.learned.known, self.learned.past)

    def _check(self, series: Series) -> None:
        """Refuse a series that does not fit the training series."""
        learned = self.learned
        if series.frequency != self.frequency:
            raise DataError(
                f"{series.where(0)}: its steps are of {series.frequency.in_words}, but this run learned from steps of "
                f"{self.frequency.in_words}"
            )
        counts = (len(learned.known.mean), len(learned.past.mean), len(learned.categories))
        for (noun, found), wanted in zip(widths(series).items(), counts, strict=True):
            if found != wanted:
                raise DataError(f"{series.where(0)}: {found} {noun}, but this run learned with {wanted}")
        if place := first_where([series], lambda values: np.abs(values) > LARGEST_VALUE):
            raise DataError(
                f"{place}: {place.value:g} is too large to compute with; give values up to {LARGEST_VALUE:g}, in a "
                "larger unit"
            )

    def within_length(self, data: SeriesWindows) -> SeriesWindows:
        """The windows for training, drawn at random from the series."""
        panel = data.panel.drawn(self.recipe.train.seed, weighted=self.recipe.forecast.weighted)
        if not len(panel.rows):
            raise DataError(
                f"every series is too short to learn from: one needs more than forecast.horizon = {self.shape.horizon} "
                "values"
            )
        return replace(data, panel=panel)

    def describe(self, data: SeriesWindows, dev: SeriesWindows) -> Iterator[str]:
        """Reports the frequency, the values, and the windows."""
        panel, shape, learned = data.panel, self.shape, self.learned
        values, missing = int(panel.lengths.sum()), int(panel.lengths.sum() - panel.observed.sum())
        gaps = f", {missing:,} of them missing" if missing else ""
        yield f"{values:,} values{gaps}, steps of {self.frequency.in_words}, a season {learned.season:,} steps"
        lags = ", ".join(map(str, learned.lags[:8])) + (f" ... {learned.lags[-1]}" if len(learned.lags) > 8 else "")
        yield f"windows of {shape.context:,} + {shape.horizon:,} steps, lags {lags}"

    def collate(self, data: SeriesWindows, indices: Sequence[int]) -> Windows:
        """Makes the batch of the windows at these indices."""
        return data.panel.collate(indices)

    def tokens(self, batch: Windows) -> int:
        """The number of values that the loss counts."""
        return max(1, int(batch.counted.sum()))

    def loss(
        self, model: Forecaster, batch: Windows, smoothing: float = 0.0, sampling: float = 0.0
    ) -> Float[Tensor, ""]:
        """The negative log-density of the counted values, summed."""
        return -torch.where(batch.counted, model.log_prob(batch), 0.0).sum()

    # from series to forecasts

    @property
    def for_later_data(self) -> Recipe:
        """The recipe with the frequency that was learned from: that of later data is not inferred from a few times."""
        if not self.frequency.has_calendar:
            return self.recipe
        return replace(self.recipe, forecast=replace(self.recipe.forecast, frequency=str(self.frequency)))

    def check_later(self, series: Iterable[Series]) -> None:
        """Refuse series of later data that are of a longer step, such as days for a run of hours."""
        for each in series:
            if not self.recipe.forecast.frequency and (apart := _least_distance(each)) > 1:
                raise DataError(
                    f"{each.where(0)}: the values of {shown(each.name)} are at least {apart:,} steps apart, but this "
                    f"run learned from steps of {self.frequency.in_words}; give series with values at such steps"
                )

    @property
    def noun_of_input(self) -> str:
        """The word for one input in messages."""
        return "series"

    def characters(self, same_source: Sequence[Example]) -> int:
        """The characters of one prediction: 0, since its time does not depend on them."""
        return 0

    def too_long(self, text: str) -> bool:
        """No series is too long: the model reads its end."""
        return False

    def accept(self, value: object, name: str) -> str:
        """The input for a value given in Python: a `Series`, values, the text of a series, or its name in the data."""
        if isinstance(value, str):
            return value
        if isinstance(value, Series):
            return Medium(value.name, value)
        series, _ = series_given.given(value, reading_of(self.for_later_data), name)
        if len(series) != 1:
            raise DataError(f"{name} has {len(series):,} series; give them one by one")
        self.check_later(series)
        return Medium(series[0].name, series[0])

    @torch.no_grad()
    def answer(
        self,
        model: Forecaster,
        texts: Sequence[str],
        settings: Search,
        n_best: int = 1,
        seed: int = 0,
        *,
        all_maps: bool = False,
    ) -> list[Prediction]:
        """Forecasts what comes after each series; the same seed and name give the same random numbers.

        A text is a series as text, or the name of one in the data of the run: of a test series, its last values are
        forecast, so that the forecast can be compared with them.
        """
        whole = [self._series(text) for text in texts]
        histories = [each.series.upto(each.values) for each in whole]
        answers = self.forecasts(model, histories, seed, all_maps=all_maps)
        return [
            answer.with_observed(each.series.values[each.values :]) for answer, each in zip(answers, whole, strict=True)
        ]

    def _series(self, text: str) -> "Known":
        """The series of an input, with what came after it if that is known."""
        if isinstance(text, Medium):
            assert isinstance(text.content, Series)
            return Known(text.content, len(text.content))
        if text.lstrip().startswith("{"):
            series = Series.from_text(text)
            return Known(series, len(series))
        if text.startswith(WAVES):
            series = wave(text)
            return Known(series, len(series) - self.shape.horizon)
        examples = self.examples(self.recipe)
        for part in (examples.test, examples.dev):
            for example in reversed(part):
                if example.source == text:
                    series = series_of(example)
                    return Known(series, len(series) - self.shape.horizon)
        names = [example.source for example in (*examples.test, *examples.train)]
        raise DataError(f"there is no series {shown(text)} in the data of this run{did_you_mean(text, names)}")

    def forecasts(
        self, model: Forecaster, series: Sequence[Series], seed: int = 0, *, all_maps: bool = False
    ) -> Iterator["Forecast"]:
        """Forecasts of many series, with the map of each."""
        for each in series:
            if each.known.shape[1] and len(each.known) < len(each) + self.shape.horizon:
                raise DataError(
                    f"{each.where(len(each) - 1)}: the known covariates of series {shown(each.name)} end "
                    f"{len(each.known) - len(each):,} steps after its last value, but {self.shape.horizon:,} steps are "
                    "forecast; give them for all of these, in rows without a value"
                )
        model.eval()
        device = next(model.parameters()).device
        panel = self._panel(series, [len(each) for each in series])
        paths, horizon = self.recipe.forecast.samples, self.shape.horizon
        rows = max(1, PATHS_AT_ONCE // paths)
        groups = [range(start, min(start + rows, len(series))) for start in range(0, len(series), rows)]
        for group in counted(groups, "forecasting", size=1):
            windows = panel.collate(group).to(device)
            keys = [series_key(series[place].name) for place in group]
            uniforms = uniform_numbers(seed, keys, (paths, horizon, model.likelihood.uniforms))
            sampled = model.sample(windows, uniforms.to(device), check_step).cpu()
            median = _median(sampled)
            score, recording = self._read_again(model, windows, median.to(device))
            for row, place in enumerate(group):
                one = Forecast(
                    series[place].name,
                    as_text(median[row].tolist()),
                    float(score[row]),
                    (labels := series[place].labels(len(series[place]) + horizon)[-horizon:]),
                    None,
                    series=series[place],
                    times=labels,
                    paths=sampled[row],
                    context=max(self.shape.context, 0 if model.mix is None else self.shape.before - 1),
                )
                yield self._with_maps(model, recording, row, one, all_maps=all_maps)

    @torch.no_grad()
    def _read_again(
        self, model: Forecaster, windows: Windows, median: Float[Tensor, "batch horizon"]
    ) -> tuple[Float[Tensor, " batch"], Recording]:
        """The log-density of the medians, and the weights of all attentions while the model reads them."""
        places = slice(self.shape.before + self.shape.context, None)
        values, observed = windows.values.clone(), windows.observed.clone()
        values[:, places], observed[:, places] = median, True
        names = [*sites(model), *([] if model.mix is None else [MIXTURE])]
        with record(model, layers=names) if names else nullcontext(Recording()) as recording:
            scores = model.log_prob(replace(windows, values=values, observed=observed))
        return scores[:, self.shape.context :].double().sum(1).cpu(), recording

    def _with_maps(
        self, model: Forecaster, recording: Recording, row: int, forecast: "Forecast", *, all_maps: bool
    ) -> "Forecast":
        """The forecast with its map; if `all_maps`, with those of all layers and heads, too.

        The key of step t is computed when the value of step t - 1 is read: so a column is labelled with this value.
        """
        assert forecast.series is not None
        axes = self._axes(forecast.series, forecast.times)._replace(view=forecast.view)
        maps = core.recorded_maps(model, recording, row, {DECODER_SELF: axes})
        layers = [*(maps.layers if maps else ())]
        if model.mix is not None:
            layers.append(self._lag_map(recording.joined(MIXTURE)[row, self.shape.context :].cpu(), forecast))
        if not layers:
            return forecast
        maps = AttentionMaps(tuple(layers))
        return replace(forecast, map=maps.pick(), maps=maps if all_maps else None)

    def _lag_map(self, weights: Float[Tensor, "horizon lags"], forecast: "Forecast") -> LayerMaps:
        """The map of the mixture of lagged values: a column for each value within the largest lag."""
        assert forecast.series is not None
        values, shape, horizon, lags = (
            len(forecast.series),
            self.shape,
            self.shape.horizon,
            torch.tensor(self.shape.lags),
        )
        first = max(0, values - shape.before)
        columns = forecast.series.labels(values + horizon - 1)[first:]
        steps = torch.arange(horizon).unsqueeze(1)
        places = (values + steps - lags - first).clamp(min=0)  # values before the first one have no weight
        spread = torch.zeros(horizon, len(columns)).index_put((steps, places), weights.float(), accumulate=True)
        return LayerMaps(LAG_MIXTURE, 1, spread.unsqueeze(0), forecast.times, columns, Steps(shape.lags), forecast.view)

    def _axes(self, series: Series, times: tuple[str, ...]) -> Axes:
        """The axes of the maps of a forecast after a series: times of the forecast, and of the values before each."""
        values, shape = len(series), self.shape
        hidden = max(0, shape.context - values + 1)  # steps that read a value before the first
        first = values - shape.context - 1 + hidden
        return Axes(times, series.labels(values + shape.horizon - 1)[first:], Steps(), shape.context, first=hidden)

    def positions(self, text: str) -> tuple[str, ...]:
        """Raises RecipeError: no value can be erased or swapped in the attention alone."""
        raise RecipeError(
            "each step of a forecast reads earlier values directly, not by attention alone; change the series"
        )

    def axes(self, text: str, written: tuple[str, ...], site: str) -> Axes:
        """The axes of the maps of a forecast."""
        known = self._series(text)
        series = known.series.upto(known.values)
        return self._axes(series, series.labels(len(series) + self.shape.horizon)[-self.shape.horizon :])

    def measure(self, model: Forecaster, examples: Sequence[Example], metric: str, settings: Search) -> Scored:
        """Forecasts the last values of each series from those before, and computes a metric, and all others."""
        self.check_metric(metric)
        windows = [self._window(example) for example in examples]
        answers = [
            answer.with_observed(window.observed)
            for answer, window in zip(self.forecasts(model, [one.history for one in windows]), windows, strict=True)
        ]
        asked = [
            replace(example, target=as_text(window.observed)) for example, window in zip(examples, windows, strict=True)
        ]
        paths = [answer.paths.double().numpy() for answer in answers if answer.paths is not None]
        measured = self._measure(self.metrics, windows, paths)
        if metric not in measured:
            METRICS[metric](self._judged(windows, paths), self._how())  # raises the error of this metric
        grouped: dict[str, list[int]] = {}
        for place, example in enumerate(examples):
            grouped.setdefault(example.group, []).append(place)
        groups = {
            group: self._measure([metric], [windows[place] for place in places], [paths[place] for place in places])
            for group, places in grouped.items()
            if group
        }
        return Scored(
            metric,
            measured.pop(metric),
            {group: scores[metric].value for group, scores in groups.items() if metric in scores},
            measured,
            answers,
            asked,
        )

    def baselines(self, examples: Sequence[Example]) -> dict[str, dict[str, Measured]]:
        """The scores of forecasts without learning, by baseline and metric."""
        windows, horizon, season = (
            [self._window(example) for example in examples],
            self.shape.horizon,
            self.learned.season,
        )
        return {
            name: self._measure(
                self.metrics, windows, [baseline(window.history.values, horizon, season) for window in windows]
            )
            for name, baseline in BASELINES.items()
        }

    def _window(self, example: Example) -> "Judged":
        """The window of an example to be scored."""
        series = series_of(example)
        end = len(series) - self.shape.horizon
        if end < 1:
            raise DataError(
                f"{series.where(0)}: {len(series):,} values, but forecast.horizon is {self.shape.horizon:,}"
            )
        return Judged(series.upto(end), series.values[end:])

    def _measure(
        self, metrics: Sequence[str], windows: Sequence["Judged"], paths: Sequence[Numbers]
    ) -> dict[str, Measured]:
        """The metrics of forecasts; those that are too large for a number are left out."""
        judged, how = self._judged(windows, paths), self._how()
        return core.measure_each(metrics, lambda metric: METRICS[metric](judged, how))

    def _judged(self, windows: Sequence["Judged"], paths: Sequence[Numbers]) -> Forecasts:
        histories = [window.history.values for window in windows]
        return Forecasts(paths, [window.observed for window in windows], histories, self.learned.season)

    def _how(self) -> str:
        return f"horizon:{self.shape.horizon}|step:{self.frequency}"


def window_shape(recipe: Recipe, lags: tuple[int, ...]) -> WindowShape:
    """The windows of a recipe."""
    settings = recipe.forecast
    return WindowShape(settings.context or settings.horizon, settings.horizon, lags, settings.scaling)


def parse_lags(text: str) -> tuple[int, ...]:
    """The numbers of forecast.lags; `1-24` are all from 1 to 24."""
    try:
        ranges = [[int(end) for end in part.split("-", 1)] for part in text.split(",")]
    except ValueError:
        ranges = [[0]]
    if not all(1 <= ends[0] <= ends[-1] <= LARGEST_LAG for ends in ranges):
        raise RecipeError(
            f"forecast.lags is {CALENDAR}, or numbers from 1 to {LARGEST_LAG:,} such as 1,24,168 or 1-24, not "
            f"{shown(text)}"
        )
    return tuple(sorted({1}.union(*(range(ends[0], ends[-1] + 1) for ends in ranges))))  # the last value is always read


def cut(series: Series, end: int | None, settings: Settings) -> Cut:
    """Cut the windows of dev and test off a series; those of test begin after `end` values, if it is given."""
    horizon, stride, length = settings.horizon, settings.stride or settings.horizon, len(series)
    if end is None:
        starts = [length - horizon - number * stride for number in reversed(range(settings.windows))]
    else:
        starts = [*range(end, length - horizon + 1, stride)]
    starts = [start for start in starts if start >= 1]
    known = min([length if end is None else end, *starts])
    dev = known - horizon
    return Cut(
        series.upto(dev) if dev > horizon else None,
        [series.upto(known)] if dev > horizon else [],
        [series.upto(start + horizon) for start in starts],
    )


def reading_of(recipe: Recipe) -> Reading:
    """How files are read: by their columns, frequency and start."""
    settings, roles = recipe.forecast, recipe.data.columns or ("", "", "")
    columns = Columns(roles[0], roles[1], roles[2], settings.known, settings.past, settings.categories)
    frequency = Frequency.parse(settings.frequency) if settings.frequency else None
    return Reading(columns, frequency, parse_start(settings.start) if settings.start else None)


def parse_start(text: str) -> np.datetime64:
    """The time of forecast.start."""
    try:
        return np.datetime64(text, "s")
    except ValueError:
        raise RecipeError(f"forecast.start is a time such as 1990-01-01, not {shown(text)}") from None


def widths(series: Series) -> dict[str, int]:
    """The number of covariates and categories of a series."""
    return {
        "known covariates": series.known.shape[1],
        "past covariates": series.past.shape[1],
        "categories": len(series.categories),
    }


def check_possible(series: Iterable[Series], likelihood: str) -> None:
    """Refuse values that the likelihood cannot give, such as negative counts."""
    entry = LIKELIHOODS[likelihood]()
    for each in series:
        if wrong := entry.impossible(each.values):
            raise DataError(
                f"{each.where(wrong.position)}: {wrong.reason} with forecast.likelihood = {likelihood}; choose another"
            )


def _least_distance(series: Series) -> int:
    """The least number of steps between two observed values; 1 if there are fewer than two."""
    places = np.flatnonzero(~np.isnan(series.values))
    return int(np.diff(places).min()) if len(places) > 1 else 1


def example_of(series: Series) -> Example:
    """The example of a series."""
    return Example(series.name, series.to_text(), origin=series.origin)


def series_of(example: Example) -> Series:
    """The series of an example."""
    return replace(Series.from_text(example.target), origin=example.origin)


def as_text(values: Iterable[float]) -> str:
    """Numbers as text, with spaces between."""
    return " ".join(f"{value:.6g}" for value in values)


def _median(paths: Float[Tensor, "batch paths horizon"]) -> Float[Tensor, "batch horizon"]:
    """A path through the middle of all paths: of each step, the lower median, which one of the paths has."""
    return paths.median(dim=1).values
