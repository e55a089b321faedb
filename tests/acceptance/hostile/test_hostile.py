"""
Functions that want out, on a whole platform with a training beside them: each attempt is refused or bounded, and
training goes on.

What no machine can hold without root is skipped there; docs/guides/security.md lists what is open.
"""

import os
import socket
import struct
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from smore.tracking.ring import TrackReader
from smore_client import ApiError
from tests.support.eventually import eventually
from tests.support.whole_platform import BOUNDED, BYSTANDER, ROOT, Platform, second_worker
from worker import proc

ENTRYPOINT = "tests.acceptance.hostile.functions:Hostile"
SECRET = "correct-horse-battery-staple"
SPEC: dict[str, object] = {
    "slo": {"deadline": "60s"},
    "resources": {"gpu_memory": "64MiB"},
    "retries": {"max_attempts": 1},
    "limits": {"timeout": "30s"},
    "profile": {"run_ms": {1: 1}, "load_ms": 10, "usage_gain": 0.01, "degradation": 0.01},
}
ENVIRONMENT = BOUNDED
LEARNS = False
PROCESSES = int(BOUNDED["SMORE_WORKER__PROCESSES"])


@pytest.fixture(scope="module")
def stage(platform: Platform) -> Iterator[Platform]:
    """A training that nothing of all this may end, and a hostile function beside it."""
    platform.deploy("hostile", ENTRYPOINT, **SPEC)
    # It goes on through all tests of the module; nothing here depends on what it computes.
    platform.client.start_job("bystander", BYSTANDER)
    eventually(
        lambda: any(job.iterations > 3 for report in platform.reports() for job in report.jobs), 40, "iterations"
    )
    yield platform
    trains_on(platform)


def wait_for_state(stage: Platform, job: str, *states: str) -> None:
    eventually(lambda: stage.client.job(job).state in states, 30, f"{job} in {states}")


def wait_for_looks(stage: Platform, gpu: str) -> None:
    """Wait until the worker of a GPU instance has told twice what runs there."""
    since = time.time()
    eventually(lambda: any(report.gpu == gpu and report.at > since + 2 for report in stage.reports()), 30, "reports")


def trains_on(stage: Platform) -> None:
    id_ = stage.client.job("bystander").id
    (job,) = [job for report in stage.reports() for job in report.jobs if job.id == id_]
    assert job.state == "running" and proc.start_time(job.pid) is not None
    reader = TrackReader(str(next((stage.home / "run" / "jobs").glob(f"{job.id}*.track"))))
    before = len(reader.read_new())
    eventually(lambda: reader.read_new(), 20, f"an iteration after {before}")


def test_a_training_that_lies_in_its_files_stops_nobody(stage: Platform) -> None:
    """Neither the other training nor functions nor the queue of trainings: one that comes after it runs to its end."""
    client, elsewhere = stage.client, "second"
    with second_worker(stage, elsewhere):
        for kind in ("count", "infinite", "pipe for steps", "pipe for hold and log", "forged hold"):
            argv = [sys.executable, "-m", "lab.bench.stranger", kind, "idle"]
            liar = client.start_job(kind.replace(" ", "-"), argv, gpus=[elsewhere], budget=1.0, grace=1).id
            wait_for_state(stage, liar, "running")
            wait_for_looks(stage, elsewhere)
            trains_on(stage)
            assert attempt(stage, "who")["got"], kind
            client.stop_job(liar)
            wait_for_state(stage, liar, "ended", "lost")
        after = client.start_job("after", [sys.executable, "-c", ""], gpus=[elsewhere]).id
        wait_for_state(stage, after, "ended")


def attempt(stage: Platform, do: str, function: str = "hostile", **item: Any) -> dict[str, Any]:
    output = stage.client.invoke(function, {"do": do, **item}, deadline_ms=60_000).output
    assert isinstance(output, dict)
    return output


def refused(stage: Platform, do: str, **item: Any) -> bool:
    answer = attempt(stage, do, **item)
    assert "got" not in answer, f"{do} {item}: {answer['got']}"
    return True


def worker_log(stage: Platform) -> str:
    return "\n".join(path.read_text(errors="replace") for path in (stage.home / "logs").glob("worker-*.log"))


def own_user(stage: Platform) -> None:
    if "own user" not in worker_log(stage):
        pytest.skip("the platform may not set users here: open, see docs/guides/security.md")


def test_it_is_nobody(stage: Platform) -> None:
    who = attempt(stage, "who")["got"]
    assert (who["CapEff"], who["CapPrm"], who["NoNewPrivs"], who["Seccomp"]) == ("0" * 16, "0" * 16, "1", "2")
    own_user(stage)
    assert int(who["Uid"]) not in (0, os.getuid())
    assert refused(stage, "become_root")


def test_it_reads_no_credentials(stage: Platform) -> None:
    assert attempt(stage, "environment")["got"] == {}, "of no other process"
    home = stage.home.resolve()
    for name in (
        "key",
        "redis.password",
        "postgres.password",
        "redis.conf",
        "secrets.key",
        "supervisord.conf",
        "run/endpoints.json",
    ):
        assert (home / name).exists(), f"{name}: the test would be empty"
        assert refused(stage, "read", path=str(home / name))
    for path in (
        "/etc/shadow",
        f"/proc/{stage.pid('gateway')}/environ",
        f"/proc/{stage.pid('gateway')}/mem",
        "/root/.ssh/id_rsa",
    ):
        assert refused(stage, "read", path=path)
    environment = attempt(stage, "own_environment")["got"]
    passwords = [(home / name).read_text().strip() for name in ("key", "redis.password", "postgres.password")]
    assert not [
        name
        for name, value in environment.items()
        if name.startswith("SMORE_") or any(one in value for one in passwords)
    ]
    descriptors = attempt(stage, "descriptors")["got"]
    assert len(descriptors) <= 5 and not any(str(home) in name and "/logs/" not in name for name in descriptors), (
        descriptors
    )


def test_it_reaches_neither_redis_nor_postgres_nor_the_gateway(stage: Platform) -> None:
    run = (stage.home / "run").resolve()
    for path in (run / "redis.sock", run / ".s.PGSQL.5432", run / "supervisor.sock"):
        assert path.is_socket(), f"{path}: the test would be empty"
        assert refused(stage, "unix", path=str(path))
    host, _, port = stage.url.removeprefix("http://").partition(":")
    assert refused(stage, "connect", host=host, port=int(port))
    # As a Redis or a Postgres would listen that is not the platform's own.
    with socket.create_server(("127.0.0.1", 0)) as elsewhere:
        for to in (int(port), elsewhere.getsockname()[1]):
            assert attempt(stage, "stream", host="127.0.0.1", port=to)["got"] == []
        elsewhere.setblocking(False)
        with pytest.raises(BlockingIOError):
            elsewhere.accept()
    assert attempt(stage, "listen")["got"] == []


def test_it_changes_nobodys_code(stage: Platform) -> None:
    code = ROOT / "zoo" / "echo.py"
    before = code.read_bytes()
    for path in (code, ROOT / "zoo" / "new.py", Path(__file__).with_name("functions.py"), Path(os.__file__)):
        assert refused(stage, "write", path=str(path))
    assert code.read_bytes() == before
    # Nor does it look into a neighbour's scratch folder.
    stage.deploy("neighbour", ENTRYPOINT, **SPEC)
    neighbour = attempt(stage, "who", function="neighbour")
    own_user(stage)
    assert refused(stage, "listing", path=neighbour["cwd"])
    assert refused(stage, "shoot", pid=neighbour["pid"]) and refused(stage, "trace", pid=neighbour["pid"])


def test_it_signals_and_traces_nobody(stage: Platform) -> None:
    assert attempt(stage, "shoot_all")["got"] == []
    for do in ("shoot", "trace"):
        assert refused(stage, do)
        assert refused(stage, do, pid=stage.pid("gateway"))


def test_a_fork_bomb_is_bounded_and_ends_with_its_runner(stage: Platform) -> None:
    if "own user" not in worker_log(stage) and not os.access("/sys/fs/cgroup/pids", os.W_OK) and os.getuid() == 0:
        pytest.skip("neither users nor control groups: open, see docs/guides/security.md")
    answer = attempt(stage, "fork_bomb")
    assert 0 < answer["got"]["made"] < PROCESSES and "unavailable" in answer["got"]["error"]
    bomb = list(proc.tree(answer["pid"]))
    assert len(bomb) > PROCESSES / 2
    stage.client.offload("hostile")
    eventually(lambda: not any(proc.start_time(pid) for pid in bomb), 20, "the bomb is gone")
    assert attempt(stage, "who")["pid"] != answer["pid"]


def test_a_daemon_does_not_outlive_its_runner(stage: Platform) -> None:
    left = attempt(stage, "daemon")["got"]
    assert proc.start_time(left) is not None
    stage.client.offload("hostile")
    eventually(lambda: proc.start_time(left) is None, 20, "the daemon is gone")


def test_the_disk_is_not_filled(stage: Platform) -> None:
    own_user(stage)
    answer = attempt(stage, "fill_disk")["got"]
    assert 0 < answer["written"] <= 256 << 20 and "No space" in answer["error"] and answer["elsewhere"] == [], answer
    stage.client.offload("hostile")


def test_a_secret_is_told_to_its_function_alone_and_to_no_log(stage: Platform) -> None:
    stage.client.set_secret("API_TOKEN", SECRET)
    assert "API_TOKEN" in [secret.name for secret in stage.client.secrets()]
    stage.deploy("entrusted", ENTRYPOINT, secrets=["API_TOKEN"], **SPEC)
    assert attempt(stage, "tell", function="entrusted", name="API_TOKEN")["got"] == len(SECRET)
    with pytest.raises(ApiError) as failed:
        attempt(stage, "tell", function="entrusted", name="API_TOKEN", **{"raise": True})
    assert failed.value.code == "handler_error" and failed.value.detail.endswith("it did not like ***")
    assert failed.value.traceback.endswith("it did not like ***\n")
    assert attempt(stage, "has", names=["API_TOKEN"])["got"] == {"API_TOKEN": False}
    printed = eventually(
        lambda: [line for line in stage.client.logs("entrusted") if line.text == "the secret is ***"][1:],
        10,
        "what it printed is in its log",
    )
    assert "natively ***" in [line.text for line in stage.client.logs("entrusted")]
    assert len(printed) == 1 and not [line for line in stage.client.logs("entrusted") if SECRET in line.text]
    held = [
        path for path in (stage.home / "logs").rglob("*") if path.is_file() and SECRET.encode() in path.read_bytes()
    ]
    assert held == []
    sealed = stage.redis.hget("smore:catalog:secrets", "default/API_TOKEN")
    assert isinstance(sealed, bytes) and SECRET.encode() not in sealed

    # A replaced one is in force with the next load; without it there is none.
    stage.client.set_secret("API_TOKEN", f"{SECRET}-2")
    stage.client.offload("entrusted")
    assert attempt(stage, "tell", function="entrusted", name="API_TOKEN")["got"] == len(SECRET) + 2
    stage.client.delete_secret("API_TOKEN")
    stage.client.offload("entrusted")
    with pytest.raises(ApiError, match="There is no secret API_TOKEN"):
        attempt(stage, "who", function="entrusted")


def test_what_eats_all_memory_is_ended_and_then_shut_out_everywhere(stage: Platform) -> None:
    """Three ways, three faults; the training beside it is none the worse."""
    stage.deploy("eater", ENTRYPOINT, **SPEC)
    (before,) = [job for report in stage.reports() for job in report.jobs]
    for do in ("allocate", "allocate_shared", "allocate_in_children"):
        with pytest.raises(ApiError) as failed:
            attempt(stage, do, function="eater")
        assert failed.value.code == "out_of_memory", (do, failed.value)
        trains_on(stage)
    (after,) = [job for report in stage.reports() for job in report.jobs]
    # A twentieth more than it takes; both are rounded to a tenth.
    assert after.pid == before.pid and after.reserve_mib + 0.1 >= 1.05 * after.memory_mib > 0

    eventually(
        lambda: all("default/eater@1" in report.quarantined for report in stage.reports()),
        10,
        "every worker keeps it out",
    )
    (one,) = stage.client.quarantined()
    assert (one.function, one.revision, one.cause) == ("eater", 1, "out_of_memory")
    stage.deploy("eater", ENTRYPOINT, **SPEC | {"limits": {"timeout": "29s"}})
    assert attempt(stage, "who", function="eater")["got"], "a new revision begins anew"
    assert stage.client.lift("eater") == [1] and stage.client.quarantined() == []
    eventually(lambda: not any(report.quarantined for report in stage.reports()), 10, "every worker has heard it")


def forged(*answers: list[object], body: bytes = b"") -> str:
    """
    A whole answer to a batch, in hexadecimal: as a runner of an older version would give it, with a time that is none.
    """
    meta = msgspec.msgpack.encode(["predicted", list(answers), 2**63 - 1, 1])
    return (struct.pack("<IQ", len(meta), len(body)) + meta + body).hex()


def test_what_it_says_in_the_platforms_place_is_not_believed(stage: Platform) -> None:
    """
    Lengths, answers, times: whatever it forges is its own failure at once, and neither its worker nor the gateway's
    answer suffers.
    """
    envelope = b'1,"state":"failed","id":"zzzz"'
    forgeries = {
        "four GiB of meta": "ff" * 64,
        "twenty GiB of results": struct.pack("<IQ", 20, 20 << 30).hex(),
        "the envelope": forged(["json", len(envelope)], body=envelope),
        "half a value": forged(["json", 6], body=b'{"a":"'),
        "no answers": forged(),
    }
    boots = {report.gpu: report.boot for report in stage.reports()}
    for number, (what, frame) in enumerate(forgeries.items()):
        # Of each function two, so that none is shut out.
        function = f"forger-{number // 2}"
        if number % 2 == 0:
            stage.deploy(function, ENTRYPOINT, **SPEC | {"retries": {"max_attempts": 5}})
        with pytest.raises(ApiError) as failed:
            attempt(stage, "say", function=function, frame=frame)
        assert (failed.value.status, failed.value.code) == (502, "crashed"), (what, failed.value)
        assert failed.value.detail.startswith("The runner broke the protocol"), what
        found = stage.client.invocation(str(failed.value.body["id"]))
        assert found.attempt == 1, "nobody else was given it"
        assert attempt(stage, "who", function=function)["got"]
    assert {report.gpu: report.boot for report in stage.reports()} == boots, "no worker was lost"
    assert all(proc.private_mib(stage.pid(f"worker-{gpu}")) < 1024 for gpu in boots)

    # A time that it claims makes its next callers wait for nothing; a runner that is a step ahead is ended before
    # anybody gets its answer.
    function = "forger-3"
    stage.deploy(function, ENTRYPOINT, **SPEC)
    answer = stage.client.invoke(function, {"do": "say", "frame": forged(["json", 1], body=b"7")}, deadline_ms=60_000)
    assert answer.output == 7, "its own answer is its own affair"

    def caught() -> ApiError | None:
        try:
            attempt(stage, "who", function=function)
        except ApiError as error:
            return error
        return None  # on a busy machine it may not be a step ahead yet: then it is behind this answer

    refused = eventually(caught, what="the end of a runner that is a step ahead")
    assert refused.code == "crashed" and "before it was asked" in refused.detail
    assert attempt(stage, "who", function=function)["got"]
    assert stage.client.dry_run(function, {"do": "who"}).feasible
    trains_on(stage)


def test_dripping_ends_with_the_time_that_it_has(stage: Platform) -> None:
    stage.deploy("dripper", ENTRYPOINT, **SPEC | {"limits": {"timeout": "2s"}})
    with pytest.raises(ApiError) as failed:
        attempt(stage, "drip", function="dripper")
    assert failed.value.code == "timed_out"


def test_a_result_too_large_is_no_crash(stage: Platform) -> None:
    """However often: it shuts nobody out, and the process lives."""
    stage.deploy("talker", ENTRYPOINT, **SPEC)
    pid = attempt(stage, "who", function="talker")["pid"]
    for _ in range(4):
        with pytest.raises(ApiError) as failed:
            attempt(stage, "large", function="talker", mb=60)
        assert (failed.value.status, failed.value.code) == (422, "result_too_large"), failed.value
    assert attempt(stage, "who", function="talker")["pid"] == pid
    assert not any("default/talker@1" in report.quarantined for report in stage.reports())


def test_a_crash_is_its_own(stage: Platform) -> None:
    stage.deploy("crasher", ENTRYPOINT, **SPEC)
    with pytest.raises(ApiError) as failed:
        attempt(stage, "crash", function="crasher")
    assert failed.value.code == "crashed" and "SIGSEGV" in failed.value.detail
    assert attempt(stage, "who", function="crasher")["got"]
    assert attempt(stage, "who")["got"], "nor does anybody else notice"
