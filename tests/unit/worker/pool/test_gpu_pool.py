"""
The warm pool on a GPU: room for contexts, for a training that grows and for processes of others, and a device that is
lost.
"""

import os
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import redis

from smore.domain.function import FunctionSpec
from smore.domain.invocation import Cause
from smore.domain.windows import Windows
from smore.process.observability import WORKER
from smore.process.settings import Settings, WorkerSettings
from tests.support import nvml
from tests.support.eventually import eventually
from tests.support.nvml import Gpu, Machine, Process
from tests.support.pool_stage import Killed
from worker.artifacts.runtime import RuntimeEnvironment
from worker.batches import Executor
from worker.device.device import CudaDevice
from worker.frames import Load, Loaded, Results
from worker.heartbeat import Heartbeat
from worker.pool.errors import LoadFailed, Unservable
from worker.pool.loading import Supplies
from worker.pool.parked import ParkedInstances
from worker.pool.pool import Pool
from worker.pool.residents import Residents
from worker.pool.standby import CONTEXT_MIB
from worker.pool.trainings import Trainings
from worker.runner.runner_handle import RunnerFailed
from worker.runner.zygote_handle import Zygote
from worker.training.job import SETTLED_ITERATIONS, SETTLED_S, UNTRACKED_SETTLED_S, Rank
from worker.training.jobs import Jobs
from worker.training.record import Record
from worker.training.run_gate import RunGate

#: Of no other test that runs at the same time.
UUID = f"GPU-p-{os.getpid()}"
NO_DRIVER = "RuntimeError: The NVIDIA driver on your system is too old (found version 12080)."
CONTEXT = 500.0


class Runner(Killed):
    """Holds a context and what it loads."""

    def __init__(self, pid: int, stage: "Stage") -> None:
        super().__init__(pid)
        self.stage = stage

    def _hold(self, mib: float) -> None:
        self.stage.gpu.processes = [one for one in self.stage.gpu.processes if one.pid != self.pid] + [
            Process(pid=self.pid, mib=mib)
        ]

    def prepare(self, device: str, timeout_s: float) -> None:
        self.stage.prepared += 1
        if self.stage.fails:
            raise RunnerFailed(Cause.HANDLER_ERROR, self.stage.fails)
        self._hold(CONTEXT)

    def load(self, request: Load, timeout_s: float) -> Loaded:
        if message := self.stage.load_fails or self.stage.fails:
            raise RunnerFailed(Cause.HANDLER_ERROR, message)
        self._hold(CONTEXT + request.memory_mib)
        return super().load(request, timeout_s)

    def park(self, timeout_s: float) -> Any:
        self._hold(CONTEXT)
        return SimpleNamespace(host_mib=100.0)

    def restore(self, timeout_s: float) -> Loaded:
        return self.load(self.loaded, timeout_s)

    def unload(self) -> None:
        self.stage.gpu.processes = [one for one in self.stage.gpu.processes if one.pid != self.pid]
        self.ended.set()

    end = unload

    def kill(self, number: int = 9) -> None:
        self.unload()


class Stage:
    """A GPU of 10 GiB, empty at first."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, standby: bool = False, host_mib: float = 0.0) -> None:
        self.now = 1000.0
        self.gpu = Gpu(uuid=UUID, total_mib=10_240.0, reserved_mib=0.0)
        nvml.install(monkeypatch, Machine(gpus=[self.gpu]))
        self.device = CudaDevice(WorkerSettings(kind="cuda", device=UUID), clock=lambda: self.now)
        self.made: list[Runner] = []
        self.jobs_mib = self.owed_mib = 0.0
        self.growing = self.fails = self.load_fails = ""
        self.prepared = 0
        self.told: list[str] = []
        self.gate: RunGate | None = None
        parked = ParkedInstances(host_mib, 600.0)
        takes = SimpleNamespace(
            memory_mib=lambda: self.jobs_mib, owed_mib=lambda: self.owed_mib, growing=lambda: self.growing
        )
        self.pool = Pool(
            residents=Residents(gpu="g", boot="", parked=parked, changed=lambda: None, clock=lambda: self.now),
            device=self.device,
            supplies=Supplies(
                zygote=cast(Zygote, SimpleNamespace(fork=self._fork)),
                runtime_of=lambda *_: RuntimeEnvironment(Path("/code"), None, {}),
                results=Results(one=1, together=1),
            ),
            trainings=cast(Trainings, takes),
            standby=standby,
            window_over=lambda: self.gate is None or self.gate.window_over(30.0),
            faulted=lambda function, *_: self.told.append(function),
        )

    def _fork(self) -> Runner:
        self.made.append(Runner(len(self.made) + 1, self))
        return self.made[-1]

    def look(self) -> list[str]:
        """A heartbeat."""
        self.now += 0.5
        self.device.sample()
        return [one.function[2:] for one in self.pool.relieve()]

    def acquire(self, name: str, memory_mib: float = 1000.0) -> Any:
        spec = FunctionSpec(entrypoint="m:C", memory_mib=memory_mib)
        return self.pool.acquire(f"p/{name}", 1, spec, until=self.now - 1, wanted=lambda: True)

    def run(self, name: str, memory_mib: float = 1000.0) -> None:
        seat = self.acquire(name, memory_mib)
        self.look()
        self.pool.release(seat)

    def warm(self) -> dict[str, float]:
        return {one.function[2:]: one.memory_mib for one in self.pool.status.warm()}

    def standby(self) -> bool:
        return self.pool._standby.runner is not None

    def upkeep(self) -> None:
        """A round of the upkeep, in this thread."""
        self.pool.upkeep.round()


@pytest.fixture
def stages(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    made: list[Stage] = []

    def make(**settings: Any) -> Stage:
        made.append(Stage(monkeypatch, **settings))
        return made[-1]

    yield make
    for stage in made:
        stage.device.close()


def test_a_load_needs_room_for_its_context(stages: Any) -> None:
    stage = stages()
    stage.acquire("a", memory_mib=9000.0)
    stage.look()
    with pytest.raises(Unservable, match="no room"):
        stage.acquire("b", memory_mib=700.0)
    stage.acquire("c", memory_mib=10_240.0 - 9000.0 - CONTEXT - CONTEXT_MIB)
    with pytest.raises(LoadFailed, match="this GPU instance has 10240 MiB"):
        stage.acquire("d", memory_mib=10_000.0)


def test_the_driver_says_what_every_process_holds(stages: Any) -> None:
    stage = stages()
    stage.run("a")
    assert stage.warm() == {"a": 1000.0 + CONTEXT}
    stage.gpu.processes[0].mib = 1900.0
    stage.look()
    assert stage.warm() == {"a": 1900.0} and stage.pool.status.memory_used_mib() == 1900.0


def test_memory_beyond_what_was_declared(stages: Any) -> None:
    """Taken past torch's allocator, which knows its bound."""
    stage = stages()
    seat = stage.acquire("a")
    stage.gpu.processes[0].mib = 1000.0 + CONTEXT_MIB + 500.0
    assert stage.look() == [], "a context grows with what is used of the libraries"
    stage.gpu.processes[0].mib = 1000.0 + CONTEXT_MIB + 600.0
    assert stage.look() == ["a"] and seat.instance.evicted is Cause.OUT_OF_MEMORY


def test_what_others_hold_is_no_room(stages: Any) -> None:
    """A stranger beside whom functions may run, a process of another container: nobody has told of them."""
    stage = stages()
    stage.gpu.processes = [Process(pid=999, mib=8500.0)]
    stage.look()
    with pytest.raises(Unservable, match="no room"):
        stage.acquire("a", memory_mib=1500.0)
    stage.owed_mib = 500.0
    with pytest.raises(Unservable, match="no room"):
        stage.acquire("a", memory_mib=1000.0)
    stage.owed_mib = 0.0
    stage.acquire("a", memory_mib=1000.0)
    for _ in range(2):
        # At once, when the driver has not been asked since, and later.
        with pytest.raises(Unservable, match="no room"):
            stage.acquire("b", memory_mib=100.0)
        stage.look()


def test_a_training_that_grows_has_the_rest(stages: Any) -> None:
    stage = stages(standby=True, host_mib=1000.0)
    stage.run("a")
    busy = stage.acquire("b")
    stage.upkeep()
    assert stage.standby()
    stage.growing = "The training t grows."
    stage.look()
    stage.upkeep()
    assert not stage.standby() and list(stage.warm()) == ["b"], "what idles is parked, what runs goes on"
    assert [one.function for one in stage.pool.status.parked()] == ["p/a"]
    for name in "ac":
        with pytest.raises(Unservable, match="grows"):
            stage.acquire(name)
    stage.pool.release(busy)
    stage.pool.prewarm("p/c", 1, FunctionSpec(entrypoint="m:C", memory_mib=100.0))
    stage.upkeep()
    assert not stage.warm() and not stage.standby()
    stage.growing = ""
    assert stage.acquire("a").instance.runner.pid == 1, "out of host memory"


def test_what_becomes_a_loads_own_is_part_of_what_it_needs(stages: Any) -> None:
    stage = stages(host_mib=1000.0)
    stage.run("a")
    stage.pool.offload("p/a", 1)
    stage.gpu.processes.append(Process(pid=999, mib=10_240.0 - CONTEXT - 1000.0))
    stage.look()
    with pytest.raises(Unservable, match="no room"):
        stage.acquire("b", memory_mib=1000.0)
    assert [one.function for one in stage.pool.status.parked()] == ["p/a"], "to end it would not help"
    assert stage.acquire("a").instance.runner.pid == 1, "its context is there"


def test_a_standby_runner_only_where_there_is_room(stages: Any) -> None:
    stage = stages(standby=True)
    stage.gpu.used_mib = 10_240.0 - CONTEXT_MIB
    stage.look()
    stage.upkeep()
    assert not stage.prepared
    stage.gpu.used_mib, stage.owed_mib = 9000.0, 800.0
    stage.look()
    stage.upkeep()
    assert not stage.prepared, "what is free is owed to a training"
    stage.owed_mib = 0.0
    stage.upkeep()
    assert stage.standby() and stage.pool.status.memory_used_mib() == CONTEXT_MIB
    assert stage.pool.status.context_mib() == CONTEXT_MIB, "assumed until one is measured"
    stage.look()
    assert stage.pool.status.memory_used_mib() == CONTEXT, "what a context takes is measured with the first"
    assert stage.pool.status.context_mib() == CONTEXT
    # It becomes the load's own, which does not need room for two.
    stage.gpu.used_mib = 10_240.0 - 1100.0
    stage.look()
    stage.acquire("a", memory_mib=1000.0)


def test_no_standby_runner_is_tried_for_ever(stages: Any) -> None:
    stage = stages(standby=True)
    stage.fails = "torch.OutOfMemoryError: CUDA out of memory."
    tried = []
    for _ in range(200):
        stage.now += 1
        stage.device.sample()
        before = stage.prepared
        stage.upkeep()
        tried += [stage.now] * (stage.prepared - before)
    pauses = [after - before for before, after in pairwise(tried)]
    assert pauses[:6] == [1, 2, 4, 8, 16, 32] and max(pauses) == 60
    assert stage.pool.health() == "", "that there is no room is no fault of the device"


def test_a_lost_gpu_takes_nothing_and_blames_nobody(stages: Any) -> None:
    stage = stages()
    stage.run("a")
    seat = stage.acquire("a")
    stage.gpu.errors["*"] = "GPU_IS_LOST"
    stage.look()
    assert "GPU is lost" in stage.pool.health()
    for name in "ab":
        with pytest.raises(Unservable, match="Nothing can run on g: NVML says: GPU is lost"):
            stage.acquire(name)
    seat.runner.status = -6
    for number in range(4):
        stage.pool.crashed(seat, f"i{number}", Cause.CRASHED)
    assert not stage.told and not stage.pool.status.quarantined()
    stage.pool.release(seat, healthy=False)
    stage.gpu.errors.clear()
    stage.look()
    stage.acquire("a")


def test_loads_that_fail_with_the_gpu_are_given_back(stages: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The load fails before anybody has looked."""
    stage = stages()
    stage.load_fails = "torch.AcceleratorError: CUDA error: unknown error"

    def refresh() -> None:
        stage.gpu.errors["*"] = "RESET_REQUIRED"
        stage.device.sample()

    monkeypatch.setattr(stage.device, "refresh", refresh)
    with pytest.raises(Unservable, match="GPU requires restart"):
        stage.acquire("a")
    assert not stage.pool.status.quarantined() and not stage.told


def test_where_no_process_can_begin_to_use_the_device(stages: Any) -> None:
    stage = stages()
    stage.fails = NO_DRIVER
    with pytest.raises(Unservable, match="too old"):
        stage.acquire("a")
    assert NO_DRIVER in stage.pool.health() and stage.prepared == 1, "a process without a handler fails too"
    stage.upkeep()
    assert stage.prepared == 1
    stage.fails, stage.now = "", stage.now + 2
    stage.device.sample()
    stage.upkeep()
    assert stage.pool.health() == "" and not stage.standby(), "nobody has asked for one"
    stage.acquire("a")


def test_a_handler_that_only_says_so_fails(stages: Any) -> None:
    stage = stages()
    stage.load_fails = NO_DRIVER
    with pytest.raises(LoadFailed, match="too old"):
        stage.acquire("a")
    assert stage.pool.health() == ""


def test_work_for_the_device_is_no_part_of_a_closed_window(stages: Any) -> None:
    stage = stages()
    stage.run("a")
    stage.gate = RunGate(stage.pool.activity)
    stage.gate.protect({"j"})
    stage.gate.shut(until=0.0)
    seen: list[bool] = []
    stage.made[0].unload = lambda: seen.append(stage.pool.activity.wait_idle(0))
    stage.pool.start()
    try:
        # Its keep-alive is over. The keeper waits for the window's end, not this test for the keeper.
        stage.now += 10_000
        with stage.pool._residents.lock:
            stage.pool._residents.upkeep.notify()
        eventually(lambda: stage.gate._changed._waiters, what="the keeper at the gate")
        assert not seen
        stage.gate.reopen()
        eventually(lambda: seen, what="its end")
        assert seen == [False], "it counts as work of functions"
    finally:
        stage.gate = None
        stage.pool.close()


def test_what_is_reported(stages: Any) -> None:
    stage = stages()
    ranks = SimpleNamespace(
        memory_mib=lambda: stage.jobs_mib, growing=lambda: stage.growing, pids=list, cpu_s=lambda: 0.0
    )
    jobs = SimpleNamespace(ranks=ranks, reports=list, aged=list)
    beat = Heartbeat(
        config=Settings(),
        boot="b",
        client=redis.Redis(),
        device=stage.device,
        pool=stage.pool,
        gate=RunGate(stage.pool.activity),
        executor=cast(Executor, SimpleNamespace(draining=False, batches=lambda: 0)),
        jobs=cast(Jobs, jobs),
        zygotes=list,
        node="here",
        address="10.0.0.7",
    )
    stage.gpu.utilisation = 0.5
    stage.run("a")
    found = beat._compose()
    assert (found.slots, found.health, found.memory_used_mib) == (8, "", 1000.0 + CONTEXT)
    assert WORKER.get_sample_value("smore_gpu_healthy", {"gpu_instance": found.gpu}) == 1
    assert (found.utilisation_counter, found.counters) == ("nvml-utilization", {"nvml-utilization": 0.5})
    stage.growing = "The training t grows."
    assert beat._compose().memory_used_mib == 10_240.0, "the leader sends nothing that would have to be loaded"
    stage.gpu.errors["*"] = "GPU_IS_LOST"
    stage.look()
    found = beat._compose()
    assert (found.slots, found.health) == (0, "NVML says: GPU is lost")
    assert WORKER.get_sample_value("smore_gpu_healthy", {"gpu_instance": found.gpu}) == 0


class Steps:
    count = 0


@pytest.fixture
def job() -> Rank:
    record = Record(id="t", project="p", name="n", argv=[], pid=1, start=1, boot="b", token="", gpu="g")
    return Rank(record, Steps(), Windows(seed="s", share=0.0, longest_s=1.0, since=0.0))  # type: ignore[arg-type]


def test_when_a_training_has_found_its_size(job: Rank) -> None:
    def at(mono: float, peak_mib: float, iterations: int) -> bool:
        job.record.peak_mib, job.reader.count = peak_mib, iterations
        job.note_peak(mono)
        return job.growing(mono)

    assert at(0, 0.0, 0) and at(10_000, 0.0, 0), "nothing of it is seen on the device"
    assert at(10_010, 500.0, 0), "its context"
    assert at(10_020, 60_000.0, 1), "its first iteration"
    assert at(10_020 + SETTLED_S, 60_000.0, SETTLED_ITERATIONS), "too few of them"
    assert at(10_019 + SETTLED_S, 60_000.0, 10_000), "too short"
    assert not at(10_020 + SETTLED_S, 60_500.0, SETTLED_ITERATIONS + 1), "and a hundredth more is no growth"
    assert at(10_021 + SETTLED_S, 62_000.0, 20_000)


def test_a_training_that_tells_no_iterations(job: Rank) -> None:
    job.record.peak_mib = 500.0
    job.note_peak(0.0)
    assert job.growing(UNTRACKED_SETTLED_S - 1) and not job.growing(UNTRACKED_SETTLED_S), "it may be reading its data"
    job.record.attached = True
    assert not job.growing(SETTLED_S), "one that was found has begun"
    job.record.attached, job.record.memory_mib = False, 60_000.0
    assert not job.growing(0.0), "what it needs was said"
