"""Small PNGs, of levels with the colours of the scale or of RGB pixels; no package is needed to write them."""

import zlib
from collections.abc import Sequence

from jaxtyping import UInt8
from torch import Tensor
from torch.nn.functional import pad

from regard.show.ramp import tint

PALETTE = tuple(tint(level / 255) for level in range(256))
SIGNED = tuple(tint((level - 127) / 127) for level in range(255))  # of weights from -1 to 1


def encode(levels: UInt8[Tensor, "rows columns"], colours: Sequence[tuple[int, int, int]] = PALETTE) -> bytes:
    """The levels as a PNG with a palette (PNG specification, 3rd edition, section 11); neither side may be empty."""
    height, width = levels.shape
    header = width.to_bytes(4) + height.to_bytes(4) + bytes([8, 3, 0, 0, 0])  # 8 bits a dot, by palette
    lines = pad(levels, (1, 0)).numpy().tobytes()  # each line begins with the number of its filter: 0, none
    palette = bytes(part for colour in colours for part in colour)
    return _file((b"IHDR", header), (b"PLTE", palette), (b"IDAT", zlib.compress(lines)))


def encode_pixels(pixels: UInt8[Tensor, "height width 3"]) -> bytes:
    """RGB pixels as a PNG; neither side may be empty."""
    height, width, _ = pixels.shape
    header = width.to_bytes(4) + height.to_bytes(4) + bytes([8, 2, 0, 0, 0])  # 8 bits a colour
    lines = pixels.flatten(1)
    above = pad(lines, (0, 0, 1, -1))
    differences = pad(lines - above, (1, 0), value=2)  # filter 2, up: modulo 256, and smaller when compressed
    return _file((b"IHDR", header), (b"IDAT", zlib.compress(differences.contiguous().numpy().tobytes())))


def _file(*parts: tuple[bytes, bytes]) -> bytes:
    return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(kind, content) for kind, content in (*parts, (b"IEND", b"")))


def _chunk(kind: bytes, content: bytes) -> bytes:
    return len(content).to_bytes(4) + kind + content + zlib.crc32(kind + content).to_bytes(4)
