"""Who changed what."""

from typing import Annotated

from fastapi import APIRouter, Query

from api.auth import OPERATORS
from api.deps import AdminKey, TheGateway
from api.schemas import audit as schemas
from api.schemas.fields import Moment, Word
from api.server.bodies import BoundedRoute
from smore.domain.errors import Forbidden

router = APIRouter(prefix="/v1/audit", tags=["audit"], route_class=BoundedRoute)


@router.get("")
def list_audit(
    gateway: TheGateway,
    caller: AdminKey,
    project: Word | None = None,
    key: Word | None = None,
    route: Word | None = None,
    target: Word | None = None,
    since: Moment | None = None,
    until: Moment | None = None,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
    cursor: Annotated[int | None, Query(ge=1, le=2**63 - 1)] = None,
) -> schemas.AuditPage:
    """
    List who changed what, the newest first. `route` finds any part of a route; the other fields are compared as a
    whole; `until` itself is not included.

    Administrators of the project `default` see all projects, others see their own.
    """
    if caller.project != OPERATORS:
        if project not in (None, caller.project):
            raise Forbidden(f"Only administrators of the project {OPERATORS} see other projects.")
        project = caller.project
    audit = gateway.audit()
    from smore.postgres.audit import Wanted

    wanted = Wanted(
        project=project,
        key_id=key,
        route=route,
        target=target,
        since=since.timestamp() if since is not None else None,
        until=until.timestamp() if until is not None else None,
    )
    entries, next_cursor = audit.read(wanted, limit=limit, cursor=cursor)
    return schemas.AuditPage(entries=entries, next_cursor=next_cursor)
