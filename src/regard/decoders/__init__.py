"""Decoders: predict the next token from a memory and the tokens before it (Memory + tokens -> Step)."""

from regard.decoders.core import AnyDecoder, Decoder
from regard.decoders.recurrent import ORDERS, RecurrentDecoder
from regard.decoders.start import STARTS
from regard.decoders.transformer import TransformerDecoder

DECODERS: dict[str, type[RecurrentDecoder] | type[TransformerDecoder]] = {
    "recurrent": RecurrentDecoder,
    "transformer": TransformerDecoder,
}

__all__ = ["DECODERS", "ORDERS", "STARTS", "AnyDecoder", "Decoder", "RecurrentDecoder", "TransformerDecoder"]
