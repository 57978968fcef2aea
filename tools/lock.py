"""Write the hashes of the constraints files anew: `make lock`, after a version was changed or a package added.

Each pin NAME==VERSION gets the SHA-256 of every file of that version that Python 3.11 or 3.12 may install on Linux or
macOS: of all that pip's indexes list, also of other builds of the version (such as 2.13.0+cpu), and of those in the
folders that pip looks into (find-links). Hashes of files that no index lists stay: another machine may have that build.
"""

import hashlib
import re
import sys
from pathlib import Path
from typing import NamedTuple
from urllib.error import URLError
from urllib.parse import unquote
from urllib.request import urlopen

from pip._internal.commands import create_command  # knows pip's settings from its files, environment and defaults
from pip._vendor.packaging.tags import Tag
from pip._vendor.packaging.utils import canonicalize_name, parse_sdist_filename, parse_wheel_filename
from pip._vendor.packaging.version import Version

ROOT = Path(__file__).parents[1]
FILES = [ROOT / f"constraints{part}.txt" for part in ("-build", "-torch", "")]  # of .venv
AUDIT = ROOT / "constraints-audit.txt"  # of the environment of `make audit`
PIN = re.compile(r"(?P<name>[\w.-]+)==(?P<version>[\w.+!-]+)")
HASH = re.compile(r"--hash=sha256:([0-9a-f]{64})")
LINK = re.compile(r'/([^/"#]+)#sha256=([0-9a-f]{64})"')  # of a page of the index: file name and hash
PYTHONS = ("cp311", "cp312")
PLATFORMS = re.compile(r"any|(manylinux|macosx)\w*_(x86_64|aarch64|arm64|universal2)")


class Pin(NamedTuple):
    """A package of exactly one version, and the hashes of its files."""

    name: str
    version: str
    hashes: frozenset[str]

    def __str__(self) -> str:
        hashes = [f"--hash=sha256:{sha}" for sha in sorted(self.hashes)]
        return " \\\n    ".join([f"{self.name}=={self.version}", *hashes])


def main() -> None:
    options, _ = create_command("download").parse_args([])
    indexes = [options.index_url, *options.extra_index_urls]
    for path in [*FILES, AUDIT]:
        text = path.read_text("utf-8")
        head = [line for line in text.splitlines() if line.startswith("#")]
        completed = [with_hashes(pin, indexes, options.find_links) for pin in pins(text)]
        path.write_text("\n".join([*head, *map(str, completed)]) + "\n", "utf-8")


def pins(text: str) -> list[Pin]:
    """The pins of a constraints file, sorted by name."""
    logical = re.sub(r"\\\n", " ", re.sub(r"^#.*\n", "", text, flags=re.MULTILINE)).splitlines()
    found = [Pin(*PIN.match(line).groups(), frozenset(HASH.findall(line))) for line in logical if line.strip()]
    return sorted(found, key=lambda pin: pin.name.lower())


def with_hashes(pin: Pin, indexes: list[str], folders: list[str]) -> Pin:
    """The pin with the hashes of all its files; the program ends if no index lists one."""
    links = [link for index in indexes for link in LINK.findall(page(index, pin.name))]
    listed = {sha for file, sha in links if fits(unquote(file), pin)}
    if not listed:
        sys.exit(f"no index lists a file of {pin.name}=={pin.version} for Python 3.11 or 3.12 on Linux or macOS")
    local = [path for folder in folders for path in Path(folder).glob("*.whl") if fits(path.name, pin)]
    unlisted = pin.hashes - {sha for _, sha in links}  # without those of the version before
    return pin._replace(hashes=unlisted | listed | {hashlib.sha256(path.read_bytes()).hexdigest() for path in local})


def page(index: str, name: str) -> str:
    """The page of an index about a package; empty if it has none."""
    try:
        with urlopen(f"{index.rstrip('/')}/{canonicalize_name(name)}/") as answer:
            return answer.read().decode()
    except URLError:
        return ""


def fits(file: str, pin: Pin) -> bool:
    """Whether a file is of the pinned version, as a source archive or as a wheel for one of our machines."""
    try:
        if file.endswith(".whl"):
            name, version, _, tags = parse_wheel_filename(file)
        else:
            (name, version), tags = parse_sdist_filename(file), {Tag("py3", "none", "any")}
    except ValueError:  # old names, of versions that nobody pins, and other formats
        return False
    same = name == canonicalize_name(pin.name) and Version(version.public) == Version(pin.version)
    return same and any(map(is_ours, tags))


def is_ours(tag: Tag) -> bool:
    """Whether Python 3.11 or 3.12 on Linux or macOS may install a wheel with this tag."""
    older = re.fullmatch(r"(?:cp|py)3(\d*)", tag.interpreter)
    is_stable = tag.abi in ("none", "abi3") and older is not None and int(older[1] or 0) <= 12
    return (tag.interpreter in PYTHONS or is_stable) and PLATFORMS.fullmatch(tag.platform) is not None


if __name__ == "__main__":
    main()
