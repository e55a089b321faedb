"""Commands to a Docker engine, and one ``docker compose`` project."""

import contextlib
import json
import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import psutil

IMAGE: Final = "smore-bench:0.2.0"
#: The image of the service ``trainings``, which is tagged once and which no update replaces.
TRAININGS_IMAGE: Final = "smore-bench:trainings"
#: The oldest release whose compose files may say ``start_interval``.
LEAST_RELEASE: Final = 25


class Failed(Exception):
    """A command or a check failed; the message holds the end of the command's output."""


def command(
    *words: str,
    timeout_s: float = 900,
    cwd: Path | None = None,
    stdin: str | None = None,
    environment: Mapping[str, str] | None = None,
) -> str:
    """The standard output of a command; ``environment`` is added to this process's. Raises Failed."""
    try:
        finished = subprocess.run(
            words,
            cwd=cwd,
            env={**os.environ, **(environment or {})},
            input=stdin,
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
    """Why no usable engine is there; "" where one is."""
    if shutil.which("docker") is None:
        return "there is no command docker"
    try:
        server = command("docker", "version", "--format", "{{.Server.Version}}", timeout_s=30).strip()
        command("docker", "compose", "version", timeout_s=30)
    except Failed as error:
        return str(error).strip()
    old = int(server.partition(".")[0]) < LEAST_RELEASE
    return f"Docker {server} is older than {LEAST_RELEASE}" if old else ""


class Project:
    """
    One ``docker compose`` project in a folder. ``files``: its compose files; ``changes``: another one, as a dict;
    ``variables``: its ``.env``, to which the files are added, as the guides say.
    """

    def __init__(
        self, name: str, folder: Path, files: tuple[str, ...], changes: dict[str, Any], variables: dict[str, str]
    ) -> None:
        self.name, self.folder = name, folder
        changes_file = folder.parent / f"{name}.json"
        changes_file.write_text(json.dumps(changes))
        lines = {**variables, "COMPOSE_FILE": ":".join((*files, str(changes_file)))}
        (folder / ".env").write_text("".join(f"{key}={value}\n" for key, value in lines.items()))
        (folder / ".env").chmod(0o600)
        self._words = ["docker", "compose", "-p", name]

    def run(self, *words: str, stdin: str | None = None) -> str:
        """The output of ``docker compose WORDS``. Raises Failed."""
        return command(*self._words, *words, cwd=self.folder, stdin=stdin)

    def inside(self, service: str, *words: str, stdin: str | None = None) -> str:
        """The output of a command in the service's container. Raises Failed."""
        return self.run("exec", "-T", service, *words, stdin=stdin)

    def build(self) -> None:
        """Build as the guide says, and tag the image of the trainings."""
        self.run("build")
        command("docker", "tag", IMAGE, TRAININGS_IMAGE)

    def states(self) -> dict[str, str]:
        """The state of each service by its name: ``healthy``, ``starting``, ``exited``…"""
        lines = self.run("ps", "-a", "--format", "json").splitlines()
        return {service["Service"]: service["Health"] or service["State"] for service in map(json.loads, lines)}

    def unhealthy(self) -> list[str]:
        """Services that are not in the state in which they should be, with their state."""
        return sorted(
            f"{name} is {state}"
            for name, state in self.states().items()
            if state != ("exited" if name == "migrate" else "healthy")
        )

    def services(self) -> list[str]:
        """The services that a step may kill without ending a training."""
        return [name for name in self.states() if name not in ("migrate", "trainings")]

    def container(self, service: str) -> str:
        """The container's id."""
        return self.run("ps", "-q", service).strip()

    def address(self, service: str) -> str:
        """The container's address in the network ``inside``."""
        form = f'{{{{(index .NetworkSettings.Networks "{self.name}_inside").IPAddress}}}}'
        return command("docker", "inspect", "-f", form, self.container(service)).strip()

    def kill(self, service: str) -> None:
        """
        ``kill -9`` of the container's first process. ``docker kill`` would count as the operator's wish, after which
        the engine does not restart the container.
        """
        pid = command("docker", "inspect", "-f", "{{.State.Pid}}", self.container(service)).strip()
        strike = f"import os; os.kill({pid}, 9)"
        command(
            "docker", "run", "--rm", "--pid", "host", "--user", "0", "--network", "none", IMAGE, "python", "-c", strike
        )


def bridge_address() -> str:
    """The address at which containers reach ports that the host publishes."""
    return command("docker", "network", "inspect", "bridge", "-f", "{{(index .IPAM.Config 0).Gateway}}").strip()


def cpu_s() -> dict[int, float]:
    """
    CPU seconds, reaped children's included, of the engine's own processes and of all that runs in its containers, by
    pid; empty where the engine's processes cannot be seen.
    """
    processes = list(psutil.process_iter(["name"]))
    engine = [process for process in processes if process.info["name"] in ("dockerd", "containerd", "docker-proxy")]
    if not engine:
        return {}
    shims = [process for process in processes if process.info["name"].startswith("containerd-shim")]
    inside = [child for shim in shims for child in shim.children(recursive=True)]
    spent: dict[int, float] = {}
    for process in (*engine, *shims, *inside):
        with contextlib.suppress(psutil.Error):
            spent[process.pid] = sum(process.cpu_times()[:4])
    return spent
