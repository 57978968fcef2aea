"""Processes that encode, decode or learn sub-words run no module of the working directory."""

import io
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from regard.console import ProgressLog
from regard.data import decoding, encoding, workers
from regard.data.decoding import Decoders, Square
from regard.data.encoding import Encoders
from regard.data.tokenizers import SUBPROCESS_FROM, SentencePiece
from regard.recipe import Limits

SHADOWED = ("queue", "json", "struct")  # modules of Python that these processes import


def encode() -> bool:
    with Encoders(expected=5) as encoders:
        return encoders._pool is not None


def decode() -> bool:
    with decoding._Worker(Square(20, "pad", Limits())) as worker:
        return worker._read(1) == decoding.READY


def learn() -> bool:
    return SentencePiece.build(["abc de " * 100] * (SUBPROCESS_FROM // 500), 50).size > 10


@pytest.mark.parametrize("start", [encode, decode, learn])
def test_no_module_of_the_working_directory_is_run(
    start: Callable[[], bool], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(encoding, "cores", lambda: 2)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend("")  # as in an interactive Python
    canary = tmp_path / "canary"
    for name in SHADOWED:
        (tmp_path / f"{name}.py").write_text(f"open({str(canary)!r}, 'w')\nraise SystemExit\n")
    assert start()
    assert not canary.exists()
    command = workers.python("-c", "import queue")
    subprocess.run([part for part in command if part != "-P"], check=True)
    assert canary.exists()  # without -P it is run


def test_a_message_says_that_no_process_has_started(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    image = pytest.importorskip("PIL.Image")
    monkeypatch.setattr(encoding, "cores", lambda: 2)
    monkeypatch.setattr(decoding, "workers_for", lambda expected: 2)
    monkeypatch.setattr("sys.executable", "/bin/false")
    image.new("RGB", (3, 5)).save(stream := io.BytesIO(), "PNG")
    with ProgressLog():
        with Encoders(expected=5) as encoders:
            assert encoders._pool is None
        with Decoders(Square(20, "pad", Limits()), expected=5) as decoders:
            for _ in range(2):
                decoders.decode([("dot.png", stream.getvalue())])
    errors = capfd.readouterr().err
    assert errors.count("the processes that encode texts did not start; this one encodes them alone") == 1
    assert errors.count("processes that decode pictures did not start; this one decodes for them") == 1
