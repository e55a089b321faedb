"""Revisions in quarantine: after faults of devices no GPU instance runs them."""

from fastapi import APIRouter

from api.deps import AdminKey, Gateway, ReadKey, TheGateway, TheTrail
from api.schemas import quarantine as schemas
from api.server.bodies import BoundedRoute
from smore.domain.errors import NotFound
from smore.redis.quarantine import Faults

router = APIRouter(prefix="/v1/quarantine", tags=["quarantine"], route_class=BoundedRoute)


def _faults(gateway: Gateway) -> Faults:
    return Faults(gateway.client(), gateway.settings.redis.prefix)


@router.get("")
def list_quarantine(gateway: TheGateway, caller: ReadKey) -> schemas.Quarantine:
    """List the project's revisions in quarantine: no GPU instance runs them, because they broke devices."""
    return schemas.Quarantine(
        revisions=[
            schemas.Quarantined.of(verdict, function=function.partition("/")[2], revision=revision)
            for (function, revision), verdict in sorted(_faults(gateway).quarantined().items())
            if function.partition("/")[0] == caller.project
        ]
    )


@router.delete("/{function}")
def lift_quarantine(gateway: TheGateway, caller: AdminKey, trail: TheTrail, function: str) -> schemas.Lifted:
    """
    End the quarantine of a function's revisions; their faults are counted from zero. A new revision is not in
    quarantine.
    """
    with trail.change(caller, f"function/{function}") as change:
        revisions = _faults(gateway).lift(f"{caller.project}/{function}")
        if not revisions:
            raise NotFound(f"No revision of {function} is in quarantine.")
        change.after = {"lifted": revisions}
    return schemas.Lifted(function=function, revisions=revisions)
