"""What the demo runs: its trainings, and its options."""

import pytest

from lab.demo import run
from smore.local import layout
from zoo import documents


def test_a_job_for_each_of_the_first_partitions() -> None:
    partitions = layout.plan_partitions(range(5))
    made = run.trainings(partitions, 600)
    assert [one.partition.gpu for one in made] == ["cpu0", "cpu1"]
    assert made[0].argv[:3] == ("zoo.train", "--model", "resnet50")
    assert made[0].workload == "resnet50/cpu/training/8"
    assert run.trainings(partitions[:1], 600) == made[:1]


def test_on_a_gpu_the_models_have_the_papers_size() -> None:
    (made,) = run.trainings([layout.Partition(gpu="gpu0", kind="cuda", device="GPU-a")], 600)
    assert " ".join(made.argv).endswith("--preset paper --batch 64 --seconds 600 --device cuda")
    assert made.workload == "resnet50/paper/training/64"
    assert documents.document("resnet50", "paper")["spec"] | {"slo": None} == documents.document("resnet50")["spec"] | {
        "slo": None,
        "entrypoint": "zoo.resnet50:PaperFunction",
        "resources": {"gpu_memory": "2GiB"},
        "inputs": [{"name": "image", "datatype": "FP32", "shape": [-1, 3, 224, 224]}],
        "profile": documents.PAPER_PROFILE | {"model": "resnet50/paper"},
    }
    # No model of a card has one size.
    assert documents.document("silero", "paper") == documents.document("silero")


def test_arguments() -> None:
    assert run.arguments([]).seconds == 60
    with pytest.raises(SystemExit):
        run.arguments(["--seconds", "0"])
