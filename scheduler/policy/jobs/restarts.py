"""Whether an attempt that ended is followed by another one, and when."""

from typing import NamedTuple

from scheduler.policy.jobs.events import Ended
from scheduler.policy.jobs.knobs import JobKnobs


class Follows(NamedTuple):
    """
    ``ended``: how the job ended, None = it is started again after ``pause_s``. ``restarts`` and ``short_ends`` count on.
    """

    ended: Ended | None
    pause_s: float
    restarts: int
    short_ends: int


def after(knobs: JobKnobs, ended: Ended, lasted_s: float, allowed: int, restarts: int, short_ends: int) -> Follows:
    """
    Of an attempt that lasted ``lasted_s``, of a job that may be restarted ``allowed`` times and was ``restarts`` times.

    Pauses double from ``back_off_s`` to ``back_off_most_s``. A host that is lost says nothing of the job, so it adds no
    short end.
    """
    if ended is Ended.FAILED:
        short_ends = short_ends + 1 if lasted_s < knobs.short_s else 0
    elif ended is not Ended.LOST:
        return Follows(ended if ended in (Ended.SUCCEEDED, Ended.STOPPED) else None, 0.0, restarts, short_ends)
    if short_ends >= knobs.short_ends or restarts >= allowed:
        return Follows(ended, 0.0, restarts, short_ends)
    pause_s = min(knobs.back_off_s * 2.0 ** min(restarts, 60), knobs.back_off_most_s)
    return Follows(None, pause_s, restarts + 1, short_ends)
