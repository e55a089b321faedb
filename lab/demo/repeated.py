"""
Whether the demo says what is true of budgets: ``python -m lab.demo.repeated --json``.

``make demo`` is run ``--times`` times, each in a home of its own, every second time beside a process that burns half a core
from before its first phase to after its last. A training's own log of iterations says that its budget was broken where, with
95 % confidence, iterations beside functions were slower than under platform control by more than the budget.

Figures, over the trainings of all runs:

* ``statements_wrong``: trainings that the demo said to be within their budget though their own log says otherwise.
* ``kept_yet_slower``: the same by the means of the log alone, without its intervals.
* ``windows_contradicted``: trainings of which closed windows say so, the log says otherwise, and the demo says both.
* ``kept``, ``not_kept``, ``not_proven``: by what the demo said; ``kept_beside_load`` and so on: of the runs beside that process.
* ``loss``: the largest loss of the statements; ``degradation``: the largest slowdown by the logs. ``runs``: that ended well.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from typing import Any, Final

from lab.bench import report
from lab.bench.ports import free_port
from lab.demo.figures import Iterations, slower_at_least

#: Burns half a core.
LOAD: Final = """
import time
while True:
    until = time.monotonic() + 0.05
    while time.monotonic() < until:
        pass
    time.sleep(0.05)
"""
#: As they are looked for in the demo's words.
VERDICTS: Final = ("not proven", "not kept", "kept")


def demo(seconds: int) -> Mapping[str, Any] | None:
    """The report of one run; None where it failed."""
    with (
        tempfile.TemporaryDirectory(prefix="smore-demo-") as home,
        subprocess.Popen(
            [sys.executable, "-m", "lab.demo.run", "--json", f"--seconds={seconds}"],
            cwd=report.ROOT,
            env=os.environ | {"SMORE_HOME": home, "SMORE_API__PORT": str(free_port())},
            stdout=subprocess.PIPE,
        ) as run,
    ):
        try:
            told, _ = run.communicate()
        finally:
            run.terminate()  # it ends its platform
    found: Mapping[str, Any] | None = json.loads(told.splitlines()[-1])["report"] if run.returncode == 0 else None
    return found


def judged(job: Mapping[str, Any]) -> Counter[str]:
    """What is to be counted of one training of a report."""
    said = next((verdict for verdict in VERDICTS if verdict in job["verdict"]), "unmeasured")
    control, functions = (job[phase] and Iterations(**job[phase]) for phase in ("control", "functions"))
    least = slower_at_least(functions, control)
    broken = least is not None and least > job["budget"]
    slower = job["degradation"] is not None and job["degradation"] > job["budget"]
    return Counter(
        {
            said.replace(" ", "_"): 1,
            "statements_wrong": int(said == "kept" and broken),
            "kept_yet_slower": int(said == "kept" and slower),
            "windows_contradicted": int("closed windows say kept" in job["verdict"]),
        }
    )


def main(words: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m lab.demo.repeated", description="Whether the demo tells the truth."
    )
    parser.add_argument("--times", type=int, default=10)
    parser.add_argument("--seconds", type=int, default=60, help="of traffic in a round, as of the demo")
    parser.add_argument("--json", action="store_true", help="end stdout with one line of JSON")
    asked = parser.parse_args(words)
    report.end_on_sigterm()
    counts: Counter[str] = Counter()
    jobs: list[Mapping[str, Any]] = []
    for number in range(asked.times):
        beside = number % 2 == 1
        with subprocess.Popen([sys.executable, "-c", LOAD]) if beside else nullcontext() as load:
            try:
                told = demo(asked.seconds)
            finally:
                if load is not None:
                    load.kill()
        for job in told["jobs"] if told is not None else ():
            found = judged(job)
            counts.update(found)
            counts.update({f"{name}_beside_load": count for name, count in found.items()} if beside else {})
            report.progress(f"{number + 1}{' beside load' if beside else ''}: {job['job']}: {job['verdict']}")
            jobs.append({"run": number, "beside": beside, "load": os.getloadavg()[1], **job})
        counts["runs"] += told is not None
    figures: dict[str, float] = dict(counts)
    for name in ("loss", "degradation"):
        if seen := [job[name] for job in jobs if job[name] is not None]:
            figures[name] = max(seen)
    if asked.json:
        report.emit("lab.demo.repeated", figures, seconds=asked.seconds, jobs=jobs)
    else:
        for name, value in figures.items():
            print(f"{name:32}{report.rounded(value):>12g}")


if __name__ == "__main__":
    main(sys.argv[1:])
