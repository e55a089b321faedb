"""
Runners on a real GPU, without a platform and its servers. Every test here skips where torch finds no CUDA device.

``pytest --confcutdir tests/gpu tests/gpu`` needs none of the packages that the other tests do.
"""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from lab.bench import confinement
from smore.process.settings import WorkerSettings
from tests.support.nursery import nursery
from worker.device.device import Device, open_device
from worker.frames import Load, Results
from worker.runner.runner_handle import Runner
from worker.runner.zygote_handle import Zygote

RESULTS = Results(one=1 << 20, together=1 << 20)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    absent = pytest.mark.skip(reason=f"torch {torch.__version__} finds no CUDA device")
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.gpu)
            if not torch.cuda.is_available():
                item.add_marker(absent)


@pytest.fixture(scope="session")
def zygote(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Zygote]:
    """Shuts its runners in, as a GPU worker's does."""
    made = confinement.zygote(tmp_path_factory.mktemp("zygote") / "home", nursery(), shut=True, device="cuda")
    yield made
    made.close()


@pytest.fixture
def runner(zygote: Zygote) -> Iterator[Callable[..., Runner]]:
    """``runner(entrypoint, memory_mib=…)``: a runner on the device with that handler of tests/gpu/handlers.py."""
    made: list[Runner] = []

    def make(entrypoint: str, *, memory_mib: float = 1024.0) -> Runner:
        one = zygote.fork()
        made.append(one)
        one.prepare("cuda", 60)
        load = Load(
            entrypoint=f"tests.gpu.handlers:{entrypoint}",
            device="cuda",
            memory_mib=memory_mib,
            label=entrypoint,
            results=RESULTS,
        )
        one.load(load, 60)
        return one

    yield make
    for one in made:
        one.end()


@pytest.fixture(scope="session")
def device() -> Iterator[Device]:
    name = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")[0] or "0"
    made = open_device(WorkerSettings(gpu="gpu0", kind="mig" if name.startswith("MIG-") else "cuda", device=name))
    made.start()
    yield made
    made.close()
