"""Log-mel features equal librosa's and their formula; masks and speed changes have known effects."""

import math
from importlib.util import find_spec

import numpy as np
import pytest
import torch
from torch import Tensor

from regard.data.features import (
    FLOOR,
    MaskSettings,
    MelSettings,
    change_speed,
    hertz_to_mel,
    log_mel,
    mask_features,
    mel_filters,
    mel_to_hertz,
    resample,
)
from regard.errors import RecipeError

needs_librosa = pytest.mark.skipif(not find_spec("librosa"), reason="librosa is not installed")


def tone(hertz: float, rate: int, seconds: float = 0.5, loudness: float = 0.5) -> Tensor:
    times = torch.arange(round(rate * seconds), dtype=torch.float64) / rate
    return (loudness * torch.sin(2 * math.pi * hertz * times)).float()


def noise(count: int, seed: int = 0, loudness: float = 0.1) -> Tensor:
    return loudness * torch.randn(count, generator=torch.Generator().manual_seed(seed))


SIGNALS = {
    "noise": lambda rate: noise(rate),
    "quiet noise": lambda rate: noise(rate, loudness=1e-4),
    "tone": lambda rate: tone(440, rate),
    "silence": lambda rate: torch.zeros(rate // 3),
    "click": lambda rate: torch.nn.functional.one_hot(torch.tensor(777), 4001).float(),
    "one sample": lambda rate: torch.tensor([0.7]),
    "shorter than a window": lambda rate: noise(50),
}


# log-mel


@needs_librosa
@pytest.mark.filterwarnings("ignore:n_fft=")  # librosa warns of recordings that are shorter than a window
@pytest.mark.parametrize("signal", SIGNALS)
@pytest.mark.parametrize("rate", [8000, 16_000, 44_100])
@pytest.mark.parametrize("bands", [23, 80])
def test_features_equal_those_of_librosa(signal: str, rate: int, bands: int) -> None:
    import librosa

    samples, settings = SIGNALS[signal](rate), MelSettings.for_rate(rate, bands)
    power = librosa.feature.melspectrogram(
        y=samples.double().numpy(),
        sr=rate,
        n_fft=settings.fft,
        hop_length=settings.hop,
        win_length=settings.window,
        n_mels=bands,
    )
    features = log_mel(samples, settings)
    assert features.shape == (settings.frames(len(samples)), bands)
    np.testing.assert_allclose(features, np.log(np.maximum(power, FLOOR)).T, rtol=0, atol=1e-4)


@needs_librosa
@pytest.mark.parametrize("fft", [600, 601])
@pytest.mark.parametrize("count", [4994, 4995, 4996, 5000])  # 4995 is a multiple of the hop
def test_limits_of_the_bands_and_odd_windows_equal_those_of_librosa(fft: int, count: int) -> None:
    import librosa

    settings = MelSettings(11_025, fft, 333, 111, bands=17, low=130.0, high=4321.0, floor=1e-6)
    samples = noise(count)
    power = librosa.feature.melspectrogram(
        y=samples.double().numpy(),
        sr=11_025,
        n_fft=fft,
        win_length=333,
        hop_length=111,
        n_mels=17,
        fmin=130,
        fmax=4321,
    )
    np.testing.assert_allclose(log_mel(samples, settings), np.log(np.maximum(power, 1e-6)).T, rtol=0, atol=1e-4)


def definition(samples: Tensor, settings: MelSettings) -> np.ndarray:
    """Log-mel frame by frame, with sums in place of matrix products and Fourier transforms of numpy."""
    length, half = settings.window, settings.fft // 2
    window = np.zeros(settings.fft)
    start = (settings.fft - length) // 2
    window[start : start + length] = [0.5 - 0.5 * math.cos(2 * math.pi * index / length) for index in range(length)]
    padded = np.concatenate([np.zeros(half), samples.double().numpy(), np.zeros(half)])
    edges = [mel_of(0) + band * mel_of(settings.rate / 2) / (settings.bands + 1) for band in range(settings.bands + 2)]
    rows = []
    for centre in range(0, len(samples) + 1, settings.hop):
        power = abs(np.fft.rfft(window * padded[centre : centre + settings.fft])) ** 2
        hertz = np.arange(half + 1) * settings.rate / settings.fft
        row = []
        for low, middle, high in zip(edges, edges[1:], edges[2:], strict=False):
            left, peak, right = map(hertz_of, (low, middle, high))
            weights = [
                2 / (right - left) * max(0, min((each - left) / (peak - left), (right - each) / (right - peak)))
                for each in hertz
            ]
            row.append(math.log(max(FLOOR, float(np.dot(weights, power)))))
        rows.append(row)
    return np.array(rows)


def mel_of(hertz: float) -> float:
    return 3 * hertz / 200 if hertz < 1000 else 15 + 27 * math.log(hertz / 1000) / math.log(6.4)


def hertz_of(mel: float) -> float:
    return 200 * mel / 3 if mel < 15 else 1000 * 6.4 ** ((mel - 15) / 27)


@pytest.mark.parametrize("samples", [0, 1, 79, 80, 81, 1000])
def test_features_equal_their_definition(samples: int) -> None:
    settings = MelSettings(8000, 256, 201, 80, bands=13)
    signal = noise(samples) if samples else torch.zeros(0)
    expected = definition(signal, settings)
    np.testing.assert_allclose(log_mel(signal, settings), expected, rtol=0, atol=1e-5)
    assert len(expected) == settings.frames(samples)


def test_long_recordings_are_transformed_piece_by_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    settings, samples = MelSettings.for_rate(8000), noise(9999)
    whole = log_mel(samples, settings)
    monkeypatch.setattr("regard.data.features.TRANSFORMED", 7 * settings.fft + 1)
    torch.testing.assert_close(log_mel(samples, settings), whole, rtol=0, atol=1e-6)


@pytest.mark.parametrize("rate", [8000, 16_000, 22_050, 48_000, 96_000])
@pytest.mark.parametrize("hertz", [110.0, 440.0, 1234.5, 3500.0])
def test_the_energy_of_a_tone_is_in_the_band_around_it(rate: int, hertz: float) -> None:
    settings = MelSettings.for_rate(rate, bands=40)
    features = log_mel(tone(hertz, rate), settings)
    edges = mel_to_hertz(torch.linspace(0, mel_of(rate / 2), 42, dtype=torch.float64))
    loudest = features[10:40].mean(0).argmax().item()
    assert edges[loudest] <= hertz <= edges[loudest + 2]


def test_the_power_of_all_frequencies_is_that_of_the_windowed_samples() -> None:
    """Parseval: with bands that together weigh each frequency once, the sum of the bands is the energy."""
    settings = MelSettings(8000, 512, 200, 80, bands=30)
    filters = mel_filters(settings)
    edges = mel_to_hertz(torch.linspace(0, mel_of(4000), 32, dtype=torch.float64))
    partition = filters * ((edges[2:] - edges[:-2]) / 2).unsqueeze(1)  # triangles of height 1
    covered = partition.sum(0)
    hertz = torch.arange(257) * 8000 / 512
    inner = (hertz >= edges[1]) & (hertz <= edges[-2])
    torch.testing.assert_close(covered[inner], torch.ones_like(covered[inner]))
    samples = tone(1500, 8000)
    areas = (edges[2:] - edges[:-2]) / 2
    energy = (log_mel(samples, settings).double().exp() * areas).sum(1)[20]
    windowed = samples[20 * 80 - 100 : 20 * 80 + 100].double() * torch.hann_window(200, dtype=torch.float64)
    torch.testing.assert_close(2 * energy, 512 * windowed.square().sum(), rtol=1e-3, atol=0)


def test_the_rows_of_the_filters_are_triangles_of_area_1() -> None:
    settings = MelSettings(16_000, 2**16, 400, 160, bands=20)
    filters = mel_filters(settings)
    edges = [hertz_of(band * mel_of(8000) / 21) for band in range(22)]
    width = 16_000 / 2**16
    torch.testing.assert_close(filters.sum(1) * width, torch.ones(20, dtype=torch.float64), rtol=1e-4, atol=0)
    for band, row in enumerate(filters):
        assert abs(row.argmax() * width - edges[band + 1]) <= width
        heights = torch.nonzero(row).squeeze(1) * width
        assert edges[band] <= heights.min() <= edges[band] + width
        assert edges[band + 2] - width <= heights.max() <= edges[band + 2]
        assert row.max() == pytest.approx(2 / (edges[band + 2] - edges[band]), rel=0.01)


def test_mel_and_hertz_are_inverse() -> None:
    hertz = torch.tensor([0.0, 1.0, 440.0, 999.9, 1000.0, 1000.1, 6400.0, 48_000.0], dtype=torch.float64)
    torch.testing.assert_close(mel_to_hertz(hertz_to_mel(hertz)), hertz)
    assert hertz_to_mel(hertz).tolist() == pytest.approx([mel_of(each) for each in hertz.tolist()])
    assert hertz_to_mel(torch.tensor(6400.0, dtype=torch.float64)).item() == pytest.approx(42)


def test_silence_is_at_the_floor_and_every_value_is_finite() -> None:
    settings = MelSettings.for_rate(16_000)
    assert log_mel(torch.zeros(1000), settings).unique().tolist() == pytest.approx([math.log(1e-10)])
    loud = log_mel(noise(1000, loudness=1e6), settings)
    assert loud.dtype == torch.float32
    assert loud.isfinite().all()


@pytest.mark.parametrize("rate", [1000, 8000, 11_025, 16_000, 44_100, 96_000, 384_000])
def test_the_usual_settings_suit_every_rate(rate: int) -> None:
    settings = MelSettings.for_rate(rate)
    assert settings.fft >= settings.window
    assert settings.window / rate == pytest.approx(0.025, rel=0.02)
    assert settings.hop / rate == pytest.approx(0.01, rel=0.02)
    assert log_mel(noise(rate // 10), settings).isfinite().all()


def test_bands_that_no_frequency_reaches_are_refused() -> None:
    with pytest.raises(RecipeError, match=r"^200 mel bands: some lie between .* an FFT of more than 256 samples$"):
        mel_filters(MelSettings(8000, 256, 200, 80, bands=200))
    with pytest.raises(RecipeError, match=r"^mel bands from 0 to 5000 Hz: they must rise, .* at most 4000 Hz, half"):
        mel_filters(MelSettings(8000, 256, 200, 80, high=5000.0))


# SpecAugment


def masked_rows(features: Tensor, settings: MaskSettings, count: int) -> Tensor:
    """The features of one recording, masked so many times."""
    torch.manual_seed(1)
    return mask_features(features.expand(count, -1, -1), torch.full((count,), len(features)), settings)


def test_masks_are_spans_of_frames_and_of_bands_with_zeros() -> None:
    features, widths = noise(100 * 40).reshape(100, 40), set()
    for masked in masked_rows(features, MaskSettings(2, 15, 1.0, 3, 7), 200):
        changed = masked != features
        rows, columns = changed.all(1), changed.all(0)
        assert torch.equal(changed, rows.unsqueeze(1) | columns)
        assert (masked[changed] == 0).all()
        assert rows.sum() <= 2 * 15
        assert columns.sum() <= 3 * 7
        widths.add((int(rows.sum()), int(columns.sum())))
    assert max(rows for rows, _ in widths) > 20
    assert max(columns for _, columns in widths) > 14


def test_the_state_of_the_generator_decides_about_the_masks_and_the_features_stay() -> None:
    features, lengths = noise(2 * 100 * 40).reshape(2, 100, 40), torch.tensor([100, 70])
    before = features.clone()
    torch.manual_seed(3)
    state, masked = torch.get_rng_state(), []
    for _ in range(2):
        masked.append(mask_features(features, lengths, MaskSettings()))
    torch.set_rng_state(state)
    assert torch.equal(mask_features(features, lengths, MaskSettings()), masked[0])
    assert not torch.equal(*masked)
    assert torch.equal(features, before)


def test_every_place_is_masked_equally_often_but_the_edges() -> None:
    features = torch.arange(1.0, 61).reshape(60, 1)
    counts = (masked_rows(features, MaskSettings(1, 5, 1.0, 0, 0), 3000) != features).sum(0).squeeze(1)
    middle = counts[5:-5].double()
    assert (middle / middle.mean() - 1).abs().max() < 0.35
    assert counts[0] < middle.mean() < 6 * counts[0]


@pytest.mark.parametrize("shape", [(1, 1), (1, 40), (3, 5), (0, 7)])
def test_masks_of_tiny_features_fit(shape: tuple[int, int]) -> None:
    assert masked_rows(torch.ones(shape), MaskSettings(), 20).shape == (20, *shape)


def test_time_masks_cover_a_share_of_a_short_recording_at_most_and_no_padding() -> None:
    features, lengths = torch.ones(100, 50, 8), torch.arange(100) % 50 + 1
    masked = mask_features(features, lengths, MaskSettings(1, 40, 0.2, 0, 0)) != features
    assert masked.any()
    for row, length in zip(masked.all(-1), lengths.tolist(), strict=True):
        assert row.sum() <= 0.2 * length
        assert not row[length:].any()


# resampling


def error(changed: Tensor, expected: Tensor) -> float:
    """The largest difference away from the ends, where the interpolation sees the zeros beyond them."""
    inner = slice(len(expected) // 8, -len(expected) // 8)
    return (changed - expected)[inner].abs().max().item()


@pytest.mark.parametrize(
    ("rate", "new_rate"),
    [(8000, 16_000), (16_000, 8000), (44_100, 16_000), (48_000, 16_000), (22_050, 16_000), (8000, 11_127), (9, 10)],
)
def test_a_tone_stays_the_same_tone(rate: int, new_rate: int) -> None:
    lower, scale = min(rate, new_rate) / 2, rate if rate > 100 else 8000 * rate
    hertz = 0.7 * lower * scale / rate
    samples = tone(hertz, scale)
    changed = resample(samples, rate, new_rate)
    assert len(changed) == math.ceil(len(samples) * new_rate / rate)
    expected = tone(hertz, scale * new_rate // rate, len(changed) / (scale * new_rate // rate))
    assert error(changed, expected) < 2e-5


def test_frequencies_above_the_new_nyquist_frequency_are_removed() -> None:
    assert error(resample(tone(1.01 * 4000, 16_000), 16_000, 8000), torch.zeros(4000)) < 1e-4
    assert error(resample(tone(0.83 * 4000, 16_000), 16_000, 8000), tone(0.83 * 4000, 8000)) < 1e-4


def test_a_constant_stays_the_same_and_equal_rates_change_nothing() -> None:
    assert error(resample(torch.ones(3000), 3, 7), torch.ones(7000)) < 1e-6
    samples = noise(100)
    same = resample(samples, 8000, 8000)
    assert torch.equal(same, samples)
    assert same is not samples


def test_samples_are_interpolated_by_their_definition(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("regard.data.features.PRODUCTS", 500)  # several pieces
    samples, up, down = noise(97).double(), 5, 7
    changed = resample(samples, down, up)
    cutoff = 0.92 * up / down
    reach = math.ceil(32 / cutoff)
    for place in range(len(changed)):
        time = place * down / up
        near = np.arange(math.floor(time) - reach + 1, math.floor(time) + reach + 1)
        kaiser = np.i0(10 * np.sqrt(np.clip(1 - ((near - time) / reach) ** 2, 0, None)))
        weights = np.sinc(cutoff * (near - time)) * kaiser
        known = [samples[index].item() if 0 <= index < len(samples) else 0.0 for index in near]
        assert changed[place].item() == pytest.approx(float(np.dot(weights, known) / weights.sum()), abs=1e-12)


@pytest.mark.parametrize("factor", [0.9, 1.1, 0.95, 1.0, 2.0])
def test_a_faster_recording_is_shorter_and_higher(factor: float) -> None:
    samples = tone(500, 16_000)
    changed = change_speed(samples, factor)
    assert len(changed) == math.ceil(len(samples) / factor - 1e-9)
    assert error(changed, tone(500 * factor, 16_000, len(changed) / 16_000)) < 2e-5


@pytest.mark.parametrize("count", [0, 1, 2, 5])
def test_tiny_recordings_are_resampled(count: int) -> None:
    assert len(change_speed(torch.ones(count), 0.9)) == math.ceil(count / 0.9)
    assert len(resample(torch.ones(count), 16_000, 8000)) == math.ceil(count / 2)


@pytest.mark.parametrize("factor", [0.0, -1.0, 11.0, math.inf, math.nan])
def test_an_impossible_speed_is_refused(factor: float) -> None:
    with pytest.raises(RecipeError, match=r"^a speed of .*: give a factor from 0\.1 to 10"):
        change_speed(torch.ones(9), factor)
    with pytest.raises(RecipeError, match="both must be at least 1"):
        resample(torch.ones(9), 0, 8000)
