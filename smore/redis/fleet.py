"""
GPU instances as they are now, in Redis: reports with a time to live, commands to a GPU worker, pauses and overrides.

A worker reads its commands from the cursor that it last reported.
"""

import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, cast

import msgspec
import redis

from smore.domain.override import Override, Pause
from smore.messages import stream
from smore.messages.commands import AnyCommand, AttachJob, Throttle, decode_command, encode_command
from smore.messages.overrides import Paused, decode_override, encode_override, encode_paused, pauses
from smore.messages.reports import Report, StepChunk, UnregisteredProcess, decode_report
from smore.process.observability import logger

log = logger(__name__)

#: Chunks of steps of one attached training that wait for its worker, and for how many seconds: of what is older than a
#: minute the worker takes the count alone.
_STEP_CHUNKS: Final = 120
_STEPS_TTL_S: Final = 3600
#: Steps that are taken of one rank in so many seconds: as many as a tracker keeps while the platform is away, and more.
STEPS_IN_S: Final = 10
STEPS: Final = 8192 * STEPS_IN_S
#: How long it is told of a GPU instance that it is silent, seconds since its last report.
SILENT_TOLD_S: Final = 86_400.0
#: How long reports of a detached training are refused, seconds.
_GONE_S = 86_400


def steps_key(prefix: str, job: str, gpu: str) -> str:
    """The list of :class:`StepChunk` between gateway and worker."""
    return f"{prefix}steps:{job}:{gpu}"


_encode_chunk = msgspec.msgpack.Encoder().encode


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetState:
    """
    GPU instances, and what people have decided of them and of functions; see the methods of :class:`Fleet` of the same
    names. ``led``: whether a scheduler leads.
    """

    reports: Sequence[Report]
    seen: Mapping[str, float]
    pauses: Sequence[Pause]
    paused: frozenset[str]
    allowed: frozenset[str]
    overrides: Mapping[str, Override]
    led: bool

    def silent(self, now: float) -> dict[str, float]:
        """As :func:`silent`."""
        return silent(self.seen, {report.gpu for report in self.reports}, now)


class Fleet:
    """Reads and writes of the fleet. Thread-safe. Raises redis-py's errors."""

    def __init__(self, client: "redis.Redis", prefix: str) -> None:
        self._redis = client
        self._prefix = prefix

    def reports(self) -> list[Report]:
        """
        The reports of all GPU instances whose report is within its time to live, by name. One that cannot be read is passed
        over, as if its worker was silent.
        """
        return self._reports(cast("set[bytes]", self._redis.smembers(f"{self._prefix}gpus")))

    def _reports(self, gpus: Iterable[bytes]) -> list[Report]:
        names = sorted(gpus)
        if not names:
            return []
        raw = cast("list[bytes | None]", self._redis.mget([f"{self._prefix}gpu:{name.decode()}" for name in names]))
        reports = []
        for name, report in zip(names, raw, strict=True):
            try:
                reports += [decode_report(report)] if report is not None else []
            except ValueError as error:
                log.warning("unreadable report passed over", gpu=name.decode(), error=str(error))
        return reports

    def state(self) -> FleetState:
        """All at once, in two round trips."""
        pipe = self._redis.pipeline(transaction=False)
        for members in ("gpus", "paused", "allowed"):
            pipe.smembers(f"{self._prefix}{members}")
        for fields in ("seen", "paused:by", "steering"):
            pipe.hgetall(f"{self._prefix}{fields}")
        pipe.exists(f"{self._prefix}leader")
        gpus, paused, allowed, seen, by, steering, led = pipe.execute()
        return FleetState(
            # Read after ``seen``: one that reports for the first time meanwhile is not silent.
            reports=self._reports(gpus),
            seen=seen_at(seen),
            pauses=pauses(paused, by),
            paused=_texts(paused),
            allowed=_texts(allowed),
            overrides=_in_force(steering, time.time()),
            led=bool(led),
        )

    def known(self) -> list[str]:
        """Names of all GPU instances that have ever reported, those that are away now too."""
        return sorted(name.decode() for name in cast("set[bytes]", self._redis.smembers(f"{self._prefix}gpus")))

    def seen(self) -> dict[str, float]:
        """When each GPU instance that is not forgotten reported last, epoch seconds of Redis' clock."""
        return seen_at(cast("dict[bytes, bytes]", self._redis.hgetall(f"{self._prefix}seen")))

    def forget(self, gpu: str) -> None:
        """Do not expect a GPU instance any more, until it reports again."""
        pipe = self._redis.pipeline(transaction=True)
        pipe.hdel(f"{self._prefix}seen", gpu)
        pipe.srem(f"{self._prefix}gpus", gpu)
        pipe.execute()

    def send(self, gpu: str, command: AnyCommand) -> None:
        self._redis.xadd(f"{self._prefix}cmd:{gpu}", {"c": encode_command(command)}, maxlen=1000, approximate=True)

    def step(self, gpu: str, job: str, at: float, step: str, duty: float, factor: float) -> None:
        """
        Send a GPU worker the duty of a step of a training's budget, and write the step to the event stream. ``at``: epoch
        seconds.
        """
        event = stream.Stepped(version=1, gpu=gpu, job=job, at_us=int(at * 1e6), step=step, duty=duty, factor=factor)
        pipe = self._redis.pipeline(transaction=False)
        pipe.xadd(
            f"{self._prefix}cmd:{gpu}",
            {"c": encode_command(Throttle(version=1, duty=duty))},
            maxlen=1000,
            approximate=True,
        )
        pipe.xadd(f"{self._prefix}ev", {"e": stream.encode(event)})
        pipe.execute()

    def record_instances(self, events: Iterable[stream.Warmed]) -> None:
        """Write events of warm instances to the event stream, all of them or none."""
        pipe = self._redis.pipeline(transaction=True)
        for event in events:
            pipe.xadd(f"{self._prefix}ev", {"e": stream.encode(event)})
        pipe.execute()

    def cursor(self, gpu: str) -> str:
        """The cursor in its command stream from which a GPU worker continues when it starts."""
        raw = cast("bytes | None", self._redis.hget(f"{self._prefix}cmdpos", gpu))
        return raw.decode() if raw else "0-0"

    def commands(self, gpu: str, after: str, wait_s: float) -> list[tuple[str, AnyCommand | None]]:
        """
        Commands after the cursor; waits for one, at most ``wait_s``. Each comes with its id, which is the next cursor;
        None = a command that cannot be read.
        """
        answer = self._redis.xread({f"{self._prefix}cmd:{gpu}": after}, count=100, block=max(1, int(wait_s * 1000)))
        return [(entry, decode_command(fields[b"c"])) for entry, fields in stream_entries(answer)]

    def pause(self, target: str, by: str = "") -> None:
        """
        Pause ``*`` (all), ``f:<project>/<function>`` or ``g:<gpu>``: dispatch stops, invocations are still accepted, and
        their deadlines run.

        A ``-`` before the target drains it. ``-*`` and ``-f:…`` accept no new invocations and serve those that wait;
        ``-g:…`` gets no more dispatches and unloads idle instances. ``by``: id of the API key.
        """
        seconds, micros = self._redis.time()
        pipe = self._redis.pipeline(transaction=True)
        pipe.sadd(f"{self._prefix}paused", target)
        pipe.hset(f"{self._prefix}paused:by", target, encode_paused(Paused(at=seconds + micros / 1e6, by=by)))
        pipe.execute()
        self._announce_pause()

    def resume(self, target: str) -> None:
        pipe = self._redis.pipeline(transaction=True)
        pipe.srem(f"{self._prefix}paused", target)
        pipe.hdel(f"{self._prefix}paused:by", target)
        pipe.execute()
        self._announce_pause()

    def release(self, function: str) -> None:
        """End every pause, drain, boost and pin of a function."""
        targets = (f"f:{function}", f"-f:{function}")
        pipe = self._redis.pipeline(transaction=True)
        pipe.srem(f"{self._prefix}paused", *targets)
        pipe.hdel(f"{self._prefix}paused:by", *targets)
        pipe.hdel(f"{self._prefix}steering", function)
        pipe.execute()
        self._announce_pause()

    def pauses(self) -> list[Pause]:
        """What is paused and drained, since when and by whom: the platform first."""
        pipe = self._redis.pipeline(transaction=False)
        pipe.smembers(f"{self._prefix}paused")
        pipe.hgetall(f"{self._prefix}paused:by")
        return pauses(*pipe.execute())

    def paused(self) -> frozenset[str]:
        return _texts(cast("set[bytes]", self._redis.smembers(f"{self._prefix}paused")))

    def set_override(self, override: Override) -> None:
        """Set the boost and the pin of a function; an override with neither is removed."""
        key = f"{self._prefix}steering"
        if override.boost == 1.0 and not override.gpus:
            self._redis.hdel(key, override.function)
        else:
            self._redis.hset(key, override.function, encode_override(override))
        self._announce_pause()

    def overrides(self, at: float) -> dict[str, Override]:
        """The overrides in force at an instant (epoch seconds), by function."""
        return _in_force(cast("dict[bytes, bytes]", self._redis.hgetall(f"{self._prefix}steering")), at)

    def allow(self, gpu: str, process: UnregisteredProcess) -> None:
        """Let functions run beside this unregistered process."""
        self._redis.sadd(f"{self._prefix}allowed", f"{gpu}|{process.pid}|{process.start}")
        self._announce_pause()

    def forbid(self, gpu: str, process: UnregisteredProcess) -> None:
        self._redis.srem(f"{self._prefix}allowed", f"{gpu}|{process.pid}|{process.start}")
        self._announce_pause()

    def allowed(self) -> frozenset[str]:
        """``<gpu>|<pid>|<start>`` of each allowed process."""
        return _texts(cast("set[bytes]", self._redis.smembers(f"{self._prefix}allowed")))

    def attach(self, gpu: str, command: AttachJob) -> None:
        """Send a worker the training to attach, and accept its steps from now on."""
        self._redis.hset(f"{self._prefix}feeds", f"{command.id}|{gpu}", command.project)
        self.send(gpu, command)

    def detach(self, job: str) -> None:
        """
        Refuse an attached training's steps for a day, so that it does not register again by itself.
        """
        self._redis.set(f"{self._prefix}gone:{job}", b"", ex=_GONE_S)

    def add_steps(
        self, project: str, job: str, gpu: str, chunk: StepChunk
    ) -> Literal["taken", "unknown", "gone", "too_many"]:
        """
        Pass steps to the training's worker. ``unknown``: no such training is attached (any more); ``gone``: it was detached;
        ``too_many``: :data:`STEPS` were taken already in these :data:`STEPS_IN_S` seconds.
        """
        pipe = self._redis.pipeline(transaction=False)
        pipe.hget(f"{self._prefix}feeds", f"{job}|{gpu}")
        pipe.exists(f"{self._prefix}gone:{job}")
        owner, gone = pipe.execute()
        if gone:
            return "gone"
        if owner is None or owner.decode() != project:
            return "unknown"
        key = steps_key(self._prefix, job, gpu)
        taken = f"{key}:{int(time.time()) // STEPS_IN_S}"
        pipe = self._redis.pipeline(transaction=False)
        pipe.incrby(taken, len(chunk.steps))
        pipe.expire(taken, 2 * STEPS_IN_S)
        if chunk.steps and pipe.execute()[0] > STEPS:
            return "too_many"
        pipe = self._redis.pipeline(transaction=False)
        pipe.rpush(key, _encode_chunk(chunk))
        # The oldest chunks are dropped while a worker is away for long.
        pipe.ltrim(key, -_STEP_CHUNKS, -1)
        pipe.expire(key, _STEPS_TTL_S)
        pipe.execute()
        return "taken"

    def _announce_pause(self) -> None:
        """
        Announce a change: a catalog change without a function makes the leader read all overrides again, and ``s:`` makes
        gateways read what is drained.
        """
        self._redis.publish(f"{self._prefix}catalog", "s:")
        self._redis.xadd(
            f"{self._prefix}ev", {"e": stream.encode(stream.CatalogChanged(version=1, function="", at_us=0))}
        )


def _texts(members: Iterable[bytes]) -> frozenset[str]:
    return frozenset(member.decode() for member in members)


def _in_force(raw: Mapping[bytes, bytes], at: float) -> dict[str, Override]:
    overrides = [decode_override(value).left(at) for value in raw.values()]
    return {override.function: override for override in overrides if override.boost != 1.0 or override.gpus}


def seen_at(raw: Mapping[bytes, bytes]) -> dict[str, float]:
    """As :meth:`Fleet.seen`, of the hash in Redis."""
    return {gpu.decode(): int(at) / 1e6 for gpu, at in raw.items()}


def silent(seen: Mapping[str, float], reporting: Collection[str], now: float) -> dict[str, float]:
    """
    GPU instances that have reported within the last :data:`SILENT_TOLD_S`, have not been forgotten, and do not report
    now: when they reported last. ``seen``: :meth:`Fleet.seen`; ``now`` in epoch seconds.
    """
    return {gpu: at for gpu, at in sorted(seen.items()) if gpu not in reporting and now - at <= SILENT_TOLD_S}


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
