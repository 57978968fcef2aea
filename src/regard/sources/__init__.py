"""Sources: kinds of input, which turn `Example.source` into batches, and batches into vectors."""

from regard.sources.core import AnySource, Front, Source, SourceBatch, Vectors
from regard.sources.picture import Picture
from regard.sources.picture_front import PictureBatch
from regard.sources.speech import Speech, SpeechBatch
from regard.sources.text import Text, TokenEmbedding, token_embedding

SOURCES: dict[str, type[AnySource]] = {"text": Text, "picture": Picture, "speech": Speech}

__all__ = [
    "SOURCES",
    "AnySource",
    "Front",
    "Picture",
    "PictureBatch",
    "Source",
    "SourceBatch",
    "Speech",
    "SpeechBatch",
    "Text",
    "TokenEmbedding",
    "Vectors",
    "token_embedding",
]
