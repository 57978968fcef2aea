"""Models: encoders, decoders and output layers, combined for each kind of task."""

from regard.models.classifier import Classifier
from regard.models.language import LanguageModel
from regard.models.seq2seq import Seq2Seq, assemble, build
from regard.models.settled import settle
from regard.models.weights import kept_weights, load_weights, weights

__all__ = [
    "Classifier",
    "LanguageModel",
    "Seq2Seq",
    "assemble",
    "build",
    "kept_weights",
    "load_weights",
    "settle",
    "weights",
]
