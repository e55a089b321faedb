"""Stages of the warm pool for tests: the real pool with runners that are no processes, on a clock of the test's."""

import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from smore.domain.function import FunctionSpec
from smore.domain.invocation import Cause
from smore.messages import stream
from smore.process.settings import WorkerSettings
from tests.support.eventually import eventually
from worker import frames
from worker.artifacts.runtime import RuntimeEnvironment
from worker.device.device import CpuPartition
from worker.frames import Loaded, Results
from worker.frames import Parked as ParkedAnswer
from worker.pool.loading import Supplies
from worker.pool.parked import ParkedInstances
from worker.pool.pool import Pool
from worker.pool.residents import Residents
from worker.pool.trainings import Trainings
from worker.runner.host_memory import HostBound
from worker.runner.runner_handle import RunnerDied
from worker.runner.zygote_handle import Zygote


class FakeRunner:
    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.ended = threading.Event()
        self.status: int | None = None
        self.ran_out = False
        self.bound = HostBound()
        self.gate = threading.Event()
        self.gate.set()

    def load(self, request: frames.Load, timeout_s: float) -> Loaded:
        self.loaded = request
        self.gate.wait(5)
        return Loaded(phases={"import": 1.0}, memory_mib=0.0, tensors=False)

    def unload(self) -> None:
        self.ended.set()

    end = unload


class Stage:
    """
    A pool on a CPU partition of ``memory_mib``, or on ``device``; the others as for :class:`Pool` and its residents. The
    figures of jobs are the test's to set.
    """

    def __init__(
        self,
        memory_mib: int = 300,
        *,
        device: Any = None,
        faulted: Callable[[str, int, str, Cause], None] = lambda *_: None,
        parked: ParkedInstances | None = None,
        beyond_mib: float = 0.0,
        changed: Callable[[], None] = lambda: None,
    ) -> None:
        self.now = 1000.0
        self.made: list[FakeRunner] = []
        self.jobs_mib = self.owed_mib = 0.0
        self.fork: Callable[[], Any] = self._fork
        self.supply: Callable[[str, FunctionSpec], Any] = self._supply
        self.supplied: list[str] = []
        takes = {"memory_mib": lambda: self.jobs_mib, "owed_mib": lambda: self.owed_mib, "growing": str}
        self.pool = Pool(
            residents=Residents(gpu="g", boot="", parked=parked, changed=changed, clock=lambda: self.now),
            device=device if device is not None else CpuPartition(WorkerSettings(memory_mib=memory_mib)),
            supplies=Supplies(
                zygote=cast(Zygote, SimpleNamespace(fork=lambda: self.fork())),
                runtime_of=lambda *which: self.supply(*which),
                results=Results(one=1, together=1),
            ),
            trainings=cast(Trainings, SimpleNamespace(**takes)),
            beyond_mib=beyond_mib,
            faulted=faulted,
        )

    def _supply(self, function: str, spec: FunctionSpec) -> RuntimeEnvironment:
        """On an environment of its own where it requires something."""
        self.supplied.append(f"+{function[2:]}")
        environment = Path("/environment") if spec.requirements else None
        return RuntimeEnvironment(
            Path("/code"), environment, {"fetch": 2.0}, [lambda: self.supplied.append(f"-{function[2:]}")]
        )

    def _fork(self) -> FakeRunner:
        self.made.append(FakeRunner(len(self.made) + 1))
        return self.made[-1]

    def acquire(self, name: str, *, wait_s: float = -1.0, **spec: object) -> Any:
        described = FunctionSpec(entrypoint="m:C", **{"memory_mib": 100.0} | spec)  # type: ignore[arg-type]
        return self.pool.acquire(f"p/{name}", 1, described, until=self.now + wait_s, wanted=lambda: True)

    def run(self, name: str, **spec: object) -> Any:
        seat = self.acquire(name, **spec)  # type: ignore[arg-type]
        self.now += 1
        self.pool.release(seat)
        return seat

    def warm(self) -> list[str]:
        return sorted(one.function[2:] for one in self.pool.status.warm())


class Killed(FakeRunner):
    spent = False

    def exhausted(self) -> bool:
        return self.spent

    def prepare(self, device: str, timeout_s: float) -> None:
        pass

    def kill(self, number: int = 9) -> None:
        self.ended.set()


def prewarm(stage: Stage, name: str, instances: int = 1, hold_s: float = 0.0, **spec: object) -> None:
    """Returns when what was begun is loaded."""
    described = FunctionSpec(entrypoint="m:C", **{"memory_mib": 100.0} | spec)  # type: ignore[arg-type]
    stage.pool.prewarm(f"p/{name}", 1, described, instances, hold_s)
    eventually(lambda: not [one for one in stage.pool.status.warm() if one.state == "loading"], what="the load")


def lifecycle_events(stage: Stage) -> dict[str, stream.Warmed]:
    """The events of instances by id, acknowledged as by a stream."""
    events = stage.pool.status.lifecycle_events()
    stage.pool.status.acknowledge(events)
    return {event.id: event for event in events}


class Parking(FakeRunner):
    def __init__(self, pid: int, stage: "Host") -> None:
        super().__init__(pid)
        self.stage = stage

    def park(self, timeout_s: float) -> ParkedAnswer:
        if self.stage.refused is not None:
            raise self.stage.refused
        self.stage.said.append(f"park {self.pid}")
        return ParkedAnswer(host_mib=80.0)

    def restore(self, timeout_s: float) -> Loaded:
        if self.stage.broken:
            self.ended.set()
            raise RunnerDied(-9)
        self.stage.said.append(f"restore {self.pid}")
        return Loaded(phases={"host": 3.0}, memory_mib=90.0, tensors=True)

    def kill(self, number: int = 9) -> None:
        self.ended.set()


class Host(Stage):
    """
    A GPU instance of 300 MiB; functions take 100 MiB, 80 of it weights, and what is parked keeps 10 MiB of the device.
    """

    def __init__(self, host_mib: float = 200.0) -> None:
        device = CpuPartition(WorkerSettings(memory_mib=300))
        device.runner_memory_mib = lambda pid: 10.0  # type: ignore[method-assign]
        self.parked = ParkedInstances(host_mib, keep_s=600.0)
        super().__init__(device=device, parked=self.parked)
        self.said: list[str] = []
        self.refused: Exception | None = None
        self.broken = False

    def _fork(self) -> FakeRunner:
        self.made.append(Parking(len(self.made) + 1, self))
        return self.made[-1]

    def offload(self, name: str) -> None:
        self.pool.offload(f"p/{name}", 1)
