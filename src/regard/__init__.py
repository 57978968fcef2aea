"""Sequence-to-sequence learning with attention: train it, look at it, ship it."""

__version__ = "0.1.0"
