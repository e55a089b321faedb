"""
How fast series are read, what they take on disk, and what they cost the recorder.

``python -m lab.bench.series --json`` makes, in a Postgres and a Redis of its own in a temporary home, a day of seconds of 100 GPU
instances, a day of minutes of 200 functions on two of them each, a week of hours, and a day of 50 trainings with a week of closed
windows. It makes the GPU instances' minutes and the trainings' hours as the hourly task does. Then it starts the gateway and asks
for each series over HTTP, one after another.

Figures:

* ``gpus_hour_ms``, ``gpu_day_ms``, ``cluster_day_ms`` (all GPU instances), ``function_day_ms``, ``job_day_ms``, ``harvest_week_ms``:
  the median of 20 answers, each for other names.
* ``days_bytes_ratio``: 14 days of GPU instances, as two days of seconds and 14 of minutes over 14 of seconds.
* ``fill_s``: making the minutes of the day and the hours of the week.
* ``record_ratio``: CPU of recorder and Postgres for 100,000 events over that of the revision ``--before``; left out without one.
  The median of nine ratios of two runs that follow each other, each time the other one first, because other work adds to both.
  ``record_ratio_low`` and ``_high``: the second least and the second largest, between which the median lies in 96 of a hundred
  times. The bar is kept where ``_high`` is below it and missed where ``_low`` is above it; else nothing is decided.
  ``record_cpu_s``: the least that a run took.
* ``quantile_error``: the largest relative error of p50, p95 and p99 over REST, of 9,000 times of three distributions.

Ends with status 1 where one of :data:`BARS` is not kept.
"""

# ruff: noqa: S608 - every SQL text is put together from numbers of this module

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
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import httpx
import psycopg

from lab.bench.history import PREFIX, config_of, dsn_of, gateway
from lab.bench.report import ROOT, emit, progress
from lab.bench.servers import servers
from lab.bench.upgrade import check_out
from migrations.__main__ import prepare
from smore.domain.function import FunctionSpec
from smore.domain.job import Action, JobRequest
from smore.messages import stream
from smore.postgres.catalog import Store
from smore.postgres.connection import make_engine
from smore.postgres.driver import driver
from smore.postgres.history.minutes import fill
from smore.postgres.history.recorder import Recorder
from smore.postgres.jobs import JobChange
from smore.process.settings import Settings
from smore.redis.catalog import Catalog
from smore.redis.connection import connect

GPUS: Final = 100
FUNCTIONS: Final = 200
JOBS: Final = 50
TIMES: Final = 20
#: Pairs of runs in which the cost of recording is compared.
RECORD_TURNS: Final = 9
BARS: Final = {
    "gpus_hour_ms": 150,
    "gpu_day_ms": 60,
    "cluster_day_ms": 400,
    "function_day_ms": 150,
    "job_day_ms": 150,
    "harvest_week_ms": 300,
    "days_bytes_ratio": 0.2,
    "record_ratio": 1.05,
    "quantile_error": 0.1,
}

#: In all: ``begin`` and ``end`` of the day, epoch seconds; ``week``: of the week before its end.
_ROWS: Final = {
    "gpu_samples": f"""
        INSERT INTO gpu_samples SELECT 'gpu' || g, to_timestamp(at), 0.5 + 0.4 * sin(at / 600.0 + g), 0.2, 900 + g, 81920, 1, 'sm',
            'NVIDIA H100 80GB HBM3', 'time-slice'
        FROM generate_series(%(begin)s::bigint, %(end)s::bigint - 1) AS at CROSS JOIN generate_series(0, {GPUS - 1}) AS g
    """,
    "counted_minutes": """
        INSERT INTO counted_minutes SELECT to_timestamp(at), (1::bigint << 60) - 1
        FROM generate_series(%(begin)s::bigint, %(end)s::bigint - 60, 60) AS at
    """,
    "arrivals_minute": f"""
        INSERT INTO arrivals_minute SELECT 'default', 'function-' || f, to_timestamp(at), 20
        FROM generate_series(%(begin)s::bigint, %(end)s::bigint - 60, 60) AS at CROSS JOIN generate_series(0, {FUNCTIONS - 1}) AS f
    """,
    "run_starts": f"""
        INSERT INTO run_starts SELECT span, to_timestamp(at), 'default', 'function-' || f, kind, 10
        FROM (VALUES (60), (3600)) AS spans (span) CROSS JOIN LATERAL generate_series(%(begin)s::bigint, %(end)s::bigint - 60, span) AS at
        CROSS JOIN generate_series(0, {FUNCTIONS - 1}) AS f CROSS JOIN (VALUES ('warm'), ('stale')) AS kinds (kind)
        WHERE kind = 'warm' OR (at / 60 + f) %% 10 = 0
    """,
    "function_minutes": f"""
        INSERT INTO function_minutes (minute, project, function, revision, gpu, succeeded, failed, met, ran, cold, rows, total_s, failed_s,
            wait_s, run_s, load_s, worst_s, wholes)
        SELECT to_timestamp(at), 'default', 'function-' || f, 1, 'gpu' || (f + g * 37) %% {GPUS}, 10, 0, 10, 10, 0, 10, 0.3, 0, 0.05, 0.2,
            0, 0.08, ARRAY(SELECT 128 | b FROM generate_series(26, 35) AS b)
        FROM generate_series(%(begin)s::bigint, %(end)s::bigint - 60, 60) AS at CROSS JOIN generate_series(0, {FUNCTIONS - 1}) AS f
        CROSS JOIN generate_series(0, 1) AS g
    """,
    "function_hours": f"""
        INSERT INTO function_hours SELECT to_timestamp(at), 'default', 'function-' || f, 'gpu' || (f + g * 37) %% {GPUS}, 600, 0, 600, 0, 12
        FROM generate_series(%(week)s::bigint / 3600 * 3600, %(end)s::bigint, 3600) AS at
        CROSS JOIN generate_series(0, {FUNCTIONS - 1}) AS f CROSS JOIN generate_series(0, 1) AS g
    """,
    "job_windows": """
        INSERT INTO job_windows SELECT j.id, to_timestamp(at), j.gpus[1], 'default', (at - %(begin)s)::bigint, 60, 0.1, 300, 0.104, 300,
            'NVIDIA H100 80GB HBM3', 'time-slice'
        FROM jobs AS j CROSS JOIN generate_series(%(begin)s::bigint, %(end)s::bigint - 10, 10) AS at
    """,
    "job_minutes": """
        INSERT INTO job_minutes SELECT j.id, to_timestamp(at), 3.5, 40
        FROM jobs AS j CROSS JOIN generate_series(%(begin)s::bigint, %(end)s::bigint - 60, 60) AS at
    """,
    "job_harvest": "INSERT INTO job_harvest SELECT id, gpus[1], 1000, 10000 FROM jobs",
    # A window of a second in half a minute is a thirtieth of the time, as SMORE_WORKER__PROBE_SHARE has it.
    "loss_windows": """
        INSERT INTO loss_windows SELECT j.id, j.gpus[1], to_timestamp(at), to_timestamp(at + 1), 'default', 0.104, 6,
            0.1 + 0.001 * (at %% 5), 6, 0.003, 0.104, 6
        FROM jobs AS j CROSS JOIN generate_series(%(week)s::bigint, %(end)s::bigint - 30, 30) AS at
    """,
    "budget_steps": """
        INSERT INTO budget_steps SELECT (at * 1000) << 20 | row_number() OVER (), j.id, j.gpus[1], to_timestamp(at), 'duty_75', 0.75, 1
        FROM jobs AS j CROSS JOIN generate_series(%(begin)s::bigint, %(end)s::bigint - 300, 300) AS at
    """,
}


def _make(config: Settings, dsn: str, end: int) -> list[str]:
    """Fill the tables; the ids of the trainings."""
    assert config.postgres.url is not None
    engine, client = make_engine(config.postgres.url, "bench"), connect(config)
    store = Store(engine, Catalog(client, PREFIX))
    for number in range(FUNCTIONS):
        revision, _ = store.register(
            "default", f"function-{number}", FunctionSpec(entrypoint="lab.bench.functions:Echo")
        )
        store.activate("default", f"function-{number}", revision, {})
    jobs = []
    for number in range(JOBS):
        gpu = [f"gpu{number}"]
        jobs.append(store.jobs.submit("default", f"training-{number}", JobRequest(argv=["zoo.train"], gpus=gpu)).id)
        store.jobs.move(jobs[-1], Action.START, JobChange(gpus=gpu))
        store.jobs.move(jobs[-1], Action.RUN)
    client.delete(f"{PREFIX}ev")
    client.close()
    engine.dispose()
    day = {"begin": end - 86_400, "end": end, "week": end - 7 * 86_400}
    with psycopg.connect(dsn, autocommit=True, cursor_factory=psycopg.ClientCursor) as connection:
        for table, statement in _ROWS.items():
            begin = time.monotonic()
            connection.execute(statement, day)
            progress(f"{table}: {time.monotonic() - begin:.1f} s")
    return jobs


def _filled(config: Settings, dsn: str) -> dict[str, float]:
    """Make the minutes of the GPU instances; what that took, and what they take."""
    assert config.postgres.url is not None
    engine = make_engine(config.postgres.url, "bench")
    begin = time.monotonic()
    with driver(engine) as connection:
        fill(connection)
    spent = time.monotonic() - begin
    engine.dispose()
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("VACUUM (ANALYZE)")
        connection.execute("CHECKPOINT")
        sizes = "SELECT pg_total_relation_size('gpu_samples')::float8, pg_total_relation_size('gpu_minutes')::float8"
        row = connection.execute(sizes).fetchone()
        assert row is not None
    seconds, minutes = row
    progress(f"a day: {seconds / 2**20:.0f} MiB of seconds, {minutes / 2**20:.1f} MiB of minutes")
    return {
        "fill_s": spent,
        "seconds_day_mib": seconds / 2**20,
        "minutes_day_mib": minutes / 2**20,
        "days_bytes_ratio": (2 * seconds + 14 * minutes) / (14 * seconds),
    }


def _asked(http: httpx.Client, path: Callable[[int], str]) -> float:
    """The median of the answers, milliseconds, after three that are not counted."""
    spent = []
    for number in range(TIMES + 3):
        begin = time.perf_counter()
        answer = http.get(path(number))
        seconds = time.perf_counter() - begin
        if answer.status_code != 200:
            raise RuntimeError(f"{path(number)}: {answer.status_code} {answer.text[:300]}")
        if number >= 3:
            spent.append(seconds)
    progress(
        f"{path(0).partition('?')[0]:40} {statistics.median(spent) * 1e3:8.1f} ms   {len(answer.content) / 1e3:.0f} kB"
    )
    return statistics.median(spent) * 1e3


def _read(http: httpx.Client, jobs: list[str], end: int) -> dict[str, float]:
    def window(seconds: int) -> str:
        since, until = (datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ") for at in (end - seconds, end))
        return f"since={since}&until={until}"

    hour, day, week = window(3600), window(86_400), window(7 * 86_400)
    return {
        "gpus_hour_ms": _asked(http, lambda _: f"/v1/gpus:series?{hour}"),
        "gpu_day_ms": _asked(http, lambda n: f"/v1/gpus:series?{day}&gpu=gpu{n}"),
        "cluster_day_ms": _asked(http, lambda _: f"/v1/gpus:series?{day}"),
        "function_day_ms": _asked(http, lambda n: f"/v1/functions/function-{n}/series?{day}"),
        "job_day_ms": _asked(http, lambda n: f"/v1/jobs/{jobs[n]}/series?{day}"),
        "harvest_week_ms": _asked(http, lambda n: f"/v1/harvest?{week}&by={('project', 'function', 'gpu')[n % 3]}"),
    }


def _quantile_error(http: httpx.Client, config: Settings) -> float:
    """The largest relative error over REST against the sorted times, three minutes ago."""
    assert config.postgres.url is not None
    client, engine = connect(config), make_engine(config.postgres.url, "bench")
    draw, at, worst = random.Random(0), (time.time() // 60 - 3) * 60 + 30, 0.0
    kinds: dict[str, Callable[[], float]] = {
        "lognormal": lambda: 0.02 * math.exp(draw.gauss(0, 1)),
        "two-kinds": lambda: draw.uniform(0.004, 0.006) if draw.random() < 0.9 else draw.uniform(1, 3),
        "exponential": lambda: 0.0005 + draw.expovariate(1 / 0.3),
    }
    times: dict[str, list[float]] = {}
    for kind, one in kinds.items():
        times[kind] = [round(one(), 6) for _ in range(3000)]
        Store(engine, Catalog(client, PREFIX)).register(
            "default", kind, FunctionSpec(entrypoint="lab.bench.functions:Echo")
        )
        pipe = client.pipeline(transaction=False)
        for number, whole in enumerate(times[kind]):
            end, arrival = int(at * 1e6), int((at - whole) * 1e6)
            ended = stream.Settled(
                1,
                f"default/{kind}",
                1,
                f"{kind}-{number}",
                1,
                1,
                "succeeded",
                "ok",
                "gpu0",
                arrival,
                end,
                arrival,
                arrival,
                end,
                1,
                "k",
                "",
                1,
                "",
            )
            pipe.xadd(f"{PREFIX}ev", {"e": stream.encode(ended)})
        pipe.execute()
    recorder = Recorder(engine, client, PREFIX)
    while recorder.drain(5000):
        pass
    since = (datetime.fromtimestamp(at, UTC) - timedelta(seconds=30)).isoformat().replace("+00:00", "Z")
    for kind, wholes in times.items():
        found = http.get(f"/v1/functions/{kind}/series?since={since}&step=60").json()
        for name, share in (("p50", 0.5), ("p95", 0.95), ("p99", 0.99)):
            true = sorted(wholes)[math.ceil(share * len(wholes)) - 1]
            worst = max(worst, abs(found[name][0] / true - 1))
    client.close()
    engine.dispose()
    return worst


def _record(before: str | None) -> dict[str, float]:
    """Runs of lab/bench/series_record.py, of this revision and of the one before by turns."""
    with tempfile.TemporaryDirectory(prefix="smore-before-") as older:
        trees = {"now": ROOT}
        if before is not None:
            check_out(before, Path(older))
            trees["before"] = Path(older)
        spent: dict[str, list[float]] = {name: [] for name in trees}
        for turn in range(RECORD_TURNS if before is not None else 1):
            for name, tree in sorted(trees.items(), reverse=turn % 2 == 1):
                with tempfile.TemporaryDirectory(prefix="smore-record-") as home, servers(Path(home)) as urls:
                    script = str(ROOT / "lab" / "bench" / "series_record.py")
                    command = [sys.executable, script, urls.redis_url, urls.postgres_url]
                    env = os.environ | {"PYTHONPATH": f"{tree}:{tree / 'client'}"}
                    done = subprocess.run(command, cwd=tree, env=env, capture_output=True, text=True, check=True)
                spent[name].append(float(done.stdout.splitlines()[-1]))
                progress(f"record, {name}: {spent[name][-1]:.2f} s of CPU")
    figures = {"record_cpu_s": min(spent["now"])}
    if before is not None:
        ratios = sorted(now / then for now, then in zip(spent["now"], spent["before"], strict=True))
        figures |= {
            "record_ratio": statistics.median(ratios),
            "record_ratio_low": ratios[1],
            "record_ratio_high": ratios[-2],
        }
    return figures


def run(folder: Path) -> dict[str, float]:
    """All figures but those of recording."""
    end = int(time.time() // 60 - 5) * 60
    with servers(folder, durable=True) as urls:
        config, dsn = config_of(urls), dsn_of(urls)
        prepare(config, urls.postgres_url, folder / "key")
        jobs = _make(config, dsn, end)
        figures = _filled(config, dsn)
        headers = {"Authorization": f"Bearer {(folder / 'key').read_text().strip()}"}
        with gateway(folder, urls) as url, httpx.Client(base_url=url, headers=headers, timeout=60) as http:
            _until_ready(http)
            figures |= _read(http, jobs, end)
            figures["quantile_error"] = _quantile_error(http, config)
    return figures


def _until_ready(http: httpx.Client) -> None:
    until = time.monotonic() + 60
    while True:
        try:
            if http.get("/v1/functions").status_code == 200:
                return
        except httpx.HTTPError:
            pass
        if time.monotonic() > until:
            raise RuntimeError("the gateway does not answer")
        time.sleep(0.1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="end with one line of JSON")
    parser.add_argument("--before", metavar="REVISION", help="the revision that recording is compared with")
    parser.add_argument("--record-only", action="store_true", help="only what recording costs")
    options = parser.parse_args()
    figures: dict[str, Any] = {}
    if not options.record_only:
        with tempfile.TemporaryDirectory(prefix="smore-series-") as folder:
            figures |= run(Path(folder))
    figures |= _record(options.before)
    if options.json:
        emit("lab.bench.series", figures)
    else:
        print(json.dumps(figures, indent=1))
    sys.exit(1 if any(figures[name] > bar for name, bar in BARS.items() if name in figures) else 0)


if __name__ == "__main__":
    main()
