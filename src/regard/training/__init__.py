"""Training: from a recipe and examples to a trained run."""

from regard.training.callbacks import Callback
from regard.training.loop import Preview, check, create, how_to_resume, preview, resume, train
from regard.training.validation import update_of_weights

__all__ = [
    "Callback",
    "Preview",
    "check",
    "create",
    "how_to_resume",
    "preview",
    "resume",
    "train",
    "update_of_weights",
]
