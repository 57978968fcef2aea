"""The only part that writes files: writes are atomic, and files are checked when they are read.

`files` holds the single steps, `runs` the run directory with its checkpoints, `cache`, `rows` and `arrays` what is
kept between runs.
"""

from regard.storage.arrays import CachedArrays
from regard.storage.cache import cached, reading_only, write_to_cache
from regard.storage.files import GrowingFile, check_new, check_place, create, make_folder, numbered, write
from regard.storage.rows import CachedRows
from regard.storage.runs import (
    CARD,
    CHECKPOINTS,
    DATA,
    ENVIRONMENT,
    LOCK,
    MANIFEST,
    METRICS,
    MODEL,
    ORIGIN,
    PLUGINS,
    PROLONGED,
    RECIPE,
    Checkpoint,
    Folder,
    FollowedRun,
    Run,
)

__all__ = [
    "CARD",
    "CHECKPOINTS",
    "DATA",
    "ENVIRONMENT",
    "LOCK",
    "MANIFEST",
    "METRICS",
    "MODEL",
    "ORIGIN",
    "PLUGINS",
    "PROLONGED",
    "RECIPE",
    "CachedArrays",
    "CachedRows",
    "Checkpoint",
    "Folder",
    "FollowedRun",
    "GrowingFile",
    "Run",
    "cached",
    "check_new",
    "check_place",
    "create",
    "make_folder",
    "numbered",
    "reading_only",
    "write",
    "write_to_cache",
]
