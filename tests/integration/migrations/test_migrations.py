"""``python -m migrations`` on real servers."""

import os
import secrets
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
import redis
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Engine, inspect, make_url, text

from migrations import __main__
from smore.domain.access import Scope, read_token
from smore.domain.function import FunctionSpec
from smore.domain.job import JobRequest, PromiseState
from smore.postgres.catalog import Store
from smore.postgres.connection import make_engine
from smore.postgres.job_ledger import Decided, JobLedger
from smore.postgres.job_promises import JobPromise
from smore.postgres.jobs import JobStore
from smore.postgres.rows import Base
from smore.postgres.schema import FOLDER, head, version
from smore.process.settings import PostgresSettings, RedisSettings, Settings
from smore.redis.catalog import Catalog

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def bare(config: Settings, migrated: Engine, redis_client: "redis.Redis") -> Iterator[Settings]:
    """Settings with a database in which there is nothing, and an empty Redis."""
    name = f"bare_{secrets.token_hex(4)}"
    assert config.postgres.url is not None
    url = make_url(config.postgres.url).set(database=name).render_as_string(hide_password=False)
    with migrated.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.execute(text(f"CREATE DATABASE {name}"))
        yield Settings(
            redis=RedisSettings(url=config.redis.url, prefix=config.redis.prefix), postgres=PostgresSettings(url=url)
        )
        connection.execute(text(f"DROP DATABASE {name} WITH (FORCE)"))


def start(config: Settings, *words: str) -> "subprocess.Popen[str]":
    assert config.postgres.url is not None
    assert config.redis.url is not None
    env = os.environ | {
        "SMORE_POSTGRES__URL": config.postgres.url,
        "SMORE_REDIS__URL": config.redis.url,
        "PYTHONPATH": str(ROOT),
    }
    return subprocess.Popen(
        [sys.executable, *words], env=env, cwd="/", stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def done(process: "subprocess.Popen[str]") -> str:
    out, err = process.communicate(timeout=30)
    assert process.returncode == 0, err
    return out


def database(config: Settings) -> str:
    assert config.postgres.url is not None
    return config.postgres.url


def test_a_new_database_has_the_tables_of_the_code(migrated: Engine) -> None:
    with migrated.connect() as connection:
        assert compare_metadata(MigrationContext.configure(connection), Base.metadata) == []


def test_the_version_of_an_empty_database_is_asked_for_without_an_error(bare: Settings) -> None:
    assert bare.postgres.url is not None
    with psycopg.connect(bare.postgres.url.replace("+psycopg", "")) as connection:
        assert version(connection) is None
        assert connection.info.transaction_status is not psycopg.pq.TransactionStatus.INERROR


def test_head_is_alembics_head() -> None:
    assert head() == ScriptDirectory(str(FOLDER)).get_current_head()


def test_two_at_once_make_one_schema_and_one_key(bare: Settings, redis_client: "redis.Redis", tmp_path: Path) -> None:
    path = tmp_path / "key"
    for process in [start(bare, "-m", "migrations", "--bootstrap-key", str(path)) for _ in range(2)]:
        done(process)

    token = read_token(path.read_text().strip())
    assert token is not None
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    engine = make_engine(database(bare), "tests")
    keys = Store(engine, Catalog(redis_client, bare.redis.prefix)).list_keys("default")
    engine.dispose()
    assert [(key.id, key.scopes) for key in keys] == [(token[0], sorted(Scope))]


def test_with_nothing_to_do_it_imports_little(config: Settings, engine: Engine) -> None:
    code = (
        "import sys, migrations.__main__ as m; sys.argv[1:] = []; m.main(); print(*sorted({'sqlalchemy', 'alembic'} &"
        " set(sys.modules)))"
    )

    assert done(start(config, "-c", code)).split() == []


def test_a_key_file_that_is_not_ours_is_replaced(
    config: Settings, engine: Engine, redis_client: "redis.Redis", tmp_path: Path
) -> None:
    path = tmp_path / "key"
    path.write_text("smk_0123456789ab_" + "x" * 43)
    __main__.prepare(config, database(config), path)
    first = path.read_text()
    __main__.prepare(config, database(config), path)

    assert path.read_text() == first
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    token = read_token(first.strip())
    assert token is not None
    assert redis_client.hexists("smore:catalog:keys", token[0])


def test_a_redis_that_lost_the_mirror_gets_it_back(
    config: Settings, engine: Engine, store: Store, redis_client: "redis.Redis"
) -> None:
    key, _ = store.create_key("default", "ci", [Scope.INVOKE])
    number, _ = store.register("default", "echo", FunctionSpec(entrypoint="m:C"))
    store.activate("default", "echo", number, {})
    redis_client.flushdb()
    redis_client.hset("smore:catalog:keys", "stale", b"{}")
    __main__.prepare(config, database(config), None)

    catalog = Catalog(redis_client, "smore:")
    assert catalog.functions()["default/echo"].revision == 1
    assert catalog.revision("default/echo", 1) == FunctionSpec(entrypoint="m:C")
    assert redis_client.hkeys("smore:catalog:keys") == [key.id.encode()]


def test_an_older_database_gets_the_tables_of_a_new_one(bare: Settings) -> None:
    __main__.prepare(bare, database(bare), None)
    engine = make_engine(database(bare), "tests")
    jobs = JobStore(engine)
    waiting = jobs.submit("default", "w", JobRequest(argv=["zoo.train"]))
    alembic = Config()
    alembic.set_main_option("script_location", str(FOLDER))
    alembic.attributes["engine"] = engine
    promised = jobs.submit("default", "p", JobRequest(argv=["zoo.train"], by=1e10), key="k", digest="d")
    promise = JobPromise(by=1e10, latest_start_at=9e9, outcome=PromiseState.KEPT_SO_FAR)
    assert JobLedger(engine).promise(promised.id, 0, promise, Decided(kind="promise"), refuse=False)
    command.downgrade(alembic, "0013")
    with engine.connect() as connection:
        assert not inspect(connection).has_table("job_promises")
        assert compare_metadata(MigrationContext.configure(connection), Base.metadata) != []
    __main__.prepare(bare, database(bare), None)

    with engine.connect() as connection:
        assert compare_metadata(MigrationContext.configure(connection), Base.metadata) == []
    assert jobs.get("default", waiting.id).name == "w"
    engine.dispose()


def test_there_is_no_way_back(migrated: Engine) -> None:
    alembic = Config()
    alembic.set_main_option("script_location", str(FOLDER))
    alembic.attributes["engine"] = migrated

    with pytest.raises(SystemExit, match="restore a backup"):
        command.downgrade(alembic, "base")
    with migrated.connect() as connection:
        assert connection.execute(text("SELECT version_num FROM alembic_version")).scalar() == head()


def test_a_postgres_that_stays_away_is_an_error(
    config: Settings, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(__main__, "PATIENCE_S", 0.1)

    with pytest.raises(psycopg.OperationalError):
        __main__.prepare(config, f"postgresql+psycopg://smore@/smore?host={tmp_path}", None)
