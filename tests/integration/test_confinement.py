"""Runners without a user of their own, as where the platform is not root: what Landlock and the filter of system calls hold alone."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.eventually import eventually
from worker import landlock, processes
from worker.frames import Confinement, Item, Load, Results
from worker.processes import Runner, Zygote

pytestmark = pytest.mark.skipif(landlock.abi() < 6, reason="this kernel's Landlock knows no signals yet")


#: What numeric libraries are told about the processor (see the Makefile).
INSTRUCTIONS = {
    "ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2", "MKL_ENABLE_INSTRUCTIONS": "AVX2", "OPENBLAS_CORETYPE": "Haswell",
    "NUMBA_CPU_NAME": "generic", "OMP_NUM_THREADS": "1",
}  # fmt: skip


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("home")
    (home / "run").mkdir()
    (home / "key").write_text("not for functions")
    (home / "allowed").write_text("for functions")
    return home


@pytest.fixture(scope="module")
def runner(home: Path) -> Iterator[Runner]:
    with pytest.MonkeyPatch.context() as patch:
        # No tensors here: torch would take seconds to import.
        patch.setattr(processes, "PRELOAD", ("worker.runner",))
        patch.setenv("DATABASE_PASSWORD", "not for functions either")
        for name, value in INSTRUCTIONS.items():
            patch.setenv(name, value)
        zygote = Zygote(
            cores=(), nice=0, environment={}, scratch=home / "run" / "scratch", home=home, bounds=None, record=home / "run" / "record",
            confinement=Confinement(own_users=False, tcp_ports=[443], readable=[str(home / "allowed")], scratch_mib=1),
            exited=lambda runner: None, started=lambda pid: None,
        )  # fmt: skip
        runner = zygote.fork()
        results = Results(one=1 << 20, together=1 << 20)
        runner.load(
            Load(entrypoint="tests.acceptance.hostile.functions:Hostile", device="cpu", memory_mib=64.0, label="f", results=results), 60
        )
    yield runner
    zygote.close()


def attempt(runner: Runner, do: str, **item: object) -> dict[str, Any]:
    body = json.dumps({"do": do, **item}).encode()
    ran = runner.predict([Item(encoding="json", accept="json", rows=1, length=len(body))], [body], "", 30)
    assert ran.answers[0].form == "json", ran.answers
    return dict(json.loads(ran.results[0]))


def test_it_holds_no_capabilities_and_can_gain_none(runner: Runner) -> None:
    who = attempt(runner, "who")["got"]
    assert (who["CapEff"], who["NoNewPrivs"], who["Seccomp"]) == ("0" * 16, "1", "2")


def test_it_computes_with_the_instructions_that_the_worker_was_given(runner: Runner) -> None:
    assert attempt(runner, "own_environment")["got"].items() >= INSTRUCTIONS.items()


def test_files_and_other_processes_are_out_of_reach(runner: Runner, home: Path) -> None:
    for path in (home / "key", Path("/etc/shadow"), Path(f"/proc/{os.getpid()}/environ")):
        assert "refused" in attempt(runner, "read", path=str(path)), path
    assert bytes.fromhex(attempt(runner, "read", path=str(home / "allowed"))["got"]) == b"for functions"
    assert "refused" in attempt(runner, "write", path=str(home / "allowed"))
    assert attempt(runner, "environment")["got"] == {}
    assert "DATABASE_PASSWORD" not in attempt(runner, "own_environment")["got"]
    assert "refused" in attempt(runner, "shoot", pid=os.getpid()) and "refused" in attempt(runner, "trace", pid=os.getpid())
    assert "refused" in attempt(runner, "unix", path=str(home / "key"))
    assert "refused" in attempt(runner, "connect", host="127.0.0.1", port=6379)
    # Allowed, but nobody listens here.
    assert "ConnectionRefusedError" in attempt(runner, "connect", host="127.0.0.1", port=443)["refused"]


def test_a_scratch_folder_on_the_disk_is_watched(runner: Runner) -> None:
    """Last: its runner is ended for it."""
    folder = Path(attempt(runner, "who")["cwd"])
    assert "refused" in attempt(runner, "write", path="large", text="x" * (2 << 20)), "one file alone is bounded at once"
    for number in range(4):
        attempt(runner, "write", path=f"file-{number}", text="x" * (1 << 19))
    assert runner.ended.wait(20)
    eventually(lambda: not folder.exists(), 10, "its folder is gone")
