"""Sessions of browsers, over a real Redis: who logs in, what a session may do, when it ends."""

import time
from collections.abc import Iterator
from typing import Any, cast

import httpx
import pytest
import redis
from msgspec import json, structs

from api.app import Application, create_app
from smore.domain.access import Scope
from smore.postgres.catalog import Store
from smore.process.settings import ApiSettings, Settings
from smore.redis import sessions
from smore.redis.catalog import Catalog
from tests.support.eventually import eventually
from tests.support.gateway import Served, add_key, problem

HEADER = "X-SMore-Session"
TICKS = ["invoke", "jobs", "admin"]
BACKSLASHES = "\\" * 64


@pytest.fixture
def http(application: Application, store: Store) -> Iterator[httpx.Client]:
    """Without a key, as a page of the gateway: every request says its origin."""
    with Served(application) as served, httpx.Client(base_url=served.url, timeout=30) as client:
        client.headers["Origin"] = served.url
        yield client


@pytest.fixture
def token(http: httpx.Client, catalog: Catalog, application: Application) -> str:
    return known(application, add_key(catalog, *Scope))


def known(application: Application, token: str) -> str:
    id_ = token.split("_")[1]
    eventually(lambda: id_ in application.state.gateway.catalog.keys, what="the key")
    return token


def log_in(http: httpx.Client, **body: Any) -> httpx.Response:
    """Afterwards the client has both halves."""
    answer = http.post("/v1/session", json=body)
    if answer.status_code == 201:
        http.headers[HEADER] = answer.json()["session"]
    return answer


def session_keys(redis_client: "redis.Redis") -> dict[str, bytes]:
    """What Redis has of sessions."""
    keys = cast("list[bytes]", redis_client.keys("smore:session:*"))
    return {key.decode(): cast(bytes, redis_client.get(key)) for key in keys}


def test_a_session_has_the_ticked_scopes_of_its_key(http: httpx.Client, token: str) -> None:
    opened = log_in(http, key=token, scopes=["invoke"], hours=1)

    assert opened.status_code == 201
    cookie = opened.headers["set-cookie"]
    assert {"HttpOnly", "SameSite=strict", "Path=/", "Max-Age=3600"} <= set(
        cookie.split("; ")
    ) and "Secure" not in cookie
    assert cookie.startswith(f"smore_{http.get('/healthz').json()['instance']}=")
    me = http.get("/v1/me").json()
    assert (me["key"], me["scopes"], me["operator"]) == (token.split("_")[1], ["invoke", "read"], False)
    assert me["session"]["expires_at"] == opened.json()["expires_at"]
    assert http.get("/v1/session").json()["scopes"] == ["invoke", "read"]
    problem(http.post("/v1/queues/pause"), 403, "forbidden")


def test_a_session_has_no_scope_that_its_key_lacks(
    http: httpx.Client, application: Application, catalog: Catalog
) -> None:
    reader = known(application, add_key(catalog, Scope.READ, Scope.DEPLOY))

    assert log_in(http, key=reader, scopes=TICKS).json()["scopes"] == ["read"]
    assert http.get("/v1/me").json()["scopes"] == ["read"]


def test_a_cookie_is_sent_over_tls_alone_where_the_page_came_by_it(http: httpx.Client, token: str) -> None:
    origin = {"Origin": str(http.base_url).rstrip("/").replace("http:", "https:"), "X-Forwarded-Proto": "https"}

    assert "Secure" in http.post("/v1/session", json={"key": token}, headers=origin).headers["set-cookie"]


def test_behind_a_proxy_that_changes_host_the_setting_says_the_origin(
    config: Settings, store: Store, catalog: Catalog
) -> None:
    token, public = add_key(catalog, Scope.READ), "https://gpus.example.org"
    behind = config.model_copy(update={"api": config.api.model_copy(update={"public_url": public})})
    with Served(create_app(behind)) as served:

        def opened(origin: str) -> httpx.Response:
            return httpx.post(f"{served.url}/v1/session", json={"key": token}, headers={"Origin": origin})

        assert "Secure" in opened(public).headers["set-cookie"]
        problem(opened("https://elsewhere.example.org"), 403, "forbidden")
    for wrong in ("gpus.example.org", f"{public}/", f"{public}/smore"):
        with pytest.raises(ValueError, match="without a path"):
            ApiSettings(public_url=wrong)


def test_who_is_refused_gets_no_cookie(
    http: httpx.Client, token: str, application: Application, catalog: Catalog
) -> None:
    blind = known(application, add_key(catalog, Scope.INVOKE))

    for body, status, code in (
        ({"key": blind}, 403, "forbidden"),
        ({"key": token[:-1]}, 401, "unauthorised"),
        ({"code": "x"}, 401, "unauthorised"),
        ({"key": token, "scopes": ["deploy"]}, 422, "invalid_input"),
        ({"key": token, "hours": 13}, 422, "invalid_input"),
        ({"key": token, "code": "x"}, 422, "invalid_input"),
        ({}, 422, "invalid_input"),
    ):
        answer = log_in(http, **body)
        problem(answer, status, code)
        assert "set-cookie" not in answer.headers
    for headers in (
        {"Origin": ""},
        {"Origin": "null"},
        {"Origin": "http://127.0.0.1:1"},
        {"Sec-Fetch-Site": "same-site"},
    ):
        answer = http.post("/v1/session", json={"key": token}, headers=headers)
        assert problem(answer, 403, "forbidden")["field"] == "Origin"
        assert "set-cookie" not in answer.headers


def test_a_code_logs_in_once(http: httpx.Client, token: str, redis_client: "redis.Redis") -> None:
    with httpx.Client(base_url=http.base_url, headers={"X-API-Key": token}) as cli:
        made = cli.post("/v1/session:code")
    assert made.status_code == 201
    code = made.json()["code"]
    (kept,) = cast("list[bytes]", redis_client.keys("smore:login:*"))
    assert code not in kept.decode() and 0 < redis_client.ttl(kept) <= sessions.CODE_S

    assert log_in(http, code=code, scopes=TICKS).status_code == 201
    assert http.get("/v1/me").json()["operator"]
    problem(http.post("/v1/session", json={"code": code}), 401, "unauthorised")
    # Else a session would make others, with scopes that it was not given.
    problem(http.post("/v1/session:code"), 403, "session_forbidden")


def test_redis_keeps_no_half(http: httpx.Client, token: str, redis_client: "redis.Redis") -> None:
    half = log_in(http, key=token).json()["session"]
    cookie = next(iter(http.cookies.values()))

    ((key, entry),) = session_keys(redis_client).items()
    assert half not in key + entry.decode() and cookie not in key + entry.decode()


def test_a_session_ends_unused_and_at_its_end(
    http: httpx.Client, token: str, redis_client: "redis.Redis", application: Application
) -> None:
    log_in(http, key=token)
    ((key, raw),) = session_keys(redis_client).items()
    assert redis_client.ttl(key) <= sessions.UNUSED_S
    entry = json.decode(raw, type=sessions.SessionEntry)
    assert entry.expires_at - entry.created_at == sessions.LASTS_S
    long_ago = structs.replace(entry, seen_at=time.time() - sessions.NOTED_S)
    redis_client.set(key, json.encode(long_ago), ex=60)
    assert http.get("/v1/session").status_code == 200
    assert redis_client.ttl(key) > 60
    assert json.decode(session_keys(redis_client)[key], type=sessions.SessionEntry).seen_at > long_ago.seen_at
    # The clock of this Redis is not asked.
    redis_client.set(key, json.encode(structs.replace(entry, expires_at=time.time())))
    problem(http.get("/v1/session"), 401, "unauthorised")


def test_a_session_is_ended(http: httpx.Client, token: str, redis_client: "redis.Redis") -> None:
    log_in(http, key=token)
    halves = {HEADER: http.headers[HEADER], "Cookie": f"{next(iter(http.cookies))}={next(iter(http.cookies.values()))}"}

    ended = http.delete("/v1/session")

    assert ended.status_code == 204 and "Max-Age=0" in ended.headers["set-cookie"]
    http.cookies.clear()
    problem(http.get("/v1/me", headers=halves), 401, "unauthorised")
    assert redis_client.keys("smore:session*") == []


def test_sessions_of_a_key_end_together(
    http: httpx.Client, token: str, application: Application, catalog: Catalog, redis_client: "redis.Redis"
) -> None:
    stranger = known(application, add_key(catalog, *Scope, project="other"))
    reader = known(application, add_key(catalog, Scope.READ))
    of = {"key": token.split("_")[1]}
    for _ in range(3):
        log_in(http, key=token)

    def end(key: str) -> httpx.Response:
        with httpx.Client(base_url=http.base_url, headers={"X-API-Key": key}) as client:
            return client.delete("/v1/sessions", params=of)

    problem(end(stranger), 404, "not_found")
    problem(end(reader), 403, "forbidden")
    assert http.get("/v1/me").status_code == 200
    assert end(token).status_code == 204
    problem(http.get("/v1/me"), 401, "unauthorised")
    assert redis_client.keys("smore:session*") == []


def test_the_oldest_session_makes_room(http: httpx.Client, token: str, redis_client: "redis.Redis") -> None:
    log_in(http, key=token)
    ((name, cookie),) = http.cookies.items()
    first = {"Cookie": f"{name}={cookie}", HEADER: http.headers[HEADER]}
    for _ in range(sessions.MOST):
        log_in(http, key=token)

    assert len(redis_client.keys("smore:session:*")) == sessions.MOST
    assert http.get("/v1/me").status_code == 200
    http.cookies.clear()
    problem(http.get("/v1/me", headers=first), 401, "unauthorised")


def test_no_cookie_is_unquoted(http: httpx.Client, token: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Python takes time for that which grows with the square of its length: 30 kB stopped the gateway for 10 s."""
    monkeypatch.setattr("http.cookies._unquote", lambda value: value if '"' not in value else pytest.fail(value))
    log_in(http, key=token, scopes=["invoke"])
    ((name, cookie),) = http.cookies.items()
    http.cookies.clear()
    others = {"Cookie": f'x="{BACKSLASHES}"; {name}={cookie}; y="{BACKSLASHES}"'}

    assert http.get("/v1/me", headers=others).json()["session"] is not None
    problem(http.post("/v1/functions/no-such/invocations", json={}, headers=others), 404, "function_not_found")
    assert http.get("/healthz", headers={"Cookie": f'{name}="{BACKSLASHES}"'}).status_code == 200


def test_a_session_that_never_was_is_no_error_of_the_key(http: httpx.Client, token: str) -> None:
    with_key = {"Authorization": f"Bearer {token}", HEADER: "x", "Cookie": "smore_x=y"}

    assert http.get("/v1/me", headers=with_key).json()["session"] is None
    problem(http.get("/v1/session", headers=with_key), 404, "not_found")


def test_a_session_starts_no_program_of_its_own(http: httpx.Client, token: str) -> None:
    log_in(http, key=token, scopes=TICKS)

    for more, field in (
        ({"argv": ["/bin/sh"]}, "argv[0]"),
        ({"argv": ["/bin/sh"], "cwd": "/"}, "argv[0]"),
        ({"argv": ["zoo.train", "--model", "bert"], "env": {"LD_PRELOAD": "x"}}, "env"),
        ({"argv": ["zoo.train", "--model", "bert"], "env": {"T": {"secret": "T"}}}, "env"),
    ):
        for path in ("/v1/jobs", "/v1/jobs:dryRun"):
            assert problem(http.post(path, json={"name": "a", **more}), 403, "session_forbidden")["field"] == field


def test_the_audit_says_by_which_session(http: httpx.Client, token: str) -> None:
    log_in(http, key=token, scopes=["admin"])
    http.post("/v1/queues/pause").raise_for_status()
    with httpx.Client(base_url=http.base_url, headers={"X-API-Key": token}) as cli:
        cli.post("/v1/queues/resume").raise_for_status()

    by_key, by_session = http.get("/v1/audit").json()["entries"]

    assert by_key["session"] is None and len(by_session["session"]) == 12
    assert by_key["key_id"] == by_session["key_id"]
