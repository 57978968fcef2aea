"""Small pictures and recordings as the contents of files."""

import io
import wave

import numpy as np
import pytest
import torch


def png(pixels: np.ndarray) -> bytes:
    return picture_file(pixels, "PNG")


def picture_file(pixels: np.ndarray, kind: str) -> bytes:
    image = pytest.importorskip("PIL.Image")
    content = io.BytesIO()
    image.fromarray(pixels).save(content, kind)
    return content.getvalue()


def wav(samples: torch.Tensor, rate: int) -> bytes:
    content = io.BytesIO()
    with wave.open(content, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(rate)
        file.writeframes((samples * 32767).short().numpy().tobytes())
    return content.getvalue()
