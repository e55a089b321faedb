"""A backup of servers at work, and what servers that start from it have."""

import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import redis
from sqlalchemy import text

from lab.bench.servers import ServerUrls, servers
from migrations.__main__ import prepare
from smore.domain.ids import new_id
from smore.domain.invocation import Cause, State
from smore.local.backup import BackupFailed, backup
from smore.messages.results import Result, encode_result
from smore.postgres.connection import make_engine
from smore.postgres.history.recorder import Recorder
from smore.process.settings import PostgresSettings, QueueSettings, RedisSettings, Settings
from smore.redis.queue import Claim, Queue, RunOutcome
from smore.redis.submission import Submission
from tests.support.eventually import eventually

PREFIX = "smore:"
FUNCTION = "default/echo"
#: The module, whose function has its name in the package.
module = sys.modules["smore.local.backup"]
#: Invocations before the backup begins.
BEFORE = 200


class Load:
    """Accepts invocations, runs every other one to its end and records the history, until the block is left."""

    def __init__(self, urls: ServerUrls) -> None:
        self.accepted: list[str] = []
        self._client = redis.Redis.from_url(urls.redis_url)
        self._engine = make_engine(urls.postgres_url, "tests")
        self._ended = threading.Event()
        self._threads = [threading.Thread(target=self._serve), threading.Thread(target=self._record)]

    def __enter__(self) -> "Load":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._ended.set()
        for thread in self._threads:
            thread.join()
        self._client.close()
        self._engine.dispose()

    def _serve(self) -> None:
        queue = Queue(self._client, PREFIX, QueueSettings())
        token = queue.lead("", 600.0)
        self._client.set(f"{PREFIX}leader:cursor", "99999999999999-0")  # it keeps no event from being trimmed
        while not self._ended.is_set():
            id_ = new_id()
            queue.enqueue(
                Submission(
                    id=id_, function=FUNCTION, revision=1, payload=b"1", slo_us=600_000_000, key_id="k", trace="t"
                )
            )
            self.accepted.append(id_)
            if len(self.accepted) % 2:
                continue
            claim = Claim(
                function=FUNCTION,
                gpu="cpu0",
                celery_list="smore:gpu.cpu0",
                message=b"m",
                decision="{}",
                schedule_us=7,
                attempts=[(id_, 0)],
            )
            queue.claim(token, 2.0, [claim])
            queue.start(FUNCTION, "cpu0", 2.0, [(id_, 1)])
            result = encode_result(Result(form="json", body=b"1"))
            outcome = RunOutcome(id=id_, attempt=1, action="succeed", cause=Cause.OK, result=result)
            queue.finish(FUNCTION, "{}", [outcome])

    def _record(self) -> None:
        recorder = Recorder(self._engine, self._client, PREFIX)
        while not self._ended.is_set():
            recorder.drain()


def test_a_backup_under_load_has_everything_that_was_accepted_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home, copy = tmp_path / "home", tmp_path / "copies" / "one"
    with servers(home) as urls:
        config = Settings(
            redis=RedisSettings(url=urls.redis_url, prefix=PREFIX), postgres=PostgresSettings(url=urls.postgres_url)
        )
        prepare(config, urls.postgres_url, home / "key")
        with Load(urls) as load:
            eventually(lambda: len(load.accepted) > BEFORE, what="some are accepted")
            accepted, copy_redis = list(load.accepted), module._copy_redis

            def copy_later(*arguments: Any) -> None:
                much = len(load.accepted) + BEFORE
                eventually(lambda: len(load.accepted) > much, what="others are accepted between the two copies")
                copy_redis(*arguments)

            def left_out(place: Path) -> Callable[[str, list[str]], list[str]]:
                chosen: Callable[[str, list[str]], list[str]] = choose(place)

                def ignored(folder: str, names: list[str]) -> list[str]:
                    if folder == str(checkpoint.parent):
                        assert names == [checkpoint.name]
                        checkpoint.unlink()  # as a training that has written a newer one
                    return chosen(folder, names)

                return ignored

            checkpoint, choose = home / "checkpoints" / "1.pt", module._left_out
            checkpoint.parent.mkdir()
            checkpoint.touch()
            monkeypatch.setattr(module, "_left_out", left_out)
            monkeypatch.setattr(module, "_copy_redis", copy_later)
            backup(home, copy, urls.redis_url, urls.postgres_url)
        for taken in (copy, home / "backups" / "one"):
            with pytest.raises(BackupFailed, match="elsewhere"):
                backup(home, taken, urls.redis_url, urls.postgres_url)
    assert (copy / "key").read_text() == (home / "key").read_text()
    assert copy.stat().st_mode & 0o777 == 0o700
    with servers(copy) as urls, redis.Redis.from_url(urls.redis_url) as client:
        queue, engine = Queue(client, PREFIX, QueueSettings()), make_engine(urls.postgres_url, "tests")
        eventually(lambda: Recorder(engine, client, PREFIX).drain() == 0, what="the history is complete")
        with engine.connect() as connection:
            states = {str(row.id): row.state for row in connection.execute(text("SELECT id, state FROM invocations"))}
            counted = connection.execute(text("SELECT sum(n) FROM arrivals_minute")).scalar_one()
        engine.dispose()
        records = {id_: record for id_ in load.accepted if (record := queue.record("default", id_)) is not None}
        assert set(accepted) < set(records) == set(states), "what Redis knows is what the history knows"
        assert counted == len(states), "none is counted twice"
        assert all(
            records[id_].state == (State.QUEUED if number % 2 else State.SUCCEEDED)
            for number, id_ in enumerate(accepted, 1)
        )


def test_a_home_without_servers_of_its_own_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BackupFailed, match="their own tools"):
        backup(tmp_path, tmp_path / "copy", "redis://127.0.0.1:1/0", "postgresql://127.0.0.1:1/smore")
    assert not (tmp_path / "copy").exists()
