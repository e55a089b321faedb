"""
Answers beside bulk work: ``python -m lab.bench.classes --json``.

A function whose deadline is five times what a call takes alone is called at random moments (Poisson, a tenth of a core),
beside inputs of another function, or of its own, that have an hour. Three turns of: alone; beside inputs of class
``standard``, which is what all work was before there were classes; beside inputs that do not say their class, which is
``batch`` then. The function may have two instances on a GPU instance. One CPU partition of a core; ``--platform``: two
of half a core, 15 calls a second, 100 ms. What is refused, expires or ends late counts as missed.

Figures, ``.own`` where the inputs are the function's own:

* ``missed.alone``, ``missed.today``, ``missed.classes``: parts of the calls; ``missed_excess``: of the last over the first;
  ``in_time_ratio``: in time beside classes over alone.
* ``p95_ratio``: of calls that were in time, beside classes over alone.
* ``bulk_ratio``: inputs served a second, classes over today; ``bulk_least``: of the turn in which it served the fewest.
* ``mixed``: batches that held both.
"""

import argparse
import sys
import tempfile
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import numpy as np

from lab.bench.overload.rig import Rig, one_core_partitions
from lab.bench.report import emit, end_on_sigterm, progress
from smore.local import layout
from smore_client import admin
from smore_client.transport import ApiError

DEADLINE_MS: Final = 100.0
#: Calls a second on two halves of a core, and the part of a core that calls take on a whole one.
PLATFORM_RATE: Final = 15.0
SHARE: Final = 0.1
INPUTS: Final = 6144
TURNS: Final = 3
TURN_S: Final = 20.0
#: From the inputs to the first call that counts.
BEGIN_S: Final = 2.0
MODES: Final = ("alone", "today", "classes")


@dataclass(slots=True)
class Tally:
    """Of one mode: seconds that each call took, inf = missed, and why; inputs served a second, by turn."""

    took_s: list[float] = field(default_factory=list)
    why: Counter[str] = field(default_factory=Counter)
    served: list[float] = field(default_factory=list)

    @property
    def missed(self) -> float:
        return float(np.isinf(self.took_s).mean())

    @property
    def p95_s(self) -> float:
        met = [s for s in self.took_s if s < np.inf]
        return float(np.percentile(met, 95)) if met else np.nan


def document(name: str, deadline: str) -> dict[str, object]:
    return {
        "apiVersion": "smore/v1",
        "kind": "Function",
        "metadata": {"name": name},
        "spec": {
            "entrypoint": "lab.bench.functions:Conv",
            "slo": {"deadline": deadline},
            "resources": {"gpu_memory": "64MiB"},
            "batching": {"max_size": 8},
            "scaling": {"min_warm": 1, "max_warm": 2, "keep_alive": -1},
            "limits": {"max_pending": 2 * INPUTS},
        },
    }


class Bench:
    """``rate``: calls a second, None = a tenth of a core."""

    def __init__(self, rig: Rig, rate: float | None) -> None:
        self._rig, self._random, self._lock = rig, np.random.default_rng(1), threading.Lock()
        rig.client.deploy(document("answer", "1m"))
        rig.client.deploy(document("bulk", "1h"))
        runs_s = []
        for _ in range(20):
            began = time.perf_counter()
            rig.client.invoke("answer", {"v": 0.5})
            runs_s.append(time.perf_counter() - began)
        call_s = float(np.median(runs_s))
        self._rate = rate if rate is not None else SHARE / call_s
        rig.client.deploy(document("answer", f"{5e3 * call_s if rate is None else DEADLINE_MS:.1f}ms"))
        progress(f"a call takes {call_s * 1e3:.1f} ms; {self._rate:.1f} calls a second")

    def turn(self, mode: str, bulk: str, tally: Tally) -> int:
        """One turn; returns the batches that held both, calls and inputs."""
        client, ids = self._rig.client, set[str]()
        if mode != "alone":
            work_class = "standard" if mode == "today" else None
            inputs = [{"v": 0.5}] * INPUTS
            ids = {each.id for each in client.submit_all(bulk, inputs, deadline_ms=3.6e6, work_class=work_class)}
            time.sleep(BEGIN_S)
        begin = time.time()
        with ThreadPoolExecutor(32) as pool:
            at = time.monotonic()
            until = at + TURN_S
            while at < until:
                time.sleep(max(0.0, at - time.monotonic()))
                pool.submit(self._call, tally)
                at += self._random.exponential(1.0 / self._rate)
        end = time.time()
        if not ids:
            return 0
        time.sleep(1.0)
        settled = [each for each in self._rig.witness.settled if each.function == f"default/{bulk}"]
        served = [each for each in settled if each.id in ids and begin <= each.finished_us / 1e6 <= end]
        tally.served.append(sum(each.state == "succeeded" for each in served) / (end - begin))
        batches: dict[tuple[str, int], set[bool]] = defaultdict(set)
        for each in settled:
            batches[each.gpu, each.claimed_us].add(each.id in ids)
        # What is left would run in the next turn.
        client.carry(admin.purge(bulk))
        time.sleep(BEGIN_S)
        return sum(len(kinds) > 1 for (_, claimed_us), kinds in batches.items() if claimed_us)

    def _call(self, tally: Tally) -> None:
        began = time.perf_counter()
        try:
            why = "late" if self._rig.client.invoke("answer", {"v": 0.5}).late_ms else ""
        except ApiError as error:
            why = error.code
        with self._lock:
            tally.took_s.append(np.inf if why else time.perf_counter() - began)
            tally.why[why] += 1


def figures(tallies: dict[str, Tally], mixed: int, suffix: str) -> dict[str, float]:
    alone, today, classes = (tallies[mode] for mode in MODES)
    made = {f"missed.{mode}": tally.missed for mode, tally in tallies.items()}
    made |= {
        "missed_excess": classes.missed - alone.missed,
        "in_time_ratio": (1.0 - classes.missed) / (1.0 - alone.missed),
        "p95_ratio": classes.p95_s / alone.p95_s,
        "bulk_ratio": float(np.mean(classes.served) / np.mean(today.served)),
        "bulk_least": float(min(classes.served) / np.mean(today.served)),
        "mixed": mixed,
    }
    return {f"{name}{suffix}": value for name, value in made.items()}


def main(words: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m lab.bench.classes", description="Answers beside bulk work.")
    parser.add_argument("--platform", action="store_true", help="two partitions of half a core, 15 calls a second")
    parser.add_argument("--turns", type=int, default=TURNS, help=f"default {TURNS}")
    parser.add_argument("--json", action="store_true", help="end stdout with one line of JSON")
    asked = parser.parse_args(words)
    end_on_sigterm()
    core = one_core_partitions()[-1].device
    halves = [layout.Partition(gpu=f"cpu{half}", kind="cpu", device=core, share=0.5) for half in range(2)]
    partitions = halves if asked.platform else [layout.Partition(gpu="cpu0", kind="cpu", device=core)]
    found: dict[str, float] = {}
    with (
        tempfile.TemporaryDirectory(prefix="smore-classes-") as folder,
        Rig(Path(folder, "home"), partitions, functions=()) as rig,
    ):
        rig.prepare(table=False)
        bench = Bench(rig, PLATFORM_RATE if asked.platform else None)
        for bulk, suffix in (("bulk", ""), ("answer", ".own")):
            tallies, mixed = {mode: Tally() for mode in MODES}, 0
            for turn in range(asked.turns):
                for mode in MODES:
                    both = bench.turn(mode, bulk, tallies[mode])
                    mixed += both if mode == "classes" else 0
                    served = tallies[mode].served[-1:]
                    progress(f"turn {turn}, {mode}{suffix}: {dict(tallies[mode].why)} so far, {served} inputs/s")
            found |= figures(tallies, mixed, suffix)
    for name, value in found.items():
        progress(f"{name:22} {value:8.3f}")
    if asked.json:
        emit(f"python -m lab.bench.classes{' --platform' if asked.platform else ''}", found)


if __name__ == "__main__":
    main(sys.argv[1:])
