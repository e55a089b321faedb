"""Trainings in words: lengths, moments to come, states, where one runs."""

from collections.abc import Iterable, Sequence
from contextlib import suppress
from datetime import datetime, time, timedelta
from typing import Any, Final

from smore.domain.job import REFUSED, JobState, Outcome, ended_in_words
from smore.domain.loss import LEAST_WINDOWS

_MINUTE, _HOUR, _DAY = 60.0, 3600.0, 86_400.0
#: Moments that lie closer together than this are one, seconds.
_ONE_S: Final = 90.0


def span(seconds: float | None) -> str | None:
    """``45s``, ``12m``, ``2h10``, ``3d4h``."""
    if seconds is None:
        return None
    # Two minutes at least: rounded to whole minutes, a shorter time would be off by a third.
    if seconds < 2 * _MINUTE:
        return f"{seconds:.0f}s"
    if seconds < _HOUR:
        return f"{seconds / _MINUTE:.0f}m"
    if seconds < _DAY:
        minutes = round(seconds / _MINUTE)
        return f"{minutes // 60}h{minutes % 60:02}"
    hours = round(seconds / _HOUR)
    return f"{hours // 24}d{hours % 24}h"


def length(job: Any) -> str | None:
    """What is left, from the expected time to that which one case of ten exceeds; ``60m?`` where that is ten times as long."""
    if job is None or not job.length_s:
        return None
    expected, most = span(job.length_s), span(job.length_90_s)
    if job.length_90_s > 10 * job.length_s:
        return f"{expected}?"
    return f"{expected}" if expected == most else f"{expected}..{most}"


def length_legend(lengths: Sequence[str]) -> list[str]:
    """What the first length of each kind among these means, a line for each kind."""
    between = next((length for length in lengths if ".." in length), None)
    unknown = next((length for length in lengths if length.endswith("?")), None)
    return [
        *([_between(*between.split(".."))] if between else []),
        *([f"length {unknown}: hardly known, in one case of ten more than ten times as long"] if unknown else []),
    ]


def _between(expected: str, most: str) -> str:
    return f"length {expected}..{most}: {expected} are left, in one case of ten more than {most}"


def guess(job: Any) -> str:
    """Why the length of a job is a guess, and what would help."""
    if not job.iterations_wanted:
        return "a guess: neither --duration nor --iterations was given, and no run before it is known"
    given = f"a guess: --iterations {job.iterations_wanted} was given, and nothing says how long an iteration takes"
    if job.workload:
        unprofiled = f"{given}: {job.workload} has no profile on these GPU instances"
        return f"{unprofiled}; give --duration, or let an operator measure it (smore profile)"
    return f"{given}: give --workload too, or --duration"


def loss(job: Any) -> str | None:
    """What functions cost a job, or how many of the closed windows that an estimate needs there are."""
    if job.loss is not None:
        return f"{job.loss * 100:.1f} %"
    return f"{job.loss_windows} of {LEAST_WINDOWS} windows" if job.loss_windows else None


def loss_legend(jobs: Sequence[Any]) -> list[str]:
    """What tells the loss from the degradation, where a table has either."""
    if all(job.degradation is None and job.loss is None and not job.loss_windows for job in jobs):
        return []
    return [
        "loss: what functions cost it, by closed windows; the budget bounds it.",
        "degradation: shared over alone, whatever the cause; it does not count for the budget.",
    ]


def until(expected: datetime | None, late: datetime | None) -> str | None:
    """From when to when: ``16:40..17:30`` today, ``Tue 03:10`` within a week, else the date."""
    if expected is None:
        return None
    if late is None or (late - expected).total_seconds() < _ONE_S:
        return clock(expected)
    return f"{clock(expected)}..{clock(late, expected)}"


def clock(value: datetime, behind: datetime | None = None) -> str:
    """A moment to come in local time; the day only where it is another one than today or than ``behind``'s."""
    local, reference = value.astimezone(), (behind or datetime.now().astimezone()).astimezone()
    days = (local.date() - reference.date()).days
    if days == 0:
        return local.strftime("%H:%M")
    return local.strftime("%a %H:%M" if 0 < days < 7 else "%d %b %H:%M")


def state(job: Any) -> str:
    """The state of a job, and how it ended."""
    if job.suspended:
        return f"{job.state}, suspended by a signal: no steps"
    if job.unseen:
        return f"{job.state}, unseen: counts for nothing"
    if job.outcome is None or job.state == JobState.LOST:
        return str(job.state)
    return f"{job.state}: {ended_in_words(job.outcome, job.exit_code, job.reason or '')}"


def attempt_end(attempt: Any) -> str:
    """How an attempt ended, in the words of :func:`state`."""
    if not attempt.why:
        return "goes on" if attempt.ended_at is None else ""
    # Of one that its worker refused the message says why.
    refused = attempt.why == Outcome.FAILED and attempt.exit_code == REFUSED
    return ended_in_words(Outcome.REFUSED if refused else attempt.why, attempt.exit_code)


def failures(jobs: Iterable[Any], since: datetime) -> list[str]:
    """The trainings among these that failed, were killed, refused or lost since then: name, end, moment."""
    return [
        f"{job.name if job.project == 'default' else f'{job.project}/{job.name}'}"
        f" ({ended_in_words('lost' if job.state == JobState.LOST else job.outcome, job.exit_code, job.reason or '')}"
        f" at {clock(job.ended_at)})"
        for job in jobs
        if job.ended_at is not None and job.ended_at >= since and (ended_badly(job) or job.outcome == Outcome.REFUSED)
    ]


def ended_badly(job: Any) -> bool:
    """Whether a job that was started failed, was killed or lost."""
    return job.state == JobState.LOST or job.outcome in (Outcome.FAILED, Outcome.KILLED)


def where(job: Any) -> str:
    """Of a job of the queue: its GPU instances, or what it needs."""
    if job.gpus:
        role = f" ({'guest' if job.guest else 'host'})" if job.beside else ""
        return " ".join(job.gpus) + role
    return f"needs {job.count}{f' of {job.device}' if job.device else ''}"


def outlook(expected: Any) -> str:
    """In a sentence: when a job that waits is expected to start and to end."""
    starts, ends = (
        until(expected.start_at, expected.start_late_at),
        until(expected.end_at, expected.end_late_at),
    )
    if starts is None:
        return "Nobody can say yet when it starts."
    return f"It is expected to start {starts}{f' and to end {ends}' if ends else ''}, if nobody shorter comes."


def next_time(text: str) -> str:
    """
    A moment as the platform reads it: of a time of day (``18:00``) the next one, and of a date and time without its zone that
    one, in local time; else the text itself.
    """
    if ":" not in text:
        return text
    with suppress(ValueError):
        return datetime.fromisoformat(text).astimezone().isoformat()
    try:
        at = time.fromisoformat(text)
    except ValueError:
        return text
    now = datetime.now().astimezone()
    moment = now.replace(hour=at.hour, minute=at.minute, second=at.second, microsecond=0)
    return (moment if moment > now else moment + timedelta(days=1)).isoformat()


def promised(job: Any) -> str | None:
    """By when a job is to have ended, and whether it will not."""
    if job.promised_by is None:
        return None
    return clock(job.promised_by) + (f", at risk: {job.at_risk}" if job.at_risk else "")


def placed(job: Any) -> str:
    """What is promised of a job that was just started, and where it runs, or its place in the queue."""
    promise = job.promise
    if promise is None:
        return _placed(job)
    if promise.by is None:
        return f"{_placed(job)}\nNo end of {job.name} is promised: smore jobs explain {job.name}"
    return f"{job.name} is promised to end by {clock(promise.by)}, and starts by {clock(promise.latest_start_at)}\n{_placed(job)}"


def _placed(job: Any) -> str:
    if job.gpus and job.state in ("starting", "running"):
        ends = until(job.expected.end_at, job.expected.end_late_at) if job.expected is not None else None
        return f"{job.name} runs on {', '.join(job.gpus)}" + (f", expected to end {ends}" if ends else "")
    if job.state == "held":
        return f"{job.name} is held: smore jobs release {job.name}"
    if job.expected is None:
        return f"{job.name} is {job.state}; nothing is decided about it yet: smore jobs explain {job.name}"
    return f"{job.name} waits in place {job.expected.place}: {job.expected.message} {outlook(job.expected)}"


def leaderless(job: Any, refused: str) -> str:
    """Of a job that was just started, where no job scheduler leads; ``refused``: why, "" = nobody says."""
    why = f" ({refused})" if refused else ""
    return (
        f"{job.name} is {job.state}; no job scheduler leads now{why}, and nothing starts until one does: smore health says"
        f" whether one leads, smore jobs explain {job.name} what it waits for then"
    )


def tried(name: str, trial: Any) -> str:
    """What would become of a job that came now."""
    said = [_tried(name, trial), trial.no_promise]
    if trial.earliest_promise_at:
        # Up to the minute: what is shown can be asked for.
        at = trial.earliest_promise_at + timedelta(minutes=1, microseconds=-1)
        said.append(f"an end by {clock(at)} would be promised")
    return "\n".join(filter(None, said))


def _tried(name: str, trial: Any) -> str:
    expected = trial.expected
    if not trial.gpus:
        return f"{name} would wait in place {expected.place}: {expected.message} {outlook(expected)}"
    if trial.beside:
        return f"{name} would start now on {', '.join(trial.gpus)}, as the guest of {', '.join(trial.beside)}"
    ends = until(expected.end_at, expected.end_late_at)
    return f"{name} would start now on {', '.join(trial.gpus)}" + (f", expected to end {ends}" if ends else "")
