"""The past by minute and hour: what the recorder adds, what is made of older rows, and what is read of it, on real servers."""

import math
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import pytest
import redis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import Engine, text
from sqlalchemy.exc import OperationalError

from lab.research.replay.past_runs import PastRuns
from smore.domain.loss import Sums
from smore.postgres.driver import driver
from smore.postgres.history import histogram, series
from smore.postgres.history.reader import Reader
from smore.postgres.history.recorder import Recorder
from smore.postgres.history.retention import retain
from smore.postgres.history.series import Series
from tests.support.past import PREFIX, closed_window, emit, ended, reported

#: A whole hour, some days ago.
HOUR = int(time.time() // 3600 - 50) * 3600

# The servers are the session's, and each example empties what it uses.
ON_SERVERS = settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def rows(engine: Engine, query: str) -> list[tuple[Any, ...]]:
    with engine.connect() as connection:
        return [tuple(row) for row in connection.execute(text(query))]


MINUTES = "SELECT gpu, minute, samples, utilisation, function_utilisation, memory_used_mib, last_at FROM gpu_minutes ORDER BY 1, 2"
SUMMED = (
    "SELECT gpu, date_trunc('minute', at), count(*), sum(utilisation), sum(function_utilisation), max(memory_used_mib), max(at)"
    " FROM gpu_samples GROUP BY 1, 2 ORDER BY 1, 2"
)


def same(one: Sequence[tuple[Any, ...]], other: Sequence[tuple[Any, ...]]) -> bool:
    """But for the last digits of sums, which depend on their order."""
    return [tuple(cell if not isinstance(cell, float) else pytest.approx(cell) for cell in row) for row in one] == list(
        other
    )


def empty(engine: Engine, client: "redis.Redis") -> None:
    client.delete(f"{PREFIX}ev")
    with engine.begin() as connection:
        connection.execute(text("TRUNCATE gpu_samples, gpu_minutes, counted_minutes, stream_cursor, instances"))


@ON_SERVERS
@given(
    told=st.lists(
        st.tuples(st.sampled_from(["cpu0", "cpu1"]), st.floats(0, 300), st.floats(0, 1)), min_size=1, max_size=40
    ),
    cut=st.integers(0, 40),
)
def test_minutes_are_the_sums_of_their_seconds(
    engine: Engine, redis_client: "redis.Redis", told: list[tuple[str, float, float]], cut: int
) -> None:
    """Reports in any order, twice in a second, over several drains; a clock that is set back says nothing twice."""
    empty(engine, redis_client)
    recorder = Recorder(engine, redis_client, PREFIX)
    for number, (gpu, at, utilisation) in enumerate(told):
        emit(redis_client, reported(HOUR + at, gpu, utilisation))
        if number == cut:
            recorder.drain()
    recorder.drain()
    minutes = rows(engine, MINUTES)
    assert same(minutes, rows(engine, SUMMED))
    # The whole stream once more, as after a restored database.
    with engine.begin() as connection:
        connection.execute(text("DELETE FROM stream_cursor"))
    for gpu, at, utilisation in told:
        emit(redis_client, reported(HOUR + at, gpu, utilisation))
    Recorder(engine, redis_client, PREFIX).drain()
    assert rows(engine, MINUTES) == minutes


def test_a_recorder_that_is_killed_counts_no_minute_twice(
    engine: Engine, redis_client: "redis.Redis", monkeypatch: pytest.MonkeyPatch
) -> None:
    from smore.postgres.history import recorder as written

    windows = [closed_window(HOUR + 60.0 * n) for n in range(3)]
    emit(redis_client, *(reported(HOUR + second) for second in range(90)), ended("a", HOUR + 1, jobs=["j1"]))
    # A window comes with many reports.
    emit(redis_client, *(reported(HOUR + 80 + n, windows=windows[: n + 1]) for n in range(3)))
    merge = written._merge

    def killed(connection: Any, stage: Any, staged: Any) -> None:
        merge(connection, stage, staged)
        if stage.name == "stage_gpu_samples":
            with engine.begin() as other:
                other.execute(text("SELECT pg_terminate_backend(:pid)"), {"pid": connection.info.backend_pid})

    recorder = Recorder(engine, redis_client, PREFIX)
    monkeypatch.setattr(written, "_merge", killed)
    with pytest.raises(OperationalError):
        recorder.drain()
    monkeypatch.undo()
    assert rows(engine, MINUTES) == []

    recorder.drain()
    assert [row[2] for row in rows(engine, MINUTES)] == [60, 30]
    assert rows(engine, "SELECT job, seconds, invocations FROM job_minutes") == [("j1", pytest.approx(0.01), 1)]
    assert rows(engine, "SELECT function, succeeded, met FROM function_hours") == [("echo", 1, 1)]
    assert rows(engine, "SELECT job, windows, open_s FROM loss_hours") == [("j1", 3, pytest.approx(0.345))]


@ON_SERVERS
@given(one=st.lists(st.floats(0, 1e6), max_size=30), other=st.lists(st.floats(0, 1e6), max_size=30))
def test_merged_histograms_are_the_histogram_of_all(migrated: Engine, one: list[float], other: list[float]) -> None:
    def of(connection: Any, times: list[float]) -> list[int]:
        single = f"SELECT array_agg({histogram.one('t')}) FROM unnest(%s::float8[]) AS t"
        return connection.execute(f"SELECT {histogram.merged(f'({single})')}", (times,)).fetchone()[0]  # type: ignore[no-any-return]

    with driver(migrated) as connection, connection.transaction():
        merged = f"SELECT {histogram.merged('%s::int[] || %s::int[]')}"
        found = connection.execute(merged, (of(connection, one), of(connection, other))).fetchone()
        assert found is not None
        assert found[0] == of(connection, [*one, *other])
        for seconds in one:
            (integer,) = of(connection, [seconds])
            middle = connection.execute(f"SELECT {histogram.middle('%s')}", (integer & 127,)).fetchone()
            assert middle is not None
            if 1e-4 <= seconds <= 36_000:
                assert abs(middle[0] / seconds - 1) <= 0.1


def test_a_minute_takes_little_room(engine: Engine, redis_client: "redis.Redis") -> None:
    """Times over a factor of a thousand in one minute."""
    times = [0.002 * 1000 ** (number / 400) for number in range(400)]
    emit(redis_client, *(ended(f"{number:04}", HOUR + 30, whole) for number, whole in enumerate(times)))
    Recorder(engine, redis_client, PREFIX).drain()
    ((size, n),) = rows(engine, "SELECT pg_column_size(wholes), succeeded FROM function_minutes")
    assert n == 400
    assert size <= 200


def test_rows_from_before_are_summed_up_an_hour_at_a_time(engine: Engine, redis_client: "redis.Redis") -> None:
    """As after an upgrade in the middle of a minute: what the recorder has begun is made whole, and then nothing changes."""
    recorder = Recorder(engine, redis_client, PREFIX)
    emit(redis_client, *(reported(HOUR - 3 * 3600 + second) for second in (5, 6)))
    emit(
        redis_client, *(reported(HOUR + second) for second in range(40)), ended("a", HOUR - 3600), ended("b", HOUR + 1)
    )
    recorder.drain()
    with engine.begin() as connection:
        connection.execute(text("TRUNCATE gpu_minutes, function_hours"))
    emit(redis_client, *(reported(HOUR + second) for second in range(40, 80)), ended("c", HOUR + 2))
    recorder.drain()
    assert [row[2] for row in rows(engine, MINUTES)] == [20, 20]

    retain(engine, 14.0, seconds_hours=100.0)
    minutes, hours = rows(engine, MINUTES), rows(engine, "SELECT succeeded FROM function_hours ORDER BY hour")
    assert same(minutes, rows(engine, SUMMED))
    assert [row[2] for row in minutes] == [2, 60, 20]
    assert hours == [(1,), (2,)]
    retain(engine, 14.0)
    assert rows(engine, MINUTES) == minutes
    assert rows(engine, "SELECT succeeded FROM function_hours ORDER BY hour") == hours
    assert rows(engine, "SELECT count(*) FROM gpu_samples") == [(0,)], "after two days the minutes alone are left"

    reader = Reader(engine)
    assert reader.last_report("cpu0", HOUR + 200) == HOUR + 79
    assert reader.last_report("cpu0", HOUR + 70) == HOUR + 59, "the minute that goes on beyond says nothing of before"
    (use,) = PastRuns(engine).gpu_use(HOUR, HOUR + 3600)
    assert (use.samples, use.utilisation, use.device) == (80, pytest.approx(0.5), "a device")


@ON_SERVERS
@given(
    since=st.floats(0, 2e9),
    span=st.floats(0.001, 4e8),
    step=st.none() | st.integers(1, 31_622_400),
    least=st.sampled_from([1, 60, 3600]),
)
def test_no_series_has_too_many_points(since: float, span: float, step: int | None, least: int) -> None:
    window = series.StepGrid.over(since, since + span, step, least_s=least)
    assert 1 <= len(window.at) <= series.MOST
    assert window.since <= since < window.since + window.step_s
    assert window.at[-1] < window.until <= window.at[-1] + window.step_s
    assert window.step_s % least == 0
    if step is not None and span / step < series.MOST - 1:
        assert window.step_s == math.ceil(step / least) * least


def test_quantiles_of_a_function(engine: Engine, redis_client: "redis.Redis") -> None:
    times = [0.001 * 1.01**number for number in range(600)]
    emit(redis_client, *(ended(f"{number:04}", HOUR + number / 10, whole) for number, whole in enumerate(times)))
    emit(redis_client, ended("late", HOUR + 61, 1.0, state="failed"), ended("cold", HOUR + 121, 0.2, cold=True))
    Recorder(engine, redis_client, PREFIX).drain()
    with engine.begin() as connection:
        connection.execute(text("UPDATE function_minutes SET wholes = NULL WHERE cold > 0"))
    window = series.StepGrid.over(HOUR, HOUR + 240, 60)
    columns, _ = Series(engine).function(window, "default", "echo", None)
    for name, share in (("p50", 0.5), ("p95", 0.95), ("p99", 0.99)):
        assert columns[name][0] == pytest.approx(sorted(times)[math.ceil(share * len(times)) - 1], rel=0.1)
        assert columns[name][1:] == [None, None, None], (
            "no one succeeded; from before there was a histogram; nothing ended"
        )
    assert columns["succeeded"] == [600, 0, 1, None]
    assert columns["failed"] == [0, 1, 0, None]
    assert columns["whole_s"] == [pytest.approx(sum(times) / 600, rel=1e-4), None, pytest.approx(0.2), None]
    assert (columns["load_s"][2], columns["run_s"][0]) == (pytest.approx(0.08), pytest.approx(0.01))


def test_what_a_job_lost_is_told_as_its_windows_have_it(engine: Engine) -> None:
    windows = [closed_window(HOUR + 60.0 * n, 0.11 + n / 1e4) for n in range(6)]
    insert = text(
        "INSERT INTO loss_windows VALUES ('j1', 'cpu0', to_timestamp(:start), to_timestamp(:end), 'default', :before_s, 6, :closed_s,"
        " 6, 0.003, :after_s, 6)"
    )
    with engine.begin() as connection:
        for each in windows:
            given_ = {name: getattr(each, name) for name in ("start", "end", "before_s", "closed_s", "after_s")}
            connection.execute(insert, given_)
    found = Series(engine).job_lost(series.StepGrid.over(HOUR + 120, HOUR + 600, 120), "j1")
    assert [at for at, _ in found] == [HOUR + 120, HOUR + 240]
    for (_, ranks), count in zip(found, (4, 6), strict=True):
        wanted = Sums.of(windows[:count])
        assert (ranks[1].windows, ranks[1].open_s) == (count, pytest.approx(wanted.open_s))
        assert ranks[1].squares == pytest.approx(wanted.squares, abs=1e-12)


def test_the_harvest_by_hour_and_day(engine: Engine, redis_client: "redis.Redis") -> None:
    day = int(time.time() // 86_400 - 2) * 86_400
    emit(
        redis_client, ended("a", day + 10), ended("b", day + 3700, state="failed"), ended("c", day + 86_400, cold=True)
    )
    Recorder(engine, redis_client, PREFIX).drain()
    with engine.begin() as connection:
        at = datetime.fromtimestamp(day + 5, UTC)
        connection.execute(
            text(
                "INSERT INTO instances (id, gpu, boot, project, function, revision, prewarmed, outcome, asked_at, told_at, load_s,"
                " busy_s, idle_s, uses, saved, memory_mib) VALUES ('i', 'cpu0', 'b', 'default', 'echo', 1, true, 'hit', :at, :at, 1,"
                " 1, 1, 3, 2, 10)"
            ),
            {"at": at},
        )
    by_day = Series(engine).harvest(series.StepGrid.over(day, day + 172_800, 86_400), "function", "default", {})
    assert [(part.at, part.key, part.invocations, part.met, part.cold, part.saved) for part in by_day] == [
        (day, "default/echo", 2, 1, 0, 2),
        (day + 86_400, "default/echo", 1, 1, 1, 0),
        (None, "default/echo", 3, 2, 1, 2),
    ]
    assert by_day[0].run_s == pytest.approx(0.02)
    by_hour = Series(engine).harvest(series.StepGrid.over(day, day + 7200, 3600, least_s=3600), "gpu", None, {})
    assert [(part.at, part.key, part.invocations) for part in by_hour] == [
        (day, "cpu0", 1),
        (day + 3600, "cpu0", 1),
        (None, "cpu0", 2),
    ]
    assert Series(engine).harvest(series.StepGrid.over(day, day + 7200, 3600), "project", "vision", {}) == []
