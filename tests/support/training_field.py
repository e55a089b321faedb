"""
Run in a copy of the product in which a training has one more field, ``note``: sends it the whole way, from the command line
to the worker, the rule and back. tests/unit/test_training_field.py makes the copy.
"""

import json
from collections.abc import Sequence
from contextlib import contextmanager
from dataclasses import MISSING, asdict, fields
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import create_autospec, patch

import httpx
from typer.testing import CliRunner

from api.schemas.jobs import JobBody
from api.trainings import views
from api.trainings.request import request_of
from scheduler.jobs.job_rows import begun, submitted
from scheduler.jobs.orders import Orders
from scheduler.jobs.specs import Specs
from scheduler.policy.jobs.core import JobPolicy
from scheduler.policy.jobs.decisions import PublishQueue, Start
from scheduler.policy.jobs.events import GpuSeen, QueueAsked
from smore.cli import jobs as cli
from smore.domain.job import JobState
from smore.messages.commands import StartJob, decode_command, encode_command
from smore.postgres.history.reader import Reader
from smore.postgres.jobs import Job, job_of
from smore.postgres.rows import JobRow
from smore.redis.fleet import Fleet
from smore_client import Client

NOTE = "before noon"
GPU = GpuSeen(gpu="g", node="n", device="d", memory_mib=1.0)


class Platform:
    """Answers a request to start a training, and keeps its row."""

    def __init__(self) -> None:
        self.job: Job | None = None

    def answer(self, request: httpx.Request) -> httpx.Response:
        if request.method == "GET":
            queue = views.queue(None, True, "", [], None, str)
            return httpx.Response(200, json=queue.model_dump(mode="json"))
        settings = SimpleNamespace(job_entrypoints=["zoo.train"])
        gateway = SimpleNamespace(catalog=SimpleNamespace(limits={}, paused=frozenset()), settings=settings)
        caller = SimpleNamespace(project="p", scopes=frozenset({"jobs"}))
        asked = request_of(cast(Any, gateway), cast(Any, caller), JobBody(**json.loads(request.content)), [])
        row: dict[str, Any] = {one.name: one.default for one in fields(Job) if one.default is not MISSING}
        row |= {"id": "j", "project": "p", "name": "a", "state": JobState.QUEUED, "created_at": datetime.now(UTC)}
        row |= {"argv": list(asked.argv), "gpus": [], "workload": "", "budget": asked.budget, "memory_mib": 0.0}
        self.job = job_of(JobRow(**row, spec=json.loads(json.dumps(asdict(asked)))))
        return httpx.Response(202, json=views.shown(self.job, []).model_dump(mode="json"))

    def shown(self) -> str:
        """What the command prints of the job that it started."""

        @contextmanager
        def connected(options: object = None) -> Any:
            with Client("http://test", "sk", transport=httpx.MockTransport(self.answer)) as client:
                yield client

        with patch.object(cli, "connected", connected):
            words = [
                "start",
                "a",
                "--note",
                NOTE,
                "--duration",
                "1h",
                "-o",
                "json",
                "--",
                "zoo.train",
                "--model",
                "bert",
            ]
            result = CliRunner().invoke(cli.app, words, catch_exceptions=False)
        assert result.exit_code == 0, result.output
        return str(json.loads(result.stdout)["note"])


def queue_says(policy: JobPolicy) -> Sequence[str]:
    [answer] = policy.decide(1.0, [QueueAsked()]).decisions
    assert isinstance(answer, PublishQueue)
    return answer.jobs[0].facts.others


def told_worker(job: Job, start: Start) -> StartJob:
    fleet = create_autospec(Fleet, instance=True)
    Orders(fleet, lambda ids: {}, lambda job: {}).send(9.0, job, begun(job, start, {}, 9.0), {"g": "n"})
    command = decode_command(encode_command(fleet.send.call_args.args[1]))
    assert isinstance(command, StartJob)
    return command


def main() -> None:
    platform = Platform()
    assert platform.shown() == NOTE
    assert platform.job is not None
    spec = Specs(create_autospec(Reader, instance=True), lambda workload, place: None, lambda workload, world: []).of(
        "j", "p", "a", platform.job.request
    )
    policy = JobPolicy()
    policy.decide(1.0, submitted(platform.job, spec, None, 1.0))
    assert NOTE in queue_says(policy)
    [start] = policy.decide(2.0, [GPU]).decisions
    assert isinstance(start, Start)
    assert getattr(told_worker(platform.job, start).request, "note") == NOTE  # noqa: B009 - only the copy has it


if __name__ == "__main__":
    main()
