"""The packages that requirements name, and those that these require: of regard alone, or with some of its extras."""

from collections.abc import Iterable, Iterator
from importlib import metadata

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name


def needed(name: str, extras: tuple[str, ...] = ("",)) -> Iterator[str]:
    """The names of all packages that an installed package requires, directly or through others."""
    try:
        yield from named(metadata.requires(name) or [], extras)
    except metadata.PackageNotFoundError:  # for example of an extra that is not installed
        return


def named(requirements: Iterable[str], extras: tuple[str, ...] = ("",)) -> Iterator[str]:
    """The names of the packages of requirements, and all that these require."""
    for requirement in map(Requirement, requirements):
        if any(requirement.marker is None or requirement.marker.evaluate({"extra": extra}) for extra in extras):
            yield canonicalize_name(requirement.name)
            yield from needed(requirement.name, tuple(requirement.extras) or ("",))
