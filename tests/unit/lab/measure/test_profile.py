"""A campaign of measurements: its processes, its file and its options."""

import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from lab.measure import device, processes, profile
from lab.measure.plan import Run
from ml import rows
from ml.rows import BadRow, DeviceMode
from smore.process.device_name import cpu_partition
from tests.support.measured import function, solo, training

TRAINING, FUNCTION = training("bert", 4), function("vgg16")


class Stub:
    """A device whose members are small programs that note what they are told."""

    torch_device = "cpu"
    preset = "cpu"
    place = DeviceMode(device="d", sharing_mode="time-slice", driver="2", counter="none")

    def __init__(self, log: Path) -> None:
        self._log = log
        self.started = 0

    def start(self, argv: Sequence[str], role: rows.Role) -> "subprocess.Popen[str]":
        self.started += 1
        name = argv[argv.index("--model") + 1]
        program = (
            f"import json, sys\nlog = open({str(self._log)!r}, 'a', buffering=1)\nprint('{{}}', flush=True)\nfor line"
            f" in sys.stdin:\n    print({name!r}, json.loads(line)['do'], file=log)\n    print('{{}}', flush=True)\n"
        )
        return subprocess.Popen(
            [sys.executable, "-S", "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def watch(self, pids: Sequence[int]) -> device.Watch:
        raise NotImplementedError

    def counters(self, pid: int) -> Mapping[str, float]:
        return {}


def test_members_load_together_and_rest_while_others_are_measured(tmp_path: Path) -> None:
    log = tmp_path / "log"
    device = Stub(log)
    members = processes.Processes(device)
    try:
        members.start([TRAINING, FUNCTION, FUNCTION])
        assert device.started == 2
        (bert,) = members.of([TRAINING])
        bert.ask(do="ready", batch=4)
        bert.answer()
        members.of([FUNCTION])
        # Not twice: it has not run since.
        members.of([FUNCTION])
    finally:
        members.end()
    assert log.read_text().split("\n")[:-1] == ["bert ready", "bert rest"]
    assert device.started == 2


def test_a_file_is_gone_on_with_under_another_driver_and_no_other_counter(tmp_path: Path) -> None:
    out = tmp_path / "rows.jsonl"
    device = Stub(tmp_path / "log")
    rows.write(out, solo(TRAINING, place=replace(device.place, driver="1")))
    campaign = profile.Campaign(device, out, window_s=1, command="")
    assert set(campaign._solo) == {TRAINING}
    with pytest.raises(BadRow, match="another input wait"):
        profile.Campaign(device, out, window_s=1, command="", wait="none")
    for other in (replace(device.place, counter="gpm-sm-util"), replace(device.place, device="e")):
        rows.write(out, solo(TRAINING, place=other))
        with pytest.raises(BadRow, match="use another file"):
            profile.Campaign(device, out, window_s=1, command="")
        out.write_text(out.read_text().splitlines(keepends=True)[0])


def test_a_process_that_died_while_it_rested_is_no_fault_of_the_run(tmp_path: Path) -> None:
    members = processes.Processes(Stub(tmp_path / "log"))
    try:
        (bert,) = members.of([TRAINING])
        bert.ask(do="ready", batch=4)
        bert.answer()
        bert._process.kill()
        bert._process.wait()
        assert members.of([FUNCTION])
        (other,) = members.of([TRAINING])
        assert other.pid != bert.pid
    finally:
        members.end()


class Timed(Stub):
    """Members whose iterations take 0.1 s alone and 0.15 s while another runs too; they note when they ran."""

    def start(self, argv: Sequence[str], role: rows.Role) -> "subprocess.Popen[str]":
        program = (
            f"import json, sys\nlog = open({str(self._log)!r}, 'a', buffering=1)\nprint('{{}}', flush=True)\nfor line"
            " in sys.stdin:\n    asked = json.loads(line)\n    window = asked.get('until', 0) - asked.get('from', 0)\n"
            f"    if window: print({argv[argv.index('--model') + 1]!r}, round(window, 3), asked['wait_s'], file=log)\n"
            "    seconds = 0.15 if window > 0.9 else 0.1\n"
            "    print(json.dumps({'seconds': [seconds] * 4, 'busy_s': 0.4}), flush=True)\n"
        )
        return subprocess.Popen(
            [sys.executable, "-S", "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def watch(self, pids: Sequence[int]) -> device.Watch:
        return Quiet()


class Quiet:
    def usage(self) -> device.Usage:
        return device.Usage(total=0.5, memory=None, foreign=0.01)


def test_two_trainings_are_measured_by_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Alone, together, alone again: the control has both sides of the window."""
    monkeypatch.setattr(profile, "WARM_UP_S", 0.0)
    log, out = tmp_path / "log", tmp_path / "rows.jsonl"
    stage = Timed(log)
    light = replace(training("vgg16", 2), preset="cpu-wait-0.6")
    for workload in (TRAINING, light):
        alone = solo(workload, place=stage.place)
        rows.write(out, replace(alone, timing=replace(alone.timing, mean=0.1), input_wait_s=0.03))
    campaign = profile.Campaign(stage, out, window_s=1.0, command="")
    try:
        campaign.measure(Run(members=(TRAINING, light)))
    finally:
        campaign.end()
    assert not campaign.failed
    row = rows.read(out)[-1]
    assert isinstance(row, rows.Colocation)
    assert row.kind == "trainings"
    assert [(member.timing.mean, member.control.mean, member.control.n) for member in row.members] == [
        pytest.approx((0.15, 0.1, 8))
    ] * 2
    ran = [(line.split()[0], float(line.split()[1])) for line in log.read_text().splitlines()]
    each = [("bert", 0.8), ("vgg16", 0.8)]
    assert ran[:2] == ran[4:] == each
    assert sorted(ran[2:4]) == [("bert", 1.0), ("vgg16", 1.0)]


def test_trainings_are_named_with_their_wait() -> None:
    given = ["--out", "x.jsonl", "--device", "cpu", "--trainings"]
    named = profile.parse([*given, "bert/cpu-wait-0.6/training/4,vgg16/cpu/training/2"]).trainings
    assert [(one.model, one.wait, one.batch) for one in named] == [("bert", "0.6", 4), ("vgg16", None, 2)]
    for wrong in (
        "bert/cpu/function/4",
        "gpt/cpu/training/4",
        "bert/cpu/training/0",
        "bert/cpu-wait-1/training/4",
        "x",
    ):
        with pytest.raises(SystemExit):
            profile.parse([*given, wrong])


def test_the_words_of_a_campaign(capsys: pytest.CaptureFixture[str]) -> None:
    given = ["--out", "x.jsonl", "--device", "cpu", "--solo", "2", "--positions", "1", "--order", "pairs", "--parallel"]
    options = profile.parse([*given, "--input-wait", "card"])
    assert (options.solo, options.positions, options.order, options.parallel) == (2.0, 1, "pairs", True)
    for wrong in (["--input-wait", "1"], ["--positions", "5"], ["--order", "first"], ["--solo", "0"]):
        with pytest.raises(SystemExit):
            profile.parse([*given, *wrong])


def test_the_countdown_keeps_its_budget() -> None:
    assert profile.time_left(runs_s=3276.0, minutes=1.0, used_s=15.0) == 45.0
    assert profile.time_left(runs_s=20.0, minutes=1.0, used_s=15.0) == 20.0
    assert profile.time_left(runs_s=3276.0, minutes=None, used_s=15.0) == 3276.0
    # The next run may take as long as the longest one yet: it is begun only where that fits.
    assert profile.fits(longest_s=40.0, minutes=1.0, used_s=20.0)
    assert not profile.fits(longest_s=40.0, minutes=1.0, used_s=21.0)
    assert profile.fits(longest_s=40.0, minutes=None, used_s=1e9)
    assert (
        profile.progress(3, 40, 30.0, 90.0) == "[#######.......................] 3 of 40 runs, 0.5 min, 1.5 min to go "
    )


def test_a_short_run_measures_few_models_and_names_its_part_of_the_cores() -> None:
    given = ["--out", "x.jsonl", "--device", "cpu"]
    assert profile.parse(given).models == ",".join(profile.MODELS)
    options = profile.parse([*given, "--few", "--share", "0.5"])
    assert options.models.split(",") == list(profile.MODELS[: profile.FEW_MODELS])
    place = device.CpuPartition(options.cores, options.function_nice, options.share).place
    # The name that a worker with such a part reports.
    assert place.device == cpu_partition(1, 0.5) != cpu_partition(1)
    for wrong in ("0", "1.5"):
        with pytest.raises(SystemExit):
            profile.parse([*given, "--share", wrong])
