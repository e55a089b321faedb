"""Readers of the publishers' traces of trainings."""

import csv
import gzip
from pathlib import Path

import pytest

from lab.simulation.jobs.traces import CLASSES, GPU_HOURS, jobs
from lab.simulation.jobs.world import load_job_preset
from lab.simulation.world import BadWorld
from smore.domain.errors import NotFound
from smore.traces.public import BUNDLED
from smore.traces.recorded import BadTrace

MURI = (
    "trace,job_id,num_gpu,submit_time,duration,model_name,batch_size,iteration_time,"
    "resource_time_0,resource_time_1,resource_time_2"
)


def muri(folder: Path, *rows: str) -> Path:
    (folder / "muri.csv").write_text("\n".join([MURI, *rows]) + "\n")
    return folder


def document(**changed: object) -> dict[str, object]:
    return {"kind": "muri", "file": "muri.csv", "traces": [2], "jobs": 2} | changed


@pytest.mark.parametrize("seed", [0, 4, 8])
def test_windows_of_muri_are_those_of_the_preset(seed: int) -> None:
    preset = load_job_preset("jobs-muri")
    found = jobs(preset.trace, 64, seed, (BUNDLED,))

    assert len(found) == 240
    assert max(job.gpus for job in found) <= 16
    assert max(job.seconds for job in found) <= 48 * 3600
    offered = sum(job.gpus * job.seconds for job in found) / 64 / found[-1].submit_s
    assert offered == pytest.approx(1.0)
    assert all(len(job.busy_s) == 3 for job in found)
    assert [job.submit_s for job in found] == sorted(job.submit_s for job in found)


def test_there_are_nine_windows() -> None:
    with pytest.raises(BadWorld, match="seed 9: the trace has 3 windows"):
        jobs(load_job_preset("jobs-muri").trace, 64, 9, (BUNDLED,))


def test_workloads_of_pollux_get_lengths_by_their_class() -> None:
    preset = load_job_preset("jobs-pollux")
    found = jobs(preset.trace, 64, 3, (BUNDLED,))

    assert len(found) == 160
    for job in found:
        low, high = GPU_HOURS[CLASSES[job.model]]
        assert low <= job.gpus * job.seconds / 3600 <= high
    assert [job.id for job in jobs(preset.trace, 64, 11, (BUNDLED,))] == [job.id for job in found]


def test_workloads_of_pollux_come_as_published() -> None:
    with gzip.open(BUNDLED / "jobs" / "pollux_workloads.csv.gz", "rt") as file:
        published = sorted(float(row["time"]) for row in csv.DictReader(file) if row["workload"] == "4")
    found = jobs(load_job_preset("jobs-pollux").trace, 64, 3, (BUNDLED,))

    assert [job.submit_s for job in found] == pytest.approx([at - published[0] for at in published])
    assert found[-1].submit_s <= 8 * 3600


def test_jobs_of_constant_are_drawn_with_the_seed() -> None:
    preset = load_job_preset("jobs-constant")
    first, second = (jobs(preset.trace, 64, seed, (BUNDLED,)) for seed in (0, 1))

    assert len(first) == len(second) == 240
    assert first != second
    assert first == jobs(preset.trace, 64, 0, (BUNDLED,))


def test_philly_is_read_in_its_own_format(tmp_path: Path) -> None:
    with (tmp_path / "philly.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["timestamp", "duration", "num_gpus", "gpu_time", "cluster"])
        for day in range(1, 29):
            writer.writerow([f"2017-10-{day:02} 07:01:55", 66.0 + day, 2 if day % 2 else 40, 1, "vc"])
    (tmp_path / "jobs").mkdir()
    models = [
        f"2,{n},1,0,5000,{model},16,214,82,75,66"
        for n, model in enumerate(["a2c", "bert", "dqn", "gpt2", "resnet18", "shufflenet_v2_x1_0", "vgg16", "vgg19"])
    ]
    (tmp_path / "jobs" / "muri_traces.csv").write_text("\n".join([MURI, *models]) + "\n")
    found = jobs({"kind": "philly", "file": "philly.csv", "jobs": 5, "most_gpus": 16, "load": 1.0}, 64, 0, (tmp_path,))

    assert sorted({job.gpus for job in found}) == [2, 16]
    assert {job.project for job in found} == {"vc"}
    assert all(job.busy_s == (0.082, 0.075, 0.066) for job in found)


@pytest.mark.parametrize(
    ("row", "field"),
    [
        ("2,1,1,0,x,vgg16,16,214,82,75,66", "duration"),
        ("2,1,0,0,5000,vgg16,16,214,82,75,66", "num_gpu"),
        ("2,1,1,-5,5000,vgg16,16,214,82,75,66", "submit_time"),
    ],
)
def test_a_bad_row_is_named(tmp_path: Path, row: str, field: str) -> None:
    with pytest.raises(BadTrace, match=f"muri.csv:2: {field}"):
        jobs(document(), 64, 0, (muri(tmp_path, row),))


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match=r"no jobs/philly.csv"):
        jobs(load_job_preset("jobs-philly").trace, 64, 0, (tmp_path,))


def test_unknown_fields_are_refused(tmp_path: Path) -> None:
    with pytest.raises(BadWorld, match=r"trace.colour"):
        jobs(document(colour=1), 64, 0, (muri(tmp_path, "2,1,1,0,5000,vgg16,16,214,82,75,66"),))


def test_a_file_of_ones_own_is_read_by_arrival(tmp_path: Path) -> None:
    path = tmp_path / "mine.csv"
    path.write_text(
        "duration_s,submit_s,gpus,model,memory_mib,remark\n600,30,2,bert,9000,x\n60,10,1,,,x\n90,50,4,ncf,,x\n80,60,1,,,x\n"
    )
    own = {"kind": "csv", "path": str(path)}
    found = jobs(own, 64, 7, ())
    assert [(job.submit_s, job.seconds, job.gpus, job.model, job.memory_mib) for job in found] == [
        (0.0, 60.0, 1, "", 0.0),
        (20.0, 600.0, 2, "bert", 9000.0),
        (40.0, 90.0, 4, "ncf", 0.0),
        (50.0, 80.0, 1, "", 0.0),
    ]
    # Each seed has its own window.
    windows = [jobs({**own, "jobs": 2}, 64, seed, ()) for seed in (0, 1)]
    assert [[job.seconds for job in window] for window in windows] == [[60.0, 600.0], [90.0, 80.0]]
    with pytest.raises(BadWorld, match="seed 2: the trace has 2 windows of 2 jobs"):
        jobs({**own, "jobs": 2}, 64, 2, ())


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("submit_s,gpus\n1,1\n", "mine.csv:1: duration_s: no column"),
        ("submit_s,duration_s,gpus\n1,60,1\n2,60,1.5\n", "mine.csv:3: gpus: a whole number"),
        ("submit_s,duration_s,gpus\n1,,1\n2,60,1\n", "mine.csv:2: duration_s: a number"),
        ("submit_s,duration_s,gpus,batch\n1,60,1,x\n2,60,1,\n", "mine.csv:2: batch: a number"),
        ("submit_s,duration_s,gpus\n1,60,1\n", "at least two jobs"),
    ],
)
def test_what_is_wrong_in_a_file_of_ones_own_is_named(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "mine.csv"
    path.write_text(text)
    with pytest.raises(BadTrace, match=words):
        jobs({"kind": "csv", "path": str(path)}, 64, 0, ())


def test_a_missing_file_of_ones_own_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadWorld, match="a trace of the kind csv needs it"):
        jobs({"kind": "csv"}, 64, 0, ())
    with pytest.raises(BadWorld, match="there is no file"):
        jobs({"kind": "csv", "path": str(tmp_path / "none.csv")}, 64, 0, ())
