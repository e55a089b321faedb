"""Traces through the gateway into Postgres: laid into the past, apart from what was counted, taken back."""

import gzip
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest
import redis
from sqlalchemy import Engine, text

from api.app import Application
from smore.domain.access import Scope
from smore.domain.function import FunctionSpec
from smore.postgres.arrivals import ArrivalStore
from smore.postgres.history.retention import retain
from smore.redis.catalog import Catalog, FunctionEntry
from smore.redis.forecasts import PublishedForecasts
from tests.support.eventually import eventually
from tests.support.gateway import Served, add_key, problem

FILE = "HashFunction,480,481,482\nbusy,9,0,8\nother,1,1,1\nrare,0,0,1\n"


@pytest.fixture
def http(application: Application, engine: Engine, catalog: Catalog) -> Iterator[httpx.Client]:
    for key in ("default/a", "default/b", "other/c"):
        catalog.put_revision(key, 1, FunctionSpec(entrypoint="m:C"))
        project, _, name = key.partition("/")
        catalog.put_function(FunctionEntry(project=project, name=name, revision=1))
    with engine.begin() as connection:
        connection.execute(text("INSERT INTO projects (name) VALUES ('other')"))
    token = add_key(catalog, *Scope)
    with (
        Served(application) as served,
        httpx.Client(base_url=served.url, headers={"Authorization": f"Bearer {token}"}, timeout=30) as client,
    ):
        eventually(lambda: client.get("/v1/functions").status_code == 200, what="the key")
        yield client


def imported(http: httpx.Client, content: str | bytes = FILE, **query: Any) -> httpx.Response:
    return http.post("/v1/traces", params=query, content=content)


def minute(back: int) -> float:
    return (time.time() // 60 - back) * 60


def test_a_trace_is_laid_into_the_past_and_taken_back(
    http: httpx.Client, engine: Engine, redis_client: "redis.Redis", catalog: Catalog
) -> None:
    door, published = ArrivalStore(engine), PublishedForecasts(redis_client, "smore:")
    end = datetime.fromtimestamp(minute(10), UTC)
    found = imported(
        http, gzip.compress(FILE.encode()), name="day.csv.gz", map=["rare=b"], deal=["a"], end=end.isoformat()
    )
    assert found.status_code == 201, found.text
    trace = found.json()
    assert (trace["name"], datetime.fromisoformat(trace["until"]), len(trace["digest"])) == ("day.csv.gz", end, 64)
    assert trace["functions"] == [
        {"function": "a", "source": "busy", "arrivals": 17},
        {"function": "b", "source": "rare", "arrivals": 1},
    ]
    assert published.unlearned()
    # One minute of it the platform has counted itself.
    with engine.begin() as connection:
        own = datetime.fromtimestamp(minute(11), UTC)
        connection.execute(text("INSERT INTO counted_minutes VALUES (:own, (1::bigint << 60) - 1)"), {"own": own})
        connection.execute(text("INSERT INTO arrivals_minute VALUES ('default', 'a', :own, 3)"), {"own": own})
    past = door.past(minute(14), minute(9))
    assert (past.counted, past.counts) == ([False, False, False, True, False], {"default/a": {3: 3}})
    assert past.imported == {"default/a": {1: 9, 2: 0}, "default/b": {1: 0, 2: 0}}
    # The newer one holds where both have the minute.
    newer = imported(http, "function,timestamp\na," + str(minute(13)) + "\n").json()
    assert newer["functions"] == [{"function": "a", "source": "a", "arrivals": 1}]
    assert door.past(minute(14), minute(9)).imported["default/a"] == {1: 1, 2: 0}
    assert [one["id"] for one in http.get("/v1/traces").json()["traces"]] == [newer["id"], trace["id"]]
    # What is accounted for knows of own runs alone.
    assert door.account(minute(60), time.time()) == []
    foreign = add_key(catalog, *Scope, project="other")
    theirs = {"Authorization": f"Bearer {foreign}"}
    eventually(lambda: http.get("/v1/traces", headers=theirs).status_code == 200, what="the key")
    assert http.get("/v1/traces", headers=theirs).json() == {"traces": []}
    problem(http.delete(f"/v1/traces/{trace['id']}", headers=theirs), 404, "not_found")

    published.learned(published.lesson())
    for one in (newer, trace):
        assert http.delete(f"/v1/traces/{one['id']}").json() == {"id": one["id"]}
    assert published.unlearned()
    assert door.past(minute(14), minute(9)).imported == {}
    with engine.connect() as connection:
        assert connection.execute(text("SELECT count(*) FROM trace_counts")).scalar_one() == 0
        routes = connection.execute(text("SELECT route FROM audit ORDER BY id")).scalars().all()
    assert routes == ["POST /v1/traces"] * 2 + ["DELETE /v1/traces/{trace}"] * 2
    problem(http.delete(f"/v1/traces/{trace['id']}"), 404, "not_found")


def test_what_cannot_be_used_is_refused_and_nothing_is_kept(http: httpx.Client, engine: Engine) -> None:
    bad = problem(imported(http, FILE.replace("1,1,1", "1,x,1"), name="day.csv", deal=["a"]), 422, "invalid_spec")
    assert (bad["line"], bad["field"]) == (3, "481")
    assert bad["detail"].startswith("day.csv:3: 481: ")
    later, earlier = ((datetime.now(UTC) + timedelta(minutes=minutes)).isoformat() for minutes in (2, -2 * 1440 - 2))
    for query, code in (
        ({}, "invalid_input"),
        ({"map": ["nobody=a"]}, "invalid_input"),
        ({"map": ["busy=nobody"]}, "function_not_found"),
        ({"map": ["busy=c"]}, "function_not_found"),
        ({"map": ["busy=a", "rare=a"]}, "invalid_input"),
        ({"map": ["busy"]}, "invalid_input"),
        ({"deal": ["a", "a"]}, "invalid_input"),
        ({"map": ["busy=a", "rare=b", "other=a"]}, "invalid_input"),
        ({"deal": ["a"], "end": later}, "invalid_input"),
        ({"deal": ["a"], "end": earlier}, "invalid_input"),
        ({"deal": ["a"], "name": ".."}, "invalid_input"),
        ({"deal": ["a"], "end": "noon"}, "invalid_input"),
    ):
        problem(imported(http, **query), 404 if code == "function_not_found" else 422, code)
    problem(imported(http, "function,timestamp\na,1700000000\n"), 422, "invalid_input")
    with engine.connect() as connection:
        assert connection.execute(text("SELECT count(*) FROM traces")).scalar_one() == 0


def test_traces_are_retired_with_the_history(http: httpx.Client, engine: Engine) -> None:
    imported(http, deal=["a"]).raise_for_status()
    retain(engine, 2 / 1440)
    assert len(http.get("/v1/traces").json()["traces"]) == 1
    retain(engine, -2 / 1440)
    assert http.get("/v1/traces").json() == {"traces": []}
