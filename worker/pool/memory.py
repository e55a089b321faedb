"""
How much memory of the device the pool's processes hold and the next load needs.

Used by the parts that decide what goes (:mod:`worker.pool.eviction`, :mod:`worker.pool.relief`) and measured by
:mod:`worker.pool.upkeep` on a CPU partition, where a measurement takes milliseconds, and with every heartbeat on a GPU,
whose driver gives the figures of all processes at once.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from smore.domain.function import FunctionSpec
from smore.messages.reports import WarmState
from worker.device.device import Device
from worker.pool.instance import Instance
from worker.pool.quarantine import Key
from worker.pool.residents import Residents
from worker.pool.standby import Standby
from worker.pool.trainings import Trainings

#: Most seconds between two measurements of an instance that runs. The first ones follow its load closely; the time
#: between them doubles.
_MEASURE_S: Final = 10.0


@dataclass(eq=False, kw_only=True)
class Memory:
    """
    MiB of the device by instance and revision.

    What a revision was measured to need is guarded by the pool's lock; each method says whether it is held.
    """

    residents: Residents
    device: Device
    standby: Standby
    trainings: Trainings
    #: What an instance of a revision was last measured to hold.
    _measured_mib: dict[Key, float] = field(default_factory=dict, init=False)

    def on_device(self, spec: FunctionSpec) -> bool:
        """Whether its process has a context of a GPU. A function that declares no memory there computes elsewhere."""
        return self.device.handler_device == "cuda" and spec.memory_mib > 0

    def need_mib(self, key: Key, spec: FunctionSpec) -> float:
        """What an instance of the revision will hold: as measured, otherwise as declared and a context. Lock held."""
        context_mib = self.standby.context_mib if self.on_device(spec) else 0.0
        return self._measured_mib.get(key, spec.memory_mib + context_mib)

    def used_mib(self) -> float:
        """Of all instances, the parked ones and the standby runner. Lock held."""
        return self.standby.memory_mib + self.residents.memory_mib()

    def excess_mib(self, key: Key, spec: FunctionSpec) -> float:
        """
        What has to go before one more instance of the revision fits, beside jobs and all that is counted here; at most
        0 = it fits. Lock held.
        """
        used_mib = self.used_mib() + self.trainings.memory_mib()
        excess_mib = used_mib + self.need_mib(key, spec) - self.device.memory_total_mib
        return max(excess_mib, self._missing_mib(key, spec)) if self.on_device(spec) else excess_mib

    def _missing_mib(self, key: Key, spec: FunctionSpec) -> float:
        """
        What a load needs beyond what is really free of a GPU, less what training is owed and what loads of others were
        promised. So processes that the platform does not know of count too: an unregistered process that is allowed, a
        process of another container.
        """
        free_mib = self.device.free_mib()
        if free_mib is None:
            return -math.inf
        promised_mib = 0.0
        for instance in self.residents:
            # The driver was last asked before this one had all of it.
            if instance.state is WarmState.LOADING or instance.loaded_at >= self.device.looked_at:
                runner = instance.runner
                held_mib = self.device.runner_memory_mib(runner.pid) if runner is not None else None
                promised_mib += max(0.0, instance.memory_mib - (held_mib or 0.0))
        return self.need_mib(key, spec) - (free_mib - self.trainings.owed_mib() - promised_mib)

    # ---- measuring ---------------------------------------------------------------------------------------------------

    def quick_mib(self, instance: Instance) -> float:
        """What an instance holds now, in microseconds; what it is counted for where that is unknown. No lock."""
        assert instance.runner is not None
        if not instance.measured_at:
            return self.device.runner_memory_mib(instance.runner.pid) or instance.memory_mib
        quick_mib = self.device.quick_memory_mib(instance.runner.pid)
        if quick_mib is None:
            return instance.memory_mib
        return max(0.0, quick_mib - instance.shared_mib)

    def exact_mib(self, instance: Instance) -> float:
        """What an instance holds now, 0 for one that is gone; milliseconds on a CPU partition. No lock."""
        assert instance.runner is not None
        return self.device.runner_memory_mib(instance.runner.pid) or 0.0

    def take_driver_figures(self, instances: Sequence[Instance]) -> None:
        """On a GPU: count these, the parked ones and the standby runner as its driver last saw them. Lock held."""
        if self.device.handler_device == "cpu":
            return
        self.standby.measure()
        for instance in instances:
            held_mib = self.exact_mib(instance)
            # One that is loading will hold what it has been counted for, and one that has just been loaded was not seen
            # whole.
            settled = instance.state is not WarmState.LOADING and instance.loaded_at < self.device.looked_at
            if held_mib and settled:
                instance.memory_mib = self._measured_mib[instance.key] = held_mib
        for instance in self.residents.parked:
            if instance.runner is not None and (held_mib := self.exact_mib(instance)):
                instance.memory_mib = held_mib

    def to_measure(self) -> list[Instance]:
        """Those whose measurement is due; none on a GPU, see :meth:`take_driver_figures`. Lock held."""
        if self.device.handler_device == "cuda":
            return []
        now = self.residents.clock()
        return [
            instance
            for instance in self.residents
            if instance.state is not WarmState.LOADING and not instance.leaving and _measurement_due(instance, now)
        ]

    def measure(self, instance: Instance) -> None:
        """Measure one exactly and take it into account; takes milliseconds, and then the lock."""
        assert instance.runner is not None
        # A run that ends from here on may have taken more than is seen: then it is measured once more.
        began = self.residents.clock()
        held_mib = self.exact_mib(instance)
        quick_mib = self.device.quick_memory_mib(instance.runner.pid)
        with self.residents.lock:
            if held_mib and quick_mib is not None:
                instance.shared_mib = max(0.0, quick_mib - held_mib)
            first = not instance.measured_at
            instance.measured_at = began
            if held_mib:
                instance.memory_mib = self._measured_mib[instance.key] = held_mib
            if first:
                self.residents.announce()


def _measurement_due(instance: Instance, now: float) -> bool:
    if not instance.measured_at:
        return True
    unchanged = instance.state is WarmState.IDLE and instance.used_at < instance.measured_at
    return not unchanged and now - instance.measured_at >= min(_MEASURE_S, instance.measured_at - instance.loaded_at)
