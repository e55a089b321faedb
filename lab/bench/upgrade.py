"""
An upgrade while work is in flight: the platform of an older revision ends, this checkout's starts on the same home.

``python -m lab.bench.upgrade --json`` takes the older revision (``--from``, default :data:`OLDER`) out of this repository
into a temporary folder, starts it there with ``smore up``, and gives it a finished and a running training, measured
profiles, finished invocations and 100 that wait behind a paused function. Then it does what an operator does: ``smore
down`` of the older revision, ``smore up`` of this one, resume.

Figures: ``lost`` = invocations of the 100 that did not succeed with their own input as the result; ``doubled`` = ends
beyond one, by the executions in the history; ``training_adopted`` = 1 where the same process trains on and its
iterations go on counting; ``rows_read``, ``profiles_read`` and ``job_records_read`` = what this revision reads of
the ``rows_before`` rows of every table, the ``profiles_before`` profiles and the ``job_records_before`` trainings that
the older one left. Ends with status 1 where one of them is not as it must be.
"""

import argparse
import io
import json
import os
import socket
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import httpx
import msgspec
from sqlalchemy import create_engine, func, inspect, select, table
from sqlalchemy.orm import Session

from lab.bench.report import ROOT, emit, end_on_sigterm, progress
from lab.bench.uploads import eventually
from ml.rows import parse
from smore.local import asking, machine
from smore.postgres.predictors import Profiles
from smore.postgres.rows import Base
from worker import proc

#: The last revision before the packages were rearranged.
OLDER: Final = "a70fa95"
QUEUED: Final = 100
FINISHED: Final = 10
PROFILES: Final = "ml/data/cpu-partition.jsonl"
PATIENCE_S: Final = 180.0
TRAINING: Final = [
    "zoo.train",
    "--model",
    "deepfm",
    "--preset",
    "cpu",
    "--batch",
    "16",
    "--input-wait",
    "0.5",
    "--seconds",
]
#: What a training must be listed with, before and after.
IDENTITY: Final = ("name", "argv", "gpus", "state", "exit_code")
#: The tables that hold no rows of the platform.
_NOT_COUNTED: Final = frozenset({"alembic_version"})


class JobRecord(msgspec.Struct):
    """What identifies a training's process (worker/training/jobs.py: Record). ``start`` in clock ticks since the boot."""

    id: str
    pid: int
    start: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Left:
    """What the older platform left behind."""

    rows: Mapping[str, int]
    profiles: int
    waiting: Mapping[str, int]
    finished: Sequence[str]
    #: As its API listed them.
    jobs: Sequence[Mapping[str, Any]]
    training: JobRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What the newer platform makes of it: by invocation, by table, and as its API lists trainings."""

    outputs: Mapping[str, Any]
    #: Executions that ended, of each invocation.
    ends: Mapping[str, int]
    #: The training goes on in its process.
    adopted: bool
    rows: Mapping[str, int]
    profiles: int
    jobs: Sequence[Mapping[str, Any]]
    finished: Sequence[str]


class Platform:
    """One revision's ``smore`` on a home. ``tree``: the checkout of the revision."""

    def __init__(self, tree: Path, home: Path, port: int) -> None:
        self._tree, self._home = tree, home
        kept = {name: value for name, value in os.environ.items() if not name.startswith("SMORE_")}
        self._environment = kept | {
            "PYTHONPATH": str(tree),
            "SMORE_HOME": str(home),
            "SMORE_API__PORT": str(port),
        }

    def smore(self, *words: str) -> None:
        subprocess.run(
            [sys.executable, "-m", "smore.cli", *words],
            cwd=self._tree,
            env=self._environment,
            stdout=sys.stderr,
            check=True,
        )

    def up(self) -> tuple[httpx.Client, asking.Endpoints]:
        """Start it. Its REST API with the home's key, and where its servers are."""
        self.smore("up")
        end = machine.endpoints(self._home)
        assert end is not None
        key = (self._home / "key").read_text().strip()
        http = httpx.Client(base_url=end.gateway_url, headers={"Authorization": f"Bearer {key}"}, timeout=30)
        ready = f"{end.gateway_url}/readyz"
        try:
            eventually(lambda: httpx.get(ready).status_code == 200, PATIENCE_S, "readiness")
        except TimeoutError as error:
            raise TimeoutError(f"the platform is not ready: {httpx.get(ready).text}") from error
        return http, end


def check_out(revision: str, folder: Path) -> None:
    """The repository's files at a revision, into ``folder``, with its loops compiled as `make install` does."""
    archive = subprocess.run(["git", "archive", revision], cwd=ROOT, capture_output=True, check=True).stdout
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        tar.extractall(folder, filter="data")
    environment = os.environ | {"PYTHONPATH": str(folder)}
    subprocess.run([sys.executable, "-m", "scheduler.policy"], cwd=folder, env=environment, check=True)


def asked(response: httpx.Response) -> Any:
    if not response.is_success:
        raise RuntimeError(f"{response.request.url}: {response.text}")
    return response.json() if response.content else None


def row_counts(url: str) -> dict[str, int]:
    """Rows of every table of a database."""
    engine = create_engine(url)
    with engine.connect() as connection:
        names = sorted(set(inspect(connection).get_table_names()) - _NOT_COUNTED)
        counts = {
            name: connection.execute(select(func.count()).select_from(table(name))).scalar_one() for name in names
        }
    engine.dispose()
    return counts


def prepare(platform: Platform, home: Path) -> Left:
    """The older platform's work, up to the moment at which it is ended."""
    http, end = platform.up()
    with http:
        platform.smore("profiles", "import", str(ROOT / PROFILES))
        function = {
            "apiVersion": "smore/v1",
            "kind": "Function",
            "metadata": {"name": "echo"},
            "spec": {
                "entrypoint": "zoo.echo:Function",
                "slo": {"deadline": "1h"},
                "batching": {"max_size": 32},
                # An echo costs a training nothing: what is upgraded here is no budget.
                "profile": {"run_ms": {1: 1, 32: 1}, "load_ms": 100, "degradation": 0.0},
            },
        }
        asked(http.put("/v1/functions/echo", json=function))
        eventually(lambda: asked(http.get("/v1/functions/echo"))["revision"] > 0, PATIENCE_S, "the canary")
        ended = asked(http.post("/v1/jobs", json={"name": "ended", "argv": [*TRAINING, "1"]}))["id"]
        running = asked(http.post("/v1/jobs", json={"name": "running", "argv": [*TRAINING, "3600"]}))["id"]
        finished = [invoked(http, n) for n in range(FINISHED)]

        def job(id_: str) -> dict[str, Any]:
            shown: dict[str, Any] = asked(http.get(f"/v1/jobs/{id_}"))
            return shown

        eventually(lambda: job(ended)["exit_code"] is not None, PATIENCE_S, "the short training's end")
        eventually(lambda: job(running)["iterations"] > 3, PATIENCE_S, "iterations")
        for id_ in finished:
            eventually(partial(executions, http, id_), PATIENCE_S, "the history")
        asked(http.post("/v1/queues/echo/pause"))
        waiting = {invoked(http, n, {"Prefer": "respond-async"}): n for n in range(QUEUED)}
        states = {asked(http.get(f"/v1/invocations/{id_}"))["state"] for id_ in waiting}
        assert states == {"queued"}, states
        jobs = [job(id_) for id_ in (ended, running)]
        rows = row_counts(end.postgres_url)
    # Its revision may be one that names records by rank, or one that does not.
    (file,) = (home / "run" / "jobs").glob(f"{running}*.json")
    record = msgspec.json.decode(file.read_bytes(), type=JobRecord)
    return Left(
        rows=rows,
        profiles=len((ROOT / PROFILES).read_text().splitlines()),
        waiting=waiting,
        finished=finished,
        jobs=jobs,
        training=record,
    )


def invoked(http: httpx.Client, n: int, headers: Mapping[str, str] | None = None) -> str:
    """
    The id of an accepted invocation of the function. A request that is refused (429) is sent again: on a busy machine a
    heartbeat may be late, and without a GPU instance no deadline is feasible.
    """

    def accepted() -> str:
        answer = http.post("/v1/functions/echo/invocations", json={"input": {"x": n}}, headers=headers)
        return "" if answer.status_code == 429 else str(asked(answer)["id"])

    return eventually(accepted, PATIENCE_S, "an accepted invocation")


def executions(http: httpx.Client, id_: str) -> list[dict[str, Any]]:
    """The executions of an invocation that have ended, by the history."""
    attempts = asked(http.get(f"/v1/invocations/{id_}/executions"))["executions"]
    return [attempt for attempt in attempts if attempt["state"] in ("succeeded", "failed")]


def observe(http: httpx.Client, end: asking.Endpoints, left: Left) -> Seen:
    """What the newer platform makes of it."""
    asked(http.post("/v1/queues/echo/resume"))

    def ended() -> bool:
        states = {asked(http.get(f"/v1/invocations/{id_}"))["state"] for id_ in left.waiting}
        return states.isdisjoint({"queued", "dispatched", "running"})

    eventually(ended, PATIENCE_S, "the end of what waited")
    answers = {id_: http.get(f"/v1/invocations/{id_}/result") for id_ in left.waiting}
    outputs = {id_: answer.json().get("output") for id_, answer in answers.items() if answer.status_code == 200}
    ends = {id_: len(eventually(partial(executions, http, id_), PATIENCE_S, "the history")) for id_ in outputs}
    training = left.training
    before = next(job["iterations"] for job in left.jobs if job["id"] == training.id)

    def goes_on() -> bool:
        job = asked(http.get(f"/v1/jobs/{training.id}"))
        return bool(job["state"] == "running" and job["iterations"] > before)

    try:
        eventually(goes_on, PATIENCE_S, "the next iterations of the training")
        adopted = proc.start_time(training.pid) == training.start
    except TimeoutError as error:
        progress(f"not seen: {error}")
        adopted = False
    engine = create_engine(end.postgres_url)
    with Session(engine) as session:
        rows = {
            str(mapper.local_table): len(session.scalars(select(mapper.class_)).all())
            for mapper in Base.registry.mappers
        }
    profiles = [parse(document) for _, document in Profiles(engine).documents()]
    engine.dispose()
    return Seen(
        outputs=outputs,
        ends=ends,
        adopted=adopted,
        rows=rows,
        profiles=len(profiles),
        jobs=asked(http.get("/v1/jobs"))["jobs"],
        finished=[id_ for id_ in left.finished if executions(http, id_)],
    )


def figures(left: Left, seen: Seen) -> dict[str, float]:
    jobs = {job["id"]: job for job in seen.jobs}
    same = [job for job in left.jobs if all(jobs.get(job["id"], {}).get(name) == job.get(name) for name in IDENTITY)]
    for job in left.jobs:
        if job not in same:
            was, is_now = ({name: of.get(name) for name in IDENTITY} for of in (job, jobs.get(job["id"], {})))
            progress(f"the training {was} is read as {is_now}")
    for name, count in left.rows.items():
        if seen.rows.get(name, 0) < count:
            progress(f"{name}: {seen.rows.get(name, 0)} of {count} rows were read")
    return {
        "lost": sum(id_ not in seen.outputs or seen.outputs[id_] != {"x": n} for id_, n in left.waiting.items()),
        "doubled": sum(count - 1 for count in seen.ends.values()),
        "training_adopted": int(seen.adopted),
        "rows_before": sum(left.rows.values()),
        "rows_read": sum(min(count, seen.rows.get(name, 0)) for name, count in left.rows.items()),
        "profiles_before": left.profiles,
        "profiles_read": seen.profiles,
        "job_records_before": len(left.jobs),
        "job_records_read": len(same),
        "history_before": len(left.finished),
        "history_read": len(seen.finished),
    }


def whole(values: Mapping[str, float]) -> bool:
    """Whether nothing was lost, doubled, restarted or left unread."""
    read = all(values[name] == values[name.replace("_before", "_read")] for name in values if name.endswith("_before"))
    return read and not values["lost"] and not values["doubled"] and values["training_adopted"] == 1


def run(older: str) -> dict[str, float]:
    with tempfile.TemporaryDirectory(prefix="smore-upgrade-") as folder, socket.create_server(("127.0.0.1", 0)) as free:
        tree, home = Path(folder) / "tree", Path(folder) / "home"
        port = free.getsockname()[1]
        free.close()
        check_out(older, tree)
        first, second = Platform(tree, home, port), Platform(ROOT, home, port)
        try:
            left = prepare(first, home)
            first.smore("down")
            progress(f"{older} ended; starting this revision on its home")
            http, end = second.up()
            with http:
                return figures(left, observe(http, end, left))
        finally:
            if machine.endpoints(home) is None:
                second.up()[0].close()
            second.smore("down", "--jobs")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="end with one line of JSON")
    parser.add_argument("--from", dest="older", default=OLDER, help="the older revision")
    options = parser.parse_args()
    end_on_sigterm()
    values = run(options.older)
    if options.json:
        emit("lab.bench.upgrade", values, older=options.older)
    else:
        print(json.dumps(values, indent=1))
    sys.exit(0 if whole(values) else 1)


if __name__ == "__main__":
    main()
