"""The catalog on real servers: Postgres first, then the mirror that everybody reads."""

import asyncio
import threading

import pytest
import redis
import redis.asyncio
from sqlalchemy import Engine, text

from smore.domain.access import Scope, read_token
from smore.domain.errors import Conflict, FunctionNotFound, InvalidSpec, NotFound
from smore.domain.function import FunctionSpec, Profile, RevisionState, TensorSpec
from smore.domain.job import Action, JobState, Outcome
from smore.postgres import mirror
from smore.postgres.catalog import Store
from smore.postgres.driver import driver
from smore.postgres.jobs import JobChange
from smore.process.settings import Settings
from smore.redis.catalog import AsyncCatalog, Catalog, KeyEntry
from tests.support.placed_jobs import placed

SPEC = FunctionSpec(
    entrypoint="zoo.echo:Function", profile=Profile(run_s={1: 0.1, 8: 0.2}, usage_gain=0.4, degradation=0.05)
)
TENSOR = {"name": "x", "datatype": "FP32", "shape": [-1, 3]}
MEASURED = {"inputs": [TENSOR], "outputs": None, "load_ms": 250.0, "run_ms": 50.0, "memory_mib": 80.0}


def refreshed(engine: Engine, catalog: Catalog) -> int:
    """How many entries of the mirror differed."""
    with driver(engine) as connection:
        return mirror.refresh(connection, catalog)


def active(store: Store, spec: FunctionSpec = SPEC, name: str = "echo") -> int:
    number, created = store.register("default", name, spec)
    assert created
    store.activate("default", name, number, MEASURED)
    return number


def test_projects(store: Store) -> None:
    store.create_project("vision")

    assert [project.name for project in store.list_projects()] == ["default", "vision"]
    with pytest.raises(Conflict):
        store.create_project("vision")
    with pytest.raises(InvalidSpec):
        store.create_project("No Name")


def test_a_key_is_mirrored_and_revoked(store: Store, config: Settings) -> None:
    entry, token = store.create_key("default", "ci", [Scope.READ, Scope.INVOKE])

    assert read_token(token) == (entry.id, entry.digest)
    assert token.startswith("smk_")
    assert mirrored(config) == {entry.id: entry}
    assert entry.scopes == ["invoke", "read"]
    store.revoke_key("default", entry.id)
    assert mirrored(config) == {}
    revoked = store.list_keys("default")[0]
    assert revoked.name == "ci"
    assert revoked.revoked_at is not None


def test_a_secret_is_mirrored_sealed_and_comes_back_after_a_loss(
    store: Store, engine: Engine, catalog: Catalog
) -> None:
    with pytest.raises(NotFound):
        store.put_secret("nowhere", "TOKEN", b"sealed")
    first = store.put_secret("default", "TOKEN", b"\x01sealed")
    assert catalog.secrets("default", ["TOKEN", "OTHER"]) == {"TOKEN": b"\x01sealed"}
    again = store.put_secret("default", "TOKEN", b"\x01anew")
    assert again.created_at == first.created_at and [one.name for one in store.list_secrets("default")] == ["TOKEN"]
    catalog.put_secret("default/TOKEN", None)
    catalog.put_secret("default/STALE", b"gone in Postgres")
    assert refreshed(engine, catalog) == 2
    assert catalog.secrets("default", ["TOKEN", "STALE"]) == {"TOKEN": b"\x01anew"}
    store.delete_secret("default", "TOKEN")
    assert catalog.secrets("default", ["TOKEN"]) == {} and store.list_secrets("default") == []
    with pytest.raises(NotFound):
        store.delete_secret("default", "TOKEN")


def mirrored(config: Settings) -> dict[str, KeyEntry]:
    """The keys as a gateway reads them."""

    async def load() -> dict[str, KeyEntry]:
        assert config.redis.url is not None
        async with redis.asyncio.from_url(config.redis.url) as client:
            catalog = AsyncCatalog(client, config.redis.prefix)
            await catalog.load()
            return catalog.keys

    return asyncio.run(load())


def test_keys_belong_to_a_project(store: Store) -> None:
    entry, _ = store.create_key("default", "ci", [Scope.ADMIN])
    store.create_project("vision")

    assert store.list_keys("vision") == []
    with pytest.raises(NotFound):
        store.revoke_key("vision", entry.id)
    with pytest.raises(NotFound):
        store.create_key("nowhere", "ci", [Scope.READ])
    with pytest.raises(InvalidSpec):
        store.create_key("default", "ci", [])


def test_a_revision_takes_the_traffic_once_its_canary_passed(store: Store, catalog: Catalog) -> None:
    number, _ = store.register("default", "echo", SPEC)

    assert catalog.functions()["default/echo"].revision == 0
    assert catalog.revision("default/echo", number) == SPEC
    store.activate("default", "echo", number, MEASURED)
    assert catalog.functions()["default/echo"].revision == 1
    spec = catalog.revision("default/echo", 1)
    assert spec is not None
    assert spec.inputs == (TensorSpec(name="x", datatype="FP32", shape=(-1, 3)),)
    assert spec.outputs is None
    assert spec.profile == Profile(run_s={1: 0.05, 8: 0.1}, load_s=0.25, usage_gain=0.4, degradation=0.05)
    assert store.get_function("default", "echo").spec == spec
    assert store.revisions("default", "echo")[0].measured == MEASURED


def test_the_same_spec_again_is_the_same_revision(store: Store) -> None:
    number = active(store)

    assert store.register("default", "echo", SPEC) == (number, False)
    assert store.register("default", "echo", FunctionSpec(entrypoint="zoo.echo:Other")) == (number + 1, True)


def test_a_failed_revision_leaves_the_function_as_it_was(store: Store, catalog: Catalog) -> None:
    active(store)
    number, _ = store.register("default", "echo", FunctionSpec(entrypoint="zoo.echo:Broken"))
    store.fail_revision("default", "echo", number, "Traceback\0 …")

    failed, good = store.revisions("default", "echo")
    assert (failed.number, failed.state, failed.log) == (2, RevisionState.FAILED, "Traceback …")
    assert good.state is RevisionState.ACTIVE
    assert catalog.functions()["default/echo"].revision == 1
    with pytest.raises(Conflict):
        store.rollback("default", "echo", 2)
    with pytest.raises(Conflict):
        store.fail_revision("default", "echo", 1, "")


def test_canaries_may_end_in_either_order(store: Store) -> None:
    first, _ = store.register("default", "echo", SPEC)
    second, _ = store.register("default", "echo", FunctionSpec(entrypoint="zoo.echo:Other"))
    store.activate("default", "echo", second, MEASURED)
    store.activate("default", "echo", first, MEASURED)

    assert store.get_function("default", "echo").revision == second


def test_rollback_and_deadline(store: Store, catalog: Catalog) -> None:
    active(store)
    active(store, FunctionSpec(entrypoint="zoo.echo:Other"))
    store.rollback("default", "echo", 1)
    store.set_deadline("default", "echo", 0.5)

    entry = catalog.functions()["default/echo"]
    assert (entry.revision, entry.deadline_s) == (1, 0.5)
    store.set_deadline("default", "echo", None)
    assert catalog.functions()["default/echo"].deadline_s is None
    with pytest.raises(NotFound):
        store.rollback("default", "echo", 9)
    with pytest.raises(InvalidSpec):
        store.set_deadline("default", "echo", 0.0)


def test_a_deleted_functions_name_can_come_back(store: Store, catalog: Catalog) -> None:
    active(store)
    store.delete_function("default", "echo")

    assert catalog.functions() == {}
    with pytest.raises(FunctionNotFound):
        store.get_function("default", "echo")
    with pytest.raises(FunctionNotFound):
        store.delete_function("default", "echo")
    assert store.register("default", "echo", SPEC) == (2, True)
    assert store.get_function("default", "echo").revision == 0


def test_unknown_things(store: Store) -> None:
    for call in (
        lambda: store.activate("default", "echo", 1, {}),
        lambda: store.rollback("default", "echo", 1),
        lambda: store.set_deadline("default", "echo", 1.0),
        lambda: store.revisions("default", "echo"),
    ):
        with pytest.raises(FunctionNotFound):
            call()
    with pytest.raises(NotFound):
        store.register("nowhere", "echo", SPEC)


def test_registrations_at_once_get_numbers_of_their_own(store: Store) -> None:
    numbers: list[int] = []
    specs = [FunctionSpec(entrypoint=f"zoo.echo:C{i}") for i in range(4)]
    threads = [
        threading.Thread(target=lambda spec=spec: numbers.append(store.register("default", "echo", spec)[0]))
        for spec in specs
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)

    assert sorted(numbers) == [1, 2, 3, 4]


def test_a_gateway_reads_an_activated_revision_anew(store: Store, config: Settings) -> None:
    """It has read the revision once already: for its canary."""
    number, _ = store.register("default", "echo", SPEC)

    async def see() -> FunctionSpec | None:
        assert config.redis.url is not None
        async with redis.asyncio.from_url(config.redis.url) as client:
            catalog = AsyncCatalog(client, config.redis.prefix)
            before = await catalog.revision("default/echo", number)
            assert before is not None
            assert before.inputs is None
            store.activate("default", "echo", number, MEASURED)
            await catalog.changed("f:default/echo")
            return await catalog.revision("default/echo", number)

    spec = asyncio.run(see())
    assert spec is not None
    assert spec.inputs is not None


def test_the_mirror_follows_postgres_not_its_writers(
    store: Store, engine: Engine, catalog: Catalog, redis_client: "redis.Redis"
) -> None:
    active(store)
    entry, _ = store.create_key("default", "ci", [Scope.READ])
    before = redis_client.xlen("smore:ev")
    assert refreshed(engine, catalog) == 0
    assert redis_client.xlen("smore:ev") == before
    with engine.begin() as connection:
        connection.execute(text("UPDATE functions SET deadline_s = 2.5"))
        connection.execute(text("UPDATE api_keys SET revoked_at = now()"))

    assert refreshed(engine, catalog) == 2
    assert catalog.functions()["default/echo"].deadline_s == 2.5
    assert not redis_client.hexists("smore:catalog:keys", entry.id)


def test_jobs(store: Store) -> None:
    jobs = [placed(store, f"train-{i}", ["cpu0"]) for i in range(5)]
    assert jobs[0].state is JobState.STARTING
    running = store.jobs.move(jobs[0].id, Action.RUN)
    ended = store.jobs.move(jobs[0].id, Action.END, JobChange(exit_code=3))
    assert running is not None
    assert ended is not None

    assert store.jobs.get("default", jobs[0].id) == ended
    assert (ended.exit_code, ended.started_at) == (3, running.started_at)
    assert ended.ended_at is not None
    assert (ended.request.argv, ended.outcome) == (["zoo.train"], Outcome.FAILED)
    first, cursor = store.jobs.page("default", limit=3)
    rest, end = store.jobs.page("default", limit=3, cursor=cursor)
    assert {job.id for job in [*first, *rest]} == {job.id for job in jobs}
    assert [len(first), len(rest), end] == [3, 2, None]
    with pytest.raises(NotFound):
        store.jobs.get("vision", jobs[0].id)
