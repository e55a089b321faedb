"""
The dashboard in Chromium: ``python -m lab.bench.dashboard --json [--pages why|trainings|functions] [--shots DIR]``.

A throw-away platform with one CPU partition, 99 GPU instances that only report (a thread of this process sends what a
worker sends; nothing is placed there), 200 functions, 50 trainings and a day of minutes. Chromium, the platform and this
process share the cores.

============================ ===================================================================================================
figure                       meaning (medians; bars in brackets)
============================ ===================================================================================================
first_paint_ms               first contentful paint of ``/ui/`` in a browser that has never seen it (1000)
complete_ms                  until everything that the page asked for stands there (1500)
page_kb                      bytes on the wire of that visit with the first rows of the live stream, in 1000 bytes (150)
redraw_ms                    script time of a drawing after a change (50); ``redraw_worst_ms`` the longest
live_delay_ms                from the report of a GPU instance until the page shows it (1500)
gateway_core_share           CPU time of the gateway for ten viewers of all topics, as a part of one core (0.01)
echo_p50_ratio               p50 of an invocation of echo with these viewers, over that without (1.05)
axe_violations               found by axe on all pages, at two widths in two colours (0)
console_errors               errors and warnings of the console there (0); ``overflow_px`` the most that a page is too wide (0)
``--pages why``
actions_done                 of the 14 actions of people, those that were done by the page, hold, and are in the audit (14)
why_ms                       from the click on an invocation to the table of candidates (400)
queues_ms                    until the queues stand there while 1,000 invocations wait (500)
``--pages trainings``        of 50 trainings with two gangs, three pairs and 200 attempts (lab/bench/dashboard_trainings.py)
plan_ms                      until the plan with them stands there (500)
gantt_nodes                  elements of its drawing (2000)
plan_agrees                  1 where its bars are what the queue and the attempts say, to a minute (1)
``--pages functions``        of 200 functions with a day of minutes (lab/bench/dashboard_functions.py)
functions_ms                 until the list stands there (500); ``function_ms`` one function over 24 h (700)
try_calls                    calls of a JSON value, of a tensor and of its bytes by the page that had a result (3)
usage_agrees                 1 where page, command, REST and the statements of a project's trainings agree to a second (1)
dry_runs_per_s               the most dry runs that the page asks for in a second while somebody types (2)
============================ ===================================================================================================

``--shots`` alone: the pictures of README and guide (lab/bench/dashboard_guide.py); with ``--pages``: of each page at both
widths and in both colours.
"""

import argparse
import os
import random
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import httpx
import psutil
import psycopg
from sqlalchemy import Engine

from lab.bench import browser as driver
from lab.bench import dashboard_functions, dashboard_guide, dashboard_trainings
from lab.bench.dashboard_actions import ACTIONS, SILENT, STRANGE, Asked
from lab.bench.ports import free_port
from lab.bench.report import emit, end_on_sigterm, progress
from lab.bench.servers import pid_of
from lab.bench.uploads import eventually
from smore.domain.function import FunctionSpec
from smore.domain.job import Action, JobRequest
from smore.local import machine
from smore.messages.reports import JobReport, Report, UnregisteredProcess, WarmInstance, WarmState, encode_report
from smore.postgres.catalog import Store
from smore.postgres.connection import make_engine
from smore.postgres.jobs import JobChange, JobStore
from smore.process.settings import Settings
from smore.redis.catalog import Catalog
from smore.redis.connection import connect
from smore.redis.queue import Queue
from smore_client import Client

PREFIX: Final = "smore:"
GPUS: Final = 99
FUNCTIONS: Final = 200
TRAININGS: Final = 50
WAITING: Final = 1000
VIEWERS: Final = 10
TIMES: Final = 5
BEAT_S: Final = 1.0
#: Seconds over which CPU time is counted, and calls of echo in a round.
COUNTED_S: Final = 15.0
CALLS: Final = 200
ROUNDS: Final = 3
TOPICS: Final = "gpus,queues,trainings,problems"
_DAY: Final = """
INSERT INTO gpu_minutes (gpu, minute, samples, utilisation, function_utilisation, memory_used_mib, memory_total_mib, device,
    sharing_mode, last_at)
SELECT gpu, minute, 60, 60 * (0.5 + 0.3 * random()), 60 * 0.15 * random(), 40000 + round(20000 * random()), 81920, 'NVIDIA H100 80GB HBM3',
    'time-slice', minute + interval '59 seconds'
FROM unnest(%s::text[]) AS gpu, generate_series(date_trunc('minute', now()) - interval '1 day', now(), interval '1 minute') AS minute
"""


class Fleet:
    """GPU instances that report and do nothing else. ``jobs``: the trainings on each of them."""

    def __init__(self, queue: Queue, names: Sequence[str], jobs: Mapping[str, Sequence[str]]) -> None:
        self._queue, self._names, self._jobs = queue, names, jobs
        self._random = random.Random(1)
        #: Utilisations that stay, by the number of the GPU instance.
        self.fixed: dict[int, float] = {}
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> "Fleet":
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._over.is_set():
            began = time.monotonic()
            for number in range(len(self._names)):
                self.report(number)
            self._over.wait(max(0.0, BEAT_S - (time.monotonic() - began)))

    def report(self, number: int) -> None:
        drawn, name = self._random, self._names[number]
        low = drawn.uniform(0, 0.03)
        jobs = [
            JobReport(
                id=job,
                project="default",
                state="running",
                pid=1000 + number,
                memory_mib=30_000,
                iterations=int(time.time()),
                budget=0.05,
                loss=low + 0.005,
                loss_low=low,
                loss_high=low + 0.012,
                loss_windows=20,
                attempt=1,
            )
            for job in self._jobs.get(name, ())
        ]
        warm = [
            WarmInstance(
                function=f"default/function-{(7 * number + k) % FUNCTIONS:03d}",
                revision=1,
                state=WarmState.IDLE,
                memory_mib=900,
                pid=9000 + k,
            )
            for k in range(number % 5)
        ]
        strangers = [UnregisteredProcess(pid=4711, start=1, memory_mib=900, name="python")] if name == STRANGE else []
        report = Report(
            gpu=name,
            boot="bench",
            at=time.time(),
            kind="gpu",
            device="NVIDIA H100 80GB HBM3",
            sharing_mode="time-slice",
            slots=0,
            memory_total_mib=81_920,
            memory_used_mib=50_000,
            utilisation=self.fixed.get(number, drawn.uniform(0.4, 0.9)),
            utilisation_counter="sm_active",
            function_utilisation=0.0 if number in self.fixed else drawn.uniform(0, 0.2),
            running=0,
            warm=warm,
            jobs=jobs,
            strangers=strangers,
            node=f"host{number // 8}",
        )
        self._queue.report(name, encode_report(report), ttl_s=4 * BEAT_S, lease_s=10, cursor="", running=[])


@dataclass(frozen=True, kw_only=True)
class Scene:
    """A platform with something to look at."""

    home: Path
    url: str
    key: str
    client: Client
    queue: Queue
    names: Sequence[str]
    fleet: Fleet


#: Makes trainings on GPU instances of these names; returns which run on each.
Trainings = Callable[[Engine, "psycopg.Connection[Any]", Sequence[str]], Mapping[str, Sequence[str]]]


def no_training(_engine: Engine, _connection: object, _names: Sequence[str]) -> Mapping[str, Sequence[str]]:
    return {}


def one_each(engine: Engine, _connection: object, names: Sequence[str]) -> Mapping[str, Sequence[str]]:
    """A training on each of the first GPU instances."""
    store, jobs = JobStore(engine), {}
    for number, gpu in enumerate(names[:TRAININGS]):
        job = store.submit("default", f"training-{number}", JobRequest(argv=["zoo.train"], gpus=[gpu]))
        store.move(job.id, Action.START, JobChange(gpus=[gpu]))
        store.move(job.id, Action.RUN)
        jobs[gpu] = [job.id]
    return jobs


@contextmanager
def scene(home: Path, gpus: int, functions: int, trainings: Trainings) -> Iterator[Scene]:
    """``gpus``: how many report beside the one CPU partition; ``trainings`` makes those that run on them."""
    os.environ["SMORE_API__PORT"] = str(free_port())
    end = machine.up(home, config=Settings(), partitions=1)
    try:
        engine = make_engine(end.postgres_url, "bench")
        config = Settings.model_validate({"redis": {"url": end.redis_url}})
        client = connect(config)
        store = Store(engine, Catalog(client, PREFIX))
        names = [STRANGE, *(f"GPU-{number:08x}" for number in range(1, gpus))]
        for number in range(functions):
            name = f"function-{number:03d}"
            revision, _ = store.register("default", name, FunctionSpec(entrypoint="zoo.echo:Function"))
            store.activate("default", name, revision, {})
        with psycopg.connect(end.postgres_url.replace("+psycopg", ""), autocommit=True) as connection:
            connection.execute(_DAY, (names,))
            # A leader that finds trainings ended by others fails, and that is told for a while.
            leader = psutil.Process(eventually(partial(pid_of, home, "control"), 30, "control"))
            leader.suspend()
            try:
                jobs = trainings(engine, connection, names)
            finally:
                leader.resume()
        engine.dispose()
        key, queue = (home / "key").read_text().strip(), Queue(client, PREFIX, config.queue)
        with Client(end.gateway_url, key) as caller, Fleet(queue, names, jobs) as fleet:
            document = {"metadata": {"name": "echo"}, "spec": {"entrypoint": "zoo.echo:Function"}}
            caller.deploy({"apiVersion": "smore/v1", "kind": "Function", **document})
            yield Scene(home=home, url=end.gateway_url, key=key, client=caller, queue=queue, names=names, fleet=fleet)
    finally:
        machine.down(home)


# ---- the cluster -----------------------------------------------------------------------------------------------------


def first_visits(chromium: Any, state: Any, on: Scene) -> dict[str, float]:
    paints, completes, sizes, draws = [], [], [], []
    for _ in range(TIMES):
        with driver.viewed(chromium, state) as seen:
            received: list[float] = []
            protocol = seen.page.context.new_cdp_session(seen.page)
            protocol.send("Network.enable")
            protocol.on("Network.loadingFinished", lambda event, of=received: of.append(event["encodedDataLength"]))
            seen.go(f"{on.url}/ui/")
            base = seen.page.evaluate("new URL('.', document.querySelector('link[rel=stylesheet]').href).pathname")
            sizes.append(sum(received) + worker_bytes(on, base))
            paints.append(
                seen.page.evaluate("performance.getEntriesByName('first-contentful-paint')[0]?.startTime ?? 0")
            )
            completes.append(seen.figures()["complete"])
            seen.page.wait_for_timeout(3000)
            draws += seen.page.evaluate("window.smore.draws.slice(-3)")
    return {
        "first_paint_ms": statistics.median(paints),
        "complete_ms": statistics.median(completes),
        "page_kb": statistics.median(sizes) / 1000,
        "redraw_ms": statistics.median(draws),
        "redraw_worst_ms": max(draws),
    }


def worker_bytes(on: Scene, base: str) -> int:
    """What the shared worker loads, which the page's own traffic does not have: its modules and the first rows."""
    read = 0
    with httpx.Client(base_url=on.url, headers={"X-API-Key": on.key, "Accept-Encoding": "gzip"}, timeout=10) as http:
        for name in ("live-worker.js", "hub.js"):
            with http.stream("GET", f"{base}core/{name}") as answer:
                read += sum(len(piece) for piece in answer.iter_raw())
        begun: set[str] = set()
        with http.stream("GET", "/v1/live", params={"topics": TOPICS}) as answer:
            for line in answer.iter_lines():
                begun |= {topic for topic in TOPICS.split(",") if f'"topic":"{topic}"' in line[:40]}
                if len(begun) == len(TOPICS.split(",")):
                    break
            read += answer.num_bytes_downloaded
    return read


def live_delay_ms(chromium: Any, state: Any, on: Scene) -> float:
    """A utilisation that no other report has, until the page shows it."""
    delays = []
    with driver.viewed(chromium, state) as seen:
        seen.go(f"{on.url}/ui/gpus/{on.names[-1]}")
        for percent in range(1, 1 + TIMES):
            began = time.perf_counter()
            on.fleet.fixed[len(on.names) - 1] = percent / 1000
            on.fleet.report(len(on.names) - 1)
            seen.page.locator(".figure b", has_text=f"0.{percent} %").first.wait_for(timeout=10_000)
            delays.append((time.perf_counter() - began) * 1e3)
    return statistics.median(delays)


@contextmanager
def viewers(on: Scene, count: int = VIEWERS) -> Iterator[None]:
    """So many clients that read the live stream as pages do, without a browser's cost."""
    over = threading.Event()

    def read() -> None:
        with (
            suppress(httpx.HTTPError),
            httpx.Client(headers={"X-API-Key": on.key}, timeout=30) as http,
            http.stream("GET", f"{on.url}/v1/live", params={"topics": TOPICS}) as answer,
        ):
            for _ in answer.iter_raw():
                if over.is_set():
                    return

    threads = [threading.Thread(target=read) for _ in range(count)]
    for thread in threads:
        thread.start()
    time.sleep(2)
    try:
        yield
    finally:
        over.set()
        for thread in threads:
            thread.join()


def of_viewers(on: Scene) -> dict[str, float]:
    gateway = psutil.Process(pid_of(on.home, "gateway"))

    def share() -> float:
        began, used = time.monotonic(), sum(gateway.cpu_times()[:2])
        time.sleep(COUNTED_S)
        return (sum(gateway.cpu_times()[:2]) - used) / (time.monotonic() - began)

    def p50() -> float:
        return statistics.median(timed(partial(on.client.invoke, "echo", {"x": 1})) for _ in range(CALLS))

    shares, ratios = [], []
    for _ in range(ROUNDS):
        alone, echo = share(), p50()
        with viewers(on):
            shares.append(share() - alone)
            ratios.append(p50() / echo)
    return {"gateway_core_share": statistics.median(shares), "echo_p50_ratio": statistics.median(ratios)}


def timed(action: Callable[[], object]) -> float:
    began = time.perf_counter()
    action()
    return time.perf_counter() - began


# ---- all pages -------------------------------------------------------------------------------------------------------


def addresses(on: Scene) -> dict[str, str]:
    """Every page by the name of its picture."""
    invocation = on.client.invoke("echo", {"x": 1}).id
    return {
        "cluster": "/ui/",
        "tiles": "/ui/?form=tiles",
        "gpu": f"/ui/gpus/{on.names[1]}",
        "queues": "/ui/queues",
        "trainings": "/ui/trainings",
        "functions": "/ui/functions",
        "invocations": "/ui/invocations",
        "invocation": f"/ui/invocations/{invocation}",
        "audit": "/ui/audit",
    }


def looked_at(
    chromium: Any, state: Any, on: Scene, shots: Path | None, of: Callable[[Scene], dict[str, str]] = addresses
) -> dict[str, float]:
    violations, errors, overflow = [], [], 0
    for width in driver.WIDTHS:
        for scheme in driver.SCHEMES:
            with driver.viewed(chromium, state, width, scheme) as seen:
                for name, address in of(on).items():
                    seen.go(on.url + address)
                    overflow = max(overflow, seen.overflow_px())
                    violations += [f"{name} {width} {scheme}: {each}" for each in seen.violations()]
                    if shots is not None:
                        seen.page.screenshot(path=shots / f"{name}-{width}-{scheme}.png", full_page=True)
                errors += seen.errors
    for each in (*violations, *errors):
        progress(each)
    return {"axe_violations": len(violations), "console_errors": len(errors), "overflow_px": overflow}


# ---- why -------------------------------------------------------------------------------------------------------------


def whys(chromium: Any, state: Any, on: Scene) -> dict[str, float]:
    on.client.invoke("echo", {"x": 1})
    clicks = []
    with driver.viewed(chromium, state) as seen:
        seen.page.goto(f"{on.url}/ui/invocations?function=echo&state=succeeded")
        for _ in range(TIMES):
            seen.settle()
            first = seen.page.get_by_role("row").locator("a[href*='/ui/invocations/']").first
            first.wait_for()
            began = time.perf_counter()
            first.click()
            seen.page.get_by_role("columnheader", name="starts in").wait_for()
            clicks.append((time.perf_counter() - began) * 1e3)
            seen.page.go_back()
    on.client.pause("echo")
    on.client.submit_all("echo", [{"x": 1}] * WAITING, deadline_ms=600_000)
    queues = []
    for _ in range(TIMES):
        with driver.viewed(chromium, state) as seen:
            seen.go(f"{on.url}/ui/queues")
            queues.append(seen.figures()["complete"])
    return {"why_ms": statistics.median(clicks), "queues_ms": statistics.median(queues)}


def acted(chromium: Any, state: Any, on: Scene) -> dict[str, float]:
    """Every action by the page; what it did is read by REST, and the audit has it with the session."""
    done = 0
    on.queue.report(SILENT, encode_report(_once(SILENT)), ttl_s=1, lease_s=1, cursor="", running=[])
    with (
        driver.viewed(chromium, state) as seen,
        httpx.Client(base_url=on.url, headers={"X-API-Key": on.key}, timeout=30) as http,
    ):
        asked = Asked(seen=seen, url=on.url, http=http, client=on.client)
        for name, action in ACTIONS.items():
            try:
                action(asked)
                done += 1
            except Exception as error:  # noqa: BLE001
                progress(f"{name}: {error}")
    return {"actions_done": done}


def _once(name: str) -> Report:
    return Report(
        gpu=name,
        boot="bench",
        at=time.time(),
        kind="gpu",
        device="gone",
        sharing_mode="time-slice",
        slots=0,
        memory_total_mib=1,
        memory_used_mib=0,
        utilisation=0.0,
        utilisation_counter="none",
        function_utilisation=0.0,
        running=0,
    )


# ---- trainings and the plan ------------------------------------------------------------------------------------------


def of_trainings(_on: Scene) -> dict[str, str]:
    return {
        "trainings": "/ui/trainings",
        "training": "/ui/trainings/host-0",
        "waiting": "/ui/trainings/big-0",
        "plan": "/ui/plan?since=24h",
        "plan-by-training": "/ui/plan?by=trainings",
    }


def planned(chromium: Any, state: Any, on: Scene) -> dict[str, float]:
    waits, nodes, agree = [], 0, True
    with httpx.Client(base_url=on.url, headers={"X-API-Key": on.key}, timeout=30) as http:
        for _ in range(TIMES):
            with driver.viewed(chromium, state) as seen:
                seen.go(f"{on.url}/ui/plan?since=7d")
                waits.append(seen.figures()["complete"])
                nodes = max(nodes, seen.page.evaluate("document.querySelectorAll('.gantt svg, .gantt svg *').length"))
                agree &= dashboard_trainings.agrees(seen.page, http)
    return {"plan_ms": statistics.median(waits), "gantt_nodes": nodes, "plan_agrees": float(agree)}


# ---- functions and the harvest ---------------------------------------------------------------------------------------


def of_functions(_on: Scene) -> dict[str, str]:
    tabs = ("revisions", "try", "warm", "logs", "settings")
    return {
        "functions": "/ui/functions",
        "function": "/ui/functions/function-000",
        "harvest": "/ui/harvest?by=function",
        "predictor": "/ui/predictor",
        "prewarm": "/ui/prewarm",
    } | {f"function-{tab}": f"/ui/functions/echo?tab={tab}" for tab in tabs}


def served(chromium: Any, state: Any, on: Scene) -> dict[str, float]:
    dashboard_functions.deploy(on.client)
    return dashboard_functions.measured(chromium, state, on.url, on.key)


def called_all_day(_engine: Engine, connection: Any, _names: Sequence[str]) -> Mapping[str, Sequence[str]]:
    dashboard_functions.fill(connection, [f"function-{number:03d}" for number in range(FUNCTIONS)])
    return {}


def run(pages: str, shots: Path | None) -> dict[str, float]:
    gpus, functions, trainings = {
        "cluster": (GPUS, FUNCTIONS, one_each),
        "why": (3, 0, no_training),
        "trainings": (dashboard_trainings.GPUS, 0, dashboard_trainings.fill),
        "functions": (3, FUNCTIONS, called_all_day),
        "guide": (dashboard_guide.GPUS, dashboard_guide.FUNCTIONS, dashboard_guide.fill),
    }[pages]
    figures: dict[str, float] = {}
    with (
        tempfile.TemporaryDirectory(prefix="smore-") as folder,
        driver.chromium() as chromium,
        scene(Path(folder), gpus, functions, trainings) as on,
    ):
        state = driver.log_in(chromium, on.url, on.key)
        stages: dict[str, Sequence[Callable[[], dict[str, float]]]] = {
            "cluster": (
                partial(first_visits, chromium, state, on),
                lambda: {"live_delay_ms": live_delay_ms(chromium, state, on)},
                partial(looked_at, chromium, state, on, shots),
                partial(of_viewers, on),
            ),
            "why": (partial(acted, chromium, state, on), partial(whys, chromium, state, on)),
            "trainings": (
                partial(planned, chromium, state, on),
                partial(looked_at, chromium, state, on, shots, of_trainings),
            ),
            "functions": (
                partial(served, chromium, state, on),
                partial(looked_at, chromium, state, on, shots, of_functions),
            ),
            "guide": (lambda: dashboard_guide.pictures(chromium, state, on.url, on.client, on.names, shots or Path()),),
        }
        for stage in stages[pages]:
            figures |= stage()
            progress(str(figures))
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description="The dashboard in Chromium.")
    parser.add_argument("--json", action="store_true", help="end with one line of JSON")
    parser.add_argument("--pages", choices=("cluster", "why", "trainings", "functions"))
    parser.add_argument(
        "--shots", type=Path, help="a folder for pictures; without --pages those of README and guide alone"
    )
    given = parser.parse_args()
    end_on_sigterm()
    if reason := driver.missing():
        parser.error(reason)
    if given.shots is not None:
        given.shots.mkdir(parents=True, exist_ok=True)
    pages = given.pages or ("guide" if given.shots is not None else "cluster")
    emit(f"lab.bench.dashboard --pages {pages}", run(pages, given.shots))


if __name__ == "__main__":
    main()
