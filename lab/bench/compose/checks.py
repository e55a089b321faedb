"""What must hold after each step: healthy services, a platform that is ready, trainings that go on."""

import asyncio
import time
from dataclasses import dataclass, field

from lab.bench.compose.engine import Failed
from lab.bench.compose.platform import ENDED_JOB, HEALTHY_S, TRAINING, Platform
from lab.bench.report import progress

#: Iterations more than before that show that a training goes on.
FURTHER: int = 3


@dataclass(slots=True)
class Figures:
    """The numbers of the run, lines that say why one is not what it should be, and how each step ended."""

    values: dict[str, float] = field(default_factory=lambda: {"unhealthy": 0.0, "jobs_killed": 0.0})
    notes: list[str] = field(default_factory=list)
    #: ``ok`` or ``failed`` by the step's name; a step that was not taken is missing.
    steps: dict[str, str] = field(default_factory=dict)

    def count(self, name: str, problems: list[str]) -> None:
        """Add the number of problems to a figure, and the problems to the notes."""
        self.values[name] = self.values.get(name, 0) + len(problems)
        self.notes += problems


class Checks:
    """Counts in ``figures`` what does not hold. It knows the trainings that are to go on."""

    def __init__(self, platform: Platform, figures: Figures) -> None:
        self._platform, self._figures = platform, figures
        #: The latest iteration of each training, by the job's id.
        self._iterations: dict[str, int] = {}

    async def after(self, step: str) -> None:
        """After a step in which no training may end."""
        await self.healthy(step)
        await self._trainings_go_on(step)

    async def healthy(self, step: str) -> None:
        """Wait until every service is healthy, and count those that are not within HEALTHY_S."""
        platform = self._platform
        # The engine notices the death of a process after a while.
        await asyncio.sleep(1)
        until, problems = time.monotonic() + HEALTHY_S, ["not looked at"]
        while problems and time.monotonic() < until:
            await asyncio.sleep(0.5)
            problems = await asyncio.to_thread(platform.first.unhealthy)
            if platform.second is not None:
                problems += [f"second: {problem}" for problem in await asyncio.to_thread(platform.second.unhealthy)]
        try:
            await platform.ready()
        except Failed as error:
            problems.append(str(error))
        self._figures.count("unhealthy", [f"{step}: {problem}" for problem in problems])
        progress(f"{step:24} {problems or 'healthy'}")

    # ---- trainings ---------------------------------------------------------------------------------------------------

    async def train(self, gpu: str) -> str:
        """Start a training, wait until it iterates, and watch it from then on. Returns the job's id."""
        body = {"name": f"train-{gpu}", "argv": TRAINING, "gpus": [gpu]}
        job: str = (await self._platform.ask("POST", "/v1/jobs", json=body))["id"]
        self._iterations[job] = 0
        await self._iterates(job)
        return job

    def forget(self, job: str) -> None:
        """A training that is to end is not watched any more."""
        del self._iterations[job]

    async def ended(self, job: str) -> dict[str, object]:
        """The record of a training once it has ended, or as it is after HEALTHY_S."""
        until = time.monotonic() + HEALTHY_S
        while True:
            record: dict[str, object] = await self._platform.ask("GET", f"/v1/jobs/{job}")
            if record["state"] in ENDED_JOB or time.monotonic() > until:
                return record
            await asyncio.sleep(0.5)

    async def trainings_ended(self, step: str, gpu: str) -> None:
        """The trainings of a GPU instance must have ended with status 0, as zoo.train does on SIGTERM; forget them."""
        for job in list(self._iterations):
            if (await self._platform.ask("GET", f"/v1/jobs/{job}"))["gpus"] != [gpu]:
                continue
            record = await self.ended(job)
            if record["exit_code"] != 0:
                self._figures.count("jobs_killed", [f"{step}: training {job}: {record}"])
            self.forget(job)

    async def _trainings_go_on(self, step: str) -> None:
        # Iterations from before the step may be reported late: only later ones count.
        for job, iterations in self._iterations.items():
            record = await self._platform.ask("GET", f"/v1/jobs/{job}")
            self._iterations[job] = max(iterations, record["iterations"])
        for job in [job for job in list(self._iterations) if not await self._iterates(job)]:
            record = await self._platform.ask("GET", f"/v1/jobs/{job}")
            self._figures.count("jobs_killed", [f"{step}: training {job}: {record}"])
            self.forget(job)

    async def _iterates(self, job: str) -> bool:
        """Whether a training makes further iterations within HEALTHY_S."""
        until = time.monotonic() + HEALTHY_S
        while time.monotonic() < until:
            record = await self._platform.ask("GET", f"/v1/jobs/{job}")
            if record["state"] in ENDED_JOB:
                return False
            if record["iterations"] > self._iterations[job] + FURTHER:
                self._iterations[job] = record["iterations"]
                return True
            await asyncio.sleep(0.5)
        return False
