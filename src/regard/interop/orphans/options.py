"""The settings of another toolkit: read with their types, and refused by name if regard cannot express them."""

from collections.abc import Mapping
from pathlib import Path
from types import NoneType
from typing import Any, TypeVar

from regard.errors import DataError, MissingExtraError, shown

LARGEST = 1 << 24  # bytes of a file of settings
LONGEST_NUMBER = 1000  # letters; those of YAML may be sexagesimal, which takes the square of the time
SCALARS = (str, int, float, NoneType)

Kind = TypeVar("Kind", int, str, bool)


class Options:
    """The settings of a model; `path` and `toolkit` are for messages."""

    def __init__(self, path: Path, toolkit: str, values: Any) -> None:
        if not isinstance(values, Mapping):
            raise DataError(f"{path} has no settings of a model of {toolkit}")
        self.path, self.toolkit, self.values = path, toolkit, values

    def get(self, key: str, kind: type[Kind], default: Kind | None = None) -> Kind:
        """A setting of this type; DataError if it has another, or is missing without a default."""
        value = self.values.get(key)
        value = default if value is None else value
        if type(value) is not kind:
            what = "is missing" if value is None else f"is {_told(value)}"
            raise DataError(f"{self.path}: {self.toolkit}'s setting {key} {what}, but regard needs a {kind.__name__}")
        return value

    def section(self, key: str) -> "Options":
        """The settings of a part of the model."""
        return Options(self.path, self.toolkit, self.values.get(key))

    def texts(self, key: str) -> list[str]:
        """A setting that is a list of texts."""
        value = self.values.get(key)
        if not isinstance(value, list) or not all(isinstance(text, str) for text in value):
            raise DataError(f"{self.path}: {self.toolkit}'s setting {key} is no list of texts")
        return value

    def only(self, key: str, *allowed: Any) -> None:
        """Raise DataError if a setting has a value that regard cannot express; the first is the default."""
        value = self.values.get(key, allowed[0])
        if not _is_flat(value) or value not in allowed:
            choices = " or ".join(map(str, allowed))
            raise DataError(
                f"{self.path}: regard has no counterpart of {self.toolkit}'s {key} = {_told(value)}, only {choices}"
            )


def _is_flat(value: Any) -> bool:
    """Whether a setting is a scalar or a list of scalars: comparing nested ones may be endless."""
    return isinstance(value, SCALARS) or (isinstance(value, list) and all(isinstance(part, SCALARS) for part in value))


def _told(value: Any) -> str:
    """A setting for a message: its type if it is no scalar, since a nested one may be endless."""
    return shown(str(value)).strip("'") if isinstance(value, SCALARS) else f"a {type(value).__name__}"


def read_yaml(path: Path, toolkit: str, *, texts: bool = False) -> Any:
    """The content of a YAML file; with `texts`, all values and keys are texts."""
    try:
        if path.stat().st_size > LARGEST:
            raise DataError(f"{path} has more than {LARGEST:,} bytes, so it is not read")
        content = path.read_text("utf-8")
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise DataError(f"{path} cannot be read ({reason}); name the folder of a model of {toolkit}") from error
    return parse_yaml(content, path, toolkit, texts=texts)


def parse_yaml(content: str, path: Path, toolkit: str, *, texts: bool = False) -> Any:
    """The value of a YAML text, in which no tag makes an object.

    Merge keys (<<) are refused: nested ones make a small text as large as its author likes. Numbers are bounded.
    """
    try:
        import yaml
    except ImportError:
        raise MissingExtraError("pyyaml", "hf", f"an import from {toolkit}") from None
    loader: Any = type("Loader", (yaml.SafeLoader,), {"flatten_mapping": lambda loader, node: None})
    for kind in ("int", "float"):
        read = getattr(yaml.SafeLoader, f"construct_yaml_{kind}")
        loader.add_constructor(f"tag:yaml.org,2002:{kind}", lambda own, node, read=read: read(own, _bounded(node)))
    try:
        return yaml.load(content, yaml.BaseLoader if texts else loader)
    except (yaml.YAMLError, ValueError, RecursionError, ArithmeticError, LookupError, AttributeError) as error:
        raise DataError(f"{path} is not valid YAML: {shown(str(error))}") from error


def _bounded(node: Any) -> Any:
    """The node of a number in YAML; ValueError if it is too long."""
    if len(node.value) > LONGEST_NUMBER:
        raise ValueError(f"a number has more than {LONGEST_NUMBER:,} letters")
    return node
