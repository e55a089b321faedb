"""Who changed what."""

from typing import Annotated

from fastapi import APIRouter, Query

from api.auth import OPERATORS
from api.deps import CURSOR, AdminKey, PageLimit, TheGateway
from api.schemas import audit as schemas
from api.schemas.fields import Moment, Word
from api.server.bodies import BoundedRoute
from smore.domain.errors import Forbidden

router = APIRouter(prefix="/v1/audit", tags=["audit"], route_class=BoundedRoute)


@router.get("")
def list_audit(
    gateway: TheGateway,
    caller: AdminKey,
    project: Annotated[Word | None, Query(description="Only changes in this project")] = None,
    key: Annotated[Word | None, Query(description="Only changes by the API key with this id")] = None,
    route: Annotated[Word | None, Query(description="Any part of method and path template")] = None,
    target: Annotated[Word | None, Query(description="What was changed, as a whole: `job/ID`")] = None,
    since: Annotated[Moment | None, Query(description="Only changes at this moment or later")] = None,
    until: Annotated[Moment | None, Query(description="Only changes before this moment")] = None,
    limit: PageLimit = 100,
    cursor: Annotated[int | None, Query(ge=1, le=2**63 - 1, description=CURSOR)] = None,
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
    from smore.postgres.audit import AuditFilter

    wanted = AuditFilter(
        project=project,
        key_id=key,
        route=route,
        target=target,
        since=since.timestamp() if since is not None else None,
        until=until.timestamp() if until is not None else None,
    )
    entries, next_cursor = audit.read(wanted, limit=limit, cursor=cursor)
    return schemas.AuditPage(entries=entries, next_cursor=next_cursor)
