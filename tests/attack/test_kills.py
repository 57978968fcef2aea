"""Runs that are killed or stopped at any instant lose nothing: resumed, they end with the same bits."""

import json
import random
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from common import (
    KINDS,
    LATEST,
    MANIFEST,
    MEDIA_KINDS,
    METRICS,
    RECIPE,
    WHOLE,
    Example,
    commands,
    differences,
    example,
    good_checkpoints,
    plant_foreign_files,
    sample,
    snapshot,
    train_arguments,
    trying,
)

from commands import Result

Count = Callable[[str, object], None]
READING = {"read", "close"}  # operations that change no file
SOME = [*KINDS] if WHOLE else ["recurrent", "subwords", "classifier"]
SOME_KINDS = pytest.mark.parametrize("kind", SOME)
EVERY_SOURCE = pytest.mark.parametrize("kind", [*SOME, *MEDIA_KINDS])
ONE_KIND = pytest.mark.parametrize("kind", KINDS if WHOLE else ["transformer"])
SIGNALS = pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1])
LOOP, VALIDATION = "regard.training.loop", "regard.training.validation"
EAGER, RUN = "regard.training.engine.eager", "regard.storage:Run"


class Attacked:
    """A new or an unfinished run in a folder with files of other people, and its cache; it is trained and resumed."""

    def __init__(self, made: Example, folder: Path, *, new: bool) -> None:
        self.made, self.folder, self.run = made, folder, folder / made.kind
        if new:
            plant_foreign_files(folder)
        else:
            made.copy_unfinished(folder)
        self.foreign = self.others()

    def others(self) -> dict[str, Any]:
        return snapshot(self.folder, without=[self.run, self.folder / LATEST, self.folder / "cache"])

    def train(self, **options: Any) -> Result:
        """Train the run if it is not there yet; otherwise resume it."""
        arguments = (
            ["train", "--resume", self.run] if self.run.exists() else train_arguments(self.made.kind, self.folder)
        )
        environment = {"REGARD_CACHE": str(self.folder / "cache")}
        return commands()(*arguments, environment=environment, watched=str(self.folder), **options)

    def is_finished(self) -> bool:
        return METRICS in json.loads((self.run / MANIFEST).read_bytes())["files"]

    def assert_recovers(self) -> None:
        """There is a good checkpoint; resumed, the run ends with the same bits; nothing else is changed or left."""
        recorded = (self.run / METRICS).read_bytes().count(b"\n") if (self.run / METRICS).exists() else 0
        if recorded > 1:  # the first validation ended with a checkpoint
            assert self.is_finished() or good_checkpoints(self.run), "there is no good checkpoint"
        result = self.train()
        assert result.code == 0, result.error
        self.made.assert_equal(self.run)
        assert self.others() == self.foreign
        assert not list((self.folder / "cache").rglob("*.partial"))
        shutil.rmtree(self.folder)


def assert_killed(result: Result) -> None:
    assert result.code == -signal.SIGKILL, (result.code, result.error)


@SOME_KINDS
@pytest.mark.parametrize("new", [True, False], ids=["new", "resumed"])
def test_killed_at_every_operation_on_a_file(kind: str, new: bool, tmp_path: Path, record_property: Count) -> None:
    """From the first file of the cache to the end of the training; of a write, half is done."""
    made = example(kind)
    operations = Attacked(made, tmp_path / "whole", new=new).train().operations
    numbers = [number for number, (name, _) in enumerate(operations, 1) if name not in READING]
    assert len(numbers) > 30
    with trying(f"kills at an operation on a file, {'new' if new else 'resumed'} run", record_property) as tried:
        for number in sample(numbers, 4):
            with tried(kind, number, operations[number - 1]):
                attacked = Attacked(made, tmp_path / str(number), new=new)
                result = attacked.train(fail={number: "kill"})
                assert_killed(result)
                assert result.operations[-1][0] == operations[number - 1][0]
                if not new:
                    assert attacked.is_finished() or good_checkpoints(attacked.run), "there is no good checkpoint"
                attacked.assert_recovers()


def test_prolonged_and_killed_at_every_operation_on_a_file(tmp_path: Path, record_property: Count) -> None:
    """After the kill it is finished or can be resumed; prolonged again, it has the same bits."""
    made = example("recurrent")

    def prolong(run: Path, **options: Any) -> Result:
        return commands()("train", "--resume", run, "train.updates=9", watched=str(run.parent), **options)

    whole = made.copy_finished(tmp_path / "whole")
    operations = prolong(whole).operations
    numbers = [number for number, (name, _) in enumerate(operations, 1) if name not in READING]
    written = max(number for number, (_, path) in enumerate(operations, 1) if f"/.{RECIPE}." in path)
    early = [number for number in numbers if number < written + 10]  # until the run has its new recipe
    with trying("kills at an operation on a file, prolonged run", record_property) as tried:
        for number in sample(early, 4) + sample(numbers[len(early) :], 1):
            with tried(number, operations[number - 1]):
                run = made.copy_finished(tmp_path / str(number))
                foreign = snapshot(run.parent, without=[run])
                assert_killed(prolong(run, fail={number: "kill"}))
                assert good_checkpoints(run), "there is no good checkpoint"
                if number % 2 or WHOLE:  # by the old recipe or, if it was stored already, by the new one
                    assert commands()("train", "--resume", run).code == 0
                result = prolong(run)
                assert result.code == 0, result.error
                assert not differences(run, whole)
                assert snapshot(run.parent, without=[run]) == foreign


@EVERY_SOURCE
def test_killed_at_a_random_instant(kind: str, tmp_path: Path, record_property: Count) -> None:
    made = example(kind)
    generator = random.Random(f"instants of {kind}")
    with trying("kills at a random instant", record_property) as tried:
        for number in range(120 if WHOLE else 3):
            seconds = generator.uniform(0, 1.02) * made.cpu
            with tried(kind, seconds):
                attacked = Attacked(made, tmp_path / str(number), new=True)
                result = attacked.train(kill_after=[seconds, signal.SIGKILL])
                assert result.code in (0, -signal.SIGKILL), result.error
                attacked.assert_recovers()


@ONE_KIND
def test_killed_again_and_again_after_each_resume(kind: str, tmp_path: Path, record_property: Count) -> None:
    made = example(kind)
    generator = random.Random(f"chain of {kind}")
    with trying("kills at a random instant after a resume", record_property) as tried:
        for number in range(6 if WHOLE else 1):
            attacked = Attacked(made, tmp_path / str(number), new=False)
            seconds = 0.0
            while not attacked.is_finished():
                seconds += generator.uniform(0, 0.12) * made.cpu
                with tried(kind, seconds):
                    result = attacked.train(kill_after=[seconds, signal.SIGKILL])
                    assert result.code in (0, -signal.SIGKILL), result.error
                    assert attacked.is_finished() or good_checkpoints(attacked.run), "there is no good checkpoint"
            attacked.assert_recovers()


PLACES = [
    *((f"{VALIDATION}:evaluate", call) for call in (1, 2, 3)),
    *((f"{EAGER}:learn_once", call) for call in (1, 2, 6)),
    *((f"{RUN}.{name}", call) for name in ("replace", "record", "save") for call in (1, 3)),
    *((f"{RUN}.{name}", 1) for name in ("training", "finish")),
    *((f"{LOOP}:{name}", 1) for name in ("_restore_newest", "fit")),
]
RESUMED = [(place, 1) for place, call in PLACES if call == 1] + [("regard.training.session:Session.restore", 1)]


@ONE_KIND
def test_killed_while_it_validates_saves_finishes_or_resumes(kind: str, tmp_path: Path, record_property: Count) -> None:
    made = example(kind)
    cases = [(True, *place) for place in sample(PLACES, 5)] + [(False, *place) for place in RESUMED]
    with trying("kills in a validation, save, finish or restore", record_property) as tried:
        for number, (new, place, call) in enumerate(cases):
            with tried(kind, "new" if new else "resumed", place, call):
                attacked = Attacked(made, tmp_path / str(number), new=new)
                assert_killed(attacked.train(signals=[[place, call, [signal.SIGKILL]]]))
                if not new:
                    assert set(good_checkpoints(attacked.run)) & {2, 4}
                attacked.assert_recovers()


# ---- signals that stop


@SIGNALS
@pytest.mark.parametrize(("place", "call", "saved"), [(f"{EAGER}:learn_once", 3, 3), (f"{VALIDATION}:evaluate", 2, 4)])
def test_a_signal_saves_and_stops(number: signal.Signals, place: str, call: int, saved: int, tmp_path: Path) -> None:
    attacked = Attacked(example("classifier"), tmp_path / "runs", new=True)
    result = attacked.train(signals=[[place, call, [number]]])
    how = f"go on with: regard train --resume {attacked.run}"
    assert result.code == 128 + number, (result.code, result.error)
    assert result.error.endswith(f"\nregard: stopped by {number.name}; {saved} updates are saved; {how}\n")
    assert result.out == b""
    assert max(good_checkpoints(attacked.run)) == saved
    attacked.assert_recovers()


@SIGNALS
def test_a_signal_at_a_random_instant(number: signal.Signals, tmp_path: Path, record_property: Count) -> None:
    """Before regard listens and after the end of the training, the system answers: the signal ends the process."""
    made = example("classifier")
    generator = random.Random(f"signal {number}")
    with trying("signals at a random instant", record_property) as tried:
        for index in range(60 if WHOLE else 2):
            seconds = generator.uniform(0.02, 1.02) * made.cpu
            with tried(number.name, seconds):
                attacked = Attacked(made, tmp_path / str(index), new=True)
                result = attacked.train(kill_after=[seconds, number])
                assert "Traceback" not in result.error, result.error
                if result.code != 128 + number:
                    assert result.code in (0, -number), (result.code, result.error)
                    assert not attacked.run.exists() or attacked.is_finished()
                attacked.assert_recovers()


@SIGNALS
def test_a_signal_that_was_ignored_on_entry_stays_ignored(number: signal.Signals, tmp_path: Path) -> None:
    """As under nohup, or in the background of a script."""
    made = example("classifier")
    signals = [[f"{EAGER}:learn_once", 3, [number]], [f"{VALIDATION}:evaluate", 2, [number, number]]]
    result = commands()(*train_arguments("classifier", tmp_path), signals=signals, ignored=[number])
    assert result.code == 0, result.error
    assert "stopping" not in result.error
    made.assert_equal(tmp_path / "classifier")
