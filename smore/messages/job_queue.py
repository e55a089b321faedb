"""
The queue of trainings as the job scheduler publishes it, and dry runs, as JSON. Times are epoch seconds, lengths seconds.
"""

from collections.abc import Sequence

import msgspec

from smore.domain.job import JobPlace, JobRequest


class PublishedJob(msgspec.Struct, frozen=True, kw_only=True):
    """
    A job that is not over. ``place`` in the queue from 1, 0 = it is on ``gpus``. ``start_at`` and ``end_at``: by expected
    and by 90 % lengths, if nobody shorter comes; None = nobody can say. What is left of it: ``length_s``, longer than
    ``length_90_s`` in one case of ten, and which ``source`` told that (scheduler/policy/jobs/lengths.py).
    ``why`` it waits, and in words. ``beside``: the jobs
    with which it shares GPU instances, of which it is a ``guest`` where they were there first. ``promised``: the moment by which
    it is to have ended, None = nothing was; what puts it ``at_risk``, '' = nothing.
    """

    id: str
    project: str
    name: str
    place: int
    gpus: Sequence[str] = ()
    start_at: tuple[float, float] | None = None
    end_at: tuple[float, float] | None = None
    length_s: float
    length_90_s: float
    source: str
    waited_s: float
    why: str
    message: str
    beside: Sequence[str] = ()
    guest: bool = False
    promised: float | None = None
    at_risk: str = ""


class PublishedQueue(msgspec.Struct, frozen=True, kw_only=True):
    """
    Jobs that run, then those that wait in their order; ``kept`` GPU instances are free and kept for the job
    ``kept_for`` ('' = none are). ``leader`` decides by the setting ``setting``.
    """

    at: float
    leader: str
    setting: str
    kept_for: str = ""
    kept: int = 0
    jobs: Sequence[PublishedJob] = ()


class TrialQuestion(msgspec.Struct, frozen=True, kw_only=True):
    """
    What would become of a job that came now; with ``job``: what stands against that one on each GPU instance; with ``closed`` or
    ``most``: which promises would break if these GPU instances took no trainings, or the project might have no more of them.
    """

    id: str
    project: str = ""
    name: str = ""
    request: JobRequest = JobRequest()
    at: float
    job: str = ""
    closed: Sequence[str] = ()
    most: int | None = None


class TrialAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """
    Either ``expected`` (``gpus``: it would start there at once, as the guest of the jobs ``beside``), or why it never could:
    the ``field`` of its request, the ``largest`` value that could, and words. ``places``: for a job that waits. ``earliest``: the
    end that would be promised; where it asks for another one ``unpromised`` says why not, and ``why`` is the code of that.
    ``breaks``: ids of jobs.
    """

    gpus: Sequence[str] = ()
    expected: PublishedJob | None = None
    field: str = ""
    largest: float = 0.0
    message: str = ""
    beside: Sequence[str] = ()
    places: Sequence[JobPlace] = ()
    earliest: float | None = None
    unpromised: str = ""
    why: str = ""
    breaks: Sequence[str] = ()


encode = msgspec.json.Encoder().encode
decode_queue = msgspec.json.Decoder(PublishedQueue).decode
decode_question = msgspec.json.Decoder(TrialQuestion).decode
decode_answer = msgspec.json.Decoder(TrialAnswer).decode
