"""
Cold starts with the prewarmer and without it, on a platform of its own: ``python -m lab.bench.prewarm_live --json``.

Functions come in pairs that get the same requests at the same moments: one function with ``prewarm: auto``, one with
``prewarm: off`` and the same fixed keep-alive. Every other request goes to the second function first. All of them are
on one CPU partition, and each takes 1.5 s to load (lab/bench/functions.py).

* *Periodic*: one request in every ``--period``-th minute, at a moment drawn uniformly within it.
* *Bursty*: three to six requests in one minute, then ``--period`` - 1 or ``--period`` minutes without (a fair coin).

Time is not compressed. Six hours of arrivals before the run are drawn by the same rules and imported as a trace (as
``smore traces import`` does). From the minute of the import on the requests are sent, and the platform counts, fits,
forecasts and decides on its own. The first four of these minutes are for learning and are not scored. For minutes that
the platform counted itself its counts replace the import: in the minute or two of the deployment these are the canaries
alone.

Figures for each kind, ``periodic`` and ``bursty``:

* ``cold_share_on.<kind>``, ``cold_share_off.<kind>``: cold starts over all requests. ``cold_avoided.<kind>``: their
  difference, with its 95 % interval (``cold_avoided_low``, ``cold_avoided_high``: paired bootstrap over minutes with
  requests).
* ``idle_gb_s_on.<kind>``, ``idle_gb_s_off.<kind>``: GB-seconds that instances were loaded without work, loads included.
* ``requests.<kind>``; ``forecast_s``: one forecast of all functions, start of the process included.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import numpy as np

from lab.bench import report
from lab.bench.overload.rig import Rig
from smore.local import layout
from smore_client import admin

KINDS: Final = ("periodic", "bursty")
#: Minutes that are imported, and minutes after those in which the platform learns.
PAST_MIN: Final = 360
MARGIN_MIN: Final = 4
KEEP_ALIVE_S: Final = 20.0
#: Seconds for which an instance of these functions may stand idle to save a cold start.
PRICE_S: Final = 90.0
MEMORY_MIB: Final = 64
RESAMPLES: Final = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """Two functions with the same requests. ``counts`` [T]: requests by minute; the first PAST_MIN are imported."""

    kind: str
    name: str
    counts: Sequence[int]

    def function(self, mode: str) -> str:
        return f"{self.name}-{mode}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """One request of a pair: its minute, and whether it was cold with the prewarmer on and off."""

    pair: Pair
    minute: int
    on: bool
    off: bool


def counts(kind: str, minutes: int, period: int, random: np.random.Generator) -> list[int]:
    """Requests in each of so many minutes, from a phase drawn at random."""
    numbers = [0] * minutes
    at = int(random.integers(period))
    while at < minutes:
        if kind == "periodic":
            numbers[at] = 1
            at += period
        else:
            numbers[at] = int(random.integers(3, 7))
            at += period + int(random.integers(2))
    return numbers


def document(name: str, mode: str) -> dict[str, object]:
    return {
        "apiVersion": "smore/v1",
        "kind": "Function",
        "metadata": {"name": name},
        "spec": {
            "entrypoint": "lab.bench.functions:Slow",
            "slo": {"deadline": "20s"},
            "resources": {"gpu_memory": f"{MEMORY_MIB}MiB"},
            "scaling": {"keep_alive": KEEP_ALIVE_S, "prewarm": mode},
        },
    }


def trace(pairs: Sequence[Pair]) -> bytes:
    """The imported trace as CSV: a row for each function with ``prewarm: auto``, a column for each minute."""
    head = ",".join(("HashFunction", *(str(1 + minute) for minute in range(PAST_MIN))))
    rows = (",".join((pair.function("on"), *map(str, pair.counts[:PAST_MIN]))) for pair in pairs)
    return "\n".join((head, *rows, "")).encode()


def command(rig: Rig, word: str) -> tuple[dict[str, object], float]:
    """Run a command of scheduler.tasks.forecasting against this platform: its JSON line, and its seconds."""
    environment = os.environ | {
        "SMORE_REDIS__URL": rig.end.redis_url,
        "SMORE_POSTGRES__URL": rig.end.postgres_url,
        "PYTHONPATH": str(report.ROOT),
    }
    began = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-m", "scheduler.tasks.forecasting", word],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    printed: dict[str, object] = json.loads(done.stdout.strip().rpartition("\n")[2])
    return printed, time.perf_counter() - began


def run(
    rig: Rig, pairs: Sequence[Pair], begin: float, first: int, minutes: int, random: np.random.Generator
) -> list[tuple[Pair, int, str, str]]:
    """Send the requests when they are due: (pair, minute, invocation with ``auto``, invocation with ``off``) of each."""
    due = sorted(
        (60 * minute + 60 * float(random.random()), minute, index)
        for index, pair in enumerate(pairs)
        for minute in range(first, first + minutes)
        for _ in range(pair.counts[minute])
    )
    sent = []

    def send(pair: Pair, minute: int, turn: int) -> tuple[Pair, int, str, str]:
        ids = {}
        for mode in ("on", "off") if turn % 2 else ("off", "on"):
            ids[mode] = rig.client.invoke(pair.function(mode), {"x": 1}).id
        return pair, minute, ids["on"], ids["off"]

    with ThreadPoolExecutor(16) as threads:
        for turn, (offset, minute, index) in enumerate(due):
            time.sleep(max(0.0, begin + offset - time.time()))
            sent.append(threads.submit(send, pairs[index], minute, turn))
    return [request.result() for request in sent]


def difference(sent: Sequence[Sent], random: np.random.Generator) -> tuple[float, float, float]:
    """Avoided cold starts over all requests: (mean, low, high), a 95 % interval over minutes with requests."""
    minutes: dict[tuple[str, int], list[int]] = {}
    for request in sent:
        minutes.setdefault((request.pair.name, request.minute), []).append(int(request.off) - int(request.on))
    totals = np.array([(sum(values), len(values)) for values in minutes.values()], float)
    drawn = totals[random.integers(len(totals), size=(RESAMPLES, len(totals)))].sum(axis=1)
    low, high = np.percentile(drawn[:, 0] / drawn[:, 1], (2.5, 97.5))
    return float(totals[:, 0].sum() / totals[:, 1].sum()), float(low), float(high)


def measure(minutes: int, period: int, many: int, seed: int) -> tuple[dict[str, float], dict[str, object]]:
    random = np.random.default_rng(seed)
    made = PAST_MIN + MARGIN_MIN + minutes
    pairs = [
        Pair(kind=kind, name=f"{kind}{n}", counts=counts(kind, made, period, random))
        for kind in KINDS
        for n in range(many)
    ]
    figures: dict[str, float] = {}
    environment = {
        "SMORE_PREWARM__PRICE_GB_S": f"{PRICE_S * MEMORY_MIB / 1024:g}",
        "SMORE_PREWARM__SHARE": "0.9",
        "SMORE_WORKER__SHARE": "1",
    }
    with (
        tempfile.TemporaryDirectory(prefix="smore-prewarm-") as folder,
        Rig(
            Path(folder), [layout.Partition(gpu="cpu0", kind="cpu", device="")], functions=(), environment=environment
        ) as rig,
        ThreadPoolExecutor(1) as sender,
    ):
        for pair in pairs:
            for mode, word in (("on", "auto"), ("off", "off")):
                rig.client.deploy(document(pair.function(mode), word))
        time.sleep(60 - time.time() % 60)
        since = time.time() // 60 * 60 + 60 * MARGIN_MIN
        begin = since - 60 * (MARGIN_MIN + PAST_MIN)
        imported = rig.client.carry(admin.import_trace(trace(pairs), name="past.csv"))
        report.progress(f"imported until {imported.until:%H:%M:%S}")
        sending = sender.submit(run, rig, pairs, begin, PAST_MIN, MARGIN_MIN + minutes, random)
        while not _foreseen(rig, pairs):
            if time.time() > since:
                raise RuntimeError(f"the platform took longer than {MARGIN_MIN} minutes to learn")
            time.sleep(1)
        published, figures["forecast_s"] = command(rig, "forecast")
        report.progress(f"published: {published}")
        report.progress(f"{minutes} minutes from {datetime.fromtimestamp(since, UTC):%H:%M:%S}")
        ids = [row for row in sending.result() if row[1] >= PAST_MIN + MARGIN_MIN]
        time.sleep(max(0.0, since + 60 * minutes - time.time()))
        rig.patiently("the history", lambda: rig.client.executions(ids[-1][2]) and rig.client.executions(ids[-1][3]))
        sent = [Sent(pair=pair, minute=minute, on=_cold(rig, on), off=_cold(rig, off)) for pair, minute, on, off in ids]
        # Counts of living instances are at most a minute old; what happened before the run is left out.
        account = {standing.function: standing for standing in rig.client.prewarm(time.time() - since).functions}
    for kind in KINDS:
        of_kind = [request for request in sent if request.pair.kind == kind]
        figures[f"requests.{kind}"] = len(of_kind)
        for mode in ("on", "off"):
            figures[f"cold_share_{mode}.{kind}"] = sum(getattr(request, mode) for request in of_kind) / len(of_kind)
            figures[f"idle_gb_s_{mode}.{kind}"] = sum(
                account[p.function(mode)].counts.idle_gb_s for p in pairs if p.kind == kind
            )
        mean, low, high = difference(of_kind, random)
        figures |= {f"cold_avoided.{kind}": mean, f"cold_avoided_low.{kind}": low, f"cold_avoided_high.{kind}": high}
    functions = {
        name: {
            "source": standing.source,
            "hits": standing.counts.hits,
            "late": standing.counts.late,
            "wasted": standing.counts.wasted,
            "saved": standing.counts.saved,
            "cold": standing.counts.cold,
            "of": standing.counts.invocations,
            "unforeseen": standing.counts.unforeseen,
        }
        for name, standing in account.items()
    }
    return figures, {
        "minutes": minutes,
        "period": period,
        "pairs": many,
        "seed": seed,
        "keep_alive_s": KEEP_ALIVE_S,
        "functions": functions,
    }


def _foreseen(rig: Rig, pairs: Sequence[Pair]) -> bool:
    """Every function that is to be foreseen is."""
    functions = {function.function: function for function in rig.client.prewarm().functions}
    return all(pair.function("on") in functions and not functions[pair.function("on")].silence for pair in pairs)


def _cold(rig: Rig, invocation: str) -> bool:
    return any(execution.cold for execution in rig.client.executions(invocation))


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m lab.bench.prewarm_live", description="Cold starts with the prewarmer on and off."
    )
    parser.add_argument("--minutes", type=int, default=30)
    parser.add_argument("--period", type=int, default=3, help="minutes between requests, or bursts")
    parser.add_argument("--pairs", type=int, default=3, help="of functions, for each kind")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true", help="end stdout with one line of JSON")
    asked = parser.parse_args(arguments)
    report.end_on_sigterm()
    if asked.minutes < 2 * asked.period or asked.period < 2 or asked.pairs < 1:
        parser.error("--minutes must be at least twice the --period, that at least 2, and --pairs above 0")
    figures, extra = measure(asked.minutes, asked.period, asked.pairs, asked.seed)
    if asked.json:
        report.emit("lab.bench.prewarm_live", figures, **extra)
    else:
        for name, value in sorted(figures.items()):
            print(f"{name:32}{report.rounded(value):>12g}")


if __name__ == "__main__":
    main()
