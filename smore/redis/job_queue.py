"""
The doors to the job scheduler in Redis: who leads, what it published last, a bell, and questions.

Postgres is the truth of jobs; whatever is lost here is published, asked or rung again.
"""

import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, cast

import msgspec
import redis

from smore.domain.errors import Unavailable
from smore.domain.job import JobPlace, JobRequest
from smore.messages.job_queue import (
    PublishedQueue,
    TrialAnswer,
    TrialQuestion,
    decode_answer,
    decode_question,
    decode_queue,
    encode,
)

#: Seconds for which an answer waits to be fetched.
_ANSWER_S: Final = 10
#: How long it can be read why nobody leads: longer than a process takes to be started again.
_REFUSED_S: Final = 30
#: How long it can be read what went wrong: longer than a training is passed over, so that it does not come and go.
_FAILED_S: Final = 90
#: A leader that has finished no round for so long fails, seconds.
_ROUND_S: Final = 15.0
#: Whoever waits for a publication looks as often, seconds: a message that was lost is not missed for longer.
_LOOK_S: Final = 1.0
#: Questions that wait at a time; older ones are dropped.
_QUESTIONS: Final = 100

# The lease: taken where nobody holds it, else renewed by its holder. KEYS: lease; ARGV: holder, milliseconds.
_LEAD = """
local holder = redis.call('GET', KEYS[1])
if holder and holder ~= ARGV[1] then return 0 end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return 1
"""
_RESIGN = "if redis.call('GET', KEYS[1]) == ARGV[1] then redis.call('DEL', KEYS[1]) end"


def no_leader(refused: str) -> str:
    """That nobody leads the queue of trainings, and why; ``refused``: :meth:`JobQueue.refused`."""
    why = f": {refused}" if refused else ""
    return f"No job scheduler leads{why}. What runs goes on, and nothing is started."


def failing(failed: bytes | None, round_at: bytes | None) -> str:
    """What goes wrong with the leader of the queue of trainings, '' = nothing; given what is at :func:`health_keys`."""
    if failed is not None:
        return failed.decode()
    silent_s = time.time() - float(round_at) if round_at is not None else 0.0
    return f"its last round ended {silent_s:.0f} s ago" if silent_s > _ROUND_S else ""


def health_keys(prefix: str) -> list[str]:
    """Where a leader notes what went wrong, and when its last round ended."""
    return [f"{prefix}job:failed", f"{prefix}job:round"]


class JobQueue:
    """Thread-safe. Raises redis-py's errors."""

    def __init__(self, client: "redis.Redis", prefix: str) -> None:
        self._redis = client
        self._lease, self._bell = f"{prefix}job:leader", f"{prefix}job:bell"
        self._refused = f"{prefix}job:refused"
        self._health = self._failed, self._round = health_keys(prefix)
        self._published, self._questions = f"{prefix}job:queue", f"{prefix}job:questions"
        self._told = f"{prefix}job:told"
        self._answers, self._heard = f"{prefix}job:answer:", f"{prefix}job:heard"

    # ---- for everybody -----------------------------------------------------------------------------------------------

    def wake(self) -> None:
        """Something has changed: the job scheduler decides now, not at its next tick."""
        pipe = self._redis.pipeline(transaction=False)
        pipe.lpush(self._bell, b"")
        pipe.ltrim(self._bell, 0, 0)
        pipe.execute()

    def queue(self) -> PublishedQueue | None:
        """What was published last; None = nothing ever was. :attr:`PublishedQueue.at` says when."""
        raw = cast("bytes | None", self._redis.get(self._published))
        return decode_queue(raw) if raw is not None else None

    def publications(self, wait_s: float) -> Iterator[None]:
        """When to look whether something is published: now, and whenever something was, for ``wait_s``."""
        until = time.monotonic() + wait_s
        with self._redis.pubsub() as told:  # type: ignore[no-untyped-call]
            told.subscribe(self._told)
            # The first message confirms the subscription: no later publication is missed.
            told.get_message(timeout=_LOOK_S)
            yield
            while (left_s := until - time.monotonic()) > 0:
                told.get_message(timeout=min(_LOOK_S, left_s))
                yield

    def state(self) -> tuple[PublishedQueue | None, str]:
        """:meth:`queue`, and what is the matter with whoever leads, in a sentence; '' = nothing. In one round trip."""
        keys = [self._published, self._lease, self._refused, *self._health]
        raw, leader, refused, *health = cast("list[bytes | None]", self._redis.mget(keys))
        queue, fails = decode_queue(raw) if raw is not None else None, failing(*health)
        if not leader:
            return queue, no_leader((refused or b"").decode())
        return queue, f"The leader of trainings fails: {fails}." if fails else ""

    def leader(self) -> str:
        """Who leads, '' = nobody does."""
        return (cast("bytes | None", self._redis.get(self._lease)) or b"").decode()

    def failing(self) -> str:
        """What goes wrong with whoever leads, '' = nothing."""
        return failing(*cast("list[bytes | None]", self._redis.mget(self._health)))

    def refused(self) -> str:
        """Why a process that would lead has refused to, a short while ago; '' = none has."""
        return (cast("bytes | None", self._redis.get(self._refused)) or b"").decode()

    def trial(self, project: str, name: str, request: JobRequest, timeout_s: float = 2.0) -> TrialAnswer:
        """What would become of a job that came now. Raises Unavailable where nobody leads or answers in time."""
        question = TrialQuestion(id=uuid.uuid4().hex, project=project, name=name, request=request, at=time.time())
        return self._asked(question, timeout_s)

    def places(self, job: str, timeout_s: float = 1.0) -> Sequence[JobPlace]:
        """
        What stands against a job on each GPU instance, () = it does not wait. Raises Unavailable where nobody leads or
        answers in time.
        """
        return self._asked(TrialQuestion(id=uuid.uuid4().hex, at=time.time(), job=job), timeout_s).places

    def breaks(self, closed: Sequence[str] = (), project: str = "", most: int | None = None) -> Sequence[str]:
        """
        The jobs whose promises hold and would not if these GPU instances took no trainings, or the project might have no more of
        them. Raises Unavailable where nobody leads or answers in time.
        """
        question = TrialQuestion(id=uuid.uuid4().hex, at=time.time(), closed=closed, project=project, most=most)
        return self._asked(question, 1.0).breaks

    def _asked(self, question: TrialQuestion, timeout_s: float) -> TrialAnswer:
        if not self.leader():
            raise Unavailable(no_leader(self.refused()), part="job_leader")
        pipe = self._redis.pipeline(transaction=False)
        pipe.rpush(self._questions, encode(question))
        pipe.ltrim(self._questions, -_QUESTIONS, -1)
        pipe.lpush(self._bell, b"")
        pipe.ltrim(self._bell, 0, 0)
        pipe.execute()
        answer = cast("tuple[bytes, bytes] | None", self._redis.blpop([self._answers + question.id], timeout=timeout_s))
        if answer is None:
            raise Unavailable("The job scheduler does not answer.", part="job_leader")
        return decode_answer(answer[1])

    # ---- for the job scheduler ---------------------------------------------------------------------------------------

    def lead(self, holder: str, lease_s: float) -> bool:
        """Take the lease or renew it. False where another holds it."""
        return bool(self._redis.eval(_LEAD, 1, self._lease, holder, round(lease_s * 1000)))

    def refuse(self, reason: str) -> None:
        """Say why this process does not lead; it is started, and says so, again and again."""
        self._redis.set(self._refused, reason, ex=_REFUSED_S)

    def failed(self, reason: str) -> None:
        """Say what went wrong in a round."""
        self._redis.set(self._failed, reason, ex=_FAILED_S)

    def resign(self, holder: str) -> None:
        """Give the lease back, if it is still this one's."""
        self._redis.eval(_RESIGN, 1, self._lease, holder)

    def wait(self, timeout_s: float) -> None:
        """Until the bell rings, at most so long (0.01 s at least)."""
        self._redis.blpop([self._bell], timeout=max(0.01, timeout_s))

    def publish(self, queue: PublishedQueue) -> None:
        """After a round, whose decisions are in Postgres."""
        pipe = self._redis.pipeline(transaction=False)
        pipe.mset({self._published: encode(queue), self._round: queue.at})
        pipe.publish(self._told, b"")
        pipe.execute()

    def questions(self) -> list[TrialQuestion]:
        """All that wait; each is handed out once."""
        raw = cast("list[bytes] | None", self._redis.lpop(self._questions, _QUESTIONS))
        questions = []
        for entry in raw or []:
            try:
                questions.append(decode_question(entry))
            except msgspec.DecodeError:
                continue
        return questions

    def answer(self, question: str, answer: TrialAnswer) -> None:
        pipe = self._redis.pipeline(transaction=False)
        pipe.rpush(self._answers + question, encode(answer))
        pipe.expire(self._answers + question, _ANSWER_S)
        pipe.execute()

    def heard(self) -> dict[str, float]:
        """When each GPU instance was last heard of, epoch seconds: for whoever takes the lead next."""
        raw = cast("dict[bytes, bytes]", self._redis.hgetall(self._heard))
        return {gpu.decode(): float(at) for gpu, at in raw.items()}

    def note_heard(self, heard: Mapping[str, float]) -> None:
        if heard:
            self._redis.hset(self._heard, mapping=cast("dict[Any, Any]", heard))
