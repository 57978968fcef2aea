"""Models: encoders, decoders and output layers, combined for each kind of task."""

from regard.attention.sites import CROSS, DECODER_SELF, ENCODER_SELF, POOLING, sites
from regard.models.classifier import Classifier
from regard.models.interventions import active, intervene
from regard.models.language import LanguageModel
from regard.models.layout import store_by_columns
from regard.models.lora import merged, with_lora
from regard.models.seq2seq import Seq2Seq, assemble, build
from regard.models.weights import (
    SharedRows,
    fitting_weights,
    load_weights,
    not_finite,
    read_tensors,
    read_weights,
    stored_weights,
    weights,
    with_shared_rows,
)

__all__ = [
    "CROSS",
    "DECODER_SELF",
    "ENCODER_SELF",
    "POOLING",
    "Classifier",
    "LanguageModel",
    "Seq2Seq",
    "SharedRows",
    "active",
    "assemble",
    "build",
    "fitting_weights",
    "intervene",
    "load_weights",
    "merged",
    "not_finite",
    "read_tensors",
    "read_weights",
    "sites",
    "store_by_columns",
    "stored_weights",
    "weights",
    "with_lora",
    "with_shared_rows",
]
