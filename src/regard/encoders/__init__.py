"""Batch.source -> Memory."""

from regard.encoders.core import Encoder, Reader
from regard.encoders.recurrent import RecurrentEncoder
from regard.encoders.transformer import TransformerEncoder

ENCODERS: dict[str, type[Encoder]] = {
    "recurrent": RecurrentEncoder,
    "transformer": TransformerEncoder,
}

__all__ = ["ENCODERS", "Encoder", "Reader", "RecurrentEncoder", "TransformerEncoder"]
