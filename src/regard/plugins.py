"""Entries that installed packages add to regard's tables, through the entry-point group `regard`.

A package names its entry TABLE.NAME in its pyproject.toml, and a recipe can then name it like one of regard's own:

    [project.entry-points.regard]
    "scores.chebyshev" = "regard_chebyshev:Chebyshev"

The list of entries is read once, when a name is not in regard's own table. Nothing of a package is imported before a
recipe names its entry. docs/extend.md shows a whole package.
"""

import json
import shlex
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from functools import lru_cache
from importlib.metadata import EntryPoint, PackageNotFoundError, entry_points, version
from typing import Any, NamedTuple, TypeVar

from regard.errors import RecipeError, RegardError, UnknownNameError, did_you_mean
from regard.visible import for_stream

GROUP = "regard"
TABLES = ("scores", "normalizers", "scopes", "encoders", "tasks", "sources")  # that packages can add entries to

Entry = TypeVar("Entry")


class Package(NamedTuple):
    """An installed package, or one that a run was trained with."""

    package: str
    version: str

    def __str__(self) -> str:
        return f"{self.package} {self.version}"


class Needs(NamedTuple):
    """The entries, by TABLE.NAME, that a run was trained with and that are not regard's own."""

    run: str
    packages: dict[str, Package]

    @classmethod
    def of(cls, run: str, stored: Mapping[str, Any]) -> "Needs":
        """The value of JSON that `to_json` wrote; TypeError if it is anything else."""
        packages = {key: Package(**package) for key, package in stored.items()}
        if not all(isinstance(text, str) for package in packages.values() for text in package):
            raise TypeError("a package and its version are texts")
        return cls(run, packages)


NO_NEEDS = Needs("", {})


class _Resolved(NamedTuple):
    """Where the names that were picked come from."""

    packages: dict[str, Package]  # by TABLE.NAME
    own: set[str]  # those of regard's own tables


_RESOLVED: ContextVar[_Resolved | None] = ContextVar("_RESOLVED", default=None)  # inside `resolving`


@lru_cache
def installed() -> dict[str, list[EntryPoint]]:
    """All entries of installed packages, by TABLE.NAME; if several packages have one name, each has an entry here."""
    entries: dict[str, list[EntryPoint]] = {}
    for entry in entry_points(group=GROUP):
        entries.setdefault(entry.name, []).append(entry)
    return entries


def added_to(table: str) -> dict[str, list[EntryPoint]]:
    """The entries of installed packages for one table, by name."""
    return {key.partition(".")[2]: entries for key, entries in installed().items() if key.startswith(f"{table}.")}


def misplaced() -> Iterator[str]:
    """A sentence about each installed entry whose table does not exist, or is closed to packages."""
    for key, entries in installed().items():
        table = key.partition(".")[0]
        if table not in TABLES or table == key:
            where = f"an entry is named TABLE.NAME, TABLE one of {', '.join(TABLES)}{did_you_mean(table, TABLES)}"
            yield f"the entry {key!r} of {origin(entries)} is in no table that packages can add to: {where}"


def origin(entries: list[EntryPoint]) -> str:
    """Names and versions of the packages that entries come from."""
    return " and ".join(str(_package(entry)) for entry in entries)


def _package(entry: EntryPoint) -> Package:
    assert entry.dist is not None  # entries that were read from installed packages have one
    return Package(entry.dist.name, entry.dist.version)


def pick(table: Mapping[str, Entry], name: str, what: str, kind: type[Any]) -> Entry:
    """The table's entry of that name, else that of an installed package; or a sentence that lists the names there are.

    What a package adds must be of the `kind`: a subclass of it if the table holds classes, else an instance of it.
    """
    key, resolved = f"{what}s.{name}", _RESOLVED.get()
    if name in table:
        if resolved is not None:
            resolved.own.add(key)
        return table[name]
    added = added_to(f"{what}s")
    if name not in added:
        raise UnknownNameError(what, name, [*table, *added])
    if len(added[name]) > 1:
        packages = origin(added[name])
        raise RegardError(f"the {what} {name!r} is in several installed packages: {packages}; uninstall all but one")
    (entry,) = added[name]
    described = f"the {what} {name!r} of {_package(entry)} ({entry.value})"
    try:
        loaded: Any = entry.load()
    except Exception as error:  # a package's import can raise anything
        raise RegardError(f"{described} cannot be imported: {type(error).__name__}: {error}") from error
    holds_classes = isinstance(next(iter(table.values())), type)
    is_of_kind = issubclass if isinstance(loaded, type) else isinstance
    if isinstance(loaded, type) is not holds_classes or not is_of_kind(loaded, kind):
        wanted = f"{'a subclass' if holds_classes else 'an instance'} of {kind.__module__}.{kind.__qualname__}"
        raise RegardError(f"{described} is not {wanted}")
    if resolved is not None:
        resolved.packages[key] = _package(entry)
    return loaded


@contextmanager
def resolving(needs: Needs) -> Iterator[dict[str, Package]]:
    """Yields a dict that collects, by TABLE.NAME, the packages of the entries that are picked in the block.

    If an entry that the run needs is not installed, the error says how to install it. If it is not the one that the run
    was trained with, a line on stderr says so.
    """
    resolved = _Resolved({}, set())
    token = _RESOLVED.set(resolved)
    try:
        yield resolved.packages
    except UnknownNameError as error:
        needed = needs.packages.get(f"{error.what}s.{error.name}")
        if needed is None:
            raise
        need = f"the run {needs.run} needs the {error.what} {error.name!r} of the package {needed.package!r}"
        raise RecipeError(f"{need} (version {needed.version}); {_how_to_install(needed)}") from None
    finally:
        _RESOLVED.reset(token)
    for key, needed in needs.packages.items():
        present = "regard itself" if key in resolved.own else resolved.packages.get(key, needed)
        if present != needed:
            table, _, name = key.partition(".")
            before = f"the run {needs.run} was trained with the {table.removesuffix('s')} {name!r} of {needed}"
            sys.stderr.write(for_stream(f"regard: {before}; that of {present} is used now", sys.stderr) + "\n")


def _how_to_install(needed: Package) -> str:
    try:
        present = version(needed.package)
    except PackageNotFoundError:
        return f"install it with: pip install {shlex.quote(needed.package)}"
    wanted = shlex.quote(f"{needed.package}=={needed.version}")
    return f"version {present} does not have it; install: pip install {wanted}"


@contextmanager
def loading(needs: Needs) -> Iterator[None]:
    """Like `resolving`, for a block that loads the run itself: an unknown name was known when it was trained."""
    try:
        with resolving(needs):
            yield
    except UnknownNameError as error:
        need = f"the run {needs.run} needs the {error.what} {error.name!r}, which is not in this regard"
        why = "it was added from Python, or is of another version of regard; add it again before the run is loaded"
        package = ", or let an installed package add it (docs/extend.md)" if f"{error.what}s" in TABLES else ""
        raise RecipeError(f"{need}: {why}{package}") from None


def to_json(packages: Mapping[str, Package]) -> bytes:
    """The packages that a run needs, for `Needs.of`."""
    return json.dumps({key: package._asdict() for key, package in packages.items()}, indent=1).encode()
