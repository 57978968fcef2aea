"""Short melodies as recordings, to the names of their notes: speech recognition in small, with known times."""

import random
import re
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from regard.data.audio import Recording
from regard.data.corpora.core import Splits, belongs, draw_splits
from regard.errors import DataError, shown
from regard.types import Example

TEST, DEV = 1000, 500
RATE = 8000  # samples per second
PREFIX = "tones:"
FEWEST, MOST = 3, 8  # notes of a melody of the corpus
LONGEST = 64  # notes of a melody that is rendered
SEEDS = 2**32
SEMITONES = {"C": 0, "D": 2, "E": 4, "F": 5, "G": 7, "A": 9, "B": 11}  # above C
NOTES = tuple(f"{letter}{octave}" for octave in (4, 5) for letter in SEMITONES)
A4 = 440.0  # hertz
DESCRIPTION = re.compile(rf"{PREFIX}([0-9]{{1,10}}):((?:[A-G][45]-){{0,{LONGEST - 1}}}[A-G][45])")

# What is drawn for each melody, and for each note of it: the least and the largest value.
TUNING = (-0.2, 0.2)  # semitones
HARMONICS = (1, 6)  # of a note, with the fundamental
ROLL_OFF = (0.8, 2.5)  # harmonic n has the amplitude n ** -ROLL_OFF
NOISE = (-50.0, -25.0)  # decibels of white noise
BEFORE, AFTER = (0.03, 0.25), (0.03, 0.25)  # seconds of silence
DURATION, PAUSE = (0.1, 0.3), (0.02, 0.1)  # seconds of a note, and of the silence after it
LOUDNESS = (-24.0, -8.0)  # decibels of a note
ATTACK, RELEASE = 0.008, 0.02  # seconds in which a note begins and ends
DECAY = (0.0, 4.0)  # by how many nepers a note fades in a second

Samples = NDArray[np.float64]


class Times(NamedTuple):
    """When a note of a melody sounds, in seconds from the start of the recording."""

    onset: float
    offset: float


class _Note(NamedTuple):
    """A note as it is played."""

    name: str
    start: int  # samples
    stop: int
    loudness: float  # amplitude of the fundamental
    decay: float


class _Melody(NamedTuple):
    """A melody as it is played."""

    notes: tuple[_Note, ...]
    samples: int
    tuning: float
    harmonics: int
    roll_off: float
    noise: float
    seed: int


def tones(seed: int, size: int) -> Splits:
    """A recording of a melody to the names of its notes: `C4 E4 G4`. The task of a speech recogniser, in small.

    A source is the description of a recording, such as `tones:2071:C4-E4-G4`, and not a file: `render` computes the
    samples from it, always the same ones. `note_times` returns when each note sounds, so that an attention map over the
    recording can be checked. Melodies have 3 to 8 notes of two octaves without accidentals, all equally frequent.
    Timbre, tuning, noise, and of each note duration, loudness, fading and the pause after it follow from the number in
    the description. `group` is the number of notes. No melody is in two splits. Dev and test are the same for every
    seed and size.
    """
    return draw_splits("tones", _example, seed, train=size, dev=DEV, test=TEST)


def _example(split: str, index: int, generator: random.Random) -> Example:
    count = FEWEST + index % (MOST - FEWEST + 1)
    while True:
        notes = generator.choices(NOTES, k=count)
        target = " ".join(notes)
        if belongs(target, split):
            source = f"{PREFIX}{generator.randrange(SEEDS)}:{'-'.join(notes)}"
            return Example(source, target, group=str(count))


def is_description(source: str) -> bool:
    """Whether a source is meant as the description of a melody; a file of such a name can be given as `./tones:...`."""
    return source.startswith(PREFIX)


def note_times(description: str) -> tuple[Times, ...]:
    """When each note sounds, in the order of the target; the times of the samples that `render` returns."""
    return tuple(Times(note.start / RATE, note.stop / RATE) for note in _melody(description).notes)


def render(description: str) -> Recording:
    """The recording that a description stands for.

    Equal on every machine but for the rounding of sines; the samples have 16 bits, as in a WAV file, so that hardly any
    of this is left.
    """
    melody = _melody(description)
    # RandomState, because numpy keeps its numbers the same in all versions, which it does not promise for others.
    noise = np.random.RandomState(melody.seed).standard_normal(melody.samples)
    samples = _amplitude(melody.noise) * noise
    for note in melody.notes:
        samples[note.start : note.stop] += _sound(note, melody)
    rounded = np.round(np.clip(samples, -1, 1) * 32767).astype(np.int16)
    return Recording(torch.from_numpy(rounded.astype(np.float32) / 32768), RATE)


@lru_cache(maxsize=64)
def _melody(description: str) -> _Melody:
    """Parses a description, and draws from its number how the melody is played."""
    match = DESCRIPTION.fullmatch(description)
    if match is None or int(match[1]) >= SEEDS:
        form = f"{PREFIX}NUMBER:NOTES, for example {PREFIX}7:C4-E4-G4"
        allowed = f"a number below 2**32, and 1 to {LONGEST} notes from {NOTES[0]} to {NOTES[-1]}"
        raise DataError(f"{shown(description)} is no melody; write {form}: {allowed}")
    names = match[2].split("-")
    generator = random.Random(description)
    notes, place = [], _samples(generator.uniform(*BEFORE))
    for name in names:
        stop = place + _samples(generator.uniform(*DURATION))
        loudness = _amplitude(generator.uniform(*LOUDNESS))
        notes.append(_Note(name, place, stop, loudness, generator.uniform(*DECAY)))
        place = stop + _samples(generator.uniform(*PAUSE))
    return _Melody(
        notes=tuple(notes),
        samples=place + _samples(generator.uniform(*AFTER)),
        tuning=generator.uniform(*TUNING),
        harmonics=generator.randint(*HARMONICS),
        roll_off=generator.uniform(*ROLL_OFF),
        noise=generator.uniform(*NOISE),
        seed=generator.randrange(SEEDS),
    )


def _sound(note: _Note, melody: _Melody) -> Samples:
    """The samples of a note: sines at multiples of its frequency, all below half the rate, under an envelope."""
    times = np.arange(note.stop - note.start) / RATE
    fundamental = hertz(note.name, melody.tuning)
    harmonics = np.arange(1, 1 + min(melody.harmonics, int(RATE / 2 / fundamental)))[:, None]
    waves = harmonics**-melody.roll_off * np.sin(2 * np.pi * fundamental * harmonics * times)
    left = times[-1] + 1 / RATE - times
    envelope = np.minimum(1, times / ATTACK) * np.minimum(1, left / RELEASE) * np.exp(-note.decay * times)
    return note.loudness * envelope * waves.sum(0)


def hertz(note: str, tuning: float = 0.0) -> float:
    """The frequency of a note such as A4, raised by `tuning` semitones; equal temperament."""
    semitones = SEMITONES[note[0]] - SEMITONES["A"] + 12 * (int(note[1:]) - 4)
    return A4 * 2 ** ((semitones + tuning) / 12)


def _amplitude(decibels: float) -> float:
    return 10 ** (decibels / 20)


def _samples(seconds: float) -> int:
    return round(seconds * RATE)
