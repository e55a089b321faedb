"""What the platform knows over time, in a terminal: columns as lines of blocks, or whole as JSON, YAML or CSV."""

import csv
import io
import math
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import typer

from smore.cli.terminal import (
    AllProjectsOption,
    Column,
    Output,
    ProjectOption,
    cell,
    connected,
    moment,
    ms,
    percent,
    say,
    show,
    show_value,
    span_s,
    write,
)

if TYPE_CHECKING:
    from smore_client.types import FunctionSeries, GpuColumns, GpuLanes, GpuSeries, HarvestPart, HarvestTotal, JobSeries


class SeriesOutput(StrEnum):
    TABLE = "table"
    JSON = "json"
    YAML = "yaml"
    CSV = "csv"


SeriesOption = Annotated[SeriesOutput, typer.Option("-o", "--output", help="How to show it.")]
#: Of commands that show a value whole where no time is named.
ShownOption = Annotated[
    SeriesOutput | None,
    typer.Option(
        "-o", "--output", help="How to show it; csv with --since alone.", show_default="yaml, or with --since table"
    ),
]
SinceOption = Annotated[str, typer.Option(metavar="TIME", help="As far back: 30m, 6h, 7d.")]
OverTimeOption = Annotated[
    str | None, typer.Option("--since", metavar="TIME", help="Over time, as far back: 30m, 6h, 7d.")
]
#: A column of a series: what it is called, its values, and how one of them is written.
Drawn = tuple[str, Sequence[Any], Callable[[Any], object]]

_BLOCKS: Final = "▁▂▃▄▅▆▇█"
#: Blocks of a line.
WIDTH: Final = 40


def span(since: str, output: SeriesOutput) -> dict[str, Any]:
    """What a series is asked for: its begin and, where it is drawn, a step for each block."""
    seconds = span_s(since)
    step_s = max(1, math.ceil(seconds / WIDTH)) if output is SeriesOutput.TABLE else None
    return {"since": datetime.now(UTC) - timedelta(seconds=seconds), "step_s": step_s}


def whole(output: SeriesOutput | None) -> Output:
    """How a value is shown that is no series. Raises typer.BadParameter for CSV."""
    if output is SeriesOutput.CSV:
        raise typer.BadParameter("csv is for a series: add --since", param_hint="--output")
    return Output(output or SeriesOutput.YAML)


def sparkline(values: Sequence[float | None]) -> str:
    """A block for each value, as high as its share of the largest; a space for None."""
    top = max((value for value in values if value is not None), default=0)
    return "".join(
        " " if value is None else _BLOCKS[min(7, max(0, int(value / top * 8)))] if top > 0 else _BLOCKS[0]
        for value in values
    )


def show_gpu(gpu: str, series: "GpuSeries", output: SeriesOutput) -> None:
    of: GpuColumns = series.gpus[gpu]
    drawn = [
        ("used", of.used, percent),
        ("by functions", of.functions, percent),
        ("memory MiB", of.memory_mib, _whole),
    ]
    _show(gpu, series, drawn, output)


def show_lanes(lanes: "GpuLanes", output: SeriesOutput) -> None:
    names = sorted({(life.project, life.function) for life in lanes.warm})

    def warm(name: tuple[str, str]) -> list[float]:
        lives = [life for life in lanes.warm if (life.project, life.function) == name]
        return [
            float(any(one.since < at + lanes.step_s and (one.until is None or one.until >= at) for one in lives))
            for at in lanes.at
        ]

    drawn: list[Drawn] = [
        ("closed windows", lanes.closed, percent),
        ("duty", lanes.duty, percent),
        ("invocations ended", lanes.ended, _whole),
        *((f"warm: {'/'.join(name)}", warm(name), _whole) for name in names),
    ]
    _show(lanes.gpu, lanes, drawn, output)


def show_function(series: "FunctionSeries", output: SeriesOutput) -> None:
    drawn: list[Drawn] = [
        ("arrivals", series.arrivals, _whole),
        ("succeeded", series.succeeded, _whole),
        ("in time", series.met, _whole),
        ("failed", series.failed, _whole),
        ("cold", series.cold, _whole),
        *((f"cold: {kind}", counts, _whole) for kind, counts in series.cold_reasons.items()),
        ("wait", series.wait_s, ms),
        ("load", series.load_s, ms),
        ("run", series.run_s, ms),
        ("whole", series.whole_s, ms),
        ("p50", series.p50, ms),
        ("p95", series.p95, ms),
        ("p99", series.p99, ms),
        ("worst", series.worst_s, ms),
    ]
    _show(series.function, series, drawn, output)


def show_job(series: "JobSeries", output: SeriesOutput) -> None:
    drawn: list[Drawn] = [
        ("iterations", series.iterations, _whole),
        ("alone", series.alone_s, ms),
        ("beside functions", series.beside_s, ms),
        ("duty", series.duty, percent),
        ("harvested s", series.harvested_s, cell),
        ("lost", series.lost, percent),
        ("lost, low", series.lost_low, percent),
        ("lost, high", series.lost_high, percent),
    ]
    _show(series.name, series, drawn, output)


def _whole(value: float | None) -> str | None:
    return None if value is None else f"{value:.0f}"


def _show(
    name: str, series: "GpuSeries | GpuLanes | FunctionSeries | JobSeries", drawn: Sequence[Drawn], output: SeriesOutput
) -> None:
    if output is SeriesOutput.CSV:
        times = (datetime.fromtimestamp(at, UTC).isoformat() for at in series.at)
        write_csv(
            ["at", *(header for header, *_ in drawn)], zip(times, *(values for _, values, _ in drawn), strict=True)
        )
    elif output is not SeriesOutput.TABLE:
        show_value(series, Output(output))
    else:
        say(f"{name} from {moment(series.since)} to {moment(series.until)}, a block for {series.step_s} s")
        columns: list[Column[Drawn]] = [
            ("", lambda d: d[0]),
            ("over time", lambda d: sparkline(d[1])),
            ("least", lambda d: d[2](min((each for each in d[1] if each is not None), default=None))),
            ("most", lambda d: d[2](max((each for each in d[1] if each is not None), default=None))),
            ("last", lambda d: d[2](next((each for each in reversed(d[1]) if each is not None), None))),
        ]
        show(drawn, columns, Output.TABLE, optional=("least", "most"))


def write_csv(headers: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print a table as CSV; an empty field for None."""
    text = io.StringIO()
    lines = csv.writer(text, lineterminator="\n")
    lines.writerow(headers)
    lines.writerows(rows)
    write(text.getvalue(), end="")


ByOption = Annotated[Literal["project", "function", "gpu"], typer.Option(help="What it is summed up by.")]


def harvest(
    by: ByOption = "project",
    step: Annotated[Literal["hour", "day"], typer.Option(help="How much a line is, of UTC.")] = "day",
    since: SinceOption = "7d",
    project: ProjectOption = None,
    all_projects: AllProjectsOption = False,
    output: SeriesOption = SeriesOutput.TABLE,
) -> None:
    """
    What functions got out of the GPU instances, and what that cost the trainings.

    Column "GPU s": seconds that functions ran. Column "saved": runs that were warm only because an instance was held. Column
    "trainings lost": what they lost to functions, of their iteration time, with its 95 % interval.
    """
    begin = datetime.now(UTC) - timedelta(seconds=span_s(since))
    with connected() as client:
        found = client.harvest(by, step=step, since=begin, project=project, all_projects=all_projects)
    if output is SeriesOutput.CSV:
        names = [name for name in found.parts[0].__struct_fields__ if name != "at"] if found.parts else ["key"]
        rows = ([_day(part.at, "hour"), *(getattr(part, name) for name in names)] for part in found.parts)
        write_csv(["at", *names], rows)
        return
    if output is not SeriesOutput.TABLE:
        show_value(found, Output(output))
        return
    columns: list[Column[HarvestPart]] = [
        ("at (UTC)", lambda p: _day(p.at, step)),
        (by, lambda p: p.key),
        ("GPU s", lambda p: f"{p.run_s:.1f}"),
        ("ended", lambda p: p.invocations),
        ("in time", lambda p: p.met),
        ("cold", lambda p: p.cold),
        ("saved", lambda p: p.saved),
        ("trainings lost", _lost),
    ]
    show(found.parts, columns, Output.TABLE, optional=("saved", "cold", "ended"))


def usage(
    by: ByOption = "project",
    since: SinceOption = "30d",
    price: Annotated[
        str | None,
        typer.Option(metavar="DEVICE=PRICE,…", help="What an hour costs, by a part of the device's name: h100=2.5."),
    ] = None,
    project: ProjectOption = None,
    all_projects: AllProjectsOption = False,
    output: SeriesOption = SeriesOutput.TABLE,
) -> None:
    """
    What the platform brought in all: hours of GPU instances, money, and what it cost the trainings.

    It begins with a day of UTC. Column "GPU h": hours that functions ran. Column "money": what these cost at the prices
    that --price names. Column "trained h": hours for which trainings held GPU instances; "lost h": about how many of these
    were lost to functions. Column "trainings lost": the same as a part of their iteration time, with its 95 % interval.
    """
    begin = datetime.now(UTC) - timedelta(seconds=span_s(since))
    with connected() as client:
        found = client.harvest(by, since=begin, price=price, project=project, all_projects=all_projects)
    if output is SeriesOutput.CSV:
        names = found.totals[0].__struct_fields__ if found.totals else ("key",)
        write_csv(names, ([getattr(total, name) for name in names] for total in found.totals))
        return
    if output is not SeriesOutput.TABLE:
        show_value({"since": found.since, "until": found.until, "totals": found.totals}, Output(output))
        return
    say(f"from {moment(found.since)} to {moment(found.until)}")
    columns: list[Column[HarvestTotal]] = [
        (by, lambda t: t.key),
        ("GPU h", lambda t: f"{t.run_s / 3600:.3f}"),
        ("money", lambda t: None if t.money is None else f"{t.money:.2f}"),
        ("ended", lambda t: t.invocations),
        ("in time", lambda t: t.met),
        ("trained h", lambda t: f"{t.trained_s / 3600:.2f}"),
        ("lost h", lambda t: None if t.lost_s is None else f"{t.lost_s / 3600:.3f}"),
        ("trainings lost", _lost),
    ]
    show(found.totals, columns, Output.TABLE, optional=("ended", "in time"))
    for device in found.unpriced:
        say(f"without a price: {device or 'GPU instances whose device is not known'}")


def _day(at: int, step: str) -> str:
    return f"{datetime.fromtimestamp(at, UTC):{'%Y-%m-%d' if step == 'day' else '%Y-%m-%dT%H:%MZ'}}"


def _lost(part: "HarvestPart | HarvestTotal") -> str | None:
    if part.lost is None:
        return None
    return f"{percent(part.lost)} ({percent(part.lost_low)} to {percent(part.lost_high)})"
