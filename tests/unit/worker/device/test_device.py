"""A CUDA device, on a machine whose NVML is a table."""

import os
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from smore.process import device_name
from smore.process.settings import WorkerSettings
from tests.support import nvml
from tests.support.eventually import eventually
from tests.support.nvml import Gpu, Instance, Machine, Process
from worker import proc
from worker.device.device import KEPT_S, CpuLoad, CudaDevice, open_device

#: A worker has a device of the whole machine; so names of tests that run at the same time differ.
A, MIG_A, MIG_B = (f"{name}-{os.getpid()}" for name in ("GPU-a", "MIG-a", "MIG-b"))
BUSY = {"sm": 0.4, "occupancy": 0.1, "tensor": 0.2, "dram": 0.3, "graphics": 0.9}


class Bench:
    """One device and its clock; ``gpu`` is what the driver shows."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, machine: Machine, *, device: str = A, kind: Any = "cuda"
    ) -> None:
        self.now = 100.0
        self.fake = nvml.install(monkeypatch, machine)
        self.gpu = machine.gpus[0]
        self.device = CudaDevice(WorkerSettings(kind=kind, device=device), clock=lambda: self.now)

    def after(self, seconds: float = 0.25) -> CudaDevice:
        """The device after its next look."""
        self.now += seconds
        self.device.sample()
        return self.device

    def utilisation(self, runners: tuple[int, ...] = ()) -> Any:
        return self.after().utilisation(CpuLoad(at=self.now, functions_cpu_s=0.0, jobs_cpu_s=0.0, runners=runners))


@pytest.fixture
def opened() -> Iterator[list[CudaDevice]]:
    devices: list[CudaDevice] = []
    yield devices
    for device in devices:
        device.close()


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch, opened: list[CudaDevice]) -> Bench:
    made = Bench(monkeypatch, Machine(gpus=[Gpu(uuid=A, gpm=dict(BUSY), utilisation=0.99)]))
    opened.append(made.device)
    return made


def test_memory_without_what_the_driver_keeps(bench: Bench) -> None:
    assert bench.device.memory_total_mib == pytest.approx(143_771 - 600)
    bench.gpu.processes = [Process(pid=7, mib=1000.0)]
    assert bench.after().free_mib() == pytest.approx(143_771 - 600 - 1000)


def test_memory_of_every_process_by_one_call_a_look(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proc, "sees_all", lambda: True)
    bench.gpu.processes = [Process(pid=7, mib=1000.0), Process(pid=8, mib=None)]
    calls = bench.fake.calls.get("nvmlDeviceGetComputeRunningProcesses", 0)
    device = bench.after()
    assert [device.quick_memory_mib(pid) for pid in (7, 8, 9)] == [1000.0, None, None]
    assert device.process_memory_mib(7) == device.runner_memory_mib(7) == 1000.0
    assert device.computing() == {7: 1000.0, 8: 0.0}
    assert bench.fake.calls["nvmlDeviceGetComputeRunningProcesses"] == calls + 1
    monkeypatch.setattr(proc, "sees_all", lambda: False)
    assert device.computing() is None


def test_one_error_of_the_driver_is_no_news_and_a_silent_one_is_unhealthy(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(proc, "sees_all", lambda: True)
    bench.gpu.processes = [Process(pid=7, mib=1000.0)]
    bench.after()
    bench.gpu.errors["*"] = "UNKNOWN"
    device = bench.after(KEPT_S / 2)
    assert (device.computing(), device.health()) == ({7: 1000.0}, "")
    device = bench.after(KEPT_S)
    assert (device.computing(), device.free_mib(), device.process_memory_mib(7)) == (None, None, None)
    assert "Unknown Error" in device.health()
    bench.gpu.errors.clear()
    assert bench.after().health() == ""


@pytest.mark.parametrize("error", ["GPU_IS_LOST", "RESET_REQUIRED", "DRIVER_NOT_LOADED"])
def test_a_lost_gpu_is_unhealthy_at_once(bench: Bench, error: str) -> None:
    bench.gpu.errors["*"] = error
    assert bench.after().health().startswith("NVML says: ")
    bench.gpu.errors.clear()
    assert bench.after().health() == ""


def test_a_driver_that_hangs_delays_nobody(bench: Bench) -> None:
    entered, go_on = threading.Event(), threading.Event()

    def hang(_: str) -> None:
        entered.set()
        go_on.wait(30)

    try:
        bench.fake.before = hang
        bench.device.start()
        assert entered.wait(30)
        # None of these waits for the driver.
        assert bench.device.free_mib() is not None and bench.device.health() == ""
        bench.now += 2 * KEPT_S
        assert "has not answered" in bench.device.health() and bench.device.free_mib() is None
    finally:
        go_on.set()
    bench.fake.before = lambda _: None
    eventually(lambda: bench.device.health() == "", what="the driver's next answer")


def test_an_error_of_one_process_is_not_the_devices(bench: Bench) -> None:
    # The training's own page fault, and what cleans up after a process that was killed in the middle of a kernel.
    bench.gpu.events += [(13, None), (31, None), (43, None), (45, None), (94, None)]
    assert bench.after().health() == ""
    bench.gpu.events.append((79, None))
    assert "Xid 79" in bench.after().health()
    assert "Xid 79" in bench.after(100).health(), "until it is reset and the worker started anew"


def test_utilisation_is_the_share_of_sms_with_nvmls_beside_it(bench: Bench) -> None:
    bench.gpu.processes = [Process(pid=7, mib=1.0, sm=0.9), Process(pid=8, mib=1.0, sm=0.3)]
    assert bench.device.counter == "gpm-sm-util"
    found = bench.utilisation(runners=(8,))
    assert (found.total, found.functions) == (pytest.approx(0.4), pytest.approx(0.1))
    assert found.counters == {
        "gpm-sm-util": 0.4,
        "gpm-sm-occupancy": 0.1,
        "gpm-tensor-util": 0.2,
        "gpm-dram-util": 0.3,
        "gpm-graphics": 0.9,
        "nvml-utilization": 0.99,
    }
    bench.gpu.gpm_failed = ["sm"]
    bench.after(2 * KEPT_S)
    assert bench.device.counter == "none", "0 by GPM would read as a device that idles"


def test_before_hopper_it_is_nvmls_and_called_so(monkeypatch: pytest.MonkeyPatch, opened: list[CudaDevice]) -> None:
    bench = Bench(monkeypatch, Machine(gpus=[Gpu(uuid=A, utilisation=0.5)]))
    opened.append(bench.device)
    bench.gpu.processes = [Process(pid=8, mib=1.0, sm=0.2)]
    found = bench.utilisation(runners=(8,))
    assert (bench.device.counter, found.total, found.functions) == ("nvml-utilization", 0.5, 0.2)


def test_a_mig_instance_has_its_own_counters_and_errors(
    monkeypatch: pytest.MonkeyPatch, opened: list[CudaDevice]
) -> None:
    slices = [Instance(uuid=MIG_A, id=7, gpm={"sm": 0.25}), Instance(uuid=MIG_B, id=9, gpm={"sm": 0.75})]
    bench = Bench(monkeypatch, Machine(gpus=[Gpu(uuid=A, mig=slices)]), device=MIG_B, kind="mig")
    opened.append(bench.device)
    assert (bench.device.counter, bench.utilisation().total) == ("gpm-sm-util", 0.75)
    bench.gpu.events.append((95, 7))
    assert bench.after().health() == "", "its neighbour's"
    bench.gpu.events.append((48, None))
    assert "Xid 48" in bench.after().health(), "what concerns the whole GPU"


def test_a_mig_instance_whose_gpu_is_not_told_has_no_counter(
    monkeypatch: pytest.MonkeyPatch, opened: list[CudaDevice]
) -> None:
    gpu = Gpu(uuid=A, mig=[Instance(uuid=MIG_A, id=7, gpm={"sm": 0.25})])
    gpu.errors["nvmlDeviceGetDeviceHandleFromMigDeviceHandle"] = "NO_PERMISSION"
    bench = Bench(monkeypatch, Machine(gpus=[gpu]), device=MIG_A, kind="mig")
    opened.append(bench.device)
    assert (bench.device.counter, bench.utilisation().total, bench.device.health()) == ("none", 0.0, "")


def test_one_worker_has_a_device(bench: Bench) -> None:
    with pytest.raises(ValueError, match=f"another worker of this machine has {A}"):
        CudaDevice(WorkerSettings(kind="cuda", device=A))
    bench.device.close()
    CudaDevice(WorkerSettings(kind="cuda", device=A)).close()


@pytest.mark.parametrize("mode", ["mps", "streams"])
@pytest.mark.parametrize("kind", ["cpu", "cuda"])
def test_modes_that_do_not_work_are_refused(mode: Any, kind: Any) -> None:
    with pytest.raises(ValueError, match=f"{mode} is not supported"):
        open_device(WorkerSettings(kind=kind, sharing_mode=mode))


def test_a_device_that_is_shared_otherwise_than_the_setting_says(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("mps")
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", str(folder))
    os.mkfifo(folder / "control")
    assert device_name.mps_daemon() is None, "a pipe that nobody reads"
    reader = os.open(folder / "control", os.O_RDONLY | os.O_NONBLOCK)
    try:
        with pytest.raises(ValueError, match="an MPS daemon answers"):
            open_device(WorkerSettings(kind="cuda", device=A))
    finally:
        os.close(reader)
    # Begun after the worker.
    bench.gpu.processes = [Process(pid=9, mib=1.0, mps=True)]
    assert "processes 9 use it through MPS" in bench.after().health()
