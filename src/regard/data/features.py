"""Log-mel features of recordings, and two ways to vary them in training: SpecAugment and speed perturbation.

The same arguments give the same result; only the masks of SpecAugment are random.
"""

import math
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from itertools import pairwise

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from regard.errors import RecipeError

FLOOR = 1e-10  # smallest power whose logarithm is taken; the rounding of 16-bit samples has about 3e-10 in a band
BANDS = 80
WINDOW, HOP = 0.025, 0.01  # seconds
TRANSFORMED = 2**22  # samples of all frames that are transformed at a time

# Slaney's mel scale: linear up to 1,000 Hz, with 15 mel there, and logarithmic above, 27 mel for a factor of 6.4.
HERTZ_PER_MEL, BREAK_HERTZ, BREAK_MEL = 200 / 3, 1000.0, 15.0
LOGARITHMIC_STEP = math.log(6.4) / 27

# The interpolation of `resample`: a sinc function under a Kaiser window.
CROSSINGS = 32  # zeros of the sinc function to either side
BETA = 10.0  # shape of the Kaiser window: the larger, the less aliasing
CUTOFF = 0.92  # as a share of the lower Nyquist frequency; up to 0.83 is kept, beyond 1.01 removed
PRODUCTS = 2**22  # products of samples and weights that are computed at a time
WEIGHTS = 2**19  # weights that are computed at a time
FINEST = 1000  # largest denominator of a factor of `change_speed`


# log-mel


@dataclass(frozen=True)
class MelSettings:
    """How log-mel features are computed, in samples and hertz; `for_rate` has the usual values."""

    rate: int  # samples per second
    fft: int  # samples of a Fourier transform; a shorter window has zeros on both sides
    window: int  # samples of a Hann window
    hop: int  # samples between the centres of two frames
    bands: int = BANDS
    low: float = 0.0  # the lowest frequency of the bands
    high: float | None = None  # the highest; None: half the rate
    floor: float = FLOOR

    @staticmethod
    def for_rate(rate: int, bands: int = BANDS, window: float = WINDOW, hop: float = HOP) -> "MelSettings":
        """Settings for a sampling rate, with window and hop in seconds.

        The Fourier transform has a power of two of samples: enough for the window, and so many that its frequencies
        are no further apart than the centres of the lowest bands.
        """
        length = max(2, round(window * rate))
        highest = hertz_to_mel(torch.tensor(rate / 2, dtype=torch.float64)).item()
        narrow = math.ceil(rate * (bands + 1) / (highest * HERTZ_PER_MEL))
        fft = 1 << (max(length, narrow) - 1).bit_length()
        return MelSettings(rate, fft, length, max(1, round(hop * rate)), bands)

    def frames(self, samples: int) -> int:
        """The number of frames of a recording with so many samples; 1 + samples // hop if `fft` is even."""
        return 1 + (samples - self.fft % 2) // self.hop


def log_mel(samples: Float[Tensor, " samples"], settings: MelSettings) -> Float[Tensor, "frames bands"]:
    """The natural logarithm of the mel spectrogram: log(max(power, floor)), as float32.

    Equal to `numpy.log(numpy.maximum(librosa.feature.melspectrogram(...), floor)).T` of librosa 0.11 with its defaults:
    squared magnitudes under a periodic Hann window, frames centred at multiples of the hop with zeros beyond the ends,
    Slaney's mel scale, and bands that are triangles of area 1. Computed in float64: in float32, quiet bands beside loud
    ones would be rounding noise.
    """
    window = torch.hann_window(settings.window, dtype=torch.float64, device=samples.device)
    filters = mel_filters(settings).to(samples.device)
    padded = torch.nn.functional.pad(samples, (settings.fft // 2, settings.fft // 2))
    features = samples.new_empty(settings.frames(len(samples)), settings.bands, dtype=torch.float32)
    step = max(1, TRANSFORMED // settings.fft)
    for part, start in zip(features.split(step), range(0, len(features), step), strict=True):
        inputs = padded[start * settings.hop : (start + len(part) - 1) * settings.hop + settings.fft]
        power = _power(inputs, settings, window)
        part.copy_((filters @ power).clamp(min=settings.floor).log().T)
    return features


def _power(
    samples: Float[Tensor, " samples"], settings: MelSettings, window: Float[Tensor, " window"]
) -> Float[Tensor, "frequencies frames"]:
    """The squared magnitudes of the Fourier transforms of all frames that fit into these samples."""
    sizes = (settings.fft, settings.hop, settings.window)
    spectrum = torch.stft(samples.double(), *sizes, window, center=False, return_complex=True)
    return spectrum.real.square() + spectrum.imag.square()


@lru_cache
def mel_filters(settings: MelSettings) -> Float[Tensor, "bands frequencies"]:
    """The weight of each frequency of a Fourier transform in each band: triangles of area 1, equally wide in mel.

    Cached: do not change the result.
    """
    high = settings.rate / 2 if settings.high is None else settings.high
    if not 0 <= settings.low < high <= settings.rate / 2:
        given, half = f"from {settings.low:g} to {high:g} Hz", f"{settings.rate / 2:g} Hz, half the rate"
        raise RecipeError(f"mel bands {given}: they must rise, from 0 or more to at most {half}")
    bounds = torch.tensor([settings.low, high], dtype=torch.float64)
    low, high = hertz_to_mel(bounds).tolist()
    edges = mel_to_hertz(torch.linspace(low, high, settings.bands + 2, dtype=torch.float64)).unsqueeze(1)
    frequencies = torch.arange(settings.fft // 2 + 1, dtype=torch.float64) * (settings.rate / settings.fft)
    left, centre, right = edges[:-2], edges[1:-1], edges[2:]
    rising, falling = (frequencies - left) / (centre - left), (right - frequencies) / (right - centre)
    filters = torch.minimum(rising, falling).clamp(min=0) * (2 / (right - left))
    if not filters.any(1).all():
        how = f"choose fewer bands, or an FFT of more than {settings.fft} samples"
        raise RecipeError(f"{settings.bands} mel bands: some lie between two frequencies of the FFT; {how}")
    return filters


def hertz_to_mel(hertz: Float[Tensor, "*any"]) -> Float[Tensor, "*any"]:
    """Slaney's mel scale: linear below 1,000 Hz, logarithmic above."""
    above = BREAK_MEL + (hertz.clamp(min=BREAK_HERTZ) / BREAK_HERTZ).log() / LOGARITHMIC_STEP
    return torch.where(hertz < BREAK_HERTZ, hertz / HERTZ_PER_MEL, above)


def mel_to_hertz(mel: Float[Tensor, "*any"]) -> Float[Tensor, "*any"]:
    """The inverse of `hertz_to_mel`."""
    above = BREAK_HERTZ * ((mel - BREAK_MEL).clamp(min=0) * LOGARITHMIC_STEP).exp()
    return torch.where(mel < BREAK_MEL, mel * HERTZ_PER_MEL, above)


# long recordings


def cut(power: Float[Tensor, " frames"], longest: int, *, step: int = 1, window: int = 1) -> list[range]:
    """Spans of at most `longest` frames that follow each other and cover the recording, cut where it is quiet.

    `power` is that of each frame. A cut comes after a half to the whole of `longest`, a multiple of `step`, where the
    power of the `window` frames around it is least, weighted by their nearness; of equal ones at the last. No span is
    shorter than about a quarter of `longest`, unless the recording is.
    """
    most, ends = longest // step, []
    before = window // 2
    padded = np.pad(power.double().numpy(), (before, window - before), mode="edge")
    near = np.hanning(window + 2)[1:-1]
    around = np.lib.stride_tricks.sliding_window_view(padded, window) @ near  # of the frames around each boundary
    start = 0
    while len(power) - start > most * step:
        last = min(most, (len(power) - start) // step - most // 4)
        places = start + step * np.arange(last, max(1, most // 2) - 1, -1)
        start = int(places[around[places].argmin()])  # the first of equal ones, which is the last in time
        ends.append(start)
    return [range(*bounds) for bounds in pairwise([0, *ends, len(power)])]


# variations for training


@dataclass(frozen=True)
class MaskSettings:
    """The masks of SpecAugment; the values are those of the paper's policy for LibriSpeech without its time warping."""

    time_masks: int = 2
    time_width: int = 40  # frames at most
    time_share: float = 0.2  # of all frames at most, for short recordings
    band_masks: int = 2
    band_width: int = 27  # bands at most


def mask_features(
    features: Float[Tensor, "batch frames bands"], lengths: Int[Tensor, " batch"], settings: MaskSettings
) -> Float[Tensor, "batch frames bands"]:
    """SpecAugment (Park et al. 2019): a copy in which some spans of frames and of bands of each recording are zero.

    Zero is the mean of normalised features. The width of a mask is drawn uniformly from 0 to the largest width, then
    its place uniformly from all that fit into the `lengths`. They are drawn from torch's generator, as dropout is.
    """
    frames, bands = features.shape[1:]
    longest = (settings.time_share * lengths).long().clamp(max=settings.time_width)
    masked_frames = _spans(lengths, longest, settings.time_masks, frames)
    all_bands = torch.full_like(lengths, bands)
    masked_bands = _spans(all_bands, all_bands.clamp(max=settings.band_width), settings.band_masks, bands)
    return features.masked_fill(masked_frames.unsqueeze(2) | masked_bands.unsqueeze(1), 0.0)


def _spans(
    sizes: Int[Tensor, " batch"], longest: Int[Tensor, " batch"], count: int, positions: int
) -> Bool[Tensor, "batch positions"]:
    """For each row, the union of so many random spans, each of at most `longest` of the first `sizes` positions."""
    drawn = torch.rand(2, len(sizes), count, device=sizes.device)
    most = longest.unsqueeze(1)
    widths = torch.minimum((drawn[0] * (most + 1)).long(), most)  # a product may be rounded up
    starts = (drawn[1] * (sizes.unsqueeze(1) - widths + 1)).long().unsqueeze(-1)
    places = torch.arange(positions, device=sizes.device)
    return ((places >= starts) & (places < starts + widths.unsqueeze(-1))).any(1)


def change_speed(samples: Float[Tensor, " samples"], factor: float) -> Float[Tensor, " changed"]:
    """Speed perturbation (Ko et al. 2015): the recording played `factor` times as fast, so that its pitch rises too.

    The result has 1 / factor times as many samples, rounded up. The factor is rounded to a fraction with a denominator
    of at most 1,000.
    """
    if not 0.1 <= factor <= 10:
        raise RecipeError(f"a speed of {factor:g}: give a factor from 0.1 to 10, usually 0.9 to 1.1")
    ratio = Fraction(factor).limit_denominator(FINEST)
    return resample(samples, ratio.numerator, ratio.denominator)


def resample(samples: Float[Tensor, " samples"], rate: int, new_rate: int) -> Float[Tensor, " changed"]:
    """The recording at another sampling rate: samples * new_rate / rate in number, rounded up.

    Sample k of the result is the signal at the time k / new_rate, interpolated with a sinc function under a Kaiser
    window (Smith & Gossett 1984). Frequencies up to 0.83 times the lower of the two Nyquist frequencies are kept, those
    above that Nyquist frequency are removed. Beyond the ends the signal is zero.
    """
    if rate < 1 or new_rate < 1:
        raise RecipeError(f"from {rate:,} to {new_rate:,} samples per second: both must be at least 1")
    up, down = new_rate // math.gcd(rate, new_rate), rate // math.gcd(rate, new_rate)
    if up == down or not len(samples):
        return samples.clone()
    count = -(-len(samples) * up // down)
    cutoff = CUTOFF * min(1.0, up / down)  # as a share of the Nyquist frequency of the samples
    taps = 2 * math.ceil(CROSSINGS / cutoff)
    padded = torch.nn.functional.pad(samples, (taps // 2 - 1, taps // 2))
    windows = padded.unfold(0, taps, 1)  # a view: the samples around each sample
    changed = samples.new_empty(count)
    step, block = max(1, PRODUCTS // taps), max(1, WEIGHTS // taps)
    for phase in range(min(up, count)):  # every `up` samples are `down` samples of the input apart
        if phase % block == 0:  # not all at once: of odd rates, such as 383,999, there are very many
            weights = _interpolation(up, down, phase, min(phase + block, up, count)).to(samples)
        part, row = changed[phase::up], weights[phase % block]
        inputs = windows[phase * down // up :: down][: len(part)]
        for start in range(0, len(part), step):
            part[start : start + step] = inputs[start : start + step] @ row
    return changed


@lru_cache(maxsize=16)
def _interpolation(up: int, down: int, first: int, end: int) -> Float[Tensor, "phases taps"]:
    """The weights of the samples around the times k * down / up, for k from `first` to `end`; rows have the sum 1."""
    cutoff = CUTOFF * min(1.0, up / down)
    reach = math.ceil(CROSSINGS / cutoff)  # samples to either side
    offsets = torch.arange(-reach + 1, reach + 1, dtype=torch.float64)
    fractions = (torch.arange(first, end) * down % up).double() / up
    distances = offsets - fractions.unsqueeze(1)
    inside = (1 - (distances / reach).square()).clamp(min=0)
    weights = torch.sinc(cutoff * distances) * torch.special.i0(BETA * inside.sqrt())
    return weights / weights.sum(1, keepdim=True)
