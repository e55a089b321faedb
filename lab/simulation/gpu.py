"""A GPU instance as it is in a simulated run: what is resident and runs there, its run gate, integrals over time."""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from math import inf
from typing import Final

from lab.simulation.interference import Contention
from lab.simulation.windows import Probe
from lab.simulation.world import Gpu

#: A throttled run gate is open for the first part of every such period, seconds.
DUTY_PERIOD_S: Final = 1.0
#: The longest of so many runs is reported (worker/pool/status.py).
LASTED: Final = 50


@dataclass(slots=True, eq=False)
class RunningBatch:
    """
    ``left``: seconds of work, alone; ``cold``: it waits, or waited, for a load, ``ahead`` for one that began before it
    arrived (then it does not count as a cold start).
    """

    function: int
    members: list[int]
    rows: int
    kind: int
    code: int
    left: float
    cold: bool = False
    ahead: bool = False
    start: float = 0.0


@dataclass(slots=True, eq=False)
class Load:
    """An instance on its way; without a batch it was loaded ahead."""

    function: int
    batch: RunningBatch | None
    boot: int
    began: float


class SimulatedGpu:
    """A GPU instance as it is. ``*_s`` are integrals over time: see :data:`lab.simulation.result.GPU_COLUMNS`."""

    __slots__ = (
        "alive",
        "alive_s",
        "at",
        "began",
        "boot",
        "busy_s",
        "closed",
        "code",
        "contention",
        "count",
        "duty",
        "executing_s",
        "free_mib",
        "function_s",
        "held_back",
        "idle",
        "index",
        "instances",
        "iteration_at",
        "iterations",
        "lanes",
        "lasted",
        "leased",
        "lengths",
        "loaded_s",
        "loading",
        "loads",
        "met",
        "probe",
        "report_due",
        "running",
        "slow_s",
        "spec",
        "state",
        "stopped",
        "used",
        "version",
        "window",
        "work_s",
    )

    def __init__(self, index: int, spec: Gpu, contention: Contention, functions: int, free_mib: float) -> None:
        self.index, self.spec, self.contention = index, spec, contention
        self.alive, self.boot = True, 0
        self.at = self.alive_s = self.slow_s = self.work_s = self.busy_s = self.function_s = self.loaded_s = (
            self.executing_s
        ) = 0.0
        self.code, self.version, self.used, self.instances = 0, 0, 0, 0
        self.state = contention.state(0)
        self.running: list[RunningBatch] = []
        #: By function: since when each idle instance is idle (oldest first), resident instances, loading ones.
        self.idle: list[list[float]] = [[] for _ in range(functions)]
        self.count = [0] * functions
        self.loading = [0] * functions
        self.loads: list[Load] = []
        #: Function → instances that are kept whatever their keep-alive says, and until when.
        self.leased: dict[int, tuple[int, float]] = {}
        #: By function: how long its last runs took.
        self.lasted: list[deque[float]] = [deque(maxlen=LASTED) for _ in range(functions)]
        self.free_mib = free_mib
        #: (time, slow_s, alive_s, busy_s, function_s) at past reports.
        self.window: deque[tuple[float, float, float, float, float]] = deque([(0.0, 0.0, 0.0, 0.0, 0.0)])
        #: What measures the training, None = nothing does; its iterations that were not looked at, as (end, seconds,
        #: whether a function was at work meanwhile); of the present one when it began, at which ``work_s`` it ends, and
        #: whether a function was at work; the work of those to come, seconds alone.
        self.probe: Probe | None = None
        self.iterations: list[tuple[float, float, bool]] = []
        self.began, self.iteration_at, self.met = 0.0, inf, False
        self.lengths: Iterator[float] = iter(())
        self.report_due = False
        #: The run gate: part of the time in which batches may start, whether none may because a window is closed,
        #: those that wait until the gate changes, and those that the window has stopped (None: it stops none).
        self.duty = 1.0
        self.closed = False
        self.held_back: list[RunningBatch] = []
        self.stopped: list[RunningBatch] | None = None
        #: (function, rows) → (kind, code, seconds alone).
        self.lanes: dict[tuple[int, int], tuple[int, int, float]] = {}

    def advance(self, now: float) -> None:
        """Charge the time since the last change at the speeds that held."""
        dt = now - self.at
        if dt <= 0.0:
            return
        self.at = now
        if not self.alive:
            return
        slow, busy, part, slows = self.state
        for batch in self.running:
            batch.left -= dt / slows[batch.kind]
        self.alive_s += dt
        self.slow_s += slow * dt
        self.work_s += dt / slow
        self.met = self.met or self.code > 0
        while self.work_s >= self.iteration_at:
            end = now - (self.work_s - self.iteration_at) * slow
            self.iterations.append((end, end - self.began, self.met))
            self.began, self.met = end, self.code > 0
            self.iteration_at += next(self.lengths)
        self.busy_s += busy * dt
        self.function_s += part * dt
        self.loaded_s += self.instances * dt
        self.executing_s += len(self.running) * dt

    def begin(self, batch: RunningBatch) -> None:
        """It runs; or will, where a window has stopped what runs."""
        if self.stopped is not None:
            self.stopped.append(batch)
            return
        self.running.append(batch)
        self.code += batch.code

    def stop(self) -> None:
        """What runs stands still until :meth:`go_on`. The GPU instance must have been advanced to now."""
        self.stopped, self.running = self.running, []
        self.code -= sum(batch.code for batch in self.stopped)

    def go_on(self) -> None:
        """The same; without effect where nothing was stopped."""
        stopped, self.stopped = self.stopped or (), None
        for batch in stopped:
            self.begin(batch)

    def opens_at(self, now: float) -> float:
        """
        When a batch that comes at ``now`` may start: then if the run gate is open, inf = not before the gate changes.

        A throttle stops starts, never a run.
        """
        phase = now % DUTY_PERIOD_S
        if self.closed or (self.duty < 1.0 and phase >= self.duty * DUTY_PERIOD_S):
            return now + DUTY_PERIOD_S - phase if self.duty > 0.0 and not self.closed else inf
        return now

    def kept(self, function: int, now: float) -> int:
        """Instances of a function that are kept whatever their keep-alive says."""
        instances, until = self.leased.get(function, (0, 0.0))
        return instances if now < until else 0

    def totals(self) -> tuple[float, ...]:
        return (self.alive_s, self.slow_s, self.work_s, self.busy_s, self.function_s, self.loaded_s, self.executing_s)

    def take_back(self) -> list[RunningBatch]:
        """It fails: nothing is resident and nothing runs; returns the batches that it had."""
        standing = (*self.held_back, *(self.stopped or ()))
        batches = [*standing, *self.running, *(load.batch for load in self.loads if load.batch is not None)]
        functions = len(self.count)
        self.alive = self.closed = False
        self.boot += 1
        self.version += 1
        self.probe, self.stopped = None, None
        self.running, self.loads, self.held_back, self.code, self.used, self.instances = [], [], [], 0, 0, 0
        self.leased.clear()
        self.idle, self.count, self.loading = [[] for _ in range(functions)], [0] * functions, [0] * functions
        return batches
