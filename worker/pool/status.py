"""What the warm pool reports: its instances, their lifecycles, their memory. Read by :mod:`worker.heartbeat`."""

from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from smore.messages import stream
from smore.messages.reports import ParkedInstance, WarmInstance, WarmState
from worker.pool.crashes import Crashes
from worker.pool.eviction import Eviction
from worker.pool.memory import Memory
from worker.pool.quarantine import Key
from worker.pool.residents import Residents
from worker.pool.standby import Standby

#: Runs of a revision whose longest is reported.
_RUNS: Final = 50


@dataclass(eq=False, kw_only=True)
class Status:
    """
    The pool as its reports see it. Every method takes the pool's lock for a moment, so each answer is consistent in
    itself and two answers may differ by what happened between them.
    """

    residents: Residents
    memory: Memory
    standby: Standby
    crashes: Crashes
    eviction: Eviction
    #: Seconds of a revision's last runs.
    _runs_s: dict[Key, deque[float]] = field(default_factory=dict, init=False)

    def ran(self, key: Key, seconds: float) -> None:
        """Note how long a run of a revision took, from its begin to its end: nothing could have stopped it meanwhile."""
        with self.residents.lock:
            self._runs_s.setdefault(key, deque(maxlen=_RUNS)).append(seconds)

    def warm(self) -> list[WarmInstance]:
        """The instances that load, are idle or busy, without those that leave."""
        residents = self.residents
        now = residents.clock()
        with residents.lock:
            held = self.eviction.held()
            return [
                WarmInstance(
                    function=instance.function,
                    revision=instance.revision,
                    state=instance.state,
                    memory_mib=round(instance.memory_mib, 1),
                    pid=instance.runner.pid if instance.runner is not None else 0,
                    idle_s=round(now - instance.used_at, 3) if instance.state is WarmState.IDLE else 0.0,
                    longest_s=round(max(self._runs_s.get(instance.key, ()), default=0.0), 6),
                    held=instance in held,
                )
                for instance in residents
                if not instance.leaving
            ]

    def parked(self) -> list[ParkedInstance]:
        """The parked instances, without those that a load which has begun will come out of."""
        residents = self.residents
        with residents.lock:
            coming = Counter(instance.key for instance in residents if instance.runner is None)
            parked = []
            for instance in residents.parked.report(residents.clock()):
                coming[instance.function, instance.revision] -= 1
                if coming[instance.function, instance.revision] < 0:
                    parked.append(instance)
            return parked

    def lifecycle_events(self) -> list[stream.Warmed]:
        """
        What the stream is to learn of instances, the same again until :meth:`acknowledge` takes it: those that came,
        were first used or ended, and each one a while after its last event.
        """
        residents = self.residents
        with residents.lock:
            living = ((instance.lifecycle, instance.memory_mib) for instance in residents)
            return residents.lifecycles.due(residents.gpu, residents.clock(), living)

    def acknowledge(self, events: Sequence[stream.Warmed]) -> None:
        """These have reached the stream."""
        residents = self.residents
        with residents.lock:
            residents.lifecycles.acknowledge(events, residents.clock())

    def memory_used_mib(self) -> float:
        """Of the device, by all instances, the parked ones and the standby runner."""
        with self.residents.lock:
            return self.memory.used_mib()

    def context_mib(self) -> float:
        """What a process takes of the device before it computes anything; 0 where none is counted."""
        with self.residents.lock:
            return self.standby.context_mib

    def runners(self) -> list[int]:
        """Process numbers of all runners: of instances, parked ones and the standby runner."""
        residents = self.residents
        with residents.lock:
            runners = [instance.runner for instance in (*residents, *residents.parked)]
            return [runner.pid for runner in (*runners, self.standby.runner) if runner is not None]

    def quarantined(self) -> list[str]:
        """``function@revision`` of all that are quarantined here or everywhere."""
        return self.crashes.quarantined()
