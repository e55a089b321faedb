"""
One hostile training after the other, and what everybody else notices.

``python -m lab.bench.strangers --json`` starts a platform of its own with three CPU partitions. On the first one is a training
that works without pause: ten hostile ones in turn (:mod:`lab.bench.stranger`; two of them are requests with a ``jobs`` key of
a project of its own, beside an honest training), and before each an honest one for as long. On the second is an honest
tracked training; on the third one short training is started after the other. Someone invokes a function of another project
20 times a second. ``--quick`` takes four of the ten.

Whoever is on the first partition asks the same of the processor and starts and ends as often, so what differs between them
is the platform's doing and not that of two shared cores. Of the two that send requests the bodies are made beforehand, and
a flood is bounded: what its requests cost the gateway is the platform's doing.

Figures, of the time beside hostile trainings:

* ``others_stopped_s``: how much longer than usual others were stopped, the worst of two. (1) A short training, from its
  submission to the moment at which it is seen as ended; one that is under way counts too. (2) The honest one: the time
  between two looks, five a second, that saw new iterations. Usual is twice the longest that was seen beside honest
  trainings; below that it is 0.
* ``caller_success``: invocations that succeeded, of all sent. ``p99_ratio``: their 99th percentile over that of the calls
  beside honest trainings.
* ``gpu_lost``: how often the leader called a GPU instance lost. ``status_500``: answers 500 to anybody.
"""

import argparse
import asyncio
import contextlib
import json
import os
import sys
import tempfile
import time
from collections.abc import Awaitable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeVar, cast

import httpx

from lab.bench.kills import Answers, end_left_over
from lab.bench.ports import free_port
from lab.bench.report import emit, end_on_sigterm, progress, rounded
from lab.bench.stranger import KINDS
from smore.local import machine
from smore.process.settings import Settings

RATE: Final = 20.0
#: Seconds of each training on the first partition, and for which one may not start or end.
EACH_S: Final = 12.0
PATIENCE_S: Final = 20.0
LOOK_S: Final = 0.2
#: Usual is so many times the longest time beside honest trainings.
USUAL: Final = 2.0
#: Of the flood: requests a second, and steps of each.
FLOOD_PER_S: Final = 20.0
FLOOD_STEPS: Final = 8192
ATTACHED: Final = ("attached", "flood")
STRANGERS: Final = (*(kind for kind in KINDS if kind != "honest"), *ATTACHED)
QUICK: Final = ("count", "infinite", "pipe for steps", "flood")
#: A hostile training may lengthen the 99th percentile of calls by so much.
P99_RATIO: Final = 1.5
_T = TypeVar("_T")
_JSON: Final = {"Content-Type": "application/json"}

PLACE, HONEST, SHORT = "cpu0", "cpu1", "cpu2"


@dataclass(slots=True)
class Seen:
    """Spans of time in which something came about, (from, until) in monotonic seconds; the last one may be open."""

    spans: list[tuple[float, float]] = field(default_factory=list)
    since: float | None = None

    def begin(self) -> None:
        self.since = time.monotonic()

    def end(self) -> None:
        assert self.since is not None
        self.spans.append((self.since, time.monotonic()))
        self.since = None

    def longest(self, begin: float, end: float) -> float:
        """Seconds of the longest span that has a part between the two moments; the part beyond ``end`` does not count."""
        spans = [*self.spans, *([(self.since, end)] if self.since is not None else [])]
        return max((min(until, end) - since for since, until in spans if since < end and until > begin), default=0.0)


@dataclass(frozen=True, slots=True)
class Call:
    sent: float
    latency_s: float
    succeeded: bool


@dataclass(frozen=True, slots=True)
class Turn:
    """A training on the first partition, and when it was there, in monotonic seconds."""

    kind: str
    begin: float
    end: float
    gpu_lost: int


def percentile_99(seconds: Iterable[float]) -> float:
    """The smallest that at least 99 % do not exceed; 0.0 of none."""
    ordered = sorted(seconds)
    return ordered[-(len(ordered) // 100) - 1] if ordered else 0.0


def lost(logs: Path) -> int:
    """How often a leader has called a GPU instance lost."""
    return sum(path.read_text(errors="replace").count("GPU instance lost") for path in logs.glob("scheduler-*.log*"))


class Bench:
    def __init__(self, url: str, key: str, logs: Path) -> None:
        self.answers = Answers()
        self._url, self._logs = url, logs
        self._operator = self._client(key)
        self.trainings, self.iterations = Seen(), Seen()
        self.calls: list[Call] = []

    def _client(self, key: str) -> httpx.AsyncClient:
        headers = {"Authorization": f"Bearer {key}"}
        hooks: dict[str, Any] = {"response": [self.answers]}
        return httpx.AsyncClient(base_url=self._url, headers=headers, timeout=10.0, event_hooks=hooks)

    @staticmethod
    async def _made(client: httpx.AsyncClient, method: str, path: str, body: object) -> dict[str, Any]:
        answer = await client.request(method, path, json=body, timeout=60.0)
        if answer.status_code not in (200, 201, 202):
            raise RuntimeError(f"{method} {path}: {answer.status_code} {answer.text}")
        return cast("dict[str, Any]", answer.json())

    async def _member(self, project: str, scopes: list[str]) -> httpx.AsyncClient:
        await self._made(self._operator, "POST", "/v1/projects", {"name": project})
        body = {"name": project, "scopes": scopes, "project": project}
        return self._client((await self._made(self._operator, "POST", "/v1/keys", body))["key"])

    async def _job(self, id_: str) -> dict[str, Any]:
        """A job as the platform shows it; {} where it does not answer."""
        with contextlib.suppress(httpx.HTTPError):
            answer = await self._operator.get(f"/v1/jobs/{id_}", timeout=2.0)
            if answer.status_code == 200:
                return cast("dict[str, Any]", answer.json())
        return {}

    async def _submit(self, name: str, argv: list[str], gpu: str) -> str:
        """The id of a new training; it is submitted until the platform takes it."""
        body = {"name": name, "argv": argv, "gpus": [gpu], "budget": 1.0, "grace": 1}
        while True:
            with contextlib.suppress(httpx.HTTPError):
                answer = await self._operator.post("/v1/jobs", json=body)
                if answer.status_code == 201:
                    return str(answer.json()["id"])
            await asyncio.sleep(LOOK_S)

    async def _until(self, id_: str, states: set[str], patience_s: float = PATIENCE_S) -> bool:
        until = time.monotonic() + patience_s
        while (await self._job(id_)).get("state") not in states:
            if time.monotonic() > until:
                return False
            await asyncio.sleep(LOOK_S)
        return True

    # ---- everybody else ----------------------------------------------------------------------------------------------

    async def _short_trainings(self) -> None:
        argv = ["lab.bench.pace", "--every", "0.02", "--iterations", "25"]
        while True:
            self.trainings.begin()
            id_ = await self._submit("short", argv, SHORT)
            while not await self._until(id_, {"ended", "lost"}):
                pass
            self.trainings.end()

    async def _honest_training(self) -> None:
        id_ = await self._submit("honest", ["lab.bench.pace", "--every", "0.05", "--iterations", "1000000000"], HONEST)
        done = 0
        while True:
            if (now := int((await self._job(id_)).get("iterations", 0))) > done:
                if done:
                    self.iterations.end()
                done = now
                self.iterations.begin()
            await asyncio.sleep(LOOK_S)

    async def _invoke(self, caller: httpx.AsyncClient) -> None:
        sent = time.monotonic()
        body = {"input": {"n": -1, "file": os.devnull, "s": 0.02}, "deadline_ms": 5000}
        succeeded = False
        with contextlib.suppress(httpx.HTTPError):
            succeeded = (await caller.post("/v1/functions/nap/invocations", json=body)).status_code == 200
        self.calls.append(Call(sent, time.monotonic() - sent, succeeded))

    async def _caller(self, caller: httpx.AsyncClient) -> None:
        due = time.monotonic()
        async with asyncio.TaskGroup() as group:
            while True:
                due += 1 / RATE
                await asyncio.sleep(max(0.0, due - time.monotonic()))
                group.create_task(self._invoke(caller))

    # ---- the strangers -----------------------------------------------------------------------------------------------

    async def _beside(self, kind: str, during: Awaitable[_T]) -> _T:
        """Start a training of this kind where there is none, wait for ``during``, stop the training."""
        id_ = await self._submit(f"stranger-{kind.replace(' ', '-')}", ["lab.bench.stranger", kind], PLACE)
        if not await self._until(id_, {"running"}):
            progress(f"    {kind}: it did not start within {PATIENCE_S:g} s")
        result = await during
        with contextlib.suppress(httpx.HTTPError):
            await self._operator.post(f"/v1/jobs/{id_}/stop")
        if not await self._until(id_, {"ended", "lost"}):
            progress(f"    {kind}: it did not end within {PATIENCE_S:g} s")
        return result

    async def _attached(self, stranger: httpx.AsyncClient, kind: str) -> None:
        """A made-up training on each GPU instance; ``flood``: it tells steps as fast as it may."""
        made = {"pid": 2**31 - 1, "start": 1, "boot": "made up", "tracked": True, "budget": 0.01}
        ids = {}
        for gpu in (PLACE, HONEST, SHORT):
            body = {"name": kind, "gpu": gpu, "group": gpu, **made}
            with contextlib.suppress(httpx.HTTPError):
                answer = await stranger.post("/v1/jobs/attach", json=body)
                if answer.status_code == 201:
                    ids[gpu] = answer.json()["id"]
        steps, first = ",".join([f"[{time.time():.3f},0.0001]"] * (FLOOD_STEPS if kind == "flood" else 0)), 0
        until = time.monotonic() + EACH_S
        while time.monotonic() < until:
            for gpu, id_ in ids.items():
                with contextlib.suppress(httpx.HTTPError):
                    text = f'{{"gpu":"{gpu}","first":{first},"steps":[{steps}]}}'
                    await stranger.post(f"/v1/jobs/{id_}/steps", content=text, headers=_JSON)
                await asyncio.sleep(1 / FLOOD_PER_S)
            await asyncio.sleep(1 / FLOOD_PER_S)
            first += FLOOD_STEPS
        for id_ in ids.values():
            with contextlib.suppress(httpx.HTTPError):
                await stranger.post(f"/v1/jobs/{id_}/stop")

    async def _turn(self, kind: str, stranger: httpx.AsyncClient) -> Turn:
        began, former = time.monotonic(), lost(self._logs)
        if kind in ATTACHED:
            await self._beside("honest", self._attached(stranger, kind))
        else:
            await self._beside(kind, asyncio.sleep(EACH_S))
        return Turn(kind, began, time.monotonic(), lost(self._logs) - former)

    async def run(self, kinds: Sequence[str]) -> tuple[dict[str, float], list[dict[str, object]]]:
        """The figures, and those of each stranger."""
        caller = await self._member("caller", ["deploy", "invoke"])
        stranger = await self._member("stranger", ["jobs"])
        await self._made(caller, "PUT", "/v1/functions/nap", NAP)
        works = (self._short_trainings(), self._honest_training(), self._caller(caller))
        others = [asyncio.create_task(work) for work in works]
        while not self.trainings.spans or not any(call.succeeded for call in self.calls):
            await asyncio.sleep(LOOK_S)
        honest, hostile = [], []
        self.answers.failed.clear()
        for kind in kinds:
            honest.append(await self._turn("honest", stranger))
            hostile.append(await self._turn(kind, stranger))
            progress(f"{kind} is through   load average {os.getloadavg()[0]:.1f}")
        # Calls that are under way are waited for.
        await asyncio.sleep(5.0)
        each: list[dict[str, object]] = [{"stranger": turn.kind, **self._figures([turn], honest)} for turn in hostile]
        for line in each:
            progress(f"{line}")
        figures = self._figures(hostile, honest)
        figures["gpu_lost"] = sum(turn.gpu_lost for turn in (*honest, *hostile))
        figures["status_500"] = sum(self.answers.failed.values())
        for what, times in self.answers.failed.items():
            progress(f"answered 500, {times} times: {what}")
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        for client in (caller, stranger, self._operator):
            await client.aclose()
        return figures, each

    def _calls(self, turns: Sequence[Turn]) -> list[Call]:
        return [call for call in self.calls if any(turn.begin <= call.sent < turn.end for turn in turns)]

    def _figures(self, hostile: Sequence[Turn], honest: Sequence[Turn]) -> dict[str, float]:
        def beyond_usual(seen: Seen) -> float:
            usual = USUAL * max(seen.longest(turn.begin, turn.end) for turn in honest)
            return max(seen.longest(turn.begin, turn.end) for turn in hostile) - usual

        calls, usually = self._calls(hostile), self._calls(honest)
        p99_s, usual_p99_s = (percentile_99(call.latency_s for call in some) for some in (calls, usually))
        figures = {
            "others_stopped_s": max(0.0, beyond_usual(self.trainings), beyond_usual(self.iterations)),
            "caller_success": sum(call.succeeded for call in calls) / max(1, len(calls)),
            "p99_ratio": p99_s / usual_p99_s,
            "p99_ms": p99_s * 1e3,
            "usual_p99_ms": usual_p99_s * 1e3,
            "gpu_lost": sum(turn.gpu_lost for turn in hostile),
        }
        return {name: rounded(value) for name, value in figures.items()}


NAP: Final = {
    "apiVersion": "smore/v1",
    "kind": "Function",
    "metadata": {"name": "nap"},
    "spec": {
        "entrypoint": "lab.bench.tally:Tally",
        "slo": {"deadline": "5s"},
        "resources": {"gpu_memory": "64MiB"},
        # A made-up training that is believed, with a budget of 0.01, cannot bear it; honest ones here can.
        "profile": {"run_ms": {1: 22, 32: 22}, "load_ms": 100, "degradation": 0.2},
    },
}


def run(kinds: Sequence[str]) -> tuple[dict[str, float], list[dict[str, object]]]:
    """Start a platform in a temporary home, let the strangers in, end it."""
    with tempfile.TemporaryDirectory(prefix="smore-strangers-") as folder:
        home = Path(folder, "home")
        os.environ |= {
            "SMORE_API__PORT": str(free_port()),
            "SMORE_JOB_ENTRYPOINTS": "lab.bench.pace,lab.bench.stranger",
        }
        end = machine.up(home, config=Settings(), partitions=3)
        try:
            bench = Bench(end.gateway_url, (home / "key").read_text().strip(), home / "logs")
            return asyncio.run(bench.run(kinds))
        finally:
            machine.down(home)
            end_left_over(home)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="end with one line of JSON")
    parser.add_argument("--quick", action="store_true", help="four hostile trainings")
    options = parser.parse_args()
    end_on_sigterm()
    figures, each = run(QUICK if options.quick else STRANGERS)
    if options.json:
        emit("lab.bench.strangers", figures, strangers=each)
    else:
        print(json.dumps(figures, indent=1))
    wrong = any(figures[name] for name in ("others_stopped_s", "gpu_lost", "status_500"))
    sys.exit(1 if wrong or figures["caller_success"] < 1 or figures["p99_ratio"] > P99_RATIO else 0)


if __name__ == "__main__":
    main()
