"""The Dockerfile, without docker: its copies, pip's command on a folder of wheels alone, and the command it starts."""

import json
import os
import shlex
import shutil
import sys
import zipfile
from importlib import metadata
from pathlib import Path

from packaging.utils import canonicalize_name

from regard import __version__
from requirements import named
from wheels import ROOT, install, start

EXTRAS = ("serve", "vision", "audio")
RUN = ROOT / "tests/golden/runs/translate_luong/finished"


def instructions() -> list[tuple[str, str]]:
    """The name and the content of each instruction."""
    lines = (ROOT / "Dockerfile").read_text("utf-8").splitlines()
    return [(name, content) for name, _, content in (line.partition(" ") for line in lines if line[:1].isupper())]


def write_wheel(name: str, folder: Path) -> None:
    """A wheel with the metadata of an installed package and none of its files."""
    installed = metadata.distribution(name)
    stem = f"{name.replace('-', '_')}-{installed.version}"
    with zipfile.ZipFile(folder / f"{stem}-py3-none-any.whl", "w") as wheel:
        wheel.writestr(f"{stem}.dist-info/METADATA", installed.read_text("METADATA") or "")
        wheel.writestr(f"{stem}.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{stem}.dist-info/RECORD", "")


def test_only_the_folder_of_wheels_is_copied_and_the_server_is_not_run_by_root() -> None:
    names, contents = zip(*instructions(), strict=True)
    assert names == ("FROM", "COPY", "RUN", "RUN", "USER", "EXPOSE", "HEALTHCHECK", "ENTRYPOINT")
    assert contents[names.index("COPY")] == "wheels /wheels"
    assert contents[names.index("USER")] == "regard"
    assert (ROOT / ".dockerignore").read_text("utf-8").split() == ["*", "!wheels"]
    assert f"python -m pip wheel '.[{','.join(EXTRAS)}]' -w wheels" in (ROOT / "docs/serve.md").read_text("utf-8")


def test_pip_finds_regard_and_all_that_it_needs_in_the_folder_of_wheels(
    built: tuple[Path, Path], tmp_path: Path
) -> None:
    """The command of the Dockerfile, dry, on our wheel and wheels without files of all packages that it requires."""
    folder, report = tmp_path / "wheels", tmp_path / "report.json"
    with zipfile.ZipFile(built[1]) as wheel:
        wheel.extractall(tmp_path)
    own = metadata.Distribution.at(tmp_path / f"regard-{__version__}.dist-info")
    required = set(named(own.requires or [], ("", *EXTRAS)))
    assert {"fastapi", "pillow", "soundfile", "torch"} <= required
    folder.mkdir()
    shutil.copy(built[1], folder)
    for name in required:
        write_wheel(name, folder)
    (line,) = [content for name, content in instructions() if name == "RUN" and "pip" in content]
    command, _, cleanup = line.partition(" && ")
    assert cleanup == "rm -rf /wheels"
    pip, *arguments = shlex.split(command.replace("/wheels", str(folder)))
    assert pip == "pip"
    assert "--no-index" in arguments
    dry = ("--dry-run", "--ignore-installed", "--report", report, "--isolated")
    no_settings = {"PIP_CONFIG_FILE": os.devnull}  # they may name other folders of wheels
    done = start(sys.executable, "-m", pip, *arguments, *dry, folder=tmp_path, **no_settings)
    assert done.code == 0, done.error
    assert "does not provide the extra" not in done.error
    found = {canonicalize_name(one["metadata"]["name"]) for one in json.loads(report.read_text())["install"]}
    assert found == {"regard", *required}


def test_the_command_of_the_container_needs_a_token(built: tuple[Path, Path], tmp_path: Path) -> None:
    """It listens for other machines; with the packages that the container has, it goes as far as to say so."""
    program = install(built[1], tmp_path / "environment", *EXTRAS)
    name, entry = instructions()[-1]
    assert name == "ENTRYPOINT"
    first, *arguments = json.loads(entry)
    assert first == "regard"
    ended = start(program, *arguments, RUN, folder=tmp_path, timeout=60)
    assert ended.code == 2, ended.error
    assert "0.0.0.0 can be reached from other machines, so a token is needed" in ended.error
