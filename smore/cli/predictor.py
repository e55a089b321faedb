"""``smore profiles`` and ``smore predictor``: measured co-locations, and the predictor that learns from them."""

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from smore.cli import launch, names
from smore.cli.gpus import unmeasured
from smore.cli.series import SeriesOption, SeriesOutput, write_csv
from smore.cli.terminal import (
    EXIT_USAGE,
    Column,
    Output,
    OutputOption,
    configuration,
    connected,
    fail,
    list_alone,
    moment,
    percent,
    platform_home,
    say,
    searched,
    show,
    show_value,
    write,
)

if TYPE_CHECKING:
    from smore_client.types import PairPrediction, PlacePrediction, PredictorPlace, PredictorVersion

#: Minutes below which `smore profile` measures a few models only.
SHORT_MIN: Final = 15
#: A training as an argument: its job's id, or its workload.
_TRAINING: Final = re.compile(r"[0-9a-f]{32}|[^/]+/[^/]+/training/[0-9]+")

profiles = typer.Typer(help="Measured co-locations.", no_args_is_help=True)


app = typer.Typer(help="The degradation predictor; alone: the version in force.", invoke_without_command=True)


Files = Annotated[list[Path], typer.Argument(help="Files of rows, as `python -m lab.measure.profile` writes them.")]
Data = Annotated[
    list[Path] | None,
    typer.Option("--data", help="A file of rows, once for each; without it the rows that come with the platform."),
]
Out = Annotated[Path, typer.Option("--out", help="Folder for the pictures and report.md.")]


def _report(kind: str, data: list[Path] | None, out: Path) -> None:
    launch.start("report", kind, *(["--data", *map(str, data)] if data else []), "--out", str(out))


def profile(
    context: typer.Context,
    minutes: Annotated[float, typer.Option(min=1, help="How long it measures, at most.")] = 20.0,
    out: Annotated[Path, typer.Option(help="File of rows; an existing one is continued.")] = Path("profile.jsonl"),
    gpu: Annotated[
        str | None,
        typer.Option(
            autocompletion=names.gpus, help="GPU instance of this machine, by its name in `smore gpus`; else the first."
        ),
    ] = None,
) -> None:
    """
    Measure a device of this machine, import the rows and fit a predictor on them: smore profile --minutes 20.

    It measures trainings and functions of its own beside each other; let nothing else run there meanwhile. Below 15
    minutes it measures four models, else eight. GPU instances with the same device share the rows. Further options are
    those of `python -m lab.measure.profile`.
    """
    from smore.domain.spelling import did_you_mean
    from smore.local import layout, machine

    parts = {part.gpu: part for part in layout.machine_partitions(sorted(os.sched_getaffinity(0)))}
    if gpu is not None and gpu not in parts:
        fail(f"this machine has no GPU instance {gpu}{did_you_mean(gpu, parts)}", EXIT_USAGE)
    part = parts[gpu] if gpu is not None else next(iter(parts.values()))
    config = configuration()
    platform = config.postgres.url is not None or machine.endpoints(platform_home()) is not None
    if not platform:
        write(f"smore: {searched()} The rows stay in {out}; `smore profiles import` takes them in.", error=True)
    # Many pairs of few workloads: a predictor needs pairs, and each workload costs a load and a run alone.
    few = ["--positions", "1", "--order", "pairs", *(["--few"] if minutes < SHORT_MIN else [])]
    device = ["--device", "cpu", "--cores", part.device, "--share", f"{part.share:g}"]
    device += ["--function-nice", str(config.worker.function_nice)]
    variables = {}
    if part.kind != "cpu":
        device, variables = ["--device", "cuda"], {"CUDA_VISIBLE_DEVICES": part.device}
    words = ["--out", str(out), "--minutes", f"{minutes:g}", *few, *device, *context.args]
    launch.start("profile", *words, variables=variables)
    if platform:
        launch.start("learning", "import", str(out))
        launch.start("learning", "retrain")
        if show_version(Output.TABLE):
            write(f"A predictor needs 10 pairs of a device. The same command goes on where {out} ends.")


@profiles.command("import")
def profiles_import(files: Files) -> None:
    """Take measured rows in; the same row twice counts once. The next retraining uses them."""
    launch.start("learning", "import", *map(str, files))


@profiles.command("report")
def profiles_report(data: Data = None, out: Out = Path("profiles-report")) -> None:
    """The paper's figures 1 to 3 and table II from measured rows, and whether its observations hold there."""
    _report("profiles", data, out)


@list_alone(app, "The version in force: where it holds, and with -o yaml what it rests on and how far it errs.", "show")
def show_version(output: Output) -> str:
    """Print the version in force. Returns the line about GPU instances without measured rows, "" = all have some."""
    with connected() as client:
        predictor = client.predictor()
        lacking = unmeasured(client.gpus(), predictor.places) if output is Output.TABLE else ""
    if output is not Output.TABLE:
        show_value(predictor, output)
        return ""
    if predictor.created_at:
        first, *others = predictor.reason.split("; ")
        say(f"version {predictor.version} of {predictor.created_at:%Y-%m-%d %H:%M:%S %Z}: {first}")
        for line in others:
            say(f"  {line}")
    else:
        say(f"version {predictor.version}: none yet")
    columns: list[Column[Any]] = [
        ("device", lambda p: p.device),
        ("sharing", lambda p: p.sharing_mode),
        ("trainings", lambda p: len(p.trainings)),
        ("functions", lambda p: len(p.functions)),
        ("measured", lambda p: f"{p.measured} of {_pairs(p)}"),
        ("weights", lambda p: p.weights),
    ]
    show(predictor.places, columns, output)
    if any(_wait(training) for place in predictor.places for training in place.trainings):
        say(
            "measured: pairs of a training and a function, of all but those of trainings whose names have -wait-, which are"
            " measured beside trainings alone."
        )
    if lacking:
        say(lacking)
    return lacking


def _pairs(place: "PredictorPlace") -> int:
    """Pairs of a training and a function that are there to be measured beside each other."""
    return len(place.functions) * sum(not _wait(training) for training in place.trainings)


def _wait(training: str) -> bool:
    """Whether a training is profiled with another wait for input than its model card's (``resnet50/cpu-wait-0.6/…``)."""
    return "-wait-" in training


@app.command("versions")
def versions(output: SeriesOption = SeriesOutput.TABLE) -> None:
    """The fits of the predictor, the newest first: what became of each, and why."""
    with connected() as client:
        found = client.predictor_versions()
    columns: list[Column[PredictorVersion]] = [
        ("version", lambda v: v.version),
        ("fitted", lambda v: moment(v.created_at)),
        ("state", lambda v: v.state),
        ("reason", lambda v: v.reason),
    ]
    if output is SeriesOutput.CSV:
        write_csv([header for header, _ in columns], ([get(each) for _, get in columns] for each in found))
    else:
        show(found, columns, Output(output))


@app.command("ask")
def ask(
    job: Annotated[
        str,
        typer.Argument(
            autocompletion=names.trainings, help="A job's id or name, or a workload such as resnet50/cpu/training/8."
        ),
    ],
    function: Annotated[
        str,
        typer.Argument(
            metavar="FUNCTION|TRAINING",
            autocompletion=names.functions_or_models,
            help="A function's name, a model such as bert/cpu, a workload such as bert/cpu/function/1, or another training.",
        ),
    ],
    k: Annotated[int, typer.Option("-k", min=1, max=8, help="Invocations at a time.")] = 1,
    rows: Annotated[
        int,
        typer.Option(
            min=1, max=1024, help="Rows of each; the smallest batch with as many, that was profiled, answers."
        ),
    ] = 1,
    output: OutputOption = Output.TABLE,
) -> None:
    """What a function and a training, or two trainings on one GPU instance, would cost each other."""
    with connected() as client:
        pairs = client.pair_predictions(job, function) if _TRAINING.fullmatch(function) else None
        predictions = client.predictions(job, function, k, rows) if pairs is None else []
        answers: Sequence[Any] = pairs if pairs is not None else predictions
        known = answers and all(answer.known for answer in answers)
        why = "" if known or output is not Output.TABLE else _why_unknown(client.predictor().places, (job, function))
    if pairs is not None:
        _show_pair(pairs, output)
    else:
        _show_predictions(predictions, output)
    if why:
        say(why)


def _why_unknown(places: "Sequence[PredictorPlace]", asked: Sequence[str]) -> str:
    """What is missing for a prediction; "" where all that was asked is in a table, or is a job's or a function's name."""
    from smore.domain.spelling import did_you_mean

    if not places:
        return (
            "No predictor is in force: no device has rows. `smore profile --minutes 20` measures this machine; `smore"
            " profiles import FILE` and `smore predictor retrain` fit one on rows that there are."
        )
    trainings = sorted({training for place in places for training in place.trainings})
    models = sorted({row.rpartition("/function/")[0] for place in places for row in place.functions})
    missing = []
    for asked_name in asked:
        kind, names = ("training", trainings) if "/training/" in asked_name else ("model", models)
        name = asked_name.partition("/function/")[0]
        if "/" in name and name not in names:
            missing.append(f"No device has a row of the {kind} {name}{did_you_mean(name, names) or '.'}")
    return " ".join(missing)


def _show_predictions(predictions: "Sequence[PlacePrediction]", output: Output) -> None:
    def loses(expected: float, upper: float | None) -> str:
        return f"{percent(expected)} ({'assumed' if upper is None else f'90 %: {percent(upper)}'})"

    columns: list[Column[Any]] = [
        ("device", lambda p: p.device),
        ("sharing", lambda p: p.sharing_mode),
        ("function", lambda p: p.function),
        ("training loses", lambda p: loses(p.training_degradation, p.training_degradation_upper)),
        ("function loses", lambda p: loses(p.function_degradation, p.function_degradation_upper)),
        ("from", lambda p: "a measurement" if p.measured else "the predictor" if p.known else "nothing: an assumption"),
    ]
    show(predictions, columns, output)


def _show_pair(pairs: "Sequence[PairPrediction]", output: Output) -> None:
    def loses(expected: float | None, upper: float | None) -> str:
        return "" if expected is None or upper is None else f"{percent(expected)} (90 %: {percent(upper)})"

    columns: list[Column[Any]] = [
        ("device", lambda p: p.device),
        ("sharing", lambda p: p.sharing_mode),
        ("first loses", lambda p: loses(p.training_degradation, p.training_degradation_upper)),
        ("second loses", lambda p: loses(p.beside_degradation, p.beside_degradation_upper)),
        ("from", lambda p: "a measurement" if p.measured else "the predictor" if p.known else "nothing: never paired"),
    ]
    show(pairs, columns, output)


@app.command("report")
def report(data: Data = None, out: Out = Path("predictor-report")) -> None:
    """Predicted against observed degradation, out of fold, as pictures and figures."""
    _report("predictor", data, out)


@app.command("retrain")
def retrain() -> None:
    """Fit a challenger on all rows now; it is published if it is better."""
    launch.start("learning", "retrain")


@app.command("rollback")
def rollback() -> None:
    """Put the version before in force again, as a new version."""
    launch.start("learning", "rollback")
