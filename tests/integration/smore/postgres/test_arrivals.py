"""Counts, lives and reasons on their way into Postgres; a leader that keeps instances, on a real Redis."""

import json
import threading
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

import msgspec
import numpy as np
import pytest
import redis
from sqlalchemy import Engine, insert, text

from lab.research.prewarm.served import write
from scheduler.leader.foresight import prewarm_knobs
from scheduler.leader.leader import Leader
from scheduler.policy import kernel
from scheduler.policy.engine import Engine as PolicyEngine
from scheduler.policy.knobs import PRESETS
from scheduler.policy.prewarm.prewarmer import Prewarmer
from scheduler.tasks.forecasting import foresight
from smore.domain.errors import Conflict
from smore.domain.function import FunctionSpec, Prewarming
from smore.messages import stream
from smore.messages.commands import Offload, Prewarm
from smore.messages.forecasts import Counted, Forecasts, PrewarmReport, decode_prewarm_report
from smore.messages.reports import ParkedInstance, Report, encode_report
from smore.postgres.arrivals import ArrivalStore
from smore.postgres.catalog import Store
from smore.postgres.history.recorder import Recorder
from smore.postgres.sums import ArrivalsMinuteRow, CountedMinuteRow
from smore.process import observability as metrics
from smore.process.settings import QueueSettings, SchedulerSettings, Settings
from smore.redis.catalog import Catalog, FunctionEntry
from smore.redis.fleet import Fleet
from smore.redis.forecasts import PublishedForecasts
from smore.redis.queue import Queue
from tests.support.eventually import eventually

PREFIX = "smore:"
#: The beginning of a minute, seconds.
T = 1_790_000_040
REPORT = Report(
    gpu="cpu0",
    boot="b",
    at=T,
    kind="cpu",
    device="d",
    sharing_mode="time-slice",
    slots=2,
    memory_total_mib=2000,
    memory_used_mib=0,
    utilisation=0.0,
    utilisation_counter="cpu-time",
    function_utilisation=0.0,
    running=0,
)


@pytest.fixture
def recorder(engine: Engine, redis_client: "redis.Redis") -> Recorder:
    return Recorder(engine, redis_client, PREFIX)


def emit(client: "redis.Redis", at: float, *events: stream.Event) -> None:
    """At a moment of the stream's own time."""
    for number, event in enumerate(events):
        client.xadd(f"{PREFIX}ev", {"e": stream.encode(event)}, id=f"{int(at * 1000)}-{number}")


def arrived(id_: str, at: float) -> stream.Arrived:
    us = int(at * 1e6)
    return stream.Arrived(1, "default/echo", 1, id_, us, us + 5_000_000, 1, "", "", "")


def ran(id_: str, at: float, *, cold: bool, reason: str = "") -> list[stream.Event]:
    us = int(at * 1e6)
    decision: dict[str, object] = {"candidates": []} | ({"unforeseen": reason} if reason else {})
    meta = json.dumps({"cold": cold, "run_ms": 1.0, "batch": 1, "rows": 1})
    return [
        arrived(id_, at),
        stream.Dispatched(1, "default/echo", "cpu0", us, [(id_, 1)], json.dumps(decision)),
        stream.Settled(
            1,
            "default/echo",
            1,
            id_,
            1,
            1,
            "succeeded",
            "ok",
            "cpu0",
            us,
            us + 5_000_000,
            us,
            us,
            us + 1000,
            1,
            "",
            "",
            1,
            meta,
        ),
    ]


def warmed(
    id_: str, told: float, *, outcome: str = "open", why: str = "", boot: str = "b", **fields: Any
) -> stream.Warmed:
    """Of 1 GiB, asked for at T. ``fields`` in seconds."""
    us = {name: int(value * 1e6) for name, value in fields.items()}
    return stream.Warmed(
        version=1,
        function="default/echo",
        revision=1,
        gpu="cpu0",
        boot=boot,
        id=id_,
        prewarmed=int(outcome != "cold"),
        outcome=outcome,
        why=why,
        at_us=int(told * 1e6),
        asked_us=T * 1_000_000,
        ready_us=us.get("ready", 0),
        used_us=us.get("used", 0),
        ended_us=us.get("ended", 0),
        load_us=us.get("load", 0),
        busy_us=us.get("busy", 0),
        idle_us=us.get("idle", 0),
        uses=int("used" in fields),
        saved=int("used" in fields),
        memory_kib=1 << 20,
    )


def test_a_minute_counts_where_the_platform_was_up_in_most_of_it(
    recorder: Recorder, engine: Engine, redis_client: "redis.Redis"
) -> None:
    door = ArrivalStore(engine)
    for second in range(60):
        emit(redis_client, T + second, stream.CatalogChanged(version=1, function="", at_us=0))
    for second in range(60, 75):
        emit(redis_client, T + second, arrived(f"i{second}", T + second))
    recorder.drain(30)
    recorder.drain()
    past = door.past(T - 60, T + 179)
    assert (past.from_at, past.counted, past.counts) == (T - 60, [False, True, False], {"default/echo": {2: 15}})
    # A database that was restored reads the stream again.
    with engine.begin() as connection:
        connection.execute(text("UPDATE stream_cursor SET last_id = '0-0'"))
    Recorder(engine, redis_client, PREFIX).drain()
    assert door.past(T - 60, T + 179) == past


def test_counts_outlive_a_redis_that_lost_everything(
    recorder: Recorder, engine: Engine, redis_client: "redis.Redis"
) -> None:
    for second in range(60):
        emit(redis_client, T + second, arrived(f"i{second}", T + second))
    recorder.drain()
    redis_client.flushdb()
    for second in range(60, 120):
        emit(redis_client, T + second, stream.CatalogChanged(version=1, function="", at_us=0))
    emit(redis_client, T + 120, arrived("after", T + 120))
    # The process that goes on, and one that began since.
    recorder.drain()
    Recorder(engine, redis_client, PREFIX).drain()
    past = ArrivalStore(engine).past(T, T + 180)
    assert (past.counted, past.counts) == ([True, True, False], {"default/echo": {0: 60, 2: 1}})


def test_a_life_is_told_in_parts_and_the_last_word_counts(
    recorder: Recorder, engine: Engine, redis_client: "redis.Redis"
) -> None:
    door = ArrivalStore(engine)
    emit(redis_client, T, warmed("a", T + 2, ready=T + 2, load=2.0))
    recorder.drain()
    assert door.account(T - 1, T + 1)[0].open == 1
    ended: dict[str, Any] = {"ready": T + 2, "used": T + 4, "ended": T + 10, "load": 2.0, "busy": 1.0, "idle": 7.0}
    emit(
        redis_client,
        T + 1,
        warmed("a", T + 10, outcome="hit", why="offload", **ended),
        warmed("a", T + 4, outcome="hit", ready=T + 2, used=T + 4, load=2.0),
        warmed("b", T + 9, outcome="wasted", why="offload", ready=T + 1, ended=T + 9, load=1.0, idle=8.0),
        warmed("c", T + 9, outcome="failed", why="failed", ended=T + 1, load=1.0),
        warmed("d", T + 9, outcome="cold", ready=T + 1, used=T + 1, load=1.0, busy=1.0, idle=2.0),
    )
    recorder.drain()
    (found,) = door.account(T - 1, T + 1, "default")
    assert (found.hits, found.wasted, found.failed, found.cold_loads, found.late, found.open) == (1, 1, 1, 1, 0, 0)
    assert (found.held_gb_s, found.idle_gb_s, found.wasted_gb_s) == (
        10.0 + 9.0 + 1.0 + 4.0,
        9.0 + 9.0 + 1.0 + 3.0,
        9.0 + 1.0,
    )
    assert found.saved == 2
    assert door.account(T - 1, T + 1, "other") == []


def test_a_life_that_came_out_of_host_memory_is_told_apart(
    recorder: Recorder, engine: Engine, redis_client: "redis.Redis"
) -> None:
    parked = warmed("a", T + 9, outcome="hit", why="parked", ready=T + 1, used=T + 2, ended=T + 9, load=1.0)
    emit(redis_client, T, parked, msgspec.structs.replace(warmed("b", T + 9, ready=T + 9, load=0.1), host=1))
    recorder.drain()
    with engine.connect() as connection:
        rows = connection.execute(text("SELECT id, why, host FROM instances ORDER BY id")).all()
    assert [tuple(row) for row in rows] == [("a", "parked", False), ("b", "", True)]
    (found,) = ArrivalStore(engine).account(T - 60, T + 60)
    assert (found.hits + found.open, found.host_loads) == (2, 1)


def test_what_a_killed_worker_held_has_ended(recorder: Recorder, engine: Engine, redis_client: "redis.Redis") -> None:
    emit(
        redis_client,
        T,
        warmed("loading", T + 1),
        warmed("unused", T + 2, ready=T + 1),
        warmed("used", T + 3, outcome="hit", ready=T + 1, used=T + 2),
    )
    emit(redis_client, T + 5, stream.Reported(1, "cpu0", (T + 5) * 1_000_000, encode_report(REPORT).decode()))
    recorder.drain()
    with engine.connect() as connection:
        assert not connection.execute(text("SELECT id FROM instances WHERE ended_at IS NOT NULL AND boot = 'b'")).all()
    news = Report(**{field: getattr(REPORT, field) for field in REPORT.__struct_fields__} | {"boot": "new"})
    emit(redis_client, T + 5.5, warmed("mine", T + 5, boot="new", ready=T + 5))
    emit(redis_client, T + 6, stream.Reported(1, "cpu0", (T + 6) * 1_000_000, encode_report(news).decode()))
    recorder.drain()
    with engine.connect() as connection:
        rows = connection.execute(text("SELECT id, outcome, why FROM instances ORDER BY id")).all()
    assert [tuple(row) for row in rows] == [
        ("loading", "failed", "worker_lost"),
        ("mine", "open", ""),
        ("unused", "wasted", "worker_lost"),
        ("used", "hit", "worker_lost"),
    ]


def test_every_cold_start_has_a_reason(recorder: Recorder, engine: Engine, redis_client: "redis.Redis") -> None:
    emit(
        redis_client, T, *ran("a", T, cold=True, reason="never_seen"), *ran("b", T, cold=False), *ran("c", T, cold=True)
    )
    first, *rest = ran("d", T, cold=True, reason="evicted")
    emit(redis_client, T + 1, first, rest[0])
    recorder.drain()
    emit(redis_client, T + 2, rest[1], *ran("e", T, cold=False, reason="off"))
    recorder.drain()
    (found,) = ArrivalStore(engine).account(T - 1, T + 1)
    # The leader took c for warm; it met a load under way. e was taken for cold and was not.
    assert (found.invocations, found.cold, found.unforeseen) == (5, 3, {"never_seen": 1, "late": 1, "evicted": 1})


def test_runs_are_counted_by_the_minute_over_any_span(
    recorder: Recorder, engine: Engine, redis_client: "redis.Redis"
) -> None:
    first_hour = (3600 - T % 3600) // 60
    minutes = (0, first_hour - 1, first_hour, first_hour + 30, first_hour + 59, first_hour + 60, first_hour + 125)
    for minute in minutes:
        # Of each minute in two parts, one cold.
        emit(redis_client, T + 60 * minute, *ran(f"c{minute}", T + 60 * minute, cold=True, reason="stale"))
        recorder.drain()
        emit(redis_client, T + 60 * minute + 1, *ran(f"w{minute}", T + 60 * minute, cold=False))
    recorder.drain()
    bounds = sorted({*minutes, *(minute + 1 for minute in minutes), 7})
    for begin in bounds:
        for end in (bound for bound in bounds if bound > begin):
            # A minute counts that is begun.
            accounts = ArrivalStore(engine).account(T + 60 * begin + 5, T + 60 * end - 5, "default")
            inside = sum(begin <= minute < end for minute in minutes)
            counted = [(one.function, one.invocations, one.cold, one.unforeseen) for one in accounts]
            assert counted == ([("default/echo", 2 * inside, inside, {"stale": inside})] if inside else [])


def test_forecasters_are_kept_a_few_at_a_time(engine: Engine) -> None:
    door = ArrivalStore(engine)
    versions = [door.store({"functions": [str(number)]}, bytes([number])) for number in range(5)]
    newest = door.newest()
    assert newest is not None
    assert (newest.version, newest.model, newest.manifest) == (versions[-1], b"\x04", {"functions": ["4"]})
    with engine.connect() as connection:
        assert connection.execute(text("SELECT count(*) FROM forecasters")).scalar_one() == 3


def test_knobs_are_changed_for_the_revision_in_force(store: Store, catalog: Catalog) -> None:
    spec = FunctionSpec(entrypoint="m:C", keep_alive_s=60.0)
    number, _ = store.register("default", "f", spec)
    with pytest.raises(Conflict):
        store.set_scaling("default", "f", {"min_warm": 1})
    store.activate("default", "f", number, {})
    store.set_scaling("default", "f", {"min_warm": 2, "prewarm": "paper"})
    store.set_scaling("default", "f", {"keep_alive_s": -1.0})
    changed = catalog.revision("default/f", number)
    assert changed is not None
    assert (changed.min_warm, changed.prewarm, changed.keep_alive_s, changed.max_warm) == (2, Prewarming.PAPER, -1.0, 1)
    # What was deployed is deployed.
    assert store.register("default", "f", spec) == (number, False)


def test_each_function_is_foreseen_by_what_would_have_cost_least(
    engine: Engine, redis_client: "redis.Redis", store: Store, config: Settings
) -> None:
    """
    What comes by the hour is foreseen, what comes at random is left to its own gaps; counts from Postgres, forecasts in
    Redis.
    """
    for name in ("hourly", "random"):
        number, _ = store.register("default", name, FunctionSpec(entrypoint="m:C"))
        store.activate("default", name, number, {})
    begin = int(time.time()) // 60 * 60 - 600 * 60
    random = np.random.default_rng(0)
    came = {"hourly": np.isin(np.arange(600) % 60, [0, 7, 19, 40]), "random": random.random(600) < 0.3}
    moments = [datetime.fromtimestamp(begin + 60 * minute, UTC) for minute in range(600)]
    rows = [
        {"project": "default", "function": name, "minute": moments[minute], "n": 1}
        for name, minutes in came.items()
        for minute in np.flatnonzero(minutes)
    ]
    with engine.begin() as connection:
        connection.execute(insert(CountedMinuteRow), [{"minute": at, "seconds": (1 << 60) - 1} for at in moments])
        connection.execute(insert(ArrivalsMinuteRow), rows)
    with foresight(config) as door:
        assert door.fit(asked=True).result == "fitted"
        assert door.forecast().result == "published"
    published = PublishedForecasts(redis_client, PREFIX).current()
    assert published is not None
    sources = dict(zip(published.functions, published.sources, strict=True))
    assert sources["default/hourly"] in ("seasonal-naive", "renewal")
    assert sources["default/random"] == "gaps"


# ---- the leader ------------------------------------------------------------------------------------------------------


class Led:
    """A leader in a thread over functions of the mirror; commands that it sends to cpu0."""

    def __init__(self, client: "redis.Redis") -> None:
        self.client = client
        self.catalog = Catalog(client, PREFIX)
        self.fleet, self.published = Fleet(client, PREFIX), PublishedForecasts(client, PREFIX)
        self.queue = Queue(client, PREFIX, QueueSettings())
        self.stop = threading.Event()
        config = Settings(scheduler=SchedulerSettings(lease_s=5.0, tick_s=0.02))
        warm = prewarm_knobs(config.prewarm)
        self.leader = Leader(
            client,
            config,
            self.stop,
            lambda: PolicyEngine(prewarmer=Prewarmer(warm)),
            PRESETS["smore-product"],
            prewarms=True,
        )
        self._thread = threading.Thread(target=self.leader.lead, daemon=True)
        self._after = "0-0"
        self.report = REPORT

    def deploy(self, name: str, **fields: object) -> None:
        self.catalog.put_revision(f"default/{name}", 1, FunctionSpec(entrypoint="m:C", **fields))  # type: ignore[arg-type]
        self.catalog.put_function(FunctionEntry(project="default", name=name, revision=1))

    def start(self) -> None:
        self._thread.start()

    def end(self) -> None:
        self.stop.set()
        self._thread.join(10)
        assert not self._thread.is_alive()

    def heartbeat(self) -> None:
        self.queue.report("cpu0", encode_report(self.report), ttl_s=60, lease_s=2, cursor="", running=[])

    def command(self) -> object:
        """The next one, with heartbeats while it is awaited."""

        def look() -> object:
            self.heartbeat()
            found = self.fleet.commands("cpu0", self._after, 0.01)
            if found:
                self._after = found[0][0]
                return found[0][1]
            return None

        return eventually(look, what="a command")

    def state(self, **wanted: object) -> PrewarmReport:
        """What it publishes, once the first function is as said."""

        def look() -> PrewarmReport | None:
            self.heartbeat()
            raw = self.published.state()
            state = decode_prewarm_report(raw) if raw is not None else None
            if state is None or not state.functions:
                return None
            return state if all(getattr(state.functions[0], key) == value for key, value in wanted.items()) else None

        return eventually(look, what=f"a state with {wanted}")


@pytest.fixture
def led(redis_client: "redis.Redis") -> "Led":
    return Led(redis_client)


def test_a_leader_keeps_what_is_to_be_kept_and_says_so(led: Led) -> None:
    led.deploy("echo", min_warm=1, prewarm=Prewarming.OFF)
    led.start()
    try:
        command = led.command()
        assert isinstance(command, Prewarm)
        assert (command.function, command.revision, command.instances) == ("default/echo", 1, 1)
        assert command.until > time.time() + 60
        found = led.state(wanted=1, loaded=1).functions[0]
        assert (found.mode, found.silence, found.loaded) == ("off", "off", 1)
        # Deleted while it is being loaded.
        led.catalog.remove_function("default/echo")
        command = led.command()
        assert isinstance(command, Offload)
        assert (command.function, command.keep, command.gone) == ("default/echo", 0, True)
    finally:
        led.end()


def test_what_a_worker_has_parked_is_known_and_how_long_its_return_takes(led: Led) -> None:
    led.deploy("echo", prewarm=Prewarming.OFF)
    parked = ParkedInstance(function="default/echo", revision=1, memory_mib=300.0, host_mib=500.0, left_s=60.0)
    led.report = msgspec.structs.replace(REPORT, parked=[parked, parked], memory_used_mib=600.0)
    led.start()
    try:
        found = led.state(parked=2).functions[0]
        assert (found.loaded, found.host_s, found.load_s) == (0, 1.0, 1.0)
        # What their processes hold of the device is theirs only until somebody needs it.
        cluster = cast(PolicyEngine, led.leader._policy).cluster
        assert cluster.fact(kernel.MEMORY_FREE)[0] == pytest.approx(REPORT.memory_total_mib)
        assert metrics.PARKED._value.get() == 2
        # A request has waited for one of them.
        now = time.time()
        returned = warmed("a", now, outcome="cold", ready=now, used=now, load=0.2)
        led.fleet.record_instances([msgspec.structs.replace(returned, host=1)])
        eventually(lambda: cluster.demands[0].host_s == 0.2, what="the time of its return")
        assert cluster.demands[0].load_s == 1.0
    finally:
        led.end()


def test_forecasts_come_as_events_and_bad_ones_leave_the_keep_alive(led: Led) -> None:
    led.deploy("echo")
    led.published.put_counts(
        Counted(from_at=time.time() // 60 * 60 - 600, known=list(range(10)), counts={"default/echo": [3, 1]})
    )
    led.start()
    try:
        assert led.state().functions[0].silence == "no_forecast"
        prewarmer = cast(PolicyEngine, led.leader._policy).prewarmer
        assert prewarmer is not None
        # What was counted was taught.
        assert prewarmer._functions["default/echo"].seen
        led.client.set(f"{PREFIX}prewarm:forecasts", b"no forecast")
        led.client.set(f"{PREFIX}prewarm:version", 1)
        led.state(silence="no_forecast")
        assert prewarmer._forecasts == {}
        numbers = np.full((1, 3), 0.5, "<f4").tobytes()
        now = time.time()
        led.published.publish(
            Forecasts(
                version=2,
                model=1,
                made_at=now,
                from_at=now // 60 * 60,
                horizon=3,
                functions=["default/echo"],
                sources=["renewal"],
                mean=numbers,
                any=numbers,
            )
        )
        eventually(lambda: "default/echo" in prewarmer._forecasts, what="the forecasts")
        # A worker's word on a failed load stands for a while.
        led.heartbeat()
        failed = stream.Warmed(
            version=1,
            function="default/echo",
            revision=1,
            gpu="cpu0",
            boot="b",
            id="b-1",
            prewarmed=1,
            outcome="failed",
            why="failed",
            at_us=1,
            asked_us=1,
            ready_us=0,
            used_us=0,
            ended_us=1,
            load_us=1,
            busy_us=0,
            idle_us=0,
            uses=0,
            saved=0,
            memory_kib=1,
        )
        led.fleet.record_instances([failed])
        eventually(lambda: prewarmer._functions["default/echo"].failures == 1, what="the failure")
    finally:
        led.end()


def test_the_page_is_made_of_what_was_recorded(
    recorder: Recorder, engine: Engine, redis_client: "redis.Redis", tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match="no arrivals were counted"):
        write(engine, {}, 3600.0, tmp_path, seed=0, now=T + 3600.0, price=60.0)
    for minute in range(0, 60, 5):
        emit(
            redis_client,
            T + 60 * minute,
            *ran(f"i{minute}", T + 60 * minute, cold=minute == 0, reason="never_seen" if minute == 0 else ""),
        )
    recorder.drain()
    said = write(
        engine, {"default/echo": FunctionSpec(entrypoint="m:C")}, 3600.0, tmp_path, seed=0, now=T + 3600.0, price=60.0
    )
    (account,) = cast("list[dict[str, object]]", said["functions"])
    assert (account["invocations"], account["cold"], account["unforeseen"]) == (12, 1, {"never_seen": 1})
    made = (tmp_path / "index.html").read_text()
    assert "never_seen 1" in made
    assert "12 of 60 minutes" not in made, "a minute with one second in it was not counted"
    assert ">0 of 60 minutes since" in made
