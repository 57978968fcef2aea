"""Sources: kinds of input, which turn `Example.source` into batches, and batches into vectors."""

from regard.sources.core import AnySource, Front, Source, SourceBatch, Vectors
from regard.sources.picture import Picture, PictureBatch
from regard.sources.text import Text, TokenEmbedding, token_embedding

SOURCES: dict[str, type[AnySource]] = {"text": Text, "picture": Picture}

__all__ = [
    "SOURCES",
    "AnySource",
    "Front",
    "Picture",
    "PictureBatch",
    "Source",
    "SourceBatch",
    "Text",
    "TokenEmbedding",
    "Vectors",
    "token_embedding",
]
