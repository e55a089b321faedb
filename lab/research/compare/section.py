"""
The folder of a comparison, and the files of measurements: what a report is made of.

A folder holds ``comparison.json`` (options, intervals, claims), ``rows.csv`` (a line for each run), ``table.csv``
(means with 95 % intervals), the preset as it was, and an ``.npz`` of raw rows for each run of the preset's own world.
The same comparison gives the same bytes.
"""

import csv
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Final

from lab.research.compare.by_world import errors_in_words
from lab.research.compare.claims import Claim, ClaimVerdict, JudgedClaim
from lab.research.compare.comparison import Cell, Comparison, Plan, Row, count_undefined, exceeded, raw_name, write_rows
from lab.research.compare.measures import interval_of
from lab.simulation import traces
from lab.simulation.metrics import Interval
from lab.simulation.result import Result
from lab.simulation.world import PRESETS, Preset, World, load
from smore.domain.errors import InvalidSpec

FILE: Final = "comparison.json"
VERSION: Final = 1


class BadReport(InvalidSpec):
    """A folder or file from which no report can be made; the message names it, and the field if there is one."""


def seeds_in_words(seeds: Sequence[int]) -> str:
    return f"seed {seeds[0]}" if len(seeds) == 1 else f"seeds {seeds[0]} to {seeds[-1]}"


# ---- writing ---------------------------------------------------------------------------------------------------------


def write(
    folder: Path, plan: Plan, comparison: Comparison, rows: Mapping[Cell, Row], *, command: str, revision: str
) -> None:
    """Write a comparison into its folder, without the raw rows, which each run wrote. Raises OSError."""
    source = Path(plan.preset) if plan.preset.endswith((".yaml", ".yml")) else PRESETS / f"{plan.preset}.yaml"
    preset = plan.load()
    copy = folder / f"{preset.name}.yaml"
    if not copy.exists() or not copy.samefile(source):
        copy.write_bytes(source.read_bytes())
    write_rows(rows, folder / "rows.csv")
    intervals = {"": comparison.intervals()}
    undefined = {"": comparison.undefined()}
    for name, by in comparison.configurations.items() if len(comparison.configurations) > 1 else ():
        intervals[name] = {
            f"{metric}.{policy}": interval_of(metric, values)
            for policy, metrics in by.items()
            for metric, values in metrics.items()
        }
        undefined[name] = {
            f"{metric}.{policy}": count_undefined(values)
            for policy, metrics in by.items()
            for metric, values in metrics.items()
        }
    world = next(iter(preset.worlds.values()))
    document = {
        "version": VERSION,
        "command": command,
        "revision": revision,
        "preset": preset.name,
        "about": preset.about,
        "policies": list(plan.policies),
        "seeds": list(plan.seeds),
        "configurations": list(preset.worlds),
        "device": world.interference_model.device,
        "sharing_mode": world.interference_model.sharing_mode,
        "truth": world.interference_model.name,
        "trace": traces.changed(preset.trace, plan.trace),
        "trace_run": plan.trace_in_words(),
        "same": comparison.same(),
        "predictors": errors_in_words(plan, comparison),
        "exceeded": exceeded(plan, comparison),
        "predictor": dict(preset.predictor) | dict(plan.predictor),
        "factors": dict(plan.factors),
        "interference": plan.interference,
        "worlds": plan.worlds,
        "intervals": {key: {name: _numbers(value) for name, value in by.items()} for key, by in intervals.items()},
        # How many seeds have no value, for the figures that are undefined.
        "undefined": {key: {name: count for name, count in by.items() if count} for key, by in undefined.items()},
        "claims": [
            {
                "metric": judged.claim.metric,
                "first": judged.claim.first,
                "other": judged.claim.other,
                "advantage": _numbers(judged.advantage),
                "verdict": judged.verdict.value,
                "worlds": _number(judged.worlds),
                "calm": _number(judged.calm),
            }
            for judged in comparison.judged()
        ],
    }
    (folder / FILE).write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n")
    _write_table(folder / "table.csv", intervals, len(plan.seeds))


def _write_table(path: Path, intervals: Mapping[str, Mapping[str, Interval]], seeds: int) -> None:
    with path.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["configuration", "figure", "mean", "low", "high", "seeds"])
        for key, by_name in intervals.items():
            for name, value in by_name.items():
                numbers = ["" if number is None else f"{number:.6g}" for number in _numbers(value)]
                writer.writerow([key or "mean of all", name, *numbers, seeds])


def _number(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _numbers(value: Interval) -> list[float | None]:
    return [_number(number) for number in (value.mean, value.low, value.high)]


# ---- reading ---------------------------------------------------------------------------------------------------------


def _or_nan(value: float | None) -> float:
    return math.nan if value is None else float(value)


def _interval(numbers: Sequence[float | None]) -> Interval:
    mean, low, high = map(_or_nan, numbers)
    return Interval(mean=mean, low=low, high=high)


@dataclass(frozen=True, kw_only=True)
class Section:
    """One comparison in a folder. ``document``: the content of its file; read with :func:`read`."""

    folder: Path
    document: Mapping[str, Any] = field(repr=False)

    @property
    def preset(self) -> str:
        return str(self.document["preset"])

    @property
    def policies(self) -> list[str]:
        return list(self.document["policies"])

    @property
    def seeds(self) -> list[int]:
        return list(self.document["seeds"])

    @property
    def configurations(self) -> list[str]:
        return list(self.document["configurations"])

    @cached_property
    def judged(self) -> list[JudgedClaim]:
        return [
            JudgedClaim(
                claim=Claim(metric=entry["metric"], first=entry["first"], other=entry["other"]),
                advantage=_interval(entry["advantage"]),
                verdict=ClaimVerdict(entry["verdict"]),
                worlds=_or_nan(entry["worlds"]),
                calm=_or_nan(entry["calm"]),
            )
            for entry in self.document["claims"]
        ]

    @property
    def trace_run(self) -> str:
        """What was run in place of the preset's own trace, '' = that was run."""
        return str(self.document.get("trace_run", ""))

    @property
    def same(self) -> list[list[str]]:
        """Groups of policies that do not differ in any figure of any seed."""
        return list(self.document.get("same", []))

    @property
    def predictors(self) -> list[str]:
        """Sentences: how far the predictors of what policies were told err."""
        return list(self.document.get("predictors", []))

    @property
    def exceeded(self) -> list[str]:
        """Sentences: where trainings lost more than a policy's limit, and why."""
        return list(self.document.get("exceeded", []))

    @property
    def bound(self) -> float | None:
        """Mean share of deadlines that could have been met; None if the case was too large to compute it."""
        bound = self.document["intervals"][""].get("dsr.upper-bound")
        return None if bound is None else float(bound[0])

    def interval(self, name: str, configuration: str | None = None) -> Interval:
        """``<metric>.<policy>``; of all configurations together, or of one."""
        several = len(self.configurations) > 1
        return _interval(
            self.document["intervals"][configuration if several and configuration is not None else ""][name]
        )

    def undefined(self, name: str) -> int:
        """The number of seeds in which a figure has no value, of all configurations together."""
        # Folders of older versions do not say it.
        return int(self.document.get("undefined", {}).get("", {}).get(name, 0))

    @cached_property
    def _loaded(self) -> Preset:
        path = self.folder / f"{self.preset}.yaml"
        document = self.document
        return load(
            str(path),
            factors=document["factors"],
            interference=document["interference"],
            interference_model=document["truth"],
        )

    def world(self, configuration: str) -> World:
        return self._loaded.worlds[configuration]

    def run(self, configuration: str, policy: str, seed: int) -> Result:
        """The raw rows of a run. Raises BadReport if their file is missing."""
        path = self.folder / raw_name(Cell(configuration=configuration, seed=seed), policy)
        if not path.is_file():
            raise BadReport(f"{path}: the raw rows of this run are missing")
        return Result.read(path)

    def runs(self, configuration: str, policy: str) -> list[Result]:
        return [self.run(configuration, policy, seed) for seed in self.seeds]

    def caption(self, *notes: str) -> str:
        """The origin of a picture: what was simulated, with which load and seeds, by which code."""
        document, trace = self.document, self.document["trace"]
        kind = trace.get("kind", "poisson")
        load_ = (
            f"{kind} {Path(str(trace['path'])).name}"
            if kind in traces.WHOLE
            else f"{kind} at {float(trace.get('rate_per_min', 12_000)):,.0f} a minute for {trace.get('seconds', 60):g} s"
        )
        truth = (
            f"Simulated ({document['device'].removeprefix('simulated ')}, {document['sharing_mode']}, interference model"
            f" {document['truth']})"
        )
        changed = "" if document["interference"] else " No interference."
        if document["factors"]:
            changed += (
                " Changed: " + ", ".join(f"{name} x {factor:g}" for name, factor in document["factors"].items()) + "."
            )
        start = (
            f"{truth}; preset {self.preset}, {load_}; {seeds_in_words(self.seeds)}; code"
            f" {document['revision']}.{changed}"
        )
        return " ".join([start, *notes])


def read(folder: Path) -> Section:
    """The comparison in a folder. Raises BadReport for a folder without one, or with one of another version."""
    path = folder / FILE
    try:
        document = json.loads(path.read_text())
    except OSError as error:
        raise BadReport(f"{path}: {error.strerror}: `compare --out` makes it") from error
    except ValueError as error:
        raise BadReport(f"{path}: not JSON: {error}") from error
    if not isinstance(document, dict) or document.get("version") != VERSION:
        raise BadReport(f"{path}: version: {VERSION} is expected", field="version")
    return Section(folder=folder, document=document)


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """The last line of a benchmark: its figures, and where they were taken."""

    path: Path
    document: Mapping[str, Any]
    figures: Mapping[str, float]

    def interval(self, name: str) -> Interval:
        bounds = self.document.get("intervals", {}).get(name)
        low, high = (_or_nan(bounds["low"]), _or_nan(bounds["high"])) if bounds else (math.nan, math.nan)
        return Interval(mean=self.figures.get(name, math.nan), low=low, high=high)

    def caption(self, *notes: str) -> str:
        where = [str(self.document[key]) for key in ("device", "date") if key in self.document]
        code = f"code {self.document.get('revision', 'unknown')}"
        return " ".join(
            [f"Measured: {'; '.join([*where, code])}; {self.document.get('command', self.path.name)}.", *notes]
        )


def read_measured(path: Path, wanted: Sequence[str]) -> Measured:
    """
    The result at the end of a benchmark's output. ``wanted``: beginnings of names; at least one figure has one of them.

    Raises BadReport for a file that does not end with such a line, OSError for one that is missing.
    """
    lines = path.read_text().splitlines()
    try:
        document = json.loads(lines[-1])
        figures = {name: float(value) for name, value in document["figures"].items() if value is not None}
    except (ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
        raise BadReport(
            f"{path.name}:{max(1, len(lines))}: figures: the last line is no result of a benchmark", field="figures"
        ) from error
    if not any(name.startswith(tuple(wanted)) for name in figures):
        raise BadReport(f"{path.name}:{len(lines)}: figures: none begins with {' or '.join(wanted)}", field="figures")
    return Measured(path=path, document=document, figures=figures)
