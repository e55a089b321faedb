"""API keys of a project."""

from fastapi import APIRouter

from api.auth import require_operator
from api.deps import AdminKey, TheGateway, TheTrail
from api.schemas import keys as schemas
from api.server.bodies import BoundedRoute
from smore.domain.access import Key

router = APIRouter(prefix="/v1/keys", tags=["keys"], route_class=BoundedRoute)


@router.post("", status_code=201)
def create_key(gateway: TheGateway, caller: AdminKey, trail: TheTrail, body: schemas.KeyBody) -> Key:
    """
    Create an API key. Its secret is in this answer and nowhere else. The scopes `deploy` and `jobs` equal a shell on
    the GPU workers.
    """
    project = caller.project if body.project is None else body.project
    if project != caller.project:
        require_operator(caller)
    with trail.change(caller, f"key/{body.name}", project=project) as change:
        entry, token = gateway.store().create_key(project, body.name, body.scopes)
        change.target, change.after = f"key/{entry.id}", {"name": body.name, "scopes": entry.scopes}
    return Key(id=entry.id, name=body.name, project=project, scopes=body.scopes, key=token)


@router.get("")
def list_keys(gateway: TheGateway, caller: AdminKey) -> schemas.Keys:
    """List the API keys of the project without their secrets, the newest first, revoked ones included."""
    return schemas.Keys(keys=gateway.store().list_keys(caller.project))


@router.delete("/{key}", status_code=204)
def revoke_key(gateway: TheGateway, caller: AdminKey, trail: TheTrail, key: str) -> None:
    """Revoke an API key. This gateway refuses it from its answer on, others a moment later."""
    with trail.change(caller, f"key/{key}", {"revoked": False}) as change:
        gateway.store().revoke_key(caller.project, key)
        change.after = {"revoked": True}
