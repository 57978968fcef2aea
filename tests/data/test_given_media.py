"""Pictures and recordings given in Python become sources, or get a sentence; recordings are cut in silences."""

import copy
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from regard.data import pictures, recordings
from regard.data.audio import Recording, is_recording
from regard.data.features import MelSettings, cut, log_mel
from regard.data.media import Medium, files_in, kind_by_names
from regard.data.pictures import is_picture, load
from regard.data.recordings import Recordings
from regard.errors import DataError
from regard.recipe import Limits

PIXELS = np.random.default_rng(1).integers(0, 256, (5, 7, 3), np.uint8)


def test_a_medium_is_a_label_that_is_equal_to_itself_only() -> None:
    one, other = Medium("<picture 7x5>", PIXELS), Medium("<picture 7x5>", PIXELS)
    assert f"{one} {one.upper()}" == "<picture 7x5> <PICTURE 7X5>"
    assert one in [other, one]
    assert one != other
    assert one != "<picture 7x5>"
    assert len({one, other, one}) == 2
    assert (copy.deepcopy(one).content == PIXELS).all()


# pictures


GIVEN = {
    "an array": PIXELS,
    "an array in another order": np.asfortranarray(PIXELS),
    "floats": PIXELS / 255,
    "half precision": torch.from_numpy(np.moveaxis(PIXELS, -1, 0) / 255).bfloat16,
    "a tensor": torch.from_numpy(np.moveaxis(PIXELS, -1, 0).copy()),
    "a tensor of floats": torch.from_numpy(np.moveaxis(PIXELS, -1, 0) / 255).float(),
}


@pytest.mark.parametrize("case", GIVEN)
def test_arrays_and_tensors_are_pictures(case: str) -> None:
    value = GIVEN[case]() if callable(GIVEN[case]) else GIVEN[case]
    source = pictures.accept(value, "input 1")
    assert str(source) == "<picture 7x5>"
    found = load(source)
    assert (found.dtype, found.shape) == (np.uint8, (5, 7, 3))
    assert np.abs(found.astype(int) - PIXELS).max() <= (1 if case == "half precision" else 0)


def test_two_axes_are_grey() -> None:
    for value in (PIXELS[..., 1], torch.from_numpy(PIXELS[..., 1].copy()), PIXELS[..., 1] / 255):
        assert (load(pictures.accept(value, "it")) == PIXELS[..., 1:2]).all()


def test_a_picture_is_a_copy_of_what_was_given() -> None:
    value = PIXELS.copy()
    source = pictures.accept(value, "it")
    value[:] = 0
    load(source)[:] = 0
    assert (load(source) == PIXELS).all()


@pytest.mark.parametrize("mode", ["RGB", "L", "P", "RGBA", "CMYK", "1", "I;16", "LA", "HSV"])
def test_an_image_of_pillow_is_the_picture_that_it_is_in_a_file(mode: str) -> None:
    images = pytest.importorskip("PIL.Image")
    grey = images.fromarray(PIXELS[..., 0].astype(np.uint16) * 257)
    image = grey if mode == "I;16" else images.fromarray(PIXELS).convert(mode)
    source = pictures.accept(image, "it")
    assert str(source) == "<picture 7x5>"
    expected = np.array((images.fromarray(PIXELS[..., 0]) if mode == "I;16" else image).convert("RGB"))
    assert (load(source) == expected).all()


def test_an_image_of_pillow_is_turned_and_a_damaged_one_is_refused(tmp_path: Path) -> None:
    images = pytest.importorskip("PIL.Image")
    exif = images.Exif()
    exif[0x0112] = 6
    images.fromarray(PIXELS).save(tmp_path / "turned.png", exif=exif)
    with images.open(tmp_path / "turned.png") as image:
        assert str(pictures.accept(image, "it")) == "<picture 5x7>"
    content = (tmp_path / "turned.png").read_bytes()
    (tmp_path / "cut.png").write_bytes(content[:-40])
    message = r"^input 3 is not a whole picture \(.*\); fetch or save it again$"
    with images.open(tmp_path / "cut.png") as image, pytest.raises(DataError, match=message):
        pictures.accept(image, "input 3")
    with pytest.raises(DataError, match=r"^it has more than 34 pixels"):
        pictures.accept(images.fromarray(PIXELS), "it", Limits(picture_pixels=34))


SHAPE = r"; a picture is height x width x 3 \(of a tensor 3 x height x width\), or height x width for grey$"
NO_PICTURES = {
    "channels first": (np.zeros((3, 5, 7), np.uint8), rf"has the shape \(3, 5, 7\){SHAPE}"),
    "channels last": (torch.zeros(5, 7, 3), rf"has the shape \(5, 7, 3\){SHAPE}"),
    "four channels": (np.zeros((5, 7, 4), np.uint8), rf"has the shape \(5, 7, 4\){SHAPE}"),
    "a batch": (np.zeros((1, 5, 7, 3), np.uint8), rf"has the shape \(1, 5, 7, 3\){SHAPE}"),
    "a row": (np.zeros(5, np.uint8), rf"has the shape \(5,\){SHAPE}"),
    "nothing": (np.zeros((0, 7, 3), np.uint8), rf"has the shape \(0, 7, 3\){SHAPE}"),
    "too large": (np.zeros((400, 300), np.uint8), "has more than 100,000 pixels; make it smaller"),
    "NaN": (np.full((5, 7), np.nan), "has floats that are not finite, or not from 0 to 1; scale it, or give uint8"),
    "infinite": (torch.full((5, 7), torch.inf), "has floats that are not finite"),
    "up to 255": (PIXELS.astype(float), "has floats that are not finite, or not from 0 to 1"),
    "negative": (np.full((5, 7), -0.1), "has floats that are not finite, or not from 0 to 1"),
    "int64": (PIXELS.astype(int), "has numbers of the type int64; give uint8, or floats from 0 to 1"),
    "bool": (torch.ones(5, 7).bool(), "has numbers of the type bool; give uint8"),
    "complex": (np.zeros((5, 7), complex), "has numbers of the type complex128; give uint8"),
    "objects": (np.full((5, 7), None), "has numbers of the type object; give uint8"),
    "a list": (
        [[1, 2], [3, 4]],
        "is of the type list; give the name of a file, a path, an array, a tensor or an image",
    ),
    "None": (None, "is of the type NoneType; give the name of a file"),
    "a recording": (Recording(torch.zeros(9), 8000), "is of the type Recording; give the name of a file"),
}


@pytest.mark.parametrize("case", NO_PICTURES)
def test_what_is_no_picture_gets_a_sentence(case: str) -> None:
    value, message = NO_PICTURES[case]
    with pytest.raises(DataError, match=rf"^input 2 {message}") as caught:
        pictures.accept(value, "input 2", Limits(picture_pixels=100_000))
    assert "\n" not in str(caught.value)


# recordings


@pytest.mark.parametrize("make", [torch.tensor, np.array, lambda numbers: np.array(numbers, np.float32)[::1]])
def test_samples_with_a_rate_are_a_recording(make: Any) -> None:
    source = recordings.accept(Recording(make([0.5, -0.25, 0.0] * 1000), np.int64(8000)), "it")
    assert str(source) == "<recording 0.38 s>"
    samples, rate = Recordings().read(source)
    assert (samples.dtype, samples[:3].tolist(), rate) == (torch.float32, [0.5, -0.25, 0.0], 8000)


NO_RECORDINGS = {
    "an array": (np.zeros(9), r"is of the type ndarray, which has no sampling rate; give .* regard\.Recording\("),
    "a tuple": ((np.zeros(9), 8000), "is of the type tuple, which has no sampling rate"),
    "None": (None, "is of the type NoneType"),
    "16 bits": (Recording(np.zeros(9, np.int16), 8000), r"has samples of the type int16; give floats \(of 16-bit"),
    "whole numbers": (Recording(torch.zeros(9).int(), 8000), r"has samples of the type torch\.int32; give floats"),
    "a list": (Recording([0.0, 0.1], 8000), "has samples of the type list; give floats"),
    "two channels": (Recording(np.zeros((9, 2)), 8000), r"has samples of the shape \(9, 2\); give one axis"),
    "a number": (Recording(np.array(0.5), 8000), r"has samples of the shape \(\); give one axis"),
    "no samples": (Recording(torch.zeros(0), 8000), "has no samples"),
    "NaN": (Recording(np.array([0, np.nan]), 8000), "the sample 1 is nan"),
    "infinite": (Recording(torch.tensor([torch.inf]), 8000), "the sample 0 is inf"),
    "too loud": (Recording(np.array([1e300]), 8000), "the sample 0 is inf"),
    "rate 0": (Recording(torch.zeros(9), 0), "has 0 samples per second, allowed are 1,000 to 384,000"),
    "half a rate": (Recording(torch.zeros(9), 0.5), r"has the rate 0\.5; give a whole number of samples per second"),
    "a rate in words": (Recording(torch.zeros(9), "8k"), "has the rate '8k'; give a whole number"),
    "too long": (Recording(torch.zeros(2001), 1000), "takes more than 2 seconds"),
}


@pytest.mark.parametrize("case", NO_RECORDINGS)
def test_what_is_no_recording_gets_a_sentence(case: str) -> None:
    value, message = NO_RECORDINGS[case]
    with pytest.raises(DataError, match=rf"^input 2:? {message}") as caught:
        recordings.accept(value, "input 2", Limits(recording_seconds=2))
    assert "\n" not in str(caught.value)


# folders and names


def test_the_files_of_a_folder_are_recognised_by_their_first_bytes(tmp_path: Path) -> None:
    starts = {"z.png": b"\xff\xd8\xff\xe0", "a": b"RIFF\0\0\0\0WEBP", "b.jpg": b"RIFF\0\0\0\0WAVE", "c.wav": b"fLaC"}
    for name, start in {**starts, "empty.png": b"", "text.wav": b"RIFF"}.items():
        (tmp_path / name).write_bytes(start)
    (tmp_path / "folder.png").mkdir()
    for recognises, expected in ((is_picture, ["a", "z.png"]), (is_recording, ["b.jpg", "c.wav"])):
        names, others = files_in(str(tmp_path), recognises)
        assert [os.path.basename(name) for name in names] == expected
        assert others == 5
    with pytest.raises(DataError, match=r"missing cannot be read \(No such file or directory\)"):
        files_in(str(tmp_path / "missing"), is_picture)


def test_names_of_media_are_known_by_their_endings() -> None:
    assert kind_by_names(["a.jpg", "b/c.PNG"]) == "picture"
    assert kind_by_names(["a.wav", "x y.flac"]) == "speech"
    assert kind_by_names(["a.wav", "b.jpg"]) == kind_by_names(["a.wav", "hello"]) == kind_by_names([]) == ""


# silences


def test_cuts_fall_into_silences() -> None:
    rate, generator = 8000, np.random.default_rng(3)
    silences, parts, end = [], [], 0.0
    for _ in range(60):
        for seconds, loudness in ((generator.uniform(0.3, 1.2), 0.4), (generator.uniform(0.25, 0.6), 0.001)):
            parts.append(loudness * generator.standard_normal(round(seconds * rate)))
            if loudness < 0.01:
                silences.append((end, end + seconds))
            end += seconds
    mel = MelSettings.for_rate(rate, bands=20)
    power = log_mel(torch.from_numpy(np.concatenate(parts)).float(), mel).exp().sum(1)
    for longest, step in ((500, 4), (400, 2), (301, 1)):
        spans = cut(power, longest, step=step, window=20)
        times = [span.start * mel.hop / rate for span in spans[1:]]
        assert len(times) >= end * 100 / longest - 1
        for time in times:
            assert any(begin + 0.05 < time < finish - 0.05 for begin, finish in silences), time
        assert spans == cut(power, longest, step=step, window=20)


@given(
    power=st.lists(st.floats(0, 1e6, width=32), min_size=1, max_size=200),
    most=st.integers(1, 30),
    step=st.integers(1, 5),
    window=st.integers(1, 25),
)
@settings(max_examples=200)
def test_spans_cover_a_recording_and_are_short_enough(power: list[float], most: int, step: int, window: int) -> None:
    spans = cut(torch.tensor(power), most * step, step=step, window=window)
    assert [place for span in spans for place in span] == list(range(len(power)))
    assert all(0 < len(span) <= most * step for span in spans)
    assert all(span.start % step == 0 for span in spans)
    assert len(spans) == 1 or min(map(len, spans)) >= most // 4 * step


def test_of_equally_quiet_places_the_last_is_taken() -> None:
    assert cut(torch.zeros(25), 10) == [range(10), range(10, 20), range(20, 25)]
    assert cut(torch.zeros(21), 10) == [range(10), range(10, 19), range(19, 21)]
