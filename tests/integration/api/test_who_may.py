"""
Every operation of the API, asked by every kind of caller: with a key, with sessions whole and in parts, from pages of other
origins.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import httpx
import pytest

from api.app import Application, create_app
from api.server.examples import BODIES, FILES, PARAMETERS, QUERIES
from api.session import FORBIDDEN, HEADER
from smore.domain.access import Scope
from smore.postgres.catalog import Store
from smore.process.settings import Settings
from tests.support.eventually import eventually
from tests.support.gateway import Served

#: What no session may do, whatever its scopes.
MUST_NOT: Final = re.compile(
    r"(POST|DELETE) /v1/keys.*|.* /v1/(secrets|blobs|traces).*|(PUT|DELETE) /v1/functions/\{function\}"
    r"|(POST|PATCH) /v1/projects.*|POST /v1/jobs/(attach|\{job\}/steps)|POST /v1/session:code|GET /metrics"
)
LOGIN: Final = "POST /v1/session"
LOGOUT: Final = "DELETE /v1/session"
#: What stands in a path.
TARGETS: Final = {**PARAMETERS, "function": "no-such", "model": "no-such"}


@dataclass(frozen=True)
class Operation:
    name: str
    keyed: bool
    #: What the document says of its 403.
    refusal: str

    @property
    def reads(self) -> bool:
        return self.name.startswith("GET ")

    @property
    def forbidden(self) -> bool:
        return self.name in FORBIDDEN or " /v2" in self.name


@dataclass(frozen=True)
class Door:
    """A gateway, what its operations are, and the tokens of keys that know it."""

    url: str
    operations: list[Operation]
    operator: str
    stranger: str
    revoked: str

    def session(self, token: str, *scopes: str) -> dict[str, str]:
        """The headers of a page that has logged in."""
        answer = httpx.post(
            f"{self.url}/v1/session", json={"key": token, "scopes": scopes}, headers={"Origin": self.url}
        )
        cookie = answer.headers["set-cookie"].partition(";")[0]
        return {"Cookie": cookie, HEADER: answer.json()["session"], "Origin": self.url}


@pytest.fixture
def door(application: Application, store: Store) -> Iterator[Door]:
    store.create_project("other")
    operator, stranger, revoked = (
        store.create_key(project, name, list(Scope))
        for project, name in (("default", "operator"), ("other", "stranger"), ("default", "revoked"))
    )
    operations = [
        Operation(f"{method.upper()} {path}", "security" in one, one["responses"].get("403", {}).get("description", ""))
        for path, item in application.openapi()["paths"].items()
        for method, one in item.items()
    ]
    with Served(application) as served:
        known = application.state.gateway.catalog.keys
        eventually(lambda: revoked[0].id in known, what="the keys")
        yield Door(served.url, operations, operator[1], stranger[1], revoked[1])


def ask(client: httpx.Client, operation: Operation, headers: Mapping[str, str]) -> tuple[int, dict[str, Any]]:
    method, _, path = operation.name.partition(" ")
    query = QUERIES.get(operation.name, "topics=gpus" if path == "/v1/live" else "")
    body: dict[str, Any] = {}
    if operation.name in FILES:
        body = {"content": b"x", "headers": {**headers, "Content-Type": FILES[operation.name][0]}}
    elif operation.name in BODIES:
        given = BODIES[operation.name]
        body = {"json": {field: given[field] for field in given if field != "env"}}
    url = f"{path.format(**TARGETS)}{f'?{query}' if query else ''}"
    with client.stream(method, url, **{"headers": headers, **body}) as answer:
        if answer.headers.get("content-type", "").startswith("text/event-stream"):
            return answer.status_code, {}
        answer.read()
        problem = answer.headers.get("content-type", "").startswith(("application/problem", "application/json"))
        found = answer.json() if problem and answer.content else {}
        return answer.status_code, found if isinstance(found, dict) else {}


#: Kind of caller → the headers of its requests, and what it is answered: ``in`` = it is let in, ``out`` = 401, ``origin``,
#: ``tick`` = let in where `read` is enough, ``other`` = let in where no operator is needed.
def kinds(door: Door, application: Application) -> dict[str, tuple[dict[str, str], str]]:
    ticks = ("read", "invoke", "jobs", "admin")
    whole, another = door.session(door.operator, *ticks), door.session(door.operator, *ticks)
    instance = application.state.gateway.instance
    ended = door.session(door.operator, *ticks)
    httpx.delete(f"{door.url}/v1/session", headers=ended).raise_for_status()
    of_revoked = door.session(door.revoked, *ticks)
    elsewhere = {**whole, "Cookie": whole["Cookie"].replace(instance, "000000000000")}
    return {
        "key": ({"Authorization": f"Bearer {door.operator}"}, "key"),
        "key from a page elsewhere": ({"X-API-Key": door.operator, "Origin": "http://elsewhere"}, "key"),
        "session": (whole, "in"),
        "session without ticks": (door.session(door.operator), "tick"),
        "session of another project": (door.session(door.stranger, *ticks), "other"),
        "none": ({}, "out"),
        "cookie alone": ({name: whole[name] for name in ("Cookie", "Origin")}, "out"),
        "header alone": ({name: whole[name] for name in (HEADER, "Origin")}, "out"),
        "halves of two sessions": ({**whole, HEADER: another[HEADER]}, "out"),
        "cookie of another platform": (elsewhere, "out"),
        "ended session": (ended, "out"),
        "revoked key": ({"Authorization": f"Bearer {door.revoked}"}, "revoked"),
        "session of a revoked key": (of_revoked, "revoked"),
        "other origin": ({**whole, "Origin": "https://elsewhere.example"}, "origin"),
        "other port": ({**whole, "Origin": "http://127.0.0.1:1"}, "origin"),
        "origin of no page": ({**whole, "Origin": "null"}, "origin"),
        "page of the same site": ({**whole, "Sec-Fetch-Site": "same-site"}, "origin"),
        "no origin": ({name: whole[name] for name in ("Cookie", HEADER)}, "no origin"),
    }


def wrong(operation: Operation, wanted: str, status: int, body: Mapping[str, Any]) -> bool:
    """Whether an answer is another than the kind of caller is to get."""
    code = body.get("code")
    if status >= 500 and status != 503:
        return True
    if not operation.keyed:
        return operation.name != LOGIN and status in (401, 403)
    if wanted in ("out", "revoked"):
        return (status, code) != (401, "unauthorised")
    if wanted == "origin" or (wanted == "no origin" and not operation.reads):
        return (status, code, body.get("field")) != (403, "forbidden", "Origin")
    if wanted != "key" and operation.forbidden:
        return (status, code) != (403, "session_forbidden")
    refused = (wanted == "tick" and "`read`" not in operation.refusal) or (
        wanted in ("tick", "other") and "operator" in operation.refusal
    )
    return (status, code) != (403, "forbidden") if refused else status in (401, 403)


def test_every_operation_asks_who_calls(door: Door, application: Application, store: Store) -> None:
    asked = kinds(door, application)
    store.revoke_key("default", door.revoked.split("_")[1])
    known = application.state.gateway.catalog.keys
    eventually(lambda: door.revoked.split("_")[1] not in known, what="the revocation")
    faults = []
    with httpx.Client(base_url=door.url, timeout=30) as client:
        for kind, (headers, wanted) in asked.items():
            for operation in door.operations:
                if operation.name == LOGOUT and wanted in ("key", "in", "tick", "other"):
                    continue  # its own test
                status, body = ask(client, operation, headers)
                if wrong(operation, wanted, status, body):
                    faults.append(f"{kind}: {operation.name}: {status} {body.get('code')} {body.get('detail')}")
    assert faults == []
    assert len(door.operations) > 100


def test_what_would_outlast_a_session_or_bring_code_in_is_forbidden(door: Door) -> None:
    assert {each.name for each in door.operations if MUST_NOT.fullmatch(each.name)} == FORBIDDEN


def test_pages_of_other_origins_get_no_credentials(config: Settings) -> None:
    """Whom CORS lets in sends a key: no origin may ever be allowed to use a browser's session."""
    open_to = config.model_copy(update={"api": config.api.model_copy(update={"cors_origins": ("https://a.example",)})})
    with Served(create_app(open_to)) as served:
        asks = {
            "Origin": "https://a.example",
            "Access-Control-Request-Method": "POST",
            "Access-Control-Request-Headers": HEADER,
        }
        for answer in (
            httpx.options(f"{served.url}/v1/me", headers=asks),
            httpx.get(f"{served.url}/v1/me", headers=asks),
        ):
            assert answer.headers["access-control-allow-origin"] == "https://a.example"
            assert "access-control-allow-credentials" not in answer.headers
