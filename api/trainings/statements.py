"""The statement of a job: what functions got beside it, what it lost to them, and whether its budgets were kept."""

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from api.dates import moment
from api.schemas import statements as schemas
from api.trainings import pairs as job_pairs
from smore.domain import loss
from smore.domain.job import OVER, BudgetStep
from smore.domain.loss import Loss, Verdict

if TYPE_CHECKING:
    from smore.postgres.history.values import Closed, Harvest
    from smore.postgres.job_pairs import JobPair
    from smore.postgres.jobs import Job

#: What a job lost to functions where none ran beside it; what its windows measured is the noise of others.
_NOTHING: Final = Loss(mean=0.0, low=0.0, high=0.0, windows=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """The time, in epoch seconds, in which a budget held (``until`` None = it holds), and its closed windows by rank."""

    since: float
    until: float | None
    budget: float
    closed: Mapping[int, "Closed"]


def lost_of(job: "Job", closed: Mapping[int, "Closed"], *, harvested: bool) -> Loss | None:
    """
    What a job lost to functions by its closed windows (by rank), None = not enough data. ``harvested``: one has run
    beside it.
    """
    if not harvested:
        return _NOTHING
    losses = [loss.estimate_of(of.sums) if of is not None else None for of in _by_rank(job, closed)]
    known = [estimate for estimate in losses if estimate is not None]
    # A job is as fast as its slowest rank: while the loss of one rank is unknown, that of the job is.
    return max(known, key=lambda estimate: estimate.high) if len(known) == len(losses) else None


def fewest_of(job: "Job", closed: Mapping[int, "Closed"]) -> "Closed | None":
    """The windows of the rank that has the fewest, None = it has none."""
    ranks = _by_rank(job, closed)
    known = [of for of in ranks if of is not None]
    return min(known, key=lambda of: of.sums.windows) if len(known) == len(ranks) else None


def _by_rank(job: "Job", closed: Mapping[int, "Closed"]) -> "list[Closed | None]":
    return [closed.get(rank + 1) for rank in range(max(1, job.request.count, len(job.gpus)))]


def stated(
    job: "Job",
    closed: Mapping[int, "Closed"],
    harvest: "Harvest",
    since: float,
    steps: Sequence[BudgetStep],
    pairs: Sequence["JobPair"] = (),
    names: Mapping[str, str] = MappingProxyType({}),
    *,
    spans: Sequence[Span] = (),
    measured: bool,
    too_long: str = "",
) -> schemas.Statement:
    """
    The statement of a job, over all its attempts. ``closed``: its closed windows by rank; ``since``: epoch seconds from
    which its harvest counts; ``pairs`` that it formed with other trainings, and the ``names`` of those that may be named;
    ``spans`` of its budgets, the first one first, none = it had one alone; ``measured``: False = no window is closed for it:
    it has reported no iteration, or the settings want none; ``too_long``: why no window holds its iterations, '' = one does.
    """
    harvested, going_on = harvest.invocations > 0, job.state not in OVER
    *before, last = spans or [Span(since=since, until=None, budget=job.request.budget, closed=closed)]
    past = [_budget_span(job, span, harvested=harvested, measured=measured) for span in before]
    budget, worst, fewest = last.budget, lost_of(job, last.closed, harvested=harvested), fewest_of(job, last.closed)
    windows = fewest.sums.windows if fewest is not None else 0
    missing = loss.missing(windows) if worst is None else 0
    pace_s = (fewest.last_at - fewest.first_at) / (windows - 1) if fewest is not None and windows > 1 else None
    verdict = _verdict(worst, budget, measured=measured)
    to_go = loss.to_go(worst, windows, budget) if measured and going_on and not too_long else None
    to_go_s = to_go * pace_s if to_go and pace_s is not None else None
    beside = [job_pairs.beside(pair, names, job.request.workload) for pair in pairs]
    whole, all_windows = lost_of(job, closed, harvested=harvested), fewest_of(job, closed)
    broken = any(span.verdict is Verdict.NOT_KEPT for span in past)
    return schemas.Statement(
        id=job.id,
        name=job.name,
        state=job.state.value,
        budget=budget,
        since=moment(job.started_at) if job.started_at is not None else None,
        until=moment(job.ended_at if job.ended_at is not None else time.time()),
        harvested_s=round(harvest.seconds, 6),
        harvested_since=moment(since),
        invocations=harvest.invocations,
        windows=all_windows.sums.windows if all_windows is not None else 0,
        loss=whole.mean if whole else None,
        loss_low=whole.low if whole else None,
        loss_high=whole.high if whole else None,
        kept=False if broken else worst.high <= budget if worst else None,
        verdict=Verdict.NOT_KEPT if broken else verdict,
        missing_windows=missing,
        missing_s=missing * pace_s if missing and pace_s is not None else None,
        windows_to_go=to_go,
        to_go_s=to_go_s,
        past_budgets=past,
        steps=list(steps),
        beside=beside,
        summary=f"{harvest.seconds:.1f} function-seconds harvested; "
        f"{''.join(_past(span, harvested=harvested) for span in past)}"
        f"{_lost(worst, budget, verdict, harvested=harvested)}"
        f"{_words(verdict, worst, budget, missing, pace_s, over=not going_on, too_long=too_long)}"
        f"{''.join(f'; {job_pairs.cost(each)}' for each in beside)}",
    )


def _verdict(worst: Loss | None, budget: float, *, measured: bool) -> Verdict:
    return loss.judge(worst, budget) if measured or worst is _NOTHING else Verdict.UNMEASURED


def _budget_span(job: "Job", span: Span, *, harvested: bool, measured: bool) -> schemas.BudgetSpan:
    worst, fewest = lost_of(job, span.closed, harvested=harvested), fewest_of(job, span.closed)
    return schemas.BudgetSpan(
        since=moment(span.since),
        until=moment(span.until or time.time()),
        budget=span.budget,
        windows=fewest.sums.windows if fewest is not None else 0,
        loss=worst.mean if worst else None,
        loss_low=worst.low if worst else None,
        loss_high=worst.high if worst else None,
        verdict=_verdict(worst, span.budget, measured=measured),
    )


def _past(span: schemas.BudgetSpan, *, harvested: bool) -> str:
    """What was said of a budget that holds no more."""
    worst = None
    if span.loss is not None and span.loss_low is not None and span.loss_high is not None:
        worst = Loss(mean=span.loss, low=span.loss_low, high=span.loss_high, windows=span.windows)
    until = f"until {span.until.astimezone(UTC):%Y-%m-%d %H:%M} UTC "
    return f"{until}{_lost(worst, span.budget, span.verdict, harvested=harvested)}{span.verdict.value.replace('_', ' ')}; since then "


def _lost(worst: Loss | None, budget: float, verdict: Verdict, *, harvested: bool) -> str:
    if worst is None:
        return f"budget {budget * 100:.4g} % "
    if not harvested:
        return f"no function ran beside it, so it lost nothing to functions (budget {budget * 100:.4g} %): "
    if verdict is Verdict.NOT_PROVEN:
        interval = f"between {worst.low * 100:.1f} and {worst.high * 100:.1f} % with 95 % confidence"
        return f"training lost about {worst.mean * 100:.1f} % so far, {interval} (budget {budget * 100:.4g} %): "
    # Rounded up: a bound that is rounded down is none.
    bound = math.ceil(max(0.0, worst.high) * 1000) / 10
    return f"training lost <= {bound:.1f} % with 95 % confidence (budget {budget * 100:.4g} %): "


def _words(
    verdict: Verdict,
    worst: Loss | None,
    budget: float,
    missing: int,
    pace_s: float | None,
    *,
    over: bool,
    too_long: str,
) -> str:
    """The verdict, and what is missing to one; ``missing``: windows to an estimate; ``pace_s``: from one to the next."""
    match verdict:
        case Verdict.KEPT:
            return "kept"
        case Verdict.NOT_KEPT:
            return "not kept"
        case Verdict.UNMEASURED:
            early = "" if over else "too early, or "
            return (
                f"unmeasured: {early}its iterations are not compared (smore.track in its loop,"
                " SMORE_WORKER__PROBE_SHARE > 0)"
            )
    if over:
        return "not proven: it ended before there were enough closed windows"
    if too_long:
        return f"cannot be proven: {too_long}"
    more = missing if worst is None else _rounded(loss.least_to_go(worst, budget))
    windows = f"closed window{'s' if more != 1 else ''}"
    soon = f", about {_about(more * pace_s)}" if pace_s is not None else ""
    if worst is None:
        return f"not proven: {more} {windows} to go{soon}"
    # How many it will take cannot be told: what can is that fewer will not do.
    return f"not proven: at least {more} more {windows}{soon}"


def _rounded(windows: int) -> int:
    """To one digit: ``53`` to ``50``."""
    return round(windows, 1 - len(str(windows)))


def _about(seconds: float) -> str:
    """``90`` to ``90 s``, ``1407`` to ``23 min``, ``9000`` to ``2.5 h``."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
