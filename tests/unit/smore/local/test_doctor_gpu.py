"""What the doctor finds wrong with the GPUs of a machine, each of which looks otherwise as if functions failed."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from smore.local import gpu_checks
from smore.local.findings import Finding, Grade, Site
from smore.process.settings import Settings
from tests.support import nvml
from tests.support.nvml import Fake, Gpu, Machine


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    for path, value in (("dev/nvidia-uvm", ""), ("dev/nvidiactl", ""), ("proc/sys/vm/overcommit_memory", "0\n")):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(value)
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", str(tmp_path))
    monkeypatch.setattr(gpu_checks, "torch_cuda", lambda: "13.0")
    return Site(config=Settings(), redis_url=None, postgres_url=None, processes={}, root=tmp_path)


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Fake:
    return nvml.install(monkeypatch, Machine(gpus=[Gpu(uuid="GPU-a", fabric=3), Gpu(uuid="GPU-b")]))


def ills(place: Site) -> dict[str, Finding]:
    return {one.name: one for one in gpu_checks.nvml(place) if one.verdict is not Grade.OK}


def test_a_healthy_host(place: Site, fake: Fake) -> None:
    assert ills(place) == {}
    assert [one.found for one in gpu_checks.nvml(place)] == [
        "driver 580.95.05, 2 GPUs",
        "torch is built for 13.0, the driver supports 13.0",
    ]


def _set(name: str, value: object) -> Callable[[Gpu], None]:
    return lambda gpu: setattr(gpu, name, value)


@pytest.mark.parametrize(
    ("change", "name", "verdict"),
    [
        (_set("compute_mode", 3), "GPU 0 compute mode", Grade.BROKEN),
        (_set("persistence", False), "GPU 0 persistence", Grade.WARNING),
        (_set("mig_pending", True), "GPU 0 MIG", Grade.WARNING),
        (_set("remap_pending", True), "GPU 0 memory", Grade.WARNING),
        (_set("remap_failed", True), "GPU 0 memory", Grade.BROKEN),
        (_set("pages_pending", True), "GPU 0 memory", Grade.WARNING),
        (_set("fabric", 2), "GPU 0 fabric", Grade.BROKEN),
        (lambda gpu: gpu.errors.update({"*": "GPU_IS_LOST"}), "GPU 0", Grade.BROKEN),
    ],
)
def test_one_gpu(place: Site, fake: Fake, change: Callable[[Gpu], None], name: str, verdict: Grade) -> None:
    change(fake.machine.gpus[0])
    assert {one.name: one.verdict for one in ills(place).values()} == {name: verdict}


def test_what_a_driver_does_not_tell_is_no_finding(place: Site, fake: Fake) -> None:
    calls = "ComputeMode", "MigMode", "PersistenceMode", "RemappedRows", "RetiredPagesPendingStatus", "GpuFabricInfo"
    fake.machine.gpus[0].errors |= {f"nvmlDeviceGet{name}": "NOT_SUPPORTED" for name in calls}
    assert ills(place) == {}


def test_the_host(place: Site, fake: Fake, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "dev/nvidia-uvm").unlink()
    (tmp_path / "proc/sys/vm/overcommit_memory").write_text("2\n")
    fake.machine.cuda = 12_080
    os.mkfifo(tmp_path / "control")
    reader = os.open(tmp_path / "control", os.O_RDONLY | os.O_NONBLOCK)
    try:
        found = ills(place)
    finally:
        os.close(reader)
    assert found.keys() == {"CUDA", "GPU device files", "GPU address space", "MPS daemon"}
    assert found["CUDA"].found == "torch is built for CUDA 13.0, and the driver supports 12.8 at most"
    monkeypatch.setattr(gpu_checks, "torch_cuda", lambda: None)
    assert "a build without it" in ills(place)["CUDA"].found


def test_no_driver_and_one_that_does_not_answer(place: Site, fake: Fake, tmp_path: Path) -> None:
    fake.machine.errors["nvmlInit"] = "UNKNOWN"
    assert ills(place)["NVML"].verdict is Grade.BROKEN
    (tmp_path / "dev/nvidiactl").unlink()
    assert ills(place) == {}


def test_the_installed_torchs_cuda_is_read_without_importing_it() -> None:
    found = gpu_checks.torch_cuda()
    assert found is None or found[0].isdigit()
