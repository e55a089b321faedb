"""
``python -m lab.research.replay.replay --since 24h --policy edf-util,random --gpus +1``: replays recorded arrivals under other
policies.

It reads the platform's history (Postgres), its GPU instances (Redis) and the published table, makes a simulated world
from them (``lab/simulation/history_world.py``), and runs the present policy and the others in it. The real
results are printed beside both, in a column of their own. The last line is one JSON object. Unusable input gives one
line on standard error and the exit status 2, an absent platform 3.
"""

import argparse
import csv
import json
import math
import re
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import redis
from sqlalchemy.exc import OperationalError

from lab.research.compare.comparison import quiet
from lab.research.replay.past_runs import JobUse, PastRuns
from lab.simulation import history_world, policies
from lab.simulation.history_world import HistoryGpu, RecordedSpan
from lab.simulation.result import Inconsistent, Result
from lab.simulation.simulator import simulate
from scheduler.leader.tables import ArrayTable
from scheduler.policy.engine import Engine
from scheduler.policy.knobs import preset
from scheduler.policy.policy import Policy
from scheduler.policy.setting import UnknownPolicy
from smore.domain.errors import SmoreError
from smore.domain.loss import DEFAULT_BUDGET
from smore.messages.reports import Report
from smore.postgres.connection import make_engine
from smore.process import observability
from smore.process.environment import settings
from smore.process.settings import Settings
from smore.redis.connection import connect
from smore.redis.fleet import Fleet
from smore.redis.tables import Tables

#: Most invocations that are replayed; the newest are taken.
MOST: Final = 200_000
#: Stands for an iteration of a training that tells none; what it loses is counted in parts of it.
STEP_S: Final = 1.0
_UNITS: Final = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}

#: Limits of every replay.
UNKNOWN: Final = (
    (
        "Whom the gate had refused before the queue, and what clients would have done had they been answered sooner or"
        " later."
    ),
    (
        "What co-location would have cost where it did not happen: the published table says it to the simulation and to"
        " the policies alike, and what no table knows is as declared. So a replay tests decisions, not the table."
    ),
    (
        "Why a run failed: where a handler failed, the replay lets it succeed. Lost workers, pauses, closed windows and"
        " throttles are not replayed."
    ),
    "What was warm when the span began: every first run is a cold start. Nothing is loaded ahead but by the policy.",
    "What an attached training that tells no iterations lost: its time is taken as it reports now.",
    "When jobs came and went within the span: each GPU instance keeps the job that it had longest.",
)


def span_s(text: str) -> float:
    """``24h``, ``90m``, ``7d``, ``30s`` → seconds."""
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)([smhd])", text)
    if match is None or not float(match[1]) > 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not of the form 24h, 90m, 7d or 30s")
    return float(match[1]) * _UNITS[match[2]]


def more(text: str) -> int:
    """``+1`` → 1."""
    if re.fullmatch(r"\+[0-9]{1,4}", text) is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not of the form +1")
    return int(text)


def parser() -> argparse.ArgumentParser:
    main = argparse.ArgumentParser(prog="smore replay", description="Replay recorded arrivals under another policy.")
    main.add_argument("--since", type=span_s, default=span_s("24h"), metavar="24h", help="length of the span up to now")
    main.add_argument(
        "--policy",
        required=True,
        help="other policies, with commas between; knobs after colons, edf-util:sm_cap=0.9; or your own, ./mine.py:Mine",
    )
    main.add_argument(
        "--gpus", type=more, default=0, metavar="+N", help="empty GPU instances to add for the other policies"
    )
    main.add_argument(
        "--seed", type=int, default=0, help="seed of the policies and of run times that were not measured"
    )
    main.add_argument(
        "--out", type=Path, metavar="FOLDER", help="write columns.csv there: a line for each column and figure"
    )
    main.add_argument("--json", action="store_true", help="only the JSON line; without it a terminal gets none")
    return main


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayInput:
    """``force``: the name of the present policy, with its ``knobs``. ``notes``: what was left out, in words."""

    span: RecordedSpan
    force: str
    knobs: Mapping[str, Any]
    notes: Sequence[str]


def gather(
    reader: PastRuns, reports: Sequence[Report], tables: Tables, config: Settings, since: float, until: float
) -> ReplayInput:
    """The history of [since, until), epoch seconds. Raises BadTable if the published table cannot be read."""
    served, count = reader.served(since, until, MOST)
    notes = [f"Of {count:,} invocations the newest {len(served):,} are replayed."] if count > len(served) else []
    specs = reader.specs({(invocation.function, invocation.revision) for invocation in served})
    replayable = [invocation for invocation in served if (invocation.function, invocation.revision) in specs]
    if len(replayable) < len(served):
        notes.append(
            f"{len(served) - len(replayable):,} invocations are of revisions that the catalog no longer knows."
        )
    decided = reader.policies(since, until)
    force = next(iter(decided), "") or config.policy.name
    if len(decided) > 1:
        shares = ", ".join(f"{name or 'unknown'} {number:,}" for name, number in decided.items())
        notes.append(f"More than one policy decided in this span ({shares}); {force} is taken as the present policy.")
    if len({(report.device, report.sharing_mode) for report in reports}) > 1:
        notes.append("The GPU instances are of several kinds; those that are added are like each of them in turn.")
    # GPU instances and jobs over the time in which something was served: the rest is not replayed either.
    begin, end = (
        min((invocation.arrival_at for invocation in replayable), default=since),
        max((invocation.finished_at for invocation in replayable), default=until),
    )
    table = tables.current()
    arrays = ArrayTable(table) if table is not None else None
    return ReplayInput(
        span=RecordedSpan(
            served=replayable, gpus=_gpus(reader, reports, begin // 1, end + 1.0), specs=specs, table=arrays
        ),
        force=force,
        knobs=config.policy.knobs if force == config.policy.name else {},
        notes=notes,
    )


def _attached(report: Report | None) -> JobUse | None:
    """The training that a GPU instance reports now and of which nobody knows windows, because it tells no iterations."""
    running = [job for job in report.jobs if job.state == "running" and not job.unseen] if report is not None else []
    if not running:
        return None
    most = max(running, key=lambda job: job.memory_mib)
    return JobUse(job=most.id, gpu=report.gpu if report is not None else "", windows=0, solo_s=STEP_S, mean_s=None)


def _gpus(reader: PastRuns, reports: Sequence[Report], since: float, until: float) -> list[HistoryGpu]:
    now = {report.gpu: report for report in reports}
    jobs: dict[str, JobUse] = {}
    for held in reader.job_use(since, until):
        # Keep the job that was present longest.
        jobs.setdefault(held.gpu, held)
    for gpu in reader.gpu_use(since, until):
        attached = _attached(now.get(gpu.gpu)) if gpu.gpu not in jobs else None
        if attached is not None:
            jobs[gpu.gpu] = attached
    terms = reader.job_terms({job.job for job in jobs.values()})
    gpus = []
    for use in reader.gpu_use(since, until):
        report, job = now.get(use.gpu), jobs.get(use.gpu)
        running = report.jobs if report is not None and job is not None else ()
        held_mib = sum(job_report.memory_mib for job_report in running if job is not None and job_report.id == job.job)
        workload, budget = terms.get(job.job, ("", DEFAULT_BUDGET)) if job is not None else ("", DEFAULT_BUDGET)
        gpus.append(
            HistoryGpu(
                name=use.gpu,
                device=use.device,
                sharing_mode=use.sharing_mode,
                memory_mib=max(0.0, use.memory_total_mib - held_mib),
                slots=report.slots if report is not None else history_world.SLOTS,
                utilisation=max(0.0, use.utilisation - use.function_utilisation),
                function_utilisation=use.function_utilisation,
                # One sample a second.
                seen_s=float(use.samples),
                job=job.job if job is not None else "",
                workload=workload,
                iteration_s=job.solo_s or job.mean_s if job is not None else None,
                mean_s=job.mean_s if job is not None else None,
                budget=budget if job is not None else None,
            )
        )
    return gpus


def _in_force(history: ReplayInput) -> Callable[[int], Policy]:
    preset(history.force, **history.knobs)
    return lambda seed: Engine(preset(history.force, **({"seed": seed} | dict(history.knobs))))


def _columns(policies_named: Sequence[str]) -> dict[str, str]:
    """Name of a column → its policy."""
    return {"other" if place == 1 else f"other_{place}": policy for place, policy in enumerate(policies_named, 1)}


def replay(history: ReplayInput, others: Sequence[str], gpus: int, seed: int) -> dict[str, dict[str, float]]:
    """
    Column → figures: what happened, the policy in force on the GPU instances there were, each other one with
    ``gpus`` more.
    """
    made = {column: policies.factory(policy) for column, policy in _columns(others).items()}
    force = _in_force(history)
    trace = history_world.trace(history.span)

    def run(make: Callable[[int], Policy], name: str, extra: int) -> dict[str, float]:
        world = history_world.world(history.span, more=extra)
        result: Result = quiet(lambda: simulate(world, trace, make, seed=seed, table=history.span.table, name=name))
        return history_world.would_have(result)

    return {
        "happened": history_world.happened(history.span),
        "force": run(force, history.force, 0),
    } | {column: run(made[column], policy, gpus) for column, policy in _columns(others).items()}


def _heads(history: ReplayInput, others: Sequence[str], gpus: int) -> dict[str, str]:
    """Column → what it is."""
    return {
        "happened": "happened",
        "force": f"simulated: {history.force}",
    } | {
        column: f"simulated: {policy}" + (f", +{gpus} GPU" if gpus else "")
        for column, policy in _columns(others).items()
    }


#: Part of the median that happened by which the simulated one may differ before the replay is doubted.
_DOUBTED: Final = 0.5


def doubt(columns: Mapping[str, Mapping[str, float]]) -> str:
    """What is said where the simulation is far from what happened; '' where it is not, or nothing can be compared."""
    happened, force = columns["happened"]["p50_s"], columns["force"]["p50_s"]
    # An undefined median is never far.
    if not abs(force - happened) > _DOUBTED * happened:
        return ""
    return (
        f"What is simulated of other policies is doubtful here: with the policy in force the simulated median is {1e3 * force:.1f} ms, and"
        f" {1e3 * happened:.1f} ms happened, which differs by more than half."
    )


def _write(out: Path, heads: Mapping[str, str], columns: Mapping[str, Mapping[str, float]]) -> Path:
    """``columns.csv``: column, what it is, figure, value; what is not defined is left out."""
    out.mkdir(parents=True, exist_ok=True)
    path = out / "columns.csv"
    with path.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["column", "policy", "figure", "value"])
        for column, by in columns.items():
            writer.writerows(
                [column, heads[column], name, repr(value)] for name, value in by.items() if math.isfinite(value)
            )
    return path


def show(history: ReplayInput, columns: Mapping[str, Mapping[str, float]], others: Sequence[str], gpus: int) -> None:
    served = history.span.served
    heads = _heads(history, others, gpus).values()
    print(
        f"{len(served):,} invocations on {len(history.span.gpus)} GPU instances; the policy in force is {history.force}"
    )
    width = max(18, *(len(head) + 2 for head in heads))
    print(f"{'':36}" + "".join(f"{head:>{width}}" for head in heads))
    for name, words in history_world.ROWS.items():
        cells = [_cell(name, by[name]) for by in columns.values()]
        print(f"{words:36}" + "".join(f"{cell:>{width}}" for cell in cells))
    print(
        "The first column was measured, the others were not. The second is how far the simulation is from what"
        " happened."
    )
    if words := doubt(columns):
        print(words)
    print("What this cannot know:")
    for note in (*history.notes, *UNKNOWN):
        print(f"- {note}")


def _cell(name: str, value: float) -> str:
    if math.isnan(value):
        return "-"
    return f"{1e3 * value:.1f} ms" if name.endswith("_s") else f"{100 * value:.2f} %"


def _read(config: Settings, since_s: float) -> ReplayInput:
    """Of the platform that the settings name, the last ``since_s`` seconds."""
    assert config.postgres.url is not None
    until, prefix = time.time(), config.redis.prefix
    engine = make_engine(config.postgres.url, "replay", statement_timeout_s=300)
    try:
        with connect(config) as client:
            reports, tables = Fleet(client, prefix).reports(), Tables(client, prefix)
            return gather(PastRuns(engine), reports, tables, config, until - since_s, until)
    finally:
        engine.dispose()


def main(arguments: Sequence[str]) -> int:
    options = parser().parse_args(arguments)
    others = tuple(filter(None, options.policy.split(",")))
    config = settings()
    observability.configure(config, "replay")
    try:
        if not others or len(set(others)) < len(others):
            raise UnknownPolicy("--policy: at least one policy is expected, each once")
        for policy in others:
            policies.factory(policy)
        if config.postgres.url is None or config.redis.url is None:
            print(
                "smore replay: no platform is known here: `smore up` starts one; of another one SMORE_POSTGRES__URL and"
                " SMORE_REDIS__URL name the stores",
                file=sys.stderr,
            )
            return 3
        history = _read(config, options.since)
        columns = replay(history, others, options.gpus, options.seed)
        heads = _heads(history, others, options.gpus)
        page = _write(options.out, heads, columns) if options.out is not None else None
    except (OperationalError, redis.ConnectionError, redis.TimeoutError) as error:
        print(f"smore replay: the platform cannot be reached: {' '.join(str(error).split())[:200]}", file=sys.stderr)
        return 3
    except (SmoreError, Inconsistent, OSError, ValueError) as error:
        print(f"smore replay: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    if not options.json:
        show(history, columns, others, options.gpus)
        if page is not None:
            print(page)
        if sys.stdout.isatty():
            return 0  # all of it was shown
    figures = {
        f"{name}.{column}": float(f"{value:.6g}")
        for column, by in columns.items()
        for name, value in by.items()
        if math.isfinite(value)
    }
    extra = {
        # The last part of each figure's name, and what it says.
        "columns": heads,
        "force": history.force,
        "policies": list(others),
        "gpus": options.gpus,
        "seed": options.seed,
        "notes": list(history.notes),
        "doubt": doubt(columns),
    }
    count = {"invocations": len(history.span.served)}
    print(json.dumps({"command": "smore replay " + " ".join(arguments), "figures": figures | count, **extra}))
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
