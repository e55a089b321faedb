"""The blob routes over a real folder, without servers: stretches, breaks, ranges, tickets, scopes."""

import asyncio
import hashlib
import random
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import httpx
import pytest

from api.app import create_app
from api.auth import Access
from smore.blobs.store import CHUNK, TICKET_HEADER, Blobs
from smore.domain.access import Scope, new_token, read_token
from smore.process.settings import BlobSettings, RedisSettings, Settings
from smore.redis.catalog import AsyncCatalog, KeyEntry

DATA = random.Random(0).randbytes(2 * CHUNK + 5)
DIGEST = hashlib.sha256(DATA).hexdigest()
PATH = f"/v1/blobs/{DIGEST}"


class Redis:
    def __init__(self) -> None:
        self.values: dict[str, bytes] = {}

    async def getdel(self, name: str) -> bytes | None:
        return self.values.pop(name, None)


class Stage:
    def __init__(self, home: Path) -> None:
        self.settings = Settings(
            home=home, redis=RedisSettings(url="redis://nowhere"), blobs=BlobSettings(max_bytes=len(DATA))
        )
        self.keys: dict[str, KeyEntry] = {}
        self.redis = Redis()
        self.store = Blobs(str(home / "blobs"), home / "uploads")
        self.app = create_app(self.settings)
        self.app.state.gateway = SimpleNamespace(
            settings=self.settings,
            redis=self.redis,
            blobs=lambda: self.store,
            access=Access(cast(AsyncCatalog, cast(Any, self))),
        )
        self.token = self.key(Scope.DEPLOY)

    def key(self, *scopes: Scope, project: str = "p") -> str:
        token = new_token()
        id_, digest = cast("tuple[str, str]", read_token(token))
        self.keys[id_] = KeyEntry(id=id_, project=project, digest=digest, scopes=[scope.value for scope in scopes])
        return token

    def ask(self, method: str, path: str, *, token: str | None = "own", **more: Any) -> httpx.Response:
        async def call() -> httpx.Response:
            headers = more.pop("headers", {})
            if token is not None:
                headers["Authorization"] = f"Bearer {self.token if token == 'own' else token}"
            transport = httpx.ASGITransport(app=self.app)
            async with httpx.AsyncClient(transport=transport, base_url="http://gateway") as client:
                return await client.request(method, path, headers=headers, **more)

        return asyncio.run(call())

    def patch(self, offset: int, end: int, size: int = len(DATA), path: str = PATH) -> httpx.Response:
        return self.ask("PATCH", path, params={"offset": offset, "size": size}, content=DATA[offset:end])


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    return Stage(tmp_path)


def test_in_stretches_and_back(stage: Stage) -> None:
    assert stage.ask("GET", f"{PATH}/state").json() == {"digest": DIGEST, "complete": False, "offset": 0}
    assert stage.patch(0, CHUNK).json() == {"digest": DIGEST, "complete": False, "offset": CHUNK}
    assert stage.ask("GET", PATH).json()["code"] == "blob_not_found"
    told = stage.patch(0, CHUNK)
    assert (told.status_code, told.json()["code"], told.json()["offset"]) == (409, "conflict", CHUNK)
    assert stage.patch(CHUNK, len(DATA)).json() == {"digest": DIGEST, "complete": True, "offset": len(DATA)}
    assert stage.ask("GET", f"{PATH}/state").json()["complete"] is True
    assert stage.patch(0, 10).json()["complete"] is True, "sent again by somebody who has not heard"

    whole = stage.ask("GET", PATH)
    assert (whole.status_code, whole.content, whole.headers["content-length"]) == (200, DATA, str(len(DATA)))
    rest = stage.ask("GET", PATH, headers={"Range": f"bytes={CHUNK}-"})
    assert (rest.status_code, rest.content) == (206, DATA[CHUNK:])
    assert rest.headers["content-range"] == f"bytes {CHUNK}-{len(DATA) - 1}/{len(DATA)}"
    assert stage.ask("GET", PATH, headers={"Range": f"bytes={len(DATA)}-"}).status_code == 416


def test_what_came_of_a_broken_stretch_stays(stage: Stage) -> None:
    messages = iter(
        [{"type": "http.request", "body": DATA[: CHUNK + 7], "more_body": True}, {"type": "http.disconnect"}]
    )
    sent: list[Any] = []

    async def receive() -> Any:
        return next(messages)

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": "PATCH",
        "path": PATH,
        "raw_path": PATH.encode(),
        "query_string": f"offset=0&size={len(DATA)}".encode(),
        "root_path": "",
        "scheme": "http",
        "server": ("g", 80),
        "client": ("c", 1),
        "headers": [(b"authorization", f"Bearer {stage.token}".encode())],
    }
    asyncio.run(stage.app(scope, receive, send))
    assert stage.ask("GET", f"{PATH}/state").json()["offset"] == CHUNK + 7
    assert stage.patch(CHUNK + 7, len(DATA)).json()["complete"] is True


@pytest.mark.parametrize(
    ("ask", "status", "code"),
    [
        (lambda s: s.patch(0, len(DATA), path=f"/v1/blobs/{'0' * 64}"), 422, "wrong_digest"),
        (lambda s: s.patch(0, 10, size=len(DATA) + 1), 413, "payload_too_large"),
        (lambda s: s.patch(0, 11, size=10), 413, "payload_too_large"),
        (lambda s: s.patch(11, 12, size=10), 409, "conflict"),
        (lambda s: s.patch(5, 10), 409, "conflict"),
        (lambda s: s.patch(0, 1, size=-1), 422, "invalid_input"),
        (lambda s: s.patch(0, 1, path="/v1/blobs/..%2f..%2fetc"), 404, "not_found"),
        (lambda s: s.patch(0, 1, path=f"/v1/blobs/{'A' * 64}"), 422, "invalid_input"),
        (lambda s: s.ask("GET", "/v1/blobs/x/state"), 422, "invalid_input"),
        (lambda s: s.ask("PATCH", PATH), 422, "invalid_input"),
    ],
)
def test_refusals(stage: Stage, ask: Callable[[Stage], httpx.Response], status: int, code: str) -> None:
    told = ask(stage)
    assert (told.status_code, told.json()["code"]) == (status, code), told.text
    assert list(stage.store) == []


@pytest.mark.parametrize(
    ("method", "path"), [("GET", PATH), ("GET", f"{PATH}/state"), ("PATCH", f"{PATH}?offset=0&size=1")]
)
def test_only_the_scope_deploy_opens(stage: Stage, method: str, path: str) -> None:
    assert stage.ask(method, path, token=None).status_code == 401
    others = stage.key(*(scope for scope in Scope if scope is not Scope.DEPLOY))
    assert stage.ask(method, path, token=others).json()["scope"] == "deploy"


def test_another_projects_blobs_are_not_there(stage: Stage) -> None:
    """Not even for one who knows the digest: weights may be known by theirs."""
    stage.patch(0, len(DATA))
    other = stage.key(Scope.DEPLOY, project="q")
    assert stage.ask("GET", PATH, token=other).status_code == 404
    assert stage.ask("GET", f"{PATH}/state", token=other).json()["complete"] is False


def test_a_ticket_opens_one_blob_once(stage: Stage) -> None:
    stage.patch(0, len(DATA))
    ticket = "0" * 32
    stage.redis.values[f"{stage.settings.redis.prefix}ticket:{ticket}"] = f"p/{DIGEST}".encode()
    for given, status in (("1" * 32, 401), ("*", 401), ("", 401), (ticket, 200), (ticket, 401)):
        assert stage.ask("GET", PATH, token=None, headers={TICKET_HEADER: given}).status_code == status
    stage.redis.values[f"{stage.settings.redis.prefix}ticket:{ticket}"] = f"p/{'0' * 64}".encode()
    assert stage.ask("GET", PATH, token=None, headers={TICKET_HEADER: ticket}).status_code == 401
