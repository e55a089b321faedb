"""A runner's GPU without a GPU: a torch.cuda that says what the real one says, and a real runner over its socket."""

import json
import math
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from smore.domain.invocation import Cause
from smore.process.settings import WorkerSettings
from worker import app
from worker.child_env import for_runners
from worker.device import driver
from worker.device.device import CpuPartition
from worker.frames import Confinement, Item, Load, Loaded, Results
from worker.runner import cuda
from worker.runner.runner_handle import Bounds, Runner, RunnerFailed
from worker.runner.zygote_handle import setup

PATIENCE_S = 60.0
ROOT = Path(__file__).resolve().parents[4]
ILLEGAL = "CUDA error: an illegal memory access was encountered"
TRIED = "CUDA out of memory. Tried to allocate {}. GPU 0 has a total capacity of 139.80 GiB of which 1.00 GiB is free."


# ---- what an error says ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("CUDA error: device-side assert triggered", True),
        (ILLEGAL, True),
        ("CUDA error: uncorrectable ECC error encountered", True),
        ("CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasSgemm(...)`", True),
        ("cuDNN error: CUDNN_STATUS_EXECUTION_FAILED", True),
        ("CUDA error: invalid configuration argument", False),
        ("CUDA error: out of memory", False),
        ("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`", False),
        ("the device-side of things", False),
    ],
)
def test_which_errors_leave_a_context_useless(text: str, expected: bool) -> None:
    assert cuda.lost(text) is expected


@pytest.mark.parametrize(
    ("text", "cap", "reserved", "free", "expected"),
    [
        # torch's own allocator: beyond what the function may have, or refused by the device within it.
        (TRIED.format("2.00 GiB"), 1000, 0, 1000, Cause.OUT_OF_MEMORY),
        (TRIED.format("20.00 MiB"), 1000, 990, 8000, Cause.OUT_OF_MEMORY),
        (TRIED.format("20.00 MiB"), 1000, 100, 8000, Cause.DEVICE_FULL),
        (TRIED.format("512.00 KiB"), 1000, 100, 0, Cause.DEVICE_FULL),
        # Rounded to hundredths, so a little more may have been asked for.
        (TRIED.format("1.00 GiB"), 1025, 0, 1000, Cause.OUT_OF_MEMORY),
        # Past it: by what is left for whom.
        ("CUDA error: out of memory", 1000, 0, None, Cause.DEVICE_FULL),
        ("CUDA error: out of memory", 1000, 400, 500, Cause.DEVICE_FULL),
        ("CUDA error: out of memory", 1000, 400, 700, Cause.OUT_OF_MEMORY),
        ("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`", 1000, 0, 200, Cause.DEVICE_FULL),
        ("cuDNN error: CUDNN_STATUS_ALLOC_FAILED", 1000, 0, 200, Cause.DEVICE_FULL),
        ("GET was unable to find an engine to execute this computation", 1000, 900, 50, Cause.DEVICE_FULL),
        # Others cannot be told from a shape that no engine computes.
        ("GET was unable to find an engine to execute this computation", 1000, 900, 500, None),
        ("a shape is wrong", 1000, 0, 0, None),
    ],
)
def test_whose_memory_it_was(
    text: str, cap: float, reserved: float, free: float | None, expected: Cause | None
) -> None:
    assert cuda.whose(text, cap_mib=cap, reserved_mib=reserved, free_mib=free) is expected


def test_a_standby_runner_that_finds_no_room_is_nobodys_fault() -> None:
    assert cuda.whose(TRIED.format("20.00 MiB"), cap_mib=math.inf, reserved_mib=0, free_mib=0) is Cause.DEVICE_FULL


# ---- a runner --------------------------------------------------------------------------------------------------------


@contextmanager
def running(**environment: str) -> Iterator[tuple[Runner, "subprocess.Popen[bytes]"]]:
    ours, theirs = socket.socketpair()
    env = {**os.environ, **environment, "PYTHONPATH": str(ROOT)}
    argv = [sys.executable, str(ROOT / "tests" / "support" / "fake_torch.py"), str(theirs.fileno())]
    with ours, subprocess.Popen(argv, pass_fds=[theirs.fileno()], env=env, stderr=subprocess.DEVNULL) as process:
        theirs.close()
        bounds = Bounds(group="", beyond_mib=0, processes=1, host_mib=100.0, host_per_mib=2.0)
        try:
            yield Runner(process.pid, ours, lambda _, number: process.send_signal(number), bounds), process
        finally:
            process.kill()


def load(runner: Runner, kind: str = "Obedient", **spec: Any) -> Loaded:
    given: dict[str, Any] = {"device": "cuda", "memory_mib": 500.0, "label": "f"}
    given |= {"results": Results(one=10_000, together=10_000)}
    return runner.load(Load(entrypoint=f"tests.support.fake_torch:{kind}", **given | spec), PATIENCE_S)


def call(runner: Runner, do: str = "", **item: object) -> dict[str, Any]:
    body = json.dumps({"do": do, **item}).encode()
    ran = runner.predict([Item(encoding="json", accept="json", rows=1, length=len(body))], [body], "", PATIENCE_S)
    return dict(json.loads(ran.results[0]))


def refused(runner: Runner, do: str, **item: object) -> Cause:
    with pytest.raises(RunnerFailed) as failed:
        call(runner, do, **item)
    return failed.value.cause


def test_an_error_that_is_for_good_is_told_by_the_run_that_made_it_and_ends_the_runner() -> None:
    with running() as (runner, process):
        load(runner)
        call(runner, "open")
        # Its kernel fails after predict has returned: without waiting for the device the next caller would be told.
        assert refused(runner, "assert") is Cause.CONTEXT_LOST
        assert process.wait(PATIENCE_S) == 1
    with running() as (runner, process):
        load(runner)
        # By its words alone, and of a library that has hidden the device from torch.
        assert refused(runner, "raise", text=ILLEGAL) is Cause.CONTEXT_LOST
        assert process.wait(PATIENCE_S) == 1


def test_out_of_memory_is_charged_to_who_took_it_and_the_runner_goes_on_until_it_is_told() -> None:
    with running() as (runner, process):
        load(runner)
        call(runner, "open")
        assert refused(runner, "raise", text=TRIED.format("2.00 GiB")) is Cause.OUT_OF_MEMORY
        assert refused(runner, "raise", text=TRIED.format("20.00 MiB"), free=10) is Cause.DEVICE_FULL
        assert refused(runner, "raise", text="CUDA error: out of memory", free=10) is Cause.DEVICE_FULL
        assert refused(runner, "raise", text="CUDA error: invalid configuration argument") is Cause.HANDLER_ERROR
        assert refused(runner, "raise", text="DefaultCPUAllocator: can't allocate memory") is Cause.OUT_OF_MEMORY
        assert call(runner)["opened"] and process.poll() is None


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("CUDA error: out of memory", Cause.DEVICE_FULL),
        (ILLEGAL, Cause.CONTEXT_LOST),
        ("no such weights", Cause.HANDLER_ERROR),
    ],
)
def test_a_load_tells_the_same(text: str, expected: Cause) -> None:
    with running(REFUSED=text) as (runner, _), pytest.raises(RunnerFailed) as failed:
        load(runner)
    assert failed.value.cause is expected


def test_the_device_is_opened_by_its_first_use_and_bounded_then() -> None:
    with running() as (runner, _):
        assert load(runner).memory_mib == 0.0
        # The machine's memory is bounded all the same.
        assert call(runner) == {"device": "cuda", "visible": None, "opened": False, "fraction": 1.0, "data": True}
        assert call(runner, "open")["fraction"] == 0.5
    with running(OPEN="1") as (runner, _):
        load(runner)
        found = call(runner)
        assert (found["opened"], found["fraction"], found["data"]) == (True, 0.5, True)
        # 100 MiB and twice the 500 of the device.
        call(runner, "take", mib=1000)
        with pytest.raises(
            RunnerFailed, match=r"1228 MiB of the machine's memory .SMORE_WORKER__HOST_MEMORY_MIB"
        ) as failed:
            call(runner, "take", mib=1400)
        assert failed.value.cause is Cause.OUT_OF_MEMORY
        with pytest.raises(
            RunnerFailed, match=r"may hold 500 MiB of the GPU .`resources.gpu_memory`.; it asked for more"
        ):
            call(runner, "raise", text=TRIED.format("2.00 GiB"))


def test_one_that_declares_none_of_the_device_finds_none() -> None:
    with running(CUDA_VISIBLE_DEVICES="GPU-1") as (runner, _):
        load(runner, device="cpu", memory_mib=0.0)
        found = call(runner)
        assert (found["device"], found["visible"]) == ("cpu", "")
        call(runner, "take", mib=90)


def test_a_full_batch_is_tried_before_anybody_waits() -> None:
    def seen(**load_as: Any) -> list[list[int]]:
        load(runner, "Batches", **load_as)
        ran = runner.predict(
            [Item(encoding="json", accept="json", rows=1, length=len(body := b'{"x": [[1, 2]]}'))],
            [body],
            "",
            PATIENCE_S,
        )
        return list(json.loads(ran.results[0])["seen"])

    with running() as (runner, _):
        assert seen(max_batch=8) == [[181]], "the example, a full batch, and the call"
    with running() as (runner, _):
        assert seen(max_batch=8, device="cpu") == [[11]], "a CPU has no kernels to load"
    with running(FAILS="1") as (runner, _):
        assert seen(max_batch=8) == [[181]], "one that has no room for it serves what there is room for"


def test_a_zygotes_threads_are_those_of_its_cores_or_as_many_as_are_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)

    def threads(**given: Any) -> str | None:
        made = setup(scratch=tmp_path, home=tmp_path, confinement=Confinement(on=False), **given)
        return made.environment.get("OMP_NUM_THREADS")

    assert [threads(cores=(0,), threads=4), threads(cores=(), threads=4), threads(cores=())] == ["1", "4", None]


def test_what_a_gpus_functions_get_of_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    own = WorkerSettings(kind="cuda", scratch_mib=256)
    gpu: Any = SimpleNamespace(handler_device="cuda", environment={"CUDA_VISIBLE_DEVICES": "GPU-1"})
    monkeypatch.delenv("CUDA_CACHE_MAXSIZE", raising=False)
    assert app.for_functions(own, gpu) == {"CUDA_CACHE_MAXSIZE": str(64 << 20), "CUDA_VISIBLE_DEVICES": "GPU-1"}
    monkeypatch.setenv("CUDA_CACHE_MAXSIZE", "1")
    assert app.for_functions(own, gpu) == gpu.environment, "an operator's own is passed on"
    partition = CpuPartition(WorkerSettings())
    assert app.for_functions(own, partition) == partition.environment
    assert app.near(partition, [0, 1]) == ()
    monkeypatch.setitem(sys.modules, "pynvml", nvml(0b10))
    assert list(app.near(gpu, [0, 1])) == [1]


# ---- what is around it -----------------------------------------------------------------------------------------------


def test_what_tunes_cuda_and_its_libraries_reaches_runners(monkeypatch: pytest.MonkeyPatch) -> None:
    names = (
        "PYTORCH_ALLOC_CONF",
        "CUBLAS_WORKSPACE_CONFIG",
        "CUDNN_LOGDEST_DBG",
        "TRITON_CACHE_DIR",
        "CUDA_CACHE_MAXSIZE",
    )
    for name in names:
        monkeypatch.setenv(name, "x")
    assert for_runners({}).keys() >= set(names)


def test_the_drivers_device_file_is_made_once_and_its_lack_is_survived(tmp_path: Path) -> None:
    file, ran = tmp_path / "nvidia-uvm", []

    def make(words: list[str], **_: object) -> None:
        ran.append(words[0])
        file.touch()

    driver.make_device_files(file, make)
    driver.make_device_files(file, make)
    assert ran == ["nvidia-modprobe"]

    def missing(words: list[str], **_: object) -> None:
        raise FileNotFoundError(words[0])

    driver.make_device_files(tmp_path / "none", missing)


class NoGpu(Exception):
    pass


def nvml(*words: int, error: bool = False) -> Any:
    def affinity(handle: str, count: int) -> tuple[int, ...]:
        if error:
            raise NoGpu
        assert (handle, count) == ("the GPU", -(-(os.cpu_count() or 1) // 64))
        return words

    return SimpleNamespace(
        NVMLError=NoGpu,
        nvmlInit=lambda: None,
        nvmlDeviceGetHandleByUUID=lambda uuid: "the GPU" if uuid.startswith("GPU") else "instance",
        nvmlDeviceGetDeviceHandleFromMigDeviceHandle=lambda _: "the GPU",
        nvmlDeviceGetCpuAffinity=affinity,
    )


def test_functions_run_on_the_socket_of_their_gpu() -> None:
    assert driver.cores_of([0b101, 0b1]) == {0, 2, 64}
    for uuid in ("GPU-1", "MIG-1"):
        assert driver.beside(uuid, range(8), nvml(0b11110000)) == [4, 5, 6, 7]
    # A container may have been given cores of the other socket alone.
    assert driver.beside("GPU-1", [0, 1], nvml(0b11110000)) == [0, 1]
    assert driver.beside("GPU-1", [1, 0], nvml(error=True)) == [0, 1]
