"""
Kills instances of functions for their memory: those that take more than they declare, and those whose memory is
reserved for training. Called with every heartbeat.

What goes is killed, not unloaded: unloading takes time that training may not have.
"""

import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from smore.domain.invocation import Cause
from smore.messages.reports import WarmState
from smore.process import observability
from worker.device.device import Device
from worker.pool.eviction import Eviction
from worker.pool.instance import Instance
from worker.pool.loading import Loader
from worker.pool.memory import Memory
from worker.pool.residents import Residents
from worker.pool.standby import Standby
from worker.pool.trainings import Trainings

log = observability.logger(__name__)

#: MiB by which a GPU context may grow with what a function does: libraries load their kernels when they are first used.
_CONTEXT_GROWTH_MIB: Final = 512.0


@dataclass(eq=False, kw_only=True)
class Relief:
    """
    Decides which instances go for training, and kills them. ``beyond_mib`` as in :class:`worker.pool.pool.Pool`.

    Keeps no state of its own. Measures without the pool's lock, decides with it, kills without it. ``held``, where it
    is an argument, is what each instance was measured to hold, MiB by its ``id()``.
    """

    residents: Residents
    device: Device
    memory: Memory
    eviction: Eviction
    standby: Standby
    loader: Loader
    trainings: Trainings
    beyond_mib: float

    def relieve(self) -> list[Instance]:
        """
        See to it that training finds the memory that is reserved for it. Returns the instances that had to go.

        An instance that holds more than it may goes at once. Where less is free than jobs are owed, parked and idle
        ones go, least recently used first, then the standby runner, then running and loading ones, the one furthest
        above its declaration first. Without a job only idle ones make room.
        """
        residents = self.residents
        with residents.lock:
            seen = [instance for instance in residents if instance.runner is not None]
        held = {id(instance): self.memory.quick_mib(instance) for instance in seen}
        with residents.lock:
            self.memory.take_driver_figures(seen)
            if self.trainings.growing():
                residents.upkeep.notify()
            parked = residents.parked.staying() if self._short_mib(seen, held, ()) > 0 else []
            for instance in parked:
                instance.leaving = True
            going = self._greedy(seen, held)
            coming_mib = sum(held[id(instance)] for instance in going) + sum(instance.memory_mib for instance in parked)
            going += self._make_free(seen, held, coming_mib)
            short = self.standby.runner is not None and self._short_mib(seen, held, going) > 0
            standby = self.standby.give_up() if short and self.trainings.owed_mib() else None
            if going or standby is not None:
                residents.changed()
        if standby is not None:
            standby.kill()
            threading.Thread(target=self.standby.end, args=(standby,), name="evict", daemon=True).start()
        for instance in (*parked, *going):
            assert instance.runner is not None
            instance.runner.kill()
            if instance.state is WarmState.IDLE:
                threading.Thread(target=self.loader.bury, args=(instance,), name="evict", daemon=True).start()
        return going

    def _greedy(self, seen: Sequence[Instance], held: dict[int, float]) -> list[Instance]:
        """Those that hold more than they may, evicted. Corrects ``held`` where a quick measurement was too high."""
        going = []
        for instance in seen:
            assert instance.runner is not None
            if self._exceeds(instance, held[id(instance)]):
                held[id(instance)] = self.memory.exact_mib(instance)
            exceeds = self._exceeds(instance, held[id(instance)])
            if not instance.evicted and (exceeds or instance.runner.exhausted()):
                log.warning(
                    "takes more memory than it may", function=instance.label, memory_mib=round(held[id(instance)])
                )
                _evict(instance, Cause.OUT_OF_MEMORY)
                going.append(instance)
        return going

    def _exceeds(self, instance: Instance, held_mib: float) -> bool:
        cpu = self.device.handler_device == "cpu"
        beyond_mib = self.beyond_mib if cpu else self.standby.context_mib + _CONTEXT_GROWTH_MIB
        return held_mib > instance.spec.memory_mib + beyond_mib

    def _short_mib(self, seen: Sequence[Instance], held: Mapping[int, float], gone: Iterable[Instance]) -> float:
        """
        How much less is free than jobs are owed, once ``gone`` have ended.

        Free is what the device, or on a CPU partition the machine, has left for anybody, and what is left of the
        partition's own share.
        """
        owed_mib = self.trainings.owed_mib()
        jobs_hold_mib = self.trainings.memory_mib() - owed_mib
        functions_mib = (
            self.standby.memory_mib + self.residents.parked.memory_mib + sum(held[id(instance)] for instance in seen)
        )
        free_mib = self.device.memory_total_mib - jobs_hold_mib - functions_mib
        really_free_mib = self.device.free_mib()
        if really_free_mib is not None:
            free_mib = min(free_mib, really_free_mib)
        # What is on its way out is free in a moment.
        evicted = (instance for instance in seen if instance.leaving and instance.evicted)
        coming = {id(instance) for instance in (*gone, *evicted)}
        return owed_mib - free_mib - sum(held[key] for key in coming)

    def _make_free(self, seen: Sequence[Instance], held: Mapping[int, float], coming_mib: float) -> list[Instance]:
        """Evict what it takes beyond ``coming_mib``, which is being freed already."""
        short_mib = self._short_mib(seen, held, ()) - coming_mib
        staying = [instance for instance in seen if not instance.evicted]
        # Instances compare by identity.
        idle = [instance for instance in self.eviction.evictable() if instance in staying]
        at_work = sorted(
            (instance for instance in staying if instance.state is not WarmState.IDLE),
            key=lambda instance: instance.spec.memory_mib - held[id(instance)],
        )
        going = []
        for instance in (*idle, *(at_work if self.trainings.owed_mib() else ())):
            # The standby runner goes before anything that works.
            kept_mib = 0.0 if instance.state is WarmState.IDLE else self.standby.memory_mib
            if short_mib - kept_mib <= 0:
                break
            log.warning(
                "makes room for training",
                function=instance.label,
                state=instance.state,
                memory_mib=round(held[id(instance)]),
            )
            _evict(instance, Cause.WORKER_BUSY)
            going.append(instance)
            short_mib -= held[id(instance)]
        return going


def _evict(instance: Instance, cause: Cause) -> None:
    instance.evicted, instance.leaving = cause, True
