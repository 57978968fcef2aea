"""Training: from a recipe and examples to a trained run."""

from regard.training.loop import check, resume, train

__all__ = ["check", "resume", "train"]
