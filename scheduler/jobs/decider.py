"""
Who leads the queue of trainings.

One process leads at a time. It holds a lease in Redis that its loop renews; each change carries a fencing token that
Postgres checks, so what a former leader still wants is refused.
"""

import os
import socket
import threading
import time
import uuid
from dataclasses import replace
from typing import Final

import redis
from sqlalchemy import Engine
from sqlalchemy.exc import OperationalError

from scheduler.jobs.apart import Apart
from scheduler.jobs.lead import Lead, WentWrong
from scheduler.policy.jobs.knobs import JobKnobs
from smore.domain.own_rule import BadRule
from smore.postgres.job_ledger import Fenced
from smore.process import observability as metrics
from smore.process.settings import Settings
from smore.redis.job_queue import JobQueue
from smore.redis.outage import is_outage

log = metrics.logger(__name__)

#: How often a standby looks whether the lease is free, and whether a server serves again, seconds.
LOOK_S: Final = 0.5


class Decider:
    """
    Leads whenever it finds the lease free, until ``stop`` is set. After a rule of an operator's own has failed the product's
    decides, for as long as this process lives.
    """

    def __init__(
        self, client: "redis.Redis", engine: Engine, config: Settings, stop: threading.Event, knobs: JobKnobs
    ) -> None:
        self._client, self._engine, self._config, self._stop, self._knobs = client, engine, config, stop, knobs
        self._queue = JobQueue(client, config.redis.prefix)
        self._apart = Apart()
        self._holder = f"{socket.gethostname()}:{os.getpid()}:{uuid.uuid4().hex[:8]}"

    def run(self) -> None:
        """Until it is asked to stop; where a server is away it waits."""
        waits = ""
        while not self._stop.is_set():
            try:
                if self._queue.lead(self._holder, self._config.jobs.lease_s):
                    self._lead()
                waits = ""
            except Fenced:
                log.warning("fenced off")
            except BadRule as error:
                self._knobs = replace(self._knobs, name="smore-jobs", rule=None)
                metrics.JOB_RULE_FAILURES.inc()
                log.error("the rule for trainings failed; smore-jobs decides from now on", reason=str(error))
                continue
            except WentWrong as error:
                self._queue.failed(str(error))
                continue
            except (OperationalError, redis.RedisError) as error:
                if isinstance(error, redis.RedisError) and not is_outage(error):
                    self._queue.failed(type(error).__name__)
                    raise
                away = "Postgres" if isinstance(error, OperationalError) else "Redis"
                if waits != away:
                    log.warning(f"the job scheduler waits for {away}", error=str(error))
                waits = away
            except Exception as error:
                self._queue.failed(type(error).__name__)
                raise
            self._stop.wait(LOOK_S)

    def _lead(self) -> None:
        settings = self._config.jobs
        lead = Lead(self._config, self._knobs, self._client, self._engine, self._holder, self._apart)
        # A clock that is set counts for nothing where it is measured how long something takes.
        steady = time.time() - time.monotonic()
        lead.begin(steady + time.monotonic())
        renewed_at = time.monotonic()
        while not self._stop.is_set():
            wake_at = lead.round(time.time(), steady + time.monotonic())
            if time.monotonic() - renewed_at > settings.lease_s / 3:
                if not self._queue.lead(self._holder, settings.lease_s):
                    raise Fenced
                renewed_at = time.monotonic()
            self._queue.wait(min(settings.tick_s, settings.lease_s / 3, max(0.0, wake_at - time.time())))
        self._queue.resign(self._holder)
