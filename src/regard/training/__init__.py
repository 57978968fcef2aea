"""Examples to a trained run."""

from regard.training.loop import train

__all__ = ["train"]
