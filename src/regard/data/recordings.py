"""Reads the recordings that sources name: files, members of tar files, and melodies of the corpus `tones`.

A source is one of these texts:

- `set/a.wav`: a file, found by `regard.data.paths.find`,
- `set/train.tar/a.wav`: the member `a.wav` of a tar file,
- `tones:7:C4-E4-G4`: a description, from which a melody is rendered; nothing is stored on disk.

Or it is a `Medium`: a recording that is given in Python.
"""

import operator

import numpy as np
from torch import Tensor

from regard.data.archives import StoredFiles
from regard.data.audio import Recording, Shape, check_shape, decode, mono
from regard.data.corpora.tones import is_description, render
from regard.data.files import LIMITS
from regard.data.media import Medium
from regard.errors import DataError, shown
from regard.recipe import Limits


class Recordings:
    """Reads recordings by their sources, within the limits of a recipe."""

    def __init__(self, limits: Limits = LIMITS) -> None:
        self.limits = limits
        self._files = StoredFiles(limits)

    def read(self, source: str) -> Recording:
        """The recording; DataError if there is none of that name, or it cannot be read."""
        if isinstance(source, Medium):
            assert isinstance(source.content, Recording)
            return source.content
        if is_description(source):
            return render(source)
        content = self._files.read(source, self.limits.recording_bytes, "recording_bytes")
        return decode(content, source, self.limits)


def accept(value: object, name: str, limits: Limits = LIMITS) -> Medium:
    """The source for a recording that is given in Python; `name` is for messages.

    Its samples are a tensor or an array with one axis, of floats whose full scale is 1.
    """
    if not isinstance(value, Recording):
        how = "give the name of a file, a path, or regard.Recording(samples, rate)"
        raise DataError(f"{name} is of the type {type(value).__name__}, which has no sampling rate; {how}")
    given: object = value.samples
    samples = (
        given.detach().cpu().double().numpy() if isinstance(given, Tensor) and given.is_floating_point() else given
    )
    if not isinstance(samples, np.ndarray) or samples.dtype.kind != "f":
        found = getattr(given, "dtype", type(given).__name__)
        raise DataError(f"{name} has samples of the type {found}; give floats (of 16-bit numbers: samples / 32768)")
    if samples.ndim != 1:
        raise DataError(f"{name} has samples of the shape {samples.shape}; give one axis, the mean of all channels")
    try:
        shape = Shape(len(samples), 1, operator.index(value.rate))
    except TypeError:
        given_rate = shown(value.rate)
        raise DataError(f"{name} has the rate {given_rate}; give a whole number of samples per second") from None
    check_shape(shape, name, limits)
    recording = mono(iter([samples[:, None]]), shape, name)
    return Medium(f"<recording {recording.seconds:.2f} s>", recording)
