"""The statement of a job: what functions got beside it, what it lost to them, and whether its budget was kept."""

import math
import time
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING

from api import job_pairs
from api.dates import moment
from api.schemas import jobs as schemas
from smore.domain import loss
from smore.domain.job import OVER
from smore.domain.loss import Loss, Verdict

if TYPE_CHECKING:
    from smore.postgres.history.values import BudgetStep, Closed, Harvest
    from smore.postgres.job_pairs import JobPair
    from smore.postgres.jobs import Job


def stated(
    job: "Job",
    closed: Mapping[str, "Closed"],
    harvest: "Harvest",
    since: float,
    steps: Sequence["BudgetStep"],
    pairs: Sequence["JobPair"] = (),
    names: Mapping[str, str] = MappingProxyType({}),
    *,
    measured: bool,
) -> schemas.Statement:
    """
    The statement of a job, over all its attempts. ``closed``: its closed windows by GPU instance; ``since``: epoch seconds
    from which its harvest counts; ``pairs`` that it formed with other trainings, and the ``names`` of those that may be named;
    ``measured``: False = no window is closed for it: it has reported no iteration, or the settings want none.
    """
    budget = job.budget
    by_gpu = [closed.get(gpu) for gpu in job.gpus]
    # Where only attempts before the last one were: what is known of them counts, and what is not is not waited for.
    before = [loss.estimate_of(of.sums) for gpu, of in closed.items() if gpu not in job.gpus]
    fewest = min(by_gpu, key=lambda of: of.sums.windows if of is not None else 0, default=None)
    windows = fewest.sums.windows if fewest is not None else 0
    losses = [loss.estimate_of(of.sums) if of is not None else None for of in by_gpu]
    known = [estimate for estimate in losses if estimate is not None]
    # A job is as fast as its slowest rank: while the loss of one rank is unknown, that of the job is.
    complete = [*known, *(estimate for estimate in before if estimate is not None)] if len(known) == len(losses) else []
    worst = max(complete, key=lambda estimate: estimate.high, default=None)
    missing = loss.missing(windows)
    pace_s = (fewest.last_at - fewest.first_at) / (windows - 1) if fewest is not None and windows > 1 else None
    verdict = loss.judge(worst, budget) if measured else Verdict.UNMEASURED
    going_on = measured and job.state not in OVER
    to_go = loss.to_go(worst, windows, budget) if going_on else None
    to_go_s = to_go * pace_s if to_go and pace_s is not None else None
    beside = [job_pairs.beside(pair, names, job.workload) for pair in pairs]
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
        windows=windows,
        loss=worst.mean if worst else None,
        loss_low=worst.low if worst else None,
        loss_high=worst.high if worst else None,
        kept=worst.high <= budget if worst else None,
        verdict=verdict,
        missing_windows=missing,
        missing_s=missing * pace_s if missing and pace_s is not None else None,
        windows_to_go=to_go,
        to_go_s=to_go_s,
        steps=[
            schemas.BudgetStep(at=moment(step.at), gpu=step.gpu, step=step.step, duty=step.duty, factor=step.factor)
            for step in steps
        ],
        beside=beside,
        summary=f"{harvest.seconds:.1f} function-seconds harvested; {_lost(worst, budget, verdict)}"
        f"{_words(verdict, worst, budget, missing, pace_s, over=not going_on)}"
        f"{''.join(f'; {job_pairs.cost(each)}' for each in beside)}",
    )


def _lost(worst: Loss | None, budget: float, verdict: Verdict) -> str:
    if worst is None:
        return f"budget {budget * 100:.3g} % "
    if verdict is Verdict.NOT_PROVEN:
        interval = f"between {worst.low * 100:.1f} and {worst.high * 100:.1f} % with 95 % confidence"
        return f"training lost about {worst.mean * 100:.1f} % so far, {interval} (budget {budget * 100:.3g} %): "
    # Rounded up: a bound that is rounded down is none.
    bound = math.ceil(max(0.0, worst.high) * 1000) / 10
    return f"training lost <= {bound:.1f} % with 95 % confidence (budget {budget * 100:.3g} %): "


def _words(
    verdict: Verdict, worst: Loss | None, budget: float, missing: int, pace_s: float | None, *, over: bool
) -> str:
    """The verdict, and what is missing to one; ``missing``: windows to an estimate; ``pace_s``: from one to the next."""
    match verdict:
        case Verdict.KEPT:
            return "kept"
        case Verdict.NOT_KEPT:
            return "not kept"
        case Verdict.UNMEASURED:
            return (
                "unmeasured: its iterations are not compared (smore.track in its loop, SMORE_WORKER__PROBE_SHARE > 0)"
            )
    if over:
        return "not proven: it ended before there were enough closed windows"
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
