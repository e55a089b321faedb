"""
``python -m lab.research.compare fit|trace|run|compare|report``, and ``smore compare``.

Tables go to standard output, and the last line there is one JSON object; progress goes to standard error. Input that
cannot be used gives one line on standard error and the exit status 2.
"""

import argparse
import json
import math
import os
import re
import shlex
import sys
import time
import webbrowser
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from lab.research.compare import by_world, comparison, report, section, terminal, trainings, trainings_page
from lab.research.compare.comparison import Plan, Progress, quiet
from lab.simulation import fit, metrics, policies, traces
from lab.simulation.jobs.world import is_of_jobs, job_presets, load_job_preset
from lab.simulation.metrics import FIGURE_14
from lab.simulation.predictor import table
from lab.simulation.result import Inconsistent
from lab.simulation.simulator import simulate
from lab.simulation.world import World, bad, load, names, unknown_preset
from smore.domain.errors import SmoreError
from smore.traces import public


def _assignments(text: str) -> dict[str, object]:
    """``name=number,name=word`` of a command line."""
    values: dict[str, object] = {}
    for part in filter(None, text.split(",")):
        name, sign, value = part.partition("=")
        if not sign or not name:
            raise argparse.ArgumentTypeError(f"{part!r} is not of the form name=value")
        try:
            values[name] = float(value)
        except ValueError:
            values[name] = value
    return values


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError("at least 1 is expected")
    return value


def called_as() -> str:
    """The name in help and errors: ``smore`` starts this module by its own name, a person by the documented one."""
    return "smore" if sys.orig_argv[1:3] == ["-m", "lab.research.compare"] else "python -m lab.research.compare"


def parser() -> argparse.ArgumentParser:
    main = argparse.ArgumentParser(prog=called_as(), description="Policies on a simulated cluster.")
    commands = main.add_subparsers(dest="do", required=True)

    fitting = commands.add_parser("fit", help="fit an interference model to measured rows")
    fitting.add_argument("--rows", type=Path, required=True, help="measured rows (ml/rows.py)")
    fitting.add_argument("--out", type=Path, required=True, help="JSON file to write")
    fitting.add_argument("--seed", type=int, default=0, help="of the split into a fitted and a held-out half")

    def shared(command: argparse.ArgumentParser) -> None:
        command.add_argument(
            "--preset",
            required=True,
            help=f"one of {', '.join((*names(), *job_presets()))}, or a .yaml file of the form of one of them",
        )
        command.add_argument(
            "--data",
            type=Path,
            metavar="FOLDER",
            help="folder of public traces; default: SMORE_HOME/data, then the bundled excerpt",
        )
        command.add_argument(
            "--trace",
            type=_assignments,
            default={},
            metavar="NAME=VALUE,…",
            help=(
                "fields of the preset's trace to change; kind=csv,path=mine.csv replaces it by a file of your own, of the"
                " preset's functions or of trainings (docs/research/simulation.md lists them, and so does the error for another one)"
            ),
        )

    def changed(command: argparse.ArgumentParser) -> None:
        command.add_argument(
            "--predictor",
            type=_assignments,
            default={},
            metavar="NAME=VALUE,…",
            help="e.g. kind=exact or updates=0; of trainings noise=0.25",
        )
        command.add_argument(
            "--truth",
            default="",
            help="another interference model than the preset's: digest, turns or cpu-partition; of trainings muri,"
            " constant=1.25, gavel-v100, gavel-p100 or gavel-k80",
        )
        command.add_argument(
            "--factors",
            type=_assignments,
            default={},
            metavar="NAME=FACTOR,…",
            help="on constants of the interference model, e.g. u=1.3",
        )
        command.add_argument("--no-interference", action="store_true", help="every run takes as long as alone")

    tracing = commands.add_parser("trace", help="write a trace to a file")
    shared(tracing)
    tracing.add_argument("--configuration", default="", help="of the preset; default: its first")
    tracing.add_argument("--seed", type=int, default=0)
    tracing.add_argument("--out", type=Path, required=True)

    running = commands.add_parser("run", help="one policy, one seed")
    shared(running)
    changed(running)
    running.add_argument("--configuration", default="", help="of the preset; default: its first")
    running.add_argument("--policy", required=True)
    running.add_argument("--seed", type=int, default=0)
    running.add_argument("--out", type=Path, help="file for the raw rows")

    comparing = commands.add_parser(
        "compare",
        help="policies x configurations x seeds, with intervals",
        epilog="`smore compare --live` compares policies on the devices at hand: `smore compare --live --help`.",
    )
    shared(comparing)
    changed(comparing)
    comparing.add_argument(
        "--policies",
        default="",
        help=(
            "names separated by commas; the first is compared with each other one; knobs after colons,"
            " edf-util:sm_cap=0.9; a placement rule of your own, ./mine.py:Mine; default: the preset's"
        ),
    )
    comparing.add_argument("--seeds", type=_positive, default=10, help="seeds 0 to n - 1")
    comparing.add_argument(
        "--worlds",
        type=int,
        default=0,
        help="number of changed worlds, with every demand and exponent x U(0.7, 1.3), and one without interference",
    )
    comparing.add_argument(
        "--world-seeds",
        type=_positive,
        default=3,
        help="seeds in each changed world and each other world of the preset",
    )
    comparing.add_argument(
        "--workers", type=_positive, default=os.cpu_count() or 1, help="processes; default: one for each core"
    )
    comparing.add_argument(
        "--out", type=Path, help="folder for a page with pictures, tables as CSV, and the raw rows of every run"
    )
    comparing.add_argument(
        "--json", action="store_true", help="print only the JSON line, which a terminal does not get otherwise"
    )

    reporting = commands.add_parser("report", help="one page of several comparisons and of measurements")
    reporting.add_argument("folders", type=Path, nargs="+", help="folders that compare --out wrote")
    reporting.add_argument("--out", type=Path, required=True, help="folder for the page and its pictures")
    for command in (comparing, reporting):
        command.add_argument(
            "--decision", type=Path, help="output of python -m lab.bench.decision --json, for figure 17"
        )
        command.add_argument(
            "--measured", type=Path, help="figures <metric>.<policy> of a live comparison, in a panel of its own"
        )
        command.add_argument("--open", action="store_true", help="open the page in the browser")
    comparing.add_argument(
        "--lengths",
        type=float,
        default=0.0,
        metavar="SIGMA",
        help="presets of trainings: owners are wrong by e to the power of N(0, SIGMA); default: lengths are exact",
    )
    return main


def _folders(options: argparse.Namespace) -> tuple[Path, ...]:
    """Where public traces are looked for."""
    # Only here: a comparison needs no platform, and so none of its settings.
    from smore.process.environment import settings

    return public.folders(settings().home, options.data)


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
        raise bad("configuration", f"there is no {name!r}; there are {', '.join(preset.worlds)}")
    return preset, preset.worlds[name]


def _command(argv: Sequence[str]) -> str:
    """The command that was typed, by its documented name."""
    return shlex.join([*called_as().split(), *argv])


def _name(figure: str, policies: Sequence[str]) -> str:
    """
    The name of a figure in the JSON line: dots separate its parts, and every mark in a part becomes _; of a policy's
    name dots too.
    """
    for policy in sorted(policies, key=len, reverse=True):
        before, found, after = figure.partition(f".{policy}")
        if found and (not after or after.startswith(".")):
            figure = f"{before}.{policy.replace('.', '_')}{after}"
    return re.sub(r"[^\w.]", "_", figure)


#: Parts of the JSON line that hold figures by name.
_NAMED = ("figures", "intervals", "claims")


def _last(argv: Sequence[str], document: Mapping[str, Any], policies: Sequence[str] = ()) -> None:
    """Print the JSON line; NaN becomes null. ``policies``: whose names are parts of figures' names."""

    def clean(value: Any) -> Any:
        if isinstance(value, Mapping):
            return {name: clean(part) for name, part in value.items()}
        if isinstance(value, float):
            return float(f"{value:.6g}") if math.isfinite(value) else None
        return value

    def named(part: Mapping[str, Any]) -> dict[str, Any]:
        return {_name(name, policies): value for name, value in part.items()}

    line = {key: named(part) if key in _NAMED else part for key, part in document.items()}
    print(json.dumps({"command": _command(argv)} | clean(line), separators=(",", ":")))


def _fit(options: argparse.Namespace, argv: Sequence[str]) -> None:
    fitted = fit.fit(options.rows, name=options.out.stem, seed=options.seed)
    options.out.write_text(fit.document(fitted, command=_command(argv)))
    print(f"{fitted.pairs} co-locations fitted, {fitted.held} held out")
    for name, value in fitted.errors.items():
        print(f"  {name:28} {value:.3f}")
    _last(argv, {"figures": fitted.errors})


def _trace(options: argparse.Namespace, argv: Sequence[str]) -> None:
    preset, world = _world(options)
    trace = traces.of(traces.changed(preset.trace, options.trace), world, options.seed, data=_folders(options))
    trace.write(options.out)
    print(f"{trace.name}: {len(trace)} invocations in {trace.duration_s:g} s")
    _last(argv, {"figures": {"invocations": len(trace), "rate_per_min": 60 * trace.rate_per_s}})


def _run(options: argparse.Namespace, argv: Sequence[str]) -> None:
    preset, world = _world(options)
    make = policies.compared(options.policy)
    trace = traces.of(traces.changed(preset.trace, options.trace), world, options.seed, data=_folders(options))
    belief = table(world, policies.belief(options.policy, preset.predictor, options.predictor), options.seed)
    exclusive = simulate(world, trace.none(), make, seed=options.seed, name="exclusive run")
    began = time.process_time()
    result = quiet(
        partial(
            simulate,
            policies.asked(world, options.policy),
            trace,
            make,
            seed=options.seed,
            table=belief,
            name=options.policy,
        )
    )
    spent = time.process_time() - began
    if options.out is not None:
        result.write(options.out)
    figures = metrics.figures(result, exclusive)
    print(f"{options.policy} on {world.name}, {trace.name}: {len(trace)} invocations")
    for name, value in figures.items():
        print(f"  {name:24} " + ("undefined" if math.isnan(value) else f"{100 * value:8.2f} %"))
    speed = {"sim_per_s": len(trace) / spent, "policy_us": 1e6 * result.policy_s / max(1, len(trace))}
    print(f"  {speed['sim_per_s']:,.0f} invocations/s, of each {speed['policy_us']:.1f} us in the policy")
    _last(argv, {"figures": figures | speed})


def _pictures() -> Any:
    """The module that draws. Raises BadReport if matplotlib is not installed."""
    try:
        from lab.research.compare import pictures
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
    out: Path, folders: Sequence[Path], measured: tuple[section.Measured | None, section.Measured | None]
) -> Path:
    pictures = _pictures()
    sections = [section.read(folder) for folder in folders]
    return report.write(
        out,
        sections,
        lambda compared: pictures.styled(pictures.draw(compared)),
        pictures.styled(pictures.draw_measured(*measured)),
        [result for result in measured if result is not None],
    )


def _open(page: Path) -> None:
    """Show the page in the browser; one line on standard error if there is no browser."""
    if not webbrowser.open(page.resolve().as_uri()):
        print(f"no browser opens {page}", file=sys.stderr)


def _report(options: argparse.Namespace, argv: Sequence[str]) -> None:
    page = _write_page(options.out, options.folders, _measured(options))
    print(page)
    if options.open:
        _open(page)
    _last(argv, {"figures": {"sections": len(options.folders)}})


def _check_open(options: argparse.Namespace) -> None:
    if options.open and options.out is None:
        raise bad("open", "--open shows the page of --out, which is missing")


def _compare(options: argparse.Namespace, argv: Sequence[str]) -> None:
    preset = load(options.preset, interference_model=options.truth)
    chosen = tuple(filter(None, options.policies.split(","))) or preset.policies
    for name in chosen:
        policies.compared(name)
    _check_open(options)
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
        data=_folders(options),
        out=options.out,
    )
    measured = _measured(options)
    if options.out is not None:
        # Fails before hours of runs, not after them.
        _pictures()
        options.out.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    rows = comparison.rows(plan, options.workers, Progress())
    compared = comparison.comparison(plan, rows)
    intervals, judged = compared.intervals(), compared.judged()
    if not options.json:
        terminal.show(plan, compared, intervals)
    if options.out is not None:
        section.write(options.out, plan, compared, rows, command=_command(argv), revision=report.revision())
        page = _write_page(options.out, [options.out], measured)
        if not options.json:
            print(page)
        if options.open:
            _open(page)
    if sys.stdout.isatty() and not options.json:
        return  # all of it was shown
    intervals |= by_world.intervals(compared)
    figures = {name: value.mean for name, value in intervals.items()} | by_world.predictor_errors(plan, compared)
    for claimed in judged:
        name = claimed.claim.name
        figures |= {f"not_worse.{name}": int(metrics.not_worse(claimed.advantage)), f"holds.{name}": claimed.holds}
        if plan.worlds:
            figures |= {f"worlds.{name}": claimed.worlds, f"calm.{name}": claimed.calm}
    _last(
        argv,
        {
            "figures": figures,
            "intervals": {name: {"low": value.low, "high": value.high} for name, value in intervals.items()},
            "claims": {
                claimed.claim.name: f"{claimed.claim}: {claimed.verdict}"
                + (f"; {claimed.remark}" if claimed.remark else "")
                for claimed in judged
            },
            "same": compared.same(),
            "exceeded": comparison.exceeded(plan, compared),
            "seeds": options.seeds,
            "worlds": plan.worlds,
            "revision": report.revision(),
            "device": next(iter(preset.worlds.values())).interference_model.device,
            "seconds": time.monotonic() - began,
        },
        chosen,
    )


def _write_trainings(
    out: Path,
    plan: trainings.JobPlan,
    by_policy: trainings.Values,
    compared: Mapping[str, metrics.Interval],
    command: str,
) -> Path:
    from lab.research.compare import trainings_pictures

    preset = load_job_preset(plan.preset, among=plan.among)
    drawn = _pictures().styled(trainings_pictures.draw(plan, by_policy, compared))
    return trainings_page.write(
        out, plan, preset, by_policy, compared, drawn, command=command, revision=report.revision()
    )


def _compare_trainings(options: argparse.Namespace, argv: Sequence[str]) -> None:
    """Settings of the queue of trainings (scheduler/policy/jobs/knobs.py), where the preset is one of those."""
    for name in ("factors", "no_interference", "worlds", "decision", "measured"):
        if getattr(options, name):
            raise bad(name, f"it is for functions; {options.preset} is a preset of trainings")
    noise = options.predictor.get("noise", 0.0)
    if not isinstance(noise, float) or options.predictor.keys() - {"noise"}:
        raise bad("predictor", "of a preset of trainings, noise=NUMBER is all that can be said")
    _check_open(options)
    plan = trainings.plan(
        options.preset,
        options.policies,
        options.seeds,
        options.truth,
        options.lengths,
        noise,
        _folders(options),
        options.trace,
    )
    if options.out is not None:
        # Fails before hours of runs, not after them.
        _pictures()
    began = time.monotonic()
    by_policy = trainings.values(plan, options.workers, Progress("seeds", "jobs"))
    compared = trainings.intervals(plan, by_policy)
    if not options.json:
        trainings.show(plan, by_policy, compared)
    if options.out is not None:
        page = _write_trainings(options.out, plan, by_policy, compared, _command(argv))
        if not options.json:
            print(page)
        if options.open:
            _open(page)
    if sys.stdout.isatty() and not options.json:
        return  # all of it was shown
    document = trainings.document(plan, by_policy, compared)
    _last(argv, document | {"revision": report.revision(), "seconds": time.monotonic() - began}, plan.policies)


def _compare_either(options: argparse.Namespace, argv: Sequence[str]) -> None:
    if is_of_jobs(options.preset):
        _compare_trainings(options, argv)
    elif options.preset not in names() and not options.preset.endswith((".yaml", ".yml")):
        raise unknown_preset(options.preset, (*names(), *job_presets()))
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
        print(f"{called_as()} {options.do}: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
