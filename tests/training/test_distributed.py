"""Several processes that train one model, on the CPU by gloo: laws on curves, stops, losses and other numbers of them.

The processes are forks with the variables that torchrun sets, in float64; one test starts torchrun itself.
"""

import json
import random
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from safetensors.torch import load as load_tensors
from torch import distributed as dist

from commands import SOURCES, Result, shared_commands, user_environment
from regard import storage
from regard.errors import CorruptError, DataError, LostProcessError, RegardError, StorageError
from regard.storage import Checkpoint, Run
from regard.training import processes, shards
from together import LIMIT, curve, start, together

UPDATE = "regard.training.engine.eager:learn_once"  # is called at every update
SIZES = ("model.embedding=8", "model.encoder.dim=8", "model.decoder.dim=8", "model.attention.dim=6")
SETTINGS = (
    *("train.updates=9", "train.validate=3", "train.batch_tokens=60", "train.learning_rate=0.01", "train.device=cpu"),
    *("train.validate_examples=3", "search.max_ratio=0", "search.max_extra=3", "train.timeout=50"),
)
TRANSFORMER = (
    *("model.encoder.kind=transformer", "model.decoder.kind=transformer", "model.attention.score=scaled_dot"),
    *("model.attention.heads=2", "model.tied=true", "tokens.shared=true", "train.smoothing=0.1"),
)
LUONG = ("model.decoder.order=luong", "train.accumulate=2", "train.ema=0.9", "train.average=2")
MODELS = {"luong": LUONG, "transformer": TRANSFORMER}
FROZEN = "encoder.stack.0.attention.all.weight"  # with LoRA
DROPOUT = ("model.encoder.dropout=0.3", "model.decoder.dropout=0.3")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with pairs to learn from, some of which are alone in their batch, and pairs for dev."""
    path, generator = tmp_path_factory.mktemp("distributed"), random.Random(1)
    words = ["".join(generator.choices("abcde", k=generator.randint(2, 9))) for _ in range(40)]
    words += ["a" * 50]  # its batch has no row for a second process
    for name, part in (("train.tsv", words[7:]), ("dev.tsv", words[:7])):
        (path / name).write_text("".join(f"{word}\t{word[::-1]}\n" for word in part))
    return path


def train(name: str, *overrides: str) -> list[str]:
    """The arguments of a training."""
    data = ["data.train=train.tsv", "data.dev=dev.tsv", f"name={name}"]
    return ["train", "reverse", *data, *SIZES, *SETTINGS, *overrides]


def succeeded(results: Sequence[Result]) -> None:
    """Check that all processes ended well, and that only the first one has printed anything."""
    for rank, result in enumerate(results):
        assert result.code == 0, (rank, result.error)
    assert [result.out == b"" and not result.error for result in results[1:]] == [True] * (len(results) - 1)


def weights(path: Path) -> dict[str, torch.Tensor]:
    """The stored weights of a run."""
    return load_tensors(Run(path).read(storage.MODEL))


def assert_close(run: Path, other: Path) -> None:
    """Check that two runs have the same curve and weights to 1e-6 relative."""
    assert len(curve(run)) == len(curve(other)) == 4
    for entry, expected in zip(curve(run), curve(other), strict=True):
        assert entry.pop("signature", "") == expected.pop("signature", "")
        assert entry.pop("precision", "") == expected.pop("precision", "")
        assert entry == pytest.approx(expected, rel=1e-6)
    for name, tensor in weights(other).items():
        assert tensor.dtype == torch.float64
        torch.testing.assert_close(weights(run)[name], tensor, rtol=1e-6, atol=1e-9)


def assert_same(run: Path, other: Path) -> None:
    """Check that two runs have the same bits."""
    assert curve(run) == curve(other)
    assert Run(run).read(storage.MODEL) == Run(other).read(storage.MODEL)


@pytest.fixture(scope="module", params=MODELS)
def alone(request: pytest.FixtureRequest, folder: Path) -> str:
    """The name of a model, of which one process has trained the run of that name."""
    succeeded(together(1, train(request.param, *MODELS[request.param]), folder))
    return str(request.param)


@pytest.mark.parametrize(("count", "parallel"), [(2, "auto"), (4, "ddp"), (2, "fsdp"), (4, "fsdp")])
def test_the_curve_of_several_processes_is_that_of_one(count: int, parallel: str, alone: str, folder: Path) -> None:
    name = f"{alone}-{count}-{parallel}"
    no_averages = ("train.ema=0", "train.average=1")
    overrides = (*MODELS[alone], f"train.parallel={parallel}")
    if parallel == "fsdp" and alone == "luong":
        succeeded(together(1, train("plain", *MODELS[alone], *no_averages), folder))
        succeeded(together(count, train(name, *overrides, *no_averages), folder))
        assert_close(folder / "runs" / name, folder / "runs/plain")
        return
    succeeded(together(count, train(name, *overrides), folder))
    assert_close(folder / "runs" / name, folder / "runs" / alone)


def test_bfloat16_products_of_two_processes_have_the_curve_of_one_to_their_rounding(folder: Path) -> None:
    curves = {}
    for parallel, count in (("auto", 1), ("ddp", 2), ("fsdp", 2)):
        settings = (*TRANSFORMER, f"train.parallel={parallel}", "train.precision=bfloat16")
        succeeded(together(count, train(f"half-{parallel}", *settings), folder, float64=False))
        *curves[parallel], last = curve(folder / f"runs/half-{parallel}")
        assert last["precision"] == "bfloat16"
    for several in (curves["ddp"], curves["fsdp"]):
        for entry, expected in zip(several, curves["auto"], strict=True):
            assert entry == pytest.approx(expected, rel=2**-8)  # the rounding of one bfloat16


@pytest.mark.parametrize("parallel", ["ddp", "fsdp"])
def test_a_signal_at_one_process_stops_all_and_the_resumed_run_has_the_same_bits(parallel: str, folder: Path) -> None:
    settings = (*TRANSFORMER, *DROPOUT, f"train.parallel={parallel}")
    succeeded(together(2, train(f"whole-{parallel}", *settings), folder))
    acts = {1: {"signals": [[UPDATE, 5, [signal.SIGTERM]]]}}
    stopped = together(2, train(f"stopped-{parallel}", *settings), folder, acts)
    assert [result.code for result in stopped] == [143, 143]
    how = f"5 updates are saved; go on with: regard train --resume runs/stopped-{parallel}"
    assert stopped[0].error.split("\n")[-2] == f"regard: stopped by SIGTERM; {how}"
    assert not stopped[1].error
    succeeded(together(2, ["train", "--resume", f"runs/stopped-{parallel}", "--exact"], folder))
    assert_same(folder / f"runs/stopped-{parallel}", folder / f"runs/whole-{parallel}")


@pytest.fixture(scope="module")
def lora(folder: Path) -> tuple[str, ...]:
    """Overrides that train LoRA matrices of a Transformer that is trained already."""
    succeeded(together(1, train("adapted", *TRANSFORMER, "train.learning_rate=0.02"), folder))
    return (*TRANSFORMER, "train.start_from=runs/adapted", "train.lora_rank=3")


@pytest.mark.parametrize(("parallel", "adapts"), [("auto", True), ("fsdp", False), ("fsdp", True)])
def test_a_run_of_four_processes_goes_on_with_two_and_with_one(
    parallel: str, adapts: bool, folder: Path, lora: tuple[str, ...]
) -> None:
    end, alone = f"{parallel}-{adapts}", lora if adapts else TRANSFORMER
    name, settings = f"fewer-{end}", (*alone, f"train.parallel={parallel}")
    succeeded(together(1, train(f"one-{end}", *alone), folder))
    resume = ["train", "--resume", f"runs/{name}"]
    for count, arguments, number in ((4, train(name, *settings), 2), (2, resume, 3)):
        acts = {0: {"signals": [[UPDATE, number, [signal.SIGTERM]]]}}
        assert {result.code for result in together(count, arguments, folder, acts)} == {143}
    refused = together(1, [*resume, "--exact"], folder)
    assert refused[0].code == 2
    assert "processes" in refused[0].error
    succeeded(together(1, resume, folder))
    assert_close(folder / "runs" / name, folder / f"runs/one-{end}")
    before, after = weights(folder / "runs/adapted"), weights(folder / "runs" / name)
    assert adapts == (before.keys() < after.keys() and torch.equal(before[FROZEN], after[FROZEN]))


@pytest.mark.parametrize(("parallel", "lost"), [("ddp", 1), ("fsdp", 1), ("ddp", 0)])
def test_a_lost_process_ends_the_run_with_one_sentence_and_a_resumable_state(
    parallel: str, lost: int, folder: Path
) -> None:
    name, settings = f"lost-{lost}-{parallel}", (*TRANSFORMER, *DROPOUT, f"train.parallel={parallel}")
    succeeded(together(3, train(f"kept-{lost}-{parallel}", *settings), folder))
    acts = {lost: {"signals": [[UPDATE, 5, [signal.SIGKILL]]]}}
    results = together(3, train(name, *settings), folder, acts)
    assert [result.code for result in results] == [-signal.SIGKILL if rank == lost else 6 for rank in range(3)]
    sentences = [line for result in results for line in result.error.split("\n") if line.startswith("regard: ")]
    saved = f"3 updates are saved; go on with: regard train --resume runs/{name}"
    assert sentences == [f"regard: another process of the training has ended, or has not answered in time; {saved}"]
    succeeded(together(3, ["train", "--resume", f"runs/{name}"], folder))
    assert_same(folder / "runs" / name, folder / f"runs/kept-{lost}-{parallel}")


def test_processes_do_not_wait_longer_than_the_timeout(folder: Path) -> None:
    acts = {1: {"signals": [[UPDATE, 5, [signal.SIGSTOP]]]}}
    first, second = start(2, train("late", *LUONG, "train.timeout=2"), folder, acts)
    result = shared_commands().wait(first, LIMIT)
    assert shared_commands().wait(second, 0).hung
    assert result.code == 6
    assert "has not answered in time; 3 updates are saved" in result.error


def test_what_all_processes_refuse_is_said_once(folder: Path) -> None:
    for overrides, words in {
        ("train.parallel=fsdp", "train.ema=0.9"): "leave out train.ema and train.average",
        ("train.parallel=all",): "unknown value of train.parallel 'all'",
        ("data.train=absent.tsv",): "absent.tsv",
        ("train.reward=exact_match", "train.keep=last"): "train.reward is for one process, not 2",
    }.items():
        results = together(2, train("refused", *overrides), folder)
        assert [result.code for result in results] == [2, 2]
        assert words in results[0].error
        assert not results[1].error
    assert not (folder / "runs/refused").exists()


@pytest.mark.parametrize(
    ("act", "code", "sentence"),
    [
        (
            {"folder": "missing"},
            2,
            "process 1 of 2: cannot find train.tsv; looked for train.tsv, data/train.tsv ($REGARD_DATA is not set)",
        ),
        ({"folder": "bad"}, 2, "process 1 of 2: train.tsv:1: one field, expected two: source<TAB>target"),
        (
            {"signals": [["regard.training.loop:_encode", 1, [signal.SIGTERM]]]},
            143,
            "stopped by SIGTERM; nothing was written",
        ),
    ],
)
def test_what_stops_one_process_before_training_is_said_once_by_the_first_and_leaves_no_run(
    act: dict[str, Any], code: int, sentence: str, folder: Path
) -> None:
    acts = {1: {key: elsewhere(folder, value) if key == "folder" else value for key, value in act.items()}}
    results = together(2, train("none"), folder, acts)
    assert [result.code for result in results] == [code, code]
    assert [line for line in results[0].error.splitlines() if line.startswith("regard: ")] == [f"regard: {sentence}"]
    assert not results[1].error
    assert not (folder / "runs/none").exists()


def test_changed_data_of_one_process_end_a_resumed_training_with_its_sentence(folder: Path) -> None:
    acts = {0: {"signals": [[UPDATE, 2, [signal.SIGTERM]]]}}
    together(2, train("changed"), folder, acts)
    other = elsewhere(folder, "changed")
    results = together(2, ["train", "--resume", "runs/changed"], folder, {1: {"folder": other}})
    assert [result.code for result in results] == [2, 2]
    assert "regard: process 1 of 2: the data of runs/changed has changed since its training began" in results[0].error
    assert not results[1].error
    succeeded(together(2, ["train", "--resume", "runs/changed"], folder))


def elsewhere(folder: Path, kind: str) -> Path:
    """A folder with other training data, as a machine that does not see the same files has."""
    other = folder / kind
    other.mkdir()
    (other / "runs").symlink_to(folder / "runs")
    (other / "dev.tsv").write_text((folder / "dev.tsv").read_text())
    contents = {"bad": "no tab\n", "changed": "ab\tba\n" * 20, "same": (folder / "train.tsv").read_text()}
    if kind in contents:
        (other / "train.tsv").write_text(contents[kind])
    return other


def test_an_error_that_one_process_has_alone_once_the_run_exists_is_said_once_by_it(folder: Path) -> None:
    other = elsewhere(folder, "same")
    for place, seed in ((folder, 1), (other, 2)):
        succeeded(together(1, [*train("origin", f"train.seed={seed}"), "--runs", "origins"], place))
    name = "origins/origin"
    results = together(2, train("begun", f"train.start_from={name}"), folder, {1: {"folder": other}})
    assert [result.code for result in results] == [6, 2]
    assert "regard: " not in results[0].error
    assert results[1].error.startswith(f"regard: the run {name}, which train.start_from names, has changed since")


def test_shards_that_one_process_cannot_write_end_all_with_one_sentence(folder: Path) -> None:
    settings = (*TRANSFORMER, "train.parallel=fsdp")
    results = together(2, train("full", *settings), folder, {1: {"limits": {"FSIZE": 15_000}}})  # a file of two parts
    assert [result.code for result in results] == [StorageError.exit_code] * 2, results[1].error
    why = "runs/full/checkpoints cannot be written: process 1: File too large"
    saved = "0 updates are saved; go on with: regard train --resume runs/full"
    assert results[0].error.splitlines()[-1] == f"regard: {why}; {saved}"
    assert "Traceback" not in results[0].error
    assert not results[1].error
    succeeded(together(2, ["train", "--resume", "runs/full"], folder))


@pytest.fixture
def group() -> Iterator[None]:
    """A process group of this process alone."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("group")
def test_shards_that_cannot_be_read_are_damaged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tensors = {"weight": torch.ones(2)}
    shards.write(tensors, tmp_path)
    monkeypatch.setattr(
        shards.HuggingFaceStorageReader, "read_data", Mock(side_effect=OSError(5, "Input/output error"))
    )
    with pytest.raises(CorruptError, match=r"shards of .* are damaged: process 0: Input/output error") as caught:
        shards.read(tensors, Checkpoint(tmp_path))
    assert caught.value.is_reported is False


@pytest.mark.parametrize("error", [OSError(28, "No space left on device", "a"), DataError("no pairs")])
def test_an_error_that_two_processes_have_is_reported_by_the_first_that_fails(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, group, reported = dist.HashStore(), Mock(size=2, rank=0), []
    monkeypatch.setattr(processes, "_store", lambda: store)
    for _ in range(2):
        with pytest.raises(RegardError) as caught, processes.told_if_lost(group, lambda: "3 updates are saved"):
            raise type(error)(*error.args)
        reported.append(caught.value.is_reported)
    assert reported == [False, True]
    with pytest.raises(LostProcessError) as lost, processes.told_if_lost(group, lambda: "3 updates are saved"):
        raise RuntimeError("gloo: Connection closed by peer")
    assert lost.value.is_reported


@pytest.mark.parametrize(("local", "says"), [(0, True), (1, False)])
def test_before_processes_know_each_other_the_first_one_of_a_machine_reports(
    local: int, says: bool, folder: Path
) -> None:
    variables = {"RANK": 2, "LOCAL_RANK": local, "WORLD_SIZE": 4, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": 1}
    environment = {key: str(value) for key, value in variables.items()}
    result = shared_commands()("train", "absent.toml", folder=folder, environment=environment)
    assert (result.code, "absent.toml" in result.error) == (2, says)


def test_torchrun_trains_with_two_processes(folder: Path) -> None:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "regard"]
    command += [*train("torchrun", *LUONG), "--json"]
    environment = user_environment() | {"GLOO_SOCKET_IFNAME": "lo", "PYTHONPATH": str(SOURCES)}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["run"] == "runs/torchrun"
    assert Run(folder / "runs/torchrun").environments()[0]["processes"] == 2


def captured(count: int, arguments: Sequence[str], folder: Path) -> None:
    """Train in so many processes with the engine of captured updates, whose graphs run as operations on the CPU."""
    results = together(count, arguments, folder, {rank: {"captured": True} for rank in range(count)})
    assert [result.code for result in results] == [0] * count, results[0].error


def test_captured_updates_of_two_processes_have_the_curve_of_one(folder: Path) -> None:
    for count in (1, 2):
        captured(count, train(f"captured-{count}", *TRANSFORMER, "train.parallel=ddp"), folder)
    captured(2, train("captured-fsdp", *TRANSFORMER, "train.parallel=fsdp"), folder)  # eager, with the same batches
    assert_close(folder / "runs/captured-2", folder / "runs/captured-1")
    assert_close(folder / "runs/captured-fsdp", folder / "runs/captured-1")


def test_captured_updates_with_random_numbers_and_buffers_resume_with_the_same_bits(folder: Path) -> None:
    hard = ("model.attention.normalizer=hard", "train.schedule=constant")  # processes draw keys, and share a baseline
    captured(2, train("hard-whole", *hard), folder)
    captured(2, train("hard-parts", *hard, "train.updates=6"), folder)
    captured(2, ["train", "--resume", "runs/hard-parts", "train.updates=9"], folder)
    assert_same(folder / "runs/hard-parts", folder / "runs/hard-whole")
