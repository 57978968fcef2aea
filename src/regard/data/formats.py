"""Names of file formats, told by the first bytes of a file: for messages about files of the wrong kind."""

from codecs import getincrementaldecoder

LONGEST = 1000  # bytes at the start of a file that are looked at
SIGNATURES = {
    b"\x89PNG\r\n\x1a\n": "a PNG picture",
    b"\xff\xd8\xff": "a JPEG picture",
    b"GIF87a": "a GIF picture",
    b"GIF89a": "a GIF picture",
    b"II*\x00": "a TIFF picture",
    b"MM\x00*": "a TIFF picture",
    b"fLaC": "a FLAC recording",
    b"OggS": "an Ogg recording",
    b"ID3": "an MP3 recording",
    b"%PDF-": "a PDF document",
    b"PK\x03\x04": "a ZIP archive, as documents of office programs are, too",
    b"\x1f\x8b": "a gzip file",
    b"BZh": "a bzip2 file",
    b"\xfd7zXZ\x00": "an xz file",
    b"7z\xbc\xaf\x27\x1c": "a 7z archive",
    b"PAR1": "a Parquet file",
    b"\x7fELF": "a program",
    b"SQLite format 3\x00": "an SQLite database",
}
CONTAINERS = {b"WAVE": "a WAV recording", b"WEBP": "a WebP picture", b"AVI ": "an AVI film"}  # in RIFF files
PAGES = (b"<!doctype html", b"<html")


def name_of(start: bytes) -> str:
    """The name of the format of a file that begins with these bytes, such as `a PNG picture`; empty if unknown."""
    if start[:4] == b"RIFF":
        return CONTAINERS.get(start[8:12], "a RIFF file")
    return next((name for signature, name in SIGNATURES.items() if start.startswith(signature)), "")


def describe(start: bytes) -> str:
    """What a file is that begins with these bytes, in words: its format, `a text`, `empty` and so on."""
    if not start:
        return "empty"
    if named := name_of(start):
        return named
    if start.lstrip().lower().startswith(PAGES):
        return "a web page"
    try:
        text = getincrementaldecoder("utf-8")().decode(start[:LONGEST])  # the last character may be cut
    except UnicodeDecodeError:
        return "of a format that is not known"
    if "\0" in text:
        return "of a format that is not known"
    return "a text" if text.strip() else "blank"
