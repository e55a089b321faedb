"""
The warm pool: the instances of this worker's GPU instance, within its memory.

:class:`Pool` is the door for everybody else in worker/: batches acquire and release instances, the heartbeat passes on
the leader's commands and has training's memory freed, and reports are read from :attr:`Pool.status`. An instance is one
runner process with one revision loaded; it is loading, idle or busy. What must stay true: a busy instance is given to
nobody else, and no load begins before its memory is free.

The parts, each in a module of this package, share one lock (:class:`~worker.pool.residents.Residents`): ``residents``
the instances, ``memory`` what they hold, ``eviction`` which one goes, ``loading`` what takes time, ``standby`` the
runner without a model, ``relief`` memory for training, ``upkeep`` the thread, ``crashes`` and ``health`` who is at
fault, ``held`` the runs that a closed window stops, ``status`` the reports.
"""

import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from smore.domain.function import FunctionSpec
from smore.domain.invocation import Cause
from smore.messages.commands import ALL_REVISIONS
from smore.messages.reports import WarmState
from smore.process import observability
from worker.activity import Activity
from worker.device.device import Device
from worker.pool.crashes import Crashes
from worker.pool.errors import LoadFailed, NoneLeft, Unservable
from worker.pool.eviction import Eviction
from worker.pool.health import DeviceHealth
from worker.pool.held import Held
from worker.pool.instance import Instance
from worker.pool.lifecycle import Ending
from worker.pool.loading import Loader, Supplies
from worker.pool.memory import Memory
from worker.pool.quarantine import Key
from worker.pool.relief import Relief
from worker.pool.residents import Residents
from worker.pool.standby import Standby
from worker.pool.status import Status
from worker.pool.trainings import Trainings
from worker.pool.upkeep import ROUND_S, Upkeep
from worker.runner.runner_handle import Runner

log = observability.logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Seat:
    """
    An instance that is the holder's until it gives it back. ``cold``: a load was waited for, ``load_us`` long. ``new``:
    its process has served nobody else.
    """

    instance: Instance
    cold: bool
    load_us: int
    new: bool

    @property
    def runner(self) -> Runner:
        assert self.instance.runner is not None
        return self.instance.runner


class Pool:
    """
    The warm pool of one GPU instance. Every method is safe from any thread: it takes the shared lock itself and lets go
    of it for whatever takes time, which happens in the caller's thread unless the method says otherwise.

    ``standby``: whether a runner without a model waits for the next load. ``beyond_mib``: what a runner may take of a CPU
    partition above what its function declares. ``faulted`` is called with (function, revision, culprit, cause) for every
    fault of a device that a function may have caused. ``window_over`` waits until no closed window is under way: work
    for the device that can be put off is no part of one.

    The zygote's ``exited`` must be :meth:`exited`.
    """

    def __init__(
        self,
        *,
        residents: Residents,
        device: Device,
        supplies: Supplies,
        trainings: Trainings,
        standby: bool = False,
        window_over: Callable[[], object] = lambda: None,
        beyond_mib: float = 0.0,
        faulted: Callable[[str, int, str, Cause], None] = lambda *_: None,
    ) -> None:
        self.activity = Activity()
        self._residents = residents
        self._trainings = trainings
        self._window_over = window_over
        self.held = Held(residents, self.activity)
        self._health = DeviceHealth(device, residents)
        self._crashes = Crashes(residents=residents, health=self._health, faulted=faulted)
        self._standby = Standby(
            residents=residents,
            device=device,
            health=self._health,
            activity=self.activity,
            zygote=supplies.zygote,
            wanted=standby,
            trainings=trainings,
        )
        self._memory = Memory(residents=residents, device=device, standby=self._standby, trainings=trainings)
        self._eviction = Eviction(
            residents=residents, device=device, memory=self._memory, standby=self._standby, trainings=trainings
        )
        self._loader = Loader(
            residents=residents,
            device=device,
            health=self._health,
            standby=self._standby,
            crashes=self._crashes,
            activity=self.activity,
            supplies=supplies,
        )
        self._relief = Relief(
            residents=residents,
            device=device,
            memory=self._memory,
            eviction=self._eviction,
            standby=self._standby,
            loader=self._loader,
            trainings=trainings,
            beyond_mib=beyond_mib,
        )
        self.upkeep = Upkeep(
            residents=residents,
            memory=self._memory,
            eviction=self._eviction,
            standby=self._standby,
            loader=self._loader,
            window_over=window_over,
        )
        self.status = Status(
            residents=residents,
            memory=self._memory,
            standby=self._standby,
            crashes=self._crashes,
            eviction=self._eviction,
        )

    def start(self) -> None:
        """Begin the upkeep, in a thread of its own."""
        self.upkeep.start()

    def close(self) -> None:
        """Unload everything. Batches must have ended; later ones are refused."""
        residents = self._residents
        with residents.lock:
            residents.closed = True
            going = [i for i in (*residents, *residents.parked) if i.runner is not None and not i.leaving]
            for instance in going:
                instance.leaving = True
            residents.freed.notify_all()
            residents.upkeep.notify()
        self.upkeep.join()
        self._loader.unload(going, Ending.CLOSED)

    # ---- for batches -------------------------------------------------------------------------------------------------

    def prepare(self, function: str, revision: int, spec: FunctionSpec) -> Mapping[str, float]:
        """
        Have on this node what an uploaded function needs for its next cold start; at once where it is warm. May take
        minutes.

        To be called before the run gate is asked, so that what follows is short. Returns milliseconds by phase. Raises
        LoadFailed, Unservable.
        """
        if spec.artifact is None:
            return {}
        with self._residents.lock:
            if self._residents.of((function, revision)):
                return {}
        runtime = self._loader.runtime(function, spec)
        runtime.close()
        return runtime.phases

    def acquire(
        self,
        function: str,
        revision: int,
        spec: FunctionSpec,
        *,
        until: float,
        wanted: Callable[[], bool],
        prepared: Mapping[str, float] = MappingProxyType({}),
        load: bool = True,
    ) -> Seat:
        """
        An instance for one batch: an idle one, a new one where ``max_warm`` and memory allow (and ``load``), or the first
        that becomes free.

        ``prepared``: what :meth:`prepare` has taken, part of the load where there is one. ``until`` (of the pool's
        clock) bounds the wait for somebody else's, not a load; neither begins once ``wanted`` is false. Raises
        Unservable, Quarantined, LoadFailed; NoneLeft where there is no instance and none is to be loaded.
        """
        key, residents = (function, revision), self._residents
        began = self._residents.clock()
        awaited: Instance | None = None
        with residents.lock:
            while True:
                if residents.closed:
                    raise Unservable("The worker is ending.")
                if reason := self.health():
                    raise Unservable(f"Nothing can run on {self._residents.gpu}: {reason}")
                self._crashes.refuse_quarantined(key)
                if awaited is not None and awaited.failure is not None:
                    raise awaited.failure
                staying = residents.staying(key)
                idle = next((instance for instance in staying if instance.state is WarmState.IDLE), None)
                if idle is not None:
                    idle.state = WarmState.BUSY
                    idle.lifecycle.begin(self._residents.clock(), idle.spec.keep_alive_s)
                    self.activity.begin()
                    waited_us = int((self._residents.clock() - began) * 1e6) if awaited is not None else 0
                    new, idle.used = not idle.used, True
                    return Seat(instance=idle, cold=awaited is not None, load_us=waited_us, new=new)
                if not wanted():
                    raise Unservable("Nobody waits for it any more, or the worker is ending.")
                if not load and not staying:
                    raise NoneLeft("The instance that it waited for has ended.")
                if load and len(staying) < spec.max_warm:
                    if self._memory.on_device(spec) and (growing := self._trainings.growing()):
                        raise Unservable(growing)
                    victims = self._eviction.make_room(key, spec)
                    if victims is not None:
                        instance = self._add(function, revision, spec, asked_at=began - sum(prepared.values()) / 1e3)
                        break
                else:
                    awaited = next((i for i in staying if i.state is WarmState.LOADING), awaited)
                    if awaited is not None:
                        awaited.lifecycle.await_()
                left_s = until - self._residents.clock()
                if left_s <= 0:
                    raise Unservable("Every instance is busy and there is no room for another.")
                residents.freed.wait(min(left_s, ROUND_S))
        self._loader.provide(instance, victims, prepared)
        self.activity.begin()
        try:
            self._loader.load(instance, victims, WarmState.BUSY)
        except BaseException:
            self.activity.end()
            raise
        observability.COLD_STARTS.labels(function, self._residents.gpu).inc()
        new, instance.used = not instance.used, True
        load_us = int((self._residents.clock() - began) * 1e6 + sum(prepared.values()) * 1e3)
        return Seat(instance=instance, cold=True, load_us=load_us, new=new)

    def _add(self, function: str, revision: int, spec: FunctionSpec, *, asked_at: float | None = None) -> Instance:
        """``asked_at``: when a batch asked for it, None = it is loaded ahead. With the lock held."""
        now = self._residents.clock()
        lifecycle = self._residents.lifecycles.begin(
            function, revision, prewarmed=asked_at is None, now=now if asked_at is None else asked_at
        )
        memory_mib = self._memory.need_mib((function, revision), spec)
        instance = Instance(function, revision, spec, memory_mib, lifecycle, used_at=now)
        self._residents.add(instance)
        return instance

    def release(self, seat: Seat, *, healthy: bool = True) -> None:
        """Give an instance back after a batch; one that is not healthy is ended, and its memory is back on return."""
        instance, residents = seat.instance, self._residents
        try:
            with residents.lock:
                self.held.count_again(instance)
                instance.used_at = self._residents.clock()
                instance.lifecycle.rest(instance.used_at)
                if healthy and not instance.leaving and not residents.closed and not seat.runner.ended.is_set():
                    instance.state = WarmState.IDLE
                    residents.freed.notify_all()
                    if 0 <= instance.spec.keep_alive_s < ROUND_S:
                        residents.upkeep.notify()
                    return
                instance.leaving = True
            wanted = healthy and not seat.runner.ended.is_set()
            seat.runner.end()
        finally:
            # Ending a process is work for the device too.
            self.activity.end()
        ending = Ending.EVICTED if instance.evicted else Ending.OFFLOAD if wanted else Ending.CRASHED
        self._loader.drop(instance, ending)

    def retire(self, seat: Seat) -> None:
        """Give this instance to nobody after its present holder."""
        with self._residents.lock:
            seat.instance.leaving = True

    def ran(self, seat: Seat, seconds: float) -> None:
        """Note a run that came to its end, and how long it took."""
        self.status.ran(seat.instance.key, seconds)
        self._crashes.succeeded(seat.instance.key)

    def crashed(self, seat: Seat, culprit: str, cause: Cause, *, broke: bool = False) -> None:
        """
        Note that user code ended its runner, or ``broke`` the protocol, for which its runner was ended. ``culprit``:
        the id of the invocation. On a device that nothing can run on nobody is blamed.
        """
        self._crashes.in_run(seat.instance, seat.runner, culprit, cause, broke=broke)

    def device_full(self, seat: Seat) -> bool:
        """
        Whether others may have left a function less of the device than it declares, as its process says. To be called
        while that process still holds what it has.
        """
        return self._health.full(seat.instance)

    def health(self) -> str:
        """Why nothing can run on the device, '' = something can."""
        return self._health.reason()

    # ---- for commands ------------------------------------------------------------------------------------------------

    def prewarm(
        self, function: str, revision: int, spec: FunctionSpec, instances: int = 1, hold_s: float = 0.0
    ) -> None:
        """
        Load what is missing of ``instances``, at most ``max_warm``, and hold so many for ``hold_s`` (0 = no change);
        returns at once.

        Room is made of idle instances that the leader does not hold. Where there is none the rest is not loaded.
        """
        key, residents = (function, revision), self._residents
        begun = []
        with residents.lock:
            if residents.closed or self._crashes.quarantines(key):
                return
            if hold_s > 0:
                self._eviction.hold(key, instances, hold_s)
            if reason := self.health() or (self._trainings.growing() if self._memory.on_device(spec) else ""):
                log.info("not prewarmed", function=function, revision=revision, reason=reason)
                return
            for _ in range(min(instances, spec.max_warm) - len(residents.staying(key))):
                victims = self._eviction.try_room(key, spec, spare_only=True)
                if victims is None:
                    log.info("no room to prewarm", function=function, revision=revision)
                    break
                begun.append((self._add(function, revision, spec), victims))
            residents.upkeep.notify()
        for instance, victims in begun:
            threading.Thread(target=self._prewarm, args=(instance, victims), name="prewarm", daemon=True).start()

    def _prewarm(self, instance: Instance, victims: list[Instance]) -> None:
        try:
            self._loader.provide(instance, victims, {})
            self._window_over()
            with self.activity.working():
                self._loader.load(instance, victims, WarmState.IDLE)
        except (LoadFailed, Unservable) as error:
            log.warning("prewarm failed", function=instance.function, revision=instance.revision, error=str(error))

    def offload(self, function: str, revision: int, keep: int = 0, *, gone: bool = False) -> None:
        """
        Unload idle instances of a revision (or of :data:`~smore.messages.commands.ALL_REVISIONS`), least recently used
        first, until ``keep`` are left; returns when their memory is back. A prewarmed one that is still loading goes as
        soon as it is ready.

        ``gone``: its parked instances go too, none is parked, and one that is busy goes behind its run.
        """
        residents = self._residents
        idle: list[Instance] = []
        parked: list[Instance] = []
        with residents.lock:
            there = (instance.key for instance in (*residents, *residents.parked) if instance.function == function)
            for key in dict.fromkeys(there) if revision == ALL_REVISIONS else [(function, revision)]:
                of_key = self._eviction.offload(key, keep, gone=gone)
                idle += of_key[0]
                parked += of_key[1]
        if idle or parked:
            self._window_over()
        if gone:
            self._loader.unload([*idle, *parked], Ending.OFFLOAD)
        else:
            self._loader.let_go(idle, Ending.OFFLOAD)

    def respecify(self, function: str, revision: int, spec: FunctionSpec) -> None:
        """The revision's knobs have changed."""
        with self._residents.lock:
            for instance in self._residents.of((function, revision)):
                instance.spec = spec
            self._residents.upkeep.notify()

    # ---- for the heartbeat and the zygote ----------------------------------------------------------------------------

    def relieve(self) -> list[Instance]:
        """Free the memory that is reserved for training. Returns the instances that had to go."""
        return self._relief.relieve()

    def quarantine_everywhere(self, revisions: Iterable[Key]) -> None:
        """These, and only these, are quarantined on all workers."""
        self._crashes.quarantine_everywhere(revisions)

    def exited(self, runner: Runner) -> None:
        """A runner's process has ended. One that was busy or loading is noticed by whoever waits for its answer."""
        self._standby.exited(runner)
        with self._residents.lock:
            instance = self._residents.of_runner(runner)
            if instance is not None:
                instance.leaving = True
        if instance is not None:
            self._crashes.while_idle(instance, runner)
            self._loader.drop(instance, Ending.CRASHED)
