"""
The GPU column of the table in ``docs/status.md``: ``python -m bench.verified .gpu/verified.json``.

A feature is *verified* where all of its stages of ``bench.gpu`` were ``ok`` on the same GPU; ``verified.json`` holds
these features. The command writes date, device and evidence into their rows; the other rows stay as they are.
"""

import argparse
import json
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

PAGE: Final = Path(__file__).resolve().parents[1] / "docs" / "status.md"
BEGIN: Final = "<!-- verified on: bench.verified writes the GPU column -->"
END: Final = "<!-- end of verified on -->"
#: The column of the table that is written, from 0.
COLUMN: Final = 2

#: Feature, as the table names it → the stages that together show it.
PROOFS: Final[Mapping[str, Sequence[str]]] = {
    "invocations, batching, warm pool, jobs": ("harvest0", "path"),
    "kills of every process": ("kills",),
    "NVML: health, memory of processes, GPM": ("facts", "tests"),
    "memory caps on CUDA": ("tests",),
    "profiler (`ml.profile`), measured rows": ("pairs",),
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


def write(page: str, rows: Mapping[str, Mapping[str, str]]) -> str:
    """The page with the cells of these rows written. ValueError where the table or one of its rows is missing."""
    table = re.search(f"{re.escape(BEGIN)}\n(.*?){re.escape(END)}", page, re.DOTALL)
    if table is None:
        raise ValueError(f"there is no table between {BEGIN} and {END}")
    lines, missing = table[1].splitlines(), set(rows)
    for number, line in enumerate(lines):
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        row = rows.get(cells[0]) if len(cells) > COLUMN else None
        if row is not None:
            missing.discard(cells[0])
            cells[COLUMN] = f"{row['date']}, {row['device']} ({row['evidence']})"
            lines[number] = f"| {' | '.join(cells)} |"
    if missing:
        raise ValueError(f"the table has no row {', '.join(sorted(missing))}")
    return page[: table.start(1)] + "\n".join(lines) + "\n" + page[table.end(1) :]


def main(words: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="bench.verified", description="Write the GPU column of docs/status.md.")
    parser.add_argument("file", type=Path, help="verified.json of bench.gpu")
    parser.add_argument("--page", type=Path, default=PAGE)
    asked = parser.parse_args(words)
    rows: dict[str, dict[str, str]] = json.loads(asked.file.read_text())
    asked.page.write_text(write(asked.page.read_text(), rows))
    print(f"{len(rows)} rows")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
