"""Who calls, and the sessions of browsers (api/session.py)."""

from typing import Annotated

import msgspec
from fastapi import APIRouter, Query, Request, Response

from api.auth import is_operator
from api.dates import moment
from api.deps import AnyKey, Gateway, ReadKey, TheGateway
from api.schemas import session as schemas
from api.schemas.fields import Word
from api.server.bodies import BoundedRoute
from api.session import SessionCaller
from smore.domain.access import Scope
from smore.domain.errors import Forbidden, InvalidInput, NotFound, Unauthorised
from smore.redis.catalog import KeyEntry

router = APIRouter(prefix="/v1", tags=["session"], route_class=BoundedRoute)


@router.get("/me")
async def get_me(caller: AnyKey) -> schemas.Caller:
    """Say whose request this is, and what it may do."""
    span = None
    if isinstance(caller, SessionCaller):
        entry = caller.entry
        span = schemas.SessionSpan(created_at=moment(entry.created_at), expires_at=moment(entry.expires_at))
    return schemas.Caller(**_me(caller).model_dump(), session=span)


@router.post("/session", status_code=201)
async def open_session(
    gateway: TheGateway, request: Request, response: Response, body: schemas.SessionBody
) -> schemas.Opened:
    """
    Log in from a page of the gateway: open a session of an API key, with fewer scopes and never `deploy`. One half of
    it is this answer's `session`, which the page sends as `X-SMore-Session`, the other a cookie that no script reads;
    every request needs both. `scopes` of the answer are those that hold: what the key lacks is left out. The request
    must have the gateway's own `Origin`, as browsers send it.
    """
    gateway.session_access.check_origin(request)
    key = await _key(gateway, body)
    # A page does not know the key's scopes before the login.
    held = [scope for scope in key.scopes if scope == Scope.READ or scope in body.scopes]
    cookie, half, entry = await gateway.sessions.open(key.id, held, body.hours * 3600)
    response.set_cookie(
        gateway.session_access.cookie,
        cookie,
        max_age=int(entry.expires_at - entry.created_at),
        secure=request.headers["origin"].startswith("https:"),
        httponly=True,
        samesite="strict",
    )
    me = _me(msgspec.structs.replace(key, scopes=entry.scopes))
    return schemas.Opened(**me.model_dump(), session=half, expires_at=moment(entry.expires_at))


@router.get("/session")
async def get_session(caller: ReadKey) -> schemas.Session:
    """Read the session of this request. 404 for a request with an API key."""
    entry = _session(caller).entry
    return schemas.Session.of(entry, **_me(caller).model_dump())


@router.delete("/session", status_code=204)
async def end_session(gateway: TheGateway, caller: ReadKey, response: Response) -> None:
    """Log out: end the session of this request. 404 for a request with an API key."""
    await gateway.sessions.end(caller.id, _session(caller).session)
    response.delete_cookie(gateway.session_access.cookie, httponly=True, samesite="strict")


@router.post("/session:code", status_code=201)
async def make_code(gateway: TheGateway, caller: ReadKey) -> schemas.LoginCode:
    """Make a code for `POST /v1/session`, with which a browser logs in once, within a minute, and never sees the key."""
    code, until = await gateway.sessions.code(caller.id)
    return schemas.LoginCode(code=code, expires_at=moment(until))


@router.delete("/sessions", status_code=204)
async def end_sessions(
    gateway: TheGateway, caller: ReadKey, key: Annotated[Word, Query(description="The id of the API key")]
) -> None:
    """
    End all sessions of an API key: its own, or with the scope `admin` those of any key of the project. An operator ends
    those of any project.
    """
    of = gateway.catalog.keys.get(key)
    if of is None or (of.project != caller.project and not is_operator(caller)):
        raise NotFound(f"There is no key {key} in this project.")
    if key != caller.id and Scope.ADMIN not in caller.scopes:
        raise Forbidden("Only the scope admin ends sessions of another key.", scope=Scope.ADMIN.value)
    await gateway.sessions.end_all(key)


async def _key(gateway: Gateway, body: schemas.SessionBody) -> KeyEntry:
    """The key that logs in. Raises InvalidInput, Unauthorised, Forbidden."""
    if (body.key is None) == (body.code is None):
        raise InvalidInput.at("key", "a key, or a code in place of it, is expected")
    if body.key is not None:
        return gateway.access.caller(None, body.key.encode(), Scope.READ)
    entry = gateway.catalog.keys.get(await gateway.sessions.redeem(body.code or "") or "")
    if entry is None:
        raise Unauthorised("The login code was used, or is older than a minute: `smore open` makes another one.")
    return entry


def _me(caller: KeyEntry) -> schemas.Me:
    return schemas.Me(
        key=caller.id,
        name=caller.name,
        project=caller.project,
        scopes=[Scope(scope) for scope in caller.scopes],
        operator=is_operator(caller),
    )


def _session(caller: KeyEntry) -> SessionCaller:
    if not isinstance(caller, SessionCaller):
        raise NotFound("This request has an API key, and no session.")
    return caller
