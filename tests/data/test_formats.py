"""Names of file formats by their first bytes."""

import pytest

from regard.data.formats import describe, name_of


@pytest.mark.parametrize(
    ("start", "name"),
    [
        (b"\x89PNG\r\n\x1a\n...", "a PNG picture"),
        (b"\xff\xd8\xff\xe0", "a JPEG picture"),
        (b"RIFF\x00\x00\x00\x00WAVEfmt ", "a WAV recording"),
        (b"RIFF\x00\x00\x00\x00WEBPVP8 ", "a WebP picture"),
        (b"RIFF\x00\x00\x00\x00....", "a RIFF file"),
        (b"%PDF-1.7", "a PDF document"),
    ],
)
def test_known_formats_are_named(start: bytes, name: str) -> None:
    assert name_of(start) == describe(start) == name


@pytest.mark.parametrize(
    ("start", "words"),
    [
        (b"", "empty"),
        (b" \n", "blank"),
        (b"hello\n", "a text"),
        ("é".encode() * 600, "a text"),  # its character at the limit is cut
        (b"\n<!DOCTYPE HTML>\n", "a web page"),
        (b"caf\xe9 ", "of a format that is not known"),
        (b"\x00" * 5, "of a format that is not known"),
    ],
)
def test_other_files_are_described(start: bytes, words: str) -> None:
    assert name_of(start) == ""
    assert describe(start) == words
