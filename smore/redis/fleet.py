"""
GPU instances as they are now: reports with a time to live, commands to a GPU worker, pauses. All in Redis.

A report is JSON (read by people and other languages too); a command is one msgpack array on the GPU instance's own
stream, idempotent by its content, and read from the cursor that the worker last reported.
"""

from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from typing import Any, Literal, cast

import msgspec
import redis

from smore.domain.loss import DEFAULT_BUDGET, Window
from smore.messages import stream

#: Reports of one attached training that wait for its worker, and how long.
_STEP_CHUNKS = 600
_STEPS_TTL_S = 3600
#: How long one that was let go is told so.
_GONE_S = 86_400


class WarmState(StrEnum):
    LOADING = "loading"
    IDLE = "idle"
    BUSY = "busy"


class WarmInstance(msgspec.Struct, frozen=True, kw_only=True):
    """A resident model: one runner process."""

    function: str
    revision: int
    state: WarmState
    #: Measured resident memory, MiB.
    memory_mib: float
    pid: int
    #: Seconds since it last ran.
    idle_s: float = 0.0
    #: The longest of the revision's last runs here, seconds: for so long the gate cannot stop it. 0 = it has not run
    #: yet.
    longest_s: float = 0.0


class ParkedInstance(msgspec.Struct, frozen=True, kw_only=True):
    """
    A runner whose weights lie in pinned host memory: the next load of its revision comes out of it. ``memory_mib``:
    what its process still holds of the device, which it gives back before any idle instance; ``host_mib``: of host
    memory; ``left_s``: seconds until it goes.
    """

    function: str
    revision: int
    memory_mib: float
    host_mib: float
    left_s: float


class JobReport(msgspec.Struct, frozen=True, kw_only=True):
    """
    A serverful job on this GPU instance.

    Iteration times in seconds: ``solo_s`` over iterations during which no function ran here, ``shared_s`` over the
    others, both over the last ``window_s``; counts say how much they rest on. ``state``: running, ended, lost.

    What functions cost it (smore/domain/loss.py): ``windows`` are the closed windows finished a short while ago, each
    told several times and known by its ``start``; ``loss`` with its 95 % interval is that of the last ``loss_windows``
    windows, None = not enough data. ``recent_*`` (mean, count, standard deviation, seconds) are the last iterations
    with the gate open, ``closed_*`` those of the last closed windows: what the fast test compares. A count of 0 = none.
    """

    id: str
    project: str
    state: str
    pid: int
    memory_mib: float
    #: What is kept for it: its declared memory or the most that was measured, and 5 %.
    reserve_mib: float = 0.0
    iterations: int
    window_s: float = 0.0
    solo_s: float = 0.0
    solo_count: int = 0
    shared_s: float = 0.0
    shared_count: int = 0
    exit_code: int | None = None
    #: The profiled workload that it is, '' = not said.
    workload: str = ""
    #: The most that it may lose, a fraction.
    budget: float = DEFAULT_BUDGET
    #: False = it tells no iterations, so that nothing it loses can be measured.
    measured: bool = True
    #: A signal has stopped it (SIGSTOP): it lives and makes no steps.
    suspended: bool = False
    #: Why the worker refused it, or let it go by itself.
    reason: str = ""
    windows: Sequence[Window] = ()
    loss: float | None = None
    loss_low: float | None = None
    loss_high: float | None = None
    loss_windows: int = 0
    recent_s: float = 0.0
    recent_n: int = 0
    recent_sd: float = 0.0
    closed_s: float = 0.0
    closed_n: int = 0
    closed_sd: float = 0.0


class StepChunk(msgspec.Struct, frozen=True, array_like=True):
    """
    Steps of an attached training: the number of the first, (end in epoch seconds, seconds) of each, and whether they
    were the last.
    """

    first: int
    steps: list[tuple[float, float]]
    ended: bool = False


def steps_key(prefix: str, job: str, gpu: str) -> str:
    """The list of :class:`StepChunk` between gateway and worker."""
    return f"{prefix}steps:{job}:{gpu}"


class Stranger(msgspec.Struct, frozen=True, kw_only=True):
    """
    A process that computes on a GPU instance and belongs to no function and no job. ``start``: clock ticks since boot,
    0 = not seen.
    """

    pid: int
    start: int
    memory_mib: float
    name: str = ""


class Steer(msgspec.Struct, frozen=True, kw_only=True):
    """
    What people want of a function for a time: its priority times ``boost``, only the GPU instances ``gpus`` (empty =
    all). Until: epoch seconds, None = until it is changed.
    """

    function: str
    boost: float = 1.0
    boost_until: float | None = None
    gpus: tuple[str, ...] = ()
    pin_until: float | None = None

    def left(self, at: float) -> "Steer":
        """The same without what is over at an instant."""
        boosted = self.boost_until is None or at < self.boost_until
        pinned = self.pin_until is None or at < self.pin_until
        return Steer(
            function=self.function,
            boost=self.boost if boosted else 1.0,
            boost_until=self.boost_until if boosted else None,
            gpus=self.gpus if pinned else (),
            pin_until=self.pin_until if pinned else None,
        )


encode_steer = msgspec.json.Encoder().encode
decode_steer = msgspec.json.Decoder(Steer).decode


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """What a GPU worker says every heartbeat."""

    version: int = 1
    gpu: str
    #: New for every start of the worker.
    boot: str
    at: float
    kind: str
    device: str
    sharing_mode: str
    slots: int
    memory_total_mib: float
    #: By functions, the standby runner and jobs together; of a job what is reserved for it, where that is more.
    memory_used_mib: float
    #: 0..1 over the last heartbeat, by the counter named.
    utilisation: float
    utilisation_counter: str
    #: 0..1 of it by functions.
    function_utilisation: float
    #: What every counter of the device says, by its name; none = it has but the one above.
    counters: Mapping[str, float] = {}
    #: Why nothing can run on the device, '' = it works. It has no slots then.
    health: str = ""
    running: int
    warm: Sequence[WarmInstance] = ()
    parked: Sequence[ParkedInstance] = ()
    jobs: Sequence[JobReport] = ()
    #: Revisions this worker will not run again after repeated crashes: "function@revision".
    quarantined: Sequence[str] = ()
    #: The part of the time in which functions may work beside a job, 0..1 (see :class:`Throttle`).
    duty: float = 1.0
    #: A closed window is at hand: nothing starts here before ``closed_until`` at the latest (epoch seconds, 0 = none is
    #: at hand).
    closed: bool = False
    closed_until: float = 0.0
    #: None = this device cannot list who computes on it (CPU partitions).
    strangers: Sequence[Stranger] | None = None


encode_report = msgspec.json.Encoder().encode
decode_report = msgspec.json.Decoder(Report).decode


class Command(msgspec.Struct, frozen=True, array_like=True):
    version: int


class Cancel(Command, frozen=True, tag="cancel"):
    function: str
    id: str
    attempt: int


class Offload(Command, frozen=True, tag="offload"):
    """
    Unload idle instances until ``keep`` are left, and hold no more of them than that. ``gone``: nothing of it stays in
    host memory either.
    """

    function: str
    revision: int
    keep: int = 0
    gone: bool = False


class Prewarm(Command, frozen=True, tag="prewarm"):
    """
    Load what is missing of ``instances`` now, and let so many stand idle for longer than their keep-alive, before
    ``until`` (epoch seconds; what was said before is replaced. 0 = it stays). One whose time has passed is passed over.
    """

    function: str
    revision: int
    instances: int = 1
    until: float = 0.0


class Respecify(Command, frozen=True, tag="respecify"):
    """The catalog says something else of a revision: read it anew."""

    function: str
    revision: int


class Fetch(Command, frozen=True, tag="fetch"):
    """Have on your node what an uploaded function needs, its environment too, before it is placed there."""

    function: str
    revision: int


class StartJob(Command, frozen=True, tag="start_job"):
    id: str
    project: str
    name: str
    argv: list[str]
    env: dict[str, str]
    workload: str = ""
    budget: float = DEFAULT_BUDGET
    #: Declared, on each GPU instance; 0 = not.
    memory_mib: float = 0.0


class AttachJob(Command, frozen=True, tag="attach_job"):
    """
    A training that runs already and is not the worker's to start or to end.

    ``pid``, ``start`` (clock ticks) and ``boot`` name its process, where the worker can see it; ``tracked``: its steps
    come through the gateway, else nothing is known of it but that it lives. ``any_user``: an operator asks, who may
    have anybody's process watched.
    """

    id: str
    project: str
    name: str
    pid: int
    start: int
    boot: str
    tracked: bool
    workload: str = ""
    budget: float = DEFAULT_BUDGET
    any_user: bool = False


class StopJob(Command, frozen=True, tag="stop_job"):
    id: str


class SetBudget(Command, frozen=True, tag="set_budget"):
    """The most that a job may lose from now on, a fraction."""

    id: str
    budget: float


class Throttle(Command, frozen=True, tag="throttle"):
    """
    From now on functions may work for ``duty`` (0..1) of the time beside the jobs of the GPU instance; 1 = as they
    like, 0 = not at all.

    It holds until the next one, or until the worker starts anew with 1; what runs goes on.
    """

    duty: float


AnyCommand = AttachJob | Cancel | Fetch | Offload | Prewarm | Respecify | SetBudget | StartJob | StopJob | Throttle

_decode_command = msgspec.msgpack.Decoder(AnyCommand).decode
_encode = msgspec.msgpack.Encoder().encode


class Fleet:
    """The synchronous door to what is live."""

    def __init__(self, client: "redis.Redis", prefix: str) -> None:
        self._redis = client
        self._prefix = prefix

    def reports(self) -> list[Report]:
        """Of every GPU instance that has reported within its time to live, by name."""
        names = sorted(cast("set[bytes]", self._redis.smembers(f"{self._prefix}gpus")))
        if not names:
            return []
        raw = cast("list[bytes | None]", self._redis.mget([f"{self._prefix}gpu:{name.decode()}" for name in names]))
        return [decode_report(report) for report in raw if report is not None]

    def send(self, gpu: str, command: AnyCommand) -> None:
        self._redis.xadd(f"{self._prefix}cmd:{gpu}", {"c": _encode(command)}, maxlen=1000, approximate=True)

    def step(self, gpu: str, job: str, at: float, step: str, duty: float, factor: float) -> None:
        """
        Tell a GPU worker the duty of a step of the closed loop of a budget, and note the step on the stream. ``at`` in
        epoch seconds.
        """
        pipe = self._redis.pipeline(transaction=False)
        pipe.xadd(
            f"{self._prefix}cmd:{gpu}", {"c": _encode(Throttle(version=1, duty=duty))}, maxlen=1000, approximate=True
        )
        pipe.xadd(f"{self._prefix}ev", {"e": _encode(["b", 1, gpu, job, int(at * 1e6), step, duty, factor])})
        pipe.execute()

    def tell(self, events: Iterable[stream.Warmed]) -> None:
        """Put what became of instances on the event stream, all of it or nothing."""
        pipe = self._redis.pipeline(transaction=True)
        for event in events:
            pipe.xadd(f"{self._prefix}ev", {"e": stream.encode(event)})
        pipe.execute()

    def cursor(self, gpu: str) -> str:
        """Where a GPU worker that starts goes on in its command stream."""
        raw = cast("bytes | None", self._redis.hget(f"{self._prefix}cmdpos", gpu))
        return raw.decode() if raw else "0-0"

    def commands(self, gpu: str, after: str, wait_s: float) -> list[tuple[str, AnyCommand | None]]:
        """
        Commands after the cursor, waiting for one at most ``wait_s``. Each with its id, the next cursor; None = not
        readable.
        """
        answer = self._redis.xread({f"{self._prefix}cmd:{gpu}": after}, count=100, block=max(1, int(wait_s * 1000)))
        return [(entry, _readable(fields[b"c"])) for entry, fields in stream_entries(answer)]

    def pause(self, target: str) -> None:
        """
        ``*`` (all), ``f:<project>/<function>`` or ``g:<gpu>``: dispatch stops, enqueueing goes on, deadlines run.

        With a ``-`` before it a target is drained. The gates of ``-*`` and ``-f:…`` are closed, what waits there is
        served; ``-g:…`` takes no more dispatches and unloads what idles.
        """
        self._redis.sadd(f"{self._prefix}paused", target)
        self._announce_pause()

    def resume(self, target: str) -> None:
        self._redis.srem(f"{self._prefix}paused", target)
        self._announce_pause()

    def paused(self) -> frozenset[str]:
        return frozenset(
            member.decode() for member in cast("set[bytes]", self._redis.smembers(f"{self._prefix}paused"))
        )

    def steer(self, steer: Steer) -> None:
        """Boost or pin a function; one that has neither is let go."""
        key = f"{self._prefix}steering"
        if steer.boost == 1.0 and not steer.gpus:
            self._redis.hdel(key, steer.function)
        else:
            self._redis.hset(key, steer.function, encode_steer(steer))
        self._announce_pause()

    def steering(self, at: float) -> dict[str, Steer]:
        """By function, what holds at an instant (epoch seconds)."""
        raw = cast("dict[bytes, bytes]", self._redis.hgetall(f"{self._prefix}steering"))
        found = [decode_steer(value).left(at) for value in raw.values()]
        return {steer.function: steer for steer in found if steer.boost != 1.0 or steer.gpus}

    def allow(self, gpu: str, stranger: Stranger) -> None:
        """Functions may run beside this process, though nobody registered it."""
        self._redis.sadd(f"{self._prefix}allowed", f"{gpu}|{stranger.pid}|{stranger.start}")
        self._announce_pause()

    def forbid(self, gpu: str, stranger: Stranger) -> None:
        self._redis.srem(f"{self._prefix}allowed", f"{gpu}|{stranger.pid}|{stranger.start}")
        self._announce_pause()

    def allowed(self) -> frozenset[str]:
        """``<gpu>|<pid>|<start>`` of each."""
        return frozenset(
            member.decode() for member in cast("set[bytes]", self._redis.smembers(f"{self._prefix}allowed"))
        )

    def attach(self, gpu: str, command: AttachJob) -> None:
        """Let a worker know of a training, and take its steps from now on."""
        self._redis.hset(f"{self._prefix}feeds", f"{command.id}|{gpu}", command.project)
        self.send(gpu, command)

    def let_go(self, job: str) -> None:
        """
        An attached training is not wanted any more: what it still tells is refused for a day, so that it does not come
        back.
        """
        self._redis.set(f"{self._prefix}gone:{job}", b"", ex=_GONE_S)

    def feed(self, project: str, job: str, gpu: str, chunk: StepChunk) -> Literal["taken", "unknown", "gone"]:
        """Hand steps on. ``unknown``: no such training is attached (any more); ``gone``: it was let go."""
        pipe = self._redis.pipeline(transaction=False)
        pipe.hget(f"{self._prefix}feeds", f"{job}|{gpu}")
        pipe.exists(f"{self._prefix}gone:{job}")
        owner, gone = pipe.execute()
        if gone:
            return "gone"
        if owner is None or owner.decode() != project:
            return "unknown"
        key = steps_key(self._prefix, job, gpu)
        pipe = self._redis.pipeline(transaction=False)
        pipe.rpush(key, _encode(chunk))
        # A worker that is away for long is not waited for.
        pipe.ltrim(key, -_STEP_CHUNKS, -1)
        pipe.expire(key, _STEPS_TTL_S)
        pipe.execute()
        return "taken"

    def _announce_pause(self) -> None:
        """The leader re-reads all of this when it sees a catalog change of no function, gateways what is drained."""
        self._redis.publish(f"{self._prefix}catalog", "s:")
        self._redis.xadd(f"{self._prefix}ev", {"e": _encode(["c", 1, "", 0])})


def _readable(raw: bytes) -> AnyCommand | None:
    """A command of a newer version must not stop the ones behind it."""
    try:
        command: AnyCommand = _decode_command(raw)
        return command
    except msgspec.DecodeError:
        return None


def stream_entries(answer: Any) -> Iterable[tuple[str, dict[bytes, bytes]]]:
    """The entries of an XREAD answer over one stream, in the RESP2 (list) or RESP3 (dict) form."""
    if not answer:
        return
    streams = answer.values() if isinstance(answer, dict) else [entries for _, entries in answer]
    for entries in streams:
        flat = (
            entries[0]
            if entries and isinstance(entries[0], list) and entries[0] and isinstance(entries[0][0], tuple | list)
            else entries
        )
        for entry, fields in flat:
            yield entry.decode(), fields
