"""
Records a stream and prints the seconds of CPU that this took, of the recorder and of Postgres:
``python lab/bench/series_record.py REDIS POSTGRES``. It runs in a checkout of an older revision too (lab/bench/series.py).
"""

import gc
import json
import sys
import time
from typing import Final

import psutil
from sqlalchemy import text

from migrations.__main__ import prepare
from smore.domain.ids import new_id
from smore.messages import stream
from smore.messages.reports import JobReport, Report, encode_report
from smore.postgres.connection import make_engine
from smore.postgres.history.recorder import Recorder
from smore.process.settings import PostgresSettings, RedisSettings, Settings
from smore.redis.connection import connect

EVENTS: Final = 100_000
GPUS: Final = 100
PREFIX: Final = "smore:"


def report(gpu: int, at: float) -> stream.Event:
    """A heartbeat of a GPU instance with a training."""
    job = JobReport(
        id=f"j{gpu % 50}", project="default", state="running", pid=1, memory_mib=1.0, iterations=int(at) % 10**6
    )
    told = Report(
        gpu=f"gpu{gpu}",
        boot="b",
        at=at,
        kind="cuda",
        device="a device",
        sharing_mode="time-slice",
        slots=8,
        memory_total_mib=81920.0,
        memory_used_mib=1000.0,
        utilisation=0.7,
        utilisation_counter="sm",
        function_utilisation=0.2,
        running=1,
        jobs=[job],
    )
    return stream.Reported(1, told.gpu, int(at * 1e6), encode_report(told).decode())


def invocation(number: int, at: float) -> list[stream.Event]:
    id_, function, gpu, now = new_id(), f"default/function-{number % 200:03d}", f"gpu{number % GPUS}", int(at * 1e6)
    decision = json.dumps(
        {"v": 1, "policy": "smore-product", "candidates": [{"gpu": gpu, "warm": True, "run_s": 0.02}]}
    )
    meta = json.dumps({"run_ms": 20.0, "batch": 1, "rows": 1, "co": [], "jobs": [f"j{number % 50}"], "device": "d"})
    ran = 10_000 + number * 7919 % 90_000
    ended = stream.Settled(
        1,
        function,
        1,
        id_,
        1,
        1,
        "succeeded",
        "ok",
        gpu,
        now,
        now + 250_000,
        now + 1000,
        now + 2000,
        now + ran,
        1,
        "k",
        "",
        200,
        meta,
    )
    dispatched = stream.Dispatched(1, function, gpu, now + 1000, [(id_, 1)], decision)
    return [stream.Arrived(1, function, 1, id_, now, now + 250_000, 1, "", "k", ""), dispatched, ended]


def cpu_s(postmaster: psutil.Process) -> float:
    """Of Postgres with all its processes, those that have ended too, and of this one."""
    times = [process.cpu_times() for process in (postmaster, *postmaster.children(), psutil.Process())]
    return sum(each.user + each.system for each in times) + times[0].children_user + times[0].children_system


def main(redis_url: str, postgres_url: str) -> float:
    """The seconds of CPU: of a hundred GPU instances that report twice a second, and invocations, 30 to 70."""
    config = Settings(redis=RedisSettings(url=redis_url, prefix=PREFIX), postgres=PostgresSettings(url=postgres_url))
    prepare(config, postgres_url, None)
    client, engine = connect(config), make_engine(postgres_url, "bench")
    with engine.connect() as connection:
        postmaster = psutil.Process(connection.execute(text("SELECT pg_backend_pid()")).scalar_one()).parent()
    assert postmaster is not None
    client.delete(f"{PREFIX}ev")
    begin, sent, second = time.time() - 600, 0, 0
    while sent < EVENTS:
        at = begin + second / 2
        events = [report(gpu, at) for gpu in range(GPUS)]
        for number in range(GPUS * 70 // 30 // 3):
            events += invocation(second * GPUS + number, at)
        pipe = client.pipeline(transaction=False)
        for event in events:
            pipe.xadd(f"{PREFIX}ev", {"e": stream.encode(event)})
        pipe.execute()
        sent, second = sent + len(events), second + 1
    # What this process has made so far is none of the recorder's: no collection looks at it.
    gc.collect()
    gc.freeze()
    recorder, before = Recorder(engine, client, PREFIX), cpu_s(postmaster)
    while recorder.drain(5000):
        pass
    engine.dispose()
    client.close()
    time.sleep(0.2)
    return cpu_s(postmaster) - before


if __name__ == "__main__":
    print(main(*sys.argv[1:]))
