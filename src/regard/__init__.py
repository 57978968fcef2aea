"""Sequence-to-sequence learning with attention: train it, look at it, ship it.

run = regard.train("dates")                             # -> Run, a directory
predictor = regard.load(run)                            # -> Predictor
prediction = predictor.predict(["4 March 2026"])[0]     # -> Prediction(text, score, tokens, map, ...)
forced = regard.force(predictor, [("4 May", "05-04")])  # -> the log-probability and the map of a given output
with regard.record(predictor.model) as recording: ...   # -> the weights of all attentions in the block
predictor.intervene("4 March 2026", ["erase March"])    # -> Intervened: before, after, and what changed
compared = regard.compare("dates", run)                 # -> Comparison, with a table and a picture by length
swept = regard.sweep("dates", "train.seed=[1,2,3]")     # -> Comparison of all combinations of values
"""

import os
import sys
import time
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from regard.analysis.comparison import Comparison, compare
    from regard.analysis.forced import force
    from regard.analysis.sweeping import sweep
    from regard.attention import Attended, attend
    from regard.attention.intervene import Erase, Feed, Force, Permute, Silence, Swap, Uniform
    from regard.attention.record import record
    from regard.data.audio import Recording
    from regard.maps import AttentionMap
    from regard.predict import Predictor, intervene, load
    from regard.recipe import Recipe
    from regard.storage import Run
    from regard.training import Callback, resume, train
    from regard.types import Prediction

__version__ = "0.1.0"

# Environment variables that say how threads wait.
_WAIT_SETTINGS = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME")


def _choose_wait_policy() -> None:
    """Let torch's threads sleep while they wait if another process computes on this machine, unless the user chose.

    Threads that wait for each other spin, which is fastest on an idle machine. Beside a busy process they spend their
    share of a core on it while the one they wait for has none, and training is many times slower; threads that sleep
    lose little then. The choice changes no result. OpenMP reads it once, when torch is loaded: therefore here, the one
    work that is done at import. If torch was imported before regard it would have no effect, and is left out.
    """
    if "torch" in sys.modules or any(name in os.environ for name in _WAIT_SETTINGS):
        return
    if _others_compute():
        os.environ["OMP_WAIT_POLICY"] = "passive"


def _others_compute(samples: int = 10, seconds: float = 0.005) -> bool:
    """Whether other processes or threads compute: at each of several moments, and for half of a core between them.

    Linux counts both. The moments alone are not enough: threads of the kernel that wake at the same ticks as this
    process are counted, too, although they use no time.
    """
    try:
        before, started = _used_seconds(), time.monotonic()
        for _ in range(samples):
            with open("/proc/loadavg", encoding="ascii") as load:
                runnable = int(load.read().split()[3].split("/")[0])  # this one among them
            if runnable < 2:
                return False
            time.sleep(seconds)
        return _used_seconds() - before > 0.5 * (time.monotonic() - started)
    except (OSError, ValueError, IndexError):
        return False


def _used_seconds() -> float:
    """The seconds that all cores have computed since the machine started."""
    with open("/proc/stat", encoding="ascii") as stat:
        user, nice, system, _, _, interrupts, soft_interrupts, *_ = map(int, stat.readline().split()[1:])
    return (user + nice + system + interrupts + soft_interrupts) / os.sysconf("SC_CLK_TCK")


_choose_wait_policy()

# Imported at first use, so that `import regard` and `regard --help` do not wait for torch.
_MODULES = {
    "regard.recipe": ("Recipe",),
    "regard.maps": ("AttentionMap",),
    "regard.types": ("Prediction",),
    "regard.data.audio": ("Recording",),
    "regard.storage": ("Run",),
    "regard.attention": ("Attended", "attend"),
    "regard.attention.intervene": ("Erase", "Feed", "Force", "Permute", "Silence", "Swap", "Uniform"),
    "regard.attention.record": ("record",),
    "regard.training": ("Callback", "resume", "train"),
    "regard.predict": ("Predictor", "intervene", "load"),
    "regard.analysis.comparison": ("Comparison", "compare"),
    "regard.analysis.sweeping": ("sweep",),
    "regard.analysis.forced": ("force",),
}

__all__ = [
    "Attended",
    "AttentionMap",
    "Callback",
    "Comparison",
    "Erase",
    "Feed",
    "Force",
    "Permute",
    "Prediction",
    "Predictor",
    "Recipe",
    "Recording",
    "Run",
    "Silence",
    "Swap",
    "Uniform",
]
__all__ += ["attend", "compare", "force", "intervene", "load", "record", "resume", "sweep", "train"]


def __getattr__(name: str) -> Any:
    for module, names in _MODULES.items():
        if name in names:
            return getattr(import_module(module), name)
    raise AttributeError(f"module 'regard' has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
