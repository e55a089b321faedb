"""Keeps what goes wrong with one training from the others."""

import time
from collections.abc import Iterator, Set
from contextlib import contextmanager
from typing import Final

import redis
from sqlalchemy.exc import OperationalError

from smore.domain.own_rule import BadRule
from smore.postgres.job_ledger import Fenced
from smore.process.observability import logger

log = logger(__name__)

#: Seconds for which a training is passed over.
PASSED_OVER_S: Final = 60.0


class Apart:
    """
    Trainings over which something went wrong are passed over for a while: nothing is decided about them, and what runs of
    them goes on. It outlives the leader's state, which is thrown away after the round: part of it may be wrong.
    """

    def __init__(self) -> None:
        self._until: dict[str, float] = {}
        #: What went wrong in this round, '' = nothing.
        self.wrong = ""

    @property
    def ids(self) -> Set[str]:
        """Of the trainings that are passed over now."""
        now = time.monotonic()
        self._until = {id_: until for id_, until in self._until.items() if until > now}
        return self._until.keys()

    @contextmanager
    def of(self, job: str) -> Iterator[None]:
        """
        What is done here is about this training alone. Raises what is about none: a server is away, another leads, the
        operator's own rule failed.
        """
        try:
            yield
        except (Fenced, OperationalError, redis.RedisError, BadRule):
            raise
        except Exception as error:
            log.exception("training passed over", job=job)
            self._until[job] = time.monotonic() + PASSED_OVER_S
            self.wrong = f"{job} is passed over ({type(error).__name__})"
