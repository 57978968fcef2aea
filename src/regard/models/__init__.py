"""Models: parts put together for what is to be learned."""

from regard.models.classifier import Classifier
from regard.models.core import load_weights, weights
from regard.models.language import LanguageModel
from regard.models.seq2seq import Seq2Seq, build
from regard.models.settled import settle

__all__ = ["Classifier", "LanguageModel", "Seq2Seq", "build", "load_weights", "settle", "weights"]
