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
    message: str


def after(knobs: JobKnobs, ended: Ended, lasted_s: float, allowed: int, restarts: int, short_ends: int) -> Follows:
    """
    Of an attempt that lasted ``lasted_s``, of a job that may be restarted ``allowed`` times and was ``restarts`` times.

    Pauses double from ``back_off_s`` to ``back_off_most_s``. A host that is lost says nothing of the job, so it adds no
    short end.
    """
    if ended in (Ended.SUCCEEDED, Ended.STOPPED):
        return Follows(ended, 0.0, restarts, short_ends, f"The job {ended}.")
    if ended is Ended.PREEMPTED:
        return Follows(
            None, 0.0, restarts, short_ends, "The setting stopped it; it goes on when it has GPU instances again."
        )
    if ended is Ended.OUTGROWN:
        message = "It took more memory than was said of it; it is started again with what it took, and alone."
        return Follows(None, 0.0, restarts, short_ends, message)
    # How it failed, with an exit code or by a signal, the rule is not told: whoever shows this says it.
    why = "A GPU instance that it ran on was lost: " if ended is Ended.LOST else ""
    if ended is Ended.FAILED:
        short_ends = short_ends + 1 if lasted_s < knobs.short_s else 0
    if short_ends >= knobs.short_ends:
        message = f"It ended {short_ends} times in a row within {knobs.short_s:g} s of its start: a crash loop."
        return Follows(ended, 0.0, restarts, short_ends, message)
    if restarts >= allowed:
        left = f"all {allowed} restarts that its owner allowed are used" if allowed else "its owner allowed no restart"
        return Follows(ended, 0.0, restarts, short_ends, _sentence(f"{why}{left}."))
    pause_s = min(knobs.back_off_s * 2.0 ** min(restarts, 60), knobs.back_off_most_s)
    message = _sentence(f"{why}restart {restarts + 1} of {allowed} follows after {pause_s:g} s.")
    return Follows(None, pause_s, restarts + 1, short_ends, message)


def _sentence(text: str) -> str:
    return text[0].upper() + text[1:]
