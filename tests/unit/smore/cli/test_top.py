"""What ``smore top`` draws of the rows of the stream."""

import io
from typing import Any

import pytest
from rich.console import Console, Group

from api.schemas.gpus import Gpu
from api.schemas.jobs import Job
from api.schemas.live import LiveProblem
from api.schemas.queues import Queue
from smore.cli.top import SORTS, Order, _tables
from tests.support.answers import ANSWERS


def drawn(
    rows: dict[str, list[dict[str, Any]]], width: int, height: int | None, sort: Order = SORTS["u"][1]
) -> list[str]:
    console = Console(width=width, height=height or 1000, file=io.StringIO(), highlight=False)
    console.print(Group(*_tables(rows, height, sort)))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue().splitlines()


@pytest.fixture
def rows() -> dict[str, list[dict[str, Any]]]:
    gpu = Gpu(**ANSWERS["Gpus"]["gpus"][0]).model_dump(mode="json")
    job = Job(**ANSWERS["Jobs"]["jobs"][0]).model_dump(mode="json")
    queue = Queue(**ANSWERS["Queues"]["queues"][0]).model_dump(mode="json") | {"project": "default"}
    problem = LiveProblem(id="p", kind="silent", text="cpu7 is silent\x1b[31m " + "x" * 300, page="/ui/", command="")
    return {
        "problems": [problem.model_dump(mode="json")],
        "gpus": [gpu | {"id": f"GPU-{n:03d}", "utilisation": n / 100} for n in range(100)],
        "trainings": [job | {"id": str(n), "name": f"night-{n}[red]"} for n in range(50)],
        "queues": [queue | {"function": f"f{n}", "depth": n} for n in range(200)],
    }


@pytest.mark.parametrize(("width", "height"), [(80, 24), (200, 60)])
def test_it_fits_the_screen_and_counts_what_it_leaves_out(
    rows: dict[str, list[dict[str, Any]]], width: int, height: int
) -> None:
    lines = drawn(rows, width, height)
    assert len(lines) <= height
    assert max(map(len, lines)) <= width
    text = "\n".join(lines)
    assert "GPU-099" in text and "GPU-000" not in text, "the busiest first"
    assert "default/f199" in text and "night-0[red]" in text
    assert "\x1b" not in text
    left_out = [int(line.split()[1]) for line in lines if line.startswith("and ")]
    assert len(left_out) == 3


def test_all_rows_are_printed_once(rows: dict[str, list[dict[str, Any]]]) -> None:
    text = "\n".join(drawn(rows, 200, None))
    assert "GPU-000" in text and "f0" in text and " more" not in text


def test_an_empty_platform_has_no_table() -> None:
    assert drawn({"gpus": [], "queues": []}, 80, 24) == []


@pytest.mark.parametrize(("key", "first"), [("u", "GPU-099"), ("n", "GPU-000"), ("h", "GPU-050"), ("f", "GPU-070")])
def test_a_key_orders_the_gpu_instances(rows: dict[str, list[dict[str, Any]]], key: str, first: str) -> None:
    job = {"id": "j", "name": "j", "budget": 0.05, "loss_high": None}
    for number, gpu in enumerate(rows["gpus"]):
        gpu["jobs"] = [job | {"loss_high": 0.06 if number == 50 else 0.01}] if number % 2 == 0 else [job]
        gpu |= {"memory_total_mib": 1000.0, "memory_used_mib": 10.0 if number == 70 else 500.0}
    lines = drawn(rows, 80, 24, SORTS[key][1])
    assert first in lines[lines.index(next(line for line in lines if line.startswith("GPU instance"))) + 1]
