"""Sources: kinds of input, from `Example.source` to a batch and to vectors."""

from regard.sources.core import AnySource, Front, Source, SourceBatch, Vectors
from regard.sources.text import Text, TokenEmbedding, token_embedding

SOURCES: dict[str, type[AnySource]] = {"text": Text}

__all__ = [
    "SOURCES",
    "AnySource",
    "Front",
    "Source",
    "SourceBatch",
    "Text",
    "TokenEmbedding",
    "Vectors",
    "token_embedding",
]
