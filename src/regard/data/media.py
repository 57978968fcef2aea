"""Pictures and recordings as inputs: given in Python by their content, or as the files of a folder."""

import os
from collections.abc import Callable
from typing import Any, NamedTuple

from regard.data.files import opened
from regard.errors import DataError

SIGNATURE = 16  # bytes at the start of a file that tell its format
ENDINGS = {  # of names that are probably those of files, by the kind of source that reads them
    "picture": (".jpg", ".jpeg", ".png", ".gif", ".webp", ".bmp"),
    "speech": (".wav", ".flac", ".ogg", ".mp3"),
}


class Medium(str):
    """A picture or a recording that is given in Python: a source with a short label in place of the name of a file.

    Two media are equal only if they are the same object, since different pictures may have the same label.
    """

    content: Any

    def __new__(cls, label: str, content: Any) -> "Medium":
        """A source with this label; `content` is what the name of a file would stand for."""
        medium = super().__new__(cls, label)
        medium.content = content
        return medium

    def __eq__(self, other: object) -> bool:
        return self is other

    def __ne__(self, other: object) -> bool:
        return self is not other

    def __hash__(self) -> int:
        return id(self)

    def __getnewargs__(self) -> tuple[str, Any]:  # type: ignore[override]
        return str(self), self.content  # so that it can be copied


class Folder(NamedTuple):
    """The files of a folder that can be inputs, sorted by name, and how many other entries it has."""

    names: list[str]
    others: int


def files_in(folder: str, recognises: Callable[[bytes], bool]) -> Folder:
    """The files of a folder, not of folders in it, whose first bytes are recognised."""
    try:
        entries = sorted(os.listdir(folder))
    except OSError as error:
        raise DataError(f"{folder} cannot be read ({error.strerror}); check its permissions") from error
    names = [name for name in (os.path.join(folder, entry) for entry in entries) if os.path.isfile(name)]
    chosen = [name for name in names if is_medium(name, recognises)]
    return Folder(chosen, len(entries) - len(chosen))


def is_medium(name: str, recognises: Callable[[bytes], bool]) -> bool:
    """Whether the first bytes of a file are recognised."""
    return recognises(_start(name))


def _start(name: str) -> bytes:
    with opened(name) as (handle, _):
        return os.read(handle, SIGNATURE)


def is_text(source: str) -> bool:
    """Whether a source is more likely a text than the name of a file: words, without a slash or an ending of media."""
    if "/" in source or kind_by_names([source]):
        return False
    return len(source.split()) > 1 or "." not in source


def kind_by_names(sources: list[str]) -> str:
    """The kind of source whose files these are, by the endings of their names; empty if they are something else."""
    for kind, endings in ENDINGS.items():
        if sources and all(source.lower().endswith(endings) for source in sources):
            return kind
    return ""
