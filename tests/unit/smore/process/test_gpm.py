"""What GPM says of a device, and that NVML's fake and every use of NVML agree with the installed nvidia-ml-py."""

import ast
import inspect
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pynvml
import pytest

from smore.process.gpm import Gpm
from tests.support import nvml
from tests.support.nvml import Gpu, Instance, Machine

ROOT = Path(__file__).parents[4]
BUSY = {"sm": 0.4, "occupancy": 0.1, "tensor": 0.2, "dram": 0.3, "graphics": 0.9}


def test_means_since_the_look_before(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = nvml.install(monkeypatch, Machine(gpus=[Gpu(uuid="GPU-a", gpm=BUSY)]))
    handle = pynvml.nvmlDeviceGetHandleByIndex(0)
    assert Gpm.supported(handle)
    gpm = Gpm(handle)
    assert gpm.sample() == pytest.approx(BUSY)
    fake.machine.gpus[0].gpm_failed = ["tensor", "occupancy"]
    found = gpm.sample()
    assert found is not None
    assert found.keys() == {"sm", "dram", "graphics"}
    gpm.close()
    assert not fake.samples, "samples of the driver that nobody freed"


def test_of_a_mig_instance_its_parent_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    slices = [Instance(uuid="MIG-a", id=7, gpm={"sm": 0.25}), Instance(uuid="MIG-b", id=9, gpm={"sm": 0.75})]
    nvml.install(monkeypatch, Machine(gpus=[Gpu(uuid="GPU-a", mig=slices)]))
    assert Gpm(pynvml.nvmlDeviceGetHandleByIndex(0), 9).sample() == {"sm": 0.75}


def test_a_driver_that_gives_none(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = nvml.install(monkeypatch, Machine(gpus=[Gpu(uuid="GPU-a")]))
    handle = pynvml.nvmlDeviceGetHandleByIndex(0)
    assert not Gpm.supported(handle)
    gpm = Gpm(handle)
    assert gpm.sample() is None
    fake.machine.gpus[0].gpm = BUSY
    assert gpm.sample() is None, "there is nothing before it"
    assert gpm.sample() == pytest.approx(BUSY)
    fake.machine.errors["nvmlGpmMetricsGet"] = "UNKNOWN"
    assert gpm.sample() is None
    fake.machine.gpus[0].errors["*"] = "GPU_IS_LOST"
    assert gpm.sample() is None
    gpm.close()
    assert not fake.samples


def test_the_fake_has_the_signatures_of_the_real_one() -> None:
    for name, own in inspect.getmembers(nvml.Fake, inspect.isfunction):
        if name.startswith("nvml"):
            real = inspect.signature(getattr(pynvml, name))
            assert list(real.parameters) == list(inspect.signature(own).parameters)[1:], name


def uses() -> Iterator[tuple[str, ast.Attribute, ast.Call | None]]:
    """Every name of NVML in the product's code, with the call where it is called."""
    for folder in ("smore", "worker", "ml", "bench"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            tree = ast.parse(path.read_text())
            calls = {id(node.func): node for node in ast.walk(tree) if isinstance(node, ast.Call)}
            for node in ast.walk(tree):
                if (
                    isinstance(node, ast.Attribute)
                    and node.attr.startswith(("nvml", "NVML", "c_nvml"))
                    and node.attr != "nvmlReturn"
                ):
                    yield f"{path.relative_to(ROOT)}:{node.lineno}", node, calls.get(id(node))


def test_every_name_and_call_is_the_installed_ones() -> None:
    found = list(uses())
    assert len(found) > 40
    for where, name, call in found:
        real = getattr(pynvml, name.attr, None)
        assert real is not None, f"{where}: nvidia-ml-py has no {name.attr}"
        if call is not None and inspect.isfunction(real):
            try:
                inspect.signature(real).bind(*call.args, **{one.arg: one for one in call.keywords if one.arg})
            except TypeError as error:
                pytest.fail(f"{where}: {name.attr}: {error}")


def test_another_process_sees_the_table(tmp_path: Path) -> None:
    machine = Machine(gpus=[Gpu(uuid="GPU-a"), Gpu(uuid="GPU-b", errors={"*": "GPU_IS_LOST"})])
    told = nvml.environment(tmp_path, machine)
    asked = """
import pynvml
pynvml.nvmlInit()
print(pynvml.nvmlDeviceGetUUID(pynvml.nvmlDeviceGetHandleByIndex(0)))
try:
    pynvml.nvmlDeviceGetHandleByIndex(1)
except pynvml.NVMLError_GpuIsLost as error:
    print(error)
"""
    done = subprocess.run(
        [sys.executable, "-c", asked], env=os.environ | told, text=True, stdout=subprocess.PIPE, check=True
    )
    assert done.stdout.splitlines() == ["GPU-a", "GPU is lost"]
