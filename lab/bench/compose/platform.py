"""The platform of a fresh clone under Docker, and what the benchmark asks of it over HTTP and by the command line."""

import asyncio
import contextlib
import json
import os
import re
import secrets
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Final

import httpx

from lab.bench.compose.engine import IMAGE, TRAININGS_IMAGE, Failed, Project, bridge_address, command
from lab.bench.kills import Answers, Load, Witness
from lab.bench.ports import free_port
from lab.bench.report import ROOT
from smore.process.settings import Settings

CPU_FILES: Final = ("docker-compose.yml", "docker-compose.cpu.yml")
NODE_FILES: Final = ("docker-compose.node.yml", "docker-compose.cpu.yml")
#: Calls a second of the load.
RATE: Final = 10.0
#: Within so many seconds a service must be healthy, and the platform ready.
HEALTHY_S: Final = 90.0
TRAINING: Final = ["zoo.train", "--model", "deepfm", "--preset", "cpu", "--input-wait", "0.5", "--seconds", "36000"]
#: States in which a training or an invocation has not ended.
OPEN_INVOCATION: Final = frozenset({"queued", "dispatched", "running"})
ENDED_JOB: Final = frozenset({"ended", "lost"})
#: Passwords for commands that only read the compose files.
ANY_PASSWORDS: Final = {"SMORE_REDIS_PASSWORD": "-", "SMORE_POSTGRES_PASSWORD": "-"}


class Platform:
    """
    ``first``: the project of a clone under umask 077, with ports and passwords of its own; ``second``: that of a second
    host, once it is made; ``passwords``: those of Redis and of Postgres.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.passwords = (secrets.token_hex(24), secrets.token_hex(24))
        self.key = ""
        self.answers = Answers()
        port, redis_port = free_port(""), free_port("")
        self.url = f"http://127.0.0.1:{port}"
        address = bridge_address()
        self._redis_url = f"redis://:{self.passwords[0]}@{address}:{redis_port}/0"
        self._blobs_url = f"http://{address}:{port}"
        self.first = self._first(port, f"{address}:{redis_port}")
        self.second: Project | None = None
        #: Made by :meth:`read_key`.
        self.load: Load
        self.witness = Witness(self._redis_url, Settings().redis.prefix)

    def _first(self, port: int, redis_address: str) -> Project:
        clone = self.folder / "first"
        subprocess.run(["git", "clone", "-q", str(ROOT), str(clone)], check=True, umask=0o077)
        services = command(
            "docker", "compose", "-f", CPU_FILES[0], "config", "--services", cwd=clone, environment=ANY_PASSWORDS
        ).split()
        changes: dict[str, Any] = {name: {"image": IMAGE} for name in services if name not in ("redis", "postgres")}
        changes["trainings"] = {"image": TRAININGS_IMAGE}
        # For the witness of this benchmark and for the second host, as docs/guides/second-host.md says.
        changes["redis"] = {"networks": ["inside", "outside"], "ports": [f"{redis_address}:6379"]}
        variables = {
            "SMORE_REDIS_PASSWORD": self.passwords[0],
            "SMORE_POSTGRES_PASSWORD": self.passwords[1],
            "SMORE_PORT": str(port),
            # Answers are compared with the stored results at the end.
            "SMORE_QUEUE__SYNC_RESULT_TTL_S": "7200",
            "SMORE_QUEUE__RESULT_TTL_S": "7200",
        }
        return Project("smore-bench", clone, CPU_FILES, {"services": changes}, variables)

    def add_second(self, folder: Path) -> Project:
        """The project of a second host in ``folder``, which holds a clone; it is not started."""
        changes = {"services": {"node": {"image": IMAGE}, "trainings": {"image": TRAININGS_IMAGE}}}
        variables = {
            "SMORE_REDIS__URL": self._redis_url,
            "SMORE_BLOBS__URL": self._blobs_url,
            "SMORE_NODE__NAME": "second",
            "SMORE_NODE__PARTITIONS": "1",
        }
        self.second = Project("smore-bench-second", folder, NODE_FILES, changes, variables)
        return self.second

    def read_key(self) -> None:
        """Take the platform's first key for the load, the command line and :meth:`ask`."""
        self.key = self.first.inside("gateway", "cat", "/data/key").strip()
        self.load = Load(self.url, self.key, Path(os.devnull), self.answers, RATE)

    async def ready(self) -> None:
        """Wait for 200 of ``/readyz``. Failed where that takes longer than :data:`HEALTHY_S`."""
        until = time.monotonic() + HEALTHY_S
        async with httpx.AsyncClient(timeout=3) as http:
            while time.monotonic() < until:
                with contextlib.suppress(httpx.HTTPError):
                    if (await http.get(f"{self.url}/readyz")).status_code == 200:
                        return
                await asyncio.sleep(0.1)
        raise Failed(f"not ready within {HEALTHY_S:g} s")

    async def ask(self, method: str, path: str, **request: Any) -> Any:
        """The API's answer; the request is repeated while the platform starts. Raises Failed."""
        until, problem = time.monotonic() + HEALTHY_S, ""
        while time.monotonic() < until:
            try:
                answer = await self.load.request(method, path, **request)
                if answer.status_code < 300:
                    return answer.json() if answer.content else None
                problem = f"{answer.status_code} {answer.text}"
            except httpx.HTTPError as error:
                problem = repr(error)
            await asyncio.sleep(0.3)
        raise Failed(f"{method} {path}: {problem}")

    async def cli(self, *words: str, stdin: str | None = None) -> str:
        """The output of ``smore WORDS`` in the benchmark's folder. Raises Failed."""
        environment = {"SMORE_URL": self.url, "SMORE_API_KEY": self.key, "PYTHONPATH": str(ROOT)}
        return await asyncio.to_thread(
            command,
            sys.executable,
            "-m",
            "smore.cli",
            *words,
            cwd=self.folder,
            stdin=stdin,
            timeout_s=120,
            environment=environment,
        )

    async def deploy(self, name: str, handler: str, spec: str) -> None:
        """Upload a function from its folder: the text of ``handler.py`` and the spec, a YAML mapping in one line."""
        folder = self.folder / name
        folder.mkdir(exist_ok=True)
        (folder / "handler.py").write_text(handler)
        (folder / "function.yaml").write_text(
            f"apiVersion: smore/v1\nkind: Function\nmetadata: {{name: {name}}}\nspec: {{{spec}}}\n"
        )
        await self.cli("deploy", name)

    async def send(self, name: str, given: object) -> str:
        """The id of an asynchronous invocation with the input ``given``. Raises Failed."""
        # By standard input: command lines can be read by whoever is on the machine, the functions included.
        printed = await self.cli("invoke", name, "--async", "--input", "-", stdin=json.dumps(given))
        id_: str = re.findall(r"[\w-]{16,}", printed)[0]
        return id_

    async def output(self, id_: str, within_s: float) -> Any:
        """What an invocation answered. Failed where it does not succeed within that time."""
        until = time.monotonic() + within_s
        while (state := (await self.ask("GET", f"/v1/invocations/{id_}"))["state"]) in OPEN_INVOCATION:
            if time.monotonic() > until:
                break
            await asyncio.sleep(1)
        if state != "succeeded":
            raise Failed(f"the invocation {id_} is {state}")
        return (await self.ask("GET", f"/v1/invocations/{id_}/result"))["output"]

    async def close(self) -> None:
        await self.load.close()

    def remove(self) -> None:
        """Remove the projects, their volumes and the images."""
        for project in (self.second, self.first):
            if project is not None:
                with contextlib.suppress(Failed):
                    project.run("down", "-v", "--remove-orphans", "-t", "20")
        with contextlib.suppress(Failed):
            command("docker", "image", "rm", IMAGE, TRAININGS_IMAGE)
