"""Pictures decoded in worker processes are the same, and a bad one is refused by its name."""

import io
import os
import subprocess
from collections.abc import Iterator

import numpy as np
import pytest
import torch

from regard.data import decoding
from regard.data.decoding import Decoders, Square, workers_for
from regard.errors import DataError
from regard.recipe import Limits

image = pytest.importorskip("PIL.Image")
SQUARE = Square(20, "pad", Limits(picture_pixels=1000))


def jpeg(seed: int, height: int = 30, width: int = 25) -> bytes:
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)
    stream = io.BytesIO()
    image.fromarray(pixels).save(stream, "JPEG")
    return stream.getvalue()


NAMED = [(f"{seed}.jpg", jpeg(seed)) for seed in range(7)]


@pytest.fixture(scope="module")
def workers() -> Iterator[Decoders]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(decoding, "workers_for", lambda expected: 2)
        decoders = Decoders(SQUARE, expected=7)
    with decoders:
        yield decoders


def test_workers_give_the_pictures_in_their_order(workers: Decoders) -> None:
    alone = Decoders(SQUARE, expected=7)
    assert alone.count == 0
    for _ in range(2):
        pairs = zip(workers.decode(NAMED), alone.decode(NAMED), strict=True)
        assert all(torch.equal(*pair) for pair in pairs)
    assert workers.decode([]) == []


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (NAMED[0][1][:300], r"^bad\.jpg is not a whole JPEG picture"),
        (b"a text", r"^bad\.jpg is not a picture"),
        (jpeg(1, 40, 30), r"^bad\.jpg has more than 1,000 pixels; .* or raise data\.limits\.picture_pixels"),
    ],
)
def test_a_bad_picture_is_refused_by_its_name_and_the_others_are_decoded_after_it(
    workers: Decoders, content: bytes, message: str
) -> None:
    with pytest.raises(DataError, match=message):
        workers.decode([*NAMED, ("bad.jpg", content)])
    assert len(workers.decode(NAMED)) == len(NAMED)


def test_a_picture_that_ends_its_process_is_refused_by_its_name() -> None:
    with decoding._Worker(SQUARE) as worker:
        worker.decode(*NAMED[0])
        worker._process.kill()
        worker._process.wait()
        with pytest.raises(DataError, match=r"^1\.jpg has ended the process that decodes it"):
            worker.decode(*NAMED[1])


def test_no_process_is_left_and_one_that_cannot_be_started_is_not_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoding, "workers_for", lambda expected: 3)
    monkeypatch.setattr("sys.executable", "/bin/false")
    started: list[subprocess.Popen[bytes]] = []
    popen = subprocess.Popen

    def start(*arguments: object, **options: object) -> "subprocess.Popen[bytes]":
        started.append(popen(*arguments, **options))  # type: ignore[call-overload]
        return started[-1]

    monkeypatch.setattr(subprocess, "Popen", start)
    with Decoders(SQUARE, expected=7) as decoders:
        assert not started
        assert len(decoders.decode(NAMED)) == 7
        assert len(started) == 3
    assert all(process.poll() is not None for process in started)


@pytest.mark.parametrize(
    ("cores", "expected", "workers"), [(1, 10**6, 0), (2, 10**6, 0), (3, 10**6, 2), (64, 10**6, 16), (64, 100, 0)]
)
def test_workers_are_started_for_many_pictures_on_several_cores(
    cores: int, expected: int, workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(cores)), raising=False)
    assert workers_for(expected) == workers
