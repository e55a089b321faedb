"""
``python -m scheduler.simulation fit|trace|run|compare|report``.

Tables go to standard output, and the last line there is one JSON object; progress goes to standard error. What cannot
be used is one line on standard error and the exit status 2.
"""

import argparse
import json
import math
import os
import re
import sys
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from research.compare import comparison, report, section, trainings
from research.compare.comparison import Plan, Progress, quiet
from scheduler.simulation import fit, metrics, policies, traces
from scheduler.simulation.jobs.world import job_presets
from scheduler.simulation.metrics import FIGURE_14
from scheduler.simulation.predictor import Belief, table
from scheduler.simulation.result import Inconsistent
from scheduler.simulation.simulator import simulate
from scheduler.simulation.world import World, bad, load, names
from smore.domain.errors import SmoreError
from smore.process.settings import settings
from smore.traces import public


def _assignments(text: str) -> dict[str, object]:
    """``name=number,name=word`` as it stands on a command line."""
    found: dict[str, object] = {}
    for part in filter(None, text.split(",")):
        name, sign, value = part.partition("=")
        if not sign or not name:
            raise argparse.ArgumentTypeError(f"{part!r} is not of the form name=value")
        try:
            found[name] = float(value)
        except ValueError:
            found[name] = value
    return found


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError("at least 1 is expected")
    return value


def parser() -> argparse.ArgumentParser:
    main = argparse.ArgumentParser(prog="smore", description="Policies on a simulated cluster.")
    commands = main.add_subparsers(dest="do", required=True)

    fitting = commands.add_parser("fit", help="fit the ground truth to measured rows")
    fitting.add_argument("--rows", type=Path, required=True, help="measured rows (ml/measure/rows.py)")
    fitting.add_argument("--out", type=Path, required=True, help="JSON file to write")
    fitting.add_argument("--seed", type=int, default=0, help="of the half that is held out")

    def shared(command: argparse.ArgumentParser) -> None:
        command.add_argument(
            "--preset",
            required=True,
            help=f"one of {', '.join((*names(), *job_presets()))}, or a .yaml file of that form",
        )
        command.add_argument(
            "--data", type=Path, help="folder of outside data, by default ../shared/data beside the checkout"
        )
        command.add_argument(
            "--trace",
            type=_assignments,
            default={},
            metavar="NAME=VALUE,…",
            help="fields of the preset's trace to change",
        )

    def changed(command: argparse.ArgumentParser) -> None:
        command.add_argument(
            "--predictor", type=_assignments, default={}, metavar="NAME=VALUE,…", help="e.g. kind=exact or updates=0"
        )
        command.add_argument(
            "--truth", default="", help="another ground truth than the preset's: digest, turns or cpu-partition"
        )
        command.add_argument(
            "--factors", type=_assignments, default={}, metavar="NAME=FACTOR,…", help="of the ground truth, e.g. u=1.3"
        )
        command.add_argument("--no-interference", action="store_true", help="everything runs as if alone")

    tracing = commands.add_parser("trace", help="write a trace to a file")
    shared(tracing)
    tracing.add_argument("--configuration", default="", help="of the preset, by default its first")
    tracing.add_argument("--seed", type=int, default=0)
    tracing.add_argument("--out", type=Path, required=True)

    running = commands.add_parser("run", help="one policy, one seed")
    shared(running)
    changed(running)
    running.add_argument("--configuration", default="", help="of the preset, by default its first")
    running.add_argument("--policy", required=True)
    running.add_argument("--seed", type=int, default=0)
    running.add_argument("--out", type=Path, help="file for the raw rows")

    comparing = commands.add_parser("compare", help="policies x configurations x seeds, with intervals")
    shared(comparing)
    changed(comparing)
    comparing.add_argument(
        "--policies",
        default="",
        help=(
            "names with commas between, the first is judged; knobs after colons, edf-util:sm_cap=0.9; default: the"
            " preset's"
        ),
    )
    comparing.add_argument("--seeds", type=_positive, default=10, help="seeds 0 to n - 1")
    comparing.add_argument(
        "--worlds",
        type=int,
        default=0,
        help="changed worlds, every demand and exponent x U(0.7, 1.3), and one without interference",
    )
    comparing.add_argument("--world-seeds", type=_positive, default=1, help="seeds in each changed world")
    comparing.add_argument(
        "--workers", type=_positive, default=os.cpu_count() or 1, help="processes, by default one for each core"
    )
    comparing.add_argument(
        "--out", type=Path, help="folder for the raw rows of every run, tables and a page with pictures"
    )
    comparing.add_argument("--json", action="store_true", help="only the JSON line; without it a terminal gets none")

    reporting = commands.add_parser("report", help="one page of several comparisons, and of what was measured")
    reporting.add_argument("folders", type=Path, nargs="+", help="each made by compare --out")
    reporting.add_argument("--out", type=Path, required=True, help="folder for the page and its pictures")
    for command in (comparing, reporting):
        command.add_argument("--decision", type=Path, help="output of python -m bench.decision --json, for figure 17")
        command.add_argument(
            "--measured", type=Path, help="figures <metric>.<policy> of a live comparison, in a panel of its own"
        )
    comparing.add_argument(
        "--lengths",
        type=float,
        default=0.0,
        metavar="SIGMA",
        help="presets of trainings: owners are wrong by e to the power of N(0, SIGMA); default: lengths are exact",
    )
    return main


def _factors(raw: Mapping[str, object]) -> dict[str, float]:
    for name, value in raw.items():
        if not isinstance(value, float):
            raise bad(f"factors.{name}", f"a number is expected, not {value!r}")
    return {name: float(str(value)) for name, value in raw.items()}


def _world(options: argparse.Namespace) -> tuple[Any, World]:
    factors = _factors(getattr(options, "factors", {}))
    calm = getattr(options, "no_interference", False)
    preset = load(
        options.preset, factors=factors, interference=not calm, interference_model=getattr(options, "truth", "")
    )
    name = options.configuration or next(iter(preset.worlds))
    if name not in preset.worlds:
        raise bad("configuration", f"{name!r} is not known; known are {', '.join(preset.worlds)}")
    return preset, preset.worlds[name]


def _command(argv: Sequence[str]) -> str:
    return "python -m scheduler.simulation " + " ".join(argv)


def _name(figure: str) -> str:
    """Names of figures have dots between their parts; other marks, which policies' names may have, are replaced."""
    return re.sub(r"[^\w.]", "_", figure)


#: Parts of the JSON line that hold figures by name.
_NAMED = ("figures", "intervals", "claims")


def _last(argv: Sequence[str], document: Mapping[str, Any]) -> None:
    """The JSON line. There is no NaN in it: what is none is null."""

    def clean(value: Any) -> Any:
        if isinstance(value, Mapping):
            return {name: clean(one) for name, one in value.items()}
        if isinstance(value, float):
            return float(f"{value:.6g}") if math.isfinite(value) else None
        return value

    def named(part: Mapping[str, Any]) -> dict[str, Any]:
        return {_name(name): one for name, one in part.items()}

    known = {key: named(part) if key in _NAMED else part for key, part in document.items()}
    print(json.dumps({"command": _command(argv)} | clean(known), separators=(",", ":")))


def _fit(options: argparse.Namespace, argv: Sequence[str]) -> None:
    found = fit.fit(options.rows, name=options.out.stem, seed=options.seed)
    document = fit.document(found, command="python -m scheduler.simulation " + " ".join(argv))
    options.out.write_text(document)
    print(f"{found.pairs} co-locations fitted, {found.held} held out")
    for name, value in found.errors.items():
        print(f"  {name:28} {value:.3f}")
    _last(argv, {"figures": found.errors})


def _trace(options: argparse.Namespace, argv: Sequence[str]) -> None:
    preset, world = _world(options)
    trace = traces.of(dict(preset.trace) | options.trace, world, options.seed, data=options.data)
    trace.write(options.out)
    print(f"{trace.name}: {len(trace)} invocations in {trace.duration_s:g} s")
    _last(argv, {"figures": {"invocations": len(trace), "rate_per_min": 60 * trace.rate_per_s}})


def _run(options: argparse.Namespace, argv: Sequence[str]) -> None:
    preset, world = _world(options)
    make = policies.factory(options.policy)
    trace = traces.of(dict(preset.trace) | options.trace, world, options.seed, data=options.data)
    belief = table(world, Belief.of(dict(preset.predictor) | options.predictor), options.seed)
    exclusive = simulate(world, trace.none(), make, seed=options.seed, name="exclusive run")
    began = time.process_time()
    result = quiet(partial(simulate, world, trace, make, seed=options.seed, table=belief, name=options.policy))
    spent = time.process_time() - began
    if options.out is not None:
        result.write(options.out)
    found = metrics.figures(result, exclusive)
    print(f"{options.policy} on {world.name}, {trace.name}: {len(trace)} invocations")
    for name, value in found.items():
        print(f"  {name:24} {100 * value:8.2f} %")
    speed = {"sim_per_s": len(trace) / spent, "policy_us": 1e6 * result.policy_s / max(1, len(trace))}
    print(f"  {speed['sim_per_s']:,.0f} invocations/s, of each {speed['policy_us']:.1f} us in the policy")
    _last(argv, {"figures": found | speed})


def _pictures() -> Any:
    """The module that draws. Raises BadReport, in one line, where matplotlib is not installed."""
    try:
        from research.compare import pictures
    except ModuleNotFoundError as error:
        if error.name != "matplotlib":
            raise
        raise section.BadReport(
            "matplotlib is not installed; the extra 'report' holds it: pip install -e '.[report]'"
        ) from error
    return pictures


def _measured(options: argparse.Namespace) -> tuple[section.Measured | None, section.Measured | None]:
    decision = (
        section.read_measured(options.decision, ("full_us_", "sampled_us_")) if options.decision is not None else None
    )
    wanted = [f"{metric}." for metric in FIGURE_14]
    live = section.read_measured(options.measured, wanted) if options.measured is not None else None
    return decision, live


def _write_page(
    out: Path, folders: Sequence[Path], found: tuple[section.Measured | None, section.Measured | None]
) -> Path:
    pictures = _pictures()
    sections = [section.read(folder) for folder in folders]
    return report.write(
        out,
        sections,
        lambda one: pictures.styled(pictures.draw(one)),
        pictures.styled(pictures.draw_measured(*found)),
        [one for one in found if one is not None],
    )


def _report(options: argparse.Namespace, argv: Sequence[str]) -> None:
    page = _write_page(options.out, options.folders, _measured(options))
    print(page)
    _last(argv, {"figures": {"sections": len(options.folders)}})


def _compare(options: argparse.Namespace, argv: Sequence[str]) -> None:
    preset = load(options.preset, interference_model=options.truth)
    chosen = tuple(filter(None, options.policies.split(","))) or preset.policies
    for name in chosen:
        policies.factory(name)
    if not chosen or len(set(chosen)) < len(chosen):
        raise bad("policies", "at least one policy is expected, each once")
    plan = Plan(
        preset=options.preset,
        policies=chosen,
        seeds=tuple(range(options.seeds)),
        worlds=max(0, options.worlds),
        world_seeds=min(options.world_seeds, options.seeds),
        truth=options.truth,
        factors=_factors(options.factors),
        interference=not options.no_interference,
        predictor=options.predictor,
        trace=options.trace,
        data=options.data,
        out=options.out,
    )
    measured = _measured(options)
    if options.out is not None:
        # Known before hours of runs: what they are drawn with.
        _pictures()
        options.out.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    rows = comparison.rows(plan, options.workers, Progress())
    found = comparison.comparison(plan, rows)
    intervals, judged = found.intervals(), found.judged()
    if not options.json:
        _show(plan, found, intervals)
    if options.out is not None:
        section.write(options.out, plan, found, rows, command=_command(argv), revision=report.revision())
        page = _write_page(options.out, [options.out], measured)
        if not options.json:
            print(page)
    if sys.stdout.isatty() and not options.json:
        return  # all of it was shown
    figures = {name: one.mean for name, one in intervals.items()}
    for key, by in found.configurations.items() if len(found.configurations) > 1 else ():
        figures |= {
            f"{metric}.{policy}.{key}": metrics.interval(list(by[policy][metric])).mean
            for policy in chosen
            for metric in _EACH
        }
    for one in judged:
        figures |= {
            f"not_worse.{one.claim.name}": int(metrics.not_worse(one.advantage)),
            f"holds.{one.claim.name}": one.holds,
        }
        if plan.worlds:
            figures |= {f"worlds.{one.claim.name}": one.worlds, f"calm.{one.claim.name}": one.calm}
    _last(
        argv,
        {
            "figures": figures,
            "intervals": {name: {"low": one.low, "high": one.high} for name, one in intervals.items()},
            "claims": {
                one.claim.name: f"{one.claim}: {one.verdict}" + (f"; {one.remark}" if one.remark else "")
                for one in judged
            },
            "seeds": options.seeds,
            "worlds": plan.worlds,
            "revision": report.revision(),
            "device": next(iter(preset.worlds.values())).interference_model.device,
            "seconds": time.monotonic() - began,
        },
    )


#: What is said of each configuration, as ``<metric>.<policy>.<configuration>``.
_EACH = (*FIGURE_14, "dsr_admitted", "train_loss", "loaded")
#: What is shown of each configuration.
_SHOWN_EACH = ("dsr", "dsr_admitted", "train_loss")
#: Columns of the table of a comparison.
_SHOWN = ("dsr", "dsr_admitted", "admission", "gui", "sfd", "train_loss", "sld", "sld_p99", "cold", "waste", "harvest")


def _show(plan: Plan, found: comparison.Comparison, intervals: Mapping[str, metrics.Interval]) -> None:
    print(
        f"{plan.preset}: {len(plan.seeds)} seeds, {len(found.configurations)} configurations; percent, +- half a 95 %"
        " interval over seeds"
    )
    wide = max(16, *(len(policy) + 2 for policy in found.policies))
    print(f"{'':{wide}}" + "".join(f"{name:>15}" for name in _SHOWN))
    for policy in found.policies:
        cells = []
        for name in _SHOWN:
            one = intervals[f"{name}.{policy}"]
            half = (one.high - one.low) / 2
            cells.append(f"{100 * one.mean:8.2f}" + (f" ±{100 * half:5.2f}" if math.isfinite(half) else " " * 7))
        print(f"{policy:{wide}}" + "".join(cells))
    if len(found.configurations) > 1:
        for name in _SHOWN_EACH:
            column = max((8, *(len(key) + 2 for key in found.configurations)))
            print(f"{name:{wide}}" + "".join(f"{key:>{column}}" for key in found.configurations))
            for policy in found.policies:
                means = [metrics.interval(list(by[policy][name])).mean for by in found.configurations.values()]
                print(f"{policy:{wide}}" + "".join(f"{100 * mean:{column}.2f}" for mean in means))
    print(f"{'instances loaded':{wide}}{'at start':>10}{'mean':>10}   on a GPU instance")
    for policy in found.policies:
        counts = [intervals[f"{name}.{policy}"].mean for name in ("loaded_at_start", "loaded")]
        print(f"{policy:{wide}}" + "".join(f"{count:10.2f}" for count in counts))
    if found.bound:
        print(f"{'offline bound':{wide}}{100 * intervals[f'dsr.{comparison.BOUND}'].mean:8.2f}")
    judged = found.judged()
    if judged:
        print(f"{found.policies[0]} against the others, points of advantage, paired by seed, 95 % interval:")
    for claimed in judged:
        advantage = claimed.advantage
        bounds = (
            f"{100 * advantage.low:+.2f}, {100 * advantage.high:+.2f}" if math.isfinite(advantage.low) else "one seed"
        )
        numbers = f"{100 * advantage.mean:+.2f} [{bounds}]"
        worlds = (
            f"; sign in {100 * claimed.worlds:.0f} % of {plan.worlds} worlds, {100 * claimed.calm:+.2f} without"
            " interference"
            if plan.worlds
            else ""
        )
        print(f"  {claimed.verdict:15} {claimed.claim}: {numbers}{worlds}")
    functions = [
        name.removeprefix("admission.") for name in next(iter(found.values.values())) if name.startswith("admission.")
    ]
    narrow = max((8, *(len(name) + 2 for name in functions)))
    print(f"{'admission by':{wide}}" + "".join(f"{name:>{narrow}}" for name in functions))
    for policy in found.policies:
        print(
            f"{policy:{wide}}"
            + "".join(f"{100 * intervals[f'admission.{name}.{policy}'].mean:{narrow}.1f}" for name in functions)
        )


def _folders(options: argparse.Namespace) -> tuple[Path, ...]:
    """Where public traces are looked for."""
    return public.folders(settings().home, options.data)


def _compare_trainings(options: argparse.Namespace, argv: Sequence[str]) -> None:
    """Settings of the queue of trainings (scheduler/policy/jobs/knobs.py), where the preset is one of those."""
    for name in ("predictor", "factors", "trace", "no_interference", "worlds", "decision", "measured"):
        if getattr(options, name):
            raise bad(name, f"it is for functions; {options.preset} is a preset of trainings")
    plan = trainings.plan(
        options.preset, options.policies, options.seeds, options.truth, options.lengths, _folders(options)
    )
    began = time.monotonic()
    by_policy = trainings.values(plan, options.workers, Progress("seeds", "jobs"))
    compared = trainings.intervals(plan, by_policy)
    if not options.json:
        trainings.show(plan, compared)
    if options.out is not None:
        path = trainings.write(plan, by_policy, options.out)
        if not options.json:
            print(path)
    if sys.stdout.isatty() and not options.json:
        return  # all of it was shown
    document = trainings.document(plan, compared)
    _last(argv, document | {"revision": report.revision(), "seconds": time.monotonic() - began})


def _compare_either(options: argparse.Namespace, argv: Sequence[str]) -> None:
    if options.preset in job_presets():
        _compare_trainings(options, argv)
    elif options.lengths:
        raise bad("lengths", f"it is for presets of trainings ({', '.join(job_presets())})")
    else:
        _compare(options, argv)


def main(argv: Sequence[str]) -> int:
    options = parser().parse_args(argv)
    try:
        {"fit": _fit, "trace": _trace, "run": _run, "compare": _compare_either, "report": _report}[options.do](
            options, argv
        )
    except (SmoreError, Inconsistent, OSError, ValueError) as error:
        print(f"{type(error).__name__}: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
