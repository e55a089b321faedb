"""The node service on a machine whose NVML is a table: real processes from the supervisor down, without a device."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from smore.messages.reports import Report
from smore.process.settings import Settings
from smore.redis.fleet import Fleet
from tests.support import nvml
from tests.support.eventually import eventually
from tests.support.nvml import DRIVER, Gpu, Instance, Machine
from worker.pool.standby import CONTEXT_MIB

ROOT = Path(__file__).resolve().parents[3]
#: Of no other test that runs at the same time.
NODE, SLICE = f"GPU-node-{os.getpid()}", f"MIG-node-{os.getpid()}"
MIG = Instance(uuid=SLICE, id=3, gpm={"sm": 0.0})


@pytest.fixture
def machine() -> Machine:
    return Machine(
        gpus=[
            Gpu(uuid=NODE, gpm={"sm": 0.25}, utilisation=0.5),
            Gpu(uuid="GPU-sliced", mig=[MIG]),
            Gpu(uuid="GPU-gone", errors={"*": "GPU_IS_LOST"}),
        ]
    )


@pytest.fixture
def home() -> Iterator[str]:
    """Short: a socket's path is 107 characters at most."""
    with tempfile.TemporaryDirectory(prefix="smore-", ignore_cleanup_errors=True) as folder:
        yield folder


@pytest.fixture
def node(
    config: Settings, redis_client: "redis.Redis", tmp_path: Path, home: str, machine: Machine
) -> Iterator["subprocess.Popen[bytes]"]:
    told = nvml.environment(tmp_path, machine) | {
        "PYTHONPATH": f"{DRIVER}{os.pathsep}{ROOT}",
        "SMORE_HOME": home,
        "SMORE_REDIS__URL": str(config.redis.url),
        # There is no CUDA behind that NVML.
        "SMORE_WORKER__STANDBY": "false",
        "SMORE_NODE__METRICS_PORT": "0",
    }
    inherited = {name: value for name, value in os.environ.items() if not name.endswith("VISIBLE_DEVICES")}
    with open(tmp_path / "log", "wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "worker.node"],
            env=inherited | told,
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
    yield process
    process.terminate()
    process.wait(60)


def test_gpus_that_work_are_served_and_one_that_is_lost_takes_nothing(
    node: "subprocess.Popen[bytes]", config: Settings, redis_client: "redis.Redis", tmp_path: Path, machine: Machine
) -> None:
    fleet = Fleet(redis_client, config.redis.prefix)

    def reports() -> dict[str, Report]:
        assert node.poll() is None, (tmp_path / "log").read_text()
        return {one.gpu: one for one in fleet.reports()}

    def with_sms() -> dict[str, Report] | None:
        found = reports()
        return found if len(found) == 2 and found[NODE].utilisation else None

    found = eventually(with_sms, within_s=30, what="reports of both")
    assert found.keys() == {NODE, SLICE}
    gpu, mig = found[NODE], found[SLICE]
    assert (gpu.kind, gpu.slots, gpu.health, gpu.utilisation_counter) == ("cuda", 8, "", "gpm-sm-util")
    assert (gpu.utilisation, gpu.counters["nvml-utilization"], gpu.memory_total_mib) == (0.25, 0.5, 143_171.0)
    assert (mig.kind, mig.slots, mig.utilisation_counter) == ("mig", 8, "gpm-sm-util")
    assert (gpu.context_mib, mig.context_mib) == (CONTEXT_MIB, CONTEXT_MIB), "nothing has begun to use them yet"
    machine.gpus[0].errors["*"] = "GPU_IS_LOST"
    machine.gpus[1].events.append((79, None))
    nvml.write(tmp_path / "nvml.json", machine)
    eventually(lambda: {one.slots for one in reports().values()} == {0}, what="no slots")
    assert {gpu: one.health.partition(":")[0] for gpu, one in reports().items()} == {
        NODE: "NVML says",
        SLICE: "it reported Xid 79",
    }
    machine.gpus[0].errors.clear()
    nvml.write(tmp_path / "nvml.json", machine)
    eventually(lambda: reports()[NODE].slots == 8, what="its return")
