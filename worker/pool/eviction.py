"""
Which idle instance goes when a load needs memory, a keep-alive is over or the leader asks for it.

The order: parked instances of other revisions, then idle ones that the leader does not hold, then held ones; within each
the least recently used first. Decides alone; :mod:`worker.pool.loading` then parks or unloads what was chosen.
"""

from dataclasses import dataclass, field

from smore.domain.function import FunctionSpec
from smore.messages.reports import WarmState
from worker.device.device import Device
from worker.pool.errors import LoadFailed
from worker.pool.instance import Instance
from worker.pool.memory import Memory
from worker.pool.quarantine import Key
from worker.pool.residents import Residents
from worker.pool.standby import Standby
from worker.pool.trainings import Trainings
from worker.runner.runner_handle import Runner


@dataclass(eq=False, kw_only=True)
class Eviction:
    """
    What the leader holds, and the choice of what goes.

    Every method is called with the pool's lock held. An instance that a method returns as going leaves from then on:
    ``leaving`` is set.
    """

    residents: Residents
    device: Device
    memory: Memory
    standby: Standby
    trainings: Trainings
    #: How many instances of a revision the leader has asked to hold, and until when (seconds of the pool's clock).
    _holds: dict[Key, tuple[int, float]] = field(default_factory=dict, init=False)

    # ---- holds -------------------------------------------------------------------------------------------------------

    def hold(self, key: Key, instances: int, hold_s: float) -> None:
        """Hold so many instances of a revision for so long."""
        self._holds[key] = (instances, self.residents.clock() + hold_s)

    def next_end_s(self) -> list[float]:
        """Seconds until each hold, and each keep-alive of an idle instance, is over."""
        now = self.residents.clock()
        ends = [
            instance.used_at + instance.spec.keep_alive_s - now
            for instance in self.spare()
            if instance.spec.keep_alive_s >= 0
        ]
        return ends + [until - now for _, until in self._holds.values()]

    def _held(self, key: Key) -> int:
        instances, until = self._holds.get(key, (0, 0.0))
        return instances if self.residents.clock() < until else 0

    def held(self) -> list[Instance]:
        """The instances that the leader holds: busy and loading ones count before idle ones."""
        held: list[Instance] = []
        for key, instances in self.residents.by_revision():
            staying = [instance for instance in instances if not instance.leaving]
            staying.sort(key=lambda instance: (instance.state is WarmState.IDLE, -instance.used_at))
            held += staying[: self._held(key)]
        return held

    # ---- the order ---------------------------------------------------------------------------------------------------

    def spare(self) -> list[Instance]:
        """
        Idle instances that the leader does not hold, least recently used first. Busy and loading instances count
        towards what it holds before idle ones do.
        """
        spare: list[Instance] = []
        for key, instances in self.residents.by_revision():
            staying = [instance for instance in instances if not instance.leaving]
            idle = sorted((i for i in staying if i.state is WarmState.IDLE), key=lambda i: i.used_at)
            spare += idle[: max(0, len(staying) - self._held(key))]
        return sorted(spare, key=lambda instance: instance.used_at)

    def evictable(self) -> list[Instance]:
        """Idle instances in the order in which they go when their memory is needed; parked ones go before all of them."""
        spare = self.spare()
        held = [
            instance
            for instance in self.residents
            if instance.state is WarmState.IDLE and not instance.leaving and instance not in spare
        ]
        return spare + sorted(held, key=lambda instance: instance.used_at)

    # ---- what goes ---------------------------------------------------------------------------------------------------

    def make_room(self, key: Key, spec: FunctionSpec) -> list[Instance] | None:
        """As :meth:`try_room`. Raises LoadFailed where the revision could never fit."""
        need_mib, total_mib = self.memory.need_mib(key, spec), self.device.memory_total_mib
        if need_mib > total_mib:
            raise LoadFailed(f"It needs {need_mib:.0f} MiB and this GPU instance has {total_mib:.0f} MiB.")
        return self.try_room(key, spec)

    def try_room(self, key: Key, spec: FunctionSpec, *, spare_only: bool = False) -> list[Instance] | None:
        """
        The instances that go so that one more of the revision fits; None where even all of them would not do.
        ``spare_only``: none of those that the leader holds.
        """
        residents = self.residents
        parked = [instance for instance in residents.parked.staying() if instance.key != key]
        own = [instance for instance in residents.parked.staying() if instance.key == key]
        coming = sum(instance.runner is None for instance in residents.of(key))
        restored = own[-1] if len(own) > coming else None
        # The load starts from a parked instance of its revision, else from the standby runner of a GPU. The memory that
        # this process holds already is part of what the load needs. A load that has begun and has no process yet takes
        # the standby runner.
        taken = not self.memory.on_device(spec) or any(instance.runner is None for instance in residents)
        becoming_mib = restored.memory_mib if restored is not None else 0.0 if taken else self.standby.memory_mib
        excess_mib = self.memory.excess_mib(key, spec) - becoming_mib
        going = []
        for instance in (*parked, *(self.spare() if spare_only else self.evictable())):
            if excess_mib <= 0:
                break
            going.append(instance)
            excess_mib -= instance.memory_mib
        # Memory of instances that are leaving counts as used: another load waits for it.
        return _leave(going) if excess_mib <= 0 else None

    def expire(self) -> list[Instance]:
        """The idle instances whose keep-alive is over and that the leader does not hold; holds that are over end."""
        now = self.residents.clock()
        self._holds = {key: hold for key, hold in self._holds.items() if now < hold[1]}
        return _leave([i for i in self.spare() if 0 <= i.spec.keep_alive_s <= now - i.used_at])

    def crowded_out(self) -> tuple[list[Instance], Runner | None]:
        """
        While the rest of the device belongs to a training that may grow: all idle instances there, and the standby
        runner, which the caller must end.
        """
        if not self.trainings.growing():
            return [], None
        idle = _leave([instance for instance in self.evictable() if self.memory.on_device(instance.spec)])
        return idle, self.standby.take()

    def offload(self, key: Key, keep: int, *, gone: bool) -> tuple[list[Instance], list[Instance]]:
        """
        (idle instances, parked ones) of a revision that go until ``keep`` are left. Instances that load and that nobody
        waits for leave as soon as they are ready. ``gone``: the parked ones go too, and whatever is busy or loads leaves
        behind that.
        """
        held, until = self._holds.get(key, (0, 0.0))
        if keep and held:
            self._holds[key] = (min(held, keep), until)
        else:
            self._holds.pop(key, None)
        staying = self.residents.staying(key)
        surplus = len(staying) if gone else max(0, len(staying) - keep)
        unwanted = [i for i in staying if i.state is WarmState.LOADING and i.lifecycle.unwanted]
        idle = sorted((i for i in staying if i.state is WarmState.IDLE), key=lambda i: i.used_at)[:surplus]
        parked = [instance for instance in self.residents.parked.staying() if instance.key == key] if gone else []
        _leave([*staying, *parked] if gone else [*idle, *unwanted[: surplus - len(idle)]])
        return idle, parked


def _leave(going: list[Instance]) -> list[Instance]:
    for instance in going:
        instance.leaving = True
    return going
