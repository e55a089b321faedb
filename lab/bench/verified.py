"""
Two columns of the table in ``docs/status.md``: ``python -m lab.bench.verified FILE``.

GPU: a feature is *verified* where all of its stages of ``lab.bench.gpu`` were ``ok`` on the same GPU; ``verified.json``
holds these features. Docker engine: a feature is verified where all of its steps were ``ok`` in each run of
``lab.bench.compose --json`` whose result is a line of the file (one a line, such as one for each image store).

The command writes date, device and evidence into the rows of these features; the other rows stay as they are.
"""

import argparse
import json
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

PAGE: Final = Path(__file__).resolve().parents[2] / "docs" / "status.md"
BEGIN: Final = "<!-- verified on: lab.bench.verified writes the columns GPU and Docker engine -->"
END: Final = "<!-- end of verified on -->"
#: The columns of the table that are written, from 0.
GPU: Final = 2
DOCKER: Final = 3

#: Feature, as the table names it → the stages that together show it.
PROOFS: Final[Mapping[str, Sequence[str]]] = {
    "invocations, batching, warm pool, jobs": ("harvest0", "path"),
    "kills of every process": ("kills",),
    "NVML: health, memory of processes, GPM": ("facts", "tests"),
    "memory caps on CUDA": ("tests",),
    "profiler (`lab.measure.profile`), measured rows": ("pairs",),
    "degradation table of rows measured there": ("pairs", "harvest"),
    "budgets: accounts, closed loop, statement": ("harvest0", "harvest"),
    "prewarming: live holds; standby runners": ("path", "cold"),
    "Open Inference Protocol (tritonclient)": ("oip",),
    "uploaded folders, environments": ("uploads",),
    "functions shut in": ("cell", "hostile"),
    "large payloads in memory beside Redis": ("platform",),
    "weights parked in pinned host memory": ("tests", "parking", "cold"),
    "unregistered processes on a GPU": ("tests", "platform"),
}
#: The same for the Docker engine, with steps of ``lab.bench.compose``.
DOCKER_PROOFS: Final[Mapping[str, Sequence[str]]] = {
    "invocations, batching, warm pool, jobs": ("load",),
    "kills of every process": ("load", "kill", "keeper"),
    "uploaded folders, environments": ("function", "environment"),
    "functions shut in": ("spy",),
    "`docker-compose*.yml`": ("load", "restart", "update", "second", "down"),
}


def verified(stages: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, str]]:
    """
    Each verified feature with ``date``, ``device``, ``evidence`` and ``software`` (driver and torch, several where the
    stages ran with several). ``stages``: the content of ``state.json``; a stage on a CPU partition verifies nothing.
    """
    rows = {}
    for feature, needed in PROOFS.items():
        proofs = [stages.get(name, {}) for name in needed]
        if any(stage.get("status") != "ok" or stage.get("on") != "cuda" for stage in proofs):
            continue
        devices = {stage.get("device", "") for stage in proofs}
        if len(devices) == 1:
            evidence = (f"{name} at {stage['revision']}" for name, stage in zip(needed, proofs, strict=True))
            rows[feature] = {
                "date": max(stage["date"] for stage in proofs)[:10],
                "device": devices.pop(),
                "evidence": "; ".join(evidence),
                "software": "; ".join(sorted({stage["software"] for stage in proofs})),
            }
    return rows


def verified_under_docker(runs: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, str]]:
    """Each feature verified by all of these results of ``lab.bench.compose``, with ``date``, ``device`` and ``evidence``."""
    rows = {}
    for feature, needed in DOCKER_PROOFS.items():
        if not runs or any(run.get("steps", {}).get(name) != "ok" for run in runs for name in needed):
            continue
        rows[feature] = {
            "date": max(run["date"] for run in runs)[:10],
            # Without the storage driver, which follows from the image store.
            "device": ", ".join(dict.fromkeys(run["engine"].partition(",")[0] for run in runs)),
            "evidence": f"{', '.join(needed)}; "
            + ", ".join(f"{run['image_store']} image store at {run['revision']}" for run in runs),
        }
    return rows


def write(page: str, rows: Mapping[str, Mapping[str, str]], column: int = GPU) -> str:
    """
    The page with the cells of these rows written in that column. ValueError where the table or one of its rows is
    missing.
    """
    table = re.search(f"{re.escape(BEGIN)}\n(.*?){re.escape(END)}", page, re.DOTALL)
    if table is None:
        raise ValueError(f"there is no table between {BEGIN} and {END}")
    lines, missing = table[1].splitlines(), set(rows)
    for number, line in enumerate(lines):
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        row = rows.get(cells[0]) if len(cells) > column else None
        if row is not None:
            missing.discard(cells[0])
            cells[column] = f"{row['date']}, {row['device']} ({row['evidence']})"
            lines[number] = f"| {' | '.join(cells)} |"
    if missing:
        raise ValueError(f"the table has no row {', '.join(sorted(missing))}")
    return page[: table.start(1)] + "\n".join(lines) + "\n" + page[table.end(1) :]


def main(words: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="lab.bench.verified", description="Write a column of the table in docs/status.md."
    )
    parser.add_argument(
        "file", type=Path, help="verified.json of lab.bench.gpu, or what lab.bench.compose --json printed"
    )
    parser.add_argument("--page", type=Path, default=PAGE)
    asked = parser.parse_args(words)
    results = [json.loads(line) for line in asked.file.read_text().splitlines() if line.startswith('{"command"')]
    if results:
        rows, column = verified_under_docker(results), DOCKER
    else:
        rows, column = json.loads(asked.file.read_text()), GPU
    asked.page.write_text(write(asked.page.read_text(), rows, column))
    print(f"{len(rows)} rows")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
