"""
What tests of several kinds share: a real Redis and a real Postgres of their own, once a session, empty for every test.
"""

import gc
import os
import sys
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from importlib import import_module
from pathlib import Path

import httpx
import pytest
import redis
import structlog
from hypothesis import HealthCheck
from hypothesis import settings as hypothesis_settings
from sqlalchemy import Engine, text
from xdist.scheduler import LoadFileScheduling

from lab.bench.servers import ServerUrls
from lab.bench.servers import servers as start_servers
from migrations.__main__ import prepare
from smore.local import embedded
from smore.postgres.catalog import Store
from smore.postgres.connection import make_engine
from smore.postgres.rows import Base
from smore.postgres.schema import PROJECT
from smore.process.settings import PostgresSettings, RedisSettings, Settings
from smore.redis.catalog import Catalog
from smore.redis.connection import connect
from tests.support import leftovers
from tests.support.clusters import Clusters

TESTS = Path(__file__).resolve().parent
PREFIX = "smore:"
#: Deletes every row once nobody writes any more. The audit's triggers refuse it; a test's database may forget. TRUNCATE makes
#: the files of a table and its indexes anew, which for all takes most of a short test: only what has grown or has statistics.
EMPTY = text(
    f"""
    DO $$ DECLARE old regclass; BEGIN
    LOCK {", ".join(Base.metadata.tables)};
    SET LOCAL session_replication_role = replica;
    FOR old IN SELECT oid FROM pg_class WHERE relname IN ({", ".join(f"'{table}'" for table in Base.metadata.tables)})
        AND (reltuples >= 0 OR pg_relation_size(oid) > 65536)
    LOOP EXECUTE format('TRUNCATE %s CASCADE', old); END LOOP;
    {"".join(f"DELETE FROM {table};" for table in Base.metadata.tables)}
    SET LOCAL session_replication_role = origin;
    END $$
    """
)

# The suite tries the same examples every time: what it says of a commit stays true, however
# busy the machine is. `make search` looks for others.
hypothesis_settings.register_profile(
    "suite", derandomize=True, database=None, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
hypothesis_settings.register_profile("search", print_blob=True)
hypothesis_settings.load_profile("suite")

# Imports make hundreds of thousands of objects that stay.
gc.disable()

# What fails in a finalizer is nobody's failure here. pytest would format its traceback, which parses sources: on Python 3.11
# a collection of garbage may come while other sources are parsed, and these then fail with SystemError.
sys.unraisablehook = lambda _: None

#: Files that share one platform in processes (tests/acceptance/conftest.py), by the name of their group.
TOGETHER = {
    "tests/acceptance/hostile/test_hostile.py": "bounded",
    "tests/acceptance/test_first_call.py": "durability strict",
    "tests/acceptance/test_fuzz.py": "bounded",
    "tests/acceptance/test_jobs.py": "durability strict",
    "tests/acceptance/test_kills.py": "durability strict",
    "tests/acceptance/test_oip.py": "durability strict",
    "tests/acceptance/test_pages.py": "durability strict",
    "tests/acceptance/test_path.py": "durability strict",
    "tests/acceptance/test_predictor.py": "durability strict",
    "tests/acceptance/test_uploads.py": "durability strict",
}


#: Files that take longest, beside those of tests/acceptance. One that began last would run alone at the end.
LONGEST = {
    "tests/integration/api/test_api.py",
    "tests/integration/lab/bench/test_gpu.py",
    "tests/integration/ml/test_learning.py",
    "tests/integration/lab/measure/test_profile.py",
    "tests/integration/smore/local/test_local.py",
    "tests/integration/smore/test_train.py",
    "tests/integration/test_compose.py",
    "tests/integration/worker/test_environments.py",
    "tests/integration/worker/test_lives.py",
    "tests/integration/worker/test_many_nodes.py",
    "tests/integration/worker/test_runs.py",
    "tests/property/test_queue.py",
    "tests/simulation/research/compare/test_comparison.py",
    "tests/simulation/research/compare/test_report.py",
    "tests/simulation/test_simulator.py",
    "tests/unit/lab/research/predictor/test_evaluate.py",
    "tests/unit/lab/research/predictor/test_report.py",
    "tests/unit/smore/cli/test_run.py",
    "tests/unit/test_house.py",
    "tests/unit/zoo/test_zoo.py",
}
#: Folders whose tests mostly wait for processes.
WAITING = ("tests/integration/", "tests/contract/")


class FilesTogether(LoadFileScheduling):  # type: ignore[misc]  # xdist has no types
    """xdist's ``--dist loadfile``, with files in the place of one that share a platform."""

    def _split_scope(self, nodeid: str) -> str:
        file: str = super()._split_scope(nodeid)
        return TOGETHER.get(file, file)


def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> LoadFileScheduling | None:
    return FilesTogether(config, log) if config.getoption("dist") == "loadfile" else None


@pytest.hookimpl(tryfirst=True)
def pytest_collection(session: pytest.Session) -> None:
    """
    Where every worker of xdist collects all files, each imports them from another one on: whose assertions one has
    rewritten, the others read from the cache. What cannot be imported is told by the collection.
    """
    worker = os.environ.get("PYTEST_XDIST_WORKER")
    if worker is None or [Path(word).resolve() for word in session.config.args] != [TESTS]:
        return
    files = sorted(TESTS.rglob("test_*.py"))
    first = len(files) * int(worker.removeprefix("gw")) // int(os.environ["PYTEST_XDIST_WORKER_COUNT"])
    for file in files[first:] + files[:first]:
        with suppress(Exception, pytest.skip.Exception):
            import_module(".".join(file.relative_to(TESTS.parent).with_suffix("").parts))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """
    The files of tests/acceptance begin, because they share platforms and take longest. Of the others those that mostly
    wait and those that mostly compute run side by side to the end, the longest first: each file comes as far along as it
    is among its kind.
    """
    kinds: dict[int, list[str]] = {0: [], 1: [], 2: []}
    for file in dict.fromkeys(item.nodeid.partition("::")[0] for item in items):
        kinds[0 if file.startswith("tests/acceptance/") else 1 if file.startswith(WAITING) else 2].append(file)
    place: dict[str, tuple[bool, float]] = {}
    for kind, of_kind in kinds.items():
        of_kind.sort(key=lambda file: file not in LONGEST)
        place |= {file: (kind > 0, number / len(of_kind)) for number, file in enumerate(of_kind)}
    items.sort(key=lambda item: place[item.nodeid.partition("::")[0]])


def pytest_collection_finish() -> None:
    """What the modules hold is there to the end: no collection of garbage need look at it again."""
    gc.enable()
    gc.collect()
    gc.freeze()


# Every client of httpx reads all certificates of the machine, which takes longer than most requests. No test speaks TLS.
pytest.MonkeyPatch().setattr("httpx._transports.default.create_ssl_context", cache(httpx.create_ssl_context))

pytest.MonkeyPatch().setattr(embedded, "_create_cluster", Clusters(embedded._create_cluster))

# Where rich is installed, structlog by itself renders a logged exception with the source and the variables of every frame:
# seconds of a processor each.
structlog.configure(
    processors=[
        *structlog.get_config()["processors"][:-1],
        structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback),
    ]
)

# A developer's own platform must not be what the tests run against; SMORE_TEST_DEVICE is for the tests.
for name in [name for name in os.environ if name.startswith("SMORE_") and not name.startswith("SMORE_TEST_")]:
    del os.environ[name]


@pytest.fixture(scope="session", autouse=True)
def watched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Where the tests are killed, nothing that they have started stays."""
    folder = tmp_path_factory.getbasetemp()
    os.environ[leftovers.FOLDER] = str(folder)
    watcher = leftovers.watch(folder)
    yield
    watcher.kill()
    watcher.wait()


@pytest.fixture(scope="session")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerUrls]:
    """URLs of a Redis and a Postgres that nobody else uses."""
    home: Path = tmp_path_factory.mktemp("servers")
    with start_servers(home) as urls:
        yield urls


@pytest.fixture(scope="session")
def config(servers: ServerUrls) -> Settings:
    """The platform's settings with the test servers in them."""
    return Settings(
        redis=RedisSettings(url=servers.redis_url, prefix=PREFIX), postgres=PostgresSettings(url=servers.postgres_url)
    )


@pytest.fixture
def redis_client(config: Settings) -> Iterator["redis.Redis"]:
    """An empty Redis."""
    with connect(config) as client:
        client.flushdb()
        yield client


@pytest.fixture(scope="session")
def migrated(config: Settings) -> Iterator[Engine]:
    assert config.postgres.url is not None
    prepare(config, config.postgres.url, None)
    engine = make_engine(config.postgres.url, "tests")
    yield engine
    engine.dispose()


@pytest.fixture
def engine(migrated: Engine) -> Engine:
    """The newest schema, with the project ``default`` and nothing else in it."""
    with migrated.begin() as connection:
        connection.execute(EMPTY)
        connection.execute(text("INSERT INTO projects (name) VALUES (:name)"), {"name": PROJECT})
    return migrated


@pytest.fixture
def catalog(redis_client: "redis.Redis") -> Catalog:
    return Catalog(redis_client, PREFIX)


@pytest.fixture
def store(engine: Engine, catalog: Catalog) -> Store:
    return Store(engine, catalog)
