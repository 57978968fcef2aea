"""Melodies: a description always renders the same recording, whose notes are where and what the corpus says."""

import hashlib
import subprocess
import sys
import tarfile
import wave
from collections import Counter
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch

from regard.data.corpora import tones
from regard.data.corpora.core import Splits
from regard.data.corpora.tones import DEV, NOTES, RATE, TEST, hertz, note_times, render
from regard.data.recordings import Recordings
from regard.errors import DataError
from regard.recipe import Limits
from regard.types import Example

RENDERED = """
import hashlib
from regard.data.corpora.tones import render
print(hashlib.sha256(render("tones:2071:C4-E4-G4").samples.numpy().tobytes()).hexdigest())
"""


@pytest.fixture(scope="module")
def splits() -> Splits:
    return tones(seed=1, size=3000)


def everything(splits: Splits) -> list[Example]:
    return splits.train + splits.dev + splits.test


def test_sizes_lengths_and_notes_are_as_documented(splits: Splits) -> None:
    assert (len(splits.dev), len(splits.test)) == (DEV, TEST) == (500, 1000)
    for part in (splits.train, splits.dev, splits.test):
        lengths = Counter(len(example.target.split()) for example in part)
        assert set(lengths) == set(range(3, 9))
        assert max(lengths.values()) - min(lengths.values()) <= 1
        assert all(example.group == str(len(example.target.split())) for example in part)
    counts = Counter(note for example in splits.train for note in example.target.split())
    assert set(counts) == set(NOTES)
    assert max(counts.values()) < 1.2 * min(counts.values())


def test_no_melody_is_in_two_splits() -> None:
    splits = tones(seed=1, size=30_000)  # with ten thousand of three and four notes, so that a leak would show
    train, dev, test = ({example.target for example in part} for part in (splits.train, splits.dev, splits.test))
    assert not train & dev
    assert not train & test
    assert not dev & test


def test_a_source_is_short_and_names_the_notes_of_its_target(splits: Splits) -> None:
    for example in everything(splits):
        assert example.source.rpartition(":")[2].split("-") == example.target.split()
        assert len(example.source) < 50
    assert len({example.source for example in everything(splits)}) == len(everything(splits))


def test_a_description_renders_the_same_recording_in_every_process() -> None:
    once, again = render("tones:2071:C4-E4-G4"), render("tones:2071:C4-E4-G4")
    assert torch.equal(once.samples, again.samples)
    result = subprocess.run([sys.executable, "-c", RENDERED], check=True, capture_output=True, text=True)
    assert result.stdout.strip() == hashlib.sha256(once.samples.numpy().tobytes()).hexdigest()
    assert not torch.equal(once.samples[:100], render("tones:2072:C4-E4-G4").samples[:100])


def test_notes_are_in_order_with_silence_between_them(splits: Splits) -> None:
    durations = []
    for example in splits.dev:
        times, seconds = note_times(example.source), render(example.source).seconds
        assert len(times) == len(example.target.split())
        edges = [0.0, *(edge for note in times for edge in note), seconds]
        assert all(later - earlier >= 0.019 for earlier, later in pairwise(edges))
        durations.append(seconds)
    assert 0.4 < min(durations) < max(durations) < 4


def strength(samples: np.ndarray, frequency: float) -> float:
    """The power at a frequency and at its double, which the note an octave below has too."""
    times = np.arange(len(samples)) / RATE
    window = np.hanning(len(samples))
    return abs(np.dot(samples * window, np.exp(-2j * np.pi * frequency * times)))


def test_each_note_sounds_at_its_frequency_between_its_times(splits: Splits) -> None:
    right = total = 0
    for example in splits.test[:60]:
        samples = render(example.source).samples.numpy()
        for note, (onset, offset) in zip(example.target.split(), note_times(example.source), strict=True):
            part = samples[round(onset * RATE) : round(offset * RATE)]
            loudest = max(NOTES, key=lambda name, part=part: strength(part, hertz(name)))
            right, total = right + (loudest == note), total + 1
    assert right / total > 0.97


def test_between_the_notes_there_is_only_noise(splits: Splits) -> None:
    for example in splits.test[:60]:
        samples, times = render(example.source).samples, note_times(example.source)
        ends = [0.0, *(note.offset for note in times)]
        starts = [*(note.onset for note in times), len(samples) / RATE]
        for end, start in zip(ends, starts, strict=True):
            assert samples[round(end * RATE) : round(start * RATE)].square().mean().sqrt() < 0.1
        loudest = [samples[round(a * RATE) : round(b * RATE)].abs().max() for a, b in times]
        assert min(loudest) > 0.03


def test_samples_fit_16_bits_and_are_not_clipped(splits: Splits) -> None:
    for example in splits.test[:100]:
        samples = render(example.source).samples
        assert samples.dtype == torch.float32
        assert (samples * 32768 == (samples * 32768).round()).all()
        assert samples.abs().max() < 1


def test_frequencies_of_notes() -> None:
    assert hertz("A4") == 440
    assert hertz("A5") == 880
    assert hertz("C4") == pytest.approx(261.626, abs=1e-3)
    assert hertz("B5", 0.5) == pytest.approx(1016.71, abs=1e-2)


@pytest.mark.parametrize(
    "description",
    [
        *("tones:", "tones:1", "tones:1:", "tones::C4", "tones:-1:C4", "tones:1:C6", "tones:1:H4", "tones:1:C4-"),
        *("tones:1:C4 E4", "tones:1:c4", "tones:4294967296:C4", "tones:99999999999:C4", "tones:1:C4\n", "tones:١:C4"),
        *(f"tones:1:{'-'.join(['C4'] * 65)}", "tones:1:" + "C4-" * 100_000),
    ],
)
def test_what_describes_no_melody_gets_a_sentence(description: str) -> None:
    with pytest.raises(DataError, match=r"^'tones:.* is no melody; write tones:NUMBER:NOTES, for example") as caught:
        render(description)
    assert len(str(caught.value)) < 400


def test_descriptions_outside_the_corpus_are_rendered() -> None:
    assert len(note_times("tones:4294967295:B5")) == 1
    assert render("tones:0:" + "-".join(["C5"] * 64)).seconds > 5


# sources of all kinds


def write_wave(path: Path, samples: np.ndarray, rate: int) -> bytes:
    with wave.open(str(path), "wb") as file:
        file.setparams((1, 2, rate, 0, "NONE", ""))
        file.writeframes((samples * 32768).astype("<i2").tobytes())
    return path.read_bytes()


def test_files_members_and_descriptions_are_read_alike(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    melody = render("tones:7:C4-E4-G4")
    write_wave(tmp_path / "a.wav", melody.samples.numpy(), RATE)
    with tarfile.open("set.tar", "w") as archive:
        archive.add("a.wav", "inner/b")
    recordings = Recordings()
    for source in ("tones:7:C4-E4-G4", "a.wav", "set.tar/inner/b"):
        samples, rate = recordings.read(source)
        assert rate == RATE
        assert torch.equal(samples, melody.samples)


def test_limits_and_missing_files_name_the_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    size = len(write_wave(tmp_path / "a.wav", np.zeros(2000), 1000))
    assert Recordings(Limits(recording_bytes=size, recording_seconds=2)).read("a.wav").seconds == 2
    with pytest.raises(DataError, match=r"^a\.wav has more than .* raise data\.limits\.recording_bytes$"):
        Recordings(Limits(recording_bytes=size - 1)).read("a.wav")
    with pytest.raises(DataError, match=r"^a\.wav takes more than 1 seconds"):
        Recordings(Limits(recording_seconds=1)).read("a.wav")
    with pytest.raises(DataError, match=r"^cannot find b\.wav; looked for b\.wav"):
        Recordings().read("b.wav")
