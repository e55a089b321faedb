"""What a profiling run takes from a GPU, on a machine of the fake NVML, and how it handles its members' members."""

import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from ml.measure import device, layers, processes, profile, rows
from ml.measure.rows import BadRow, DeviceMode
from tests.support.measured import function, solo, training
from tests.support.nvml import Gpu, Instance, Machine, Process, install

TRAINING, FUNCTION = training("bert", 4), function("vgg16")
H200 = Gpu(uuid="GPU-a", gpm={"sm": 0.4, "tensor": 0.2}, utilisation=0.9, processes=[Process(pid=7, mib=1000.0)])
USAGE = {"sm": 0.4, "tensor": 0.2, "nvml": 0.9}


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(device, "SAMPLE_S", 0.001)
    monkeypatch.setattr(device, "LAG_S", 0.0)


def sampled(watch: device.Watch) -> device.Usage:
    """Its usage, once NVML was asked more than once."""
    assert isinstance(watch, device._GpuWatch)
    if watch._rates is not None:
        while watch._rates._thread.is_alive() and len(watch._rates._samples) < 2:
            watch._rates._thread.join(0.001)
    return watch.usage()


def test_sms_at_work_are_counted_by_gpm_with_nvmls_own_beside(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = install(monkeypatch, Machine(gpus=[H200]))
    gpu = device.CudaGpu(0)
    assert (gpu.place.device, gpu.place.counter) == ("NVIDIA H200", "gpm-sm-util")
    usage = sampled(gpu.watch([7]))
    assert (usage.total, usage.counters) == (0.4, pytest.approx(USAGE))
    assert gpu.counters(7) == {"process_memory_bytes": 1000 * 2**20}
    assert gpu.counters(8) == {}
    assert not fake.samples, "a GPM sample was not freed"


def test_before_hopper_the_counter_is_nvmls_and_is_called_so(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, Machine(gpus=[replace(H200, gpm=None)]))
    gpu = device.CudaGpu(0)
    assert gpu.place.counter == "nvml-utilization"
    usage = sampled(gpu.watch([7]))
    assert (usage.total, usage.counters) == (0.9, {"nvml": 0.9})


def test_an_error_of_nvml_is_told_and_no_mean_is_taken_of_what_was_there(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    machine = Machine(gpus=[replace(H200, gpm=None, errors={"nvmlDeviceGetUtilizationRates": "GPU_IS_LOST"})])
    install(monkeypatch, machine)
    usage = sampled(device.CudaGpu(0).watch([7]))
    assert (usage.total, usage.memory, usage.counters) == (None, None, {})
    assert "left out" in capsys.readouterr().err


def test_what_nvml_says_in_the_first_second_is_not_the_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, Machine(gpus=[replace(H200, gpm=None)]))
    monkeypatch.setattr(device, "LAG_S", 1000.0)
    assert device.CudaGpu(0).watch([7]).usage().total is None


def test_a_mig_instance_has_gpm_of_its_own_and_its_gpu_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    slice_ = Instance(uuid="MIG-b", id=3, gpm={"sm": 0.7})
    install(monkeypatch, Machine(gpus=[replace(H200, gpm=None, mig=[slice_])]))
    with pytest.raises(device.BadDevice, match="MIG instances"):
        device.CudaGpu(0)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "MIG-b")
    gpu = device.CudaGpu(0)
    assert (gpu.place.device, gpu.place.counter) == (slice_.name, "gpm-sm-util")
    assert sampled(gpu.watch([7])).counters == {"sm": 0.7}


class Stub:
    """A device whose members are small programs that note what they are told."""

    torch_device = "cpu"
    preset = "cpu"
    place = DeviceMode(device="d", sharing_mode="time-slice", driver="2", counter="none")

    def __init__(self, log: Path) -> None:
        self._log = log
        self.started = 0

    def start(self, argv: Sequence[str], role: rows.Role) -> "subprocess.Popen[str]":
        self.started += 1
        name = argv[argv.index("--model") + 1]
        program = (
            f"import json, sys\nlog = open({str(self._log)!r}, 'a', buffering=1)\nprint('{{}}', flush=True)\nfor line"
            f" in sys.stdin:\n    print({name!r}, json.loads(line)['do'], file=log)\n    print('{{}}', flush=True)\n"
        )
        return subprocess.Popen(
            [sys.executable, "-S", "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def watch(self, pids: Sequence[int]) -> device.Watch:
        raise NotImplementedError

    def counters(self, pid: int) -> Mapping[str, float]:
        return {}


def test_members_load_together_and_rest_while_others_are_measured(tmp_path: Path) -> None:
    log = tmp_path / "log"
    device = Stub(log)
    members = processes.Processes(device)
    try:
        members.start([TRAINING, FUNCTION, FUNCTION])
        assert device.started == 2
        (bert,) = members.of([TRAINING])
        bert.ask(do="ready", batch=4)
        bert.answer()
        members.of([FUNCTION])
        # Not twice: it has not run since.
        members.of([FUNCTION])
    finally:
        members.end()
    assert log.read_text().split("\n")[:-1] == ["bert ready", "bert rest"]
    assert device.started == 2


def test_a_file_is_gone_on_with_under_another_driver_and_no_other_counter(tmp_path: Path) -> None:
    out = tmp_path / "rows.jsonl"
    device = Stub(tmp_path / "log")
    rows.write(out, solo(TRAINING, place=replace(device.place, driver="1")))
    campaign = profile.Campaign(device, out, window_s=1, command="")
    assert set(campaign._solo) == {TRAINING}
    with pytest.raises(BadRow, match="another input wait"):
        profile.Campaign(device, out, window_s=1, command="", wait="none")
    for other in (replace(device.place, counter="gpm-sm-util"), replace(device.place, device="e")):
        rows.write(out, solo(TRAINING, place=other))
        with pytest.raises(BadRow, match="use another file"):
            profile.Campaign(device, out, window_s=1, command="")
        out.write_text(out.read_text().splitlines(keepends=True)[0])


def test_a_process_that_died_while_it_rested_is_no_fault_of_the_run(tmp_path: Path) -> None:
    members = processes.Processes(Stub(tmp_path / "log"))
    try:
        (bert,) = members.of([TRAINING])
        bert.ask(do="ready", batch=4)
        bert.answer()
        bert._process.kill()
        bert._process.wait()
        assert members.of([FUNCTION])
        (other,) = members.of([TRAINING])
        assert other.pid != bert.pid
    finally:
        members.end()


def test_the_words_of_a_campaign(capsys: pytest.CaptureFixture[str]) -> None:
    given = ["--out", "x.jsonl", "--device", "cpu", "--solo", "2", "--positions", "1", "--order", "pairs", "--parallel"]
    options = profile.parse([*given, "--input-wait", "card"])
    assert (options.solo, options.positions, options.order, options.parallel) == (2.0, 1, "pairs", True)
    for wrong in (["--input-wait", "1"], ["--positions", "5"], ["--order", "first"], ["--solo", "0"]):
        with pytest.raises(SystemExit):
            profile.parse([*given, *wrong])


def test_copies_are_no_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    class Event:
        cpu_children = ()

        def __init__(self, name: str, us: float) -> None:
            self.name, self.device_time_total = name, us

    class Profiled:
        def __init__(self, **_: object) -> None: ...

        def __enter__(self) -> "Profiled":
            return self

        def __exit__(self, *_: object) -> None: ...

        def events(self) -> list[Event]:
            copies = [Event("Memcpy HtoD (Pageable -> Device)", 5000.0), Event("Memset (Device)", 2.0)]
            return [*copies, *(Event("ampere_sgemm", us) for us in (10.0, 20.0, 30.0))]

    monkeypatch.setattr("torch.profiler.profile", Profiled)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    assert layers.kernel_profile(lambda: None, cuda=True) == {"per_run": 1.0, "mean_us": 20.0, "longest_us": 30.0}
