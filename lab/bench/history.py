"""
What the history costs, and how fast it is read when it is large.

``python -m lab.bench.history --rows 10000000 --json`` makes so many invocations in SQL, with their executions, decisions,
minutes and totals, spread over fourteen days, forty functions and four projects, in a Postgres and a Redis of its own
in a temporary home. The tables and the indices are the platform's. Then it starts the gateway and requests
each route of the history over HTTP, each time for other invocations, functions and pages; appends through the recorder;
and has retention delete the oldest hundredth.

Figures:

* ``<route>_p50_ms``, ``<route>_p95_ms``, ``worst_p95_ms``.
* ``bytes_per_invocation``: all tables and indices over the invocations.
* ``recorder_rows_per_s``, ``recorder_invocations_per_s``.
* ``retain_rows_per_s``: invocations deleted with their executions; ``retain_chunk_max_s``: the longest transaction.
* ``backfill_s``: counting the invocations (``history_counts.py``); ``made_s``: filling the tables.
"""

import argparse
import json
import math
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import httpx
import psycopg

from lab.bench.history_counts import COUNTS
from lab.bench.ports import free_port
from lab.bench.report import ROOT, emit, progress
from lab.bench.servers import ServerUrls, servers
from migrations.__main__ import prepare
from smore.domain.access import Scope
from smore.domain.function import FunctionSpec
from smore.domain.ids import new_id
from smore.domain.job import Action, JobRequest
from smore.messages import stream
from smore.postgres.catalog import Store
from smore.postgres.connection import make_engine
from smore.postgres.history import retention
from smore.postgres.history.recorder import Recorder
from smore.postgres.jobs import JobChange
from smore.process.settings import PostgresSettings, RedisSettings, Settings
from smore.redis.catalog import Catalog
from smore.redis.connection import connect

DAYS: Final = 14
FUNCTIONS: Final = 40
#: Projects, each with the number of its first function. The first project has most of the traffic, the last hardly any.
PROJECTS: Final = (("default", 0), ("vision", 24), ("text", 34), ("small", 39))
GPUS: Final = 4
#: Rows that one statement makes.
CHUNK: Final = 1_000_000
PREFIX: Final = "smore:"
JOB_WINDOWS_S: Final = 10
#: The file of a kept folder that says what its database was filled with.
MADE: Final = "made.json"

# ---- rows made in SQL ------------------------------------------------------------------------------------------------

#: One invocation for each number g in [low, high]. Every value is a function of g, so that each table is made on its
#: own. u1 to u4 are uniform in [0, 1).
_BASE = """
WITH drawn AS (
    SELECT g, %(begin)s + (g * %(step)s)::bigint AS arrival, (hashint8(g * 8 + 1)::bigint & 65535) / 65536.0 AS u1,
        (hashint8(g * 8 + 2)::bigint & 65535) / 65536.0 AS u2, (hashint8(g * 8 + 3)::bigint & 65535) / 65536.0 AS u3,
        (hashint8(g * 8 + 4)::bigint & 65535) / 65536.0 AS u4
    FROM generate_series(%(low)s::bigint, %(high)s::bigint) AS g
), base AS (
    SELECT g, arrival, u2, u3, u4, (__FUNCTIONS__ * u1 * u1 * u1)::int %% __FUNCTIONS__ AS f, 'cpu' || (g %% __GPUS__) AS gpu,
        lpad(to_hex(arrival / 1000), 12, '0') || substr(md5(g::text), 1, 20) AS id,
        CASE WHEN u2 < 0.96 THEN 'succeeded' WHEN u2 < 0.98 THEN 'failed' WHEN u2 < 0.992 THEN 'expired' WHEN u2 < 0.999 THEN 'rejected'
            ELSE 'cancelled' END AS state,
        1000 + (u3 * 20000)::bigint AS waited, 2000 + (u4 * 50000)::bigint AS ran,
        -- Of ten invocations two run in one batch.
        g - (CASE WHEN g %% 10 = 9 THEN 1 ELSE 0 END) AS batch
    FROM drawn
), named AS (
    SELECT *, CASE __PROJECT__ END AS project, 'function-' || lpad(f::text, 2, '0') AS function,
        ((%(begin)s + (batch * %(step)s)::bigint) / 1000 << 20) | (batch & 1023) AS decision
    FROM base
)
"""


def _sql(text: str) -> str:
    """``text`` with ``_BASE`` and the abbreviation ``AT(`` put in."""
    project = " ".join(f"WHEN f >= {first} THEN '{name}'" for name, first in reversed(PROJECTS))
    base = _BASE.replace("__PROJECT__", project).replace("__FUNCTIONS__", str(FUNCTIONS)).replace("__GPUS__", str(GPUS))
    return text.replace("BASE", base).replace("AT(", "to_timestamp(1e-6::float8 * (")


_INVOCATIONS = _sql("""
INSERT INTO invocations (id, project, function, revision, state, cause, attempt, starts, arrival_at, deadline_at, claimed_at, started_at,
    finished_at, gpu, rows, key_id, trace, gate_s)
BASE SELECT id, project, function, 1, state, CASE state WHEN 'succeeded' THEN 'ok' WHEN 'failed' THEN 'handler_error' ELSE state END,
    CASE WHEN u2 < 0.98 THEN 1 ELSE 0 END, CASE WHEN u2 < 0.98 THEN 1 ELSE 0 END, AT(arrival)), AT(arrival + 250000)),
    CASE WHEN u2 < 0.98 THEN AT(arrival + waited)) END, CASE WHEN u2 < 0.98 THEN AT(arrival + waited + 1500)) END,
    AT(arrival + waited + ran + 2000)), CASE WHEN u2 < 0.98 THEN gpu ELSE '' END, 1, 'k0123456789a',
    CASE WHEN g %% 4 = 0 THEN '00-' || md5(g::text) || '-' || substr(md5(g::text), 1, 16) || '-01' ELSE '' END, 0.004
FROM named
""")

_EXECUTIONS = _sql("""
INSERT INTO executions (invocation, attempt, project, function, gpu, decision_id, state, cause, cold, load_s, run_s, batch, rows,
    co_runners, jobs, predicted, device, sharing_mode, unforeseen, claimed_at, started_at, finished_at)
BASE SELECT id, 1, project, function, gpu, decision, state, CASE state WHEN 'succeeded' THEN 'ok' ELSE 'handler_error' END, u4 < 0.01,
    CASE WHEN u4 < 0.01 THEN '{"import": 0.21, "weights": 0.34, "first": 0.05}'::jsonb END, ran / 1e6, CASE WHEN g %% 10 >= 8 THEN 2 ELSE 1
    END, CASE WHEN g %% 10 >= 8 THEN 2 ELSE 1 END, CASE WHEN u3 < 0.3 THEN '["default/function-01"]'::jsonb ELSE '[]'::jsonb END,
    CASE WHEN g %% 2 = 0 THEN jsonb_build_array(%(job)s::text) ELSE '[]'::jsonb END,
    jsonb_build_object('run_s', round((ran / 1e6 * 0.9)::numeric, 5), 'known', true, 'function_degradation', 0.0421,
        'function_degradation_upper', 0.0613, 'training_degradation', 0.0132, 'training_degradation_upper', 0.0187),
    %(device)s, 'time-slice', CASE WHEN u4 < 0.01 THEN 'never_seen' END, AT(arrival + waited)), AT(arrival + waited + 1500)),
    AT(arrival + waited + ran + 2000))
FROM named WHERE u2 < 0.98
""")

# Postgres parses text to JSONB faster than it builds the objects.
_DECISIONS = _sql("""
INSERT INTO decisions (id, project, function, gpu, at, decision)
BASE SELECT decision, project, function, gpu, AT(arrival + waited)), format(
    '{"v": 1, "policy": "smore-product", "table": 3, "seed": 0, "priority": 1.%%s, "schedule_us": %%s%%s, "candidates": ['
    '["%%s", true, 0, 0.0%%s, %%s.5123, 0.%%s, 0.0421, 0.0613, 0.0132, 0.0187, true, null],'
    ' ["cpu%%s", false, 0, 0.0%%s, %%s.5123, 1.%%s, 0.0421, 0.0613, 0.0132, 0.0187, true, %%s]]}', g %% 9000 + 999, 180 + g %% 400,
    CASE WHEN g %% 3 = 0 THEN ', "refused": {"no_slot": 1}' ELSE '' END, gpu, ran / 10 + 1000, arrival / 1000000, ran / 10 + 1000,
    (g + 1) %% __GPUS__, ran / 10 + 1000, arrival / 1000000, ran / 10 + 1000,
    CASE WHEN g %% 3 = 0 THEN '"no_slot"' ELSE 'null' END)::jsonb
FROM named WHERE u2 < 0.98 AND batch = g
""").replace("__GPUS__", str(GPUS))

_JOB_WINDOWS = """
INSERT INTO job_windows (job, at, gpu, project, iterations, window_s, solo_s, solo_count, shared_s, shared_count, device, sharing_mode)
SELECT %(job)s, to_timestamp(at), 'cpu' || n, 'default', (at - %(begin)s)::bigint, 60, 0.1, 300, 0.104, 300, %(device)s, 'time-slice'
FROM generate_series(%(begin)s::bigint, %(end)s::bigint, %(every)s) AS at CROSS JOIN generate_series(0, %(gpus)s - 1) AS n
"""
_GPU_SAMPLES = """
INSERT INTO gpu_samples (gpu, at, utilisation, function_utilisation, memory_used_mib, memory_total_mib, running, counter, device,
    sharing_mode)
SELECT 'cpu' || n, to_timestamp(at), 0.7, 0.2, 900, 2048, 1, 'cpu', %(device)s, 'time-slice'
FROM generate_series(%(begin)s::bigint, %(end)s::bigint, %(every)s) AS at CROSS JOIN generate_series(0, %(gpus)s - 1) AS n
"""
_LOSS_WINDOWS = """
INSERT INTO loss_windows (job, gpu, start_at, end_at, project, before_s, before_n, closed_s, closed_n, closed_sd, after_s, after_n)
SELECT %(job)s, 'cpu' || n, to_timestamp(%(begin)s + 600 * w), to_timestamp(%(begin)s + 600 * w + 1), 'default', 0.104, 8,
    0.1 + 0.001 * (w %% 5), 8, 0.003, 0.104, 8
FROM generate_series(1, %(windows)s) AS w CROSS JOIN generate_series(0, %(gpus)s - 1) AS n
"""

_TABLES: Final = {"invocations": _INVOCATIONS, "executions": _EXECUTIONS, "decisions": _DECISIONS}


class Maker:
    """Fills the tables. ``now``: epoch seconds, the arrival of the last invocation."""

    def __init__(self, dsn: str, rows: int, now: float, job: str) -> None:
        self._dsn, self._rows, self._job = dsn, rows, job
        self._begin, self._now = now - DAYS * 86_400, now
        self._device = "AMD EPYC 7B13 / 1 core"

    def make(self) -> float:
        """Fill all tables; the seconds that counting them takes."""
        with psycopg.connect(self._dsn, autocommit=True) as connection:
            indices = {table: _without_indices(connection, table) for table in _TABLES}
        with ThreadPoolExecutor(2) as pool:
            for done in [
                pool.submit(self._table, table, statement, indices[table]) for table, statement in _TABLES.items()
            ]:
                done.result()
        span = {"begin": self._begin, "end": self._now, "gpus": GPUS, "job": self._job, "device": self._device}
        self._execute(_JOB_WINDOWS, span | {"every": JOB_WINDOWS_S})
        self._execute(_GPU_SAMPLES, span | {"every": JOB_WINDOWS_S})
        self._execute(_LOSS_WINDOWS, span | {"windows": DAYS * 24})
        begin = time.monotonic()
        for statement in COUNTS:
            self._execute(statement)
        spent = time.monotonic() - begin
        progress(f"minutes and totals are counted: {spent:.0f} s")
        self._execute("VACUUM (ANALYZE)")
        self._execute("CHECKPOINT")
        return spent

    def _table(self, table: str, statement: str, indices: Sequence[str]) -> None:
        for low in range(0, self._rows, CHUNK):
            high = min(low + CHUNK, self._rows) - 1
            given = {"low": low, "high": high, "begin": int(self._begin * 1e6), "step": DAYS * 86_400e6 / self._rows}
            self._execute(statement, given | {"job": self._job, "device": self._device})
            progress(f"{table}: {high + 1}")
        for index in indices:
            self._execute(index)
        progress(f"{table}: {len(indices)} indices")

    def _execute(self, statement: str, given: dict[str, Any] | None = None) -> None:
        # The client puts the values into the text, because Postgres cannot infer the types of parameters here.
        with psycopg.connect(self._dsn, autocommit=True, cursor_factory=psycopg.ClientCursor) as connection:
            connection.execute("SET maintenance_work_mem = '1GB'")
            connection.execute("SET work_mem = '256MB'")
            connection.execute(statement, given)


def _without_indices(connection: "psycopg.Connection[Any]", table: str) -> list[str]:
    """Drop the indices of a table, because they are made faster afterwards; the statements that make them again."""
    statements = []
    keys = connection.execute(
        "SELECT conname, pg_get_constraintdef(oid) FROM pg_constraint WHERE conrelid = %s::regclass AND contype = 'p'",
        (table,),
    ).fetchall()
    for name, definition in keys:
        connection.execute(f"ALTER TABLE {table} DROP CONSTRAINT {name}")
        statements.append(f"ALTER TABLE {table} ADD CONSTRAINT {name} {definition}")
    for name, definition in connection.execute(
        "SELECT indexname, indexdef FROM pg_indexes WHERE tablename = %s", (table,)
    ).fetchall():
        connection.execute(f"DROP INDEX {name}")
        statements.append(definition)
    return statements


# ---- what is measured ------------------------------------------------------------------------------------------------


def percentile(seconds: Sequence[float], share: float) -> float:
    """The value at ``share`` (0 to 1) by nearest rank. ValueError without a value."""
    if not seconds:
        raise ValueError("nothing was measured")
    return sorted(seconds)[max(0, math.ceil(share * len(seconds)) - 1)]


class Asker:
    """
    Sends requests to the gateway, one after another, with a key of the busiest project or of the smallest one. ``keys``:
    key by project; ``times``: measured answers of each route.
    """

    def __init__(self, url: str, keys: dict[str, str], times: int, seed: int = 0) -> None:
        self._http = {
            project: httpx.Client(base_url=url, headers={"Authorization": f"Bearer {key}"}, timeout=60)
            for project, key in keys.items()
        }
        self._times, self._random = times, random.Random(seed)

    def measure(self, name: str, path: Callable[[random.Random], str], project: str = "default") -> dict[str, float]:
        """p50 and p95 of ``times`` answers after five that are not counted. RuntimeError where one is not 200."""
        spent = []
        for number in range(self._times + 5):
            where = path(self._random)
            begin = time.perf_counter()
            answer = self._http[project].get(where)
            seconds = time.perf_counter() - begin
            if answer.status_code != 200:
                raise RuntimeError(f"{where}: {answer.status_code} {answer.text[:300]}")
            if number >= 5:
                spent.append(seconds)
        figures = {f"{name}_p50_ms": statistics.median(spent) * 1e3, f"{name}_p95_ms": percentile(spent, 0.95) * 1e3}
        progress(f"{name:24} p50 {figures[f'{name}_p50_ms']:8.1f} ms   p95 {figures[f'{name}_p95_ms']:8.1f} ms")
        return figures

    def ready(self) -> None:
        until = time.monotonic() + 60
        while True:
            try:
                if self._http["default"].get("/v1/functions").status_code == 200:
                    return
            except httpx.HTTPError:
                pass
            if time.monotonic() > until:
                raise RuntimeError("the gateway does not answer")
            time.sleep(0.1)

    def close(self) -> None:
        for http in self._http.values():
            http.close()


def _routes(asker: Asker, ids: Sequence[str], small: Sequence[str], job: str) -> dict[str, float]:
    def function(draw: random.Random) -> str:
        return f"function-{draw.randrange(PROJECTS[1][1]):02d}"

    listed = "/v1/invocations?limit=100"
    figures = asker.measure("list", lambda _: listed)
    figures |= asker.measure("list_later_page", lambda draw: f"{listed}&cursor={draw.choice(ids)}")
    figures |= asker.measure("list_function", lambda draw: f"{listed}&function={function(draw)}")
    figures |= asker.measure("list_failed", lambda draw: f"{listed}&state=failed&cursor={draw.choice(ids)}")
    figures |= asker.measure("list_running", lambda _: f"{listed}&state=running")
    figures |= asker.measure(
        "list_function_cancelled",
        lambda draw: f"{listed}&function={function(draw)}&state=cancelled&cursor={draw.choice(ids)}",
    )
    figures |= asker.measure("list_unknown_function", lambda _: f"{listed}&function=never-called")
    figures |= asker.measure("list_small_project", lambda draw: f"{listed}&cursor={draw.choice(small)}", "small")
    figures |= asker.measure("invocation", lambda draw: f"/v1/invocations/{draw.choice(ids)}")
    figures |= asker.measure("executions", lambda draw: f"/v1/invocations/{draw.choice(ids)}/executions")
    figures |= asker.measure("explain", lambda draw: f"/v1/invocations/{draw.choice(ids)}/explain")
    figures |= asker.measure("statistics", lambda _: "/v2/models/stats")
    figures |= asker.measure("statistics_function", lambda draw: f"/v2/models/{function(draw)}/stats")
    figures |= asker.measure("prewarm_day", lambda _: "/v1/prewarm")
    figures |= asker.measure("job_statement", lambda _: f"/v1/jobs/{job}/statement")
    return figures


def _recorder(config: Settings, invocations: int) -> dict[str, float]:
    """Have the recorder write so many invocations, each a batch of its own with three entries in the stream."""
    client = connect(config)
    assert config.postgres.url is not None
    engine = make_engine(config.postgres.url, "bench")
    name, now = f"{PREFIX}ev", time.time_ns() // 1000
    candidate = {
        "gpu": "cpu0",
        "warm": True,
        "delay_s": 0.0,
        "run_s": 0.02,
        "finish_at": now / 1e6,
        "impact": 0.4,
        "function_degradation": 0.0421,
        "function_degradation_upper": 0.0613,
        "training_degradation": 0.0132,
        "training_degradation_upper": 0.0187,
        "known": True,
        "refusal": None,
    }
    decision = json.dumps(
        {
            "v": 1,
            "policy": "smore-product",
            "table": 3,
            "seed": 0,
            "priority": 1.5,
            "schedule_us": 200,
            "refused": {},
            "shadow": None,
            "candidates": [candidate, candidate | {"gpu": "cpu1"}],
        }
    )
    meta = json.dumps(
        {"run_ms": 20.0, "batch": 1, "rows": 1, "co": [], "jobs": ["j"], "device": "d", "sharing_mode": "time-slice"}
    )
    recorder = Recorder(engine, client, PREFIX)
    for low in range(0, invocations, 1000):
        pipe = client.pipeline(transaction=False)
        for number in range(low, min(low + 1000, invocations)):
            id_, function, at = new_id(), f"default/function-{number % 24:02d}", now + number * 1000
            for event in (
                stream.Arrived(1, function, 1, id_, at, at + 250_000, 1, "", "k", ""),
                stream.Dispatched(1, function, "cpu0", at + 1000, [(id_, 1)], decision),
                stream.Settled(
                    1,
                    function,
                    1,
                    id_,
                    1,
                    1,
                    "succeeded",
                    "ok",
                    "cpu0",
                    at,
                    at + 250_000,
                    at + 1000,
                    at + 2000,
                    at + 22_000,
                    1,
                    "k",
                    "",
                    200,
                    meta,
                ),
            ):
                pipe.xadd(name, {"e": stream.encode(event)})
        pipe.execute()
    begin, entries = time.perf_counter(), 0
    while written := recorder.drain(5000):
        entries += written
    spent = time.perf_counter() - begin
    engine.dispose()
    client.close()
    # An invocation is three entries and three rows.
    return {"recorder_rows_per_s": entries / spent, "recorder_invocations_per_s": invocations / spent}


def _retention(dsn: str, rows: int) -> dict[str, float]:
    """Delete the oldest hundredth as the hourly task does."""
    with psycopg.connect(dsn) as connection:
        oldest = connection.execute(
            "SELECT arrival_at FROM invocations ORDER BY arrival_at OFFSET %s LIMIT 1", (rows // 100,)
        ).fetchone()
        assert oldest is not None
        before = oldest[0]
    statements = list(retention.rows_before(before))
    chunks: list[float] = []
    begin, deleted = time.perf_counter(), 0
    with psycopg.connect(dsn, autocommit=True) as connection:
        for table, statement, bound in statements[:2]:
            count = retention.RETAIN_CHUNK
            while count == retention.RETAIN_CHUNK:
                started = time.perf_counter()
                row = connection.execute(statement, {"before": bound, "chunk": retention.RETAIN_CHUNK}).fetchone()
                count = row[0] if row else 0
                deleted += count if table == "invocations" else 0
                chunks.append(time.perf_counter() - started)
    spent = time.perf_counter() - begin
    return {"retain_rows_per_s": deleted / spent, "retain_chunk_max_s": max(chunks)}


# ---- the run ---------------------------------------------------------------------------------------------------------


@contextmanager
def gateway(home: Path, urls: ServerUrls) -> Iterator[str]:
    """The real gateway in a process of its own; its URL."""
    port = free_port()
    env = os.environ | {
        "SMORE_HOME": str(home),
        "SMORE_REDIS__URL": urls.redis_url,
        "SMORE_POSTGRES__URL": urls.postgres_url,
        "SMORE_API__PORT": str(port),
        "PYTHONPATH": str(ROOT),
    }
    with open(home / "gateway.log", "wb") as log:
        child = subprocess.Popen([sys.executable, "-m", "api.app"], env=env, cwd=ROOT, stdout=log, stderr=log)
        try:
            yield f"http://127.0.0.1:{port}"
        finally:
            child.terminate()
            try:
                child.wait(20)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()


def _catalog(store: Store, job_gpus: Sequence[str]) -> tuple[str, str]:
    """The functions and a training that runs on all GPU instances. Returns its id and a key of the smallest project."""
    firsts = dict(PROJECTS)
    for project in list(firsts)[1:]:
        store.create_project(project)
    for number in range(FUNCTIONS):
        project = max((first, name) for name, first in PROJECTS if number >= first)[1]
        revision, _ = store.register(
            project, f"function-{number:02d}", FunctionSpec(entrypoint="lab.bench.functions:Echo")
        )
        store.activate(project, f"function-{number:02d}", revision, {})
    job = store.jobs.submit("default", "training", JobRequest(argv=["zoo.train"], gpus=job_gpus)).id
    store.jobs.move(job, Action.START, JobChange(gpus=job_gpus))
    store.jobs.move(job, Action.RUN)
    return job, store.create_key("small", "bench", [Scope.READ])[1]


def _make(rows: int, folder: Path) -> dict[str, Any]:
    """Fill the servers of a folder; the content of its :data:`MADE`."""
    with servers(folder) as urls:
        config = config_of(urls)
        prepare(config, urls.postgres_url, folder / "key")
        engine, client = make_engine(urls.postgres_url, "bench"), connect(config)
        job, small_key = _catalog(Store(engine, Catalog(client, PREFIX)), [f"cpu{number}" for number in range(GPUS)])
        engine.dispose()
        begin = time.monotonic()
        backfill_s = Maker(dsn_of(urls), rows, time.time() - 60, job).make()
        # The catalog's own events.
        client.delete(f"{PREFIX}ev")
        client.close()
    made = {"rows": rows, "job": job, "key": small_key, "backfill_s": backfill_s, "made_s": time.monotonic() - begin}
    progress(f"{rows} invocations were made in {made['made_s']:.0f} s")
    (folder / MADE).write_text(json.dumps(made))
    return made


def run(rows: int, times: int, folder: Path) -> tuple[dict[str, float], dict[str, float]]:
    """
    Figures, and bytes per invocation by table (indices included). A folder that was filled before is measured as it is.
    """
    made = json.loads((folder / MADE).read_text()) if (folder / MADE).exists() else _make(rows, folder)
    rows, job, key = made["rows"], made["job"], (folder / "key").read_text().strip()
    # The servers are durable from here on, as in operation.
    with servers(folder, durable=True) as urls:
        config, dsn = config_of(urls), dsn_of(urls)
        with psycopg.connect(dsn) as connection:
            size = retention.measure(connection)
            tables = {
                name: total / rows
                for name, total in connection.execute(
                    "SELECT relname, pg_total_relation_size(oid) FROM pg_class"
                    " WHERE relkind = 'r' AND relnamespace = 'public'::regnamespace ORDER BY 2 DESC LIMIT 9"
                ).fetchall()
            }
            ids = [row[0] for row in connection.execute(*_some("default", rows)).fetchall()]
            small = [row[0] for row in connection.execute(*_some("small", rows)).fetchall()]
        with gateway(folder, urls) as url:
            asker = Asker(url, {"default": key, "small": made["key"]}, times)
            asker.ready()
            figures = _routes(asker, ids, small, job)
            asker.close()
        figures["worst_p95_ms"] = max(value for name, value in figures.items() if name.endswith("_p95_ms"))
        figures |= _recorder(config, 30_000) | _retention(dsn, rows)
    figures |= {
        "rows": rows,
        "bytes_per_invocation": size.file_bytes / rows,
        "measured_share_of_files": size.bytes / size.file_bytes,
        "made_s": made["made_s"],
        "backfill_s": made["backfill_s"],
    }
    return figures, tables


def _some(project: str, rows: int) -> tuple[str, tuple[str, float]]:
    """The query for a few thousand ids of a project from all days, and its parameters."""
    share = min(100.0, 100.0 * 40_000 / rows) if project == "default" else 100.0
    return (
        (
            f"SELECT id FROM invocations TABLESAMPLE BERNOULLI ({share}) REPEATABLE (1) "  # noqa: S608
            "WHERE project = %s AND %s >= 0 LIMIT 4000"
        ),
        (project, share),
    )


def config_of(urls: ServerUrls) -> Settings:
    return Settings(
        redis=RedisSettings(url=urls.redis_url, prefix=PREFIX), postgres=PostgresSettings(url=urls.postgres_url)
    )


def dsn_of(urls: ServerUrls) -> str:
    return urls.postgres_url.replace("postgresql+psycopg://", "postgresql://", 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="end with one line of JSON")
    parser.add_argument("--rows", type=int, default=10_000_000, help="invocations")
    parser.add_argument("--times", type=int, default=200, help="answers of each route")
    parser.add_argument("--home", type=Path, help="a folder to keep; one that was filled before is measured as it is")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="smore-history-") as folder:
        figures, tables = run(options.rows, options.times, options.home or Path(folder))
    extra = {"table_bytes": {name: round(value, 1) for name, value in tables.items()}}
    if options.json:
        emit("lab.bench.history", figures, **extra)
    else:
        print(json.dumps(figures | extra, indent=1))
    sys.exit(1 if figures["worst_p95_ms"] > 50 else 0)


if __name__ == "__main__":
    main()
