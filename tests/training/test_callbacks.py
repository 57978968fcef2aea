"""Callbacks: what they are told and when, that they change no bit, and that their errors leave a run resumable."""

import errno
import json
import os
import re
import sys
import threading
import time
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch

import regard
from regard import console, storage
from regard import recipe as recipes
from regard.errors import CallbackError, CorruptError, MissingExtraError, RecipeError, RegardError, StorageError
from regard.recipe import Recipe, Train
from regard.storage import MODEL, Run
from regard.training import Callback
from regard.training.callbacks import Ended, Started, Updated, Validated
from regard.training.session import Clock, Progress
from regard.training.writers import TensorBoard

UPDATES, VALIDATE = 5, 2
VALIDATIONS = [2, 4, 5]
WALL_CLOCK = {"tokens_per_second", "seconds", "train_seconds"}


PAIRS = ["abc", "cab", "bca", "ab", "ba", "cc", "acb", "bb", "cba", "aa", "bac", "ca"]


@pytest.fixture(scope="module", autouse=True)
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A few pairs, in the folder where `tiny` looks for them."""
    folder = tmp_path_factory.mktemp("pairs")
    (folder / "pairs.tsv").write_text("".join(f"{word}\t{word[::-1]}\n" for word in PAIRS), encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("REGARD_DATA", str(folder))
        yield


def tiny(*overrides: str) -> Recipe:
    """A recipe that takes a moment, with dropout, which draws random numbers."""
    sizes = ["model.embedding=8", "model.encoder.dim=12", "model.decoder.dim=10", "model.attention.dim=6"]
    data = ["name=tiny", "data.train=pairs.tsv", "data.dev=pairs.tsv", "train.device=cpu", "train.batch_tokens=20"]
    settings = [f"train.updates={UPDATES}", f"train.validate={VALIDATE}", "model.encoder.dropout=0.2"]
    return recipes.parse("", "tiny", [*sizes, *data, *settings, "search.max_ratio=0", "search.max_extra=3", *overrides])


class Recorder(Callback):
    """Keeps all events."""

    def __init__(self) -> None:
        self.events: list[Any] = []

    def on_start(self, event: Started) -> None:
        self.events.append(event)

    def on_update(self, event: Updated) -> None:
        self.events.append(event)

    def on_validation(self, event: Validated) -> None:
        self.events.append(event)

    def on_end(self, event: Ended) -> None:
        self.events.append(event)

    def of(self, kind: type) -> list[Any]:
        return [event for event in self.events if isinstance(event, kind)]


class Drawing(Callback):
    """Draws random numbers whenever it is called, as one that looks at something of its own may."""

    def on_start(self, event: Started) -> None:
        torch.rand(3)

    on_update = on_validation = on_end = on_start


def entries(run: Run) -> list[dict[str, Any]]:
    return [{key: value for key, value in entry.items() if key not in WALL_CLOCK} for entry in run.metrics()]


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run without callbacks."""
    return regard.train(tiny(), runs=tmp_path_factory.mktemp("plain"), quiet=True)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> tuple[Run, Recorder]:
    """The same run, with callbacks."""
    recorder = Recorder()
    runs = tmp_path_factory.mktemp("recorded")
    return regard.train(tiny(), runs=runs, quiet=True, callbacks=[Drawing(), recorder]), recorder


def test_callbacks_change_no_bit_of_a_run(plain: Run, recorded: tuple[Run, Recorder]) -> None:
    run, _ = recorded
    assert run.read(storage.MODEL) == plain.read(storage.MODEL)
    assert entries(run) == entries(plain)


def test_events_come_in_order_and_say_what_metrics_say(recorded: tuple[Run, Recorder]) -> None:
    run, recorder = recorded
    names = {Started: "start", Updated: "update", Validated: "validation", Ended: "end"}
    order = [names[type(event)] for event in recorder.events]
    updates = ["update", "update", "validation"]
    assert order == ["start", *updates, *updates, "update", "validation", "end"]
    assert [event.update for event in recorder.of(Updated)] == [1, 2, 3, 4, 5]
    assert {event.updates for event in recorder.events[:-1]} == {UPDATES}
    *validations, last = run.metrics()
    assert [event.entry() for event in recorder.of(Validated)] == validations
    assert [event.update for event in recorder.of(Validated)] == VALIDATIONS
    (started,), (ended,) = recorder.of(Started), recorder.of(Ended)
    assert (started.update, started.device, started.run.path) == (0, "cpu", run.path)
    assert ended.finished
    assert ended.entry() == last
    assert (ended.value, ended.metric) == (last["exact_match"], "exact_match")


def test_the_norm_of_the_gradient_is_the_mean_since_the_last_validation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, plain: Run
) -> None:
    norms, real = [], torch.nn.utils.clip_grad_norm_

    def clip(*arguments: Any) -> torch.Tensor:
        norms.append(real(*arguments))
        return norms[-1]

    monkeypatch.setattr(torch.nn.utils, "clip_grad_norm_", clip)
    recorder = Recorder()
    run = regard.train(tiny(), runs=tmp_path, quiet=True, callbacks=[recorder])
    first, second, third, fourth, fifth = (norm.item() for norm in norms)
    means = [(first + second) / 2, (third + fourth) / 2, fifth]
    assert [entry["gradient_norm"] for entry in run.metrics()[:-1]] == pytest.approx(means)
    assert [event.gradient_norm for event in recorder.of(Updated)][:3] == pytest.approx([first, means[0], third])
    assert entries(run) == entries(plain)


class Failing(Callback):
    """Fails at a method's n-th call."""

    def __init__(self, method: str, number: int) -> None:
        self.calls = 0
        self.method, self.number = method, number

    def _called(self, method: str) -> None:
        self.calls += method == self.method
        if method == self.method and self.calls == self.number:
            raise ValueError("no such luck")

    def on_start(self, event: Started) -> None:
        self._called("on_start")

    def on_update(self, event: Updated) -> None:
        self._called("on_update")

    def on_validation(self, event: Validated) -> None:
        self._called("on_validation")

    def on_end(self, event: Ended) -> None:
        self._called("on_end")


@pytest.mark.parametrize(
    ("method", "number", "update", "saved"),
    [("on_start", 1, 0, 0), ("on_update", 1, 1, 1), ("on_update", 4, 4, 4), ("on_validation", 2, 4, 4)],
)
def test_an_error_in_a_callback_names_it_and_the_run_can_be_resumed(
    tmp_path: Path, plain: Run, method: str, number: int, update: int, saved: int
) -> None:
    recorder = Recorder()
    with pytest.raises(CallbackError) as caught:
        regard.train(tiny(), runs=tmp_path, quiet=True, callbacks=[Failing(method, number), recorder])
    path = tmp_path / "tiny"
    what = f"the callback Failing.{method} failed at update {update} (ValueError: no such luck)"
    assert str(caught.value) == f"{what}; {saved} updates are saved; go on with: regard train --resume {path}"
    assert isinstance(caught.value.__cause__, ValueError)
    ended = recorder.events[-1]
    assert (ended.finished, ended.update, ended.value) == (False, update, None)
    run = regard.resume(path, quiet=True)
    assert run.read(storage.MODEL) == plain.read(storage.MODEL)
    assert entries(run) == entries(plain)


def test_an_error_at_the_end_leaves_a_finished_run(tmp_path: Path, plain: Run) -> None:
    with pytest.raises(
        CallbackError, match=r"Failing\.on_end failed at update 5 .*; the run is finished all the same$"
    ):
        regard.train(tiny(), runs=tmp_path, quiet=True, callbacks=[Failing("on_end", 1)])
    run = Run.open(tmp_path / "tiny")
    assert run.finished()
    assert entries(run) == entries(plain)


def test_a_resumed_run_starts_at_its_update(tmp_path: Path) -> None:
    with pytest.raises(CallbackError):
        regard.train(tiny(), runs=tmp_path, quiet=True, callbacks=[Failing("on_update", 3)])
    recorder = Recorder()
    regard.resume(tmp_path / "tiny", quiet=True, callbacks=[recorder])
    assert recorder.of(Started)[0].update == 3
    assert [event.update for event in recorder.of(Updated)] == [4, 5]


class Slow(Callback):
    """Makes each update take a while."""

    def on_update(self, event: Updated) -> None:
        time.sleep(0.1)


def test_the_seconds_of_a_resumed_run_are_those_of_all_its_parts(tmp_path: Path) -> None:
    with pytest.raises(CallbackError):
        regard.train(tiny(), runs=tmp_path, quiet=True, callbacks=[Slow(), Failing("on_update", 3)])
    recorder = Recorder()
    run = regard.resume(tmp_path / "tiny", quiet=True, callbacks=[recorder])
    seconds = [event.seconds for event in recorder.of(Updated) + recorder.of(Ended)]
    assert seconds == sorted(seconds)
    assert seconds[0] > 0.3
    times = [entry["seconds"] for entry in run.metrics() if "seconds" in entry]
    assert times == sorted(times)
    assert times[-1] > 0.3


def test_the_speed_of_a_resumed_run_is_that_of_all_its_parts(tmp_path: Path) -> None:
    """Tokens before a stop between two validations count with the time that they took."""
    with pytest.raises(CallbackError):
        regard.train(
            tiny("train.validate=5"), runs=tmp_path, quiet=True, callbacks=[Slow(), Failing("on_update", UPDATES - 1)]
        )
    stopped = Progress.of(Run.open(tmp_path / "tiny").own_checkpoints()[0], tiny().train)
    assert stopped.interval > 0.1 * (UPDATES - 1)
    recorder = Recorder()
    run = regard.resume(tmp_path / "tiny", quiet=True, callbacks=[recorder])
    [updated], [validated] = recorder.of(Updated), recorder.of(Validated)
    tokens = 2 * stopped.tokens  # one more update has fewer than all before it
    assert updated.tokens_per_second < tokens / stopped.interval
    assert validated.tokens_per_second < tokens / stopped.interval
    assert run.metrics()[0]["tokens_per_second"] == validated.tokens_per_second


def test_a_validation_ends_the_time_that_speed_is_measured_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.perf_counter", lambda: 7.0)
    clock = Clock(interval=5.0, interval_before=3.0)
    assert clock.rate(100) == 20.0
    clock.start_interval()
    assert clock.interval_seconds() == 0.0


def test_without_a_terminal_the_lines_about_updates_have_the_time_so_far(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("SECONDS_OF_A_LINE", "SECONDS_OF_A_WORK"):
        monkeypatch.setattr(console, name, 0.0)
    regard.train(tiny(), runs=tmp_path)
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("learning: ")]
    assert len(lines) == 5
    assert all(re.search(r"tokens/s, \d+(\.\d)? s so far$", line) for line in lines)


@pytest.mark.parametrize("wrong", [Recorder, print, "tensorboard"])
def test_what_is_no_callback_is_refused(tmp_path: Path, wrong: Any) -> None:
    with pytest.raises(RecipeError, match=r"^callbacks is a list of objects whose class .* such as \[Mine\(\)\]"):
        regard.train(tiny(), runs=tmp_path / "runs", quiet=True, callbacks=[wrong])
    assert not (tmp_path / "runs").exists()


def counters(**stored: float) -> Progress:
    """The counters of a checkpoint that holds these."""
    content = json.dumps({"update": 3, "validated": 2, "lowest": 1.0, "waited": 0, "total": 4.0, "tokens": 5} | stored)
    checkpoint: Any = types.SimpleNamespace(path=Path("checkpoint"), update=3, read=lambda _: content.encode())
    return Progress.of(checkpoint, Train())


def test_a_checkpoint_of_an_older_version_has_no_gradient_norms() -> None:
    assert counters(metrics_size=9).mean_norm() is None
    assert counters(metrics_size=9, norms=1.5, normed=1).mean_norm() == 1.5
    with pytest.raises(CorruptError, match="normed is None"):
        counters(metrics_size=9, norms=1.5)


def test_a_checkpoint_of_an_older_version_has_an_estimated_time_since_the_last_validation() -> None:
    assert counters(metrics_size=9, seconds=6.0).interval == 2.0  # one of three updates
    assert counters(metrics_size=9, seconds=6.0, interval=0.5).interval == 0.5
    with pytest.raises(CorruptError, match=r"interval is -1\.0"):
        counters(metrics_size=9, interval=-1.0)


# TensorBoard


class Writer:
    """Stands in for TensorBoard's `SummaryWriter`, which needs a package that the tests do not install."""

    made: ClassVar[list["Writer"]] = []

    failing: ClassVar[str] = ""  # the method that fails

    def __init__(self, folder: str, purge_step: int) -> None:
        self.folder, self.purge_step = folder, purge_step
        self.calls: list[tuple[Any, ...]] = []
        self._fail("__init__")
        Writer.made.append(self)

    def _fail(self, method: str) -> None:
        if self.failing == method:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def add_scalar(self, name: str, value: float, update: int) -> None:
        self._fail("add_scalar")
        self.calls.append((name, value, update))

    def add_text(self, name: str, text: str, update: int) -> None:
        self._fail("add_text")
        self.calls.append((name, text, update))

    def flush(self) -> None:
        self._fail("flush")
        self.calls.append(("flush",))

    def close(self) -> None:
        self._fail("close")
        self.calls.append(("close",))


@pytest.fixture
def stub(monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[Writer]]:
    module = types.ModuleType("torch.utils.tensorboard")
    module.SummaryWriter = Writer  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", module)
    monkeypatch.setattr(Writer, "made", [])
    return lambda: Writer.made


def test_tensorboard_gets_the_curves(tmp_path: Path, stub: Callable[[], list[Writer]], plain: Run) -> None:
    recipe = tiny("train.updates=10", "train.validate=10")
    run = regard.train(recipe, runs=tmp_path, quiet=True, callbacks=[TensorBoard(tmp_path / "board")])
    (writer,) = stub()
    assert (writer.folder, writer.purge_step) == (str(tmp_path / "board/tiny"), 1)
    names = [name for name, *_ in writer.calls]
    assert names[:4] == ["recipe", "train/loss", "train/gradient_norm", "train/learning_rate"]
    assert {"validation/dev_loss", "validation/gradient_norm", "flush"} < set(names)
    value = run.metrics()[-1]["exact_match"]
    assert writer.calls[-2:] == [("dev/exact_match", value, 10), ("close",)]


def test_tensorboard_closes_its_file_if_training_fails(tmp_path: Path, stub: Callable[[], list[Writer]]) -> None:
    board = TensorBoard(tmp_path / "board")
    with pytest.raises(CallbackError):
        regard.train(tiny(), runs=tmp_path, quiet=True, callbacks=[board, Failing("on_update", 3)])
    regard.resume(tmp_path / "tiny", quiet=True, callbacks=[TensorBoard(tmp_path / "board")])
    first, second = stub()
    assert first.calls[-1] == second.calls[-1] == ("close",)
    assert second.purge_step == 4  # points after the checkpoint are hidden


def test_the_place_of_tensorboard_is_a_folder_and_in_no_run(
    tmp_path: Path, stub: Callable[[], list[Writer]], plain: Run
) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StorageError, match=r"file' is not a folder; name one for the files of TensorBoard"):
        TensorBoard(tmp_path / "file")
    (tmp_path / "link").symlink_to(plain.path)
    for folder in (plain.path, plain.path / "board", tmp_path / "link", plain.path / "checkpoints"):
        with pytest.raises(StorageError, match=r"would be in the run .*tiny', .*; name another folder, such as boards"):
            TensorBoard(folder)
    with pytest.raises(StorageError, match=r"is the folder of the runs; name another for TensorBoard, such as boards"):
        TensorBoard(tmp_path).check_runs(tmp_path / "x" / "..")
    TensorBoard(tmp_path).check_runs(tmp_path / "runs")
    with pytest.raises(CallbackError, match=r"would be in the run"):  # from Python, it is noticed when the run is there
        regard.train(tiny(), runs=tmp_path, quiet=True, callbacks=[TensorBoard(tmp_path)])
    assert stub() == []


@pytest.mark.parametrize("method", ["__init__", "add_text", "add_scalar", "flush", "close"])
def test_a_folder_of_tensorboard_that_cannot_be_written_leaves_the_run_resumable(
    tmp_path: Path, stub: Callable[[], list[Writer]], plain: Run, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(Writer, "failing", method)
        reason = r"board/tiny cannot be written \(No space left on device\); name another folder"
        with pytest.raises(CallbackError, match=rf"the callback TensorBoard\.on_\w+ failed .*{reason}") as caught:
            regard.train(tiny(), runs=tmp_path, quiet=True, callbacks=[TensorBoard(tmp_path / "board")])
    assert caught.value.exit_code == 4
    run = regard.resume(tmp_path / "tiny", quiet=True)
    assert run.read(MODEL) == plain.read(MODEL)


def test_the_thread_of_a_writer_prints_no_traceback_and_others_do(
    tmp_path: Path, stub: Callable[[], list[Writer]], monkeypatch: pytest.MonkeyPatch
) -> None:
    printed: list[Any] = []
    monkeypatch.setattr(threading, "excepthook", lambda arguments: printed.append(arguments.thread))
    regard.train(tiny(), runs=tmp_path, quiet=True, callbacks=[TensorBoard(tmp_path / "board")])
    regard.train(tiny(), runs=tmp_path, quiet=True, callbacks=[TensorBoard(tmp_path / "board")])
    kind = type("Worker", (threading.Thread,), {"__module__": "tensorboard.summary.writer.event_file_writer"})
    threads = [kind(target=lambda: 1 / 0), threading.Thread(target=lambda: 1 / 0)]
    for thread in threads:
        thread.start()
        thread.join()
    assert printed == threads[1:]


def test_versions_of_tensorboard_that_do_not_fit_are_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken(types.ModuleType):
        def __getattr__(self, name: str) -> Any:
            raise TypeError("Descriptors cannot be created directly")

    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", Broken("torch.utils.tensorboard"))
    with pytest.raises(RegardError, match=r"cannot be imported \(TypeError: 'Descriptors cannot be created directly'"):
        TensorBoard("board")


def test_without_tensorboard_a_sentence_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(
        MissingExtraError,
        match=r"^writing TensorBoard's event files needs .*pip install 'regard\[tensorboard\]'",
    ):
        TensorBoard("board")
