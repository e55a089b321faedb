"""
What has changed in the last second, for pages that stay open: ``GET /v1/live``.

One maker for each view (a project, with or without what operators see) serves all who look at it, and works while
somebody does. It is made from states, not from the event stream: it costs the same at any rate of invocations.
"""

import asyncio
import time
from collections.abc import Collection, Mapping, Sequence, Set
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

import orjson
from fastapi.concurrency import run_in_threadpool

from api import rows
from api.auth import is_operator
from api.deps import Gateway
from api.errors import away
from api.problems import problems
from api.rows import TrainingRows
from api.schemas.live import Topic
from api.server.sse import Event, SharedEvent, has_room
from api.server.zipped import deflated
from api.trainings.views import NOTHING_KNOWN, Past, by_job
from smore.domain.errors import Unavailable
from smore.messages.job_queue import PublishedQueue
from smore.messages.reports import Report
from smore.process.observability import logger
from smore.redis.catalog import KeyEntry
from smore.redis.fleet import FleetState
from smore.redis.job_queue import JobQueue

if TYPE_CHECKING:
    from smore.postgres.jobs import Job

log = logger("api.live")

#: Seconds from one change to the next.
TURN_S: Final = 1.0
#: Seconds for which a viewer waits for what comes next: at the end of a turn it would just miss it.
PATIENCE_S: Final = 2.0
#: Seconds between two reads of records in Postgres, where nobody here has changed a training or decided about one.
RECORDS_S: Final = 15.0
#: Seconds after the end of a training until the history has all of it, and it is read no more.
RECORDED_S: Final = 60.0
#: Trainings of any state that are read, the newest first, beside those that are not over.
NEWEST: Final = 100
#: Bytes of changes that may wait for one viewer at the end of a turn. With more it is cut off, and comes back.
MOST_BYTES: Final = 256 << 10

#: Identity → row as JSON.
_Rows = Mapping[str, bytes]


class Viewer:
    """Somebody who looks: as a context, from the first event to the last."""

    def __init__(self, maker: "Maker", topics: Collection[Topic]) -> None:
        self.topics = frozenset(topics)
        #: Topics of which the first rows were sent.
        self.begun: set[Topic] = set()
        self.cut = False
        self._told = asyncio.Event()
        self._maker = maker
        self._waiting: list[Event] = []
        self._bytes = 0

    def __enter__(self) -> None:
        self._maker.join(self)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._maker.leave(self)

    def put(self, event: Event) -> None:
        self._bytes += len(event.data) if event.kind == "change" else 0
        self._waiting.append(event)
        self._told.set()

    def turned(self) -> None:
        """A turn begins. What waits now could have been taken."""
        if self._bytes > MOST_BYTES:
            self.cut = True
            self._maker.leave(self)
            self._waiting.clear()
            self._told.set()

    async def take(self) -> list[Event]:
        """What has come since; it waits for that, but not for ever."""
        # ``wait_for`` would make a task for each viewer and turn.
        with suppress(TimeoutError):
            async with asyncio.timeout(PATIENCE_S):
                await self._told.wait()
        self._told.clear()
        taken, self._waiting, self._bytes = self._waiting, [], 0
        return taken


class Maker:
    """Makes the events of one view, whose key is ``caller``'s, or one that sees the same."""

    def __init__(self, gateway: Gateway, caller: KeyEntry, project: str | None) -> None:
        self._gateway, self._caller, self._project = gateway, caller, project
        self._viewers: set[Viewer] = set()
        self._task: asyncio.Task[None] | None = None
        self._joined = asyncio.Event()
        self._rows: dict[Topic, _Rows] = {}
        #: The rows of queues, each with what it is made of.
        self._queues: dict[str, tuple[rows.WaitingRow, bytes]] = {}
        self._records = _Records(gateway, caller, project)

    def join(self, viewer: Viewer) -> None:
        self._viewers.add(viewer)
        self._joined.set()
        if not self.at_work:
            self._task = asyncio.create_task(self._run())

    def leave(self, viewer: Viewer) -> None:
        self._viewers.discard(viewer)

    @property
    def at_work(self) -> bool:
        return self._task is not None and not self._task.done()

    def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()

    async def _run(self) -> None:
        while self._viewers:
            self._joined.clear()
            topics = frozenset[Topic]().union(*(viewer.topics for viewer in self._viewers))
            try:
                made = await self._made(topics)
            except Exception as error:
                if not away(error):
                    log.exception("nothing could be made for those who look")
            else:
                for viewer in tuple(self._viewers):
                    viewer.turned()
                for topic, now in made.items():
                    self._tell(topic, now)
            with suppress(TimeoutError):
                await asyncio.wait_for(self._joined.wait(), TURN_S)
        self._rows.clear()
        self._queues.clear()

    def _tell(self, topic: Topic, now: _Rows) -> None:
        before, self._rows[topic] = self._rows.get(topic, {}), now
        changed = [row for id_, row in now.items() if before.get(id_) != row]
        gone = [id_ for id_ in before if id_ not in now]
        change = _event("change", topic, changed, gone) if changed or gone else None
        snapshot: Event | None = None
        for viewer in self._viewers:
            if topic not in viewer.topics:
                continue
            if topic not in viewer.begun:
                snapshot = snapshot or _event("snapshot", topic, list(now.values()), [])
                viewer.begun.add(topic)
                viewer.put(snapshot)
            elif change is not None:
                viewer.put(change)

    async def _made(self, topics: Set[Topic]) -> dict[Topic, _Rows]:
        made, fleet = await run_in_threadpool(self._of_state, topics)
        if Topic.QUEUES in topics:
            made[Topic.QUEUES] = await self._of_queues(fleet)
        return made

    def _of_state(self, topics: Set[Topic]) -> tuple[dict[Topic, _Rows], FleetState]:
        gateway, caller = self._gateway, self._caller
        made: dict[Topic, _Rows] = {}
        fleet = gateway.fleet().state()
        if topics == {Topic.QUEUES}:
            return made, fleet
        queue, trouble = JobQueue(gateway.client(), gateway.settings.redis.prefix).state()
        if Topic.GPUS in topics:
            made[Topic.GPUS] = {row["id"]: _json(row) for row in rows.gpus(fleet, caller, queue, silent_too=True)}
        if topics & {Topic.TRAININGS, Topic.PROBLEMS}:
            known = self._records.read(queue)
            if Topic.TRAININGS in topics and known:
                made[Topic.TRAININGS] = self._records.rows(fleet.reports)
            if Topic.PROBLEMS in topics:
                refused = self._gateway.refused.lately()
                found = problems(caller, fleet, queue, trouble, self._records.jobs, self._records.lag_s, refused)
                made[Topic.PROBLEMS] = {row.id: _json(row.model_dump()) for row in found}
        return made, fleet

    async def _of_queues(self, fleet: FleetState) -> _Rows:
        before, self._queues = self._queues, {}
        now_waiting = await rows.queues(self._gateway, self._project, fleet.paused, fleet.overrides)
        for key, waiting in now_waiting.items():
            made = before.get(key)
            # Of what a row is made of, the wait of its oldest alone changes by itself.
            if made is None or waiting != made[0] or waiting.queue.depth:
                made = waiting, _json(waiting.row(time.time()))
            self._queues[key] = made
        return {key: row for key, (_, row) in self._queues.items()}


class _Records:
    """What Postgres knows of a view: read when something was decided or changed, and now and then."""

    def __init__(self, gateway: Gateway, caller: KeyEntry, project: str | None) -> None:
        self._gateway, self._caller, self._project = gateway, caller, project
        self._read_at = -RECORDS_S
        #: What had ended by then was read whole, epoch seconds.
        self._complete = 0.0
        self._decided: tuple[Any, ...] = ()
        self._shown: TrainingRows | None = None
        self._idle: dict[str, bytes] = {}
        self._cursor = ""
        #: Age of the oldest event that was not in Postgres yet, seconds; 0 = there was none, or that is not known.
        self.lag_s = 0.0

    @property
    def jobs(self) -> Sequence["Job"]:
        return self._shown.jobs if self._shown is not None else ()

    def read(self, queue: PublishedQueue | None) -> bool:
        """Whether anything is known. Where Postgres is away, it is what was known before."""
        placed = ((job.id, job.place, tuple(job.gpus)) for job in (queue.jobs if queue is not None else ()))
        decided = (self._gateway.changed_jobs, *placed)
        if decided == self._decided and time.monotonic() - self._read_at < RECORDS_S:
            return self._shown is not None
        self._decided, self._read_at = decided, time.monotonic()
        try:
            jobs = self._gateway.store().jobs
            newest, more = jobs.page(self._project, limit=NEWEST)
            going_on = [job for job in jobs.unfinished() if self._project in (None, job.project)] if more else []
            every = list({job.id: job for job in (*newest, *going_on)}.values())
            self._shown = TrainingRows(self._gateway, self._caller, every, queue, self._known(every))
            self._complete = time.time() - RECORDED_S
            self._idle = {job.id: _json(self._shown.row(job, [])) for job in every}
            self._cursor = self._gateway.reader().recorded()
        except Exception as error:
            if not isinstance(error, Unavailable) and away(error) != "postgres":
                raise
        self.lag_s = self._lag_s() if self._cursor else 0.0
        return self._shown is not None

    def _known(self, jobs: Sequence["Job"]) -> dict[str, Past]:
        """What was read before of trainings that have been over for long."""
        past = self._shown.past if self._shown is not None else NOTHING_KNOWN
        before = {job.id: job.ended_at for job in self.jobs if job.id in past}
        return {
            job.id: past[job.id]
            for job in jobs
            if job.ended_at is not None and job.ended_at < self._complete and job.ended_at == before.get(job.id)
        }

    def rows(self, reports: Sequence[Report]) -> dict[str, bytes]:
        assert self._shown is not None
        told = by_job(reports)
        return self._idle | {
            job.id: _json(self._shown.row(job, told[job.id])) for job in self._shown.jobs if job.id in told
        }

    def _lag_s(self) -> float:
        stream = f"{self._gateway.settings.redis.prefix}ev"
        oldest = cast("list[tuple[bytes, object]]", self._gateway.client().xrange(stream, f"({self._cursor}", count=1))
        return max(0.0, time.time() - int(oldest[0][0].partition(b"-")[0]) / 1000) if oldest else 0.0


class _View(NamedTuple):
    project: str
    operator: bool
    of: str | None


class Live:
    """The makers of a gateway."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._makers: dict[_View, Maker] = {}
        #: The stop event of each answer → the project of its key.
        self.viewers: dict[asyncio.Event, str] = {}

    def viewer(self, caller: KeyEntry, project: str | None, topics: Collection[Topic]) -> Viewer:
        """Raises Unavailable where as many look as may, of the caller's project or of all."""
        if not has_room(self.viewers, caller, self._gateway.settings.logs.followers):
            raise Unavailable("As many look as may.", part="gateway")
        view = _View(caller.project, is_operator(caller), project)
        self._makers = {of: maker for of, maker in self._makers.items() if of == view or maker.at_work}
        if view not in self._makers:
            self._makers[view] = Maker(self._gateway, caller, project)
        return Viewer(self._makers[view], topics)

    def stop(self) -> None:
        for maker in self._makers.values():
            maker.stop()


def _json(row: Mapping[str, Any]) -> bytes:
    """As its schema writes it, of which it has all fields: a pass through the schema would take twice as long."""
    return orjson.dumps(row, option=orjson.OPT_UTC_Z)


def _event(kind: str, topic: Topic, changed: Sequence[bytes], gone: Sequence[str]) -> Event:
    data = b'{"topic":"%b","rows":[%b],"gone":%b}' % (topic.encode(), b",".join(changed), orjson.dumps(gone))
    event = Event(id=str(int(time.time())), kind=kind, data=data)
    return SharedEvent(id=event.id, kind=kind, data=data, zipped=deflated(event.written()))
