"""Sequence-to-sequence learning with attention: train it, look at it, ship it.

run = regard.train("dates")                             # -> Run, a directory
predictor = regard.load(run)                            # -> Predictor
prediction = predictor.predict(["4 March 2026"])[0]     # -> Prediction(text, score, tokens, map, ...)
compared = regard.compare("dates", run)                 # -> Comparison, with a table and a picture by length
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from regard.attention import Attended, attend
    from regard.comparison import Comparison, compare
    from regard.predict import Predictor, load
    from regard.recipe import Recipe
    from regard.storage import Run
    from regard.training import resume, train
    from regard.types import AttentionMap, Prediction

__version__ = "0.1.0"

# Loaded when first asked for, so that `import regard` and `regard --help` do not wait for torch.
_HOMES = {
    "Recipe": "regard.recipe",
    "AttentionMap": "regard.types",
    "Prediction": "regard.types",
    "Run": "regard.storage",
    "Attended": "regard.attention",
    "attend": "regard.attention",
    "resume": "regard.training",
    "train": "regard.training",
    "Predictor": "regard.predict",
    "load": "regard.predict",
    "Comparison": "regard.comparison",
    "compare": "regard.comparison",
}

__all__ = [
    "Attended",
    "AttentionMap",
    "Comparison",
    "Prediction",
    "Predictor",
    "Recipe",
    "Run",
    "attend",
    "compare",
    "load",
    "resume",
    "train",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'regard' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
