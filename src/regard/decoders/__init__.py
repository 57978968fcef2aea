"""Memory + tokens -> Step."""

from regard.decoders.core import Decoder
from regard.decoders.recurrent import ORDERS, RecurrentDecoder

__all__ = ["ORDERS", "Decoder", "RecurrentDecoder"]
