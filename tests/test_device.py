"""Devices: memory that is kept for the next tensors, batches that run in parallel, how threads wait."""

import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from contextvars import ContextVar
from pathlib import Path

import pytest
import torch
from torch import nn

import regard
from regard.attention.positions import POSITIONS
from regard.device import (
    check_cancelled,
    current,
    explain_out_of_memory,
    keep_freed_memory,
    map_in_parallel,
    one_thread,
    only_shapes,
)
from regard.errors import ResourceError, StoppedError
from regard.sources.picture_front import GRID_POSITIONS


def test_keeping_memory_does_not_change_results():
    values = torch.arange(1 << 22, dtype=torch.float32)
    with keep_freed_memory():
        sums = {(values * 2).sum().item() for _ in range(3)}
    assert sums == {(values * 2).sum().item()}


def test_keeping_memory_can_be_nested_and_ends_with_an_error():
    with pytest.raises(KeyError), keep_freed_memory():
        raise KeyError
    with keep_freed_memory(), keep_freed_memory():
        pass


def test_modules_of_shapes_alone_have_no_memory_and_their_own_shapes():
    with only_shapes():
        embedding, rnn = nn.Embedding(5, 3), nn.LSTM(3, 7)
        nn.init.normal_(tensor=embedding.weight)
        nn.init.xavier_normal_(rnn.weight_hh_l0)
    assert {parameter.device.type for parameter in [*embedding.parameters(), *rnn.parameters()]} == {"meta"}
    assert embedding.weight.shape == (5, 3)
    assert rnn.weight_hh_l0.shape == (28, 7)
    assert nn.Embedding(5, 3).weight.device.type == "cpu"
    assert nn.Embedding(5, 3).weight.std() > 0.1


@pytest.mark.parametrize(
    ("device", "make"),
    [
        ("meta", lambda: torch.arange(5)),
        ("meta", lambda: torch.arange(2, 11, 3, dtype=torch.float64)),
        ("meta", lambda: torch.arange(5.0)),
        ("meta", lambda: torch.arange(0.0, 1.0, 0.25)),
        ("meta", lambda: torch.arange(end=5)),
        ("meta", lambda: torch.arange(1, end=5)),
        ("meta", lambda: torch.arange(3, requires_grad=True, dtype=torch.float32)),
        ("meta", lambda: torch.arange(3, out=torch.empty(3, dtype=torch.int32))),
        ("cpu", lambda: torch.arange(6, device="cpu")),
        ("meta", lambda: torch.randn(3, 4, dtype=torch.float64)),
        ("meta", lambda: torch.randn(size=(3, 4))),
        ("meta", lambda: torch.randn(3, 4, out=torch.empty(3, 4))),
        ("meta", lambda: torch.randn(3, 4, generator=torch.Generator("cpu"))),
        ("cpu", lambda: torch.randn(3, 4, generator=torch.Generator("cpu"), device="cpu")),
    ],
)
def test_calls_that_make_tensors_of_shapes_alone_take_all_their_forms(device, make):
    """A call that names a device is left as it is."""
    expected = make()
    with only_shapes():
        made = make()
    assert (made.shape, made.dtype, made.requires_grad) == (expected.shape, expected.dtype, expected.requires_grad)
    assert made.device.type == device


def test_positions_of_shapes_alone_have_the_shapes_and_types_of_others():
    def tables():
        sizes = {"dim": 12, "heads": 3, "longest": 7, "causal": True}
        modules = {name: make(**sizes) for name, make in POSITIONS.items()}
        modules |= {f"grid {name}": make(side=5, width=11) for name, make in GRID_POSITIONS.items()}
        named = ((f"{name} {own}", table) for name, module in modules.items() for own, table in module.named_buffers())
        return {name: (table.shape, table.dtype, table.device.type) for name, table in named}

    whole = tables()
    with only_shapes():
        assert tables() == {name: (shape, kind, "meta") for name, (shape, kind, _) in whole.items()}
    assert len(whole) == 4  # sinusoids, rotations, slopes and the sinusoids of a grid


POSITIONED = """
import sys
from regard.attention.positions import POSITIONS
from regard.device import only_shapes
from regard.sources.picture_front import GRID_POSITIONS
with only_shapes():
    [make(dim=12, heads=3, longest=7, causal=True) for make in POSITIONS.values()]
    [make(side=5, width=11) for make in GRID_POSITIONS.values()]
print('torch._dynamo' in sys.modules or 'sympy' in sys.modules)
"""


def test_positions_of_shapes_alone_need_no_compiler_of_torch():
    result = subprocess.run([sys.executable, "-c", POSITIONED], capture_output=True, text=True, check=True)
    assert result.stdout == "False\n"


@pytest.mark.parametrize("name", ["translate_bahdanau", "translate_transformer", "tag"])
def test_a_run_loads_without_the_compiler_of_torch(name):
    run = Path(__file__).parent / "golden" / "runs" / name / "finished"
    code = f"import sys, regard; regard.load({str(run)!r}); print('torch._dynamo' in sys.modules)"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout == "False\n"  # its import takes longer than that of everything else but torch


@pytest.fixture
def two_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("two_threads")
def test_two_batches_run_in_parallel_and_results_keep_their_order():
    model, both = nn.Linear(3, 3), threading.Barrier(2, timeout=20)

    def work(batch):
        both.wait()  # passes only if another batch runs at the same time
        return batch, model(torch.ones(3)).requires_grad, torch.get_num_threads()

    assert list(map_in_parallel(work, range(6), model)) == [(batch, False, 1) for batch in range(6)]
    assert torch.get_num_threads() == 2


@pytest.mark.usefixtures("two_threads")
def test_batches_in_worker_threads_get_the_context_variables_of_the_caller():
    variable, both = ContextVar("variable", default="unset"), threading.Barrier(2, timeout=20)

    def work(batch):
        both.wait()  # passes only if another batch runs at the same time
        value = variable.get()
        variable.set(f"changed by {batch}")  # seen by no other batch
        return value

    token = variable.set("of the caller")
    try:
        assert list(map_in_parallel(work, range(4), nn.Linear(3, 3))) == ["of the caller"] * 4
        assert variable.get() == "of the caller"
    finally:
        variable.reset(token)


@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize("batches", [0, 1])
def test_a_single_batch_uses_all_threads(batches):
    threads = list(map_in_parallel(lambda _: torch.get_num_threads(), range(batches), nn.Linear(3, 3)))
    assert threads == [2] * batches


@pytest.mark.usefixtures("two_threads")
def test_with_a_forward_hook_batches_run_one_after_another():
    model, hooked_batches = nn.Linear(3, 3), []
    model.register_forward_hook(lambda module, inputs, result: hooked_batches.append(int(inputs[0][0])))
    this_thread = threading.get_ident()

    def work(batch):
        model(torch.full((3,), float(batch)))
        return threading.get_ident(), torch.get_num_threads()

    assert list(map_in_parallel(work, range(4), model)) == [(this_thread, 1)] * 4  # as many threads as without hooks
    assert hooked_batches == [0, 1, 2, 3]


def threads_of_a_new_thread():
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(torch.get_num_threads).result()


def test_batches_are_cancelled_if_the_caller_is_stopped():
    """If a signal stops the caller, a running batch ends at its next step; nobody waits for its result."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    begun = threading.Semaphore(0)

    def batch(_):
        begun.release()
        for _ in range(600):
            time.sleep(0.05)
            check_cancelled()

    def stop(*_):
        raise StoppedError(signal.SIGALRM)

    handler, started = signal.signal(signal.SIGALRM, stop), time.monotonic()
    signal.setitimer(signal.ITIMER_REAL, 0.3)
    try:
        with pytest.raises(StoppedError):
            list(map_in_parallel(batch, range(4), nn.Linear(3, 3)))
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, handler)
        torch.set_num_threads(before)
    assert begun.acquire(timeout=1)
    assert time.monotonic() - started < 2


def test_with_a_global_hook_batches_run_one_after_another():
    hook_threads = []
    handle = nn.modules.module.register_module_forward_hook(lambda *_: hook_threads.append(threading.get_ident()))
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        list(map_in_parallel(nn.Linear(3, 3), list(torch.ones(4, 3)), nn.Linear(3, 3)))
    finally:
        handle.remove()
        torch.set_num_threads(before)
    assert hook_threads == [threading.get_ident()] * 4


@pytest.mark.parametrize("hooked", [False, True])
def test_concurrent_calls_use_half_the_threads_and_restore_them(hooked):
    """The second call begins while the first one runs, and ends after it."""
    before = torch.get_num_threads()
    torch.set_num_threads(8)
    model = nn.Linear(3, 3)
    if hooked:
        model.register_forward_hook(lambda *_: None)
    end_first, end_second, begun = threading.Event(), threading.Event(), threading.Semaphore(0)

    def work(end):
        def batch(_):
            begun.release()
            assert end.wait(20)
            return torch.get_num_threads()

        return [*map_in_parallel(batch, range(2), model), torch.get_num_threads()]

    try:
        with ThreadPoolExecutor(2) as callers:
            first = callers.submit(work, end_first)
            assert all(begun.acquire(timeout=20) for _ in range(1 if hooked else 2))
            second = callers.submit(work, end_second)
            assert all(begun.acquire(timeout=20) for _ in range(1 if hooked else 2))
            assert threads_of_a_new_thread() == 8
            end_first.set()
            assert first.result(20) == [4, 4, 8]
            end_second.set()
            assert second.result(20) == [4, 4, 8]
        assert torch.get_num_threads() == threads_of_a_new_thread() == 8
    finally:
        torch.set_num_threads(before)


MEMORY_ERRORS = (
    MemoryError(),
    torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."),
    RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes"),
    RuntimeError("std::bad_alloc"),
    RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
)


@pytest.mark.parametrize("error", MEMORY_ERRORS, ids=repr)
def test_every_out_of_memory_error_becomes_a_resource_error(error):
    message = r"^there is not enough memory for it; lower x$"
    with pytest.raises(ResourceError, match=message) as caught, explain_out_of_memory("it", "lower x"):
        raise error
    assert caught.value.exit_code == 6

    def end_of_capture():
        try:
            raise error
        finally:
            raise RuntimeError("CUDA error: operation failed due to a previous error during capture")

    with pytest.raises(ResourceError), explain_out_of_memory("it", "lower x"):
        end_of_capture()


@pytest.mark.parametrize("error", [RuntimeError("CUDA error: an illegal memory access"), KeyError("out of memory")])
def test_other_errors_are_not_changed(error):
    with pytest.raises(type(error)) as caught, explain_out_of_memory("it", "lower x"):
        raise error
    assert caught.value is error


@pytest.mark.usefixtures("two_threads")
def test_an_out_of_memory_error_of_a_worker_thread_arrives():
    def work(batch):
        raise torch.OutOfMemoryError("out of memory")

    with pytest.raises(ResourceError), explain_out_of_memory("it", "lower x"):
        list(map_in_parallel(work, range(4), nn.Linear(3, 3)))


def test_the_given_gpu_becomes_the_current_one(monkeypatch):
    chosen = []
    monkeypatch.setattr(torch.cuda, "device", lambda device: chosen.append(device) or nullcontext())
    for name in ("cpu", "cuda:1"):
        with current(torch.device(name)):
            pass
    assert chosen == [torch.device("cuda:1")]


@pytest.mark.usefixtures("two_threads")
def test_an_error_in_a_batch_arrives_and_threads_are_restored():
    def work(batch):
        if batch == 3:
            raise KeyError(batch)
        return batch

    results = map_in_parallel(work, range(50), nn.Linear(3, 3))
    assert [next(results) for _ in range(3)] == [0, 1, 2]
    with pytest.raises(KeyError):
        next(results)
    assert torch.get_num_threads() == 2


gnu_openmp = pytest.mark.skipif(
    not list((Path(torch.__file__).parent / "lib").glob("libgomp*")), reason="torch has another OpenMP"
)


@gnu_openmp
@pytest.mark.parametrize(
    ("chosen", "spins"), [({"GOMP_SPINCOUNT": "7"}, 7), ({"OMP_WAIT_POLICY": "passive"}, 0)], ids=["spins", "policy"]
)
def test_threads_wait_as_the_user_chose(chosen, spins):
    """OpenMP itself reports its setting when torch is loaded."""
    assert how_threads_wait(chosen, busy=False) == how_threads_wait(chosen, busy=True) == f"GOMP_SPINCOUNT = '{spins}'"


@gnu_openmp
def test_waiting_threads_sleep_beside_a_busy_process_and_spin_otherwise():
    spinning = "GOMP_SPINCOUNT = '300000'"  # the default of GNU OpenMP
    assert how_threads_wait({}, busy=True) == "GOMP_SPINCOUNT = '0'"
    assert how_threads_wait({}, busy=False) == spinning
    assert how_threads_wait({}, busy=True, computing=False) == spinning  # others are ready to run, but use no time


def how_threads_wait(chosen, *, busy, computing=True):
    """The spin count that OpenMP reports in a new process, if others are ready to run (busy), and if they do."""
    environment = {name: value for name, value in os.environ.items() if name not in regard._WAIT_SETTINGS}
    environment |= chosen | {"OMP_DISPLAY_ENV": "verbose"}
    script = f"""
import builtins, io, time
real = builtins.open
def fake(name, *more, **named):
    if name == "/proc/loadavg":
        return io.StringIO("1.0 1.0 1.0 {2 if busy else 1}/99 7")
    if name == "/proc/stat":
        return io.StringIO(f"cpu {{int(100 * time.monotonic()) if {computing} else 7}} 0 0 0 0 0 0 0 0 0")
    return real(name, *more, **named)
builtins.open = fake
import regard.device
"""
    loaded = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True)
    (line,) = [line for line in loaded.stderr.splitlines() if "GOMP_SPINCOUNT" in line]
    return line.split("]")[-1].strip()


def test_the_load_is_not_measured_if_torch_is_loaded_already(monkeypatch):
    monkeypatch.setattr(regard, "_others_compute", lambda: pytest.fail("the load was measured"))
    for name in regard._WAIT_SETTINGS:
        monkeypatch.delenv(name, raising=False)
    regard._choose_wait_policy()
    assert "OMP_WAIT_POLICY" not in os.environ


def test_a_busy_process_is_noticed():
    """Within a second."""
    other = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        time.sleep(0.5)
        started = time.monotonic()
        assert regard._others_compute()
        assert time.monotonic() - started < 1
    finally:
        other.kill()
        other.wait()


@pytest.mark.parametrize("count", [1, 2])
def test_one_thread_is_used_in_the_block_and_as_many_as_before_after_it(count: int) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        with pytest.raises(ValueError, match="in the block"), one_thread():  # noqa: PT012
            assert torch.get_num_threads() == 1
            raise ValueError("in the block")
        assert torch.get_num_threads() == count
    finally:
        torch.set_num_threads(before)
