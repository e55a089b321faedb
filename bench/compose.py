"""
The compose files under a real Docker engine: ``python -m bench.compose --json``.

Where there is no engine it prints the reason and ends with 0. The class :class:`Bench` stays whole: its steps share the
projects, the load, the trainings and the figures.

A fresh clone of what is committed, made under umask 077, is built and started with docker-compose.cpu.yml as the how-to
says, under a project, image names and ports of its own, and removed at the end. Steps, each one name for
``--only`` (the steps that it needs run in any case): ``idle``; ``function`` (the README's, uploaded); ``spy`` (a function
looks for passwords in all of ``/proc`` for a minute, while Redis is restarted); ``kill`` (the first process of every
container, under load) and ``restart`` (each) but of ``trainings``; ``update`` (a line is changed, ``up --build``);
``second`` (a second host as a second project); ``down`` (and up again); ``keeper`` (restart and kill of ``trainings``).

Figures: ``lost`` and ``doubled`` as in ``bench.kills``, of a load that goes on through all of it; ``unhealthy`` =
services that were not healthy, or a platform that was not ready, within :data:`HEALTHY_S` after a step; ``jobs_killed``
= trainings that did not go on after a step in which none may end (all but ``down`` and ``keeper``), and after those two
trainings that ended without being asked to; ``secrets_seen`` = places at which the spy found a password; ``ready_s`` = from ``docker
compose up -d`` with the image built and empty volumes to the first 200 of ``/readyz``; ``idle_cpu`` = cores that the
containers and the engine's own processes take with nothing to do (Linux, the engine's processes visible from here);
``image_gb`` as the engine tells it. The engine chooses the image store: run it under one of either kind.
"""

import argparse
import asyncio
import contextlib
import json
import os
import re
import secrets
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, Final

import httpx
import psutil

from bench.faults import LOADED
from bench.kills import Answers, Load, Witness, account
from bench.report import ROOT, emit, progress
from smore.process.settings import Settings

PROJECT: Final = "smore-bench"
SECOND: Final = "smore-bench-second"
IMAGE: Final = "smore-bench:0.1.0"
KEPT: Final = "smore-bench:trainings"
CPU_FILES: Final = ("docker-compose.yml", "docker-compose.cpu.yml")
NODE_FILES: Final = ("docker-compose.node.yml", "docker-compose.cpu.yml")
#: Calls a second.
RATE: Final = 10.0
HEALTHY_S: Final = 90.0
IDLE_S: Final = 60.0
SPY_S: Final = 60.0
TRAINING: Final = ["zoo.train", "--model", "deepfm", "--preset", "cpu", "--input-wait", "0.5", "--seconds", "36000"]

SPY = '''
import glob
import os
import time

from smore import Handler


class Spy(Handler):
    """Looks for the given words in what every process was started with and in files of the platform, for so many seconds."""

    example = {"words": ["-"], "seconds": 0.0}

    def predict(self, inputs):
        return [self.look(one["words"], one["seconds"]) for one in inputs]

    def look(self, words, seconds):
        found, seen, until = {}, set(), time.monotonic() + seconds
        while True:
            places = glob.glob("/proc/[0-9]*/cmdline") + glob.glob("/proc/[0-9]*/environ") + glob.glob("/proc/[0-9]*/task/*/cmdline")
            for place in [*places, "/app/.env", "/data/key", "/data/secrets.key", "/data/run/trainings.token"]:
                try:
                    with open(place, "rb") as file:
                        text = file.read()
                except OSError:
                    continue
                if place.endswith("cmdline"):
                    seen.add(text[:40].decode(errors="replace"))
                for number, word in enumerate(words):
                    if word.encode() in text:
                        found[f"word {number} in {place}: {text[:40]!r}"] = True
            if time.monotonic() >= until:
                return {"found": found, "seen": len(seen)}
            time.sleep(0.02)
'''


class Failed(Exception):
    """A command failed; the message holds the end of its output."""


def command(
    *words: str,
    timeout_s: float = 900,
    cwd: Path | None = None,
    given: str | None = None,
    environment: Mapping[str, str] | None = None,
) -> str:
    """The standard output of a command; ``environment`` is added to this process's. Raises Failed."""
    try:
        finished = subprocess.run(
            words,
            cwd=cwd,
            env={**os.environ, **(environment or {})},
            input=given,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise Failed(f"{' '.join(words)}: not finished within {timeout_s:g} s") from error
    if finished.returncode:
        raise Failed(f"{' '.join(words)}: {finished.stdout[-800:]} {finished.stderr[-1600:]}")
    return finished.stdout


def no_engine() -> str:
    """Why there is no usable engine, "" = there is one."""
    if shutil.which("docker") is None:
        return "there is no command docker"
    try:
        server = command("docker", "version", "--format", "{{.Server.Version}}", timeout_s=30).strip()
        command("docker", "compose", "version", timeout_s=30)
    except Failed as error:
        return str(error).strip()
    return f"Docker {server} is older than 25" if int(server.partition(".")[0]) < 25 else ""


class Project:
    """One ``docker compose`` project in a folder."""

    def __init__(
        self, name: str, folder: Path, files: tuple[str, ...], changes: dict[str, Any], variables: dict[str, str]
    ) -> None:
        self.name, self.folder = name, folder
        own = folder.parent / f"{name}.json"
        own.write_text(json.dumps(changes))
        (folder / ".env").write_text("".join(f"{key}={value}\n" for key, value in variables.items()))
        (folder / ".env").chmod(0o600)
        self._words = ["docker", "compose", "-p", name, *(word for file in (*files, str(own)) for word in ("-f", file))]

    def run(self, *words: str, given: str | None = None) -> str:
        return command(*self._words, *words, cwd=self.folder, given=given)

    def states(self) -> dict[str, str]:
        """The state of every service by its name: ``healthy``, ``starting``, ``exited``…"""
        lines = self.run("ps", "-a", "--format", "json").splitlines()
        return {service["Service"]: service["Health"] or service["State"] for service in map(json.loads, lines)}

    def wrong(self) -> list[str]:
        """Services that are not in the state in which they should be."""
        return sorted(
            f"{name} is {state}"
            for name, state in self.states().items()
            if state != ("exited" if name == "migrate" else "healthy")
        )

    def container(self, service: str) -> str:
        return self.run("ps", "-q", service).strip()

    def kill(self, service: str) -> None:
        """
        ``kill -9`` of its first process. ``docker kill`` would count as the operator's wish, after which the engine does
        not restart the container.
        """
        pid = command("docker", "inspect", "-f", "{{.State.Pid}}", self.container(service)).strip()
        strike = f"import os; os.kill({pid}, 9)"
        command(
            "docker", "run", "--rm", "--pid", "host", "--user", "0", "--network", "none", IMAGE, "python", "-c", strike
        )


def build(project: Project) -> None:
    """Build as the how-to says; the image of trainings is tagged once."""
    project.run("build")
    command("docker", "tag", IMAGE, KEPT)


class Bench:
    def __init__(self, folder: Path) -> None:
        self.figures: dict[str, float] = {"unhealthy": 0, "jobs_killed": 0}
        self.notes: list[str] = []
        self._folder = folder
        self._words = [secrets.token_hex(24), secrets.token_hex(24)]
        port, redis_port = _free_port(), _free_port()
        self.url = f"http://127.0.0.1:{port}"
        #: The address at which containers reach ports that the host publishes.
        self._host = command(
            "docker", "network", "inspect", "bridge", "-f", "{{(index .IPAM.Config 0).Gateway}}"
        ).strip()
        self._redis_url = f"redis://:{self._words[0]}@{self._host}:{redis_port}/0"
        self._gateway_url = f"http://{self._host}:{port}"
        clone = folder / "first"
        subprocess.run(["git", "clone", "-q", str(ROOT), str(clone)], check=True, umask=0o077)
        services = command(
            "docker", "compose", "-f", "docker-compose.yml", "config", "--services", cwd=clone, environment=_PASSWORDS
        ).split()
        changes: dict[str, Any] = {name: {"image": IMAGE} for name in services if name not in ("redis", "postgres")}
        changes["trainings"] = {"image": KEPT}
        # For the witness of this benchmark and for the second host, as docs/guides/second-host.md says.
        changes["redis"] = {"networks": ["inside", "outside"], "ports": [f"{self._host}:{redis_port}:6379"]}
        self.first = Project(
            PROJECT,
            clone,
            CPU_FILES,
            {"services": changes},
            {
                "SMORE_REDIS_PASSWORD": self._words[0],
                "SMORE_POSTGRES_PASSWORD": self._words[1],
                "SMORE_PORT": str(port),
                # Answers are compared with the stored results at the end.
                "SMORE_QUEUE__SYNC_RESULT_TTL_S": "7200",
                "SMORE_QUEUE__RESULT_TTL_S": "7200",
            },
        )
        self.second: Project | None = None
        self.answers = Answers()
        self.load: Load
        self.witness = Witness(self._redis_url, Settings().redis.prefix)
        self.key = ""
        self.jobs: dict[str, int] = {}

    # ---- what every step needs ---------------------------------------------------------------------------------------

    async def ready(self, patience_s: float = HEALTHY_S) -> float:
        """Seconds until ``/readyz`` answers 200. Raises Failed."""
        began = time.monotonic()
        async with httpx.AsyncClient(timeout=3) as http:
            while time.monotonic() - began < patience_s:
                with contextlib.suppress(httpx.HTTPError):
                    if (await http.get(f"{self.url}/readyz")).status_code == 200:
                        return time.monotonic() - began
                await asyncio.sleep(0.1)
        raise Failed(f"not ready within {patience_s:g} s")

    async def settle(self, step: str) -> None:
        """Wait until every service is healthy, and count those that are not within :data:`HEALTHY_S`."""
        wrong = ["/readyz"]
        # The engine notices the death of a process after a while.
        await asyncio.sleep(1)
        until = time.monotonic() + HEALTHY_S
        while wrong and time.monotonic() < until:
            await asyncio.sleep(0.5)
            wrong = await asyncio.to_thread(self.first.wrong)
            if self.second is not None:
                wrong += [f"second: {problem}" for problem in await asyncio.to_thread(self.second.wrong)]
        try:
            await self.ready()
        except Failed as error:
            wrong.append(str(error))
        self.figures["unhealthy"] += len(wrong)
        self.notes += [f"{step}: {problem}" for problem in wrong]
        progress(f"{step:24} {wrong or 'healthy'}")

    async def ask(self, method: str, path: str, **how: Any) -> Any:
        """The API's answer; the request is repeated while the platform starts. Raises Failed."""
        until, problem = time.monotonic() + HEALTHY_S, ""
        while time.monotonic() < until:
            try:
                answer = await self.load.request(method, path, **how)
                if answer.status_code < 300:
                    return answer.json() if answer.content else None
                problem = f"{answer.status_code} {answer.text}"
            except httpx.HTTPError as error:
                problem = repr(error)
            await asyncio.sleep(0.3)
        raise Failed(f"{method} {path}: {problem}")

    async def cli(self, *words: str, given: str | None = None) -> str:
        environment = {"SMORE_URL": self.url, "SMORE_API_KEY": self.key, "PYTHONPATH": str(ROOT)}
        return await asyncio.to_thread(
            command,
            sys.executable,
            "-m",
            "smore.cli",
            *words,
            cwd=self._folder,
            given=given,
            timeout_s=120,
            environment=environment,
        )

    async def train(self, gpu: str) -> str:
        body = {"name": f"train-{gpu}", "argv": TRAINING, "gpus": [gpu]}
        job: str = (await self.ask("POST", "/v1/jobs", json=body))["id"]
        self.jobs[job] = 0
        await self.iterates(job)
        return job

    async def iterates(self, job: str) -> bool:
        """Whether a training makes further steps within :data:`HEALTHY_S`."""
        until = time.monotonic() + HEALTHY_S
        while time.monotonic() < until:
            record = await self.ask("GET", f"/v1/jobs/{job}")
            if record["state"] in ("ended", "lost"):
                return False
            if record["iterations"] > self.jobs[job] + 3:
                self.jobs[job] = record["iterations"]
                return True
            await asyncio.sleep(0.5)
        return False

    async def trainings_go_on(self, step: str) -> None:
        # Iterations from before the step may be reported late: only later ones count.
        for job in self.jobs:
            self.jobs[job] = max(self.jobs[job], (await self.ask("GET", f"/v1/jobs/{job}"))["iterations"])
        stopped = [job for job in list(self.jobs) if not await self.iterates(job)]
        for job in stopped:
            self.notes.append(f"{step}: training {job}: {await self.ask('GET', f'/v1/jobs/{job}')}")
            del self.jobs[job]
        self.figures["jobs_killed"] += len(stopped)

    async def after(self, step: str) -> None:
        await self.settle(step)
        await self.trainings_go_on(step)

    # ---- steps -------------------------------------------------------------------------------------------------------

    async def begin(self) -> None:
        """Build, start, key, a function and a training under load: what all steps need."""
        began = time.monotonic()
        await asyncio.to_thread(build, self.first)
        self.figures["build_s"] = time.monotonic() - began
        self.figures["image_gb"] = int(command("docker", "image", "inspect", "-f", "{{.Size}}", IMAGE)) / 1e9
        progress(f"built in {self.figures['build_s']:.0f} s")
        began = time.monotonic()
        starting = asyncio.create_task(asyncio.to_thread(self.first.run, "up", "-d", "--no-build"))
        await asyncio.gather(starting, self.ready())
        self.figures["ready_s"] = time.monotonic() - began
        await self.settle("up")
        self.figures["healthy_s"] = time.monotonic() - began
        self.key = self.first.run("exec", "-T", "gateway", "cat", "/data/key").strip()
        # Reached by the address that the second host names, like Redis.
        self.load = Load(self.url, self.key, Path(os.devnull), self.answers, RATE)

    async def idle(self) -> None:
        if not (before := _engine_cpu_s()):
            self.notes.append("idle_cpu: the engine's processes cannot be seen from here")
            return
        await asyncio.sleep(IDLE_S)
        after = _engine_cpu_s()
        self.figures["idle_cpu"] = (
            sum(max(0.0, spent - before[pid]) for pid, spent in after.items() if pid in before) / IDLE_S
        )

    async def under_load(self) -> "asyncio.Task[None]":
        spec = {
            "entrypoint": "bench.tally:Tally",
            "slo": {"deadline": "40s"},
            "batching": {"max_size": 32},
            "retries": {"max_attempts": 6},
            "limits": {"max_pending": 20000},
            "resources": {"gpu_memory": "64MiB"},
            "profile": {"run_ms": {1: 300, 32: 300}, "load_ms": 100, "degradation": 0.0},
        }
        body = {"apiVersion": "smore/v1", "kind": "Function", "metadata": {"name": LOADED}, "spec": spec}
        await self.ask("PUT", f"/v1/functions/{LOADED}", json=body, timeout=60)
        await self.train("node-cpu0")
        self.witness.start()
        return asyncio.create_task(self.load.run())

    async def function(self) -> None:
        blocks = re.findall(r"```\w+\n# (twice/[\w.]+)\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
        if {name for name, _ in blocks} != {"twice/handler.py", "twice/function.yaml"}:
            raise Failed("the README's function is not where it was")
        for name, text in blocks:
            file = self._folder / name
            file.parent.mkdir(exist_ok=True)
            file.write_text(text)
        await self.cli("deploy", "twice")
        said = json.loads(await self.cli("invoke", "twice", "--input", '{"x": [[1, 2, 3]]}'))
        if said != {"y": [[2.0, 4.0, 6.0]]}:
            raise Failed(f"twice answered {said}")

    async def spy(self) -> None:
        folder = self._folder / "spy"
        folder.mkdir()
        (folder / "handler.py").write_text(SPY)
        spec = "entrypoint: handler:Spy, slo: {deadline: 200s}, limits: {timeout: 150s}, batching: {max_size: 1}"
        (folder / "function.yaml").write_text(
            f"apiVersion: smore/v1\nkind: Function\nmetadata: {{name: spy}}\nspec: {{{spec}}}\n"
        )
        await self.cli("deploy", "spy")
        # By standard input: the spy may see the command lines of this machine's processes too.
        asked = json.dumps({"words": self._words, "seconds": SPY_S})
        invocation = re.findall(r"[\w-]{16,}", await self.cli("invoke", "spy", "--async", "--input", "-", given=asked))[
            0
        ]
        await asyncio.sleep(SPY_S / 3)
        await asyncio.to_thread(self.first.run, "restart", "redis")
        until = time.monotonic() + 4 * SPY_S
        while (state := (await self.ask("GET", f"/v1/invocations/{invocation}"))["state"]) in (
            "queued",
            "dispatched",
            "running",
        ):
            if time.monotonic() > until:
                break
            await asyncio.sleep(1)
        if state != "succeeded":
            raise Failed(f"the spy {state}")
        said = (await self.ask("GET", f"/v1/invocations/{invocation}/result"))["output"]
        self.figures["secrets_seen"] = len(said["found"])
        self.figures["command_lines_seen"] = said["seen"]
        self.notes += [f"spy: {one}" for one in said["found"]]
        await self.after("spy")

    def _services(self) -> list[str]:
        return [name for name in self.first.states() if name not in ("migrate", "trainings")]

    async def kill(self) -> None:
        for service in self._services():
            await asyncio.to_thread(self.first.kill, service)
            await self.after(f"kill {service}")

    async def restart(self) -> None:
        for service in self._services():
            await asyncio.to_thread(self.first.run, "restart", service)
            await self.after(f"restart {service}")

    async def update(self) -> None:
        kept, replaced = (self.first.container(name) for name in ("trainings", "node"))
        with open(self.first.folder / "zoo" / "__init__.py", "a") as file:
            file.write("\n# changed\n")
        began = time.monotonic()
        await asyncio.to_thread(self.first.run, "up", "-d", "--build")
        await self.ready()
        self.figures["update_s"] = time.monotonic() - began
        if self.first.container("trainings") != kept or self.first.container("node") == replaced:
            raise Failed("an update replaces the node's container and leaves that of the trainings")
        await self.after("update")

    async def second_host(self) -> None:
        folder = self._folder / "second"
        shutil.copytree(self.first.folder, folder)
        self.second = Project(
            SECOND,
            folder,
            NODE_FILES,
            {"services": {"node": {"image": IMAGE}, "trainings": {"image": KEPT}}},
            {
                "SMORE_REDIS__URL": self._redis_url,
                "SMORE_BLOBS__URL": self._gateway_url,
                "SMORE_NODE__NAME": "second",
                "SMORE_NODE__PARTITIONS": "1",
            },
        )
        await asyncio.to_thread(self.second.run, "up", "-d", "--build")
        await self.settle("second host")
        await self.cli("secrets", "set", "TOKEN", given="what a function may know")
        key = self.first.run("exec", "-T", "gateway", "cat", "/data/secrets.key")
        self.second.run("exec", "-T", "node", "sh", "-c", "umask 077; cat > /data/secrets.key", given=key)
        folder = self._folder / "there"
        folder.mkdir()
        (folder / "handler.py").write_text(
            "import os\nfrom smore import Handler\n\n\nclass There(Handler):\n    example = {}\n\n"
            "    def predict(self, inputs):\n        return [{'told': os.environ['TOKEN']} for _ in inputs]\n"
        )
        (folder / "function.yaml").write_text(
            "apiVersion: smore/v1\nkind: Function\nmetadata: {name: there}\n"
            "spec: {entrypoint: handler:There, slo: {deadline: 30s}, secrets: [TOKEN]}\n"
        )
        await self.cli("deploy", "there")
        await self.cli("pin", "there", "second-cpu0")
        said = json.loads(await self.cli("invoke", "there"))
        if said != {"told": "what a function may know"}:
            raise Failed(f"the function on the second host answered {said}")
        await self.train("second-cpu0")
        await asyncio.to_thread(self.second.run, "restart", "node")
        await self.after("second host, node restarted")
        await asyncio.to_thread(self.second.kill, "node")
        await self.after("second host, node killed")

    async def told_to_end(self, step: str) -> None:
        """The trainings of the first host: ended by SIGTERM, in order. They are counted no longer."""
        for job in [job for job in self.jobs if (await self.ask("GET", f"/v1/jobs/{job}"))["gpus"] == ["node-cpu0"]]:
            until = time.monotonic() + HEALTHY_S
            while (told := await self.ask("GET", f"/v1/jobs/{job}"))["state"] not in (
                "ended",
                "lost",
            ) and time.monotonic() < until:
                await asyncio.sleep(0.5)
            # zoo.train ends with 0 on SIGTERM, after the iteration at hand.
            if told["exit_code"] != 0:
                self.figures["jobs_killed"] += 1
                self.notes.append(f"{step}: training {job}: {told}")
            del self.jobs[job]

    async def down(self) -> None:
        await asyncio.to_thread(self.first.run, "down")
        began = time.monotonic()
        await asyncio.to_thread(self.first.run, "up", "-d")
        await self.ready()
        self.figures["ready_again_s"] = time.monotonic() - began
        await self.told_to_end("down")
        await self.after("down, up")
        await self.train("node-cpu0")

    async def keeper(self) -> None:
        await asyncio.to_thread(self.first.run, "restart", "trainings")
        await self.told_to_end("restart trainings")
        await self.settle("restart trainings")
        # What is killed together with its container is not counted: that is the fault itself.
        job = await self.train("node-cpu0")
        await asyncio.to_thread(self.first.kill, "trainings")
        del self.jobs[job]
        until = time.monotonic() + HEALTHY_S
        while (told := await self.ask("GET", f"/v1/jobs/{job}"))["state"] not in ("ended", "lost"):
            if time.monotonic() > until:
                raise Failed(f"a training that was killed with its container counts as going on: {told}")
            await asyncio.sleep(0.5)
        await self.settle("kill trainings")
        await self.train("node-cpu0")

    # ---- all of it ---------------------------------------------------------------------------------------------------

    async def run(self, only: re.Pattern[str]) -> None:
        await self.begin()
        await self._step("idle", only, self.idle)
        sending = await self.under_load()
        steps: list[tuple[str, Callable[[], Awaitable[None]]]] = [
            ("function", self.function),
            ("spy", self.spy),
            ("kill", self.kill),
            ("restart", self.restart),
            ("update", self.update),
            ("second", self.second_host),
            ("down", self.down),
            ("keeper", self.keeper),
        ]
        for name, step in steps:
            await self._step(name, only, step)
        await self.load.finish()
        await sending
        # Runs are not counted: in a container a function has no file to write them to.
        figures = await account(self.load, self.witness.ends, Counter())
        self.witness.stop.set()
        self.figures |= {
            name: figures[name] for name in ("lost", "doubled", "sent", "accepted", "succeeded", "failed", "expired")
        }
        self.figures["status_500"] = sum(self.answers.failed.values())
        await self.load.close()

    async def _step(self, name: str, only: re.Pattern[str], step: Callable[[], Awaitable[None]]) -> None:
        if not only.search(name):
            return
        began = time.monotonic()
        try:
            await step()
        except Failed as error:
            self.figures["failed_steps"] = self.figures.get("failed_steps", 0) + 1
            self.notes.append(f"{name}: {error}")
            progress(f"{name:24} FAILED: {error}")
        progress(f"{name:24} {time.monotonic() - began:.0f} s")

    def close(self) -> None:
        """Take everything away again."""
        for project in (self.second, self.first):
            if project is not None:
                with contextlib.suppress(Failed):
                    project.run("down", "-v", "--remove-orphans", "-t", "20")
        with contextlib.suppress(Failed):
            command("docker", "image", "rm", IMAGE, KEPT)


#: For commands that only read the files.
_PASSWORDS: Final = {"SMORE_REDIS_PASSWORD": "-", "SMORE_POSTGRES_PASSWORD": "-"}


def _engine_cpu_s() -> dict[int, float]:
    """
    CPU seconds, reaped children's included, of the engine's own processes and of all that runs in its containers; none
    = not seen.
    """
    engine = [
        one for one in psutil.process_iter(["name"]) if one.info["name"] in ("dockerd", "containerd", "docker-proxy")
    ]
    shims = [one for one in psutil.process_iter(["name"]) if one.info["name"].startswith("containerd-shim")]
    found: dict[int, float] = {}
    for process in (
        [*engine, *shims, *(child for shim in shims for child in shim.children(recursive=True))] if engine else []
    ):
        with contextlib.suppress(psutil.Error):
            found[process.pid] = sum(process.cpu_times()[:4])
    return found


def _free_port() -> int:
    import socket

    with socket.create_server(("", 0)) as server:
        port: int = server.getsockname()[1]
        return port


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="end with one line of JSON")
    parser.add_argument("--only", default="", help="only steps whose name this regular expression finds")
    options = parser.parse_args()
    name = "bench.compose"
    if reason := no_engine():
        progress(f"skipped: {reason}")
        if options.json:
            emit(name, {}, skipped=reason)
        return
    engine = command("docker", "info", "-f", "Docker {{.ServerVersion}}, {{.Driver}}").strip()
    containerd = "io.containerd.snapshotter" in command("docker", "info", "-f", "{{json .DriverStatus}}")
    with tempfile.TemporaryDirectory(prefix="smore-compose-") as folder:
        bench = Bench(Path(folder))
        try:
            asyncio.run(bench.run(re.compile(options.only)))
        finally:
            bench.close()
    for note in bench.notes:
        progress(note)
    for key, value in bench.figures.items():
        progress(f"{key:20} {value:.4g}")
    if options.json:
        emit(
            name, bench.figures, engine=engine, image_store="containerd" if containerd else "classic", notes=bench.notes
        )


if __name__ == "__main__":
    main()
