"""The operations that read the past, over a real gateway, Redis and Postgres."""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

import httpx
import numpy as np
import pytest
import redis
from sqlalchemy import Engine, text

from api.app import Application, create_app
from smore.domain.access import Scope
from smore.domain.function import FunctionSpec
from smore.messages.forecasts import Forecasts
from smore.postgres.catalog import Store
from smore.postgres.history.recorder import Recorder
from smore.postgres.history.retention import retain
from smore.postgres.predictors import Profiles
from smore.process.settings import Settings
from smore.redis.catalog import Catalog
from smore.redis.forecasts import PublishedForecasts
from tests.support.eventually import eventually
from tests.support.gateway import Served, add_key, problem
from tests.support.past import PREFIX, emit, ended, reported
from tests.support.placed_jobs import placed

#: A whole hour that is over.
HOUR = int(time.time() // 3600 - 2) * 3600


def at(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat()


@pytest.fixture
def gateway(application: Application, engine: Engine, catalog: Catalog) -> Iterator[Served]:
    with Served(application) as served:
        yield served


@contextmanager
def client(gateway: Served, catalog: Catalog, *scopes: Scope, project: str = "default") -> Iterator[httpx.Client]:
    token = add_key(catalog, *scopes, project=project)
    with httpx.Client(base_url=gateway.url, headers={"Authorization": f"Bearer {token}"}, timeout=30) as http:
        eventually(lambda: http.get("/v1/functions").status_code == 200, what="the key")
        yield http


@pytest.fixture
def http(gateway: Served, catalog: Catalog) -> Iterator[httpx.Client]:
    with client(gateway, catalog, *Scope) as operator:
        yield operator


@pytest.fixture
def foreign(gateway: Served, catalog: Catalog) -> Iterator[httpx.Client]:
    with client(gateway, catalog, Scope.READ, project="other") as stranger:
        yield stranger


@pytest.fixture
def past(engine: Engine, redis_client: "redis.Redis", store: Store) -> None:
    """An hour of two GPU instances, one of them silent from its tenth to its twentieth minute, and of a function."""
    number, _ = store.register("default", "echo", FunctionSpec(entrypoint="m:C"))
    store.activate("default", "echo", number, {})
    redis_client.delete(f"{PREFIX}ev")
    silent = range(600, 1200)
    emit(redis_client, *(reported(HOUR + second, "cpu0", 0.25) for second in range(0, 3600, 5) if second not in silent))
    emit(redis_client, reported(HOUR + 30, "cpu1", 0.75))
    emit(redis_client, *(ended(f"{number:032x}", HOUR + 60 * number + 1, 0.5, jobs=["j"]) for number in range(60)))
    emit(redis_client, ended(f"{60:032x}", HOUR + 7, 0.1, cold=True))
    Recorder(engine, redis_client, PREFIX).drain()
    with engine.begin() as connection:
        connection.execute(text("TRUNCATE counted_minutes"))
        connection.execute(
            text(
                "INSERT INTO counted_minutes SELECT generate_series(to_timestamp(:begin), to_timestamp(:begin + 3540), '1 min'), 1"
            ),
            {"begin": HOUR},
        )


def test_gpu_instances_over_time(http: httpx.Client, past: None) -> None:
    window = {"since": at(HOUR), "until": at(HOUR + 3600)}
    found = http.get("/v1/gpus:series", params=window).json()
    assert (found["since"], found["step_s"], found["at"][:2]) == (
        at(HOUR).replace("+00:00", "Z"),
        60,
        [HOUR, HOUR + 60],
    )
    assert len(found["at"]) == 60
    cpu0, cpu1 = found["gpus"]["cpu0"], found["gpus"]["cpu1"]
    assert cpu0["used"] == [0.25] * 10 + [None] * 10 + [0.25] * 40
    assert (cpu0["functions"][0], cpu0["memory_mib"][0]) == (0.125, 250)
    assert (cpu1["used"][0], set(cpu1["used"][1:])) == (0.75, {None})

    one = http.get("/v1/gpus:series", params={**window, "gpu": "cpu0", "step": 5}).json()
    assert (one["step_s"], list(one["gpus"]), one["gpus"]["cpu0"]["used"]) == (
        5,
        ["cpu0"],
        [0.25] * 120 + [None] * 120 + [0.25] * 480,
    )
    assert http.get("/v1/gpus:series", params={**window, "gpu": "cpu0", "step": 1}).json()["step_s"] == 5, (
        "at most 1,500"
    )
    assert http.get("/v1/gpus:series", params={**window, "step": 61}).json()["step_s"] == 120, "whole minutes"
    week = http.get("/v1/gpus:series", params={"since": at(HOUR - 86_400 * 7), "step": 60}).json()
    assert (week["step_s"], len(week["at"]) <= 1500) == (600, True)
    kept = http.get("/v1/gpus:series", params={"since": "0001-01-01T00:00:00Z"}).json()
    assert kept["since"] > at(time.time() - 402 * 86_400), "what is not kept is cut off"
    gone = http.get("/v1/gpus:series", params={"since": "2001-01-01T00:00:00Z", "until": "2002-01-01T00:00:00Z"}).json()
    assert (gone["at"], gone["gpus"]) == ([], {})


def test_what_was_on_a_gpu_instance(
    http: httpx.Client, foreign: httpx.Client, past: None, engine: Engine, redis_client: "redis.Redis"
) -> None:
    """Lives that follow each other within a step are one; what is closed twice at a time counts once."""
    lives = [
        ("a", HOUR - 60, HOUR + 30),
        ("b", HOUR + 60, HOUR + 600),
        ("c", HOUR + 1800, None),
        ("d", HOUR - 90, HOUR - 30),
    ]
    columns = "id, gpu, boot, project, function, revision, prewarmed, outcome, asked_at, ended_at, told_at, load_s, busy_s, idle_s,"
    with engine.begin() as connection:
        for name, since, until in lives:
            connection.execute(
                text(
                    f"INSERT INTO instances ({columns} uses, saved, memory_mib) VALUES (:name, 'cpu0', 'b', 'default', 'echo', 1,"
                    " false, 'hit', to_timestamp(:since), to_timestamp(:until), now(), 0, 0, 0, 1, 0, 1)"
                ),
                {"name": name, "since": since, "until": until},
            )
        for job in ("j", "k"):
            connection.execute(
                text(
                    "INSERT INTO loss_windows (job, gpu, start_at, end_at, project, before_s, before_n, closed_s, closed_n, closed_sd,"
                    " after_s, after_n) VALUES (:job, 'cpu0', to_timestamp(:at), to_timestamp(:at + 6), 'p', 1, 1, 1, 1, 0, 1, 1)"
                ),
                {"job": job, "at": HOUR + 125},
            )
        for at_s, duty in ((HOUR + 10, 0.75), (HOUR + 20, 0.5), (HOUR - 10, 0.1)):
            connection.execute(
                text("INSERT INTO budget_steps VALUES (:id, 'j', 'cpu0', to_timestamp(:at), 'less', :duty, 1)"),
                {"id": at_s * 1000 << 20, "at": at_s, "duty": duty},
            )
    window = {"since": at(HOUR), "until": at(HOUR + 3600)}
    found = http.get("/v1/gpus/cpu0/lanes", params=window).json()
    assert [(life["function"], life["since"], life["until"]) for life in found["warm"]] == [
        ("echo", HOUR + 1800, None),
        ("echo", HOUR - 60, HOUR + 600),
    ]
    assert found["closed"] == [None, None, 0.1] + [None] * 57
    assert found["duty"] == [0.5] + [None] * 59
    assert (found["ended"][:2], sum(n or 0 for n in found["ended"])) == ([2, 1], 61)
    whole = http.get("/v1/gpus/cpu0/lanes", params={**window, "step": 3600}).json()
    assert (whole["ended"], whole["closed"]) == ([61], [pytest.approx(6 / 3600)])

    others = foreign.get("/v1/gpus/cpu0/lanes", params=window).json()
    assert (others["warm"], set(others["ended"]), others["duty"]) == ([], {None}, found["duty"])
    problem(foreign.get("/v1/gpus/cpu0/lanes?project=default"), 403, "forbidden")
    problem(http.get("/v1/gpus/cpu9/lanes"), 404, "not_found")


def test_no_moment_is_too_early(http: httpx.Client, past: None, store: Store) -> None:
    placed(store, "night", ["cpu0"])
    first = "0001-01-01T00:00:00Z"
    for path in (
        "/v1/gpus:series",
        "/v1/gpus/cpu0/lanes",
        "/v1/functions/echo/series",
        "/v1/functions:served",
        "/v1/jobs/night/series",
        "/v1/jobs/attempts",
        "/v1/harvest",
        "/v1/invocations",
    ):
        for query in ({"until": first}, {"since": first}, {"since": first, "until": "0001-01-02T00:00:00Z"}):
            assert http.get(path, params=query).status_code == 200, (path, query)


@pytest.mark.parametrize(
    "path", ["/v1/gpus:series", "/v1/functions/echo/series", "/v1/jobs/night/series", "/v1/harvest"]
)
def test_what_cannot_be_a_span_is_refused(http: httpx.Client, past: None, store: Store, path: str) -> None:
    placed(store, "night", ["cpu0"])
    wrong: Sequence[tuple[dict[str, Any], str]] = (
        ({"since": at(HOUR + 10), "until": at(HOUR)}, "since"),
        ({"since": at(HOUR), "until": at(HOUR)}, "since"),
        ({"since": at(time.time() + 3600)}, "since"),
        ({"since": "yesterday"}, "since"),
        ({"step": 0}, "step"),
        ({"step": -5}, "step"),
    )
    for query, field in wrong:
        assert problem(http.get(path, params=query), 422, "invalid_input")["field"] == field, query


def test_what_never_was_is_not_found_and_what_is_gone_has_its_past(
    http: httpx.Client, foreign: httpx.Client, past: None, store: Store, redis_client: "redis.Redis"
) -> None:
    redis_client.sadd(f"{PREFIX}gpus", "cpu0", "cpu7")
    job = placed(store, "night", ["cpu0"])
    for path, meant in (
        ("/v1/gpus:series?gpu=cpu", "cpu0"),
        ("/v1/functions/ehco/series", "echo"),
        ("/v1/jobs/nigth/series", "night"),
    ):
        answer = http.get(path)
        assert answer.status_code == 404, path
        assert meant in answer.json()["detail"]
    assert http.get("/v1/gpus:series?gpu=cpu7").json()["gpus"]["cpu7"]["used"][0] is None, "it has not reported lately"
    for path in ("/v1/functions/echo/series", f"/v1/jobs/{job.id}/series"):
        assert foreign.get(path).status_code == 404, path
        problem(foreign.get(path, params={"project": "default"}), 403, "forbidden")
    assert foreign.get("/v1/harvest").json()["parts"] == []
    problem(foreign.get("/v1/harvest?all_projects=true"), 403, "forbidden")
    assert foreign.get("/v1/jobs/attempts").json() == {"attempts": [], "more": False}

    store.delete_function("default", "echo")
    eventually(lambda: http.get("/v1/functions/echo").status_code == 404)
    window = {"since": at(HOUR), "until": at(HOUR + 3600)}
    assert sum(http.get("/v1/functions/echo/series", params=window).json()["succeeded"]) == 61


def test_a_function_over_time(
    http: httpx.Client, foreign: httpx.Client, past: None, redis_client: "redis.Redis"
) -> None:
    now = time.time() // 60 * 60
    forecasts = Forecasts(
        version=1,
        model=1,
        made_at=now,
        from_at=now - 60,
        horizon=3,
        functions=["default/other", "default/echo"],
        sources=["a", "lstm"],
        mean=np.array([1, 2, 3, 4, np.nan, 6], "<f4").tobytes(),
        any=np.array([1, 1, 1, 0.5, np.nan, 0.75], "<f4").tobytes(),
    )
    PublishedForecasts(redis_client, PREFIX).publish(forecasts)
    window: dict[str, str | int] = {"since": at(HOUR - 600), "until": at(HOUR + 3600), "step": 600}
    found = http.get("/v1/functions/echo/series", params=window).json()
    assert found["arrivals"] == found["succeeded"] == [None, 11, 10, 10, 10, 10, 10]
    assert found["cold"] == [None, 1, 0, 0, 0, 0, 0]
    assert found["cold_reasons"] == {"unknown": [None, 1, *[None] * 5]}
    assert found["met"][1] == 11
    assert found["p50"][1] == pytest.approx(0.5, rel=0.1)
    assert found["whole_s"][2] == pytest.approx(0.5)
    assert found["load_s"][1] == pytest.approx(0.08)
    forecast = found["forecast"]
    assert (forecast["source"], forecast["mean"][-1], forecast["any"][-1]) == ("lstm", 6, 0.75)
    assert None in forecast["mean"]
    span = {"since": at(HOUR - 600), "until": at(HOUR + 3600)}
    (all_of_it,) = http.get("/v1/functions:served", params=span).json()["served"]
    assert (all_of_it["function"], all_of_it["revision"], all_of_it["cold"]) == ("echo", None, 1)
    assert all_of_it["succeeded"] == sum(found["succeeded"][1:])
    assert all_of_it["p99"] == pytest.approx(0.5, rel=0.1)
    (revision,) = http.get("/v1/functions:served", params={**span, "function": "echo"}).json()["served"]
    assert {**revision, "revision": None} == all_of_it
    assert http.get("/v1/functions:served", params={**span, "function": "other"}).json()["served"] == []
    rated = http.get("/v1/functions:served", params={**window, "all_projects": True}).json()
    (of_it,) = rated["served"]
    assert (of_it["project"], of_it["p99"], rated["at"]) == ("default", all_of_it["p99"], found["at"])
    assert (of_it["arrivals"], of_it["ended"]) == (found["arrivals"], found["succeeded"])
    problem(http.get("/v1/functions:served?all_projects=true&function=echo"), 422, "invalid_input")
    problem(foreign.get("/v1/functions:served?all_projects=true"), 403, "forbidden")
    none = http.get("/v1/functions/echo/series", params={**window, "revision": 1}).json()
    assert (none["revision"], none["succeeded"][1:], none["cold_reasons"]) == (1, [0] * 6, {})


def test_a_job_over_time(http: httpx.Client, past: None, store: Store, engine: Engine) -> None:
    job = placed(store, "night", ["cpu0"])
    statements = (
        "INSERT INTO job_windows SELECT"
        " :job, at, 'cpu0', 'default', (extract(epoch FROM at) - :begin)::int, 60, 0.1, 30, 0.12, 10, 'd', 's'"
        " FROM generate_series(to_timestamp(:begin), to_timestamp(:begin + 3590), '10 s') AS at",
        "INSERT INTO loss_windows SELECT :job, 'cpu0', at, at + interval '1 s', 'default', 0.11, 6, 0.1, 6, 0.003, 0.115, 6"
        " FROM generate_series(to_timestamp(:begin), to_timestamp(:begin + 1790), '30 s') AS at",
        "INSERT INTO budget_steps VALUES"
        " ((:begin + 1000)::bigint * 1000 << 20, :job, 'cpu0', to_timestamp(:begin + 1000), 'duty_75', 0.75, 1)",
        "INSERT INTO job_harvest VALUES (:job, 'cpu0', 3, 2)",
        "INSERT INTO job_minutes VALUES (:job, to_timestamp(:begin + 60), 3, 2)",
    )
    with engine.begin() as connection:
        for statement in statements:
            connection.execute(text(statement), {"job": job.id, "begin": HOUR})
    found = http.get("/v1/jobs/night/series", params={"since": at(HOUR), "until": at(HOUR + 5400), "step": 600}).json()
    assert (found["id"], found["name"], len(found["at"])) == (job.id, "night", 9)
    assert found["alone_s"] == [pytest.approx(0.1)] * 6 + [None] * 3
    assert found["beside_s"][0] == pytest.approx(0.12)
    assert found["iterations"][:6] == [590, 1190, 1790, 2390, 2990, 3590]
    assert found["duty"] == [None, *[0.75] * 5, None, None, None]
    assert found["harvested_s"] == [3, 0, 0, 0, 0, 0, None, None, None]
    assert found["lost"] == [pytest.approx(0.125)] * 9
    assert found["lost_low"][8] <= found["lost"][8] <= found["lost_high"][8]
    statement = http.get("/v1/jobs/night/statement").json()
    assert statement["loss"] == pytest.approx(found["lost"][-1])
    assert statement["loss_high"] == pytest.approx(found["lost_high"][-1])


def test_attempts_of_all_jobs(http: httpx.Client, store: Store, engine: Engine) -> None:
    first, second = placed(store, "night", ["cpu0"]), placed(store, "day", ["cpu1"])
    with engine.begin() as connection:
        connection.execute(
            text("UPDATE jobs SET estimate_s = 60, estimate_90_s = 90, estimate_source = 'name' WHERE id = :id"),
            {"id": first.id},
        )
    found = http.get("/v1/jobs/attempts").json()
    assert [(one["name"], one["gpus"], one["attempt"], one["guest"]) for one in found["attempts"]] == [
        ("day", ["cpu1"], 1, False),
        ("night", ["cpu0"], 1, False),
    ]
    told = {one["job"]: (one["told_s"], one["told_90_s"], one["told_source"]) for one in found["attempts"]}
    assert told[first.id] == (60, 90, "name")
    assert second.id in told
    page = http.get("/v1/jobs/attempts", params={"limit": 1}).json()
    assert (len(page["attempts"]), page["more"]) == (1, True)
    before = http.get("/v1/jobs/attempts", params={"until": at(HOUR)}).json()
    assert before == {"attempts": [], "more": False}


def test_the_predictor_over_time(http: httpx.Client, foreign: httpx.Client, engine: Engine) -> None:
    profiles = Profiles(engine)
    version = profiles.begin({"rows": 3})
    profiles.reject(version, reason="no better", manifest={"rows": 3})
    (found,) = http.get("/v1/predictor/versions").json()["versions"]
    assert (found["version"], found["state"], found["reason"]) == (version, "rejected", "no better")

    insert = text(
        "INSERT INTO executions (invocation, attempt, project, function, gpu, state, cause, cold, run_s, predicted, device, finished_at)"
        " VALUES (:id, 1, 'default', 'echo', 'cpu0', 'succeeded', 'ok', :cold, :run_s, CAST(:predicted AS jsonb), 'd', now())"
    )
    known = '{"run_s": 0.1, "known": true, "function_degradation": 0.2, "function_degradation_upper": 0.3}'
    with engine.begin() as connection:
        for id_, cold, run_s, predicted in (
            ("a", False, 0.12, known),
            ("b", False, 0.15, known),
            ("c", True, 0.3, known),
            ("d", False, 0.00044, '{"run_s": 0.0065}'),
        ):
            connection.execute(insert, {"id": id_, "cold": cold, "run_s": run_s, "predicted": predicted})
    found = http.get("/v1/predictor/calibration").json()
    assert sorted(found["measured"]) == [pytest.approx(0.2), pytest.approx(0.5)]
    assert (found["told"], found["bound"], found["within"], found["assumed"]) == ([0.2, 0.2], [0.3, 0.3], 0.5, 1)
    nothing = foreign.get("/v1/predictor/calibration").json()
    assert (nothing["measured"], nothing["within"], nothing["assumed"]) == ([], None, 0)


def test_the_harvest(http: httpx.Client, past: None, engine: Engine) -> None:
    statement = (
        "INSERT INTO loss_windows SELECT :job, 'cpu0', at, at + interval '1 s', 'default', 0.11, 6, 0.1, 6, 0.003, 0.11, 6"
        " FROM generate_series(to_timestamp(:begin), to_timestamp(:begin + 1790), '30 s') AS at"
    )
    with engine.begin() as connection:
        connection.execute(text(statement), {"job": "j", "begin": HOUR})
    retain(engine, 14.0)
    window = {"since": at(HOUR), "until": at(HOUR + 3600), "step": "hour"}
    (part,) = http.get("/v1/harvest", params=window).json()["parts"]
    assert (part["at"], part["key"], part["invocations"], part["met"], part["cold"]) == (HOUR, "default", 61, 61, 1)
    assert (part["run_s"], part["lost"], part["windows"]) == (pytest.approx(0.61), pytest.approx(0.1), 60)
    (whole,) = http.get("/v1/harvest", params=window).json()["totals"]
    assert {name: whole[name] for name in part if name != "at"} == {name: part[name] for name in part if name != "at"}
    (part,) = http.get("/v1/harvest", params={**window, "by": "function"}).json()["parts"]
    assert (part["key"], part["lost"]) == ("default/echo", None)
    (part,) = http.get("/v1/harvest", params={**window, "by": "gpu", "all_projects": True}).json()["parts"]
    assert (part["key"], part["lost"]) == ("cpu0", pytest.approx(0.1))
    assert http.get("/v1/harvest", params={"step": "day", "since": at(HOUR - 90 * 86_400)}).json()["step_s"] == 86_400
    assert http.get("/v1/harvest", params={"step": "hour", "since": at(HOUR - 90 * 86_400)}).json()["step_s"] == 7200
    problem(http.get("/v1/harvest", params={"by": "moon"}), 422, "invalid_input")


def test_what_the_harvest_is_worth_and_what_it_cost(
    http: httpx.Client, past: None, store: Store, engine: Engine
) -> None:
    job = placed(store, "night", ["cpu0", "cpu1"])
    statements = (
        "UPDATE job_attempts SET started_at = to_timestamp(:begin - 600), ended_at = to_timestamp(:begin + 1800) WHERE job = :job",
        "INSERT INTO loss_windows SELECT :job, 'cpu0', at, at + interval '1 s', 'default', 0.11, 6, 0.1, 6, 0.003, 0.11, 6"
        " FROM generate_series(to_timestamp(:begin), to_timestamp(:begin + 3590), '30 s') AS at",
        "UPDATE gpu_minutes SET device = 'NVIDIA H100 80GB' WHERE gpu = 'cpu0'",
        "INSERT INTO function_hours VALUES (to_timestamp(:begin + 3600), 'default', 'echo', 'cpu9', 1, 0, 1, 0, 7)",
    )
    with engine.begin() as connection:
        for statement in statements:
            connection.execute(text(statement), {"job": job.id, "begin": HOUR})
    retain(engine, 14.0)
    one_hour = {"since": at(HOUR), "until": at(HOUR + 3600), "step": "hour"}

    def priced(price: str, **more: str) -> dict[str, Any]:
        answer = http.get("/v1/harvest", params={**one_hour, "price": price, **more})
        assert answer.status_code == 200, answer.text
        found: dict[str, Any] = answer.json()
        return found

    whole = priced("H100 = 3600,nvidia=1")
    assert whole["unpriced"] == []
    (total,) = whole["totals"]
    assert (total["money"], total["trained_s"]) == (pytest.approx(total["run_s"]), pytest.approx(2 * 1800))
    assert total["lost_s"] == pytest.approx(3600 * 0.1 / 1.1)
    two = priced("h100=1", until=at(HOUR + 7200))
    assert [part["money"] for part in two["parts"]] == [pytest.approx(0.61 / 3600), None]
    assert (two["totals"][0]["money"], two["unpriced"]) == (None, [""])
    assert two["totals"][0]["invocations"] == 62
    for wrong in ("h100", "h100=", "=1", "h100=-1", "h100=nan", "h100=1,,"):
        problem(http.get("/v1/harvest", params={"price": wrong}), 422, "invalid_input")


def test_invocations_by_time_gpu_and_cause(http: httpx.Client, engine: Engine, redis_client: "redis.Redis") -> None:
    ids = [f"{(HOUR + second) * 1000:012x}{0:020x}" for second in (0, 60, 120)]
    emit(redis_client, *(ended(id_, HOUR + 60 * n + 0.1, 0.05) for n, id_ in enumerate(ids)))
    Recorder(engine, redis_client, PREFIX).drain()

    def found(**query: str) -> list[int]:
        return [ids.index(one["id"]) for one in http.get("/v1/invocations", params=query).json()["invocations"]]

    assert found() == [2, 1, 0]
    assert found(since=at(HOUR + 60)) == [2, 1]
    assert found(until=at(HOUR + 60)) == [0]
    assert found(since=at(HOUR + 60), until=at(HOUR + 61)) == [1]
    assert (found(gpu="cpu0"), found(gpu="cpu9")) == ([2, 1, 0], [])
    assert (found(cause="ok"), found(cause="crashed")) == ([2, 1, 0], [])
    problem(http.get("/v1/invocations", params={"since": at(HOUR), "until": at(HOUR)}), 422, "invalid_input")


def test_without_postgres_no_series(config: Settings, catalog: Catalog, store: Store) -> None:
    away = config.postgres.model_copy(update={"url": "postgresql://smore@127.0.0.1:1/smore"})
    with (
        Served(create_app(config.model_copy(update={"postgres": away}))) as served,
        client(served, catalog, *Scope) as http,
    ):
        for path in (
            "/v1/gpus:series",
            "/v1/functions/echo/series",
            "/v1/jobs/night/series",
            "/v1/jobs/attempts",
            "/v1/predictor/versions",
            "/v1/predictor/calibration",
            "/v1/harvest",
        ):
            assert problem(http.get(path), 503, "unavailable")["part"] == "postgres", path


def test_operators_alone_read_another_project(http: httpx.Client, foreign: httpx.Client, past: None) -> None:
    run = http.get("/v1/invocations").json()["invocations"][0]["id"]
    things = [
        "/v1/functions/echo",
        "/v1/functions/echo/revisions",
        "/v1/functions/echo/logs",
        f"/v1/invocations/{run}/explain",
    ]
    for path in ("/v1/functions", "/v1/invocations", "/v1/prewarm", *things):
        assert http.get(path, params={"project": "default"}).status_code == 200, path
        problem(foreign.get(path, params={"project": "default"}), 403, "forbidden")
    for path in things:
        assert http.get(path, params={"project": "other"}).status_code == 404, path
    for path, member in (
        ("/v1/functions", "functions"),
        ("/v1/invocations", "invocations"),
        ("/v1/prewarm", "functions"),
    ):
        assert http.get(path, params={"project": "other"}).json()[member] == [], path
    assert http.get("/v1/functions?all_projects=true").json()["functions"]
    problem(foreign.get("/v1/functions?all_projects=true"), 403, "forbidden")
