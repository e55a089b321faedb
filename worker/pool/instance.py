"""One warm instance of the pool: a handler that is loading, idle, busy, parked or leaving."""

from dataclasses import dataclass, field

from smore.domain.function import FunctionSpec
from smore.domain.invocation import Cause
from smore.messages.reports import WarmState
from worker.artifacts.runtime import RuntimeEnvironment
from worker.pool.lifecycle import Lifecycle
from worker.pool.quarantine import Key
from worker.runner.host_memory import device_exceeded
from worker.runner.runner_handle import Runner


@dataclass(eq=False, slots=True)
class Instance:
    """One runner process with one revision loaded. Every field that changes is guarded by the pool's lock."""

    function: str
    revision: int
    spec: FunctionSpec
    memory_mib: float
    lifecycle: Lifecycle
    state: WarmState = WarmState.LOADING
    #: None until its load has a process.
    runner: Runner | None = None
    #: Milliseconds of the load by phase.
    phases: dict[str, float] = field(default_factory=dict)
    #: Seconds of the pool's clock; 0 = not yet.
    used_at: float = 0.0
    loaded_at: float = 0.0
    measured_at: float = 0.0
    #: On its way out: counted in memory until its process has ended, given to nobody.
    leaving: bool = False
    #: Why it never became ready.
    failure: Exception | None = None
    #: What an uploaded function runs on; None for a module of the platform.
    runtime: RuntimeEnvironment | None = None
    #: MiB that its runner shares with other processes, as last measured. Quick measurements count them in full, so they
    #: are subtracted there.
    shared_mib: float = 0.0
    #: Why it was killed for its memory: OUT_OF_MEMORY = it took more than it may, WORKER_BUSY = training needed it.
    evicted: Cause | None = None
    #: Whether it has had a holder.
    used: bool = False

    @property
    def key(self) -> Key:
        return self.function, self.revision

    def exceeded(self) -> str:
        """Which bound of memory its process, which has ended, was ended for, in a sentence; '' = it was not."""
        assert self.runner is not None
        bound = self.runner.bound
        if self.runner.ran_out or (self.evicted is Cause.OUT_OF_MEMORY and bound.host_mib == bound.declared_mib):
            return bound.exceeded()
        return device_exceeded(bound.declared_mib) if self.evicted is Cause.OUT_OF_MEMORY else ""

    @property
    def label(self) -> str:
        """``function@revision``, for logs."""
        return f"{self.function}@{self.revision}"
