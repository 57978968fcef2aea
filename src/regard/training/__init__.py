"""Examples to a trained run."""

from regard.training.loop import resume, train

__all__ = ["resume", "train"]
