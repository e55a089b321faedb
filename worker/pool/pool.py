"""
The warm pool: the resident models of this GPU instance, within its memory.

An instance is one runner process with one revision loaded. It is loading, idle or busy; idle ones are let go of when
somebody needs their memory (least recently used first) or when their keep-alive is over. What the leader has asked to
hold stays until the time that it named, and is let go of for others' batches only after all that nobody holds. One
standby runner without a model waits for the next cold start. What becomes of each instance is told
(:class:`~worker.pool.lifecycle.Life`). What is let go of may be parked in host memory
(:class:`~worker.pool.parked.Parked`), where the next load of its revision finds it. All of it is guarded by one
condition; what takes time (loads, unloads, kills) happens outside it, in the thread that needs it.
"""

import math
import re
import signal
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, NoReturn

from smore.domain.function import FunctionSpec
from smore.domain.invocation import Cause
from smore.messages import stream
from smore.messages.reports import ParkedInstance, WarmInstance, WarmState
from smore.process import observability
from worker.activity import Activity
from worker.artifacts.needs import Supply, SupplyAway, SupplyFailed
from worker.device.device import Device
from worker.frames import BadFrame, Load, Loaded, Results
from worker.pool.instance import Instance
from worker.pool.lifecycle import Lives, Why
from worker.pool.parked import Parked
from worker.pool.quarantine import Key, Quarantine
from worker.runner.processes import NoRunner, Runner, RunnerDied, RunnerFailed, RunnerTimeout, Zygote

log = observability.logger(__name__)

#: A load may take as long as a run and at least this.
LOAD_S: Final = 120.0
#: Moving weights to host memory takes no longer than this.
PARK_S: Final = 30.0
#: How often the memory of an instance that runs is measured anew: soon after its load at first, then after twice as
#: long each time, up to this.
_MEASURE_S: Final = 10.0
#: Runs of a revision whose longest is reported.
_RUNS: Final = 50
#: How long there is no standby runner after training needed the memory of one.
_STANDBY_PAUSE_S: Final = 30.0
#: After one could not be made: this long, then twice as long each time, up to that.
_RETRY_S: Final = 1.0
_RETRY_MOST_S: Final = 60.0
#: What a process takes of a GPU before it computes anything, until one has been measured here.
_CONTEXT_MIB: Final = 600.0
#: By so much a context may grow with what a function does: libraries load their kernels when they are first used.
_CONTEXT_GROWTH_MIB: Final = 512.0
#: What a load fails with where CUDA cannot be begun at all, whoever begins it (torch/cuda/__init__.py and CUDA's
#: runtime errors).
_NO_DEVICE: Final = re.compile(
    r"No CUDA GPUs are available|Found no NVIDIA driver|NVIDIA driver on your system is too old|Unexpected error from"
    r" cudaGetDeviceCount"
    r"|CUDA unknown error|CUDA driver initialization failed|no CUDA-capable device is detected|CUDA driver version is"
    r" insufficient"
    r"|CUDA error: (initialization error|unknown error|system not yet initialized|OS call failed|system has"
    r" unsupported)"
    r"|Torch not compiled with CUDA enabled|CUDA-capable device\(s\) is/are busy or unavailable"
)
#: Ends that a function brings about itself, by its own instructions; anybody may send SIGKILL.
_CRASHES: Final = frozenset(
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
#: How often the pool looks after itself when nothing wakes it.
_ROUND_S: Final = 1.0


class Unservable(Exception):
    """This worker cannot run the batch now; another may."""


class Quarantined(Exception):
    """The revision is shut out after repeated crashes."""


class LoadFailed(Exception):
    """The handler could not be loaded; the message is for the caller."""


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
    ``others_mib`` is what serverful jobs hold of the device or have reserved, ``owed_mib`` the part of it that they do
    not hold yet; ``growing`` says why all that is left belongs to a job for now, '' = it does not. ``beyond_mib``: what
    a runner may take of a CPU partition above what its function declares. ``faulted`` is told (function, revision,
    culprit, cause) of every fault of a device that a function may have caused. ``secrets_of`` gives a revision's
    secrets by name and may raise LoadFailed and Unservable. ``results`` bounds what runners may answer. ``changed`` is
    called (briefly, under the lock) when the warm set changes.

    ``parked``: where what is let go of may wait; by default nothing is parked. ``window_over`` waits until no closed
    window is at hand: work for the device that can be put off is no part of one.

    The zygote's ``exited`` must be :meth:`exited`. ``supply`` provides for uploaded functions
    (:meth:`worker.artifacts.needs.Supplier.take`).
    """

    def __init__(
        self,
        *,
        gpu: str,
        device: Device,
        zygote: Callable[[], Zygote],
        standby: bool,
        others_mib: Callable[[], float],
        owed_mib: Callable[[], float] = lambda: 0.0,
        growing: Callable[[], str] = lambda: "",
        window_over: Callable[[], object] = lambda: None,
        beyond_mib: float = 0.0,
        faulted: Callable[[str, int, str, Cause], None] = lambda *_: None,
        secrets_of: Callable[[str, FunctionSpec], Mapping[str, str]] = lambda *_: {},
        results: Results,
        changed: Callable[[], None],
        supply: Callable[[str, FunctionSpec], Supply],
        boot: str = "",
        parked: Parked | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.activity = Activity()
        self.quarantine = Quarantine()
        self._gpu = gpu
        self._device = device
        self._zygote = zygote
        self._wants_standby = standby
        self._others_mib = others_mib
        self._owed_mib = owed_mib
        self._growing = growing
        self._window_over = window_over
        self._beyond_mib = beyond_mib
        self._faulted = faulted
        self._secrets_of = secrets_of
        self._results = results
        self._changed = changed
        self._supply = supply
        self._clock = clock
        lock = threading.RLock()
        #: Told when an instance or memory becomes free.
        self._state = threading.Condition(lock)
        #: Told when the keeper has something to do: the same lock, but no batch's end need wake it.
        self._rounds = threading.Condition(lock)
        self._instances: dict[Key, list[Instance]] = {}
        #: Memory that a revision was found to need, for its next load.
        self._known_mib: dict[Key, float] = {}
        #: Seconds of a revision's last runs.
        self._runs_s: dict[Key, deque[float]] = {}
        #: How many instances of a revision the leader has asked to hold, and until when (of this pool's clock).
        self._holds: dict[Key, tuple[int, float]] = {}
        self._lives = Lives(boot)
        self._parked = parked if parked is not None else Parked()
        #: Revisions whose handlers name nothing that can be moved.
        self._unparkable: set[Key] = set()
        self._standby: Runner | None = None
        self._standby_mib = 0.0
        #: Not before this time is there another one, and after the next failure it takes so much longer.
        self._standby_from = 0.0
        self._retry_s = _RETRY_S
        #: What a process takes of the device before it computes anything; of a CPU partition nothing that is counted.
        self._context_mib = _CONTEXT_MIB if device.handler_device == "cuda" else 0.0
        #: Why no process can begin to use the device.
        self._broken = ""
        self._loading = 0
        self._closed = False
        self._keeper: threading.Thread | None = None

    def start(self) -> None:
        self._keeper = threading.Thread(target=self._keep, name="pool", daemon=True)
        self._keeper.start()

    # ---- for batches -------------------------------------------------------------------------------------------------

    def prepare(self, function: str, revision: int, spec: FunctionSpec) -> Mapping[str, float]:
        """
        Have on this node what an uploaded function needs for its next cold start; at once where it is warm. May take
        minutes.

        To be called before the gate is asked, so that what follows is short. Milliseconds by phase. Raises LoadFailed,
        Unservable.
        """
        if spec.artifact is None:
            return {}
        with self._state:
            if self._instances.get((function, revision)):
                return {}
        supply = self._supplied(function, spec)
        supply.close()
        return supply.phases

    def acquire(
        self,
        function: str,
        revision: int,
        spec: FunctionSpec,
        *,
        until: float,
        wanted: Callable[[], bool],
        prepared: Mapping[str, float] = MappingProxyType({}),
    ) -> Seat:
        """
        An instance for one batch: an idle one, a new one where ``max_warm`` and memory allow, or the first that becomes
        free.

        ``prepared``: what :meth:`prepare` has taken, part of the load where there is one. ``until`` (of the pool's
        clock) bounds the wait for somebody else's, not a load; neither begins once ``wanted`` is false. Raises
        Unservable, Quarantined, LoadFailed.
        """
        began = self._clock()
        awaited: Instance | None = None
        with self._state:
            while True:
                if self._closed:
                    raise Unservable("The worker is ending.")
                if sick := self.health():
                    raise Unservable(f"Nothing can run on {self._gpu}: {sick}")
                self._refuse_quarantined((function, revision))
                if awaited is not None and awaited.failure is not None:
                    raise awaited.failure
                mine = [one for one in self._instances.get((function, revision), ()) if not one.leaving]
                idle = next((one for one in mine if one.state is WarmState.IDLE), None)
                if idle is not None:
                    idle.state = WarmState.BUSY
                    idle.life.begin(self._clock(), idle.spec.keep_alive_s)
                    self.activity.begin()
                    waited_us = int((self._clock() - began) * 1e6) if awaited is not None else 0
                    new, idle.used = not idle.used, True
                    return Seat(instance=idle, cold=awaited is not None, load_us=waited_us, new=new)
                if not wanted():
                    raise Unservable("Nobody waits for it any more, or the worker is ending.")
                if len(mine) < spec.max_warm:
                    if self._on_device(spec) and (growing := self._growing()):
                        raise Unservable(growing)
                    victims = self._make_room(function, revision, spec)
                    if victims is not None:
                        instance = self._add(function, revision, spec, prewarmed=False)
                        break
                else:
                    awaited = next((one for one in mine if one.state is WarmState.LOADING), awaited)
                    if awaited is not None:
                        awaited.life.await_()
                left = until - self._clock()
                if left <= 0:
                    raise Unservable("Every instance is busy and there is no room for another.")
                self._state.wait(min(left, _ROUND_S))
        self._provide(instance, victims, prepared)
        self.activity.begin()
        try:
            self._fill(instance, victims, WarmState.BUSY)
        except BaseException:
            self.activity.end()
            raise
        observability.COLD_STARTS.labels(function, self._gpu).inc()
        new, instance.used = not instance.used, True
        return Seat(
            instance=instance,
            cold=True,
            load_us=int((self._clock() - began) * 1e6 + sum(prepared.values()) * 1e3),
            new=new,
        )

    def release(self, seat: Seat, *, healthy: bool = True) -> None:
        """Give an instance back after a batch; one that is not healthy is ended, and its memory is back on return."""
        instance = seat.instance
        try:
            with self._state:
                instance.used_at = self._clock()
                instance.life.rest(instance.used_at)
                if healthy and not instance.leaving and not self._closed and not seat.runner.ended.is_set():
                    instance.state = WarmState.IDLE
                    self._state.notify_all()
                    if 0 <= instance.spec.keep_alive_s < _ROUND_S:
                        self._rounds.notify()
                    return
                instance.leaving = True
            seat.runner.end()
        finally:
            # Ending a process is work for the device too.
            self.activity.end()
        self._drop(instance, Why.EVICTED if instance.evicted else Why.CRASHED)

    def doom(self, seat: Seat) -> None:
        """Give this instance to nobody after its present holder."""
        with self._state:
            seat.instance.leaving = True

    def crashed(self, seat: Seat, culprit: str, cause: Cause, *, broke: bool = False) -> None:
        """
        Note that user code ended its runner, or ``broke`` the protocol, for which it was ended. Of a device that
        nothing can run on it is nobody's doing.
        """
        instance = seat.instance
        observability.RUNNER_DEATHS.labels(instance.function, self._gpu, cause.value).inc()
        if self._device_failed():
            return
        self._note_crash(instance, culprit)
        if broke or cause in (Cause.OUT_OF_MEMORY, Cause.CONTEXT_LOST) or seat.runner.status in _CRASHES:
            self._faulted(instance.function, instance.revision, culprit, cause)

    def device_full(self, instance: Instance) -> bool:
        """
        Whether it may be true that others left a function less of the device than it declares, as its process says. To
        be asked while that process still holds what it has.
        """
        self._device.refresh()
        free_mib = self._device.free_mib() if self._device.handler_device == "cuda" else math.inf
        return free_mib is None or free_mib < instance.spec.memory_mib

    def ran(self, seat: Seat, seconds: float) -> None:
        """Note how long a run took, from its begin to its end: nothing could have stopped it meanwhile."""
        with self._state:
            self._runs_s.setdefault(seat.instance.key, deque(maxlen=_RUNS)).append(seconds)

    def succeeded(self, seat: Seat) -> None:
        self.quarantine.succeeded(seat.instance.key)

    # ---- for commands ------------------------------------------------------------------------------------------------

    def prewarm(
        self, function: str, revision: int, spec: FunctionSpec, instances: int = 1, hold_s: float = 0.0
    ) -> None:
        """
        Load what is missing of ``instances``, at most ``max_warm``, and hold so many for ``hold_s`` (0 = as was said
        before); returns at once.

        Room is made of idle instances that nobody holds. Where there is none the rest is not loaded.
        """
        key = (function, revision)
        begun = []
        with self._state:
            if self._closed or self.quarantine.holds(key, self._clock()):
                return
            if hold_s > 0:
                self._holds[key] = (instances, self._clock() + hold_s)
            if reason := self.health() or (self._growing() if self._on_device(spec) else ""):
                log.info("not prewarmed", function=function, revision=revision, reason=reason)
                return
            present = sum(not one.leaving for one in self._instances.get(key, ()))
            for _ in range(min(instances, spec.max_warm) - present):
                victims = self._try_room(function, revision, spec, spare_only=True)
                if victims is None:
                    log.info("no room to prewarm", function=function, revision=revision)
                    break
                begun.append((self._add(function, revision, spec, prewarmed=True), victims))
            self._rounds.notify()
        for instance, victims in begun:
            threading.Thread(target=self._prewarm, args=(instance, victims), name="prewarm", daemon=True).start()

    def _prewarm(self, instance: Instance, victims: list[Instance]) -> None:
        try:
            self._provide(instance, victims, {})
            self._window_over()
            with self._at_work():
                self._fill(instance, victims, WarmState.IDLE)
        except (LoadFailed, Unservable) as error:
            log.warning("prewarm failed", function=instance.function, revision=instance.revision, error=str(error))

    def offload(self, function: str, revision: int, keep: int = 0, *, gone: bool = False) -> None:
        """
        Unload idle instances of a revision, least recently used first, until ``keep`` are left; returns when their
        memory is back.

        One that is being loaded for nobody goes as soon as it has come. ``gone``: what is parked of it goes too, and
        nothing is parked.
        """
        key = (function, revision)
        with self._state:
            held, until = self._holds.get(key, (0, 0.0))
            if keep and held:
                self._holds[key] = (min(held, keep), until)
            else:
                self._holds.pop(key, None)
            present = [one for one in self._instances.get(key, ()) if not one.leaving]
            surplus = max(0, len(present) - keep)
            unwanted = [one for one in present if one.state is WarmState.LOADING and one.life.unwanted]
            going = sorted((one for one in present if one.state is WarmState.IDLE), key=lambda one: one.used_at)[
                :surplus
            ]
            forgotten = [one for one in self._parked.staying() if one.key == key] if gone else []
            for one in [*going, *unwanted[: surplus - len(going)], *forgotten]:
                one.leaving = True
        if going or forgotten:
            self._window_over()
        if gone:
            self._unload([*going, *forgotten], Why.OFFLOAD)
        else:
            self._let_go(going, Why.OFFLOAD)

    def respecify(self, function: str, revision: int, spec: FunctionSpec) -> None:
        """The revision's knobs have changed."""
        with self._state:
            for one in self._instances.get((function, revision), ()):
                one.spec = spec
            self._rounds.notify()

    # ---- for training ------------------------------------------------------------------------------------------------

    def relieve(self) -> list[Instance]:
        """
        Called with every heartbeat: see to it that training finds the memory that is reserved for it. Returns who had
        to go.

        An instance that holds more than it may goes at once. Where less is free than jobs are owed, idle ones go, least
        recently used first, then the standby runner, then running and loading ones, the one furthest above its
        declaration first. Without a job only idle ones make room. What goes is killed: unloading takes time that
        training may not have.
        """
        with self._state:
            seen = [one for one in self._all() if one.runner is not None]
        held = {id(one): self._look(one) for one in seen}
        with self._state:
            self._take_measures(seen)
            if self._growing():
                self._rounds.notify()
            going: list[Instance] = []
            forgotten = self._parked.staying() if self._short_mib(seen, held, ()) > 0 else []
            for one in forgotten:
                one.leaving = True
            for one in seen:
                assert one.runner is not None
                if self._exceeds(one, held[id(one)]):
                    # A quick look may have counted too much.
                    held[id(one)] = self._device.runner_memory_mib(one.runner.pid) or 0.0
                if not one.evicted and (self._exceeds(one, held[id(one)]) or one.runner.exhausted()):
                    log.warning("takes more memory than it may", function=one.label, memory_mib=round(held[id(one)]))
                    self._evict(one, Cause.OUT_OF_MEMORY)
                    going.append(one)
            coming = sum(held[id(one)] for one in going) + sum(one.memory_mib for one in forgotten)
            going += self._make_free(seen, held, coming)
            standby = (
                self._standby
                if self._standby is not None and self._short_mib(seen, held, going) > 0 and self._owed_mib()
                else None
            )
            if standby is not None:
                self._standby, self._standby_mib = None, 0.0
                self._standby_from = self._clock() + _STANDBY_PAUSE_S
            if going or standby is not None:
                self._changed()
        if standby is not None:
            standby.kill()
            threading.Thread(target=self._end, args=(standby,), name="evict", daemon=True).start()
        for one in (*forgotten, *going):
            assert one.runner is not None
            one.runner.kill()
            if one.state is WarmState.IDLE:
                threading.Thread(target=self._bury, args=(one,), name="evict", daemon=True).start()
        return going

    def _look(self, one: Instance) -> float:
        """MiB that it holds now, quickly; not less than that where it is unknown."""
        assert one.runner is not None
        if not one.measured_at:
            return self._device.runner_memory_mib(one.runner.pid) or one.memory_mib
        quick = self._device.quick_memory_mib(one.runner.pid)
        if quick is None:
            return one.memory_mib
        return max(0.0, quick - one.shared_mib)

    def _take_measures(self, seen: Sequence[Instance]) -> None:
        """With the lock held: what a GPU's processes hold, as the driver says with every look at it."""
        if self._device.handler_device == "cpu":
            return
        if self._standby is not None and (held := self._device.process_memory_mib(self._standby.pid)):
            self._standby_mib = self._context_mib = held
        for one in seen:
            assert one.runner is not None
            held = self._device.runner_memory_mib(one.runner.pid)
            # One that is loading will hold what it has been counted for, and one that has just been loaded was not seen
            # whole.
            if held and one.state is not WarmState.LOADING and one.loaded_at < self._device.looked_at:
                one.memory_mib = self._known_mib[one.key] = held
        for one in self._parked:
            if one.runner is not None and (held := self._device.runner_memory_mib(one.runner.pid)):
                one.memory_mib = held

    def _exceeds(self, one: Instance, held_mib: float) -> bool:
        beyond = self._beyond_mib if self._device.handler_device == "cpu" else self._context_mib + _CONTEXT_GROWTH_MIB
        return held_mib > one.spec.memory_mib + beyond

    def _short_mib(self, seen: Sequence[Instance], held: Mapping[int, float], gone: Iterable[Instance]) -> float:
        """
        How much less is free than jobs are owed.

        Free is what the device, or on a CPU partition the machine, has left for anybody, and what is left of the
        partition's own share.
        """
        owed = self._owed_mib()
        jobs_hold = self._others_mib() - owed
        ours = self._standby_mib + self._parked.memory_mib + sum(held[id(one)] for one in seen)
        free = self._device.memory_total_mib - jobs_hold - ours
        really = self._device.free_mib()
        if really is not None:
            free = min(free, really)
        # What is on its way out is free in a moment.
        coming = {id(one) for one in (*gone, *(one for one in seen if one.leaving and one.evicted))}
        return owed - free - sum(held[of] for of in coming)

    def _make_free(self, seen: Sequence[Instance], held: Mapping[int, float], coming_mib: float) -> list[Instance]:
        short = self._short_mib(seen, held, ()) - coming_mib
        stays = [one for one in seen if not one.evicted]
        idle = [one for one in self._evictable() if any(one is each for each in stays)]
        at_work = sorted(
            (one for one in stays if one.state is not WarmState.IDLE),
            key=lambda one: one.spec.memory_mib - held[id(one)],
        )
        going = []
        for one in (*idle, *(at_work if self._owed_mib() else ())):
            if one.state is not WarmState.IDLE:
                # The standby runner goes before anything that works.
                if short - self._standby_mib <= 0:
                    break
            elif short <= 0:
                break
            log.warning("makes room for training", function=one.label, state=one.state, memory_mib=round(held[id(one)]))
            self._evict(one, Cause.WORKER_BUSY)
            going.append(one)
            short -= held[id(one)]
        return going

    def _evict(self, one: Instance, cause: Cause) -> None:
        one.evicted, one.leaving = cause, True

    def _bury(self, one: Instance) -> None:
        assert one.runner is not None
        self._end(one.runner)
        self._drop(one, Why.EVICTED)

    def _end(self, runner: Runner) -> None:
        with self._at_work():
            runner.end()

    @contextmanager
    def _at_work(self) -> Iterator[None]:
        """What is done to the device meanwhile counts as work of functions."""
        self.activity.begin()
        try:
            yield
        finally:
            self.activity.end()

    # ---- the device's health -----------------------------------------------------------------------------------------

    def health(self) -> str:
        """'' or why nothing can run on the device."""
        return self._device.health() or self._broken

    def _device_failed(self) -> bool:
        """Whether the device is at fault for what has just gone wrong: it is given the time to say so."""
        self._device.refresh()
        return bool(self.health())

    def _blameless(self, error: RunnerFailed) -> str:
        """Why a load failed that is not the handler's doing, '' = it is."""
        if self._device.handler_device == "cpu":
            return ""
        if not self._device_failed() and _NO_DEVICE.search(str(error)):
            # Its handler may say that, but not a process without one.
            self._make_standby()
        return self.health()

    def _call_broken(self, reason: str) -> None:
        with self._state:
            if reason == self._broken:
                return
            self._broken = reason
            self._changed()
        if reason:
            log.error("no process can begin to use the device", reason=reason)
        else:
            log.info("the device can be used again")

    def shut_out(self, revisions: Iterable[Key]) -> None:
        """The revisions that are quarantined everywhere, all of them."""
        with self._state:
            if self.quarantine.set_everywhere(revisions):
                self._changed()
                self._state.notify_all()

    # ---- for reports -------------------------------------------------------------------------------------------------

    def warm(self) -> list[WarmInstance]:
        now = self._clock()
        with self._state:
            return [
                WarmInstance(
                    function=one.function,
                    revision=one.revision,
                    state=one.state,
                    memory_mib=round(one.memory_mib, 1),
                    pid=one.runner.pid if one.runner is not None else 0,
                    idle_s=round(now - one.used_at, 3) if one.state is WarmState.IDLE else 0.0,
                    longest_s=round(max(self._runs_s.get(one.key, ()), default=0.0), 6),
                )
                for one in self._all()
                if not one.leaving
            ]

    def parked(self) -> list[ParkedInstance]:
        """Without those that a load which has begun will come out of."""
        with self._state:
            coming = Counter(one.key for one in self._all() if one.runner is None)
            found = []
            for one in self._parked.told(self._clock()):
                coming[one.function, one.revision] -= 1
                if coming[one.function, one.revision] < 0:
                    found.append(one)
            return found

    def lives(self) -> list[stream.Warmed]:
        """
        What is to be told of instances, again and again until :meth:`told` takes it: those that came, were first used
        or ended, and each a while after it was last told of.
        """
        with self._state:
            return self._lives.due(self._gpu, self._clock(), ((one.life, one.memory_mib) for one in self._all()))

    def told(self, events: Sequence[stream.Warmed]) -> None:
        """These have reached the stream."""
        with self._state:
            self._lives.told(events, self._clock())

    def memory_used_mib(self) -> float:
        """Of all instances and the standby runner."""
        with self._state:
            return self._standby_mib + self._parked.memory_mib + sum(one.memory_mib for one in self._all())

    def runners(self) -> list[int]:
        """Process numbers."""
        with self._state:
            found = [one.runner.pid for one in (*self._all(), *self._parked) if one.runner is not None]
            return found + ([self._standby.pid] if self._standby is not None else [])

    def quarantined(self) -> list[str]:
        with self._state:
            return [f"{function}@{revision}" for function, revision in self.quarantine.all(self._clock())]

    # ---- inside, with the lock held ----------------------------------------------------------------------------------

    def _all(self) -> Iterable[Instance]:
        return (one for several in self._instances.values() for one in several)

    def _refuse_quarantined(self, key: Key) -> None:
        left_s = self.quarantine.holds(key, self._clock())
        if left_s == math.inf:
            raise Quarantined(
                f"{key[0]}@{key[1]} is shut out everywhere after faults of a device, until it is lifted or deployed"
                " anew."
            )
        if left_s:
            raise Quarantined(
                f"{key[0]}@{key[1]} has crashed repeatedly and is shut out here for another {left_s:.0f} s."
            )

    def _make_room(self, function: str, revision: int, spec: FunctionSpec) -> list[Instance] | None:
        """As _try_room. Raises LoadFailed where it could never fit."""
        need = self._need_mib(function, revision, spec)
        if need > self._device.memory_total_mib:
            raise LoadFailed(
                f"It needs {need:.0f} MiB and this GPU instance has {self._device.memory_total_mib:.0f} MiB."
            )
        return self._try_room(function, revision, spec)

    def _spare(self) -> list[Instance]:
        """
        Idle instances that nobody holds, least recently used first. What is busy or loading counts towards what is held
        first.
        """
        found = []
        for key, several in self._instances.items():
            idle = sorted(
                (one for one in several if one.state is WarmState.IDLE and not one.leaving), key=lambda one: one.used_at
            )
            others = sum(one.state is not WarmState.IDLE and not one.leaving for one in several)
            found += idle[: max(0, len(idle) + others - self._held(key))]
        return sorted(found, key=lambda one: one.used_at)

    def _held(self, key: Key) -> int:
        instances, until = self._holds.get(key, (0, 0.0))
        return instances if self._clock() < until else 0

    def _evictable(self) -> list[Instance]:
        """Idle instances in the order in which they go when their memory is needed: what nobody holds first."""
        spare = self._spare()
        held = [one for one in self._all() if one.state is WarmState.IDLE and not one.leaving and one not in spare]
        return spare + sorted(held, key=lambda one: one.used_at)

    def _try_room(
        self, function: str, revision: int, spec: FunctionSpec, *, spare_only: bool = False
    ) -> list[Instance] | None:
        """
        The idle instances that must go, those that nobody holds first (``spare_only``: no others), least recently used
        first; they leave from now on. None where what stays fills the memory.
        """
        parked = [one for one in self._parked.staying() if one.key != (function, revision)]
        own = [one for one in self._parked.staying() if one.key == (function, revision)]
        coming = sum(one.runner is None for one in self._instances.get((function, revision), ()))
        restored = own[-1] if len(own) > coming else None
        # What becomes this load's own is part of what it needs: the parked one that it comes out of, or the standby
        # runner of a GPU. One load that has begun and has no process yet takes the latter.
        taken = not self._on_device(spec) or any(one.runner is None for one in self._all())
        becoming = restored.memory_mib if restored is not None else 0.0 if taken else self._standby_mib
        used = (
            self._standby_mib
            + self._parked.memory_mib
            + self._others_mib()
            + sum(one.memory_mib for one in self._all())
        )
        excess = used + self._need_mib(function, revision, spec) - self._device.memory_total_mib
        if self._on_device(spec):
            excess = max(excess, self._missing_mib(function, revision, spec))
        excess -= becoming
        going = []
        for one in (*parked, *(self._spare() if spare_only else self._evictable())):
            if excess <= 0:
                break
            going.append(one)
            excess -= one.memory_mib
        # What leaves already is counted and will be gone in a moment, but it is somebody else's room.
        if excess > 0:
            return None
        for one in going:
            one.leaving = True
        return going

    def _missing_mib(self, function: str, revision: int, spec: FunctionSpec) -> float:
        """
        How much more a load needs than is really free of a GPU: less what training is owed and what has been promised
        to others. So what nobody here knows of counts too: an allowed stranger, a process of another container.
        """
        really = self._device.free_mib()
        if really is None:
            return -math.inf
        promised = 0.0
        for one in self._all():
            # The driver was last asked before this one had all of it.
            if one.state is WarmState.LOADING or one.loaded_at >= self._device.looked_at:
                held = self._device.runner_memory_mib(one.runner.pid) if one.runner is not None else None
                promised += max(0.0, one.memory_mib - (held or 0.0))
        return self._need_mib(function, revision, spec) - (really - self._owed_mib() - promised)

    def _on_device(self, spec: FunctionSpec) -> bool:
        """Whether its process has a context of a GPU. One that declares no memory there computes elsewhere."""
        return self._device.handler_device == "cuda" and spec.memory_mib > 0

    def _need_mib(self, function: str, revision: int, spec: FunctionSpec) -> float:
        context = self._context_mib if self._on_device(spec) else 0.0
        return self._known_mib.get((function, revision), spec.memory_mib + context)

    def _add(self, function: str, revision: int, spec: FunctionSpec, *, prewarmed: bool) -> Instance:
        life = self._lives.begin(function, revision, prewarmed=prewarmed, now=self._clock())
        instance = Instance(
            function, revision, spec, self._need_mib(function, revision, spec), life, used_at=self._clock()
        )
        self._instances.setdefault(instance.key, []).append(instance)
        self._loading += 1
        self._changed()
        return instance

    # ---- inside, without it ------------------------------------------------------------------------------------------

    def _provide(self, instance: Instance, victims: list[Instance], prepared: Mapping[str, float]) -> None:
        """
        Have ready what an uploaded function stands on. No run of a function, however long it takes: it keeps to the
        platform's cores.

        Raises LoadFailed, Unservable; then the instance is gone, and so are the victims.
        """
        if instance.spec.artifact is None:
            return
        try:
            supply = instance.supply = self._supplied(instance.function, instance.spec)
            supply.phases = {phase: ms + prepared.get(phase, 0.0) for phase, ms in supply.phases.items()}
        except (LoadFailed, Unservable) as error:
            self._unload(victims, Why.EVICTED)
            self._lose(instance, error)

    def _supplied(self, function: str, spec: FunctionSpec) -> Supply:
        """Raises LoadFailed, Unservable."""
        try:
            return self._supply(function, spec)
        except SupplyFailed as error:
            raise LoadFailed(str(error)) from error
        except SupplyAway as error:
            raise Unservable(str(error)) from error

    def _fill(self, instance: Instance, victims: list[Instance], then: WarmState) -> None:
        """Load. Raises LoadFailed, Unservable; then the instance is gone."""
        try:
            self._unload(victims, Why.EVICTED)
            supply = instance.supply
            restored = self._restored(instance)
            if restored is not None:
                runner, loaded = restored
            else:
                # One that declares no memory of the device gets none of it: neither it nor a standby runner's context.
                device = self._device.handler_device if instance.spec.memory_mib else "cpu"
                runner = instance.runner = (
                    self._take_runner() if device == self._device.handler_device else self._zygote().fork()
                )
                request = Load(
                    entrypoint=instance.spec.entrypoint,
                    device=device,
                    memory_mib=instance.spec.memory_mib,
                    results=self._results,
                    label=instance.label,
                    folder=str(supply.folder) if supply is not None else "",
                    environment=(
                        str(supply.environment) if supply is not None and supply.environment is not None else ""
                    ),
                    secrets=dict(self._secrets_of(instance.function, instance.spec)),
                    max_batch=instance.spec.max_batch,
                )
                loaded = runner.load(request, max(LOAD_S, instance.spec.timeout_s))
        except (LoadFailed, Unservable) as error:
            self._lose(instance, error)
        except NoRunner as error:
            self._lose(instance, Unservable(f"There is no process to load in: {error}"))
        except RunnerFailed as error:
            if sick := self._blameless(error):
                self._lose(instance, Unservable(f"Nothing can run on {self._gpu}: {sick}"))
            if error.cause is Cause.DEVICE_FULL and self.device_full(instance):
                self._lose(instance, Unservable(f"Others have taken the device's memory. {error}"))
            if error.cause is Cause.CONTEXT_LOST:
                self._blame(instance, runner, error.cause)
            self._lose(instance, LoadFailed(str(error)))
        except RunnerTimeout as error:
            self._lose(instance, LoadFailed(f"The load took too long. {error}"))
        except RunnerDied as error:
            if error.status is None:
                # With its zygote: not the handler's doing.
                self._lose(instance, Unservable("The zygote ended."))
            if instance.evicted is Cause.WORKER_BUSY:
                self._lose(instance, Unservable("Training needed the memory."))
            ran_out = instance.evicted is not None or runner.ran_out
            cause = Cause.OUT_OF_MEMORY if ran_out else Cause.CRASHED if error.status in _CRASHES else None
            self._blame(instance, runner, cause)
            self._lose(instance, LoadFailed(f"While loading: {error}"))
        except BadFrame as error:
            self._blame(instance, runner, Cause.CRASHED)
            self._lose(instance, LoadFailed(f"While loading: it broke the protocol: {error}."))
        phases = {**supply.phases, **loaded.phases} if supply is not None else loaded.phases
        for phase, ms in phases.items():
            observability.LOAD_SECONDS.labels(instance.function, phase).observe(ms / 1e3)
        with self._state:
            instance.phases = phases
            instance.memory_mib = max(loaded.memory_mib, instance.memory_mib)
            instance.used_at = instance.loaded_at = self._clock()
            died = runner.ended.is_set()
            # A runner may have died the moment it was ready: then nobody gets it.
            if then is WarmState.IDLE and died:
                instance.leaving = True
            instance.state = then
            instance.life.ready(instance.loaded_at, used=then is WarmState.BUSY)
            self._loading -= 1
            self._changed()
            self._state.notify_all()
            self._rounds.notify()
        if instance.leaving and then is WarmState.IDLE:
            # Dead, or offloaded while it was loading.
            if not died:
                runner.unload()
            self._drop(instance, Why.CRASHED if died else Why.OFFLOAD)

    def _blame(self, instance: Instance, runner: Runner, fault: Cause | None) -> None:
        """
        Note a runner's end while it was loaded or moved. ``fault``: what that counts as over all workers, None =
        nothing.
        """
        observability.RUNNER_DEATHS.labels(instance.function, self._gpu, Cause.LOAD_FAILED.value).inc()
        if self._device_failed():
            return
        culprit = f"load of runner {runner.pid}"
        self._note_crash(instance, culprit)
        if fault is not None:
            self._faulted(instance.function, instance.revision, culprit, fault)

    def _restored(self, instance: Instance) -> tuple[Runner, Loaded] | None:
        """
        Load out of host memory, where its revision is parked. None where it is not, or that failed: then it is loaded
        anew.
        """
        with self._state:
            parked = self._parked.take(instance.key)
        if parked is None:
            return None
        assert parked.runner is not None
        if parked.supply is not None:
            # This instance has its own hold on what it stands on.
            parked.supply.close()
        try:
            loaded = parked.runner.restore(max(LOAD_S, instance.spec.timeout_s))
        except (RunnerFailed, RunnerDied, RunnerTimeout) as error:
            log.warning("not restored", function=instance.label, error=str(error))
            parked.runner.end()
            return None
        except BadFrame as error:
            log.warning("not restored", function=instance.label, error=str(error))
            self._blame(instance, parked.runner, Cause.CRASHED)
            parked.runner.end()
            return None
        instance.runner, instance.life.host, instance.used = parked.runner, True, True
        return parked.runner, loaded

    def _let_go(self, going: Iterable[Instance], why: Why) -> None:
        """Park what can be parked, unload the rest."""
        for one in going:
            if not self._park(one):
                self._unload([one], why)

    def _park(self, one: Instance) -> bool:
        """
        Move its weights to host memory. False where that is not wanted or not possible: it is as it was, or its process
        has ended.
        """
        assert one.runner is not None
        if not self._parked.most_mib or one.key in self._unparkable:
            return False
        try:
            with self._at_work():
                host_mib = one.runner.park(PARK_S).host_mib
        except RunnerFailed as error:
            # Want of memory passes; that there is nothing to move does not.
            if error.cause == Cause.HANDLER_ERROR:
                self._unparkable.add(one.key)
            log.info("not parked", function=one.label, error=str(error))
            return False
        except (RunnerDied, RunnerTimeout) as error:
            log.warning("not parked", function=one.label, error=str(error))
            return False
        except BadFrame as error:
            log.warning("not parked", function=one.label, error=str(error))
            self._blame(one, one.runner, Cause.CRASHED)
            return False
        left_mib = self._device.runner_memory_mib(one.runner.pid) or 0.0
        with self._state:
            several = self._instances.get(one.key, [])
            if self._closed or host_mib > self._parked.most_mib or one not in several:
                return False
            several.remove(one)
            if not several:
                del self._instances[one.key]
            self._lives.end(one.life, self._clock(), Why.PARKED, one.memory_mib)
            one.memory_mib, one.leaving = left_mib, one.runner.ended.is_set()
            self._parked.add(one, host_mib, self._clock())
            over = self._parked.due(self._clock())
            if one.leaving:
                over.append(one)
            self._changed()
            self._state.notify_all()
        self._unload(over, Why.PARKED)
        return True

    def _lose(self, instance: Instance, failure: LoadFailed | Unservable) -> NoReturn:
        """A load has failed: end its process, tell those who wait for it, raise."""
        if instance.runner is not None:
            instance.runner.end()
        with self._state:
            self._loading -= 1
            instance.failure = failure
        self._drop(instance, Why.FAILED)
        raise failure

    def _note_crash(self, instance: Instance, culprit: str) -> None:
        with self._state:
            begins = self.quarantine.crashed(instance.key, culprit, self._clock())
            self._changed()
            self._state.notify_all()
        if begins:
            log.warning("quarantined", function=instance.function, revision=instance.revision)

    def _take_runner(self) -> Runner:
        with self._state:
            runner, self._standby = self._standby, None
            self._standby_mib = 0.0
        if runner is not None and not runner.ended.is_set():
            return runner
        return self._zygote().fork()

    def _unload(self, going: Iterable[Instance], why: Why) -> None:
        for one in going:
            assert one.runner is not None
            with self._at_work():
                one.runner.unload()
            self._drop(one, why)

    def _drop(self, instance: Instance, why: Why) -> None:
        supply = None
        with self._state:
            several = self._instances.get(instance.key, [])
            if instance in several:
                several.remove(instance)
                self._lives.end(instance.life, self._clock(), why, instance.memory_mib)
                supply = instance.supply
            elif self._parked.remove(instance):
                supply = instance.supply
            if not several:
                self._instances.pop(instance.key, None)
            self._changed()
            self._state.notify_all()
            self._rounds.notify()
        if supply is not None:
            supply.close()

    def exited(self, runner: Runner) -> None:
        """A runner's process has ended. One that was busy or loading is noticed by whoever waits for its answer."""
        with self._state:
            if self._standby is runner:
                self._standby, self._standby_mib = None, 0.0
            idle = next(
                (
                    one
                    for one in self._all()
                    if one.runner is runner and one.state is WarmState.IDLE and not one.leaving
                ),
                None,
            )
            idle = idle or self._parked.of(runner)
            if idle is not None:
                idle.leaving = True
        if idle is not None:
            log.warning(
                "idle runner ended",
                function=idle.function,
                revision=idle.revision,
                pid=runner.pid,
                status=runner.status,
            )
            observability.RUNNER_DEATHS.labels(idle.function, self._gpu, Cause.CRASHED.value).inc()
            self._drop(idle, Why.CRASHED)

    # ---- the keeper --------------------------------------------------------------------------------------------------

    def _keep(self) -> None:
        while True:
            with self._state:
                if self._closed:
                    return
                expired, forgotten = self._expired(), self._parked.due(self._clock())
                crowded, standby = self._crowded()
                measure = self._to_measure()
                wants_standby = self._standby_due()
            if expired or forgotten or crowded or standby is not None or wants_standby:
                self._window_over()
            self._let_go(expired, Why.KEEP_ALIVE)
            self._unload(forgotten, Why.KEEP_ALIVE)
            self._let_go(crowded, Why.EVICTED)
            if standby is not None:
                self._end(standby)
            for one in measure:
                self._measure(one)
            if wants_standby:
                self._make_standby()
            with self._state:
                observability.RESIDENT_BYTES.labels(self._gpu).set(sum(one.memory_mib for one in self._all()) * 2**20)
                if not self._closed:
                    self._rounds.wait(self._next_round_s())

    def _next_round_s(self) -> float:
        now = self._clock()
        ends = [one.used_at + one.spec.keep_alive_s - now for one in self._spare() if one.spec.keep_alive_s >= 0]
        ends += [until - now for _, until in self._holds.values()]
        return max(0.005, min([_ROUND_S, *ends]))

    def _expired(self) -> list[Instance]:
        now = self._clock()
        self._holds = {key: hold for key, hold in self._holds.items() if now < hold[1]}
        going = [one for one in self._spare() if 0 <= one.spec.keep_alive_s <= now - one.used_at]
        for one in going:
            one.leaving = True
        return going

    def _crowded(self) -> tuple[list[Instance], Runner | None]:
        """
        What stands idle on a device whose rest belongs to a training for now, and the standby runner. They leave from
        now on.
        """
        if not self._growing():
            return [], None
        idle = [one for one in self._evictable() if self._on_device(one.spec)]
        for one in idle:
            one.leaving = True
        standby, self._standby = self._standby, None
        self._standby_mib = 0.0
        return idle, standby

    def _standby_due(self) -> bool:
        """
        Whether it is time for a standby runner, or for another try of a device on which none could begin, and there is
        room for it.
        """
        wanted = self._wants_standby or bool(self._broken)
        if not wanted or self._clock() < self._standby_from or self._standby is not None or self._loading:
            return False
        if self._device.handler_device == "cpu":
            return True
        free = self._device.free_mib()
        room = free is None or free - self._owed_mib() > self._context_mib
        return room and not self._device.health() and not self._growing()

    def _to_measure(self) -> list[Instance]:
        if self._device.handler_device == "cuda":
            return []  # the driver says it with every look: see _take_measures
        now = self._clock()
        return [
            one
            for one in self._all()
            if one.state is not WarmState.LOADING and not one.leaving and _measurable(one, now)
        ]

    def _measure(self, instance: Instance) -> None:
        assert instance.runner is not None
        found = self._device.runner_memory_mib(instance.runner.pid)
        quick = self._device.quick_memory_mib(instance.runner.pid)
        with self._state:
            if found and quick is not None:
                instance.shared_mib = max(0.0, quick - found)
            first = not instance.measured_at
            instance.measured_at = self._clock()
            if found:
                instance.memory_mib = self._known_mib[instance.key] = found
            if first:
                self._changed()
                self._state.notify_all()

    def _make_standby(self) -> None:
        """And so find out whether a process can begin to use the device."""
        runner: Runner | None = None
        try:
            with self._at_work():
                runner = self._zygote().fork()
                runner.prepare(self._device.handler_device, LOAD_S)
        except (NoRunner, RunnerDied, RunnerTimeout, RunnerFailed, BadFrame) as error:
            log.warning("no standby runner", error=str(error))
            if runner is not None:
                self._end(runner)
            with self._state:
                self._standby_from, self._retry_s = self._clock() + self._retry_s, min(2 * self._retry_s, _RETRY_MOST_S)
            if isinstance(error, RunnerFailed) and _NO_DEVICE.search(str(error)):
                self._call_broken(str(error))
            return
        self._call_broken("")
        memory_mib = self._device.process_memory_mib(runner.pid) or self._context_mib
        with self._state:
            self._retry_s = _RETRY_S
            wanted = self._wants_standby and self._standby is None
            if wanted and not self._closed and not runner.ended.is_set():
                self._standby, self._standby_mib = runner, memory_mib
                return
        self._end(runner)

    def close(self) -> None:
        """Unload everything. Batches must have ended; what comes later is refused."""
        with self._state:
            self._closed = True
            going = [one for one in (*self._all(), *self._parked) if one.runner is not None and not one.leaving]
            for one in going:
                one.leaving = True
            self._state.notify_all()
            self._rounds.notify()
        if self._keeper is not None:
            self._keeper.join(10)
        self._unload(going, Why.CLOSED)


def _measurable(instance: Instance, now: float) -> bool:
    if not instance.measured_at:
        return True
    unchanged = instance.state is WarmState.IDLE and instance.used_at < instance.measured_at
    return not unchanged and now - instance.measured_at >= min(_MEASURE_S, instance.measured_at - instance.loaded_at)
