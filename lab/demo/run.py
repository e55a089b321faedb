"""
``python -m lab.demo.run``: runs the platform on this machine under a minute of traffic beside training, and measures what
each side loses.

Phases, each with its own figures:

1. *alone*: the training commands run on their partitions without a platform. They run all at once, as in the later
   phases: where two partitions share a core, the jobs disturb each other in every phase, and this is not counted as a
   cost of the platform.
2. the platform starts, the functions are deployed, and the jobs start through the API.
3. *platform control*: the load of phase 4, but every request has a deadline that cannot be met and is refused. The
   slowdown of the jobs against *alone* is the platform's own tax.
4. *with functions*: the traffic. The slowdown of the jobs against *platform control* is their degradation. It is sent
   again, up to four times in all, while a job's budget is neither proven to be kept nor to be broken.

What the budgets are judged by are the platform's statements, whose closed windows need no baseline: a tenth of the time is
closed, unless SMORE_WORKER__PROBE_SHARE says otherwise, so that there are enough of them in minutes.

Iteration times come from the jobs' own track files in every phase. The load is open loop: a latency starts at the
instant at which the request was due.
"""

import argparse
import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.live import Live
from rich.text import Text

from lab.demo.board import Board, Phase, Progress, tables
from lab.demo.figures import (
    DemoReport,
    Iterations,
    Sample,
    Sent,
    Step,
    Window,
    function_figures,
    gpu_figures,
    iterations,
    job_figures,
    outcome_of,
)
from lab.demo.traffic import (
    FUNCTIONS,
    TRACE,
    Due,
    arrivals,
    sample_input,
    trace_counts,
    typical_part,
)
from smore.local import embedded, layout, machine
from smore.process.settings import Settings
from smore.tracking.ring import TrackReader
from smore_client import AsyncClient, ClientError
from smore_client.types import Function, Invocation, Job, Verdict

#: The checkout, which has ``zoo`` and from which the jobs run.
ROOT = Path(__file__).resolve().parents[2]
#: Models that are trained, one on each of the first GPU instances.
MODELS = ("resnet50", "mobilenet")
#: Batches of the trainings by preset; both were profiled.
BATCHES = {"cpu": 8, "paper": 64}
#: Steps of a job before it is measured: it calibrates its input wait first.
SETTLE_STEPS = 12
#: Requests per second for each core of the partitions.
RATE_PER_CORE = 20.0
MOST_RATE = 100.0
ALONE_S = 8.0
CONTROL_S = 15.0
#: How often the traffic is sent at most.
MOST_ROUNDS = 4
PROBE_SHARE = "0.1"
#: Below the run time of every function, so that every request is refused; the fastest function takes about a
#: millisecond.
CONTROL_DEADLINE_MS = 0.001
#: Longest wait for jobs to iterate and for functions to be ready, seconds.
PATIENCE_S = 90.0
SAMPLE_S = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """One job of the demo."""

    name: str
    partition: layout.Partition
    argv: tuple[str, ...]
    workload: str


def trainings(partitions: Sequence[layout.Partition], lasting_s: float) -> list[Training]:
    """A job for each of the first partitions; they end by themselves after ``lasting_s`` should nobody end them."""
    return [
        Training(
            name=f"train-{model}",
            partition=partition,
            argv=(
                "zoo.train",
                "--model",
                model,
                "--preset",
                preset_of(partition),
                "--batch",
                str(BATCHES[preset_of(partition)]),
                "--seconds",
                f"{lasting_s:.0f}",
                "--device",
                "cpu" if partition.kind == "cpu" else "cuda",
            ),
            workload=f"{model}/{preset_of(partition)}/training/{BATCHES[preset_of(partition)]}",
        )
        for model, partition in zip(MODELS, partitions, strict=False)
    ]


def preset_of(partition: layout.Partition) -> str:
    """The size of the models on it: the paper's on a GPU."""
    return "cpu" if partition.kind == "cpu" else "paper"


class DemoFailed(Exception):
    """The demo cannot go on."""


async def until(met: Callable[[], bool], what: str, patience_s: float = PATIENCE_S) -> None:
    """Wait for a condition; raises DemoFailed."""
    deadline = time.monotonic() + patience_s
    while not met():
        if time.monotonic() > deadline:
            raise DemoFailed(f"{what}: not within {patience_s:.0f} s")
        await asyncio.sleep(0.1)


class Track:
    """The steps of a job, gathered as they come."""

    def __init__(self, path: Path) -> None:
        self._reader = TrackReader(str(path))
        self.steps: list[Step] = []

    def look(self) -> int:
        """Take in what came; how many steps there are."""
        self.steps += self._reader.read_new()
        return len(self.steps)


@contextmanager
def running_alone(training: Training, folder: Path) -> Iterator[Track]:
    """The training command on its partition, as the worker would start it, but without a platform."""
    file = folder / f"{training.name}.track"
    file.unlink(missing_ok=True)
    device = {"CUDA_VISIBLE_DEVICES": training.partition.device} if training.partition.kind != "cpu" else {}
    environment = os.environ | {"PYTHONPATH": str(ROOT), "SMORE_TRACK": str(file)} | device
    with (folder / f"{training.name}.log").open("wb") as log, pinned(training.partition):
        process = subprocess.Popen(
            (sys.executable, "-m", *training.argv),
            cwd=ROOT,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        yield Track(file)
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@contextmanager
def pinned(partition: layout.Partition) -> Iterator[None]:
    """What is started inside keeps to the partition's cores."""
    before = os.sched_getaffinity(0)
    if partition.kind == "cpu":
        os.sched_setaffinity(0, {int(core) for core in partition.device.split(",")})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


async def offer(
    client: AsyncClient,
    plan: Sequence[Due],
    inputs: Sequence[object],
    board: Board,
    *,
    deadline_ms: float | None = None,
) -> list[Sent]:
    """Send every request when it is due, whatever the platform does; their ends, when all have one."""
    done: list[Sent] = []
    began = time.monotonic()

    async def send(due: Due) -> None:
        result: Invocation | ClientError
        board.in_flight += 1
        try:
            result = await client.invoke(FUNCTIONS[due.function], inputs[due.function], deadline_ms=deadline_ms)
        except ClientError as error:
            result = error
        board.in_flight -= 1
        end = Sent(
            function=FUNCTIONS[due.function],
            latency_s=time.monotonic() - began - due.at_s,
            outcome=outcome_of(result),
            cold=isinstance(result, Invocation) and result.timings_ms.get("load", 0.0) > 0,
        )
        done.append(end)
        board.sent.append(end)

    async with asyncio.TaskGroup() as group:
        for due in plan:
            await asyncio.sleep(began + due.at_s - time.monotonic())
            group.create_task(send(due))
    return done


async def watch(client: AsyncClient, tracks: Mapping[str, Track], board: Board) -> None:
    """Keep the board up to date until cancelled."""
    while True:
        with suppress(ClientError):
            board.samples.append(Sample(at=time.time(), gpus=tuple(await client.gpus())))
            board.waiting = {queue.function.rpartition("/")[2]: queue.depth for queue in await client.queues()}
        for name, track in tracks.items():
            track.look()
            board.recent[name] = [duration for _, duration in track.steps[-20:]]
        await asyncio.sleep(SAMPLE_S)


class Demo:
    """One run."""

    def __init__(
        self,
        *,
        home: Path,
        config: Settings,
        seconds: int,
        seed: int,
        rate: float | None,
        trace: Path,
        console: Console,
    ) -> None:
        self._home = home.resolve()
        self._config = config
        self._seconds = seconds
        self._seed = seed
        self._console = console
        cores = sorted(os.sched_getaffinity(0))
        self._cores = cores
        self._partitions = layout.gpu_partitions() or layout.plan_partitions(cores)
        self._rate = rate or min(MOST_RATE, RATE_PER_CORE * max(1, len(cores) - 1))
        self._traffic = "Azure Functions 2019 trace, a minute as a second"
        counts = trace_counts(trace, len(FUNCTIONS), seconds)
        self._plan = arrivals(counts, self._rate, seed)
        self._trainings = trainings(self._partitions, lasting_s=300 + MOST_ROUNDS * seconds)
        self._was_up = machine.endpoints(self._home) is not None
        expected = {
            Phase.ALONE: 20.0,
            Phase.UP: 6.0,
            Phase.DEPLOY: 15.0,
            Phase.JOBS: 15.0,
            Phase.CONTROL: CONTROL_S,
            Phase.TRAFFIC: float(seconds),
            Phase.DOWN: 3.0,
        }
        if self._was_up:
            # Its processes would be there in "alone"; and it stays.
            expected = {
                phase: took_s for phase, took_s in expected.items() if phase not in (Phase.ALONE, Phase.UP, Phase.DOWN)
            }
        self._board = Board(progress=Progress(expected))

    def run(self) -> DemoReport:
        """
        All phases. Raises DemoFailed, ClientError, embedded.ServerMissing, embedded.StartFailed; what was started is stopped
        in any case.
        """
        affinity = os.sched_getaffinity(0)
        with Live(self._board, console=self._console, refresh_per_second=2, transient=True):
            try:
                return asyncio.run(self._run())
            finally:
                os.sched_setaffinity(0, affinity)
                if not self._was_up:
                    self._enter(Phase.DOWN)
                    machine.down(self._home)

    def _enter(self, phase: Phase, note: str = "") -> None:
        self._board.progress.enter(phase)
        self._board.note = note
        if not self._console.is_terminal:
            self._console.print(f"{phase}{f': {note}' if note else ''}", highlight=False)

    async def _run(self) -> DemoReport:
        alone: dict[str, Iterations | None] = {}
        if not self._was_up:
            alone = await self._alone()
            self._enter(Phase.UP)
            await asyncio.to_thread(machine.up, self._home, config=self._config)
            if self._partitions[0].kind == "cpu":
                # The load generator belongs to the platform's side, not to a partition.
                os.sched_setaffinity(0, {self._cores[0]})
        reached = machine.endpoints(self._home)
        if reached is None:
            raise DemoFailed("the platform went down")
        async with AsyncClient(reached.gateway_url, (self._home / "key").read_text().strip()) as client:
            return await self._measure(client, alone)

    async def _alone(self) -> dict[str, Iterations | None]:
        self._enter(
            Phase.ALONE, ", ".join(f"{training.name} on {training.partition.gpu}" for training in self._trainings)
        )
        folder = self._home / "demo"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with ExitStack() as stack:
            tracks = {
                training.name: stack.enter_context(running_alone(training, folder)) for training in self._trainings
            }
            await until(
                lambda: all(track.look() >= SETTLE_STEPS for track in tracks.values()),
                f"training (its logs are in {folder})",
            )
            begin = time.time()
            while time.time() < begin + ALONE_S:
                for name, track in tracks.items():
                    track.look()
                    self._board.recent[name] = [duration for _, duration in track.steps[-20:]]
                await asyncio.sleep(SAMPLE_S)
            for track in tracks.values():
                track.look()
            return {name: iterations(track.steps, begin, time.time()) for name, track in tracks.items()}

    async def _measure(self, client: AsyncClient, alone: Mapping[str, Iterations | None]) -> DemoReport:
        deployed = await self._deploy(client)
        rng = np.random.default_rng((self._seed, 2))
        inputs = [sample_input(deployed[name], rng) for name in FUNCTIONS]
        deadlines_s = {
            name: function.deadline_ms / 1e3 for name, function in deployed.items() if function.deadline_ms is not None
        }
        self._enter(Phase.JOBS)
        jobs: dict[str, Job] = {}
        tracks: dict[str, Track] = {}
        watching = asyncio.create_task(watch(client, tracks, self._board))
        try:
            for training in self._trainings:
                job = jobs[training.name] = await client.start_job(
                    training.name, training.argv, [training.partition.gpu], workload=training.workload
                )
                tracks[training.name] = Track(self._home / "run" / "jobs" / f"{job.id}.1.0.track")
            await until(
                lambda: all(len(track.steps) >= SETTLE_STEPS for track in tracks.values()), "the jobs' first iterations"
            )
            self._enter(Phase.CONTROL, "the same load as later, with a deadline that nothing can meet")
            part = typical_part(self._plan, self._seconds, CONTROL_S)
            refused = offer(client, part, inputs, self._board, deadline_ms=CONTROL_DEADLINE_MS)
            control_load, control = await self._window(refused, CONTROL_S)
            self._board.sent.clear()
            self._enter(Phase.TRAFFIC, f"{self._traffic}, {self._rate:.0f} requests/s")
            sent: list[Sent] = []
            begin, rounds = time.time(), 0
            while rounds == 0 or (rounds < MOST_ROUNDS and await self._unproven(client, jobs.values())):
                rounds += 1
                sent += (await self._window(offer(client, self._plan, inputs, self._board), self._seconds))[0]
            traffic = begin, time.time()
            statements = {name: await client.statement(job.id) for name, job in jobs.items()}
        finally:
            watching.cancel()
            for job in jobs.values():
                with suppress(ClientError):
                    await client.stop_job(job.id)
        for track in tracks.values():
            track.look()
        return DemoReport(
            traffic=self._traffic,
            seconds=rounds * self._seconds,
            rate=self._rate,
            seed=self._seed,
            functions=[
                function_figures(name, [request for request in sent if request.function == name], deadlines_s)
                for name in FUNCTIONS
            ],
            total=function_figures("all", sent, deadlines_s),
            control=function_figures("control", control_load, {}),
            gpus=gpu_figures(self._board.samples, control, traffic),
            jobs=[
                job_figures(
                    training.name,
                    training.partition.gpu,
                    alone.get(training.name),
                    iterations(tracks[training.name].steps, *control),
                    iterations(tracks[training.name].steps, *traffic),
                    statements[training.name],
                )
                for training in self._trainings
            ],
        )

    async def _unproven(self, client: AsyncClient, jobs: Iterable[Job]) -> bool:
        """Whether more traffic may tell what is still open."""
        verdicts = [(await client.statement(job.id)).verdict for job in jobs]
        self._board.note = f"budgets: {', '.join(verdict.replace('_', ' ') for verdict in verdicts)}"
        return Verdict.NOT_PROVEN in verdicts

    async def _deploy(self, client: AsyncClient) -> dict[str, Function]:
        # A checkout's: the zoo is no part of the package.
        from zoo import documents

        deployed: dict[str, Function] = {}
        for name in FUNCTIONS:
            self._enter(Phase.DEPLOY, name)
            deployed[name] = await client.deploy(documents.document(name, preset_of(self._partitions[0])))
        deadline = time.monotonic() + PATIENCE_S
        while any(function.revision == 0 for function in deployed.values()):
            if time.monotonic() > deadline:
                raise DemoFailed(
                    "no canary has passed yet:"
                    f" {', '.join(name for name, function in deployed.items() if function.revision == 0)}"
                )
            await asyncio.sleep(0.2)
            deployed = {name: await client.function(name) for name in FUNCTIONS}
        # The derived inputs stand in the function, not in the answer to its deploy.
        return {name: await client.function(name) for name in FUNCTIONS}

    async def _window(self, load: Awaitable[list[Sent]], seconds: float) -> tuple[list[Sent], Window]:
        """
        Carry a load out; its requests and the time it was offered in (not the time until the last of it was answered).
        """
        begin = time.time()
        sent = await load
        await asyncio.sleep(begin + seconds - time.time())
        return sent, (begin, begin + seconds)


def arguments(words: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m lab.demo.run", description="A minute of traffic next to training.")
    parser.add_argument("--seconds", type=int, default=60, help="of traffic; a second stands for a minute of the trace")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--rate", type=float, help=f"requests per second on average (default: {RATE_PER_CORE:.0f} a core)"
    )
    parser.add_argument(
        "--trace",
        type=Path,
        default=TRACE,
        help="invocations per minute in the Azure Functions 2019 format (default: the bundled excerpt)",
    )
    parser.add_argument("--json", action="store_true", help="end the output with one line of JSON")
    parsed = parser.parse_args(words)
    if parsed.seconds < 1 or (parsed.rate is not None and parsed.rate <= 0):
        parser.error("--seconds must be at least 1 and --rate above 0")
    return parsed


def main(words: Sequence[str]) -> int:
    asked = arguments(words)
    from lab.bench import report as bench

    bench.end_on_sigterm()
    console = Console(stderr=True)
    os.environ.setdefault("SMORE_WORKER__PROBE_SHARE", PROBE_SHARE)
    config = Settings()
    try:
        demo = Demo(
            home=config.home,
            config=config,
            seconds=asked.seconds,
            seed=asked.seed,
            rate=asked.rate,
            trace=asked.trace,
            console=console,
        )
        report = demo.run()
    except (DemoFailed, ClientError, OSError, ValueError, embedded.ServerMissing, embedded.StartFailed) as error:
        console.print(f"demo: {error}", style="red", highlight=False, markup=False)
        return 1
    except KeyboardInterrupt:
        return 130
    file = config.home / "demo-report.json"
    whole = bench.result("python -m lab.demo.run", report.figures(), report=asdict(report))
    file.write_text(json.dumps(whole, indent=2))
    # Into a file or a pipe the tables keep their width: there is no screen to fit.
    width = None if (sys.stderr if asked.json else sys.stdout).isatty() else 130
    Console(stderr=asked.json, width=width).print(tables(report), Text(f"All figures: {file}"))
    if asked.json:
        print(json.dumps(whole, allow_nan=False), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
