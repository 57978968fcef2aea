"""Speech as a source: recordings as log-mel features, and the layers that join frames to fewer positions."""

import json
import math
import re
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional

from regard.console import counted
from regard.data.archives import full_name
from regard.data.audio import HIGHEST_RATE, LOWEST_RATE, is_recording
from regard.data.corpora.tones import is_description
from regard.data.features import MaskSettings, MelSettings, change_speed, cut, log_mel, mask_features, resample
from regard.data.recordings import Recordings, accept
from regard.data.store import Shared
from regard.device import one_thread, only_shapes
from regard.errors import CorruptError, RecipeError, pick
from regard.layers.recurrence import Recurrence
from regard.maps import Frames, Spectrogram
from regard.recipe import Limits, Model, Recipe
from regard.recipe import Speech as Settings
from regard.sources.core import Front, Source, Span, Vectors
from regard.storage import Run
from regard.types import BatchFirst

FILE = "speech.json"  # of a run: sampling rate, and the mean and the standard deviation of each band
MEASURED = 1000  # recordings at most from which mean and deviation are computed, spread over the training data
LEAST_DEVIATION = 0.1  # of a band, in nats: one that hardly varies, such as silence, is not blown up
SPEED = re.compile(r"speed:([0-9]\.[0-9]+):(.+)", re.DOTALL)  # a varied recording: speed:0.9:NAME
QUIET = 0.2  # seconds whose power is averaged to find a silence to cut at
COUNTED = 10  # recordings that progress counts at a time

Features = Float[Tensor, "_ bands"]  # each recording has its own number of frames


@dataclass(frozen=True)
class SpeechBatch(BatchFirst):
    """Features of recordings, padded with zeros; `mask` is of the positions after the front has joined frames.

    There are as many frames as all positions have, so `features.shape[1]` is a multiple of `mask.shape[1]`.
    """

    features: Float[Tensor, "batch frames bands"]
    lengths: Int[Tensor, " batch"]  # frames of each recording, without padding
    mask: Bool[Tensor, "batch positions"]

    def crop(self, width: int) -> "SpeechBatch":
        """The first `width` positions of every row, and their frames."""
        frames = width * (self.features.shape[1] // self.mask.shape[1])
        return SpeechBatch(self.features[:, :frames], self.lengths.clamp(max=frames), self.mask[:, :width])


# the front


class SpeechFront(Front):
    """Base class of fronts for speech: every layer halves the number of positions, rounded up.

    Neither padding nor the other recordings of a batch change the vectors of a recording.
    """

    def __init__(self, settings: Settings, width: int, seconds: float) -> None:
        super().__init__()
        self._width = width
        self.layout = Frames(seconds)
        names = ("time_masks", "time_width", "time_share", "band_masks", "band_width")
        self.masks = MaskSettings(*(getattr(settings, name) for name in names))

    @property
    def width(self) -> int:
        """The width of the vectors."""
        return self._width

    def embed(self, source: SpeechBatch) -> Vectors:
        """A vector for every position; in training, some frames and bands are masked (SpecAugment)."""
        features = source.features.to(next(self.parameters()).dtype)
        if self.training and (self.masks.time_masks or self.masks.band_masks):
            features = mask_features(features, source.lengths, self.masks)
        return Vectors(self.join(features, source.lengths), source.mask, self.layout)

    @abstractmethod
    def join(
        self, features: Float[Tensor, "batch frames bands"], lengths: Int[Tensor, " batch"]
    ) -> Float[Tensor, "batch positions width"]:
        """The vectors of the positions; those of padding are zero."""


class Convolution(SpeechFront):
    """Layers of a convolution over three frames with stride two, layer normalisation and ReLU.

    Ba et al. 2016: layer normalisation uses the numbers of one position alone, so padding has no part in it.
    """

    def __init__(self, settings: Settings, width: int, seconds: float) -> None:
        super().__init__(settings, width, seconds)
        inputs = [settings.bands, *[width] * (settings.layers - 1)]
        self.layers = nn.ModuleList(nn.Conv1d(size, width, 3, stride=2, padding=1, bias=False) for size in inputs)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in inputs)

    def join(
        self, features: Float[Tensor, "batch frames bands"], lengths: Int[Tensor, " batch"]
    ) -> Float[Tensor, "batch positions width"]:
        """The vectors of the positions; those of padding are zero."""
        states = _without_padding(features, lengths)
        for layer, norm in zip(self.layers, self.norms, strict=True):
            lengths = _halved(lengths)
            joined = layer(states.transpose(1, 2)).transpose(1, 2)
            states = _without_padding(functional.relu(norm(joined)), lengths)
        return states


class Pyramid(SpeechFront):
    """Chan et al. 2016, Listen, Attend and Spell, 3.1: bidirectional LSTMs; after each, pairs of states are joined.

    h_i = [BLSTM(x)_2i, BLSTM(x)_2i+1].  A bidirectional LSTM as the encoder on top is the last layer of the listener.
    """

    def __init__(self, settings: Settings, width: int, seconds: float) -> None:
        super().__init__(settings, width, seconds)
        if width % 4:
            raise RecipeError(
                f"the front pyramid joins two states of two directions: its width {width} must be 4, 8 ..."
            )
        inputs = [settings.bands, *[width] * (settings.layers - 1)]
        self.layers = nn.ModuleList(
            Recurrence(nn.LSTM, input_dim=size, dim=width // 2, bidirectional=True) for size in inputs
        )

    def join(
        self, features: Float[Tensor, "batch frames bands"], lengths: Int[Tensor, " batch"]
    ) -> Float[Tensor, "batch positions width"]:
        """The vectors of the positions; those of padding are zero."""
        states = features
        for layer in self.layers:
            assert isinstance(layer, Recurrence)
            outputs, _ = layer.read(states, _mask(states, lengths))
            states, lengths = outputs.unflatten(1, (-1, 2)).flatten(2), _halved(lengths)
        return states


def _halved(lengths: Int[Tensor, " batch"]) -> Int[Tensor, " batch"]:
    return (lengths + 1) // 2


def _mask(states: Float[Tensor, "batch time width"], lengths: Int[Tensor, " batch"]) -> Bool[Tensor, "batch time"]:
    """True at the positions below the lengths."""
    return torch.arange(states.shape[1], device=states.device) < lengths.unsqueeze(1)


def _without_padding(states: Float[Tensor, "batch time width"], lengths: Int[Tensor, " batch"]) -> Tensor:
    """The states, with zeros in place of padding."""
    return states.masked_fill(~_mask(states, lengths).unsqueeze(-1), 0.0)


FRONTS: dict[str, type[SpeechFront]] = {"convolution": Convolution, "pyramid": Pyramid}


# the source


class Scale(NamedTuple):
    """What is measured in the training data: the sampling rate, and mean and standard deviation of each band."""

    rate: int
    mean: Float[Tensor, " bands"]
    deviation: Float[Tensor, " bands"]

    def to_bytes(self) -> bytes:
        """The content of the run's file."""
        content = {"rate": self.rate, "mean": self.mean.tolist(), "deviation": self.deviation.tolist()}
        return json.dumps(content, indent=1).encode()

    @staticmethod
    def from_bytes(content: bytes, bands: int) -> "Scale":
        """Restores `to_bytes`; raises CorruptError if the content is damaged, or is of another number of bands."""
        try:
            stored = json.loads(content)
            rate, mean, deviation = stored["rate"], stored["mean"], stored["deviation"]
        except (ValueError, RecursionError, KeyError, TypeError) as error:
            raise _damaged("it has no rate, mean and deviation") from error
        if type(rate) is not int or not LOWEST_RATE <= rate <= HIGHEST_RATE:
            raise _damaged("its rate is not possible")
        if not (_are_numbers(mean, bands) and _are_numbers(deviation, bands) and min(deviation) > 0):
            raise _damaged(f"it needs a mean and a positive deviation for each of {bands} bands")
        return Scale(rate, torch.tensor(mean), torch.tensor(deviation))


def _are_numbers(values: Any, count: int) -> bool:
    """Whether this is a list of so many finite numbers of a usual size."""
    return (
        isinstance(values, list)
        and len(values) == count
        and all(type(value) in (int, float) and math.isfinite(value) and abs(value) < 1e6 for value in values)
    )


def _damaged(reason: str) -> CorruptError:
    return CorruptError(f"{FILE} of the run is damaged ({reason}); restore it from a copy, or train again")


class Speech(Source[Features]):
    """A recording, named as in `regard.data.recordings`, as log-mel features in half precision.

    Features are normalised by the mean and the deviation that each band has in the training data.
    """

    reads_files = True
    noun = "recording"
    descriptions: ClassVar[Mapping[str, str]] = {"tones": "tones:7:C4-E4-G4"}

    def __init__(self, settings: Settings, limits: Limits, scale: Scale) -> None:
        self.settings, self.scale = settings, scale
        self.recordings = Recordings(limits)
        self.mel = _mel(settings, scale.rate)
        self.factor = 2**settings.layers  # frames of a position

    @staticmethod
    def check(recipe: Recipe) -> None:
        """Raise RecipeError if a name is in no table, or sizes do not fit."""
        settings = recipe.speech
        front = pick(FRONTS, settings.front, "front")
        if settings.rate and settings.rate < LOWEST_RATE:
            raise RecipeError(f"speech.rate is 0, or at least {LOWEST_RATE:,}, not {settings.rate}")
        with only_shapes():
            front(settings, _width(settings, recipe.model), 1.0)

    @classmethod
    def fit(cls, recipe: Recipe, sources: Sequence[str], origin: Run | None = None) -> "Speech":
        """Measure rate, mean and deviation in the training data, or take those of the run that training starts from."""
        settings, limits = recipe.speech, recipe.data.limits
        if origin is not None and origin.has_file(FILE):
            if origin.recipe().speech.bands != settings.bands:
                how = f"choose speech.bands={origin.recipe().speech.bands}, or train.new_vocabulary=true"
                raise RecipeError(f"{origin.path} has another number of mel bands than {settings.bands}; {how}")
            if origin.recipe().speech.centre != settings.centre:
                how = f"choose speech.centre={str(not settings.centre).lower()}, or train.new_vocabulary=true"
                raise RecipeError(f"{origin.path} has features of another kind: speech.centre differs; {how}")
            return cls(settings, limits, Scale.from_bytes(origin.read(FILE), settings.bands))
        return cls(settings, limits, _measure(settings, limits, sources))

    @classmethod
    def restore(cls, recipe: Recipe, read: Callable[[str], bytes]) -> "Speech":
        """Load the source of a stored run."""
        return cls(recipe.speech, recipe.data.limits, Scale.from_bytes(read(FILE), recipe.speech.bands))

    @classmethod
    def locate(cls, source: str, file: str) -> str:
        """The full name of a recording that a line of a data file names: in a tar file beside it, or in its folder."""
        return source if is_description(source) else full_name(source, file)

    @classmethod
    def recognises(cls, start: bytes) -> bool:
        """Whether a file that begins with these bytes has a format that is read."""
        return is_recording(start)

    def accept(self, value: object, name: str) -> str:
        """The source for a `Recording`: samples and their rate."""
        return accept(value, name, self.recordings.limits)

    @classmethod
    def variants(cls, recipe: Recipe, source: str) -> tuple[str, ...]:
        """Speed perturbation: the recording, and two copies that are slower and faster."""
        change = recipe.speech.speed
        return (source, *(f"speed:{1 + sign * change:.3f}:{source}" for sign in (-1, 1) if change))

    def files(self) -> dict[str, bytes]:
        """The measurements."""
        return {FILE: self.scale.to_bytes()}

    def encode(self, source: str) -> Features:
        """The normalised features of a recording, in half precision."""
        features = _centred(_features(self.recordings, self.mel, source), self.settings)
        return ((features - self.scale.mean) / self.scale.deviation).half()

    def encode_all(self, sources: Sequence[str]) -> Sequence[Features]:
        """The features of many recordings, each computed once; a second with 80 bands and a hop of 0.01 takes 16 kB."""

        def read(names: Sequence[str]) -> list[Features]:
            return [self.encode(name) for name in counted(names, "computing features", size=COUNTED)]

        return Shared.of(sources, read)

    def size(self, item: Features) -> int:
        """The number of positions after the front has joined frames."""
        return -(-len(item) // self.factor)

    def split(self, item: Features, longest: int) -> list[Span]:
        """The parts of a recording, cut where it is quiet; the whole if it is as short as those trained on."""
        if self.size(item) <= longest + 1:  # as in training
            return [Span(0, item)]
        power = (item.float() * self.scale.deviation + self.scale.mean).exp().sum(1)
        window = max(1, round(QUIET * self.mel.rate / self.mel.hop))
        spans = cut(power, longest * self.factor, step=self.factor, window=window)
        return [Span(span.start // self.factor, item[span.start : span.stop]) for span in spans]

    def time(self, position: int) -> float:
        """The time of a position in seconds."""
        return position * self.seconds

    def collate(self, items: Sequence[Features]) -> SpeechBatch:
        """The features, padded to a whole number of positions."""
        sizes = torch.tensor([self.size(item) for item in items])
        positions = int(sizes.max())
        features = items[0].new_zeros(len(items), positions * self.factor, self.settings.bands)
        for row, item in zip(features, items, strict=True):
            row[: len(item)] = item
        lengths = torch.tensor([len(item) for item in items])
        return SpeechBatch(features, lengths, torch.arange(positions) < sizes.unsqueeze(1))

    @property
    def seconds(self) -> float:
        """The seconds between two positions."""
        return self.factor * self.mel.hop / self.mel.rate

    def labels(self, item: Features) -> tuple[str, ...]:
        """The time of each position in seconds."""
        digits = 2 if self.seconds >= 0.01 else 3  # so that no two labels are equal
        return tuple(f"{place * self.seconds:.{digits}f}" for place in range(self.size(item)))

    def view(self, source: str) -> Spectrogram:
        """The log-mel features of a recording, not normalised, and its samples as the model reads them."""
        samples = _samples(self.recordings, self.mel, source)
        features, highest = _log_mel(samples, self.mel), self.mel.high or self.mel.rate / 2
        return Spectrogram(features, self.mel.hop / self.mel.rate, highest, samples, self.mel.rate)

    def front(self, model: Model) -> SpeechFront:
        """Build the layers from features to vectors."""
        front = pick(FRONTS, self.settings.front, "front")
        return front(self.settings, _width(self.settings, model), self.seconds)

    def describe(self, items: Sequence[Features]) -> str:
        """The rate, and the mean duration of a recording and of a position."""
        duration = sum(map(len, items)) / max(1, len(items)) * self.mel.hop / self.mel.rate
        read = f"read at {self.mel.rate:,} samples per second, a position for every {self.seconds:g} seconds"
        return f"dev recordings of {duration:.1f} seconds on average, {read}"


def _width(settings: Settings, model: Model) -> int:
    return model.encoder.dim if model.encoder.kind == "transformer" else settings.width


def _mel(settings: Settings, rate: int) -> MelSettings:
    return MelSettings.for_rate(rate, settings.bands, settings.window, settings.hop)


def _features(recordings: Recordings, mel: MelSettings, source: str) -> Features:
    """The log-mel features of a recording or of a varied one, at the rate of the settings."""
    return _log_mel(_samples(recordings, mel, source), mel)


def _samples(recordings: Recordings, mel: MelSettings, source: str) -> Float[Tensor, " samples"]:
    """The samples of a recording or of a varied one, at the rate of the settings."""
    varied = SPEED.fullmatch(source)
    samples, rate = recordings.read(varied[2] if varied else source)
    with one_thread():  # so they do not depend on the number of threads either
        if varied:
            samples = change_speed(samples, float(varied[1]))
        return resample(samples, rate, mel.rate)


def _log_mel(samples: Float[Tensor, " samples"], mel: MelSettings) -> Features:
    """The log-mel features of samples, which do not depend on the number of threads."""
    with one_thread():
        return log_mel(samples, mel)


def _centred(features: Features, settings: Settings) -> Features:
    """Atal 1974, cepstral mean normalisation, if it is set: each band less its mean in the recording."""
    return features - features.mean(0) if settings.centre else features


def _measure(settings: Settings, limits: Limits, sources: Sequence[str]) -> Scale:
    """Rate, mean and deviation of recordings, spread evenly over the training data if there are many."""
    recordings = Recordings(limits)
    rate = settings.rate or recordings.read(sources[0]).rate
    mel, count = _mel(settings, rate), min(MEASURED, len(sources))
    chosen = [sources[index * len(sources) // count] for index in range(count)]
    frames, total, squares = 0, torch.zeros(settings.bands).double(), torch.zeros(settings.bands).double()
    for source in counted(chosen, "measuring recordings", size=COUNTED):
        features = _centred(_features(recordings, mel, source), settings).double()
        frames, total, squares = frames + len(features), total + features.sum(0), squares + features.square().sum(0)
    mean = total / frames
    deviation = (squares / frames - mean.square()).clamp(min=LEAST_DEVIATION**2).sqrt()
    return Scale(rate, mean.float(), deviation.float())
