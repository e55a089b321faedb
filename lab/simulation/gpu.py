"""A GPU instance as it is in a simulated run: what is resident and runs there, its run gate, integrals over time."""

from collections import deque
from dataclasses import dataclass
from math import inf
from typing import Final

from lab.simulation.interference import Contention
from lab.simulation.world import Gpu
from smore.domain.loss import Window

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
        "lanes",
        "lasted",
        "leased",
        "loaded_s",
        "loading",
        "loads",
        "report_due",
        "reported_windows",
        "running",
        "slow_s",
        "spec",
        "state",
        "used",
        "version",
        "window",
        "windows",
        "work_s",
        "worked",
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
        #: (time, work_s) at past reports; windows whose after side is to come, as (closed, opened); those that reports
        #: hold.
        self.worked: deque[tuple[float, float]] = deque()
        self.windows: deque[tuple[float, float]] = deque()
        self.reported_windows: deque[Window] = deque(maxlen=8)
        self.report_due = False
        #: The run gate: part of the time in which batches may start, whether none may because a window is closed, and
        #: those that wait until the gate changes.
        self.duty = 1.0
        self.closed = False
        self.held_back: list[RunningBatch] = []
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
        self.busy_s += busy * dt
        self.function_s += part * dt
        self.loaded_s += self.instances * dt
        self.executing_s += len(self.running) * dt

    def opens_at(self, now: float) -> float:
        """
        When a batch that comes at ``now`` may start: then if the run gate is open, inf = not before the gate changes.

        The gate stops starts, never a run.
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
        batches = [*self.held_back, *self.running, *(load.batch for load in self.loads if load.batch is not None)]
        functions = len(self.count)
        self.alive = False
        self.boot += 1
        self.version += 1
        self.running, self.loads, self.held_back, self.code, self.used, self.instances = [], [], [], 0, 0, 0
        self.leased.clear()
        self.idle, self.count, self.loading = [[] for _ in range(functions)], [0] * functions, [0] * functions
        return batches
