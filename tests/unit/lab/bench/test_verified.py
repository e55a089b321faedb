"""The column of the Docker engine in docs/status.md, from runs of lab.bench.compose."""

import json
from pathlib import Path
from typing import Any

import pytest

from lab.bench import verified
from lab.bench.compose.steps import Steps

STEPS = {name for names in verified.DOCKER_PROOFS.values() for name in names}


def result(store: str, **steps: str) -> dict[str, Any]:
    """What lab.bench.compose prints after a run in which every step but these was ok."""
    return {
        "command": "lab.bench.compose",
        "date": "2026-12-01T08:00:00+00:00",
        "revision": "abc",
        "engine": "Docker 29.0.0, overlay2",
        "image_store": store,
        "steps": {**dict.fromkeys(STEPS, "ok"), **steps},
    }


def docker_cells(page: str) -> dict[str, str]:
    rows = [line.strip("|").split(" | ") for line in page.splitlines() if line.startswith("| ")]
    return {row[0].strip(): row[3].strip() for row in rows if len(row) == 4}


def test_every_step_that_proves_something_exists() -> None:
    nothing: Any = None
    assert STEPS - {"load"} <= set(Steps(nothing, nothing, nothing).by_name)


@pytest.mark.parametrize("ended", ["failed", "not taken"])
def test_what_every_run_showed_is_written_into_the_column_of_the_engine(ended: str, tmp_path: Path) -> None:
    page, runs = tmp_path / "status.md", [result("classic"), result("containerd", spy=ended)]
    if ended == "not taken":
        del runs[1]["steps"]["spy"]
    page.write_text(before := verified.PAGE.read_text())
    (tmp_path / "runs").write_text("some progress\n" + "".join(f"{json.dumps(run)}\n" for run in runs))
    assert verified.main([str(tmp_path / "runs"), "--page", str(page)]) == 0
    was, now = docker_cells(before), docker_cells(page.read_text())
    changed = {feature for feature in was if was[feature] != now[feature]}
    assert changed == set(verified.DOCKER_PROOFS) - {"functions shut in"}
    assert now["kills of every process"] == (
        "2026-12-01, Docker 29.0.0 (load, kill, keeper; classic image store at abc, containerd image store at abc)"
    )
