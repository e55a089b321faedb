"""
Policies compared on the devices at hand: ``smore compare --live``, or ``python -m lab.bench.live --json``.

A platform of its own serves the preset's functions (models of the zoo) beside its trainings. It has as many GPU
instances as the preset: CPU partitions of one core each or, where the preset's models have the paper's sizes, the GPUs
that NVML finds.

1. *Calibration*: the run time of each function alone and the time that an answer takes beyond it (closed loop of one
   connection, no training). Then the trainings start, and the rate rises, without a budget, until fewer than seven in
   ten deadlines are met; the rate with the most deadlines met per second is the capacity.
2. *Runs*: the preset's arrivals, at ``--load`` times the capacity, are sent over REST once for each policy and repeat.
   For each run the platform starts anew with ``SMORE_POLICY__NAME`` and ``SMORE_POLICY__KNOBS``; everything is warm,
   each training has had a closed window, and nothing is learned. Each repeat begins with another policy. A tenth of the
   time is closed for windows (as in ``lab.bench.overload``), so that one run has an estimate of the losses of its own.
3. *Simulation*: the same arrivals, deadlines and policies in the simulator (``lab/research/compare/live.py``), and how far
   both agree.

Figures: ``<metric>.<policy>`` measured, ``simulated.<metric>.<policy>``, ``spearman.<metric>``, ``kendall.<metric>``,
``mae.<metric>`` and others as ``lab/research/compare/live_report.py`` names them. On a CPU partition the platform's
processes and the client share the cores.
"""

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final, cast

from lab.bench import harvest, report
from lab.bench.overload.client import DRAIN_S
from lab.bench.overload.rig import Rig, Trained, one_core_partitions
from lab.bench.overload.rig import Served as ServedModel
from lab.bench.overload.run import enough_windows, looks
from lab.research.compare import live, live_report
from lab.research.compare.live import CALIBRATED_WITH, Calibration, LiveComparison, Plan, Run
from lab.research.compare.section import BadReport
from lab.research.replay.past_runs import PastRuns, Served
from lab.simulation import world
from lab.simulation.result import Inconsistent
from lab.simulation.spelt import parse
from lab.simulation.traces import Trace
from lab.simulation.world import World
from smore.domain.errors import SmoreError
from smore.domain.invocation import State
from smore.local import layout
from smore.postgres.connection import make_engine
from smore.process.environment import settings
from smore.traces import public

PRESET: Final = "live"
LEAST_REPEATS: Final = 3
#: Above 1 the devices cannot serve everything, so policies differ.
LOAD: Final = 1.5
#: Seconds before each run in which utilisation without functions is measured, in the second half: the first iterations
#: of a training choose kernels.
ALONE_S: Final = 10.0
SERVERS: Final = ("SMORE_REDIS__URL", "SMORE_POSTGRES__URL")
#: The most invocations of one run that are read from the history.
MOST: Final = 200_000
#: How many times the load of a run goes on, for half its length, where closed windows are missing; only these windows
#: count.
MOST_MORE: Final = 1


class Here:
    """
    The devices at hand as a :class:`lab.research.compare.live.Platform`: one home, a platform started anew for each run.

    Raises BadWorld for a preset whose GPU instances are not at hand.
    """

    def __init__(self, home: Path, wanted: World, seed: int) -> None:
        self._home, self._seed = home, seed
        self._size = wanted.interference_model.preset
        partitions = one_core_partitions() if self._size == "cpu" else list(layout.gpu_partitions())
        if len(partitions) < len(wanted.gpus):
            raise world.bad("gpus", f"{len(wanted.gpus)} are wanted, {len(partitions)} of the kind are at hand")
        self._partitions = partitions[: len(wanted.gpus)]
        self._trainings = [
            Trained(model=gpu.training.model, batch=gpu.training.batch, preset=self._size)
            for gpu in wanted.gpus
            if gpu.training is not None
        ]
        budgets = {gpu.budget for gpu in wanted.gpus if gpu.training is not None}
        if len(budgets) > 1 or any(gpu.training is None for gpu in wanted.gpus[: len(self._trainings)]):
            raise world.bad("gpus", "trainings with one budget for all are wanted, on the first GPU instances")
        self._world = wanted
        middle = sum(wanted.deadline) / 2
        self._functions = [
            ServedModel(model=function.model, deadline_s=middle * wanted.p99_s(function, function.batch))
            for function in wanted.functions
        ]

    def calibrate(self) -> Calibration:
        with self._rig(CALIBRATED_WITH) as rig:
            rig.prepare()
            solo = rig.solo()
            rig.train(self._trainings, budget=live.budget(self._world, CALIBRATED_WITH), lasting_s=600)
            return rig.calibration(solo, looks(rig, solo, self._seed))

    def run(self, policy: str, trace: Trace) -> Run:
        with self._rig(policy) as rig:
            rig.prepare()
            rig.warm()
            budget = live.budget(self._world, policy)
            rig.train(self._trainings, budget=budget, lasting_s=600 + 2 * trace.duration_s)
            began = time.time()
            time.sleep(ALONE_S)
            alone = self._utilisation(rig, began + ALONE_S / 2, time.time())
            schedule = list(
                zip(trace.arrival_s.tolist(), trace.function.tolist(), trace.deadline_s.tolist(), strict=True)
            )
            sent = rig.follow(schedule, trace.duration_s)
            begin = float(sent.due[0]) - trace.arrival_s[0]
            load = os.getloadavg()[0]
            together = self._utilisation(rig, begin, begin + trace.duration_s)
            ended = self._ended(rig, begin, begin + trace.duration_s + DRAIN_S, int((sent.status == 200).sum()))
            windows = enough_windows(
                rig, (begin, begin + trace.duration_s), partial(self._go_on, rig, schedule), MOST_MORE
            )
        return Run(
            status=sent.status,
            latency_s=sent.latency,
            dispatched=Counter(_name(invocation) for invocation in ended if invocation.attempt > 0),
            on_time=sum(invocation.met for invocation in ended),
            runs=[
                (_name(invocation), invocation.run_s)
                for invocation in ended
                if invocation.state is State.SUCCEEDED and invocation.run_s is not None
            ],
            utilisation=together,
            alone=alone,
            windows=windows,
            load=load,
        )

    def _ended(self, rig: Rig, begin: float, end: float, well: int) -> list[Served]:
        """
        The invocations that arrived in a span as the history has them, once it has ``well`` that succeeded. The event
        stream is no source: the recorder trims it.
        """
        engine = make_engine(rig.end.postgres_url, "live")
        try:

            def complete() -> tuple[list[Served], int] | None:
                page = PastRuns(engine).served(begin, end, MOST)
                return page if sum(invocation.state is State.SUCCEEDED for invocation in page[0]) >= well else None

            return cast("list[Served]", rig.patiently("the history of a run", complete)[0])
        finally:
            engine.dispose()

    def _go_on(self, rig: Rig, schedule: Sequence[tuple[float, int, float]], seconds: float) -> None:
        """Send the first ``seconds`` of the schedule once more."""
        rig.follow([arrival for arrival in schedule if arrival[0] < seconds], seconds)

    def _rig(self, policy: str) -> Rig:
        setting, knobs = parse(policy)
        environment = {"SMORE_POLICY__NAME": setting, "SMORE_POLICY__KNOBS": json.dumps(knobs)}
        return Rig(self._home, self._partitions, functions=self._functions, preset=self._size, environment=environment)

    def _utilisation(self, rig: Rig, begin: float, end: float) -> float:
        """Mean over GPU instances; NaN where one has no counter."""
        shares = [harvest.utilisation(rig, partition.gpu, begin, end) for partition in self._partitions]
        return statistics.fmean(float("nan") if share is None else share for share in shares)


def _name(invocation: Served) -> str:
    return invocation.function.rpartition("/")[2]


def document(outcome: LiveComparison, command: str) -> dict[str, Any]:
    """As ``report.result``, with the intervals and the conditions."""
    figures, intervals = live_report.figures(outcome)
    calibration, plan = outcome.calibration, outcome.plan
    return report.result(
        command,
        figures,
        intervals={
            name: {end: report.rounded(value) for end, value in interval.items()}
            for name, interval in intervals.items()
        },
        preset=plan.preset.name,
        policies=list(plan.policies),
        repeats=plan.repeats,
        seconds=plan.seconds,
        load=plan.load,
        place={"device": calibration.device, "sharing_mode": calibration.sharing_mode, "gpus": len(plan.world.gpus)},
        calibration={
            "solo_ms": {name: report.rounded(1e3 * seconds) for name, seconds in calibration.solo_s.items()},
            "hop_ms": report.rounded(1e3 * calibration.network_s),
            "capacity_per_s": report.rounded(calibration.capacity_per_s),
            "looks": [
                {"rate_per_s": report.rounded(look.rate_per_s), "met": report.rounded(look.met)}
                for look in calibration.looks
            ],
            "table": calibration.table is not None,
        },
        drag=report.rounded(outcome.slowdown_factor),
        rates_per_s=[report.rounded(rate) for rate in outcome.rates],
        machine_load={name: [report.rounded(load) for load in loads] for name, loads in outcome.loads.items()},
    )


def _show(outcome: LiveComparison) -> None:
    """Print the measured and the simulated table, and how far they agree."""
    columns = list(live_report.COLUMNS)
    wide = max(len(policy) for policy in outcome.plan.policies) + 2
    for kind, side, more in (
        ("measured", outcome.measured, list(live_report.MEASURED_ONLY)),
        ("simulated", outcome.simulated, []),
    ):
        intervals = outcome.intervals(side)
        print(f"{kind:{wide}}" + "".join(f"{name:>16}" for name in (*columns, *more)))
        for policy in outcome.plan.policies:
            cells = (intervals[f"{name}.{policy}"] for name in (*columns, *more))
            print(
                f"{policy:{wide}}"
                + "".join(f"{100 * cell.mean:9.1f} ±{50 * (cell.high - cell.low):5.1f}" for cell in cells)
            )
    print(
        f"{'agreement':{wide}}" + "".join(f"{name:>16}" for name in ("spearman", "kendall", "apart", "alike", "error"))
    )
    for agreement in outcome.agreements():
        error = f"{100 * agreement.error.mean:9.1f} ±{50 * (agreement.error.high - agreement.error.low):5.1f}"
        print(
            f"{agreement.metric:{wide}}{agreement.spearman:16.2f}{agreement.kendall:16.2f}{agreement.apart:16}"
            f"{agreement.alike:16}{error}"
        )


def _pictures() -> Any:
    """The module that draws. Raises BadReport where matplotlib is not installed."""
    try:
        from lab.research.compare import pictures
    except ModuleNotFoundError as error:
        if error.name != "matplotlib":
            raise
        raise BadReport(
            "matplotlib is not installed; the extra 'report' holds it: pip install -e '.[report]'"
        ) from error
    return pictures


def publish(out: Path, outcome: LiveComparison, document: Mapping[str, Any]) -> Path:
    """Write the page with its pictures and tables; its path. Raises OSError."""
    pictures = _pictures()
    sides = []
    for measured, side, caption in zip(
        (True, False), (outcome.measured, outcome.simulated), live_report.captions(outcome, document), strict=True
    ):
        sides.append((measured, outcome.intervals(side).__getitem__, caption))
    return live_report.write(out, outcome, document, pictures.styled(pictures.draw_sides(outcome.plan.policies, sides)))


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="smore compare --live", description="Policies on the devices at hand, and the simulator beside."
    )
    parser.add_argument(
        "--preset", default=PRESET, help="one configuration of functions of one row each (default: live)"
    )
    parser.add_argument(
        "--policies", default="", help="names with commas between, knobs after colons; default: the preset's"
    )
    parser.add_argument("--repeats", type=int, default=LEAST_REPEATS, help=f"at least {LEAST_REPEATS}; 1 for a look")
    parser.add_argument("--seconds", type=float, help="of each run (default: the preset's)")
    parser.add_argument("--load", type=float, default=LOAD, help="the rate, as a multiple of the capacity at hand")
    parser.add_argument(
        "--data", type=Path, help="folder of public traces; default: SMORE_HOME/data, then the bundled excerpt"
    )
    parser.add_argument("--seed", type=int, default=0, help="of calibration; the traces have the seeds 0, 1, …")
    parser.add_argument("--out", type=Path, help="folder for raw rows, tables and a page with pictures")
    parser.add_argument("--json", action="store_true", help="end stdout with one line of JSON")
    words = list(sys.argv[1:] if arguments is None else arguments)
    asked = parser.parse_args(words)
    if asked.repeats < 1 or asked.load <= 0:
        parser.error("--repeats and --load must be above 0")
    try:
        preset = world.load(asked.preset)
        chosen = tuple(filter(None, asked.policies.split(","))) or preset.policies
        seconds = asked.seconds or float(preset.trace.get("seconds", 60))
        plan = Plan(
            preset=preset,
            policies=chosen,
            repeats=asked.repeats,
            load=asked.load,
            seconds=seconds,
            data=public.folders(settings().home, asked.data),
        )
        if asked.out is not None:
            _pictures()
            asked.out.mkdir(parents=True, exist_ok=True)

        def keep(name: str, run: Run, trace: Trace) -> None:
            if asked.out is not None:
                run.write(asked.out / f"{name}.npz", trace)

        report.end_on_sigterm()
        # `smore` tells its programs where this machine's platform has its servers; what is measured here has its own.
        for name in SERVERS:
            os.environ.pop(name, None)
        with tempfile.TemporaryDirectory(prefix="smore-live-") as folder:
            outcome = live.compare(Here(Path(folder), plan.world, asked.seed), plan, report.progress, keep)
        result = document(outcome, "smore compare --live " + " ".join(words))
        if asked.out is not None:
            report.progress(str(publish(asked.out, outcome, result)))
    except (SmoreError, Inconsistent, OSError, ValueError, RuntimeError) as error:
        print(f"smore compare --live: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    if asked.json:
        print(json.dumps(result, allow_nan=False), flush=True)
    else:
        _show(outcome)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
