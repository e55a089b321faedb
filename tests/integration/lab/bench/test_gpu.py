"""The commands of the first hours on a GPU, as far as they go without one: a fake NVML, and runners on a CPU."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from lab.bench import cold, probes
from tests.support.nvml import Gpu, Machine, environment

ROOT = Path(__file__).parents[4]


def first(folder: Path) -> tuple[dict[str, Any], list[str]]:
    """
    The JSON line and the table of ``lab.bench.gpu first`` on a machine whose NVML shows a GPU that torch cannot use.
    Without the stage that compiles: that takes a minute where nothing was compiled yet.
    """
    given = environment(folder, Machine(gpus=[Gpu(uuid="GPU-a", gpm={"sm": 0.4})]))
    path = os.pathsep.join((given["PYTHONPATH"], str(ROOT)))
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "lab.bench.gpu",
            "first",
            "--out",
            str(folder / "out"),
            "--minutes",
            "6",
            "--only",
            "^(?!compile)",
            "--json",
        ],
        cwd=folder,
        env=os.environ | given | {"PYTHONPATH": path, "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        check=True,
    )
    table = done.stderr[done.stderr.index("stage ") :].splitlines()
    return json.loads(done.stdout.splitlines()[-1]), table


def test_with_a_fake_nvml_nothing_fails_and_it_ends_with_the_same_table_again(tmp_path: Path) -> None:
    said, table = first(tmp_path)
    counted = {name: value for name, value in said["figures"].items() if name.startswith("stages_")}
    assert counted == {"stages_ok": 1, "stages_failed": 0, "stages_skipped": 5, "stages_cut": 1}
    assert said["figures"]["facts.gpm"] == 1
    assert said["gpu"] == "NVIDIA H200"
    assert said["software"].startswith("driver 580.95.05, torch ")
    assert all("finds no CUDA device" in line for line in table if " skipped " in line)
    facts = json.loads((tmp_path / "out" / "facts.json").read_text())
    assert (facts["name"], facts["total_mib"], facts["reserved_mib"]) == ("NVIDIA H200", 143_771.0, 600.0)
    # What a driver does not answer is told, and no reason to fail.
    assert facts["ecc_mode"].startswith("NVMLError")
    # Nothing was seen to work that needs a GPU.
    assert json.loads((tmp_path / "out" / "verified.json").read_text()) == {}
    log = tmp_path / "out" / "facts.log"
    log.unlink()
    again, second = first(tmp_path)
    assert (again["figures"], second) == (said["figures"], table)
    assert not log.exists(), "what is ok is passed over"


def test_a_cold_start_on_a_cpu_in_its_parts(capsys: pytest.CaptureFixture[str]) -> None:
    assert cold.main(["--device", "cpu", "--models", "deepfm", "--repeats", "1", "--json"]) == 0
    said = json.loads(capsys.readouterr().out.splitlines()[-1])
    figures = said["figures"]
    parts = {f"{part}_ms.deepfm" for part in ("cold", "standby", "import", "weights", "first_run")}
    assert set(figures) == {"fork_ms", "models_failed"} | parts
    assert figures["models_failed"] == 0
    assert figures["cold_ms.deepfm"] > figures["fork_ms"] > 0
    assert (said["on"], said["preset"]) == ("cpu", "cpu")


def test_what_a_runner_finds_in_itself() -> None:
    found = probes.variant("own_user" if os.geteuid() == 0 else "one_user", "cpu")
    assert found["product"] == 512
    assert not found["unix_stream"]
    assert os.geteuid() != 0 or (found["user"] != 0 and 0 not in found["groups"])
