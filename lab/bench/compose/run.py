"""
The compose files under a real Docker engine: ``python -m lab.bench.compose --json``.

Where there is no engine it prints the reason and ends with 0.

A fresh clone of what is committed, made under umask 077, is built and started with docker-compose.cpu.yml as
docs/guides/gpu-host-with-compose.md says, under a project, image names and ports of its own, and removed at the end.
Steps, each a name for ``--only`` (the steps that it needs run in any case): ``idle``; ``function`` (the README's,
uploaded); ``environment`` (a function whose folder brings a wheel); ``observe`` (the metrics of every process);
``spy`` (a function looks for passwords in all of ``/proc`` for a minute, while Redis is restarted, and tries what it
must not do); ``kill`` (the first process of every container, under load) and ``restart`` (each), both but for
``trainings``; ``update`` (a line is changed, ``up --build``); ``second`` (a second host as a second project); ``down``
(and up again); ``keeper`` (restart and kill of ``trainings``).

Figures:

* ``lost`` and ``doubled`` as in ``lab.bench.kills``, of a load that goes on through all of it; ``sent``, ``accepted``,
  ``succeeded``, ``failed``, ``expired``, ``status_500``: its invocations and answers.
* ``unhealthy``: services that were not healthy, or a platform that was not ready, within 90 s after a step.
* ``jobs_killed``: trainings that did not go on after a step in which none may end (all but ``down`` and ``keeper``),
  and after those two trainings that did not end with status 0.
* ``secrets_seen``: places at which the spy found a password; ``command_lines_seen``: how many it could read;
  ``escapes``: what it could do and must not.
* ``build_s``, ``image_gb``; ``ready_s``: from ``docker compose up`` with the image built and empty volumes to the
  first 200 of ``/readyz``; ``healthy_s``: to healthy services; ``ready_again_s``, ``update_s``: of those steps.
* ``idle_cpu``: cores that the containers and the engine's own processes take with nothing to do (Linux, where the
  engine's processes can be seen).
* ``failed_steps``.

``steps``: ``ok`` or ``failed``, ``load`` among them; ``python -m lab.bench.verified FILE`` writes what was ``ok`` into
docs/status.md. The engine chooses the image store: run it under an engine of either kind.
"""

import argparse
import asyncio
import re
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path

from lab.bench.compose.checks import Checks, Figures
from lab.bench.compose.engine import Failed, command, no_engine
from lab.bench.compose.platform import Platform
from lab.bench.compose.steps import Steps
from lab.bench.kills import account
from lab.bench.report import emit, end_on_sigterm, progress, revision

NAME = "lab.bench.compose"
#: Of what ``lab.bench.kills`` counts.
OF_THE_LOAD = ("lost", "doubled", "sent", "accepted", "succeeded", "failed", "expired")
OF_A_FAULT = ("lost", "doubled", "failed", "status_500")


async def run(platform: Platform, only: re.Pattern[str], figures: Figures) -> None:
    """All steps whose name ``only`` finds. Raises Failed where the platform cannot be started."""
    steps = Steps(platform, Checks(platform, figures), figures)
    await steps.start()
    if only.search("idle"):
        await take("idle", steps.idle, figures)
    sending = await steps.start_load()
    for name, step in steps.by_name.items():
        if only.search(name):
            await take(name, step, figures)
    await platform.load.finish()
    await sending
    # Runs are not counted: in a container a function has no file to write them to.
    counted = await account(platform.load, platform.witness.ends, Counter())
    platform.witness.stop.set()
    figures.values |= {name: counted[name] for name in OF_THE_LOAD}
    figures.values["status_500"] = sum(platform.answers.failed.values())
    figures.steps["load"] = "ok" if not any(figures.values[name] for name in OF_A_FAULT) else "failed"
    await platform.close()


async def take(name: str, step: Callable[[], Awaitable[None]], figures: Figures) -> None:
    """Run one step; a step that fails is counted, and the next one runs."""
    began, before = time.monotonic(), len(figures.notes)
    try:
        await step()
    except Failed as error:
        figures.count("failed_steps", [f"{name}: {error}"])
        progress(f"{name:24} FAILED: {error}")
    figures.steps[name] = "ok" if len(figures.notes) == before else "failed"
    progress(f"{name:24} {time.monotonic() - began:.0f} s")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="end with one line of JSON")
    parser.add_argument("--only", default="", help="only steps whose name this regular expression finds")
    options = parser.parse_args()
    end_on_sigterm()
    if reason := no_engine():
        progress(f"skipped: {reason}")
        if options.json:
            emit(NAME, {}, skipped=reason)
        return
    engine = command("docker", "info", "-f", "Docker {{.ServerVersion}}, {{.Driver}}").strip()
    containerd = "io.containerd.snapshotter" in command("docker", "info", "-f", "{{json .DriverStatus}}")
    # The clone is made of this; by the end of the run the checkout may be another.
    cloned, figures = revision(), Figures()
    with tempfile.TemporaryDirectory(prefix="smore-compose-") as folder:
        platform = Platform(Path(folder))
        try:
            asyncio.run(run(platform, re.compile(options.only), figures))
        finally:
            platform.remove()
    for note in figures.notes:
        progress(note)
    for name, value in figures.values.items():
        progress(f"{name:20} {value:.4g}")
    if options.json:
        store = "containerd" if containerd else "classic"
        how = {"revision": cloned, "engine": engine, "image_store": store}
        emit(NAME, figures.values, **how, steps=figures.steps, notes=figures.notes)
