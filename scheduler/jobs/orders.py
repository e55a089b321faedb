"""Commands to the workers of ranks, sent until the reports show that they were obeyed."""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final

from scheduler.jobs.attempts import Attempt
from smore.domain.job import STARTED, JobState
from smore.messages.commands import ForgetJob, StartJob, StopJob
from smore.messages.reports import Report
from smore.postgres.jobs import Job
from smore.redis.fleet import Fleet

#: Seconds between two commands about a rank of an attempt that is not under way.
_AGAIN_S: Final = 5.0
_LIVES: Final = frozenset({JobState.RUNNING.value, JobState.STARTING.value})

#: Of jobs that there are: source, last attempt, whether one is under way.
Standing = Callable[[Collection[str]], Mapping[str, tuple[str, int, bool]]]


class Orders:
    """``standing`` looks into Postgres; ``env_of`` gives a job's variables."""

    def __init__(self, fleet: Fleet, standing: Standing, env_of: Callable[[Job], dict[str, str]]) -> None:
        self._fleet, self._standing, self._env_of = fleet, standing, env_of
        #: (GPU instance, job, attempt) → when it was told last.
        self._told: dict[tuple[str, str, int], float] = {}

    def send(self, at: float, job: Job, attempt: Attempt, nodes: Mapping[str, str]) -> None:
        """
        What the ranks of an attempt must be told; ``nodes``: GPU instance → node. Raises what ``env_of`` raises.
        """
        starting = attempt.to_start(at)
        env = self._env_of(job) if starting else {}
        for place in starting:
            attempt.ranks[place].told_at = at
            self._fleet.send(attempt.gpus[place], _start(job, attempt, place, env, nodes))
        for place in attempt.to_stop(at):
            rank = attempt.ranks[place]
            rank.stopped_at, rank.stopping_at = at, rank.stopping_at or at
            command = StopJob(version=1, id=attempt.job, attempt=attempt.attempt, grace_s=job.request.grace_s)
            self._fleet.send(rank.gpu, command)

    def settle(self, at: float, reports: Sequence[Report], under_way: Mapping[str, Attempt]) -> None:
        """
        Ranks that are reported and belong to no attempt under way: those that live are ended, those that have ended are
        forgotten, because their end is in Postgres. Left alone are ranks of an attempt that Postgres counts as current or
        does not know yet, and living processes that the platform did not start or of which Postgres knows no job.
        """
        strays = []
        for report in reports:
            for told in report.jobs:
                mine = under_way.get(told.id)
                key = report.gpu, told.id, told.attempt
                ours = mine is not None and mine.attempt == told.attempt
                if not ours and at - self._told.get(key, 0.0) >= _AGAIN_S:
                    strays.append((key, told.state in _LIVES))
        if not strays:
            return
        standing = self._standing({key[1] for key, _ in strays})
        for key, lives in strays:
            gpu, job, attempt = key
            source, newest, going_on = standing.get(job, ("", 0, False))
            current = attempt > newest or (going_on and attempt == newest)
            if (source and current) or (lives and source != STARTED):
                continue
            command = StopJob if lives else ForgetJob
            self._fleet.send(gpu, command(version=1, id=job, attempt=attempt))
            self._told[key] = at
        self._told = {key: told_at for key, told_at in self._told.items() if at - told_at < 10 * _AGAIN_S}


def _start(job: Job, attempt: Attempt, place: int, env: dict[str, str], nodes: Mapping[str, str]) -> StartJob:
    node = nodes.get(attempt.gpus[place])
    local = [rank for rank, gpu in enumerate(attempt.gpus) if nodes.get(gpu) == node]
    return StartJob(
        version=1,
        id=job.id,
        project=job.project,
        name=job.name,
        request=job.request,
        env=env,
        attempt=attempt.attempt,
        rank=place,
        world=len(attempt.gpus),
        local_rank=local.index(place),
        local_world=len(local),
        gpus=list(attempt.gpus),
        seed_attempt=attempt.attempt - 1,
        micro_batches=attempt.parts.count,
        hosts=[host for host, gpus in attempt.hosts.items() if attempt.gpus[place] in gpus],
    )
