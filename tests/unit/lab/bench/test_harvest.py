"""What the harvest reads of a GPU, and when it refuses to begin."""

from types import SimpleNamespace

import pytest

from lab.bench import harvest
from lab.bench.overload.rig import Rig, Trained
from smore.local.layout import Partition
from tests.support.nvml import Gpu, Instance, Machine, install


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        (Partition(gpu="gpu0", kind="cuda", device="GPU-a"), 0.4),
        (Partition(gpu="gpu1-mig0", kind="mig", device="MIG-b"), 0.7),
        (Partition(gpu="gpu2", kind="cuda", device="GPU-old"), None),
        (Partition(gpu="gpu3", kind="cuda", device="GPU-gone"), None),
        (Partition(gpu="cpu0", kind="cpu", device="0"), None),
    ],
)
def test_sms_at_work_of_a_gpu_and_of_an_instance(
    where: Partition, expected: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    slices = [Instance(uuid="MIG-b", id=2, gpm={"sm": 0.7})]
    machine = Machine(gpus=[Gpu(uuid="GPU-a", gpm={"sm": 0.4}), Gpu(uuid="GPU-m", mig=slices), Gpu(uuid="GPU-old")])
    fake = install(monkeypatch, machine)
    assert harvest.SmActive(where).read() == expected
    assert not fake.samples


@pytest.mark.parametrize("wrong", [["--function-nice", "5,none"], ["--input-wait", "1"], ["--seconds", "1"]])
def test_wrong_words_are_refused_before_anything_is_started(wrong: list[str]) -> None:
    with pytest.raises(SystemExit):
        harvest.main(["--device", "cpu", *wrong])


def test_a_table_of_another_place_is_not_enough() -> None:
    rig = SimpleNamespace(
        client=SimpleNamespace(gpus=lambda: [SimpleNamespace(device="NVIDIA H200", sharing_mode="time-slice")])
    )

    def of(*places: tuple[str, str]) -> SimpleNamespace:
        return SimpleNamespace(
            current=lambda: SimpleNamespace(places=[SimpleNamespace(device=d, sharing_mode=m) for d, m in places])
        )

    Rig._require_place(rig, of(("a CPU", "time-slice"), ("NVIDIA H200", "time-slice")))  # type: ignore[arg-type]
    with pytest.raises(RuntimeError, match="does not hold for NVIDIA H200"):
        Rig._require_place(rig, of(("a CPU", "time-slice")))  # type: ignore[arg-type]


def test_a_training_waits_for_its_input_as_told() -> None:
    asked: list[list[str]] = []

    def start_job(name: str, argv: list[str], *_: object, **__: object) -> SimpleNamespace:
        asked.append(argv)
        return SimpleNamespace(id="j")

    rig = SimpleNamespace(
        _partitions=[Partition(gpu="gpu0", kind="cuda", device="GPU-a")],
        jobs={},
        client=SimpleNamespace(start_job=start_job),
        patiently=lambda *_: None,
        witness=SimpleNamespace(windows={}),
    )
    for wait in (None, "0.4"):
        rig.jobs.clear()
        Rig.train(rig, [Trained(model="resnet50", batch=64, preset="paper", input_wait=wait)], budget=None, lasting_s=5)  # type: ignore[arg-type]
    assert [" ".join(argv).partition("--device cuda --seconds 5")[2] for argv in asked] == ["", " --input-wait 0.4"]
    assert Trained(model="resnet50", batch=64, preset="paper").workload == "resnet50/paper/training/64"
