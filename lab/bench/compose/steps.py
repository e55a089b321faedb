"""What is done to the platform, step by step. A step raises Failed where it cannot be done."""

import asyncio
import json
import re
import shutil
import time
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Final

from lab.bench.compose import spy
from lab.bench.compose.checks import Checks, Figures
from lab.bench.compose.engine import IMAGE, Failed, command, cpu_s
from lab.bench.compose.platform import ENDED_JOB, Platform
from lab.bench.faults import LOADED
from lab.bench.report import ROOT, progress
from lab.bench.uploads import wheel

IDLE_S: Final = 60.0
SPY_S: Final = 60.0
#: The GPU instances of the two hosts.
FIRST_GPU: Final = "node-cpu0"
SECOND_GPU: Final = "second-cpu0"
REVEALED: Final = "what a function may know"
REVEAL: Final = """
import os
from smore import Handler


class Reveal(Handler):
    example = {}

    def predict(self, inputs):
        return [{"secret": os.environ["TOKEN"]} for _ in inputs]
"""
#: Fails where one of the addresses serves no metrics.
SCRAPE: Final = """
import sys
from urllib.request import urlopen
for target in sys.argv[1:]:
    assert b"# TYPE" in urlopen(f"http://{target}/metrics", timeout=10).read(), target
"""
INSTALLED: Final = """
import tinywheel
from smore import Handler


class Installed(Handler):
    example = {}

    def predict(self, inputs):
        return [{"module": tinywheel.__name__} for _ in inputs]
"""


class Steps:
    """The steps share the platform, the checks and the figures; ``by_name`` has those that ``--only`` chooses from."""

    def __init__(self, platform: Platform, checks: Checks, figures: Figures) -> None:
        self._platform, self._checks, self._figures = platform, checks, figures

    @property
    def by_name(self) -> Mapping[str, Callable[[], Awaitable[None]]]:
        """In their order."""
        return {
            "function": self.function,
            "environment": self.environment,
            "observe": self.observe,
            "spy": self.spy,
            "kill": self.kill,
            "restart": self.restart,
            "update": self.update,
            "second": self.second_host,
            "down": self.down,
            "keeper": self.keeper,
        }

    # ---- always ------------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Build and start the platform, and take its key."""
        platform, values = self._platform, self._figures.values
        began = time.monotonic()
        await asyncio.to_thread(platform.first.build)
        values["build_s"] = time.monotonic() - began
        values["image_gb"] = int(command("docker", "image", "inspect", "-f", "{{.Size}}", IMAGE)) / 1e9
        progress(f"built in {values['build_s']:.0f} s")
        began = time.monotonic()
        values["ready_s"] = await self._up("--no-build")
        await self._checks.healthy("up")
        values["healthy_s"] = time.monotonic() - began
        platform.read_key()

    async def _up(self, *options: str) -> float:
        """``docker compose up -d`` where nothing runs; the seconds until the platform is ready."""
        began = time.monotonic()
        starting = asyncio.create_task(asyncio.to_thread(self._platform.first.run, "up", "-d", *options))
        await self._platform.ready()
        ready_s = time.monotonic() - began
        await starting
        return ready_s

    async def idle(self) -> None:
        """CPU that the containers and the engine take with nothing to do."""
        before = cpu_s()
        if not before:
            self._figures.notes.append("idle_cpu: the engine's processes cannot be seen from here")
            return
        await asyncio.sleep(IDLE_S)
        spent = sum(max(0.0, seconds - before[pid]) for pid, seconds in cpu_s().items() if pid in before)
        self._figures.values["idle_cpu"] = spent / IDLE_S

    async def start_load(self) -> "asyncio.Task[None]":
        """Deploy the function of the load, start a training, and send the load until it is told to finish."""
        spec = {
            "entrypoint": "lab.bench.tally:Tally",
            "slo": {"deadline": "40s"},
            "batching": {"max_size": 32},
            "retries": {"max_attempts": 6},
            "limits": {"max_pending": 20000},
            "resources": {"gpu_memory": "64MiB"},
            "profile": {"run_ms": {1: 300, 32: 300}, "load_ms": 100, "degradation": 0.0},
        }
        body = {"apiVersion": "smore/v1", "kind": "Function", "metadata": {"name": LOADED}, "spec": spec}
        await self._platform.ask("PUT", f"/v1/functions/{LOADED}", json=body, timeout=60)
        await self._checks.train(FIRST_GPU)
        self._platform.witness.start()
        return asyncio.create_task(self._platform.load.run())

    # ---- chosen by name ----------------------------------------------------------------------------------------------

    async def function(self) -> None:
        """Deploy the README's function and call it."""
        blocks = re.findall(r"```\w+\n# (twice/[\w.]+)\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
        if {name for name, _ in blocks} != {"twice/handler.py", "twice/function.yaml"}:
            raise Failed("the README's function is not where it was")
        for name, text in blocks:
            file = self._platform.folder / name
            file.parent.mkdir(exist_ok=True)
            file.write_text(text)
        await self._platform.cli("deploy", "twice")
        output = json.loads(await self._platform.cli("invoke", "twice", "--input", '{"x": [[1, 2, 3]]}'))
        if output != {"y": [[2.0, 4.0, 6.0]]}:
            raise Failed(f"twice answered {output}")

    async def environment(self) -> None:
        """A function whose folder brings a wheel, which the node installs without a way out."""
        folder = self._platform.folder / "installed"
        folder.mkdir()
        await self._platform.deploy(
            "installed",
            INSTALLED,
            f"entrypoint: handler:Installed, slo: {{deadline: 60s}}, requirements: [{wheel(folder)}]",
        )
        output = json.loads(await self._platform.cli("invoke", "installed"))
        if output != {"module": "tinywheel"}:
            raise Failed(f"the function with a wheel answered {output}")

    async def observe(self) -> None:
        """What docs/guides/gpu-host-with-compose.md says under Observe; every target of the scraper answers."""
        first = self._platform.first
        listed = await asyncio.to_thread(first.inside, "gateway", "smore", "gpus", "-o", "json")
        workers = len(json.loads(listed))
        words = ("smore", "metrics", "scrape-config", "--compose", "--workers", str(workers))
        printed = await asyncio.to_thread(first.inside, "gateway", *words)
        # The gateway's metrics want a key.
        targets = [
            target for target in re.findall(r"- ([\w-]+:\d+)$", printed, re.MULTILINE) if "gateway" not in target
        ]
        if len(targets) < 5 + workers:
            raise Failed(f"the scraper's targets are {targets}")
        await asyncio.to_thread(first.inside, "gateway", "python", "-c", SCRAPE, *targets)

    async def spy(self) -> None:
        """A function looks for the passwords while Redis is restarted, and tries what it must not do."""
        platform, figures = self._platform, self._figures
        handler = Path(spy.__file__).read_text()
        options = "slo: {deadline: 200s}, limits: {timeout: 150s}, batching: {max_size: 1}"
        await platform.deploy("spy", handler, f"entrypoint: handler:Spy, {options}")
        ports = {"redis": 6379, "postgres": 5432, "gateway": 8400}
        addresses = [(platform.first.address(service), port) for service, port in ports.items()]
        id_ = await platform.send("spy", {"words": platform.passwords, "seconds": SPY_S, "addresses": addresses})
        await asyncio.sleep(SPY_S / 3)
        await asyncio.to_thread(platform.first.run, "restart", "redis")
        output = await platform.output(id_, 4 * SPY_S)
        figures.values["command_lines_seen"] = output["seen"]
        figures.count("secrets_seen", [f"spy: {place}" for place in output["found"]])
        figures.count("escapes", [f"spy: {escape}" for escape in output["escapes"]])
        await self._checks.after("spy")

    async def kill(self) -> None:
        """Kill the first process of each service but ``trainings``."""
        for service in self._platform.first.services():
            await asyncio.to_thread(self._platform.first.kill, service)
            await self._checks.after(f"kill {service}")

    async def restart(self) -> None:
        """Restart each service but ``trainings``."""
        for service in self._platform.first.services():
            await asyncio.to_thread(self._platform.first.run, "restart", service)
            await self._checks.after(f"restart {service}")

    async def update(self) -> None:
        """Change a line of the code; the container of the node is replaced, that of the trainings is not."""
        first = self._platform.first
        trainings, node = first.container("trainings"), first.container("node")
        with open(first.folder / "zoo" / "__init__.py", "a") as file:
            file.write("\n# changed\n")
        began = time.monotonic()
        await asyncio.to_thread(first.run, "up", "-d", "--build")
        await self._platform.ready()
        self._figures.values["update_s"] = time.monotonic() - began
        if first.container("trainings") != trainings or first.container("node") == node:
            raise Failed("an update replaces the node's container and leaves that of the trainings")
        await self._checks.after("update")

    async def second_host(self) -> None:
        """A second host as docs/guides/second-host.md says: a secret, a function pinned to it, a training on it."""
        platform = self._platform
        folder = platform.folder / "second"
        shutil.copytree(platform.first.folder, folder)
        second = platform.add_second(folder)
        await asyncio.to_thread(second.run, "up", "-d", "--build")
        await self._checks.healthy("second host")
        await platform.cli("secrets", "set", "TOKEN", stdin=REVEALED)
        key = platform.first.inside("gateway", "cat", "/data/secrets.key")
        second.inside("node", "sh", "-c", "umask 077; cat > /data/secrets.key", stdin=key)
        await platform.deploy("reveal", REVEAL, "entrypoint: handler:Reveal, slo: {deadline: 30s}, secrets: [TOKEN]")
        await platform.cli("pin", "reveal", SECOND_GPU)
        output = json.loads(await platform.cli("invoke", "reveal"))
        if output != {"secret": REVEALED}:
            raise Failed(f"the function on the second host answered {output}")
        await self._checks.train(SECOND_GPU)
        await asyncio.to_thread(second.run, "restart", "node")
        await self._checks.after("second host, node restarted")
        await asyncio.to_thread(second.kill, "node")
        await self._checks.after("second host, node killed")

    async def down(self) -> None:
        """``down`` ends the trainings of the first host in order; then ``up`` again."""
        first = self._platform.first
        await asyncio.to_thread(first.run, "down")
        self._figures.values["ready_again_s"] = await self._up()
        await self._checks.trainings_ended("down", FIRST_GPU)
        await self._checks.after("down, up")
        await self._checks.train(FIRST_GPU)

    async def keeper(self) -> None:
        """Restart the service ``trainings``, then kill it together with a training."""
        first, checks = self._platform.first, self._checks
        await asyncio.to_thread(first.run, "restart", "trainings")
        await checks.trainings_ended("restart trainings", FIRST_GPU)
        await checks.healthy("restart trainings")
        # What is killed together with its container is not counted: that is the fault itself.
        job = await checks.train(FIRST_GPU)
        await asyncio.to_thread(first.kill, "trainings")
        checks.forget(job)
        record = await checks.ended(job)
        if record["state"] not in ENDED_JOB:
            raise Failed(f"a training that was killed with its container counts as going on: {record}")
        await checks.healthy("kill trainings")
        await checks.train(FIRST_GPU)
