"""Reads the recordings that sources name: files, members of tar files, and melodies of the corpus `tones`.

A source is one of these texts:

- `set/a.wav`: a file, found by `regard.data.paths.find`,
- `set/train.tar/a.wav`: the member `a.wav` of a tar file,
- `tones:7:C4-E4-G4`: a description, from which a melody is rendered; nothing is stored on disk.
"""

from regard.data.archives import StoredFiles
from regard.data.audio import Recording, decode
from regard.data.corpora.tones import is_description, render
from regard.data.files import LIMITS
from regard.recipe import Limits


class Recordings:
    """Reads recordings by their sources, within the limits of a recipe."""

    def __init__(self, limits: Limits = LIMITS) -> None:
        self.limits = limits
        self._files = StoredFiles(limits)

    def read(self, source: str) -> Recording:
        """The recording; DataError if there is none of that name, or it cannot be read."""
        if is_description(source):
            return render(source)
        content = self._files.read(source, self.limits.recording_bytes, "recording_bytes")
        return decode(content, source, self.limits)
