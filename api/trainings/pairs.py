"""Other trainings on a job's GPU instances, as its statement and its explanation show them."""

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

from api.dates import moment
from api.schemas import jobs as schemas
from api.trainings.names import ANOTHER

if TYPE_CHECKING:
    from smore.postgres.job_pairs import JobPair


def beside(pair: "JobPair", names: Mapping[str, str], workload: str) -> schemas.Beside:
    """``names`` of the jobs that may be named; ``workload`` of the job whose pair it is, '' = not said."""
    seconds = (pair.until_at if pair.until_at is not None else time.time()) - pair.from_at
    return schemas.Beside.of(
        pair,
        id=pair.other,
        name=names.get(pair.other, ANOTHER),
        since=moment(pair.from_at),
        until=moment(pair.until_at) if pair.until_at is not None else None,
        seconds=max(0.0, seconds),
        unmeasured=_unmeasured(pair, workload) if pair.loss is None else None,
    )


def cost(beside: schemas.Beside) -> str:
    """What another training has cost the job, in words."""
    minutes = beside.seconds / 60
    words = f"beside {beside.name} for {minutes:.1f} min: "
    if beside.loss is None:
        words += f"what it lost to it is unmeasured: {beside.unmeasured}"
    elif beside.loss_low is None or beside.loss_high is None:
        words += f"lost about {_whole(beside.loss)} % to it, by its profile's iteration time"
    else:
        words += f"lost {_whole(beside.loss)} % ({_whole(beside.loss_low)} to {_whole(beside.loss_high)} %) to it"
    return words + (f", and was held back for {beside.held_s:.1f} s" if beside.held_s else "")


def _unmeasured(pair: "JobPair", workload: str) -> str:
    if pair.beside_s is None:
        return f"too few of its iterations beside it {'were' if pair.until_at is not None else 'have been'} reported"
    profile = f"{workload} has no profile on {pair.device}" if workload else "without a workload it has no profile"
    return f"it was never alone for long enough, and {profile}"


def _whole(fraction: float) -> int:
    """Whole percents; none of them is -0."""
    return round(fraction * 100)
