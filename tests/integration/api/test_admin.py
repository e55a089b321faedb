"""
What administrators do, over a real Redis and Postgres: limits, drains, boosts, pins, purges, and the trail that all of
it leaves.
"""

from collections.abc import Iterator
from typing import Any

import httpx
import pytest
import redis
from msgspec import structs
from sqlalchemy import Engine, text
from sqlalchemy.exc import DBAPIError

from api.app import Application
from smore.domain.access import Scope
from smore.domain.function import FunctionSpec, Profile
from smore.domain.job import JobRequest
from smore.messages.commands import ALL_REVISIONS, Offload
from smore.messages.reports import JobReport, Report, UnregisteredProcess, encode_report
from smore.postgres.audit import Audit, AuditedChange, AuditFilter
from smore.postgres.catalog import Store
from smore.process.settings import Settings
from smore.redis import fleet
from smore.redis.catalog import Catalog
from smore.redis.queue import Queue
from tests.support.eventually import eventually
from tests.support.fake_platform import GPU, FakePlatform
from tests.support.gateway import Served, add_key, problem
from tests.support.placed_jobs import placed

ECHO = "default/echo"


@pytest.fixture
def platform(config: Settings, redis_client: "redis.Redis") -> Iterator[FakePlatform]:
    with FakePlatform(redis_client, Queue(redis_client, config.redis.prefix, config.queue)) as fake:
        yield fake


@pytest.fixture
def http(application: Application, platform: FakePlatform, store: Store, catalog: Catalog) -> Iterator[httpx.Client]:
    """With a key of the operators."""
    number, _ = store.register(
        "default", "echo", FunctionSpec(entrypoint="zoo.echo:Function", profile=Profile(memory_mib=50.0))
    )
    store.activate("default", "echo", number, {})
    token = add_key(catalog, *Scope)
    with (
        Served(application) as served,
        httpx.Client(base_url=served.url, headers={"Authorization": f"Bearer {token}"}, timeout=30) as client,
    ):
        eventually(lambda: client.get("/v1/gpus").json().get("gpus"), what="the GPU instance")
        yield client


@pytest.fixture
def other(http: httpx.Client, store: Store, catalog: Catalog) -> Iterator[httpx.Client]:
    """With a key of another project, which has a function of that name too."""
    store.create_project("other")
    number, _ = store.register("other", "echo", FunctionSpec(entrypoint="zoo.echo:Function"))
    store.activate("other", "echo", number, {})
    token = add_key(catalog, *Scope, project="other")
    with httpx.Client(base_url=http.base_url, headers={"X-API-Key": token}, timeout=30) as client:
        eventually(lambda: client.get("/v1/functions").status_code == 200, what="the key")
        yield client


def submit(client: httpx.Client) -> httpx.Response:
    return client.post("/v1/functions/echo/invocations", json={"input": 1}, headers={"Prefer": "respond-async"})


def unloaded(redis_client: "redis.Redis") -> list[Offload]:
    """The commands to unload that a worker would have got."""
    commands = fleet.Fleet(redis_client, "smore:").commands(GPU, "0-0", 0.001)
    return [command for _, command in commands if isinstance(command, Offload)]


def ok(response: httpx.Response) -> Any:
    assert response.is_success, response.text
    return response.json() if response.content else None


def report_gpu(redis_client: "redis.Redis", config: Settings, **of: Any) -> None:
    """The report of a GPU instance ``gpu9``."""
    report = Report(
        gpu="gpu9",
        boot="b",
        at=0.0,
        kind="cuda",
        device="H",
        sharing_mode="time-slice",
        slots=8,
        memory_total_mib=1,
        memory_used_mib=0,
        utilisation=0,
        utilisation_counter="n",
        function_utilisation=0,
        running=0,
        **of,
    )
    Queue(redis_client, config.redis.prefix, config.queue).report(
        "gpu9", encode_report(report), ttl_s=60, lease_s=2, cursor="", running=[]
    )


#: What the leader says of every invocation that is asked for: it would run at once.
PLACED = b'{"at":1.0,"gpu":"test0","cold":false,"start_at":1.0,"finish_at":1.1,"finish_s":0.1,"reasons":{}}'


def asked(client: httpx.Client) -> dict[str, Any]:
    found: dict[str, Any] = ok(client.post("/v1/functions/echo/invocations:dryRun", json={"input": 1}))
    return found


def limit(client: httpx.Client, project: str = "default", **limits: Any) -> None:
    ok(client.patch(f"/v1/projects/{project}/limits", json=limits))


@pytest.mark.parametrize(
    ("limits", "taken", "field"),
    [
        ({"depth": 2}, 2, "depth"),
        ({"concurrency": 3}, 3, "concurrency"),
        ({"rate_per_s": 0.01, "burst": 2}, 2, "rate_per_s"),
    ],
)
def test_a_limit_refuses_with_its_field_and_when_to_come_back(
    http: httpx.Client, other: httpx.Client, platform: FakePlatform, limits: dict[str, Any], taken: int, field: str
) -> None:
    platform.held |= {ECHO, "other/echo"}
    platform.answer = PLACED
    limit(http, **limits)
    eventually(lambda: http.get("/v1/projects").json()["projects"][0]["limits"][field] is not None, what="the limit")
    # To ask takes nothing of the limit.
    assert [asked(http)["outcome"] for _ in range(taken + 1)] == ["placed"] * (taken + 1)
    answers = [submit(http) for _ in range(taken)]
    assert [answer.status_code for answer in answers] == [202] * taken
    told = asked(http)
    refused = submit(http)
    assert problem(refused, 429, "limit_reached")["field"] == field
    assert (told["outcome"], told["reason"], told["feasible"]) == ("refused", "limit_reached", False)
    assert refused.json()["detail"] in told["detail"] and "earliest_deadline_ms" not in told
    assert int(refused.headers["retry-after"]) >= 1
    assert submit(other).status_code == 202, "another project has limits of its own"
    limit(http, share=0.5)
    kept = ok(http.get("/v1/projects"))["projects"][0]
    assert {name: value for name, value in kept["limits"].items() if value is not None} == limits | {"share": 0.5}
    assert kept["held"] == kept["limits"] | {"jobs": 64, "weight": 1.0}
    limit(http, "default", **dict.fromkeys(limits))
    eventually(lambda: submit(http).status_code == 202, what="no limit any more")


def test_the_counters_of_a_project_go_back_to_nothing(http: httpx.Client, redis_client: "redis.Redis") -> None:
    for _ in range(3):
        assert ok(http.post("/v1/functions/echo/invocations", json={"input": 1}))["state"] == "succeeded"
    assert redis_client.hgetall("smore:projects") == {b"default:waiting": b"0", b"default:open": b"0"}


def test_a_function_that_can_never_be_warm_is_refused(http: httpx.Client, platform: FakePlatform) -> None:
    platform.answer = PLACED
    limit(http, warm_memory_mib=10)
    refused = eventually(lambda: (answer := submit(http)).status_code == 429 and answer, what="the limit")
    assert problem(refused, 429, "limit_reached")["field"] == "warm_memory_mib"
    told = asked(http)
    assert (told["outcome"], told["reason"]) == ("refused", "limit_reached") and refused.json()["detail"] in told[
        "detail"
    ]


@pytest.mark.parametrize(
    ("body", "field"),
    [({"depth": -1}, "depth"), ({"depth": 1.5}, "depth"), ({"burst": 2}, "burst"), ({"wait": 1}, "wait")],
)
def test_bad_limits_are_refused_by_name(http: httpx.Client, body: dict[str, object], field: str) -> None:
    refused = http.patch("/v1/projects/default/limits", json=body)
    assert refused.status_code == 422
    assert refused.json()["field"] == field


@pytest.mark.parametrize("path", ["/v1/queues/echo", "/v1/queues"])
def test_a_drain_closes_the_gate_and_serves_what_waits(http: httpx.Client, platform: FakePlatform, path: str) -> None:
    platform.held.add(ECHO)
    platform.answer = PLACED
    id_ = ok(submit(http))["id"]
    assert (asked(http)["outcome"], asked(http)["reason"]) == ("placed", "")
    ok(http.post(f"{path}/drain"))
    refused = eventually(lambda: (answer := submit(http)).status_code == 503 and answer, what="the closed gate")
    assert refused.headers["retry-after"] == "5"
    drained = "The platform" if path == "/v1/queues" else "The function echo"
    assert problem(refused, 503, "draining")["detail"] == f"{drained} is being drained: nothing new is taken."
    told = asked(http)
    assert (told["outcome"], told["reason"], told["feasible"]) == ("refused", "draining", False)
    assert ok(http.get("/v1/queues"))["queues"][0]["draining"]
    if path == "/v1/queues":
        training = http.post("/v1/jobs", json={"name": "late", "argv": ["zoo.train", "--model", "bert"]})
        problem(training, 503, "draining")
        assert training.headers["retry-after"] == "60"
    platform.held.clear()
    assert ok(http.get(f"/v1/invocations/{id_}", params={"wait": 10}))["state"] == "succeeded"
    ok(http.post(f"{path}/resume"))
    eventually(lambda: submit(http).status_code == 202, what="the open gate")


def test_a_drained_gpu_instance_says_when_it_is_empty(http: httpx.Client) -> None:
    ok(http.post(f"/v1/gpus/{GPU}/drain"))
    (gpu,) = ok(http.get("/v1/gpus"))["gpus"]
    assert (gpu["draining"], gpu["drained"], gpu["paused"], gpu["strangers"]) == (True, True, False, None)
    ok(http.post(f"/v1/gpus/{GPU}/resume"))
    assert not ok(http.get("/v1/gpus"))["gpus"][0]["draining"]


def test_a_gpu_instance_that_is_gone_is_named_until_it_is_forgotten(
    http: httpx.Client, other: httpx.Client, config: Settings, redis_client: "redis.Redis"
) -> None:
    prefix = config.redis.prefix
    report_gpu(redis_client, config, jobs=[])
    problem(http.post("/v1/gpus/gpu9/forget"), 409, "conflict")
    redis_client.delete(f"{prefix}gpu:gpu9")

    def named() -> bool:
        return any(line.startswith("GPU instances silent: gpu9") for line in http.get("/readyz").json()["warnings"])

    assert named()
    problem(other.post("/v1/gpus/gpu9/forget"), 403, "forbidden")
    ok(http.post("/v1/gpus/gpu9/forget"))
    assert not named()
    problem(http.post("/v1/gpus/gpu9/forget"), 404, "not_found")
    assert ok(http.get("/v1/audit"))["entries"][0]["target"] == "gpu/gpu9"
    report_gpu(redis_client, config, jobs=[])
    redis_client.delete(f"{prefix}gpu:gpu9")
    assert named()


def test_operators_see_the_trainings_of_all_projects(
    http: httpx.Client, other: httpx.Client, config: Settings, redis_client: "redis.Redis", store: Store
) -> None:
    mine = store.jobs.submit("default", "mine", JobRequest(argv=("zoo.train",)))
    theirs = store.jobs.submit("other", "theirs", JobRequest(argv=("zoo.train",)))

    def listed(client: httpx.Client, **query: str) -> list[tuple[str, str]]:
        return [(job["project"], job["name"]) for job in ok(client.get("/v1/jobs", params=query))["jobs"]]

    both = [("other", "theirs"), ("default", "mine")]
    assert listed(http) == both[1:]
    assert listed(http, all_projects="true") == both
    assert listed(http, project="other") == listed(other) == both[:1]
    problem(other.get("/v1/jobs", params={"all_projects": "true"}), 403, "forbidden")
    problem(other.get("/v1/invocations", params={"all_projects": "true"}), 403, "forbidden")
    problem(http.get("/v1/jobs", params={"all_projects": "true", "project": "other"}), 422, "invalid_spec")

    training = JobReport(id=theirs.id, project="other", state="running", pid=1, memory_mib=0.0, iterations=0)
    report_gpu(redis_client, config, jobs=[training, structs.replace(training, id=mine.id, state="ended")])
    ok(http.post("/v1/gpus/gpu9/drain"))

    def shown(client: httpx.Client) -> dict[str, Any]:
        return next(gpu for gpu in ok(client.get("/v1/gpus"))["gpus"] if gpu["id"] == "gpu9")

    gpu = shown(http)
    assert (gpu["draining"], gpu["drained"], gpu["trainings"]) == (True, False, 1), "somebody would unplug it"
    assert gpu["jobs"] == shown(other)["jobs"] and [job["id"] for job in gpu["jobs"]] == [theirs.id]
    report_gpu(redis_client, config, jobs=[structs.replace(training, id=mine.id, project="default")])
    assert [(shown(client)["trainings"], len(shown(client)["jobs"])) for client in (http, other)] == [(1, 1), (1, 0)]
    report_gpu(redis_client, config, jobs=[structs.replace(training, state="ended")])
    assert (shown(http)["drained"], shown(http)["trainings"], shown(http)["jobs"]) == (True, 0, [])


def test_owners_hear_of_a_training_that_nobody_placed_beside_theirs(
    http: httpx.Client, other: httpx.Client, store: Store, redis_client: "redis.Redis", config: Settings
) -> None:
    theirs = placed(store, "theirs", ["gpu9"], running=True)
    report = JobReport(id=theirs.id, project="default", state="running", pid=1, memory_mib=0.0, iterations=0)
    report_gpu(redis_client, config, jobs=[report])
    settled = ok(other.post("/v1/jobs/attach", json={"name": "own", "pid": 4711, "gpu": "gpu9", "tracked": True}))
    assert settled["beside_now"] == ["a training of another project"]
    report_gpu(redis_client, config, jobs=[report, structs.replace(report, id=settled["id"], project="other")])
    assert ok(http.get("/v1/jobs/theirs"))["beside_now"] == ["own"], "an operator reads names"
    assert ok(other.get("/v1/jobs/own"))["beside_now"] == ["a training of another project"]
    assert ok(http.get("/v1/jobs/theirs/explain"))["summary"].endswith(
        "Nobody placed these there, and they train on its GPU instances too: own."
    )


def test_boosts_and_pins_are_kept_shown_and_taken_back(
    http: httpx.Client, other: httpx.Client, config: Settings, redis_client: "redis.Redis"
) -> None:
    ok(http.put("/v1/queues/echo/boost", json={"factor": 4, "for_s": 600}))
    # One that is away has reported once.
    redis_client.sadd(f"{config.redis.prefix}gpus", "a", "b", "cpu-night0")
    misspelt = problem(http.put("/v1/queues/echo/pin", json={"gpus": ["a", "cpu-nigth0"]}), 404, "not_found")
    assert (misspelt["field"], "did you mean cpu-night0?" in misspelt["detail"]) == ("gpus", True)
    assert ok(http.get("/v1/queues"))["queues"][0]["pinned_to"] == []
    assert "did you mean echo?" in problem(http.post("/v1/queues/ecko/drain"), 404, "function_not_found")["detail"]
    ok(http.put("/v1/queues/echo/pin", json={"gpus": ["b", "a", "a"]}))
    assert ok(http.get("/v1/queues", params={"project": "other"}))["queues"][0]["pinned_to"] == []
    problem(other.get("/v1/queues", params={"project": "default"}), 403, "forbidden")
    (queue,) = ok(http.get("/v1/queues"))["queues"]
    assert (queue["boost"], queue["pinned_to"], queue["pinned_until"]) == (4.0, ["a", "b"], None)
    assert queue["boost_until"] is not None
    door = fleet.Fleet(redis_client, config.redis.prefix)
    assert door.overrides(0.0)[ECHO].gpus == ("a", "b")
    ok(http.delete("/v1/queues/echo/boost"))
    assert door.overrides(0.0)[ECHO].boost == 1.0
    ok(http.delete("/v1/queues/echo/pin"))
    assert door.overrides(0.0) == {}
    problem(other.put("/v1/queues/echo/boost", json={"factor": 4}), 403, "forbidden")
    ok(http.put("/v1/queues/echo/boost", params={"project": "other"}, json={"factor": 2}))
    assert set(door.overrides(0.0)) == {"other/echo"}
    problem(http.put("/v1/queues/none/boost", json={"factor": 2}), 404, "function_not_found")


def test_a_function_that_is_deleted_leaves_nothing_that_people_have_set(
    http: httpx.Client, other: httpx.Client, config: Settings, redis_client: "redis.Redis"
) -> None:
    for what in ("pause", "drain"):
        ok(http.post(f"/v1/queues/echo/{what}"))
    ok(http.post("/v1/queues/echo/pause", params={"project": "other"}))
    ok(http.put("/v1/queues/echo/boost", json={"factor": 4}))
    ok(http.put("/v1/queues/echo/pin", json={"gpus": [GPU]}))
    ok(http.delete("/v1/functions/echo"))
    door = fleet.Fleet(redis_client, config.redis.prefix)
    assert [(pause.name, pause.drains) for pause in door.pauses()] == [("other/echo", False)]
    assert door.overrides(0.0) == {}
    last = ok(http.get("/v1/audit"))["entries"][0]
    before = {"revision": 1, "paused": True, "draining": True, "boost": 4.0, "gpus": [GPU]}
    assert (last["route"], last["before"]) == ("DELETE /v1/functions/{function}", before)
    assert unloaded(redis_client)[-1] == Offload(version=1, function=ECHO, revision=ALL_REVISIONS, gone=True)


def test_a_deploy_says_at_once_what_pause_or_drain_stands_against_it(http: httpx.Client) -> None:
    document = {
        "apiVersion": "smore/v1",
        "kind": "Function",
        "metadata": {"name": "echo"},
        "spec": {"entrypoint": "zoo.echo:Function", "slo": {"deadline": 3}},
    }
    ok(http.post("/v1/queues/echo/pause"))
    said = problem(http.put("/v1/functions/echo", json=document), 409, "conflict")["detail"]
    key = ok(http.get("/v1/audit"))["entries"][0]["key_id"]
    assert "The function echo is paused since 20" in said and f"UTC by key {key}: " in said
    assert "`smore queues resume echo` ends it." in said
    ok(http.post("/v1/queues/echo/resume"))
    ok(http.post("/v1/queues/pause"))
    said = problem(http.put("/v1/functions/echo", json=document), 409, "conflict")["detail"]
    assert "The platform is paused since 20" in said and "`smore queues resume --all` ends it." in said
    ok(http.post("/v1/queues/resume"))
    ok(http.post("/v1/queues/echo/drain"))
    (warning,) = ok(http.put("/v1/functions/echo", json=document))["warnings"]
    assert warning.startswith("The function echo is drained since 20")
    assert warning.endswith(": new requests are answered with 503 draining. `smore queues resume echo` ends it.")
    ok(http.post("/v1/queues/echo/resume"))
    assert ok(http.put("/v1/functions/echo", json=document))["warnings"] == []


def test_a_purge_cancels_what_waits_and_nothing_else(http: httpx.Client, platform: FakePlatform) -> None:
    platform.held.add(ECHO)
    ids = [ok(submit(http))["id"] for _ in range(3)]
    assert ok(http.post("/v1/queues/echo/purge")) == {"cancelled": 3}
    assert {ok(http.get(f"/v1/invocations/{id_}"))["state"] for id_ in ids} == {"cancelled"}
    assert ok(http.post("/v1/queues/echo/purge")) == {"cancelled": 0}


def test_a_process_that_nobody_registered_is_listed_and_allowed(
    http: httpx.Client, platform: FakePlatform, config: Settings, redis_client: "redis.Redis"
) -> None:
    stranger = UnregisteredProcess(pid=4711, start=99, memory_mib=512.0, name="python")
    report_gpu(redis_client, config, strangers=[stranger])
    shown = next(gpu for gpu in ok(http.get("/v1/gpus"))["gpus"] if gpu["id"] == "gpu9")
    assert shown["strangers"] == [{"pid": 4711, "name": "python", "memory_mib": 512.0, "allowed": False}]
    ok(http.post("/v1/gpus/gpu9/allow", json={"pid": 4711}))
    assert fleet.Fleet(redis_client, config.redis.prefix).allowed() == {"gpu9|4711|99"}
    ok(http.post("/v1/gpus/gpu9/protect", json={"pid": 4711}))
    assert fleet.Fleet(redis_client, config.redis.prefix).allowed() == frozenset()
    problem(http.post("/v1/gpus/gpu9/allow", json={"pid": 1}), 404, "not_found")


def test_every_change_leaves_its_trail(http: httpx.Client, other: httpx.Client, catalog: Catalog) -> None:
    ok(http.put("/v1/functions/echo/slo", json={"deadline_ms": 250}))
    ok(http.post("/v1/queues/echo/pause"))
    ok(http.post(f"/v1/gpus/{GPU}/pause"))
    limit(http, depth=7)
    limit(http, "other", depth=8)
    key = ok(http.post("/v1/keys", json={"name": "ci", "scopes": ["invoke"]}))
    problem(http.patch("/v1/projects/default/limits", json={"depth": -1}), 422, "invalid_input")
    page = ok(http.get("/v1/audit"))
    found = [(one["route"], one["target"], one["before"], one["after"]) for one in page["entries"]]
    assert found == [
        ("POST /v1/keys", f"key/{key['id']}", None, {"name": "ci", "scopes": ["invoke"]}),
        ("PATCH /v1/projects/{project}/limits", "project/other", {}, {"depth": 8}),
        ("PATCH /v1/projects/{project}/limits", "project/default", {}, {"depth": 7}),
        (
            "POST /v1/gpus/{gpu}/pause",
            f"gpu/{GPU}",
            {"paused": False, "draining": False},
            {"paused": True, "draining": False},
        ),
        (
            "POST /v1/queues/{function}/pause",
            "function/echo",
            {"paused": False, "draining": False},
            {"paused": True, "draining": False},
        ),
        ("PUT /v1/functions/{function}/slo", "function/echo", {"deadline_ms": None}, {"deadline_ms": 250.0}),
    ]
    short = http.put("/v1/secrets/TOKEN", json={"value": "seven77"})
    assert short.status_code == 422 and short.json()["field"] == "value"
    assert short.json()["detail"].startswith("The value of the secret TOKEN has 7 characters: at least 8")
    assert key["key"] not in str(page), "no secret"
    assert {one["key_id"] for one in page["entries"]} == set(catalog_keys(catalog)) - {key["id"]} - own(other)
    first = ok(http.get("/v1/audit", params={"limit": 2}))
    rest = ok(http.get("/v1/audit", params={"limit": 10, "cursor": first["next_cursor"]}))
    assert [*first["entries"], *rest["entries"]] == page["entries"]
    assert rest["next_cursor"] is None
    assert [one["target"] for one in ok(http.get("/v1/audit", params={"route": "slo"}))["entries"]] == ["function/echo"]
    assert http.get("/v1/audit", params={"since": "0001-01-01T00:00:00+23:59"}).json()["field"] == "since"
    assert len(ok(http.get("/v1/audit", params={"target": f"gpu/{GPU}"}))["entries"]) == 1
    assert ok(http.get("/v1/audit", params={"since": "2999-01-01T00:00:00Z"}))["entries"] == []
    for none in ("1.8e9", "2026-01-01", "2026-01-01T00:00:00"):
        assert http.get("/v1/audit", params={"since": none}).status_code == 422, none
    assert {one["project"] for one in ok(other.get("/v1/audit"))["entries"]} == {"other"}
    problem(other.get("/v1/audit", params={"project": "default"}), 403, "forbidden")
    named = ok(http.post("/v1/keys", json={"name": "ops", "scopes": ["admin"]}))
    ok(http.post("/v1/queues/echo/resume", headers={"Authorization": f"Bearer {named['key']}"}))
    assert ok(http.get("/v1/audit"))["entries"][0]["key_name"] == "ops"


def catalog_keys(catalog: Catalog) -> list[str]:
    return [key.decode() for key in catalog._redis.hkeys("smore:catalog:keys")]  # type: ignore[union-attr]


def own(client: httpx.Client) -> set[str]:
    return {client.headers["x-api-key"].split("_")[1]}


def test_the_database_refuses_to_change_the_trail(engine: Engine) -> None:
    audit = Audit(engine)
    with audit.recorded(AuditedChange(project="p", key_id="k", route="r", target="t", request_id="q")) as change:
        change.after = {"x": 1}
    for statement in ("UPDATE audit SET key_id = 'x'", "DELETE FROM audit", "TRUNCATE audit"):
        with pytest.raises(DBAPIError, match="append-only"), engine.begin() as connection:
            connection.execute(text(statement))
    ((entry,), _) = audit.read(AuditFilter())
    assert (entry.key_id, entry.after) == ("k", {"x": 1})


def test_a_change_that_fails_leaves_no_trail(engine: Engine) -> None:
    audit = Audit(engine)
    with (
        pytest.raises(ValueError, match="no"),
        audit.recorded(AuditedChange(project="p", key_id="k", route="r", target="t", request_id="q")),
    ):
        raise ValueError("no")
    assert audit.read(AuditFilter()) == ([], None)
