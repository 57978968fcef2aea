"""The tools of the repository: the constraints files pin all that make installs, with hashes; what an audit reports."""

import importlib.util
import io
import re
from pathlib import Path
from subprocess import CompletedProcess
from types import ModuleType

import pytest
from packaging.utils import canonicalize_name

from requirements import needed

ROOT = Path(__file__).parents[1]
EXTRAS = ("corpora", "plot", "papers", "vision", "audio", "dev")  # that make installs
CUDA = re.compile(
    r"cuda-|nvidia-|triton$"
)  # needed by torch's CUDA builds alone; constraints.txt says why they have no pin


def tool(name: str) -> ModuleType:
    specification = importlib.util.spec_from_file_location(name, ROOT / "tools" / f"{name}.py")
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


lock, audit = tool("lock"), tool("audit")


def test_every_package_that_make_installs_is_pinned_with_hashes() -> None:
    pins = [pin for path in lock.FILES for pin in lock.pins(path.read_text("utf-8"))]
    names = [canonicalize_name(pin.name) for pin in pins]
    assert len(set(names)) == len(names)
    assert all(pin.hashes for pin in pins)
    assert {name for name in needed("regard", ("", *EXTRAS)) if not CUDA.match(name)} - set(names) == set()
    assert {"hatchling", *needed("hatchling")} - set(names) == set()


def test_make_installs_only_files_with_known_hashes() -> None:
    makefile = (ROOT / "Makefile").read_text("utf-8")
    for path in lock.FILES:
        assert re.search(rf"\(PIP\) --no-deps --require-hashes .*-r {path.name} ", makefile)


def test_pip_audit_is_installed_from_files_with_known_hashes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pins = lock.pins(lock.AUDIT.read_text("utf-8"))
    assert {"pip-audit", "requests", "cachecontrol"} <= {canonicalize_name(pin.name) for pin in pins}
    assert all(pin.hashes for pin in pins)
    commands: list[list[object]] = []
    monkeypatch.setattr(audit.venv, "create", lambda *arguments, **options: None)
    monkeypatch.setattr(audit.subprocess, "run", lambda command: commands.append(command) or CompletedProcess([], 1))
    monkeypatch.setattr("sys.argv", ["audit.py", str(tmp_path)])
    with pytest.raises(SystemExit, match="nothing was audited"):
        audit.main()
    [[_, *command]] = commands
    assert {"--no-deps", "--require-hashes", "-r", lock.AUDIT} <= set(command)


def test_pins_are_read_as_they_are_written() -> None:
    pins = [lock.Pin("Babel", "2.18.0", frozenset({"a" * 64, "0" * 64})), lock.Pin("torch", "2.13.0", frozenset())]
    text = "# a comment\n" + "\n".join(map(str, reversed(pins))) + "\n"
    assert f"Babel==2.18.0 \\\n    --hash=sha256:{'0' * 64} \\\n    --hash=sha256:{'a' * 64}\n" in text
    assert lock.pins(text) == pins


@pytest.mark.parametrize(
    ("file", "is_listed"),
    [
        ("a_b-1.0-py3-none-any.whl", True),
        ("a_b-1.0-py2.py3-none-any.whl", True),
        ("a_b-1.0-cp311-cp311-manylinux_2_28_x86_64.whl", True),
        ("a_b-1.0-cp312-cp312-manylinux_2_17_aarch64.manylinux2014_aarch64.whl", True),
        ("a_b-1.0-cp311-cp311-macosx_11_0_arm64.whl", True),
        ("a_b-1.0-cp38-abi3-manylinux_2_28_x86_64.whl", True),
        ("a_b-1.0+cpu-cp311-cp311-manylinux_2_28_x86_64.whl", True),
        ("a_b-1.0.tar.gz", True),
        ("a_b-1.0.1.tar.gz", False),
        ("other-1.0-py3-none-any.whl", False),
        ("a_b-1.0-cp313-cp313-manylinux_2_28_x86_64.whl", False),
        ("a_b-1.0-cp313-abi3-manylinux_2_28_x86_64.whl", False),
        ("a_b-1.0-pp311-pypy311_pp73-manylinux_2_28_x86_64.whl", False),
        ("a_b-1.0-cp311-cp311-win_amd64.whl", False),
        ("a_b-1.0-cp311-cp311-musllinux_1_2_x86_64.whl", False),
        ("a_b-1.0.dev3460.win32-py2.4.exe", False),
    ],
)
def test_the_hashes_are_those_of_files_that_our_machines_install(
    file: str, is_listed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    older = f'<a href="../a_b-0.9.zip#sha256={"c" * 64}">'
    page = f'<a href="https://files/{file}#sha256={"a" * 64}"> <a href="../a_b-1.0.zip#sha256={"b" * 64}">{older}'
    asked: list[str] = []
    monkeypatch.setattr(lock, "urlopen", lambda url: asked.append(url) or io.BytesIO(page.encode()))
    known = frozenset({"0" * 64, "c" * 64})
    pin = lock.with_hashes(lock.Pin("A.b", "1.0", known), ["https://index/simple"], [])
    assert asked == ["https://index/simple/a-b/"]
    assert pin.hashes == {"0" * 64, "b" * 64} | ({"a" * 64} if is_listed else set())


def test_a_version_that_the_index_does_not_have_ends_the_program(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lock, "urlopen", lambda url: io.BytesIO(b""))
    with pytest.raises(SystemExit, match=r"no index lists a file of a==1\.0 for"):
        lock.with_hashes(lock.Pin("a", "1.0", frozenset()), ["https://index/simple"], [])


def test_an_audit_reports_vulnerabilities_and_what_was_not_audited(capsys: pytest.CaptureFixture[str]) -> None:
    clean = {"name": "a", "version": "1.0", "vulns": []}
    skipped = {"name": "b", "skip_reason": "not found"}
    advisory = {"id": "PYSEC-1", "fix_versions": ["2.1", "3.0"]}
    vulnerable = {"name": "c", "version": "2.0", "vulns": [advisory]}
    assert audit.report([clean]) == 0
    assert capsys.readouterr().out == "1 of 1 packages audited, 0 with vulnerabilities\n"
    assert audit.report([skipped, skipped]) == 2
    nothing = (
        "nothing was audited: the advisory service gave no answer for any of the 2 packages; make audit needs the "
    )
    assert capsys.readouterr().out == nothing + "internet\n"
    assert audit.report([clean, skipped]) == 2
    assert "not audited, because the advisory service gave no answer for them: b" in capsys.readouterr().out
    assert audit.report([clean, skipped, vulnerable]) == 1
    assert "c 2.0: PYSEC-1, fixed in 2.1, 3.0\n2 of 3 packages" in capsys.readouterr().out
