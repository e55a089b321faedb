"""
``python -m worker.app``: the worker of one GPU instance. The composition root: every other module gets its parts from
here.

One Celery worker (threads, one for each slot) that consumes ``gpu.<id>``; each thread waits on Redis or on a runner and
computes nothing. What must stay true: this process imports no torch and never touches the device.
"""

import ctypes
import hashlib
import os
import signal
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

import redis
from celery import Celery
from celery.worker import state as celery_state
from kombu import Queue as CeleryQueue

from smore.blobs.store import open_source
from smore.domain.ids import new_id
from smore.domain.invocation import Cause
from smore.domain.windows import Probing
from smore.process import observability
from smore.process.environment import settings
from smore.process.settings import NURSERY, Settings, WorkerSettings
from smore.redis.catalog import Catalog
from smore.redis.celery import gpu_queue, make_app, serve
from smore.redis.connection import connect, own_address
from smore.redis.fleet import Fleet
from smore.redis.logs import LogWriter
from smore.redis.quarantine import Faults
from smore.redis.queue import Queue
from smore.redis.rendezvous import Rendezvous
from worker.artifacts.environments import Environments
from worker.artifacts.folders import Artifacts
from worker.artifacts.runtime import RuntimeProvider
from worker.batches import Executor
from worker.device import driver
from worker.device.device import Device, open_device
from worker.frames import SLACK_MIB, Confinement, Results
from worker.function_logs import FunctionLogs
from worker.heartbeat import Heartbeat
from worker.pool.errors import LoadFailed, Unservable
from worker.pool.loading import Supplies
from worker.pool.parked import ParkedInstances
from worker.pool.pool import Pool
from worker.pool.residents import Residents
from worker.pool.secrets import Secrets
from worker.runner.output import OutputReader
from worker.runner.runner_handle import Bounds, Runner
from worker.runner.survivors import end_survivors
from worker.runner.zygote_handle import Zygote, setup
from worker.sandbox.cgroup import ShareGroup, remove_left
from worker.tasks import register_run
from worker.training.checkpoints import Checkpoints
from worker.training.holding import LOOK_S, Holding
from worker.training.job_logs import JobLogs
from worker.training.jobs import Jobs
from worker.training.launcher import Launcher
from worker.training.looker import Looker
from worker.training.probed import ProbedRanks
from worker.training.rank_watch import READ_S, RankWatch
from worker.training.ranks import Ranks
from worker.training.record import Records
from worker.training.remote_steps import RemoteSteps
from worker.training.run_gate import Prober, RunGate
from worker.training.starting import Starting
from worker.training.watch import users_of

log = observability.logger(__name__)

#: Of a runner of a function with precedence: 28 times the weight of a training.
PRECEDENCE_NICE: Final = -15
_RETRY_S: Final = 0.2
_PR_SET_DUMPABLE: Final = 4
#: The bytes that CUDA may keep of what it has compiled, 1 GiB by default.
_CUDA_CACHE: Final = "CUDA_CACHE_MAXSIZE"


class Worker:
    """Everything of one GPU worker, put together but not started."""

    def __init__(self, config: Settings, client: "redis.Redis", device: Device, cores: Sequence[int] = ()) -> None:
        """
        ``cores``: those that the machine gives this worker, on which trainings of a GPU run; none = the ones that it is
        on.
        """
        own = config.worker
        if own.host_mib and device.handler_device == "cpu":
            raise ValueError(
                "SMORE_WORKER__HOST_MIB is for GPU instances: a CPU partition has no device memory that parking would"
                " give back"
            )
        home = config.home.resolve()
        run = home / "run"
        run.mkdir(parents=True, exist_ok=True)
        self.config = config
        self.boot = new_id()
        self._run = run
        self._record = run / f"worker-{own.gpu}.json"
        self._device = device
        # The same name at every start: jobs that outlived the worker before this one are in it.
        group = f"smore-{own.gpu}-{hashlib.sha256(os.fsencode(home)).hexdigest()[:8]}"
        # In a group of their own the kernel weighs runners against jobs one by one; outside any it may divide time by
        # session first.
        self._group = ShareGroup.make(group, own.share) if own.kind == "cpu" else None
        self.queue = Queue(client, config.redis.prefix, config.queue)
        self._runner_groups = f"{group}-r"
        remove_left(self._runner_groups)
        #: The interpreter's own growth, and what it writes into its scratch folder, which is in memory.
        beyond_mib = SLACK_MIB + own.scratch_mib
        self._home = home
        on_gpu = device.handler_device != "cpu"
        bounds = Bounds(
            group=self._runner_groups,
            beyond_mib=beyond_mib,
            processes=own.processes,
            # Weights of a GPU lie in the machine's memory on their way there, and once more where they are parked.
            host_mib=own.host_memory_mib if on_gpu else 0.0,
            host_per_mib=2.0 if on_gpu else 1.0,
        )
        self.faults = Faults(client, config.redis.prefix)
        self._cache = home / "cache"
        # Made before the zygote starts, so that it is part of what its runners may see.
        self._cache.mkdir(exist_ok=True)
        self._cache.chmod(0o755)
        confined = confinement(own, self._cache)
        self.logs = FunctionLogs(LogWriter(client, config.redis.prefix, config.logs), config.logs, own.gpu)
        self._reader = OutputReader(self.logs.take)
        self.zygote = Zygote(
            nursery=own.nursery or run.resolve() / NURSERY,
            setup=setup(
                scratch=run / "scratch" / own.gpu,
                home=home,
                confinement=confined,
                cores=device.cores,
                near=near(device, cores),
                threads=own.threads,
                nice=own.function_nice,
                environment=for_functions(own, device),
            ),
            record=self._record,
            bounds=bounds,
            exited=self._exited,
            started=self._join_group,
            reader=self._reader,
        )
        catalog, limit = Catalog(client, config.redis.prefix), own.cache_mib << 20
        self.runtimes = RuntimeProvider(
            artifacts=Artifacts(self._cache, lambda: open_source(config, client), limit),
            environments=Environments(
                self._cache / "environments",
                limit,
                own.build_s,
                sdists=own.sdists,
                confinement=confined,
                home=home,
                group=self._runner_groups,
            ),
            catalog=catalog,
        )
        secrets = Secrets(catalog, config.secrets_file)
        ranks = Ranks(owns_rest=device.handler_device == "cuda")
        self.pool = Pool(
            residents=Residents(
                gpu=own.gpu,
                boot=self.boot,
                changed=lambda: self.heartbeat.wake(),
                parked=ParkedInstances(own.host_mib, own.keep_host_s),
            ),
            device=device,
            supplies=Supplies(
                zygote=self.zygote,
                runtime_of=self.runtimes.provide,
                secrets_of=secrets.of,
                prefer=self._prefer,
                results=Results(one=config.queue.max_result_bytes, together=config.queue.result_bytes),
            ),
            trainings=ranks,
            standby=own.standby,
            window_over=lambda: self.gate.window_over(own.probe_max_s),
            beyond_mib=beyond_mib,
            faulted=self._faulted,
        )
        self.gate = RunGate(self.pool.activity)
        node, address = own.node or os.uname().nodename, own.address or own_address(config)
        kept_days = config.jobs.checkpoints_days
        checkpoints = Checkpoints(
            config.jobs.checkpoints or home / "checkpoints", kept_days * 86_400 if kept_days is not None else None
        )
        fleet, records = Fleet(client, config.redis.prefix), Records(home / "run" / "jobs")
        probing = Probing(seed=self.boot, share=own.probe_share, longest_s=own.probe_max_s)
        watch = RankWatch(
            gpu=own.gpu,
            ranks=ranks,
            records=records,
            checkpoints=checkpoints,
            activity=self.pool.activity,
            device=device,
            steps_of=lambda id_: RemoteSteps(client, config.redis.prefix, id_, own.gpu),
            probing=probing,
        )
        holding = Holding(records, probing)
        self.jobs = Jobs(
            gpu=own.gpu,
            ranks=ranks,
            holding=holding,
            records=records,
            launcher=Launcher(
                home=home,
                records=records,
                entrypoints=config.job_entrypoints,
                cores=device.cores,
                born_on=cores,
                environment=device.environment,
                hosted=own.keeper,
            ),
            checkpoints=checkpoints,
            starting=Starting(
                checkpoints=checkpoints,
                rendezvous=Rendezvous(client, config.redis.prefix),
                secrets_of=for_trainings(secrets),
                reports=fleet.reports,
                node=node,
                address=address,
                visible=device.environment.get("CUDA_VISIBLE_DEVICES", ""),
            ),
            cores=device.cores,
            watch=watch,
            gate=self.gate,
            users=users_of(own.attach_users),
            started=self._join_group,
            changed=lambda: self.heartbeat.wake(),
            shipped=lambda key: self.job_logs.shipped(key),
        )
        self.job_logs = JobLogs(
            LogWriter(client, config.redis.prefix, config.logs),
            config.logs,
            own.gpu,
            folder=home / "logs",
            ranks=self.jobs.reports,
        )
        self.executor = Executor(
            config=own,
            device=device,
            boot=self.boot,
            queue=self.queue,
            catalog=catalog,
            pool=self.pool,
            gate=self.gate,
            jobs=ranks.running,
            tell=self.logs.tell,
        )
        self.heartbeat = Heartbeat(
            config=config,
            boot=self.boot,
            client=client,
            device=device,
            pool=self.pool,
            executor=self.executor,
            gate=self.gate,
            jobs=self.jobs,
            zygotes=self._zygotes,
            node=node,
            address=address,
        )
        probed = ProbedRanks(ranks, holding, self.heartbeat.wake)
        self.lookers = (Looker("holder", LOOK_S, probed.hold), Looker("steps", READ_S, watch.read_steps))
        self.prober = Prober(
            gate=self.gate,
            activity=self.pool.activity,
            jobs=probed,
            runs=self.pool.held,
            longest_s=own.probe_max_s,
            changed=self.heartbeat.wake,
        )

    def _zygotes(self) -> list[int]:
        own = self.zygote.pid
        return [own] if own is not None else []

    def _exited(self, runner: Runner) -> None:
        self.pool.exited(runner)

    def _faulted(self, function: str, revision: int, culprit: str, cause: Cause) -> None:
        try:
            begins = self.faults.note(function, revision, culprit, cause=cause.value, gpu=self.config.worker.gpu)
        except (redis.RedisError, OSError) as error:
            log.warning(
                "fault not reported to the other workers", function=function, revision=revision, error=str(error)
            )
            return
        if begins:
            log.error("quarantined everywhere", function=function, revision=revision, cause=cause.value)

    def _join_group(self, pid: int) -> None:
        if self._group is not None:
            self._group.add(pid)

    def _prefer(self, pid: int) -> None:
        """Put a runner, the leader of its process group, before the trainings here; on a GPU nothing is done yet."""
        if self._group is None:
            log.warning("no precedence: functions and trainings have no control group of their own", pid=pid)
            return
        try:
            os.setpriority(os.PRIO_PGRP, pid, PRECEDENCE_NICE)
        except OSError as error:
            log.warning("no precedence", pid=pid, error=str(error))

    def start(self, stop: threading.Event) -> bool:
        """
        Clear up after the worker before this one and be ready for batches. Waits for Redis as long as it takes; False
        when ``stop`` was set meanwhile.
        """
        if survivors := end_survivors(self._record):
            log.warning("survivors of the former worker ended", count=survivors)
        self.logs.start()
        self._reader.start()
        # Returns at once: it is made while this waits for Redis.
        self.zygote.start()
        self.jobs.adopt()
        self.job_logs.start()
        while not stop.is_set():
            try:
                released = self.queue.release(self.config.worker.gpu)
            except (redis.RedisError, OSError) as error:
                log.warning("waiting for Redis", error=str(error))
                stop.wait(_RETRY_S)
                continue
            log.info("started", gpu=self.config.worker.gpu, boot=self.boot, given_back=released)
            self._device.start()
            self.pool.start()
            self.runtimes.start()
            self.heartbeat.start()
            self.prober.start()
            for looker in self.lookers:
                looker.start()
            return True
        return False

    def stopping(self) -> None:
        """Take no more batches; what runs goes on."""
        self.executor.drain()
        self.runtimes.stopping()
        self.heartbeat.wake()

    def close(self) -> None:
        """End all runners; jobs go on."""
        self.prober.stop()
        for looker in self.lookers:
            looker.stop()
        self.heartbeat.stop()
        self.job_logs.close()
        self.pool.close()
        self.runtimes.close()
        self.zygote.close()
        self._reader.stop()
        self.logs.close()
        self._device.close()
        remove_left(self._runner_groups)
        if self._group is not None:
            self._group.remove()


def confinement(own: WorkerSettings, cache: Path) -> Confinement:
    """
    How this worker's runners are confined. Uploaded folders and environments, in ``cache``, may be read.

    A GPU's driver may need unix sockets and its own choice of cores; functions of a CPU partition do not.
    """
    return Confinement(
        on=own.confine,
        own_users=True,
        readable=[str(path) for path in (cache, *own.readable)],
        writable=[str(path) for path in own.writable],
        tcp_ports=None if own.tcp_ports is None else list(own.tcp_ports),
        processes=own.processes,
        scratch_mib=own.scratch_mib,
        unix_sockets=own.kind != "cpu",
        affinity=own.kind != "cpu",
    )


def for_functions(own: WorkerSettings, device: Device) -> Mapping[str, str]:
    """Environment variables of zygotes and runners beside those that all processes of the worker get."""
    if device.handler_device == "cpu" or _CUDA_CACHE in os.environ:
        return device.environment
    # CUDA keeps what it compiles in the scratch folder, which is in memory: no more than a quarter of it.
    return {_CUDA_CACHE: str((own.scratch_mib << 20) // 4), **device.environment}


def for_trainings(secrets: Secrets) -> Callable[[str, Sequence[str]], Mapping[str, str]]:
    """Secrets of a project by name, as :class:`worker.training.starting.Starting` takes them."""

    def named(project: str, names: Sequence[str]) -> Mapping[str, str]:
        try:
            return secrets.named(project, names)
        except LoadFailed as error:
            raise ValueError(str(error)) from error
        except Unservable as error:
            raise ConnectionError(str(error)) from error

    return named


def near(device: Device, cores: Sequence[int]) -> Sequence[int]:
    """
    The cores on which functions of a GPU run: those of its socket, as far as ``cores`` has them. None on a CPU
    partition.
    """
    if device.handler_device == "cpu" or not cores:
        return ()
    import pynvml

    return driver.beside(device.environment["CUDA_VISIBLE_DEVICES"], cores, pynvml)


def celery_app(config: Settings) -> Celery:
    """
    The app of this GPU instance's worker.

    Without acknowledgements: the invocations of a message that is lost with its worker come back by their leases, in
    seconds, and keeping it in Redis until it is acknowledged would cost two round trips for each.
    """
    queue = gpu_queue(config.worker.gpu)
    app = make_app(f"worker-{config.worker.gpu}", config, [queue])
    app.conf.task_queues = [CeleryQueue(queue, routing_key=queue, no_ack=True)]
    # The leader's credits bound what is on its way. Celery's own bound would leave a free slot unused until the next
    # turn of its loop.
    app.conf.worker_disable_prefetch = False
    return app


def _shut_memory() -> None:
    """
    Keep other processes of this user from reading this one's memory, which holds passwords. Runners that are other
    users, or confined by Landlock, could not anyway. Ends core files too.
    """
    ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)


def main() -> int:
    """Run the worker until a signal ends it. Returns the exit status."""
    config = settings()
    observability.configure(config, f"worker-{config.worker.gpu}")
    _shut_memory()
    device = open_device(config.worker)
    if device.handler_device != "cpu":
        driver.make_device_files()
    # This process keeps to the platform's cores; the processes that it starts for a GPU do not.
    cores = sorted(os.sched_getaffinity(0)) if device.handler_device != "cpu" else ()
    if config.platform_cores:
        os.sched_setaffinity(0, [int(core) for core in config.platform_cores.split(",")])
    stop = threading.Event()
    signal.signal(signal.SIGTERM, _setter(stop))
    signal.signal(signal.SIGINT, _setter(stop))
    client = connect(config)
    worker = Worker(config, client, device, cores)
    try:
        if not worker.start(stop):
            return 0
        app = celery_app(config)
        register_run(app, worker.executor, worker.stopping)
        # Beside each batch that runs one may wait that came ahead.
        return serve(app, config.worker.gpu, 2 * config.worker.slots)
    finally:
        worker.close()
        client.close()


def _setter(event: threading.Event) -> Callable[..., None]:
    def stop(*_: object) -> None:
        event.set()
        # Celery installs its own handlers only when it starts; it reads a signal that came before from here.
        celery_state.should_stop = 0  # type: ignore[assignment]  # typed by its first value

    return stop


if __name__ == "__main__":
    # Celery takes the working folder off the path once it has loaded the app.
    sys.path.append(str(Path(__file__).parents[1]))
    sys.exit(main())
