"""A model that a GPU worker holds: loading, warm, at work, parked or leaving."""

from dataclasses import dataclass, field

from smore.domain.function import FunctionSpec
from smore.domain.invocation import Cause
from smore.messages.reports import WarmState
from worker.artifacts.needs import Supply
from worker.pool.lifecycle import Life
from worker.pool.quarantine import Key
from worker.runner.processes import Runner


@dataclass(eq=False, slots=True)
class Instance:
    """A resident model; everything that changes is guarded by the pool."""

    function: str
    revision: int
    spec: FunctionSpec
    memory_mib: float
    life: Life
    state: WarmState = WarmState.LOADING
    runner: Runner | None = None
    #: Milliseconds by phase.
    phases: dict[str, float] = field(default_factory=dict)
    used_at: float = 0.0
    loaded_at: float = 0.0
    measured_at: float = 0.0
    #: On its way out: counted in memory until its process has ended, given to nobody.
    leaving: bool = False
    #: Why it never became ready.
    failure: Exception | None = None
    #: Of an uploaded function: what it stands on.
    supply: Supply | None = None
    #: What its runner holds in common with others, MiB: found when it is measured, and subtracted from quick looks
    #: until the next time.
    shared_mib: float = 0.0
    #: Ended for its memory: OUT_OF_MEMORY = it took more than it may, WORKER_BUSY = training needed it.
    evicted: Cause | None = None
    #: Whether it has had a holder.
    used: bool = False

    @property
    def key(self) -> Key:
        return self.function, self.revision

    @property
    def label(self) -> str:
        return f"{self.function}@{self.revision}"
