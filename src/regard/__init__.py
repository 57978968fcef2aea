"""Sequence-to-sequence learning with attention: train it, look at it, ship it.

run = regard.train("dates")                             # -> Run, a directory
predictor = regard.load(run)                            # -> Predictor
prediction = predictor.predict(["4 March 2026"])[0]     # -> Prediction(text, score, tokens, map, ...)
compared = regard.compare("dates", run)                 # -> Comparison, with a table and a picture by length
"""

import os
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

_SPINS = 10_000  # turns of the loop in which a thread of torch waits for work before it sleeps: well under 1 ms


def _choose_wait_policy() -> None:
    """Let waiting threads go to sleep soon, unless the environment says how they wait.

    GNU OpenMP, by which torch runs on several threads, lets them spin for 300,000 turns, many milliseconds. If another
    process runs on their cores, they spend their share of time on that, and training is many times slower. OpenMP reads
    the environment once, when torch is loaded: therefore here, the one work that is done at import. If torch was
    imported before regard it has no effect.
    """
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", str(_SPINS))
        os.environ.setdefault("KMP_BLOCKTIME", "1")  # in milliseconds, for builds with LLVM's OpenMP


_choose_wait_policy()

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
