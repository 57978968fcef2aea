"""A small PNG of one dot for each level, with the colours of the scale; no package is needed to write it."""

import zlib

from jaxtyping import UInt8
from torch import Tensor
from torch.nn.functional import pad

from regard.show.ramp import tint

PALETTE = tuple(tint(level / 255) for level in range(256))


def encode(levels: UInt8[Tensor, "rows columns"]) -> bytes:
    """The levels as a PNG with a palette (PNG specification, 3rd edition, section 11); neither side may be empty."""
    height, width = levels.shape
    header = width.to_bytes(4) + height.to_bytes(4) + bytes([8, 3, 0, 0, 0])  # 8 bits a dot, by palette
    lines = pad(levels, (1, 0)).numpy().tobytes()  # each line begins with the number of its filter: 0, none
    palette = bytes(part for colour in PALETTE for part in colour)
    parts = ((b"IHDR", header), (b"PLTE", palette), (b"IDAT", zlib.compress(lines)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(kind, content) for kind, content in parts)


def _chunk(kind: bytes, content: bytes) -> bytes:
    return len(content).to_bytes(4) + kind + content + zlib.crc32(kind + content).to_bytes(4)
