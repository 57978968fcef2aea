"""Layers that encoders and decoders share: recurrence, Transformer."""
