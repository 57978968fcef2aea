"""Training: from a recipe and examples to a trained run."""

from regard.training.callbacks import Callback
from regard.training.loop import check, resume, train

__all__ = ["Callback", "check", "resume", "train"]
