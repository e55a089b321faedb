"""
Loads, parks and unloads instances: everything of the warm pool that takes time.

Used by the pool's batches and commands and by its upkeep, each in its own thread. What must stay true: however a load
ends, its instance is either ready or out of the pool with its memory back, and whoever waits for it learns why.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, NoReturn

from smore.domain.function import FunctionSpec
from smore.domain.invocation import Cause
from smore.messages.reports import WarmState
from smore.process import observability
from worker.activity import Activity
from worker.artifacts.runtime import RuntimeEnvironment, RuntimeFailed, RuntimeUnavailable
from worker.device.device import Device
from worker.frames import BadFrame, Load, Loaded, Results
from worker.pool.crashes import CRASH_STATUSES, Crashes
from worker.pool.errors import LoadFailed, Unservable
from worker.pool.health import DeviceHealth, names_no_device
from worker.pool.instance import Instance
from worker.pool.lifecycle import Ending
from worker.pool.quarantine import Key
from worker.pool.residents import Residents
from worker.pool.standby import Standby
from worker.runner.runner_handle import NoRunner, Runner, RunnerDied, RunnerFailed, RunnerTimeout
from worker.runner.zygote_handle import Zygote

log = observability.logger(__name__)

#: Seconds that a load may take at least; it may take as long as a run.
LOAD_S: Final = 120.0
#: Seconds that moving weights to host memory may take.
PARK_S: Final = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Supplies:
    """
    What a load needs. ``runtime_of`` provides what an uploaded function runs on
    (:meth:`worker.artifacts.runtime.RuntimeProvider.provide`). ``secrets_of`` gives a revision's secrets by name and may
    raise LoadFailed and Unservable. ``results`` bounds what runners may answer. ``prefer`` gives a runner precedence.
    """

    zygote: Zygote
    runtime_of: Callable[[str, FunctionSpec], RuntimeEnvironment]
    secrets_of: Callable[[str, FunctionSpec], Mapping[str, str]] = lambda *_: {}
    prefer: Callable[[int], None] = lambda _: None
    results: Results


@dataclass(eq=False, kw_only=True)
class Loader:
    """
    Every method is called without the pool's lock, takes it where it changes an instance, and never holds it while it
    waits for a process.
    """

    residents: Residents
    device: Device
    health: DeviceHealth
    standby: Standby
    crashes: Crashes
    activity: Activity
    supplies: Supplies
    #: Revisions whose handlers name nothing that can be moved to host memory. Only ever grows; needs no lock.
    _unparkable: set[Key] = field(default_factory=set, init=False)

    # ---- loads -------------------------------------------------------------------------------------------------------

    def runtime(self, function: str, spec: FunctionSpec) -> RuntimeEnvironment:
        """What an uploaded function runs on, the caller's to close; may take minutes. Raises LoadFailed, Unservable."""
        try:
            return self.supplies.runtime_of(function, spec)
        except RuntimeFailed as error:
            raise LoadFailed(str(error)) from error
        except RuntimeUnavailable as error:
            raise Unservable(str(error)) from error

    def provide(self, instance: Instance, victims: list[Instance], prepared: Mapping[str, float]) -> None:
        """
        Have ready what an uploaded function runs on; ``prepared``: milliseconds by phase that this has taken before.
        However long it takes, this is no run of a function: it uses the platform's cores.

        Raises LoadFailed, Unservable; then the instance is gone, and so are the victims.
        """
        if instance.spec.artifact is None:
            return
        try:
            runtime = instance.runtime = self.runtime(instance.function, instance.spec)
            runtime.phases = {phase: ms + prepared.get(phase, 0.0) for phase, ms in runtime.phases.items()}
        except (LoadFailed, Unservable) as error:
            self.unload(victims, Ending.EVICTED)
            self._fail(instance, error)

    def load(self, instance: Instance, victims: list[Instance], then: WarmState) -> None:
        """
        Unload the victims and load the instance, out of host memory where its revision is parked. ``then``: BUSY = the
        caller holds it, IDLE = nobody does. Raises LoadFailed, Unservable; then the instance is gone.
        """
        log.debug("load begins", function=instance.label, evicts=[victim.label for victim in victims])
        try:
            self.unload(victims, Ending.EVICTED)
            runner, loaded = self._restore(instance) or self._load_anew(instance)
        except (LoadFailed, Unservable) as error:
            self._fail(instance, error)
        except NoRunner as error:
            self._fail(instance, Unservable(f"There is no process to load in: {error}"))
        except RunnerFailed as error:
            self._fail(instance, self._refused(instance, error))
        except RunnerTimeout as error:
            self._fail(instance, LoadFailed(f"The load took too long. {error}"))
        except RunnerDied as error:
            self._fail(instance, self._died(instance, error))
        except BadFrame as error:
            self._blame(instance, Cause.CRASHED)
            self._fail(instance, LoadFailed(f"While loading: it broke the protocol: {error}."))
        self._ready(instance, runner, loaded, then)

    def _load_anew(self, instance: Instance) -> tuple[Runner, Loaded]:
        """In the standby runner or a new one. Raises LoadFailed, Unservable and what a runner raises."""
        spec, runtime = instance.spec, instance.runtime
        # One that declares no memory of the device gets none of it: neither it nor a standby runner's context.
        device = self.device.handler_device if spec.memory_mib else "cpu"
        runner = instance.runner = (
            self._take_runner() if device == self.device.handler_device else self.supplies.zygote.fork()
        )
        request = Load(
            entrypoint=spec.entrypoint,
            device=device,
            memory_mib=spec.memory_mib,
            results=self.supplies.results,
            label=instance.label,
            folder=str(runtime.folder) if runtime is not None else "",
            environment=str(runtime.environment) if runtime is not None and runtime.environment is not None else "",
            secrets=dict(self.supplies.secrets_of(instance.function, spec)),
            max_batch=spec.max_batch,
        )
        loaded = runner.load(request, max(LOAD_S, spec.timeout_s))
        if spec.precedence:
            self.supplies.prefer(runner.pid)
        return runner, loaded

    def _take_runner(self) -> Runner:
        runner = self.standby.take()
        if runner is not None and not runner.ended.is_set():
            return runner
        return self.supplies.zygote.fork()

    def _restore(self, instance: Instance) -> tuple[Runner, Loaded] | None:
        """None where its revision is not parked, or where moving it back failed: then it is loaded anew."""
        with self.residents.lock:
            parked = self.residents.parked.take(instance.key)
        if parked is None:
            return None
        assert parked.runner is not None
        if parked.runtime is not None:
            # The instance that is loaded has its own hold on the runtime environment.
            parked.runtime.close()
        try:
            loaded = parked.runner.restore(max(LOAD_S, instance.spec.timeout_s))
        except (RunnerFailed, RunnerDied, RunnerTimeout) as error:
            log.warning("not restored", function=instance.label, error=str(error))
            parked.runner.end()
            return None
        except BadFrame as error:
            log.warning("not restored", function=instance.label, error=str(error))
            self.crashes.in_load(instance, parked.runner, Cause.CRASHED)
            parked.runner.end()
            return None
        instance.runner, instance.lifecycle.host, instance.used = parked.runner, True, True
        return parked.runner, loaded

    def _ready(self, instance: Instance, runner: Runner, loaded: Loaded, then: WarmState) -> None:
        phases = {**instance.runtime.phases, **loaded.phases} if instance.runtime is not None else loaded.phases
        residents = self.residents
        with residents.lock:
            instance.memory_mib = max(loaded.memory_mib, instance.memory_mib)
            instance.used_at = instance.loaded_at = residents.clock()
            whole_ms = (instance.loaded_at - instance.lifecycle.asked_at) * 1e3
            # The rest of it: room in memory and a process to load in.
            instance.phases = {"process": max(0.0, whole_ms - sum(phases.values())), **phases}
            died = runner.ended.is_set()
            # A runner may have died the moment it was ready: then nobody gets it.
            if then is WarmState.IDLE and died:
                instance.leaving = True
            instance.state = then
            instance.lifecycle.ready(instance.loaded_at, used=then is WarmState.BUSY)
            residents.loading -= 1
            residents.announce()
            residents.upkeep.notify()
        for phase, ms in instance.phases.items():
            observability.LOAD_SECONDS.labels(instance.function, phase).observe(ms / 1e3)
        log.debug(
            "loaded",
            function=instance.label,
            ms={phase: round(ms, 1) for phase, ms in instance.phases.items()},
            memory_mib=round(instance.memory_mib, 1),
            prewarmed=instance.lifecycle.prewarmed,
            from_host=instance.lifecycle.host,
        )
        if instance.leaving and then is WarmState.IDLE:
            # Dead, or offloaded while it was loading.
            if not died:
                runner.unload()
            self.drop(instance, Ending.CRASHED if died else Ending.OFFLOAD)

    # ---- loads that fail ---------------------------------------------------------------------------------------------

    def _refused(self, instance: Instance, error: RunnerFailed) -> LoadFailed | Unservable:
        """The load was answered with an error: whether that is the handler's doing."""
        if reason := self._device_reason(error):
            return Unservable(f"Nothing can run on {self.residents.gpu}: {reason}")
        if error.cause is Cause.DEVICE_FULL and self.health.full(instance):
            return Unservable(f"Others have taken the device's memory. {error}")
        if error.cause is Cause.CONTEXT_LOST:
            self._blame(instance, error.cause)
        exhausted = error.cause in (Cause.OUT_OF_MEMORY, Cause.DEVICE_FULL)
        return LoadFailed(str(error), error.traceback, Cause.OUT_OF_MEMORY if exhausted else Cause.LOAD_FAILED)

    def _device_reason(self, error: RunnerFailed) -> str:
        """Why the device is at fault for a failed load, '' = it is not."""
        if self.device.handler_device == "cpu":
            return ""
        if not self.health.failed() and names_no_device(error):
            # Its handler may say that, but not a process without one.
            self.standby.make()
        return self.health.reason()

    def _died(self, instance: Instance, error: RunnerDied) -> LoadFailed | Unservable:
        """The runner has ended during the load."""
        if error.status is None:
            # With its zygote: not the handler's doing.
            return Unservable("The zygote ended.")
        if instance.evicted is Cause.WORKER_BUSY:
            return Unservable("Training needed the memory.")
        assert instance.runner is not None
        if exceeded := instance.exceeded():
            self._blame(instance, Cause.OUT_OF_MEMORY)
            return LoadFailed(f"While loading: {exceeded}", cause=Cause.OUT_OF_MEMORY)
        self._blame(instance, Cause.CRASHED if error.status in CRASH_STATUSES else None)
        return LoadFailed(f"While loading: {error}")

    def _blame(self, instance: Instance, fault: Cause | None) -> None:
        assert instance.runner is not None
        self.crashes.in_load(instance, instance.runner, fault)

    def _fail(self, instance: Instance, failure: LoadFailed | Unservable) -> NoReturn:
        """End the process of a failed load, tell those who wait for it, raise."""
        if instance.runner is not None:
            instance.runner.end()
        with self.residents.lock:
            self.residents.loading -= 1
            instance.failure = failure
        self.drop(instance, Ending.FAILED)
        raise failure

    # ---- what goes ---------------------------------------------------------------------------------------------------

    def let_go(self, going: Iterable[Instance], ending: Ending) -> None:
        """Park idle instances that can be parked, unload the others."""
        for instance in going:
            if not self._park(instance):
                self.unload([instance], ending)

    def unload(self, going: Iterable[Instance], ending: Ending) -> None:
        """Unload idle and parked instances; their memory is back on return."""
        for instance in going:
            assert instance.runner is not None
            with self.activity.working():
                instance.runner.unload()
            self.drop(instance, ending)

    def bury(self, instance: Instance) -> None:
        """Wait for the end of an idle instance whose process was killed for its memory."""
        assert instance.runner is not None
        with self.activity.working():
            instance.runner.end()
        self.drop(instance, Ending.EVICTED)

    def drop(self, instance: Instance, ending: Ending) -> None:
        """Its process has ended: take it out of the pool. Does nothing where that was done before."""
        residents = self.residents
        with residents.lock:
            removed = residents.remove(instance, ending) or residents.parked.remove(instance)
            residents.announce()
            residents.upkeep.notify()
        if removed:
            log.debug("unloaded", function=instance.label, why=ending.value, memory_mib=round(instance.memory_mib, 1))
        if removed and instance.runtime is not None:
            instance.runtime.close()

    def _park(self, instance: Instance) -> bool:
        """
        Move its weights to host memory. False where that is not wanted or not possible: it is as it was, or its process
        has ended.
        """
        assert instance.runner is not None
        residents = self.residents
        if not residents.parked.most_mib or instance.key in self._unparkable:
            return False
        try:
            with self.activity.working():
                host_mib = instance.runner.park(PARK_S).host_mib
        except RunnerFailed as error:
            # Want of memory passes; that there is nothing to move does not.
            if error.cause == Cause.HANDLER_ERROR:
                self._unparkable.add(instance.key)
            log.info("not parked", function=instance.label, error=str(error))
            return False
        except (RunnerDied, RunnerTimeout) as error:
            log.warning("not parked", function=instance.label, error=str(error))
            return False
        except BadFrame as error:
            log.warning("not parked", function=instance.label, error=str(error))
            self._blame(instance, Cause.CRASHED)
            return False
        left_mib = self.device.runner_memory_mib(instance.runner.pid) or 0.0
        with residents.lock:
            fits = not residents.closed and host_mib <= residents.parked.most_mib
            if not fits or not residents.remove(instance, Ending.PARKED):
                return False
            instance.memory_mib, instance.leaving = left_mib, instance.runner.ended.is_set()
            residents.parked.add(instance, host_mib, residents.clock())
            over = residents.parked.due(residents.clock())
            if instance.leaving:
                over.append(instance)
            residents.announce()
        self.unload(over, Ending.PARKED)
        return True
