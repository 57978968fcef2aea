"""Encoders: turn the vectors of a source into a memory to attend to (SourceBatch -> Memory)."""

from regard.encoders.core import Encoder, Layered
from regard.encoders.direct import DirectEncoder
from regard.encoders.gnmt import GnmtEncoder
from regard.encoders.recurrent import RecurrentEncoder
from regard.encoders.transformer import TransformerEncoder

ENCODERS: dict[str, type[Encoder]] = {
    "recurrent": RecurrentEncoder,
    "transformer": TransformerEncoder,
    "gnmt": GnmtEncoder,
    "none": DirectEncoder,
}

__all__ = ["ENCODERS", "DirectEncoder", "Encoder", "GnmtEncoder", "Layered", "RecurrentEncoder", "TransformerEncoder"]
