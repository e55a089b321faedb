"""A Redis server of the test's own, which a test may kill, restart and reconfigure."""

import subprocess
import tempfile
from pathlib import Path
from types import TracebackType
from typing import cast

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from smore.local.embedded import redis_program
from smore.redis.url import unix_url
from tests.support.eventually import eventually


class RedisServer:
    """
    Listens on a unix socket alone, wants a password and keeps an append-only file, as the embedded platform's does.
    """

    def __init__(self) -> None:
        # A socket's path has about 100 bytes, pytest's own folders may be longer.
        self._folder = tempfile.TemporaryDirectory(prefix="smore-")
        self.socket = str(Path(self._folder.name, "redis.sock"))
        # What a URL must quote.
        self.password = "p@ss/w:rd?"
        self.url = unix_url(self.socket, self.password)
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> "RedisServer":
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._kill()
        self._folder.cleanup()

    def client(self) -> "redis.Redis":
        return redis.Redis.from_url(self.url)

    def start(self) -> None:
        """Returns when it answers."""
        self._process = subprocess.Popen(
            [
                redis_program(),
                "--port",
                "0",
                "--unixsocket",
                self.socket,
                "--requirepass",
                self.password,
                "--dir",
                self._folder.name,
                "--save",
                "",
                "--appendonly",
                "yes",
                "--appendfsync",
                "everysec",
                "--databases",
                "4",
            ],
            stdout=subprocess.DEVNULL,
        )
        with redis.Redis.from_url(self.url, retry=Retry(NoBackoff(), 0)) as client:
            eventually(lambda: self._answers(client), what="the Redis server")

    def _answers(self, client: "redis.Redis") -> bool:
        assert self._process is not None
        assert self._process.poll() is None, "the Redis server has ended"
        try:
            return bool(client.ping())
        except redis.ConnectionError:
            return False

    def stop(self) -> None:
        """
        As a crash of the process, when all that it has answered is in the file: a slow fsync delays a write by up to 2 s.
        """
        with self.client() as client:
            eventually(lambda: self._written(client), what="the append-only file")
        self._kill()

    def _written(self, client: "redis.Redis") -> bool:
        return cast("dict[str, int]", client.info("persistence"))["aof_buffer_length"] == 0

    def _kill(self) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.wait()
