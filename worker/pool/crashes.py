"""
Who is blamed for a crash: counts the crashes that user code caused, for this worker's quarantine and for the one of all
workers (smore/redis/quarantine.py). Used by the pool's batches and loads.
"""

import math
import signal
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final

from smore.domain.invocation import Cause
from smore.process import observability
from worker.pool.errors import Quarantined
from worker.pool.health import DeviceHealth
from worker.pool.instance import Instance
from worker.pool.quarantine import Key, Quarantine
from worker.pool.residents import Residents
from worker.runner.runner_handle import Runner

log = observability.logger(__name__)

#: Exit statuses that a function brings about itself, by its own instructions; anybody may send SIGKILL.
CRASH_STATUSES: Final = frozenset(
    -number
    for number in (
        signal.SIGSEGV,
        signal.SIGBUS,
        signal.SIGILL,
        signal.SIGFPE,
        signal.SIGABRT,
        signal.SIGSYS,
        signal.SIGTRAP,
    )
)


@dataclass(eq=False, kw_only=True)
class Crashes:
    """
    The quarantine of one worker and what leads into it. ``faulted`` is called with (function, revision, culprit, cause)
    for every fault that counts over all workers, in the thread that noticed it.

    The quarantine is guarded by the pool's lock, which every method takes itself unless it says otherwise.
    """

    residents: Residents
    health: DeviceHealth
    faulted: Callable[[str, int, str, Cause], None]
    _quarantine: Quarantine = field(default_factory=Quarantine, init=False)

    def refuse_quarantined(self, key: Key) -> None:
        """With the lock held. Raises Quarantined."""
        left_s = self._quarantine.holds(key, self.residents.clock())
        if left_s == math.inf:
            raise Quarantined(
                f"{key[0]}@{key[1]} is shut out everywhere after faults of a device, until it is lifted or deployed"
                " anew."
            )
        if left_s:
            raise Quarantined(
                f"{key[0]}@{key[1]} has crashed repeatedly and is shut out here for another {left_s:.0f} s."
            )

    def quarantines(self, key: Key) -> bool:
        """With the lock held: whether the revision is quarantined here or everywhere."""
        return self._quarantine.holds(key, self.residents.clock()) > 0

    def quarantined(self) -> list[str]:
        """``function@revision`` of all that are quarantined here or everywhere."""
        with self.residents.lock:
            return [f"{function}@{revision}" for function, revision in self._quarantine.all(self.residents.clock())]

    def quarantine_everywhere(self, revisions: Iterable[Key]) -> None:
        """These, and only these, are quarantined on all workers."""
        with self.residents.lock:
            if self._quarantine.set_everywhere(revisions):
                self.residents.announce()

    def succeeded(self, key: Key) -> None:
        """A run came to its end: earlier crashes of the revision do not count any more. Needs no lock."""
        self._quarantine.succeeded(key)

    def in_run(self, instance: Instance, runner: Runner, culprit: str, cause: Cause, *, broke: bool) -> None:
        """
        User code ended its runner, or ``broke`` the protocol, for which its runner was ended. ``culprit``: the id of
        the invocation. Nobody is blamed while the device is at fault.
        """
        observability.RUNNER_DEATHS.labels(instance.function, self.residents.gpu, cause.value).inc()
        if self.health.failed():
            return
        self._count(instance, culprit)
        if broke or cause in (Cause.OUT_OF_MEMORY, Cause.CONTEXT_LOST) or runner.status in CRASH_STATUSES:
            self.faulted(instance.function, instance.revision, culprit, cause)

    def in_load(self, instance: Instance, runner: Runner, fault: Cause | None) -> None:
        """A runner ended while it was loaded or moved. ``fault``: what that counts as over all workers, None = nothing."""
        observability.RUNNER_DEATHS.labels(instance.function, self.residents.gpu, Cause.LOAD_FAILED.value).inc()
        if self.health.failed():
            return
        culprit = f"load of runner {runner.pid}"
        self._count(instance, culprit)
        if fault is not None:
            self.faulted(instance.function, instance.revision, culprit, fault)

    def while_idle(self, instance: Instance, runner: Runner) -> None:
        """The runner of an idle instance ended by itself: counted in metrics alone."""
        log.warning(
            "idle runner ended",
            function=instance.function,
            revision=instance.revision,
            pid=runner.pid,
            status=runner.status,
        )
        observability.RUNNER_DEATHS.labels(instance.function, self.residents.gpu, Cause.CRASHED.value).inc()

    def _count(self, instance: Instance, culprit: str) -> None:
        with self.residents.lock:
            begins = self._quarantine.crashed(instance.key, culprit, self.residents.clock())
            self.residents.announce()
        if begins:
            log.warning("quarantined", function=instance.function, revision=instance.revision)
