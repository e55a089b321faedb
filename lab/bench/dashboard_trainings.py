"""Fifty trainings with a day behind them, for the dashboard: two gangs, three pairs, and 200 attempts in all."""

import random
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

import httpx
from sqlalchemy import Engine
from sqlalchemy.orm import Session

from smore.domain.job import Action, JobRequest
from smore.postgres.job_pairs import JobPair, add_pairs
from smore.postgres.jobs import JobChange, JobStore

if TYPE_CHECKING:
    from playwright.sync_api import Page

TRAININGS: Final = 50
ATTEMPTS: Final = 200
#: GPU instances of each gang; how many gangs and pairs.
GANG: Final = 8
GANGS: Final = 2
PAIRS: Final = 3
#: Trainings that run alone; as many GPU instances as all of these take.
ALONE: Final = 20
GPUS: Final = GANG * GANGS + PAIRS + ALONE
HOUR_S: Final = 3600.0

_BACK: Final = """
WITH moved AS (
    UPDATE jobs SET created_at = created_at - %(ago)s::interval, started_at = started_at - %(ago)s::interval, estimate_s = %(told)s,
        estimate_90_s = 1.3 * %(told)s, estimate_source = 'declared' WHERE id = %(job)s
) UPDATE job_attempts SET started_at = started_at - %(ago)s::interval, up_at = started_at - %(ago)s::interval WHERE job = %(job)s
"""
_PAST: Final = """
WITH moved AS (
    UPDATE jobs SET created_at = now() - %(ago)s::interval, started_at = now() - %(ago)s::interval,
        ended_at = now() - %(ago)s::interval + %(took)s::interval, estimate_s = %(told)s,
        estimate_90_s = 1.3 * %(told)s, estimate_source = %(source)s WHERE id = %(job)s
) UPDATE job_attempts SET started_at = now() - %(ago)s::interval, up_at = now() - %(ago)s::interval,
    ended_at = now() - %(ago)s::interval + %(took)s::interval
    WHERE job = %(job)s
"""


def fill(engine: Engine, connection: Any, names: Sequence[str]) -> Mapping[str, Sequence[str]]:
    """Returns which trainings run on each of the GPU instances ``names``, which are at least :data:`GPUS`."""
    store, drawn = JobStore(engine), random.Random(2)
    on: dict[str, list[str]] = {}

    def run(name: str, gpus: Sequence[str], hours: float, **more: Any) -> str:
        request = JobRequest(argv=["zoo.train"], gpus=gpus, count=len(gpus), duration_s=hours * HOUR_S, **more)
        job = store.submit("default", name, request)
        store.move(job.id, Action.START, JobChange(gpus=gpus, nodes=["host"] * len(gpus)))
        store.move(job.id, Action.RUN)
        ago = drawn.uniform(0.1, 0.8) * hours
        connection.execute(_BACK, {"job": job.id, "ago": _interval(ago), "told": hours * HOUR_S})
        for gpu in gpus:
            on.setdefault(gpu, []).append(job.id)
        return job.id

    for number in range(GANGS):
        run(f"gang-{number}", names[GANG * number : GANG * (number + 1)], 30)
    with Session(engine) as session:
        for number in range(PAIRS):
            gpu = names[GANG * GANGS + number]
            host = run(f"host-{number}", [gpu], 12, share=0.5, memory_mib=20_000)
            guest = run(f"guest-{number}", [gpu], 3, share=0.5, memory_mib=10_000)
            add_pairs(session, [_pair(host, guest, gpu, guest=False), _pair(guest, host, gpu, guest=True)])
        session.commit()
    for number in range(ALONE):
        run(f"night-{number}", [names[GANG * GANGS + PAIRS + number]], drawn.uniform(4, 20))
    running = GANGS + 2 * PAIRS + ALONE
    for number in range(TRAININGS - running):
        gpu = names[GANG * GANGS + PAIRS + number % ALONE]
        store.submit("default", f"big-{number}", JobRequest(argv=["zoo.train"], gpus=[gpu], duration_s=2 * HOUR_S))
    for number in range(ATTEMPTS - running):
        gpu, told = names[number % len(names)], drawn.uniform(0.2, 2)
        job = store.submit("default", f"sweep-{number}", JobRequest(argv=["zoo.train"], gpus=[gpu]))
        store.move(job.id, Action.START, JobChange(gpus=[gpu], nodes=["host"]))
        store.move(job.id, Action.RUN)
        good = number % 9 != 0
        store.move(job.id, Action.END, JobChange(exit_code=0 if good else 1, why="succeeded" if good else "failed"))
        ago = 20 + 2.5 * (number // len(names))
        past = {"job": job.id, "ago": _interval(ago), "took": _interval(told * drawn.uniform(0.8, 1.3))}
        connection.execute(
            _PAST, past | {"told": told * HOUR_S, "source": drawn.choice(("measured", "profile", "name"))}
        )
    return on


def agrees(page: "Page", http: httpx.Client) -> bool:
    """Whether the bars of the plan begin and end as the queue and the attempts say, to a minute: the queue moves on."""
    drawn = page.evaluate(
        "[...document.querySelectorAll('a[data-bar]')].map((bar) => [bar.dataset.job, +bar.dataset.from, +bar.dataset.to])"
    )
    since = datetime.fromtimestamp(time.time() - 7 * 24 * HOUR_S, UTC).isoformat()
    attempts = (
        http.get("/v1/jobs/attempts", params={"since": since, "limit": 1000}).raise_for_status().json()["attempts"]
    )
    queue = http.get("/v1/jobs/queue").raise_for_status().json()["jobs"]
    ends = {job["id"]: job["end_at"] for job in queue}
    told = {(one["job"], one["started_at"], one["ended_at"] or ends.get(one["job"])) for one in attempts}
    # Of which nobody can say when it starts, that is named below the plan.
    told |= {(job["id"], job["start_at"], job["end_at"]) for job in queue if job["place"] > 0 and job["start_at"]}
    wanted = {job: (_seconds(start), _seconds(end)) for job, start, end in told}
    near = all(abs(start - wanted[job][0]) < 60 and abs(end - wanted[job][1]) < 60 for job, start, end in drawn)
    return near and {job for job, _, _ in drawn} == set(wanted)


def _seconds(moment: str | None) -> float:
    """Since 1970; 0 = nobody can say when, as a bar without an end has it."""
    return datetime.fromisoformat(moment).timestamp() if moment else 0.0


def _interval(hours: float) -> str:
    return f"{hours} hours"


def _pair(job: str, other: str, gpu: str, *, guest: bool) -> JobPair:
    return JobPair(
        job=job,
        attempt=1,
        other=other,
        other_attempt=1,
        guest=guest,
        gpus=[gpu],
        device="NVIDIA H100 80GB HBM3",
        sharing_mode="time-slice",
        from_at=time.time(),
        predicted=1.2,
        measured=1.15,
        loss=0.12,
        loss_low=0.1,
        loss_high=0.14,
    )
