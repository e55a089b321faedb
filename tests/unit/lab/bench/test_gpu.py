"""The first hours on a GPU, rehearsed: order, times, resumption, what is left behind, and what counts as seen."""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from lab.bench import gpu, probes, verified
from lab.bench.gpu import Session, Stage
from lab.bench.report import ROOT
from tests.support.eventually import eventually
from tests.support.nvml import Machine, install

#: A stage's command: notes its name, then does as it is told.
STUB = """
import json, os, subprocess, sys, time
name, what = sys.argv[1:3]
with open(os.environ["STUB_LOG"], "a") as file:
    print(name, file=file)
if what == "hang":
    left = subprocess.Popen([sys.executable, "-S", "-c", "import signal, time; signal.signal(15, signal.SIG_IGN); time.sleep(600)"],
        start_new_session=True)
    with open(os.environ["STUB_LOG"], "a") as file:
        print("left", left.pid, file=file)
    time.sleep(600)
if what == "skip":
    print("not on this machine", flush=True)
    sys.exit(3)
if what == "touch":
    open(sys.argv[3], "w").close()
if what == "wait":
    while not os.path.exists(sys.argv[3]):
        time.sleep(0.002)
print("some progress")
print(json.dumps({"figures": {"done": 0 if what == "nothing" else 2.0}}))
sys.exit(1 if what == "fail" else 0)
"""


def stage(name: str, what: str = "good", *more: str, seconds: float = 60, **options: Any) -> Stage:
    return Stage(name=name, seconds=seconds, argv=("stub", name, what, *more), **options)


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "stub.py").write_text(STUB)
    (tmp_path / "out").mkdir()
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("STUB_LOG", str(tmp_path / "log"))
    return tmp_path / "log"


@pytest.fixture
def session(log: Path, tmp_path: Path) -> Callable[..., Session]:
    def make(stages: Sequence[Stage], **options: Any) -> Session:
        given: dict[str, Any] = {
            "on": "cuda",
            "minutes": 5,
            "device": "NVIDIA H200",
            "code": "c",
            "lacks": lambda need: f"no {need}",
        }
        return Session(stages, tmp_path / "out", **(given | options))

    return make


def run(made: Session) -> dict[str, str]:
    made.run(lambda one: not made.passed(one))
    return {name: one["status"] for name, one in made.state.items()}


def of(log: Path) -> list[str]:
    return [line for line in log.read_text().splitlines() if not line.startswith("left")] if log.exists() else []


def names(table: Sequence[str]) -> list[list[str]]:
    """Stage, status and figures of a table, without the seconds."""
    return [line[:19].split() + line[28:].split() for line in table]


def test_stages_run_in_their_order_and_each_says_what_came_of_it(session: Callable[..., Session], log: Path) -> None:
    stages = [
        stage("one"),
        stage("two", "fail"),
        stage("three", "skip"),
        stage("four", needs=("wings",)),
        stage("five", "nothing", positive=("done",)),
        stage("six"),
    ]
    made = session(stages)
    found = run(made)
    assert found == {"one": "ok", "two": "failed", "three": "skipped", "four": "skipped", "five": "failed", "six": "ok"}
    assert of(log) == ["one", "two", "three", "five", "six"]
    assert made.state["four"]["tail"] == "no wings"
    assert made.state["three"]["tail"] == "not on this machine"
    figures = made.figures()
    assert {name: value for name, value in figures.items() if name.startswith("stages")} == {
        "stages_ok": 2,
        "stages_failed": 2,
        "stages_skipped": 2,
        "stages_cut": 0,
    }
    assert figures["one.done"] == 2.0
    table = made.table()
    assert len(table) <= gpu.TABLE_LINES
    assert names(table)[1:3] == [["one", "ok", "done=2"], ["two", "failed", "some", "progress"]]


def test_a_cut_run_goes_on_where_it_was_and_ends_with_the_same_table(
    session: Callable[..., Session], log: Path, tmp_path: Path
) -> None:
    flag = tmp_path / "flag"
    stages = [stage("one"), stage("two", "wait", str(flag), seconds=0.5), stage("three")]
    #: Each stage takes a hundred seconds, so no time is left for the third.
    now = iter(range(0, 10_000, 100))
    cut = session(stages, minutes=8, clock=lambda: float(next(now)))
    assert run(cut) == {"one": "ok", "two": "cut", "three": "cut"}
    assert cut.state["three"]["tail"] == "no time was left"
    flag.touch()
    resumed = session(stages)
    assert run(resumed) == {"one": "ok", "two": "ok", "three": "ok"}
    assert of(log) == ["one", "two", "two", "three"]
    whole = session(stages, code="other")
    run(whole)
    assert of(log)[4:] == ["one", "two", "three"], "other code gives other results"
    assert names(whole.table()) == names(resumed.table())
    assert whole.figures() == resumed.figures()


def test_what_is_cut_leaves_nothing_behind(session: Callable[..., Session], log: Path) -> None:
    made = session([stage("one", "hang", seconds=1.5), stage("two")])
    assert run(made) == {"one": "cut", "two": "ok"}
    (left,) = re.findall(r"left (\d+)", log.read_text())
    # It was in a session of its own and did not hear of its end.
    assert not Path(f"/proc/{left}").exists()


def test_what_compiles_behind_the_others_is_waited_for_before_a_platform(
    session: Callable[..., Session], log: Path, tmp_path: Path
) -> None:
    flag = tmp_path / "flag"
    stages = [
        stage("compile", "wait", str(flag), background=True),
        stage("facts"),
        stage("tell", "touch", str(flag)),
        stage("harvest", needs=("platform",)),
    ]
    made = session(stages, lacks=lambda _: "")
    assert run(made) == {"compile": "ok", "facts": "ok", "tell": "ok", "harvest": "ok"}
    assert list(made.state) == ["facts", "tell", "compile", "harvest"]


def test_a_run_that_is_ended_ends_its_stage_and_writes_down_that_it_was_cut(tmp_path: Path, log: Path) -> None:
    program = (
        "import re, sys\nfrom pathlib import Path\nfrom lab.bench import gpu\ngpu.STAGES = {'first':"
        " [gpu.Stage(name='one', seconds=60, argv=('stub', 'one', 'hang'))]}\ngpu.code = lambda:"
        f" 'c'\nsys.exit(gpu.main(['first', '--out', {str(tmp_path / 'out')!r}, '--minutes', '5', '--json']))"
    )
    path = os.pathsep.join((str(tmp_path), str(ROOT)))
    made = subprocess.Popen(
        [sys.executable, "-c", program], env=os.environ | {"PYTHONPATH": path}, stdout=subprocess.PIPE, text=True
    )
    eventually(lambda: log.exists() and "left" in log.read_text(), 20, "the stage")
    made.send_signal(signal.SIGTERM)
    said, _ = made.communicate(timeout=30)
    assert made.returncode == 128 + signal.SIGTERM
    assert json.loads(said)["figures"] == {"stages_ok": 0, "stages_failed": 0, "stages_skipped": 0, "stages_cut": 1}
    assert json.loads((tmp_path / "out" / "state.json").read_text())["one"]["status"] == "cut"
    (left,) = re.findall(r"left (\d+)", log.read_text())
    assert not Path(f"/proc/{left}").exists()


# ---- what it says ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("said", "figures"),
    [
        ('noise\n{"figures": {"a": 1}}\n', {"a": 1}),
        ("=== 3 passed, 1 skipped in 2.10s ===", {"passed": 3.0, "skipped": 1.0}),
        ("2 skipped in 0.51s", {"passed": 0.0, "skipped": 2.0}),
        ('{"not": "json"\n{"event": "log"}', {}),
    ],
)
def test_figures_of_what_a_stage_said(said: str, figures: dict[str, float]) -> None:
    assert gpu.figures_of(said) == figures


def test_tests_that_were_all_skipped_are_no_success(session: Callable[..., Session], tmp_path: Path) -> None:
    made = session([])
    log = tmp_path / "log"
    log.write_text("s\nSKIPPED [1] tests/gpu/test_parked.py:9: needs CUDA\n1 skipped in 0.1s\n")
    running = gpu.Running(stage=stage("tests", positive=("passed",)), process=None, log=log, began=0.0)  # type: ignore[arg-type]
    found = made._of(running, 0)
    assert (found.status, found.tail) == ("skipped", "every test was skipped: needs CUDA")


def test_every_need_is_known_and_every_proof_is_a_stage() -> None:
    stages = {one.name: one for run in gpu.STAGES.values() for one in run}
    here = gpu.Here(on="cpu", rows=Path("/nowhere/rows.jsonl"))
    for one in stages.values():
        for need in one.needs:
            here.lacks(need)
    assert {name for names in verified.PROOFS.values() for name in names} <= set(stages)
    assert here.lacks("rows") == "no rows.jsonl: run pairs first"


def test_without_a_gpu_every_stage_says_why_it_was_skipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "gpus", lambda: ())
    for run in gpu.STAGES:
        assert gpu.main([run, "--out", str(tmp_path), "--minutes", "1"]) == 0
    state = json.loads((tmp_path / "state.json").read_text())
    assert {(one["status"], one["tail"]) for one in state.values()} == {("skipped", "NVML finds no GPU")}
    assert json.loads((tmp_path / "verified.json").read_text()) == {}


# ---- what was seen ---------------------------------------------------------------------------------------------------

SEEN = {
    "status": "ok",
    "on": "cuda",
    "device": "NVIDIA H200",
    "date": "2026-12-01T08:00:00+00:00",
    "revision": "abc",
    "software": "driver 1",
}


@pytest.mark.parametrize(
    ("change", "counts"),
    [
        ({}, True),
        ({"software": "driver 2"}, True),
        ({"status": "failed"}, False),
        ({"on": "cpu"}, False),
        ({"device": "NVIDIA H100"}, False),
    ],
)
def test_only_what_ended_well_on_one_gpu_is_verified(change: dict[str, str], counts: bool) -> None:
    stages = {"tests": SEEN, "facts": SEEN | {"date": "2026-12-02T08:00:00+00:00"} | change}
    found = verified.verified(stages)
    assert ("NVML: health, memory of processes, GPM" in found) == counts
    assert found["memory caps on CUDA"] == {
        "date": "2026-12-01",
        "device": "NVIDIA H200",
        "evidence": "tests at abc",
        "software": "driver 1",
    }
    if counts:
        row = found["NVML: health, memory of processes, GPM"]
        assert row["date"] == "2026-12-02"
        assert row["software"] == ("driver 1; driver 2" if change else "driver 1")


def test_the_column_is_written_and_nothing_else() -> None:
    page = verified.PAGE.read_text()
    row = {"date": "2026-12-01", "device": "NVIDIA H200", "evidence": "tests at abc"}
    written = verified.write(page, {"memory caps on CUDA": row})
    changed = [(old, new) for old, new in zip(page.splitlines(), written.splitlines(), strict=True) if old != new]
    ((old, new),) = changed
    assert new.split(" | ")[2] == "2026-12-01, NVIDIA H200 (tests at abc)"
    assert old.split(" | ")[:2] + old.split(" | ")[3:] == new.split(" | ")[:2] + new.split(" | ")[3:]
    assert verified.write(written, {"memory caps on CUDA": row}) == written
    with pytest.raises(ValueError, match="no row wings"):
        verified.write(page, {"wings": row})
    # Whatever can be verified has its row.
    verified.write(page, dict.fromkeys(verified.PROOFS, row))


# ---- probes ----------------------------------------------------------------------------------------------------------


def test_a_variant_that_cannot_be_had_is_told_and_the_first_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    inside = {
        "product": 512,
        "user": 60600,
        "groups": [],
        "threads": 2,
        "unix_stream": False,
        "unix_packet": True,
        "context_ms": 3.0,
    }

    def started(argv: list[str], *, user: int | None = None, **_: object) -> subprocess.CompletedProcess[str]:
        if user is not None:
            raise PermissionError(13, "Permission denied", argv[0])
        broken = "open" in argv
        return subprocess.CompletedProcess(
            argv, 1 if broken else 0, "" if broken else f"log\n{json.dumps(inside)}\n", "it broke"
        )

    monkeypatch.setattr("lab.bench.probes.subprocess.run", started)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    figures, found = probes.cell("cuda")
    assert (figures["variants"], figures["variants_ok"], figures["own_user_ok"], figures["root_group"]) == (4, 2, 1, 0)
    assert "Permission denied" in found["nobody"]["error"]
    assert found["open"] == {"error": "it broke"}
    inside["groups"] = [0]
    assert probes.cell("cuda")[0]["root_group"] == 1
    assert probes.main(["cell", "--device", "cuda"]) == 1


def test_facts_without_nvml_cannot_be_had(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    install(monkeypatch, Machine(errors={"nvmlInit": "LIBRARY_NOT_FOUND"}))
    assert probes.main(["facts", "--out", str(tmp_path / "facts.json")]) == gpu.CANNOT
    assert "NVML finds no GPU" in capsys.readouterr().err
