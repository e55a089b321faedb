"""How functions are kept ready, and what that came to."""

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

from fastapi import APIRouter, Query

from api.auth import project_of
from api.dates import moment
from api.deps import OfProject, ReadKey, TheGateway
from api.schemas import prewarm as schemas
from api.server.bodies import BoundedRoute
from smore.domain.prewarming import PrewarmStatus
from smore.messages.forecasts import decode_prewarm_report
from smore.redis.forecasts import PublishedForecasts

if TYPE_CHECKING:
    from smore.postgres.arrivals import FunctionAccount

router = APIRouter(prefix="/v1", tags=["prewarming"], route_class=BoundedRoute)

#: Of invocations and cold starts minutes are kept (SMORE_POSTGRES__MINUTES_DAYS), of the rest rows
#: (SMORE_POSTGRES__RETENTION_DAYS).
DAY_S = 86_400.0


@router.get("/prewarm")
def get_prewarm(
    gateway: TheGateway,
    caller: ReadKey,
    since_s: Annotated[
        float, Query(gt=0, le=366 * DAY_S, description="Seconds back from now that are counted")
    ] = DAY_S,
    project: OfProject = None,
) -> schemas.Prewarm:
    """
    Read how the project's functions are kept loaded: by which rule, how many instances now, and what that achieved and
    cost.
    """
    now, of = time.time(), project_of(caller, project)
    raw = PublishedForecasts(gateway.client(), gateway.settings.redis.prefix).state()
    state = decode_prewarm_report(raw) if raw is not None else None
    accounts = {one.function: one for one in gateway.prewarming().account(now - since_s, now, of)}
    mine = f"{of}/"
    kept = {
        one.function: one for one in (state.functions if state is not None else ()) if one.function.startswith(mine)
    }
    names = sorted({*kept, *accounts})
    known: dict[str, Any] = {
        "since": moment(now - since_s),
        "counts": _total(list(accounts.values())),
        "functions": [_function(name.removeprefix(mine), kept.get(name), accounts.get(name)) for name in names],
    }
    if state is None:
        return schemas.Prewarm(leading=False, **known)
    return schemas.Prewarm.of(state, leading=True, **known)


def _function(name: str, kept: PrewarmStatus | None, account: "FunctionAccount | None") -> schemas.PrewarmFunction:
    counts = schemas.PrewarmCounts.of(account) if account is not None else schemas.PrewarmCounts()
    if kept is None:
        return schemas.PrewarmFunction(function=name, counts=counts)
    return schemas.PrewarmFunction.of(
        kept,
        function=name,
        counts=counts,
        holds=[
            schemas.PrewarmHold(
                since=moment(begin), until=moment(end) if end is not None else None, instances=instances
            )
            for begin, end, instances in kept.holds
        ],
    )


def _total(accounts: "Sequence[FunctionAccount]") -> schemas.PrewarmCounts:
    sums: Counter[str] = Counter()
    reasons: Counter[str] = Counter()
    for account in accounts:
        reasons.update(account.unforeseen)
        sums.update({key: value for key, value in asdict(account).items() if key not in ("function", "unforeseen")})
    return schemas.PrewarmCounts(**sums, unforeseen=dict(reasons))
