"""A job scheduler on a real Postgres and a real Redis, with workers that only say that they obey."""

import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import redis
from sqlalchemy import Engine

from scheduler.jobs.apart import Apart
from scheduler.jobs.lead import Lead
from scheduler.policy.jobs.knobs import SETTINGS
from smore.domain.job import JobRequest, JobState
from smore.messages.job_queue import PublishedJob, TrialAnswer
from smore.postgres.jobs import Job, JobStore
from smore.process.settings import Settings
from smore.redis.job_queue import JobQueue
from smore.redis.tables import Tables
from tests.support import fake_platform
from tests.support.eventually import PATIENCE
from tests.support.fake_ranks import FakeRanks
from tests.support.tables import of_trainings


class Stage:
    """A job scheduler with a clock that the test moves, over four GPU instances on two nodes."""

    def __init__(self, config: Settings, client: "redis.Redis", engine: Engine) -> None:
        self.config, self._client, self.engine = config, client, engine
        self.jobs = JobStore(engine)
        self.queue = JobQueue(client, config.redis.prefix)
        self.ranks = FakeRanks(client, config.redis.prefix, {"a0": "a", "a1": "a", "b0": "b", "b1": "b"})
        self.apart = Apart()
        #: The time of day, and the steady clock.
        self.now = self.at = time.time()
        self.lead = self.new_lead()

    def new_lead(self) -> Lead:
        """Another process takes the lead, with nothing but Postgres and the reports."""
        self.lead = Lead(self.config, SETTINGS["smore-jobs"], self._client, self.engine, "t", self.apart)
        self.lead.begin(self.at)
        return self.lead

    def submit(self, name: str, **asked: Any) -> Job:
        return self.jobs.submit("default", name, JobRequest(argv=["zoo.train"], **asked))

    def pass_by(self, seconds: float = 1.0) -> None:
        """Workers report, the job scheduler decides, workers read and report."""
        self.now += seconds
        self.at += seconds
        self.ranks.beat()
        self.lead.round(self.now, self.at)
        self.ranks.beat()

    def job(self, job: Job) -> Job:
        return self.jobs.get("default", job.id)

    def publish(self, costs: dict[tuple[str, str], float], alone_s: dict[str, float] | None = None) -> None:
        """A degradation table of these pairs: (training, beside) → degradation; seconds of iterations alone."""
        table = of_trainings(fake_platform.report(), costs, alone_s=alone_s)
        Tables(self._client, self.config.redis.prefix).publish(table)

    def measure(self, job: Job, beside: Job, seconds: float) -> None:
        """Its worker reports iterations of so many seconds beside another job."""
        self.ranks.tell(
            job.id, beside=[beside.id], beside_since=self.now, beside_s=seconds, beside_n=60, beside_se=0.01
        )

    def entry(self, job: Job) -> PublishedJob:
        queue = self.queue.queue()
        assert queue is not None
        return next(entry for entry in queue.jobs if entry.id == job.id)

    def ask(self, **asked: Any) -> TrialAnswer:
        """A dry run: the job scheduler answers while the asker waits."""
        assert self.queue.lead("t", 60.0)
        with ThreadPoolExecutor(1) as pool:
            request = JobRequest(argv=["zoo.train"], **asked)
            asking = pool.submit(self.queue.trial, "default", "trial", request, PATIENCE)
            while not asking.done():
                self.pass_by(0)
            return asking.result()

    def states(self, *jobs: Job) -> list[JobState]:
        return [self.job(job).state for job in jobs]
