"""
A comparison as it lies in a folder, and files of what was measured: all that a report is made of.

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

from research.compare.claims import Claim, ClaimVerdict, JudgedClaim
from research.compare.comparison import Cell, Comparison, Plan, Row, raw_name, write_rows
from scheduler.simulation.metrics import Interval, interval
from scheduler.simulation.result import Result
from scheduler.simulation.world import PRESETS, Preset, World, load
from smore.domain.errors import InvalidSpec

FILE: Final = "comparison.json"
VERSION: Final = 1


class BadReport(InvalidSpec):
    """A folder or file that no report can be made of: the message names it, and the field where there is one."""


def seeds_in_words(seeds: Sequence[int]) -> str:
    return f"seed {seeds[0]}" if len(seeds) == 1 else f"seeds {seeds[0]} to {seeds[-1]}"


# ---- writing ---------------------------------------------------------------------------------------------------------


def write(
    folder: Path, plan: Plan, comparison: Comparison, rows: Mapping[Cell, Row], *, command: str, revision: str
) -> None:
    """All but the raw rows, which were written as they came. OSError where that fails."""
    source = Path(plan.preset) if plan.preset.endswith((".yaml", ".yml")) else PRESETS / f"{plan.preset}.yaml"
    preset = plan.load()
    copy = folder / f"{preset.name}.yaml"
    if not copy.exists() or not copy.samefile(source):
        copy.write_bytes(source.read_bytes())
    write_rows(rows, folder / "rows.csv")
    intervals = {"": comparison.intervals()}
    for name, by in comparison.configurations.items() if len(comparison.configurations) > 1 else ():
        intervals[name] = {
            f"{metric}.{policy}": interval(list(values))
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
        "trace": dict(preset.trace) | dict(plan.trace),
        "predictor": dict(preset.predictor) | dict(plan.predictor),
        "factors": dict(plan.factors),
        "interference": plan.interference,
        "worlds": plan.worlds,
        "intervals": {key: {name: _numbers(one) for name, one in found.items()} for key, found in intervals.items()},
        "claims": [
            {
                "metric": one.claim.metric,
                "first": one.claim.first,
                "other": one.claim.other,
                "advantage": _numbers(one.advantage),
                "verdict": one.verdict.value,
                "worlds": _number(one.worlds),
                "calm": _number(one.calm),
            }
            for one in comparison.judged()
        ],
    }
    (folder / FILE).write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n")
    _write_table(folder / "table.csv", intervals, len(plan.seeds))


def _write_table(path: Path, intervals: Mapping[str, Mapping[str, Interval]], seeds: int) -> None:
    with path.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["configuration", "figure", "mean", "low", "high", "seeds"])
        for key, found in intervals.items():
            for name, one in found.items():
                numbers = ["" if value is None else f"{value:.6g}" for value in _numbers(one)]
                writer.writerow([key or "mean of all", name, *numbers, seeds])


def _number(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _numbers(one: Interval) -> list[float | None]:
    return [_number(value) for value in (one.mean, one.low, one.high)]


# ---- reading ---------------------------------------------------------------------------------------------------------


def _known(value: float | None) -> float:
    return math.nan if value is None else float(value)


def _interval(numbers: Sequence[float | None]) -> Interval:
    mean, low, high = map(_known, numbers)
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
                claim=Claim(metric=one["metric"], first=one["first"], other=one["other"]),
                advantage=_interval(one["advantage"]),
                verdict=ClaimVerdict(one["verdict"]),
                worlds=_known(one["worlds"]),
                calm=_known(one["calm"]),
            )
            for one in self.document["claims"]
        ]

    @property
    def bound(self) -> float | None:
        """Mean share of deadlines that could have been met, where the case was small enough to tell."""
        found = self.document["intervals"][""].get("dsr.upper-bound")
        return None if found is None else float(found[0])

    def interval(self, name: str, configuration: str | None = None) -> Interval:
        """``<metric>.<policy>``; of all configurations together, or of one."""
        several = len(self.configurations) > 1
        return _interval(
            self.document["intervals"][configuration if several and configuration is not None else ""][name]
        )

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
        """Raw rows. Raises BadReport where they are not there."""
        path = self.folder / raw_name(Cell(configuration=configuration, seed=seed), policy)
        if not path.is_file():
            raise BadReport(f"{path}: the raw rows of this run are not there")
        return Result.read(path)

    def runs(self, configuration: str, policy: str) -> list[Result]:
        return [self.run(configuration, policy, seed) for seed in self.seeds]

    def caption(self, *notes: str) -> str:
        """Where a picture is from: what was simulated, with which load and seeds, by which code."""
        document, trace = self.document, self.document["trace"]
        load_ = (
            f"{trace.get('kind', 'poisson')} at {float(trace.get('rate_per_min', 12_000)):,.0f} a minute for"
            f" {trace.get('seconds', 60):g} s"
        )
        truth = (
            f"Simulated ({document['device'].removeprefix('simulated ')}, {document['sharing_mode']}, ground truth"
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
    """Raises BadReport for a folder that holds no comparison, or one of another version."""
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
        low, high = (_known(bounds["low"]), _known(bounds["high"])) if bounds else (math.nan, math.nan)
        return Interval(mean=self.figures.get(name, math.nan), low=low, high=high)

    def caption(self, *notes: str) -> str:
        where = [str(self.document[key]) for key in ("device", "date") if key in self.document]
        code = f"code {self.document.get('revision', 'unknown')}"
        return " ".join(
            [f"Measured: {'; '.join([*where, code])}; {self.document.get('command', self.path.name)}.", *notes]
        )


def read_measured(path: Path, wanted: Sequence[str]) -> Measured:
    """
    ``wanted``: beginnings of names of which at least one figure is expected.

    Raises BadReport for a file that does not end with such a line, OSError where there is none.
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
