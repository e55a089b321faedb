"""Workers of GPU instances that obey commands about trainings without a process, over a real Redis."""

from collections.abc import Sequence
from typing import Any, cast

import redis
from msgspec.structs import replace

from smore.messages.commands import AnyCommand, ForgetJob, SetBudget, StartJob, StopJob, decode_command
from smore.messages.reports import JobReport, encode_report
from tests.support import fake_platform


class FakeRanks:
    """``gpus``: GPU instance → node. ``deaf`` ones read no command and ``silent`` ones do not report either."""

    def __init__(self, client: "redis.Redis", prefix: str, gpus: dict[str, str]) -> None:
        self._redis, self._prefix = client, prefix
        self.gpus = gpus
        self.deaf: set[str] = set()
        self.silent: set[str] = set()
        #: Jobs whose checkpoints were not touched for long, by GPU instance.
        self.aged: dict[str, list[str]] = {}
        self.ranks: dict[tuple[str, str, int], JobReport] = {}
        self.heard: list[tuple[str, AnyCommand]] = []
        self._cursors = dict.fromkeys(gpus, "0-0")

    def beat(self) -> list[tuple[str, AnyCommand]]:
        """Read commands and report, as a heartbeat does; returns what was read."""
        read = []
        for gpu in set(self.gpus) - self.silent - self.deaf:
            # Without a wait, which Redis ends a tenth of a second late.
            new = self._redis.xrange(f"{self._prefix}cmd:{gpu}", f"({self._cursors[gpu]}")
            for entry, fields in cast("list[tuple[bytes, dict[bytes, bytes]]]", new):
                self._cursors[gpu] = entry.decode()
                command = decode_command(fields[b"c"])
                if command is not None:
                    self._obey(gpu, command)
                    read.append((gpu, command))
        self.heard += read
        for gpu, node in self.gpus.items():
            if gpu in self.silent:
                self._redis.delete(f"{self._prefix}gpu:{gpu}")
                continue
            jobs = [rank for (on, _, _), rank in self.ranks.items() if on == gpu]
            report = replace(
                fake_platform.report(), gpu=gpu, node=node, jobs=jobs, warm=(), aged=self.aged.get(gpu, ())
            )
            self._redis.sadd(f"{self._prefix}gpus", gpu)
            self._redis.set(f"{self._prefix}gpu:{gpu}", encode_report(report))
        return read

    def _obey(self, gpu: str, command: AnyCommand) -> None:
        if isinstance(command, StartJob):
            key = gpu, command.id, command.attempt
            self.ranks.setdefault(key, self._began(command))
        elif isinstance(command, StopJob):
            for key, rank in list(self.ranks.items()):
                if key[:2] == (gpu, command.id) and key[2] <= command.attempt and rank.state == "running":
                    self.ranks[key] = replace(rank, state="ended", exit_code=-15)
        elif isinstance(command, SetBudget):
            self.tell(command.id, [gpu], budget=command.budget, share=command.share)
        elif isinstance(command, ForgetJob):
            self.ranks = {
                key: rank
                for key, rank in self.ranks.items()
                if key[:2] != (gpu, command.id) or key[2] > command.attempt or rank.state == "running"
            }

    def _began(self, command: StartJob) -> JobReport:
        return JobReport(
            id=command.id,
            project=command.project,
            state="running",
            pid=1,
            memory_mib=1.0,
            iterations=0,
            budget=command.request.budget,
            share=command.request.share,
            attempt=command.attempt,
            rank=command.rank,
            world=command.world,
        )

    def tell(self, job: str, gpus: Sequence[str] = (), **fields: Any) -> None:
        """Change the last attempt's ranks of a job, on ``gpus`` (none = on all)."""
        newest = max(attempt for _, id_, attempt in self.ranks if id_ == job)
        for key in [key for key in self.ranks if key[1:] == (job, newest) and (not gpus or key[0] in gpus)]:
            self.ranks[key] = replace(self.ranks[key], **fields)

    def alive(self, job: str) -> list[tuple[str, int]]:
        """(GPU instance, attempt) of the ranks that run."""
        return sorted((gpu, n) for (gpu, id_, n), rank in self.ranks.items() if id_ == job and rank.state == "running")
