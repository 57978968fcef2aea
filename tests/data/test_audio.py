"""Recordings: every kind of WAV gives the samples that were written, and hostile bytes give one sentence."""

import io
import random
import re
import struct
import sys
import wave
from importlib.util import find_spec

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from regard.data.audio import SUBFORMAT, Recording, decode
from regard.errors import DataError, MissingExtraError
from regard.recipe import Limits

PCM, FLOAT, EXTENSIBLE = 1, 3, 0xFFFE
needs_soundfile = pytest.mark.skipif(not find_spec("soundfile"), reason="soundfile is not installed")


def chunk(kind: bytes, content: bytes) -> bytes:
    return kind + struct.pack("<I", len(content)) + content + b"\0" * (len(content) % 2)


def riff(*chunks: bytes) -> bytes:
    body = b"".join(chunks)
    return b"RIFF" + struct.pack("<I", len(body) + 4) + b"WAVE" + body


def layout(
    kind: int = PCM, channels: int = 1, rate: int = 8000, bits: int = 16, block: int | None = None, more: bytes = b""
) -> bytes:
    block = channels * ((bits + 7) // 8) if block is None else block
    numbers = struct.pack("<HHIIHH", kind, channels, rate, rate * block % 2**32, block, bits)
    return chunk(b"fmt ", numbers + more)


def extension(kind: int, bits: int) -> bytes:
    return struct.pack("<HHI", 22, bits, 4) + struct.pack("<H", kind) + SUBFORMAT


def stored(values: NDArray[np.float64], kind: int, bits: int) -> bytes:
    """Samples as a WAV file stores them."""
    if kind == FLOAT:
        return values.astype(f"<f{bits // 8}").tobytes()
    scaled = np.round(values * 2 ** (bits - 1)).astype(np.int64)
    if bits == 8:
        return (scaled + 128).astype(np.uint8).tobytes()
    wide = scaled.astype("<i8").reshape(-1, 1).view(np.uint8)
    return wide[:, : bits // 8].tobytes()


def values(count: int, seed: int = 0) -> NDArray[np.float64]:
    numbers = np.random.RandomState(seed).uniform(-0.99, 0.99, count)
    numbers[:2] = -1.0, 127 / 128
    return numbers


@pytest.mark.parametrize("kind", ["plain", "extensible"])
@pytest.mark.parametrize("channels", [1, 2, 3])
@pytest.mark.parametrize(("number", "bits"), [(PCM, 8), (PCM, 16), (PCM, 24), (PCM, 32), (FLOAT, 32), (FLOAT, 64)])
@pytest.mark.parametrize("rate", [8000, 44_100, 96_000])
def test_every_kind_of_wav_gives_its_samples(kind: str, channels: int, number: int, bits: int, rate: int) -> None:
    written = values(7 * 11 * channels)
    if kind == "extensible":
        form = layout(EXTENSIBLE, channels, rate, bits, more=extension(number, bits))
    else:
        form = layout(number, channels, rate, bits)
    recording = decode(riff(form, chunk(b"data", stored(written, number, bits))), "a.wav")
    assert recording.rate == rate
    assert recording.samples.dtype == torch.float32
    step = 0 if number == FLOAT else 0.5 / 2 ** (bits - 1)
    expected = written.reshape(-1, channels).mean(1)
    np.testing.assert_allclose(recording.samples.numpy(), expected, rtol=0, atol=step + 1e-7)
    assert recording.seconds == len(expected) / rate


@pytest.mark.parametrize("width", [1, 2, 3, 4])
def test_what_the_standard_library_writes_is_read(width: int) -> None:
    file = io.BytesIO()
    with wave.open(file, "wb") as writer:
        writer.setparams((2, width, 22_050, 0, "NONE", ""))
        writer.writeframes(stored(values(50), PCM, 8 * width))
    expected = values(50).reshape(-1, 2).mean(1)
    np.testing.assert_allclose(decode(file.getvalue(), "a").samples, expected, atol=0.51 / 2 ** (8 * width - 1) + 1e-7)


def test_16_bit_samples_are_exact() -> None:
    numbers = np.array([-32768, -1, 0, 1, 32767], "<i2")
    assert decode(riff(layout(), chunk(b"data", numbers.tobytes())), "a").samples.tolist() == [
        -1.0,
        -1 / 32768,
        0.0,
        1 / 32768,
        32767 / 32768,
    ]


def test_long_recordings_are_decoded_piece_by_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    content = riff(layout(PCM, 3, bits=24), chunk(b"data", stored(values(3 * 1001), PCM, 24)))
    whole = decode(content, "a").samples
    monkeypatch.setattr("regard.data.audio.PIECE", 100)
    assert torch.equal(decode(content, "a").samples, whole)


def test_other_chunks_are_skipped_and_odd_ones_are_padded() -> None:
    data = chunk(b"data", b"\x00\x40")
    content = riff(chunk(b"LIST", b"odd"), layout(more=b"\0\0"), chunk(b"fact", b"1234"), data, chunk(b"id3 ", b"x"))
    assert decode(content, "a").samples.tolist() == [0.5]


def test_samples_written_to_a_pipe_go_on_to_the_end() -> None:
    content = riff(layout(), b"data\xff\xff\xff\xff\x00\x40\x00\xc0")
    assert decode(content, "a").samples.tolist() == [0.5, -0.5]


def test_20_bits_in_24_are_the_upper_ones() -> None:
    content = riff(layout(bits=20), chunk(b"data", b"\x00\x00\x40"))
    assert decode(content, "a").samples.tolist() == [0.5]


HOSTILE = {
    "empty": (b"", "is no recording that can be read: it is empty; give WAV, FLAC, Ogg or MP3"),
    "text": (b"hello world", r"is no recording that can be read: it is a text; give WAV"),
    "only a signature": (riff(), "it has no samples, or ends before them"),
    "cut in a header": (riff(layout())[:20], "its format has 0 bytes, not 16"),
    "no samples at all": (riff(layout()), "it has no samples, or ends before them"),
    "samples before the format": (riff(chunk(b"data", b"12"), layout()), "no format comes before its samples"),
    "zero samples": (riff(layout(), chunk(b"data", b"")), "has no samples; record it again, or leave it out"),
    "zero channels": (riff(layout(channels=0), chunk(b"data", b"1234")), "has no channels"),
    "rate 0": (riff(layout(rate=0), chunk(b"data", b"12")), "has 0 samples per second, allowed are 1,000 to 384,000"),
    "rate 4 GHz": (riff(layout(rate=4_000_000_000), chunk(b"data", b"12")), "has 4,000,000,000 samples per second"),
    "0 bits": (riff(layout(bits=0), chunk(b"data", b"12")), "format 1 with 0 bits per sample is unknown"),
    "65,535 bits": (riff(layout(bits=65_535, block=9)), "format 1 with 65535 bits per sample is unknown"),
    "40 bits": (riff(layout(bits=40), chunk(b"data", b"12345")), "format 1 with 40 bits per sample is unknown"),
    "float of 16 bits": (riff(layout(FLOAT), chunk(b"data", b"12")), "format 3 with 16 bits per sample is unknown"),
    "unknown format": (riff(layout(99), chunk(b"data", b"12")), "format 99 with 16 bits per sample is unknown"),
    "odd block": (riff(layout(block=3), chunk(b"data", b"123")), "3 bytes per frame do not fit 1 channels of 16 bits"),
    "block 0": (riff(layout(block=0), chunk(b"data", b"12")), "0 bytes per frame do not fit"),
    "half a sample": (riff(layout(), chunk(b"data", b"123")), "3 bytes are not a whole number of frames of 2 bytes"),
    "cut samples": (riff(layout(), b"data\x10\0\0\x00123456"), "it ends after 6 of 16 bytes of samples"),
    "a size that lies": (riff(layout(), b"data\xf0\xff\xff\xff12"), "it ends after 2 of 4,294,967,280 bytes of"),
    "a chunk that lies": (riff(b"LIST\xff\xff\xff\xff", layout()), "it has no samples, or ends before them"),
    "a short extension": (riff(layout(EXTENSIBLE, more=b"\0\0")), "its extensible format is incomplete or unknown"),
    "another extension": (riff(layout(EXTENSIBLE, more=b"\7" * 24)), "its extensible format is incomplete or unknown"),
    "NaN": (riff(layout(FLOAT, bits=32), chunk(b"data", struct.pack("<3f", 0, np.nan, 1))), "the sample 1 is nan"),
    "infinite": (riff(layout(FLOAT, bits=32), chunk(b"data", struct.pack("<2f", 0, np.inf))), "the sample 1 is inf"),
    "beyond float32": (riff(layout(FLOAT, bits=64), chunk(b"data", struct.pack("<d", 1e300))), "the sample 0 is inf"),
    "far too loud": (riff(layout(FLOAT, bits=32), chunk(b"data", struct.pack("<f", -1e9))), "the sample 0 is -1e\\+09"),
    "channels that cancel": (
        riff(layout(FLOAT, 2, bits=32), chunk(b"data", struct.pack("<2f", np.inf, -np.inf))),
        "the sample 0 is nan, allowed are numbers up to 1,000,000; record or convert it again",
    ),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_a_hostile_recording_gets_one_sentence(case: str) -> None:
    content, why = HOSTILE[case]
    with pytest.raises(DataError, match=rf"^a\.wav[: ].*{why}") as caught:
        decode(content, "a.wav")
    assert "\n" not in str(caught.value)


def test_a_recording_that_is_too_long_is_refused_by_its_header() -> None:
    content = riff(layout(rate=1000), chunk(b"data", bytes(2 * 2001)))
    assert decode(content, "a", Limits(recording_seconds=3)).seconds == 2.001
    message = "a takes more than 2 seconds; split it, or raise data.limits.recording_seconds"
    with pytest.raises(DataError, match=f"^{re.escape(message)}$"):
        decode(content, "a", Limits(recording_seconds=2))


def try_to_decode(content: bytes) -> tuple[Recording | None, str]:
    """The recording, or None and the message if it is refused."""
    try:
        return decode(content, "a.wav"), ""
    except (DataError, MissingExtraError) as error:
        return None, str(error)


def test_any_damage_to_a_wav_gives_samples_or_a_sentence() -> None:
    generator = random.Random(1)
    form = layout(EXTENSIBLE, 2, 8000, 24, more=extension(PCM, 24))
    whole = riff(chunk(b"LIST", b"12345"), form, chunk(b"data", stored(values(200), PCM, 24)))
    for _ in range(3000):
        damaged = bytearray(whole[: generator.choice([len(whole), generator.randrange(len(whole))])])
        for _ in range(generator.randrange(5)):
            if damaged:
                damaged[generator.randrange(min(90, len(damaged)))] = generator.choice([0, 1, 255, 128])
        recording, problem = try_to_decode(bytes(damaged))
        assert "a.wav" in problem if recording is None else len(recording.samples)
        assert recording is None or recording.samples.isfinite().all()


# soundfile


@pytest.mark.parametrize(
    ("content", "kind"),
    [
        (b"fLaC" + bytes(40), "FLAC"),
        (b"OggS" + bytes(40), "Ogg"),
        (b"ID3" + bytes(40), "MP3"),
        (riff(layout(7, bits=8), chunk(b"data", b"12")), r"WAV \(mu-law\)"),
        (riff(layout(EXTENSIBLE, bits=8, more=extension(6, 8)), chunk(b"data", b"12")), r"WAV \(A-law\)"),
    ],
)
def test_without_soundfile_a_sentence_says_what_to_install(
    content: bytes, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "soundfile", None)
    command = r"pip install 'regard\[audio\]', or in a clone: pip install -e '\.\[audio\]'"
    how = f"needs the package soundfile; install it with: {command}"
    with pytest.raises(MissingExtraError, match=rf"^reading the {kind} file a\.wav {how}$"):
        decode(content, "a.wav")


def encoded(samples: NDArray[np.float64] | NDArray[np.int16], rate: int, kind: str, **options: str) -> bytes:
    import soundfile

    file = io.BytesIO()
    soundfile.write(file, samples, rate, format=kind, **options)
    return file.getvalue()


@needs_soundfile
@pytest.mark.parametrize("channels", [1, 2])
@pytest.mark.parametrize("rate", [8000, 96_000])
def test_flac_gives_the_samples_of_the_wav(channels: int, rate: int) -> None:
    written = np.round(32767 * values(5000 * channels)).astype(np.int16).reshape(-1, channels)
    flac, wav = (decode(encoded(written, rate, kind, subtype="PCM_16"), "a") for kind in ("FLAC", "WAV"))
    assert torch.equal(flac.samples, wav.samples)
    assert flac.rate == wav.rate == rate


@needs_soundfile
@pytest.mark.parametrize("subtype", ["PCM_U8", "PCM_16", "PCM_24", "PCM_32", "FLOAT", "DOUBLE"])
@pytest.mark.parametrize("kind", ["WAV", "WAVEX"])
def test_wav_is_read_as_soundfile_reads_it(kind: str, subtype: str) -> None:
    import soundfile

    content = encoded(values(501 * 3).reshape(-1, 3), 16_000, kind, subtype=subtype)
    expected, rate = soundfile.read(io.BytesIO(content), dtype="float64")
    recording = decode(content, "a")
    np.testing.assert_allclose(recording.samples, expected.mean(1), rtol=0, atol=1e-7)
    assert recording.rate == rate == 16_000


@needs_soundfile
@pytest.mark.parametrize(("kind", "subtype"), [("OGG", "VORBIS"), ("MP3", "MPEG_LAYER_III"), ("WAV", "ULAW")])
def test_lossy_formats_are_close(kind: str, subtype: str) -> None:
    tone = 0.5 * np.sin(np.arange(16_000) * 0.1)
    recording = decode(encoded(tone, 16_000, kind, subtype=subtype), "a")
    np.testing.assert_allclose(recording.samples[2000:-2000], tone[2000:-2000], atol=0.05)


@needs_soundfile
def test_damaged_flac_and_ogg_files_get_a_sentence() -> None:
    generator = random.Random(3)
    for kind in ("FLAC", "OGG"):
        whole = encoded(values(20_000), 16_000, kind)
        for _ in range(150):
            damaged = bytearray(whole[: generator.choice([len(whole), generator.randrange(4, len(whole))])])
            for _ in range(generator.randrange(6)):
                damaged[generator.randrange(4, generator.choice([60, len(damaged)]) if len(damaged) > 60 else 5)] ^= 255
            recording, problem = try_to_decode(bytes(damaged))
            assert "a.wav" in problem if recording is None else recording.samples.isfinite().all()


@needs_soundfile
def test_a_flac_header_that_lies_or_says_nothing_about_the_length_is_refused() -> None:
    whole = bytearray(encoded(values(20_000), 16_000, "FLAC"))
    for count, why in {0: "does not say how long it is", 21_000: "", 10**9: "takes more than 600 seconds"}.items():
        lying = bytearray(whole)
        lying[21] &= 0xF0
        lying[22:26] = count.to_bytes(4, "big")
        with pytest.raises(DataError, match=f"^a {why}"):
            decode(bytes(lying), "a")
    with pytest.raises(DataError, match=r"^a (ends after|is not a whole FLAC file)"):
        decode(bytes(whole[: len(whole) // 2]), "a")
