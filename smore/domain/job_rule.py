"""
A rule of one's own for trainings: in which order those that wait are tried, and beside whom one starts for which too few
GPU instances are free.

The engine (``scheduler/policy/jobs/core.py``) keeps everything else: memory, gangs, quotas, patience, and what owners allow
others to cost them. docs/guides/own-policy.md is the guide; :func:`smore.testing.rules.check_job_rule` tests a rule.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple, Protocol

#: Methods of a rule, of which it has one at least.
METHODS: Final = ("order", "hosts")


class WaitingJob(NamedTuple):
    """
    A training that waits, or runs under a setting that may stop it (``preemptive``). ``gpus``: how many GPU instances it
    asks for; ``submitted_at``: epoch seconds; ``expected_s``, ``most_s``: what is left of it alone, as expected and by the
    90 % bound; ``had_s``: time that it has held GPU instances before; ``weight``: of its project; ``workload``: its
    profile, '' = none.
    """

    id: str
    project: str
    name: str
    gpus: int
    submitted_at: float
    expected_s: float
    most_s: float
    had_s: float
    weight: float
    workload: str


class HostOffer(NamedTuple):
    """
    A running training beside which the one that waits may start, and how many GPU instances of it there are.
    ``slowdown``: how many times longer an iteration of the newcomer takes there, ``its_slowdown``: one of the host, each
    >= 1, as predicted and by the 90 % bound (``_most``); ``left_s``: what is left of the host as it runs now, seconds.
    """

    id: str
    workload: str
    gpus: int
    slowdown: float
    slowdown_most: float
    its_slowdown: float
    its_slowdown_most: float
    left_s: float


class JobRule(Protocol):
    """
    Made without arguments for each run. A class may leave one of the methods out; then the setting's own rule holds. The
    same calls must give the same answers: no clock, no input or output, and random numbers from a generator with a fixed
    seed only.
    """

    def order(self, job: WaitingJob) -> float:
        """
        Trainings with smaller numbers are tried first; ties by submission. A finite number. Called when a training comes
        to the queue, and when its expected length or its project's weight has changed: the time is no part of it.
        """
        ...

    def hosts(self, job: WaitingJob, offers: Sequence[HostOffer], wait_s: float) -> Sequence[HostOffer]:
        """
        Those of ``offers`` beside which the training may start now, the best first; none = it waits. It gets the first
        that have enough GPU instances together with those that are free. ``wait_s``: until as many would be free for it
        alone, as expected.
        """
        ...


def is_choice(chosen: Sequence[object], offers: Sequence[HostOffer]) -> bool:
    """Whether what :meth:`JobRule.hosts` returned are offers, each once."""
    return all(one in offers and chosen.count(one) == 1 for one in chosen)
