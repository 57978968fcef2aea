"""Training: from a recipe and examples to a trained run."""

from regard.training.callbacks import Callback
from regard.training.loop import Preview, check, preview, resume, train

__all__ = ["Callback", "Preview", "check", "preview", "resume", "train"]
