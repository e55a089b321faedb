"""
A GPU worker's heartbeat: a report to Redis every interval and at every change, the leader's commands as they come, and a
check that the worker's own consumer still takes messages.

Started by the composition root (worker/app.py). What must stay true: a heartbeat frees training's memory before it
waits for Redis, and no error ends either thread, for a worker without heartbeats loses all that it runs. One whose
heartbeat hangs ends (worker/watchdog.py).
"""

import os
import threading
import time
from collections.abc import Callable, Mapping
from typing import Final, assert_never

import redis

from smore.messages.commands import (
    AllowJob,
    AnyCommand,
    AttachJob,
    Cancel,
    DropCheckpoints,
    Fetch,
    ForgetJob,
    Offload,
    Prewarm,
    Respecify,
    SetBudget,
    StartJob,
    StopJob,
    Throttle,
)
from smore.messages.reports import Report, UnregisteredProcess, encode_report
from smore.process import observability
from smore.process.settings import Settings
from smore.redis.catalog import Catalog
from smore.redis.celery import gpu_queue
from smore.redis.fleet import Fleet
from smore.redis.quarantine import Faults
from smore.redis.queue import Queue
from worker import proc
from worker.batches import Executor
from worker.device.device import CpuLoad, Device
from worker.pool.errors import LoadFailed, Unservable
from worker.pool.pool import Pool
from worker.training.jobs import Jobs
from worker.training.looker import Looker
from worker.training.run_gate import RunGate
from worker.watchdog import HUNG_EXIT, LOOK_S, Watchdog

log = observability.logger(__name__)

_OUTAGE: Final = (redis.RedisError, OSError)
#: Heartbeats for which a report is valid.
TTL_HEARTBEATS: Final = 4
#: Seconds within which several changes go into one report.
COALESCE_S: Final = 0.03
#: Seconds with messages waiting, a slot free and none taken, after which the consumer counts as stalled.
STALLED_S: Final = 5.0
STALLED_EXIT: Final = 70
_COMMAND_WAIT_S: Final = 1.0
_OUTAGE_PAUSE_S: Final = 0.5


class ConsumerWatch:
    """
    Detects a stalled consumer: messages wait, a slot is free, and none has been taken for :data:`STALLED_S`. Pure, for
    one thread.
    """

    def __init__(self) -> None:
        self._since: float | None = None

    def stalled(self, *, now: float, waiting: int, free: int, consumed_at: float) -> bool:
        """
        Called about once a second while Redis answers, with monotonic seconds, the messages that wait and the slots
        that are free.
        """
        if not waiting or free <= 0:
            self._since = None
            return False
        if self._since is None or consumed_at > self._since:
            self._since = now
        return now - self._since >= STALLED_S

    def reset(self) -> None:
        """Redis did not answer: that the consumer takes nothing meanwhile proves nothing."""
        self._since = None


class Heartbeat:
    """
    Three threads: for reports, for commands, and to see that the reports' one does not hang. ``zygotes`` gives the
    processes whose CPU time, with that of their reaped children, is the functions'. ``node`` and ``address``: as reported.
    Only :meth:`wake` and :meth:`stop` are for other threads; what the threads share is guarded by the objects that they call.
    """

    def __init__(
        self,
        *,
        config: Settings,
        boot: str,
        client: "redis.Redis",
        device: Device,
        pool: Pool,
        executor: Executor,
        gate: RunGate,
        jobs: Jobs,
        zygotes: Callable[[], list[int]],
        node: str,
        address: str,
    ) -> None:
        self._config = config
        self._boot = boot
        self._redis = client
        self._device = device
        self._pool = pool
        self._executor = executor
        self._gate = gate
        self._jobs = jobs
        self._zygotes = zygotes
        self._node = node
        self._address = address
        prefix = config.redis.prefix
        self._queue = Queue(client, prefix, config.queue)
        self._fleet = Fleet(client, prefix)
        self._catalog = Catalog(client, prefix)
        self._faults = Faults(client, prefix)
        self._list = f"{prefix}{gpu_queue(config.worker.gpu)}"
        self._cursor = ""
        self._consumer = ConsumerWatch()
        self._utilisation = (0.0, 0.0)
        self._counters: Mapping[str, float] = {}
        self._sampled_at = 0.0
        self._woken = threading.Event()
        self._stopped = threading.Event()
        self._silent = False
        #: Rounds so far, and the one that works now; 0 = none does.
        self._rounds = self._working = 0
        self._watchdog = Watchdog()
        self._looker = Looker("watchdog", LOOK_S, self._watch)

    def wake(self) -> None:
        """Report soon: the warm set or the jobs have changed."""
        self._woken.set()

    def start(self) -> None:
        """Begin the threads."""
        for target, name in ((self._beat, "heartbeat"), (self._listen, "commands")):
            threading.Thread(target=target, name=name, daemon=True).start()
        self._looker.start()

    def stop(self) -> None:
        """End the threads."""
        self._looker.stop()
        self._stopped.set()
        self._woken.set()

    # ---- reports -----------------------------------------------------------------------------------------------------

    def _beat(self) -> None:
        beat_s = self._config.worker.heartbeat_s
        next_beat = time.monotonic()
        next_check = next_beat + STALLED_S
        while not self._stopped.is_set():
            if self._woken.wait(max(0.0, next_beat - time.monotonic())):
                self._stopped.wait(COALESCE_S)
                self._woken.clear()
            self._rounds += 1
            self._working = self._rounds
            try:
                self._jobs.tick()
                # Before anything that waits for Redis: training's memory cannot wait.
                self._pool.relieve()
                self.report()
                self._pool.quarantine_everywhere(self._faults.quarantined())
                if time.monotonic() >= next_check:
                    self._check_consumer()
                    next_check = time.monotonic() + 1.0
            except _OUTAGE as error:
                self._consumer.reset()
                self._mark_silent(error)
            except Exception:
                # A worker without heartbeats loses all that it runs. The next report may succeed.
                log.exception("heartbeat failed")
            self._working = 0
            next_beat = time.monotonic() + beat_s

    def _mark_silent(self, error: Exception) -> None:
        if not self._silent:
            log.warning("Redis is away", error=str(error))
        self._silent = True

    def report(self) -> None:
        """Send one report and disown the invocations that Redis has given to others. Raises redis-py's errors."""
        config = self._config.worker
        report = self._compose()
        self._working = 0
        lost = self._queue.report(
            config.gpu,
            encode_report(report),
            ttl_s=TTL_HEARTBEATS * config.heartbeat_s,
            lease_s=config.lease_s,
            cursor=self._cursor,
            running=self._executor.running(),
        )
        if self._silent:
            log.info("Redis is back")
            self._silent = False
        self._executor.disown(lost)
        events = self._pool.status.lifecycle_events()
        if events:
            self._fleet.record_instances(events)
            self._pool.status.acknowledge(events)

    def _compose(self) -> Report:
        config = self._config.worker
        warm = self._pool.status.warm()
        closed_until = self._gate.closed_until
        health = self._pool.health()
        observability.GPU_HEALTHY.labels(config.gpu).set(0 if health else 1)
        # While a training may still grow into the rest of the device, all of it counts as used.
        used_mib = self._pool.status.memory_used_mib() + self._jobs.ranks.memory_mib()
        total_mib = self._device.memory_total_mib
        self._sample()
        return Report(
            gpu=config.gpu,
            boot=self._boot,
            at=time.time(),
            kind=config.kind,
            device=self._device.description,
            sharing_mode=self._device.sharing_mode,
            # No slots in a worker that is ending, nor on a device that nothing can run on.
            slots=0 if self._executor.draining or health else config.slots,
            health=health,
            memory_total_mib=round(total_mib, 1),
            memory_used_mib=round(max(used_mib, total_mib) if self._jobs.ranks.growing() else used_mib, 1),
            utilisation=round(self._utilisation[0], 4),
            utilisation_counter=self._device.counter,
            counters=self._counters,
            function_utilisation=round(self._utilisation[1], 4),
            running=self._executor.batches(),
            warm=warm,
            parked=self._pool.status.parked(),
            jobs=self._jobs.reports(),
            aged=self._jobs.aged(),
            quarantined=self._pool.status.quarantined(),
            duty=self._gate.duty,
            closed=closed_until is not None,
            closed_until=closed_until or 0.0,
            strangers=self._unregistered(),
            node=self._node,
            address=self._address,
            visible=self._device.environment.get("CUDA_VISIBLE_DEVICES", ""),
            context_mib=round(self._pool.status.context_mib(), 1),
        )

    def _unregistered(self) -> list[UnregisteredProcess] | None:
        """
        Unregistered processes: those that compute on the device and belong neither to this worker nor to a job. None
        where the device cannot tell.
        """
        computing = self._device.computing()
        if computing is None:
            return None
        roots = {os.getpid(), *self._pool.status.runners(), *self._jobs.ranks.pids(), *self._zygotes()}
        registered = {pid for root in roots for pid in proc.tree(root)}
        return [
            UnregisteredProcess(
                pid=pid, start=proc.start_time(pid) or 0, memory_mib=round(memory_mib, 1), name=proc.name(pid)
            )
            for pid, memory_mib in sorted(computing.items())
            if pid not in registered
        ]

    def _sample(self) -> None:
        """
        Measure the utilisation over whole heartbeats: a report between two would divide clock ticks by nearly nothing.
        """
        now = time.monotonic()
        if now - self._sampled_at < 0.8 * self._config.worker.heartbeat_s:
            return
        self._sampled_at = now
        runners = self._pool.status.runners()
        functions_s = sum(proc.cpu_s(pid) for pid in (*runners, *self._zygotes()))
        sample = self._device.utilisation(
            CpuLoad(at=now, functions_cpu_s=functions_s, jobs_cpu_s=self._jobs.ranks.cpu_s(), runners=runners)
        )
        self._utilisation, self._counters = (sample.total, sample.functions), sample.counters

    def _watch(self) -> None:
        if self._watchdog.hung(now=time.monotonic(), working=self._working):
            log.critical("hung: a heartbeat does not end; ending to be started anew")
            os._exit(HUNG_EXIT)

    def _check_consumer(self) -> None:
        waiting = int(self._redis.llen(self._list))
        free = self._config.worker.slots - self._executor.batches()
        if self._executor.draining:
            return
        if self._consumer.stalled(
            now=time.monotonic(), waiting=waiting, free=free, consumed_at=self._executor.consumed_at
        ):
            log.critical("stalled: messages wait and none is taken; ending to be started anew", waiting=waiting)
            os._exit(STALLED_EXIT)

    # ---- commands ----------------------------------------------------------------------------------------------------

    def _listen(self) -> None:
        gpu = self._config.worker.gpu
        cursor = ""
        while not self._stopped.is_set():
            try:
                cursor = cursor or self._fleet.cursor(gpu)
                commands = self._fleet.commands(gpu, cursor, _COMMAND_WAIT_S)
                # After a silence a training's start and its end may both wait here.
                for _, command in commands:
                    if isinstance(command, StopJob):
                        self._jobs.fence(command)
                for entry, command in commands:
                    self._obey(command)
                    # Reported, and so never read again, only now that it is done.
                    self._cursor = cursor = entry
            except _OUTAGE:
                self._stopped.wait(_OUTAGE_PAUSE_S)
            except Exception:
                log.exception("commands failed")
                self._stopped.wait(_OUTAGE_PAUSE_S)

    def _obey(self, command: AnyCommand | None) -> None:
        match command:
            case None:
                log.warning("unreadable command passed over")
            case Cancel():
                self._executor.cancel(command.function, command.id, command.attempt)
            case Offload():
                # In a thread of its own: it waits for memory, and a throttle behind it must not wait.
                args, how = (command.function, command.revision, command.keep), {"gone": command.gone}
                threading.Thread(target=self._pool.offload, args=args, kwargs=how, name="offload", daemon=True).start()
            case Prewarm():
                spec = self._catalog.revision(command.function, command.revision)
                hold_s = max(0.0, command.until - time.time())
                # One that comes after its time, behind a restart, is out of date.
                if spec is not None and (hold_s or not command.until):
                    self._pool.prewarm(command.function, command.revision, spec, command.instances, hold_s)
            case Respecify():
                self._respecify(command.function, command.revision)
            case Fetch():
                key = (command.function, command.revision)
                threading.Thread(target=self._fetch, args=key, name="fetch", daemon=True).start()
            case StartJob():
                self._jobs.start(command)
            case AttachJob():
                self._jobs.attach(command)
            case AllowJob():
                self._jobs.allow(command.id)
            case ForgetJob():
                self._jobs.forget(command)
            case DropCheckpoints():
                self._jobs.drop_checkpoints(command.id)
            case StopJob():
                self._jobs.stop(command)
            case SetBudget():
                self._jobs.set_budget(command.id, command.budget, command.share)
            case Throttle():
                self._throttle(command.duty)
            case _:
                assert_never(command)

    def _respecify(self, function: str, revision: int) -> None:
        """Read a revision's knobs anew, for its instances and for the batches that come."""
        for catalog in (self._catalog, self._executor.catalog):
            catalog.forget(function)
        spec = self._catalog.revision(function, revision)
        if spec is not None:
            self._pool.respecify(function, revision, spec)

    def _fetch(self, function: str, revision: int) -> None:
        try:
            spec = self._catalog.revision(function, revision)
            if spec is not None:
                self._pool.prepare(function, revision, spec)
        except (LoadFailed, Unservable, *_OUTAGE) as error:
            # Its first cold start here tries again and answers its caller.
            log.warning("not fetched", function=function, revision=revision, error=str(error))

    def _throttle(self, duty: float) -> None:
        try:
            self._gate.throttle(duty)
        except ValueError as error:
            log.warning("throttle passed over", error=str(error))
            return
        log.info("throttled", duty=duty)
        self.wake()
