"""Secrets of a project's functions: only the environment of a runner gets their values."""

from typing import Annotated

from fastapi import APIRouter, Path

from api.deps import DeployKey, TheGateway, TheTrail
from api.schemas import secrets as schemas
from api.schemas.fields import spelt
from api.server.bodies import BoundedRoute
from smore.domain.errors import InvalidInput
from smore.domain.function import SECRET_NAME, parse_secret_name
from smore.domain.secret import Secret

router = APIRouter(prefix="/v1/secrets", tags=["secrets"], route_class=BoundedRoute)


@router.get("")
def list_secrets(gateway: TheGateway, caller: DeployKey) -> schemas.Secrets:
    """List the names of the project's secrets. No answer contains a value."""
    return schemas.Secrets(secrets=gateway.store().list_secrets(caller.project))


@router.put("/{secret}")
def put_secret(
    gateway: TheGateway,
    caller: DeployKey,
    trail: TheTrail,
    secret: Annotated[str, Path(json_schema_extra=spelt(SECRET_NAME))],
    body: schemas.SecretBody,
) -> Secret:
    """Set a secret, or replace its value. A function that names it gets the new value when it is loaded next."""
    name = parse_secret_name(secret, "secret")
    if len(body.value) < schemas.SHORTEST:
        raise InvalidInput(
            f"The value of the secret {name} has {len(body.value)} characters: at least {schemas.SHORTEST} are expected,"
            " so that it can be masked in logs.",
            field="value",
        )
    sealed = gateway.vault().seal(caller.project, name, body.value)
    with trail.change(caller, f"secret/{secret}"):
        return gateway.store().put_secret(caller.project, secret, sealed)


@router.delete("/{secret}", status_code=204)
def delete_secret(gateway: TheGateway, caller: DeployKey, trail: TheTrail, secret: str) -> None:
    """Delete a secret. A function that names it fails to load from now on; loaded instances keep the value."""
    with trail.change(caller, f"secret/{secret}"):
        gateway.store().delete_secret(caller.project, secret)
