"""
Blobs of uploaded functions: their state, their upload in parts, their download.

A client sends a ``PATCH`` at the offset where the upload stands, until the blob is complete; after a broken connection
it asks for the state and goes on. Bytes go from the connection to the disk in pieces; no blob is in memory as a whole.
"""

import re
from collections.abc import AsyncIterator
from typing import Annotated, Any

from fastapi import APIRouter, Path, Query, Request
from fastapi.concurrency import run_in_threadpool
from starlette.concurrency import iterate_in_threadpool
from starlette.responses import Response, StreamingResponse

from api.deps import DeployKey, Gateway, TheGateway, caller_of
from api.schemas import blobs as schemas
from api.server.bodies import BoundedRoute
from api.server.invocation_description import header
from smore.blobs.store import CHUNK, TICKET_HEADER, Upload, redeem
from smore.domain.access import Scope
from smore.domain.errors import BlobNotFound, Unauthorised
from smore.process.observability import logger

log = logger("api.blobs")
router = APIRouter(prefix="/v1/blobs", tags=["blobs"], route_class=BoundedRoute)

Digest = Annotated[str, Path(pattern="^[0-9a-f]{64}$")]
#: The largest size that a request may name; every limit is below it.
_MOST = 1 << 50

_RANGE = re.compile(r"bytes=(\d{1,18})-")
_BYTES = {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}


@router.get("/{digest}/state")
def get_state(gateway: TheGateway, caller: DeployKey, digest: Digest) -> schemas.BlobState:
    """
    Read how much of a blob has arrived. Asking for a complete blob prolongs the time that it is kept without a revision
    that names it.
    """
    blobs = gateway.blobs()
    size = blobs.size(caller.project, digest)
    if size is None:
        return schemas.BlobState(digest=digest, complete=False, offset=blobs.offset(caller.project, digest))
    blobs.keep(caller.project, digest)
    return schemas.BlobState(digest=digest, complete=True, offset=size)


@router.patch("/{digest}", openapi_extra={"requestBody": {"required": True, "content": _BYTES}})
async def upload(
    gateway: TheGateway,
    caller: DeployKey,
    request: Request,
    digest: Digest,
    offset: Annotated[
        int, Query(ge=0, le=_MOST, description="Where the body's first byte belongs: where the upload stands")
    ],
    size: Annotated[int, Query(ge=0, le=_MOST, description="Bytes of the whole blob")],
) -> schemas.BlobState:
    """
    Send one part of a blob. What has arrived stays when the connection breaks. The answer is 409 with `offset` where
    the upload stands elsewhere. The part that completes the blob is answered after its digest has been checked: 422
    `wrong_digest` where it differs, and then nothing is kept.
    """
    limits = gateway.settings.blobs
    blobs = await run_in_threadpool(gateway.blobs)
    if (stored := await run_in_threadpool(blobs.size, caller.project, digest)) is not None:
        return schemas.BlobState(digest=digest, complete=True, offset=stored)
    part = await run_in_threadpool(
        blobs.upload,
        caller.project,
        digest,
        offset=offset,
        size=size,
        most=limits.max_bytes,
        project_most=limits.project_bytes,
    )
    with part:
        await _receive(request, part)
        complete = await run_in_threadpool(part.finish)
    if complete:
        log.info("blob stored", project=caller.project, digest=digest, size=size, key=caller.id)
    return schemas.BlobState(digest=digest, complete=complete, offset=part.offset)


async def _receive(request: Request, part: Upload) -> None:
    """Write the body as it comes, many packets at a time: a thread for each would cost more than the writing."""
    waiting = bytearray()
    try:
        async for piece in request.stream():
            waiting += piece
            if len(waiting) >= CHUNK:
                whole, waiting = waiting, bytearray()
                await run_in_threadpool(part.write, whole)
    finally:
        # What came before a connection broke counts too: the client goes on from there.
        await run_in_threadpool(part.write, waiting)


_TEXT = {"type": "string"}
_DOWNLOADED = {
    "Accept-Ranges": {"schema": _TEXT, "description": "`bytes`"},
    "ETag": {"schema": _TEXT, "description": "The digest, in quotes"},
}
_PART = {"Content-Range": {"schema": _TEXT, "description": "`bytes FIRST-LAST/SIZE`, or `bytes */SIZE` with 416"}}
_DOWNLOAD: dict[str, Any] = {
    "parameters": [header("Range", "`bytes=N-`: from byte N on")],
    "security": [{"HTTPBearer": []}, {"APIKeyHeader": []}],
}


@router.get(
    "/{digest}",
    response_class=StreamingResponse,
    responses={
        200: {"description": "The whole blob", "content": _BYTES, "headers": _DOWNLOADED},
        206: {"description": "The part that was asked for", "content": _BYTES, "headers": {**_DOWNLOADED, **_PART}},
        416: {"description": "It has no such byte", "headers": {**_DOWNLOADED, **_PART}},
    },
    openapi_extra=_DOWNLOAD,
)
async def download(gateway: TheGateway, request: Request, digest: Digest) -> Response:
    """
    Read a blob; with `Range: bytes=N-` from byte N on. It needs a key with the scope `deploy`; GPU workers of other
    hosts show a ticket instead.
    """
    project = await _project(gateway, request, digest)
    blobs = await run_in_threadpool(gateway.blobs)
    size = await run_in_threadpool(blobs.size, project, digest)
    if size is None:
        raise BlobNotFound
    wanted = _RANGE.fullmatch(request.headers.get("range", ""))
    first = int(wanted[1]) if wanted is not None else 0
    headers = {"Accept-Ranges": "bytes", "ETag": f'"{digest}"'}
    if wanted is not None and first >= size:
        return Response(status_code=416, headers={**headers, "Content-Range": f"bytes */{size}"})
    headers["Content-Length"] = str(size - first)
    if wanted is not None:
        headers["Content-Range"] = f"bytes {first}-{size - 1}/{size}"
    pieces: AsyncIterator[bytes] = iterate_in_threadpool(await run_in_threadpool(blobs.read, project, digest, first))
    return StreamingResponse(pieces, 200 if wanted is None else 206, headers, "application/octet-stream")


async def _project(gateway: Gateway, request: Request, digest: str) -> str:
    """The project whose blob is meant: of the ticket, else of the key. Raises Unauthorised, Forbidden."""
    ticket = request.headers.get(TICKET_HEADER)
    if ticket is None:
        return (await caller_of(gateway, request.scope, Scope.DEPLOY)).project
    project = await redeem(gateway.redis, gateway.settings.redis.prefix, ticket, digest)
    if project is None:
        raise Unauthorised("The ticket is not valid, or not any more.")
    return project
