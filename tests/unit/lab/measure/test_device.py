"""What a profiling run takes from a GPU, on a machine of the fake NVML."""

from dataclasses import replace

import pytest

from lab.measure import device
from tests.support.nvml import Gpu, Instance, Machine, Process, install

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
