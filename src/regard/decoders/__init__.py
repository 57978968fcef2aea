"""Memory + tokens -> Step."""

from regard.decoders.core import Decoder
from regard.decoders.recurrent import ORDERS, RecurrentDecoder
from regard.decoders.start import STARTS

__all__ = ["ORDERS", "STARTS", "Decoder", "RecurrentDecoder"]
