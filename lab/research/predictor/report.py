"""
Draws measured rows and predictions: ``python -m lab.research.predictor.report profiles`` and ``python -m
lab.research.predictor.report predictor``.

``profiles`` repeats figures 1 to 3, table II and the four observations of the paper (section II-B) on our own rows.
``predictor`` compares predictions with measurements that the predictor was not fitted on. Each device and sharing mode
gets a folder of its own, with pictures (SVG, with ``--png`` also PNG) and ``report.md``. The same rows give the same
files.

This module reads rows and writes files; ``lab.research.predictor.observations`` evaluates the rows,
``lab.research.predictor.pictures`` draws.
"""

import argparse
import hashlib
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final

from lab.research.predictor.held_out import SEED, Fit, JudgedPredictions, judge
from lab.research.predictor.measured import samples
from lab.research.predictor.observations import as_described
from lab.research.predictor.text import predictor_text, profile_text
from lab.simulation.recipes import RECIPES
from ml.predict.samples import DIRECTIONS, Direction
from ml.rows import BadRow, PlaceProfile, Row, profiles, read

#: Folder of the checkout's measured rows.
DATA: Final = Path(__file__).parents[3] / "ml" / "data"

#: Draw into an existing folder and yield the paths: see lab.research.predictor.pictures.
DrawProfile = Callable[[PlaceProfile, Path], Iterable[Path]]
DrawPredictor = Callable[[PlaceProfile, Mapping[Direction, JudgedPredictions | None], Path], Iterable[Path]]


def by_preset(profile: PlaceProfile) -> Iterator[tuple[str, PlaceProfile]]:
    """
    The rows of each preset, those with another wait for input than the model card's among them: a small and a published
    model of one name are different models. Raises BadRow for a row of two presets.
    """
    presets = {workload.size for workload in profile.solo}
    for row in profile.colocations:
        of_row = {member.workload.size for member in row.members}
        if len(of_row) > 1:
            raise BadRow(f"a co-location of {row.at} mixes models of two presets")
        presets |= of_row
    for preset in sorted(presets):
        yield (
            preset,
            replace(
                profile,
                solo={workload: solo for workload, solo in profile.solo.items() if workload.size == preset},
                colocations=[row for row in profile.colocations if row.members[0].workload.size == preset],
            ),
        )


def folder_name(profile: PlaceProfile, preset: str) -> str:
    """A folder's name; its digits distinguish places with similar names."""
    text = "/".join([*profile.place.key, preset])
    readable = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:60].strip("-")
    return f"{readable}-{hashlib.sha256(text.encode()).hexdigest()[:6]}"


def report_profiles(measured: Iterable[PlaceProfile], out: Path, draw: DrawProfile) -> Iterator[Path]:
    """Draw and write the profiles of each place; yields the paths. Raises OSError."""
    for profile in measured:
        for preset, part in by_preset(profile):
            folder = out / folder_name(profile, preset)
            folder.mkdir(parents=True, exist_ok=True)
            yield from draw(as_described(part), folder)
            (folder / "report.md").write_text(profile_text(part, preset))
            yield folder / "report.md"


def report_predictor(
    measured: Iterable[PlaceProfile], out: Path, draw: DrawPredictor, *, fit: Fit, seed: int = SEED
) -> Iterator[Path]:
    """Judge, draw and write the predictor of each place; yields the paths. Raises OSError."""
    for profile in measured:
        for preset, part in by_preset(profile):
            folder = out / folder_name(profile, preset)
            by_direction = {direction: samples(part, direction, name=folder.name) for direction in DIRECTIONS}
            judged = {direction: judge(pairs, fit, seed) for direction, pairs in by_direction.items()}
            folder.mkdir(parents=True, exist_ok=True)
            yield from draw(part, judged, folder)
            (folder / "report.md").write_text(predictor_text(part, preset, judged))
            yield folder / "report.md"


def gather(sources: Sequence[Path]) -> list[Row]:
    """
    The rows of all files, and of all ``*.jsonl`` of folders. Raises BadRow for a bad one or none, OSError for a file
    that is absent.
    """
    files: list[Path] = []
    for source in sources:
        files += sorted(source.glob("*.jsonl")) if source.is_dir() or source == DATA else [source]
    rows = [row for file in files for row in read(file)]
    if not rows:
        elsewhere = (
            "; python -m lab.measure.profile measures some, --data names other files or folders"
            if list(sources) == [DATA]
            else ""
        )
        raise BadRow(f"no rows in {', '.join(map(str, sources))}{elsewhere}")
    return rows


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="lab.research.predictor.report",
        description="Draw measured profiles, or the predictions of held-out pairs.",
    )
    parser.add_argument("what", choices=("profiles", "predictor"))
    parser.add_argument(
        "--data", type=Path, nargs="+", default=[DATA], help="files of rows, or folders of *.jsonl (ml/data)"
    )
    parser.add_argument(
        "--out", type=Path, help="folder, made where it is absent (build/report/profiles or build/report/predictor)"
    )
    parser.add_argument("--png", action="store_true", help="each picture as PNG too")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str]) -> int:
    options = parse(arguments)
    try:
        from lab.research.predictor import pictures
    except ModuleNotFoundError as error:
        if error.name != "matplotlib":
            raise
        print(
            "lab.research.predictor.report: matplotlib is not installed; the extra 'report' holds it: pip install -e"
            " '.[report]'",
            file=sys.stderr,
        )
        return 2
    out = options.out or Path("build/report") / options.what
    try:
        measured = profiles(gather(options.data))
        if options.what == "profiles":
            written = report_profiles(measured, out, partial(pictures.draw_profile, png=options.png))
        else:
            written = report_predictor(
                measured, out, partial(pictures.draw_predictor, png=options.png), fit=RECIPES["ours"].fit
            )
        for path in written:
            print(path)
    except (BadRow, OSError, UnicodeDecodeError) as error:
        print(f"lab.research.predictor.report: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
