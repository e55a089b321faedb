"""
Runners without a user of their own, as where the platform is not root: what Landlock and the filter of system calls
hold alone.
"""

import contextlib
import json
import os
import socket
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.support.eventually import eventually
from tests.support.nursery import nursery
from worker.frames import Confinement, Item, Load, Results
from worker.runner.runner_handle import Runner, RunnerDied
from worker.runner.zygote_handle import Zygote, setup
from worker.sandbox import landlock

pytestmark = pytest.mark.skipif(landlock.abi() < 6, reason="this kernel's Landlock knows no signals yet")


#: What numeric libraries are told about the processor (see the Makefile).
INSTRUCTIONS = {
    "ATEN_CPU_CAPABILITY": "avx2",
    "ONEDNN_MAX_CPU_ISA": "AVX2",
    "MKL_ENABLE_INSTRUCTIONS": "AVX2",
    "OPENBLAS_CORETYPE": "Haswell",
    "NUMBA_CPU_NAME": "generic",
    "OMP_NUM_THREADS": "1",
}


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("home")
    (home / "run").mkdir()
    (home / "key").write_text("not for functions")
    (home / "allowed").write_text("for functions")
    return home


@contextlib.contextmanager
def shut_in(
    home: Path,
    name: str,
    tcp_ports: list[int] | None,
    *,
    near: Sequence[int] = (),
    entrypoint: str = "tests.acceptance.hostile.functions:Hostile",
    **shut: Any,
) -> Iterator[Runner]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DATABASE_PASSWORD", "not for functions either")
        for variable, value in INSTRUCTIONS.items():
            patch.setenv(variable, value)
        zygote = Zygote(
            nursery=nursery(),
            setup=setup(
                scratch=home / "run" / name,
                home=home,
                confinement=Confinement(
                    own_users=False, tcp_ports=tcp_ports, readable=[str(home / "allowed")], scratch_mib=1, **shut
                ),
                near=near,
            ),
            record=home / "run" / f"{name}.json",
        )
        runner = zygote.fork()
        results = Results(one=1 << 20, together=1 << 20)
        runner.load(
            Load(
                entrypoint=entrypoint,
                device="cpu",
                memory_mib=64.0,
                label="f",
                results=results,
            ),
            60,
        )
    try:
        yield runner
    finally:
        zygote.close()


@pytest.fixture(scope="module")
def runner(home: Path) -> Iterator[Runner]:
    with shut_in(home, "shut", [443]) as runner:
        yield runner


def attempt(runner: Runner, do: str, **item: object) -> dict[str, Any]:
    body = json.dumps({"do": do, **item}).encode()
    ran = runner.predict([Item(encoding="json", accept="json", rows=1, length=len(body))], [body], "", 30)
    assert ran.answers[0].form == "json", ran.answers
    return dict(json.loads(ran.results[0]))


def test_an_asynchronous_function_runs_in_its_cell(home: Path) -> None:
    with shut_in(home, "awaits", [443], entrypoint="tests.support.handlers:Awaits") as runner:
        for _ in range(2):
            body = b'{"after_s": 0.01}'
            items = [Item(encoding="json", accept="json", rows=1, length=len(body))] * 2
            ran = runner.predict(items, [body] * 2, "", 30)
            assert [json.loads(result)["together"] for result in ran.results] == [2, 2], ran.answers


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
    assert "refused" in attempt(runner, "shoot", pid=os.getpid()) and "refused" in attempt(
        runner, "trace", pid=os.getpid()
    )
    assert "refused" in attempt(runner, "unix", path=str(home / "key"))
    assert "refused" in attempt(runner, "connect", host="127.0.0.1", port=6379)
    # Allowed, but nobody listens here.
    assert "ConnectionRefusedError" in attempt(runner, "connect", host="127.0.0.1", port=443)["refused"]


def test_no_stream_is_begun_or_waited_for_in_any_way_that_the_kernel_has(runner: Runner) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        assert attempt(runner, "stream", host="127.0.0.1", port=server.getsockname()[1])["got"] == []
        server.setblocking(False)
        with pytest.raises(BlockingIOError):
            server.accept()
    assert attempt(runner, "listen")["got"] == []


def test_of_all_sockets_that_the_kernel_has_there_are_tcp_and_udp(runner: Runner) -> None:
    """
    Another one here may be a way around Landlock, which knows IPPROTO_TCP alone; one of a pair of datagrams reaches any
    unix socket.
    """
    internet = (socket.AF_INET, socket.AF_INET6)
    allowed = [(socket.SOCK_STREAM, 0), (socket.SOCK_STREAM, 6), (socket.SOCK_DGRAM, 0), (socket.SOCK_DGRAM, 17)]
    assert attempt(runner, "sockets")["got"] == {
        "made": [[family, *one] for family in internet for one in allowed],
        "pairs": [[socket.AF_UNIX, kind] for kind in (socket.SOCK_STREAM, socket.SOCK_SEQPACKET)],
    }


def test_names_are_found_without_netlink(runner: Runner) -> None:
    assert "127.0.0.1" in attempt(runner, "resolve", host="localhost")["got"]


def test_who_may_reach_every_port_may_listen(home: Path) -> None:
    with shut_in(home, "open", None) as runner, socket.create_server(("127.0.0.1", 0)) as server:
        begun = attempt(runner, "stream", host="127.0.0.1", port=server.getsockname()[1])["got"]
        assert begun == ["plain", "flags", "mapped", "fast open, option"]
        assert attempt(runner, "listen")["got"] == ["bound", "unbound", "unbound, disconnected", "unbound on IPv6"]


def test_on_a_gpu_it_makes_the_unix_sockets_that_cuda_makes_and_runs_beside_the_gpu(home: Path) -> None:
    """
    Redis, Postgres and the supervisor listen for streams; a descriptor of its own entry in /proc keeps the way there
    open to CUDA.
    """
    core = max(os.sched_getaffinity(0))
    with shut_in(home, "gpu", [443], near=[core], unix_sockets=True, affinity=True) as runner:
        found = attempt(runner, "sockets")["got"]
        assert {kind for family, kind, _ in found["made"] if family == socket.AF_UNIX} == {socket.SOCK_SEQPACKET}
        assert found["pairs"] == [[socket.AF_UNIX, kind] for kind in (socket.SOCK_STREAM, socket.SOCK_SEQPACKET)]
        assert "refused" in attempt(runner, "unix", path=str(home / "key"))
        assert f"/proc/{runner.pid}" in attempt(runner, "descriptors")["got"]
        assert os.sched_getaffinity(runner.pid) == {core}
        # The nursery listens for packets.
        assert attempt(runner, "zygote", path=str(nursery()))["got"] == {"own folder": "", "name of the folder": ""}


def test_the_nursery_gives_a_zygote_to_nobody_who_is_shut_in(runner: Runner, home: Path) -> None:
    """It would be a process of the worker's kind, outside every cell."""
    assert "refused" in attempt(runner, "zygote", path=str(nursery()))


def test_a_scratch_folder_on_the_disk_is_watched(runner: Runner) -> None:
    """Last: its runner is ended for it."""
    folder = Path(attempt(runner, "who")["cwd"])
    assert "refused" in attempt(runner, "write", path="large", text="x" * (2 << 20)), (
        "one file alone is bounded at once"
    )
    # It may be ended before the last of them.
    with contextlib.suppress(RunnerDied):
        for number in range(4):
            attempt(runner, "write", path=f"file-{number}", text="x" * (1 << 19))
    assert runner.ended.wait(20)
    eventually(lambda: not folder.exists(), 10, "its folder is gone")
