"""A whole platform in processes, as a test sees it, and what it runs on."""

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Protocol

import pytest
import redis

from lab.bench.servers import pid_of
from smore.local import layout, machine
from smore.messages.reports import Report
from smore.postgres.connection import make_engine
from smore.postgres.predictors import Profiles
from smore.redis.fleet import Fleet
from smore_client import Client
from tests.support.eventually import PATIENCE, eventually

ROOT = Path(__file__).resolve().parents[2]
#: Settings under which the gateway is attacked and functions want out: bounds that a test can reach, or wait for.
BOUNDED = {
    "SMORE_API__HEAD_S": "2",
    "SMORE_API__STALL_S": "2",
    "SMORE_API__MAX_CONNECTIONS": "300",
    "SMORE_API__MAX_CONNECTIONS_PER_SENDER": "100",
    "SMORE_BLOBS__PROJECT_BYTES": str(64 << 20),
    # Forking 256 times a process that has torch in it takes seconds, and shows nothing else.
    "SMORE_WORKER__PROCESSES": "48",
}
#: Settings under which processes are killed. Where an fsync takes long, a Redis of standard durability answers up to two
#: seconds before it writes. Anybody may start the training that needs no torch.
STRICT = {
    "SMORE_REDIS__DURABILITY": "strict",
    "SMORE_JOB_ENTRYPOINTS": '["zoo.train", "tests.support.light_training"]',
}
#: A training that lets others have nearly all of its core, as an entry point and as a program.
LIGHT = ("tests.support.light_training", "0.1")
BYSTANDER = (sys.executable, "-m", *LIGHT)


@dataclass(frozen=True, kw_only=True)
class Platform:
    home: Path
    url: str
    key: str
    client: Client
    redis: "redis.Redis"

    @cached_property
    def gpu(self) -> str:
        """The GPU instance."""
        (gpu,) = eventually(lambda: self.client.gpus(), 30, "the GPU instance")
        return gpu.id

    @property
    def worker(self) -> str:
        """The name of its worker's process."""
        return f"worker-{self.gpu}"

    def pid(self, name: str) -> int:
        return eventually(lambda: pid_of(self.home, name), what=f"{name} running")

    def leader_pid(self) -> int:
        raw = eventually(lambda: self.redis.get("smore:leader:process"), what="a leader")
        assert isinstance(raw, bytes)
        return int(raw.decode().rpartition(":")[2])

    @contextmanager
    def unlearning(self) -> Iterator[None]:
        """No predictor is fitted or published for the length of a ``with``."""
        end = machine.endpoints(self.home)
        assert end is not None
        engine = make_engine(end.postgres_url, "test")
        with Profiles(engine).exclusive(wait=True):
            yield
        engine.dispose()

    def reports(self) -> list[Report]:
        return Fleet(self.redis, "smore:").reports()

    def runner_pids(self, function: str) -> list[int]:
        return [
            warm.pid
            for report in self.reports()
            for warm in report.warm
            if warm.pid and warm.function == f"default/{function}"
        ]

    def deploy(self, name: str, entrypoint: str, **spec: object) -> None:
        body = {
            "apiVersion": "smore/v1",
            "kind": "Function",
            "metadata": {"name": name},
            "spec": {"entrypoint": entrypoint, **spec},
        }
        self.client.deploy(body)


class Platforms(Protocol):
    """Gives the platform with these settings in its environment."""

    def __call__(self, settings: Mapping[str, str], home: Path | None = None) -> Platform: ...


@contextmanager
def second_worker(platform: Platform, gpu: str = "second") -> Iterator[None]:
    """Another GPU worker of the platform's home, on the same cores. What runs there must have ended."""
    end = machine.endpoints(platform.home)
    assert end is not None
    (first,) = layout.plan_partitions(sorted(os.sched_getaffinity(0)), 1)
    variables = os.environ | {
        "PYTHONPATH": os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH")))),
        "SMORE_HOME": str(platform.home),
        "SMORE_REDIS__URL": end.redis_url,
        "SMORE_POSTGRES__URL": end.postgres_url,
        "SMORE_WORKER__GPU": gpu,
        "SMORE_WORKER__KIND": first.kind,
        "SMORE_WORKER__DEVICE": first.device,
        "SMORE_METRICS_PORT": "0",
    }
    with open(platform.home / "logs" / f"worker-{gpu}.log", "wb") as log:
        worker = subprocess.Popen([sys.executable, "-m", "worker.app"], env=variables, cwd=ROOT, stdout=log, stderr=log)
    try:
        eventually(lambda: gpu in {report.gpu for report in platform.reports()}, 30, "the second worker")
        yield
    finally:
        worker.terminate()
        worker.wait(30 * PATIENCE)
        # It never was, for the modules to come.
        platform.redis.srem("smore:gpus", gpu)
        platform.redis.delete(f"smore:gpu:{gpu}")


def partitions() -> int | tuple[layout.Partition, ...]:
    """What the platform runs on. Skips where a GPU is asked for and there is none."""
    if os.environ.get("SMORE_TEST_DEVICE", "cpu") == "cpu":
        return 1
    found = layout.gpu_partitions()
    if not found:
        pytest.skip("NVML finds no GPU")
    return found[:1]
