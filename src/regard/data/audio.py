"""Decodes recordings to mono samples: WAV with code of its own, FLAC, Ogg and MP3 with the package soundfile.

The format is recognised by the first bytes, not by the ending of the name. Sizes are checked with those of the header
before samples are decoded, and again with what was decoded, because a header may lie. Whatever the bytes are, the
result is a recording or a DataError of one sentence that names the file.
"""

import struct
from collections.abc import Iterator
from io import BytesIO
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from regard.data import formats
from regard.data.files import LIMITS
from regard.errors import DataError, MissingExtraError, shown
from regard.recipe import Limits

LOWEST_RATE, HIGHEST_RATE = 1_000, 384_000  # samples per second; no microphone records with fewer or more
LOUDEST = 1e6  # largest sample; full scale is 1, and some programs write 16-bit numbers as floats
PIECE = 2**22  # bytes, or samples of all channels, that are decoded at a time
PCM, FLOAT, EXTENSIBLE = 1, 3, 0xFFFE  # formats of WAV
CODECS = {2: "ADPCM", 6: "A-law", 7: "mu-law", 17: "ADPCM", 49: "GSM"}  # formats of WAV that soundfile decodes
SUBFORMAT = bytes.fromhex("000000001000800000aa00389b71")  # the end of an extensible format; the start is its number
UNKNOWN_SIZE = 0xFFFF_FFFF  # of a chunk that was written to a pipe: it goes on to the end
UNKNOWN_FRAMES = 2**63 - 1  # of a FLAC file that was written to a pipe; soundfile cannot read these to their end
SIGNATURES = {  # of what soundfile decodes
    b"fLaC": "FLAC",
    b"OggS": "Ogg",
    b"ID3": "MP3",
    **{b"\xff" + bytes([version]): "MP3" for version in (0xFB, 0xFA, 0xF3, 0xF2, 0xE3, 0xE2)},  # E: 8 to 12 kHz
}

Numbers = NDArray[Any]


class Recording(NamedTuple):
    """The samples of a recording, full scale is 1; several channels are averaged.

    As an input of `Predictor.predict`, the samples may also be an array.
    """

    samples: Float[Tensor, " samples"]
    rate: int  # samples per second

    @property
    def seconds(self) -> float:
        """The duration."""
        return len(self.samples) / self.rate


class Shape(NamedTuple):
    """What the header of a recording says about its size."""

    frames: int  # samples of one channel
    channels: int
    rate: int


class _Wave(NamedTuple):
    """The samples of a WAV file, and how they are stored."""

    format: int  # PCM or FLOAT
    width: int  # bytes per sample
    channels: int
    rate: int
    data: memoryview


def decode(content: bytes, name: str, limits: Limits = LIMITS) -> Recording:
    """The recording in the content of a file; `name` is for messages."""
    if _is_wave(content):
        wave = _parse(content, name)
        if isinstance(wave, str):
            return _decode_with_soundfile(content, name, f"WAV ({wave})", limits)
        return _decode_wave(wave, name, limits)
    kind = _kind(content)
    if not kind:
        what = formats.describe(content)
        raise DataError(f"{name} is no recording that can be read: it is {what}; give WAV, FLAC, Ogg or MP3")
    return _decode_with_soundfile(content, name, kind, limits)


def is_recording(start: bytes) -> bool:
    """Whether a file that begins with these bytes has a format that is read."""
    return _is_wave(start) or bool(_kind(start))


def _is_wave(content: bytes) -> bool:
    return content[:4] == b"RIFF" and content[8:12] == b"WAVE"


def _kind(content: bytes) -> str:
    """The format that soundfile decodes, by the first bytes; empty if it is another."""
    return next((kind for signature, kind in SIGNATURES.items() if content.startswith(signature)), "")


def check_shape(shape: Shape, name: str, limits: Limits) -> None:
    """Refuse a recording whose header is not possible, or that is longer than the limits allow."""
    if not LOWEST_RATE <= shape.rate <= HIGHEST_RATE:
        allowed = f"{LOWEST_RATE:,} to {HIGHEST_RATE:,}"
        given = f"{shape.rate:,} samples per second"
        raise DataError(f"{name} has {given}, allowed are {allowed}; record or convert it again")
    if shape.channels < 1:
        raise DataError(f"{name} has no channels; record or convert it again")
    if shape.frames < 1:
        raise DataError(f"{name} has no samples; record it again, or leave it out")
    if shape.frames > limits.recording_seconds * shape.rate:
        how = "split it, or raise data.limits.recording_seconds"
        raise DataError(f"{name} takes more than {limits.recording_seconds:,} seconds; {how}")


def mono(pieces: Iterator[Numbers], shape: Shape, name: str) -> Recording:
    """The recording whose samples come in pieces of (frames, channels); DataError if they do not fit the shape."""
    samples, filled = np.empty(shape.frames, np.float32), 0
    for piece in pieces:
        if filled + len(piece) > shape.frames:
            raise DataError(f"{name} has more samples than the {shape.frames:,} of its header; convert it again")
        part = samples[filled : filled + len(piece)]
        with np.errstate(over="ignore", invalid="ignore"):  # what is not finite is refused next
            part[:] = piece[:, 0] if shape.channels == 1 else piece.mean(1, dtype=np.float64)
        good = np.abs(part) <= LOUDEST  # False for NaN, too
        if not good.all():
            index = int(good.argmin())
            found = f"the sample {filled + index:,} is {part[index]:g}"
            raise DataError(f"{name}: {found}, allowed are numbers up to {LOUDEST:,.0f}; record or convert it again")
        filled += len(piece)
    if filled < shape.frames:
        raise DataError(f"{name} ends after {filled:,} of {shape.frames:,} samples; fetch or convert it again")
    return Recording(torch.from_numpy(samples), shape.rate)


# WAV


def _parse(content: bytes, name: str) -> _Wave | str:
    """The samples of a WAV file; the name of the codec if they are compressed."""
    layout = None
    for kind, start, size in _chunks(content):
        if kind == b"fmt " and layout is None:
            stored = _layout(content[start : start + min(size, 40)], name)
            if isinstance(stored, str):
                return stored
            layout = stored
        elif kind == b"data":
            if layout is None:
                raise _broken(name, "no format comes before its samples")
            if size == UNKNOWN_SIZE:
                size = len(content) - start
            return _with_data(layout, memoryview(content)[start : start + size], size, name)
    raise _broken(name, "it has no samples, or ends before them")


def _chunks(content: bytes) -> Iterator[tuple[bytes, int, int]]:
    """Kind, start and size of each chunk, as its header says; the content may be shorter."""
    offset = 12
    while offset + 8 <= len(content):
        kind, size = struct.unpack_from("<4sI", content, offset)
        yield kind, offset + 8, size
        offset += 8 + size + size % 2  # chunks begin at even offsets


def _layout(chunk: bytes, name: str) -> _Wave | str:
    """How samples are stored, from the chunk `fmt `; there are none yet."""
    if len(chunk) < 16:
        raise _broken(name, f"its format has {len(chunk)} bytes, not 16 or more")
    number, channels, rate, _, block, bits = struct.unpack_from("<HHIIHH", chunk)
    if number == EXTENSIBLE:
        if len(chunk) < 40 or chunk[26:40] != SUBFORMAT:
            raise _broken(name, "its extensible format is incomplete or unknown")
        (number,) = struct.unpack_from("<H", chunk, 24)
    if number in CODECS:
        return CODECS[number]
    width = (bits + 7) // 8  # samples of 20 bits are the upper bits of 24
    if (number, width) not in DTYPES:
        raise _broken(name, f"format {number} with {bits} bits per sample is unknown")
    if block != width * channels:
        raise _broken(name, f"{block} bytes per frame do not fit {channels} channels of {bits} bits")
    return _Wave(number, width, channels, rate, memoryview(b""))


def _with_data(wave: _Wave, data: memoryview, size: int, name: str) -> _Wave:
    if len(data) < size:
        raise _broken(name, f"it ends after {len(data):,} of {size:,} bytes of samples")
    if wave.channels and size % (wave.width * wave.channels):
        raise _broken(name, f"{size:,} bytes are not a whole number of frames of {wave.width * wave.channels} bytes")
    return wave._replace(data=data)


def _broken(name: str, why: str) -> DataError:
    return DataError(f"{name} is not a WAV file that can be read: {why}; fetch or convert it again")


def _decode_wave(wave: _Wave, name: str, limits: Limits) -> Recording:
    frame = max(1, wave.width * wave.channels)
    shape = Shape(len(wave.data) // frame, wave.channels, wave.rate)
    check_shape(shape, name, limits)
    step = max(1, PIECE // frame) * frame
    pieces = (_numbers(wave, wave.data[start : start + step]) for start in range(0, len(wave.data), step))
    return mono(pieces, shape, name)


def _numbers(wave: _Wave, data: memoryview) -> Numbers:
    """The samples in these bytes, as (frames, channels)."""
    if wave.width == 3:
        wide = np.zeros((len(data) // 3, 4), np.uint8)  # 24 bits as the upper bits of 32
        wide[:, 1:] = np.frombuffer(data, np.uint8).reshape(-1, 3)
        numbers = wide.view(DTYPES[PCM, 3]).astype(np.float32) / np.float32(2**31)
    else:
        numbers = np.frombuffer(data, DTYPES[wave.format, wave.width])
        if wave.format == PCM:
            numbers = numbers.astype(np.float32)
            numbers = (numbers - 128) / 128 if wave.width == 1 else numbers / np.float32(2 ** (8 * wave.width - 1))
    return numbers.reshape(-1, wave.channels)


DTYPES = {  # by format and bytes per sample
    (PCM, 1): "u1",
    (PCM, 2): "<i2",
    (PCM, 3): "<i4",  # after it was widened
    (PCM, 4): "<i4",
    (FLOAT, 4): "<f4",
    (FLOAT, 8): "<f8",
}


# soundfile


def _decode_with_soundfile(content: bytes, name: str, kind: str, limits: Limits) -> Recording:
    try:
        import soundfile
    except (ImportError, OSError) as missing:  # OSError: without the library libsndfile
        raise MissingExtraError("soundfile", "audio", f"reading the {kind} file {name}") from missing
    try:
        with soundfile.SoundFile(BytesIO(content)) as file:
            shape = Shape(file.frames, file.channels, file.samplerate)
            if shape.frames == UNKNOWN_FRAMES:
                raise DataError(f"{name} does not say how long it is, as if written to a pipe; convert it to a file")
            check_shape(shape, name, limits)
            return mono(_pieces(file, max(1, PIECE // shape.channels)), shape, name)
    except (soundfile.SoundFileError, RuntimeError, ValueError) as error:
        why = shown(getattr(error, "error_string", str(error)))  # without the address of an object before it
        raise DataError(f"{name} is not a whole {kind} file ({why}); fetch or convert it again") from error


def _pieces(file: Any, frames: int) -> Iterator[Numbers]:
    """The samples of an open file of soundfile, so many frames at a time."""
    while len(piece := file.read(frames, dtype="float32", always_2d=True)):
        yield piece
