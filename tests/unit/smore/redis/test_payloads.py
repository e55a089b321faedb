"""Payloads beside Redis: what was put is what is got, and never another invocation's."""

import asyncio
import os
from pathlib import Path

import pytest
import redis.asyncio

from smore.domain.ids import new_id
from smore.process.settings import QueueSettings
from smore.redis.gateway_queue import GatewayQueue
from smore.redis.payloads import Payloads
from smore.redis.submission import Submission

PAYLOAD = os.urandom(100_000)


@pytest.fixture
def payloads(tmp_path: Path) -> Payloads:
    return Payloads(tmp_path)


def test_what_was_put_is_there_until_it_is_dropped(payloads: Payloads, tmp_path: Path) -> None:
    assert payloads.put("p", "a", PAYLOAD) and payloads.put("q", "a", memoryview(b"of another project"))
    assert payloads.get("p", "a", len(PAYLOAD)) == PAYLOAD
    assert payloads.get("q", "a", 18) == b"of another project"
    assert {path.stat().st_mode & 0o777 for path in tmp_path.iterdir()} == {0o600}
    payloads.drop("p", "a")
    assert payloads.get("p", "a", len(PAYLOAD)) is None
    payloads.drop("p", "a")


def test_a_file_that_is_written_over_shows_nothing_of_before(payloads: Payloads, tmp_path: Path) -> None:
    payloads.put("p", "long", PAYLOAD)
    payloads.drop("p", "long")
    (spare,) = tmp_path.iterdir()
    kept = spare.stat().st_ino
    assert payloads.put("p", "short", b"short")
    assert (tmp_path / "p.short").stat().st_ino == kept and not spare.exists()
    assert payloads.get("p", "short", 5) == b"short"
    assert payloads.put("p", "other", PAYLOAD), "one without a spare"
    assert payloads.get("p", "other", len(PAYLOAD)) == PAYLOAD


def test_a_payload_whose_invocation_ends_while_it_is_read_is_none(
    payloads: Payloads, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    payloads.put("p", "ended", b"of the one")

    class Slow:
        """
        The file, whose invocation ends, and whose pages get another's payload, once it is open and before it is read.
        """

        def __init__(self, path: str, mode: str, buffering: int) -> None:
            self._file = open(path, mode, buffering)  # noqa: SIM115 - closed by __exit__

        def __enter__(self) -> "Slow":
            return self

        def __exit__(self, *_: object) -> None:
            self._file.close()

        def fileno(self) -> int:
            return self._file.fileno()

        def read(self, size: int) -> bytes:
            payloads.drop("p", "ended")
            payloads.put("p", "next", b"of another")
            part: bytes = self._file.read(size)
            return part

    monkeypatch.setattr("smore.redis.payloads.open", Slow, raising=False)
    assert payloads.get("p", "ended", 10) is None


def test_without_memory_it_goes_another_way(payloads: Payloads, tmp_path: Path) -> None:
    tmp_path.rmdir()
    assert not payloads.put("p", "a", PAYLOAD)
    tmp_path.mkdir()
    # No file system takes a file of this name.
    assert not payloads.put("p", "a" * 300, PAYLOAD) and not list(tmp_path.iterdir())


def test_few_spares_and_no_large_ones(payloads: Payloads, tmp_path: Path) -> None:
    for number in range(20):
        payloads.put("p", str(number), b"x")
    payloads.put("p", "large", bytes(5 << 20))
    payloads.drop("p", "large")
    for number in range(20):
        payloads.drop("p", str(number))
    assert len(list(tmp_path.iterdir())) == 8
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) == 8


def test_old_ones_are_named_and_old_spares_go(payloads: Payloads, tmp_path: Path) -> None:
    for name in ("old", "new", "spare"):
        payloads.put("p", name, b"x")
    payloads.drop("p", "spare")
    for path in tmp_path.iterdir():
        if not path.name.endswith("new"):
            os.utime(path, (1, 1))
    assert list(payloads.older(60)) == [("p", "old")]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["p.new", "p.old"]
    assert payloads.put("p", "after", b"y") and payloads.get("p", "after", 1) == b"y", "though its spare was swept away"


def test_a_round_trip_that_fails_leaves_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "payloads"
    folder.mkdir()
    request = Submission(id=new_id(), function="p/f", revision=1, payload=PAYLOAD, slo_us=1_000_000, volatile=True)

    async def enqueue() -> None:
        async with redis.asyncio.from_url(f"unix://{tmp_path}/nobody.sock") as client:
            queue = GatewayQueue(client, "t:", QueueSettings(payloads=folder), patience_s=0.0)
            with pytest.raises(redis.ConnectionError):
                await queue.enqueue(request)

    asyncio.run(enqueue())
    assert not [path for path in folder.iterdir() if not path.name.startswith(".")]
