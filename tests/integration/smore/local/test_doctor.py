"""The doctor at a real Redis and Postgres, whole and with one thing wrong at a time."""

import os
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
import redis
from sqlalchemy import Engine, text

from smore.local import doctor
from smore.local.findings import Finding, Grade, Site
from smore.local.started_settings import audit_settings, note_settings
from smore.local.supervision import End
from smore.messages.reports import JobReport, Report, UnregisteredProcess, encode_report
from smore.postgres.audit import Audit, AuditFilter
from smore.process.settings import RedisSettings, Settings
from smore.redis import fleet
from smore.redis.job_queue import JobQueue
from smore.redis.queue import Queue
from tests.support.fake_platform import GPU, report


@pytest.fixture
def place(config: Settings, engine: Engine, redis_client: "redis.Redis", tmp_path: Path) -> Iterator[Site]:
    """An installation in which all is well: a leader, a control process, a GPU instance, a kernel as it should be."""
    for path, value in (
        ("sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] never"),
        ("proc/sys/vm/overcommit_memory", "1"),
        ("proc/sys/net/core/somaxconn", "4096"),
    ):
        file = tmp_path / "root" / path
        file.parent.mkdir(parents=True)
        file.write_text(f"{value}\n")
    home = tmp_path / "home"
    home.mkdir()
    (home / "key").write_text("k")
    (home / "key").chmod(0o600)
    queue = Queue(redis_client, config.redis.prefix, config.queue)
    queue.lead("", 60)
    JobQueue(redis_client, config.redis.prefix).lead("host:1:a", 60)
    tell(queue, report())
    control = controls(config, "a")
    yield Site(
        config=config.model_copy(update={"home": home}),
        redis_url=config.redis.url,
        postgres_url=config.postgres.url,
        processes={},
        root=tmp_path / "root",
    )
    control.close()


def tell(queue: Queue, one: Report) -> None:
    queue.report(one.gpu, encode_report(one), ttl_s=60, lease_s=2, cursor="", running=[])


def controls(config: Settings, host: str) -> "redis.Redis":
    assert config.redis.url is not None
    client = redis.Redis.from_url(config.redis.url, client_name=f"smore-control:{host}:1")
    client.ping()
    return client


def ills(place: Site) -> dict[str, Finding]:
    """What is not well, by name. What this machine's shell and disk are like is no matter of these tests."""
    return {
        one.name: one
        for one in doctor.examine(place)
        if one.verdict is not Grade.OK and one.name not in ("open files", "disk", "Redis version", "Postgres version")
    }


def test_where_all_is_well_nothing_is_said(place: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SMORE_LOG_LEVEL", "info")
    monkeypatch.setenv("SMORE_URL", "http://there")
    assert ills(place) == {}
    found = {one.name: one.found for one in doctor.examine(place) if one.verdict is Grade.OK and not one.fix}
    assert all(found.values())
    assert "no function is registered" in found["visibility timeout"]
    assert "SMORE_LOG_LEVEL" in found["settings"] and "SMORE_URL" not in found["settings"], "the client reads that one"


@pytest.mark.parametrize(
    ("setting", "wrong", "name", "fix"),
    [
        ("maxmemory-policy", "allkeys-lru", "maxmemory-policy", "noeviction"),
        ("appendfsync", "no", "Redis persistence", "everysec"),
        ("maxmemory", "0", "Redis memory", "maxmemory"),
    ],
)
def test_redis_settings(
    place: Site, redis_client: "redis.Redis", setting: str, wrong: str, name: str, fix: str
) -> None:
    before = redis_client.config_get(setting)[setting]
    assert before is not None
    redis_client.config_set(setting, wrong)
    try:
        found = ills(place)
    finally:
        redis_client.config_set(setting, before)
    assert set(found) == {name}
    assert fix in found[name].fix


def test_two_controls_and_none(place: Site, config: Settings, redis_client: "redis.Redis") -> None:
    with controls(config, "b"):
        found = ills(place)
        assert found["control"].found.startswith("2: smore-control:a:1, smore-control:b:1")
    for client in redis_client.client_list():
        if client["name"].startswith("smore-control"):
            redis_client.client_kill_filter(_id=client["id"])
    assert ills(place)["control"].verdict is Grade.WARNING


def test_what_is_paused_and_drained(place: Site, config: Settings, redis_client: "redis.Redis") -> None:
    there = fleet.Fleet(redis_client, config.redis.prefix)
    for target in ("-*", f"g:{GPU}", "-f:default/echo"):
        there.pause(target, "key1")
    said = [one for one in doctor.examine(place) if one.name == "paused or drained"]
    assert [one.found.partition(" since ")[0] for one in said] == [
        "The platform is drained",
        f"GPU instances paused: {GPU}",
        "Functions drained: default/echo",
    ]
    assert all(one.verdict is Grade.WARNING and "by key key1" in one.found for one in said)
    assert [one.fix for one in said][:2] == ["`smore drain --all --end` ends it.", "`smore gpus resume GPU` ends it."]
    # As set before it was written down since when and by whom.
    redis_client.delete(f"{config.redis.prefix}paused:by")
    assert f"GPU instances paused: {GPU}" in [one.found for one in doctor.examine(place)]


def test_no_leader_and_no_gpu_instance(place: Site, redis_client: "redis.Redis") -> None:
    redis_client.flushdb()
    found = ills(place)
    assert {name: one.verdict for name, one in found.items()} == {
        "leader": Grade.BROKEN,
        "leader of trainings": Grade.BROKEN,
        "GPU instances": Grade.BROKEN,
    }


def test_a_lost_device_and_a_policy_that_cannot_lead(
    place: Site, config: Settings, redis_client: "redis.Redis"
) -> None:
    prefix = config.redis.prefix
    tell(Queue(redis_client, prefix, config.queue), msgspec.structs.replace(report(), health="NVML says: GPU is lost"))
    redis_client.delete(f"{prefix}leader")
    redis_client.set(f"{prefix}leader:refused", "the policy smore checks SMs")
    trainings = JobQueue(redis_client, prefix)
    trainings.failed("j1 is passed over (DataError)")
    assert ills(place)["leader of trainings"].found == "j1 is passed over (DataError)"
    trainings.resign("host:1:a")
    trainings.refuse("SMORE_JOBS__POLICY: 'no' is not a policy")
    found = ills(place)
    assert found["leader of trainings"].found == "SMORE_JOBS__POLICY: 'no' is not a policy"
    assert found[f"device of {GPU}"].found == "NVML says: GPU is lost"
    assert found["leader"].found == "the policy smore checks SMs"


def test_clocks_and_strangers(place: Site, config: Settings, redis_client: "redis.Redis") -> None:
    queue = Queue(redis_client, config.redis.prefix, config.queue)
    tell(queue, msgspec.structs.replace(report(), gpu="early", at=time.time() + 60))
    tell(queue, msgspec.structs.replace(report(), gpu="late", at=time.time() - 60))
    stranger = UnregisteredProcess(pid=7, start=1, memory_mib=1.0, name="python")
    tell(queue, msgspec.structs.replace(report(), gpu="busy", strangers=[stranger], quarantined=["p/f@1"]))
    assert set(ills(place)) == {"clock of early", "clock of late", "strangers on busy", "quarantine on busy"}
    fleet.Fleet(redis_client, config.redis.prefix).allow("busy", stranger)
    assert "strangers on busy" not in ills(place)


def test_a_supervisor_that_was_killed_and_a_training_that_stands_still(
    place: Site, config: Settings, redis_client: "redis.Redis"
) -> None:
    job = JobReport(id="j1", project="p", state="running", pid=4711, memory_mib=1.0, iterations=9, suspended=True)
    tell(Queue(redis_client, config.redis.prefix, config.queue), msgspec.structs.replace(report(), jobs=[job]))
    found = ills(
        replace(place, killed=17, ends={"worker-cpu0": End(count=2, at="09:00:01", how="terminated by SIGKILL")})
    )
    ended = found.pop("ends of worker-cpu0")
    assert (ended.verdict, ended.found) == (
        Grade.WARNING,
        "2 since the start, last at 09:00:01 (terminated by SIGKILL)",
    )
    assert {name: one.verdict for name, one in found.items()} == {
        "supervisor": Grade.BROKEN,
        f"training j1 on {GPU}": Grade.WARNING,
    }
    assert "smore up" in found["supervisor"].fix
    assert "kill -CONT 4711" in found[f"training j1 on {GPU}"].fix


def test_servers_that_are_away(place: Site) -> None:
    away = replace(place, redis_url="redis://127.0.0.1:1/0", postgres_url="postgresql://smore@127.0.0.1:1/smore")
    assert {one.name for one in ills(away).values() if one.verdict is Grade.BROKEN} == {"Redis", "Postgres"}
    none = replace(place, redis_url=None, postgres_url=None)
    assert {one.name for one in ills(none).values() if one.verdict is Grade.BROKEN} == {"Redis", "Postgres"}


def test_an_old_schema_and_a_disabled_audit(place: Site, engine: Engine) -> None:
    with engine.begin() as connection:
        at = connection.execute(text("SELECT version_num FROM alembic_version")).scalar_one()
        connection.execute(text("UPDATE alembic_version SET version_num = '0001'"))
    try:
        assert set(ills(place)) == {"migrations"}
    finally:
        with engine.begin() as connection:
            connection.execute(text("UPDATE alembic_version SET version_num = :at"), {"at": at})
            connection.execute(text("ALTER TABLE audit DISABLE TRIGGER USER"))
    try:
        assert set(ills(place)) == {"audit"}
    finally:
        with engine.begin() as connection:
            connection.execute(text("ALTER TABLE audit ENABLE TRIGGER USER"))


def test_this_machine(place: Site) -> None:
    (place.root / "sys/kernel/mm/transparent_hugepage/enabled").write_text("[always] madvise never")
    (place.root / "proc/sys/vm/overcommit_memory").write_text("0")
    (place.root / "proc/sys/net/core/somaxconn").write_text("128")
    (place.config.home / "key").chmod(0o644)
    found = ills(place)
    assert set(found) == {"huge pages", "overcommit", "listen backlog", "key file"}
    assert found["key file"].verdict is Grade.BROKEN
    assert all(one.fix for one in found.values())


def test_workers_that_may_not_order_processes_are_named(place: Site) -> None:
    for pid, held in ((11, "0000000000000000"), (12, "0000000000800000"), (13, "0000000000000000")):
        file = place.root / f"proc/{pid}/status"
        file.parent.mkdir()
        file.write_text(f"Name:\tpython\nCapEff:\t{held}\n")
    found = ills(replace(place, processes={"worker-a": 11, "worker-b": 12, "gateway": 13, "worker-gone": 14}))
    assert found["priorities"].found == "no CAP_SYS_NICE: worker-a"


def test_a_check_that_cannot_be_made_is_said(place: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    def breaks(_place: Site) -> Iterator[Finding]:
        raise OSError("no such thing")
        yield

    monkeypatch.setattr(doctor, "_OF_PLACE", (breaks,))
    (found,) = ills(place).values()
    assert (found.name, found.verdict, found.found) == ("breaks", Grade.UNKNOWN, "no such thing")


def test_settings_that_are_not_those_of_the_last_start_are_in_the_audit(
    config: Settings, engine: Engine, tmp_path: Path
) -> None:
    url = config.postgres.url
    assert url is not None
    hidden = RedisSettings(url="redis://:secret@there:6379/0")
    starts = (
        Settings(log_level="INFO"),
        Settings(log_level="DEBUG", redis=hidden),
        Settings(log_level="DEBUG", redis=hidden),
    )
    for start in starts:
        audit_settings(tmp_path, start, url)
        note_settings(tmp_path, start)
    ((entry,), _) = Audit(engine).read(AuditFilter(target="settings"))
    assert entry.route == "smore up" and entry.key_id == f"uid {os.getuid()}"
    assert (entry.before or {})["SMORE_LOG_LEVEL"] == "INFO"
    assert (entry.after or {}) == {"SMORE_LOG_LEVEL": "DEBUG", "SMORE_REDIS__URL": "redis://:***@there:6379/0"}
