"""What smore.local decides before it starts anything."""

import shlex
from configparser import RawConfigParser
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from smore.local import supervision
from smore.local.embedded import StartFailed
from smore.local.layout import (
    METRICS_PORTS,
    Layout,
    Partition,
    Process,
    environment,
    gpu_partitions,
    metrics_ports,
    node_partitions,
    plan_partitions,
    processes,
)
from smore.local.machine import _layout
from smore.local.ports import of_a_platform
from smore.process.settings import NodeSettings, Settings, WorkerSettings
from smore.redis.url import celery_url, unix_url
from tests.support import nvml
from tests.support.nvml import Gpu, Instance, Machine


def of(*devices: tuple[str, float]) -> tuple[Partition, ...]:
    return tuple(
        Partition(gpu=f"cpu{i}", kind="cpu", device=device, share=share) for i, (device, share) in enumerate(devices)
    )


@pytest.mark.parametrize(
    ("cores", "count", "expected"),
    [
        pytest.param(
            [0, 1, 2, 3], None, of(("1", 1), ("2", 1), ("3", 1)), id="one per core, the first is the platform's"
        ),
        pytest.param([4, 6, 7], None, of(("6", 1), ("7", 1)), id="cores are named by their numbers"),
        pytest.param([0, 1], None, of(("1", 0.5), ("1", 0.5)), id="two halves of the second core"),
        pytest.param([0], None, of(("0", 0.5), ("0", 0.5)), id="two halves of the only core"),
        pytest.param([0, 1, 2, 3], 2, of(("1", 1), ("2", 1)), id="fewer than cores"),
        pytest.param([0, 1, 2], 3, of(("1", 0.5), ("2", 1), ("1", 0.5)), id="more than cores"),
        pytest.param([0, 1], 1, of(("1", 1)), id="one alone"),
    ],
)
def test_partitions(cores: list[int], count: int | None, expected: tuple[Partition, ...]) -> None:
    assert plan_partitions(cores, count) == expected


@pytest.mark.parametrize(("cores", "count"), [([], None), ([0, 1], 0)])
def test_no_partitions_is_refused(cores: list[int], count: int | None) -> None:
    with pytest.raises(ValueError, match="at least one"):
        plan_partitions(cores, count)


def parts(*names: str) -> tuple[Partition, ...]:
    """``gpu0=GPU-a`` and ``gpu1-mig0=MIG-b``."""
    pairs = [name.split("=") for name in names]
    return tuple(
        Partition(gpu=gpu, kind="mig" if device.startswith("MIG") else "cuda", device=device) for gpu, device in pairs
    )


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    """A GPU, one with two MIG instances, and another."""
    for name in ("CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES"):
        monkeypatch.delenv(name, raising=False)
    slices = [Instance(uuid="MIG-a", id=1), Instance(uuid="MIG-b", id=2)]
    machine = Machine(gpus=[Gpu(uuid="GPU-a1"), Gpu(uuid="GPU-b2", mig=slices), Gpu(uuid="GPU-c3")])
    nvml.install(monkeypatch, machine)
    return machine


ALL = parts("gpu0=GPU-a1", "gpu1-mig0=MIG-a", "gpu1-mig1=MIG-b", "gpu2=GPU-c3")


def test_gpus_and_mig_instances(machine: Machine) -> None:
    assert gpu_partitions() == ALL


def test_no_driver_is_no_gpu(machine: Machine) -> None:
    machine.errors["nvmlInit"] = "DRIVER_NOT_LOADED"
    assert gpu_partitions() == ()


@pytest.mark.parametrize("call", ["*", "nvmlDeviceGetUUID"])
def test_one_lost_gpu_stops_no_other(machine: Machine, call: str, caplog: pytest.LogCaptureFixture) -> None:
    machine.gpus[0].errors[call] = "GPU_IS_LOST"
    assert gpu_partitions() == ALL[1:]
    assert "GPU 0 is left out: GPU is lost" in caplog.text
    assert [part.gpu for part in node_partitions(NodeSettings(), [0])] == ["MIG-a", "MIG-b", "GPU-c3"]
    machine.gpus[0].errors.clear()
    machine.errors["nvmlDeviceGetCount"] = "UNKNOWN"
    assert gpu_partitions() == ()


@pytest.mark.parametrize(
    ("cuda", "nvidia", "seen"),
    [
        pytest.param("2", None, ALL[3:], id="by number"),
        pytest.param("GPU-a1,2", None, (ALL[0], ALL[3]), id="by number and UUID"),
        pytest.param("GPU-c", None, ALL[3:], id="by the beginning of a UUID"),
        pytest.param("MIG-b", None, ALL[2:3], id="a MIG instance"),
        pytest.param("1", None, ALL[1:3], id="all instances of a GPU"),
        pytest.param("", None, (), id="none"),
        pytest.param("-1", None, (), id="none, as CUDA has it"),
        pytest.param(None, "all", ALL, id="a container that was given all"),
        pytest.param(None, "0,2", (ALL[0], ALL[3]), id="of more that are shown"),
        pytest.param(None, "4,5,6", ALL, id="a container that was given these three by the host's numbers"),
        pytest.param("2", "0,2", ALL[3:], id="CUDA's is the narrower one"),
    ],
)
def test_only_what_was_given(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, cuda: str | None, nvidia: str | None, seen: tuple[Partition, ...]
) -> None:
    for name, value in (("CUDA_VISIBLE_DEVICES", cuda), ("NVIDIA_VISIBLE_DEVICES", nvidia)):
        if value is not None:
            monkeypatch.setenv(name, value)
    assert gpu_partitions() == seen


def test_a_number_of_partitions_means_cpu_partitions(machine: Machine, tmp_path: Path) -> None:
    kinds = []
    for wanted in (2, None):
        with ExitStack() as claims:
            kinds.append({part.kind for part in _layout(tmp_path, Settings(), wanted, "r", "p", claims).partitions})
    assert kinds == [{"cpu"}, {"cuda", "mig"}]


def test_a_sharing_mode_that_does_not_work_is_refused_before_anything_starts(machine: Machine, tmp_path: Path) -> None:
    config = Settings(worker=WorkerSettings(sharing_mode="mps"))
    with pytest.raises(StartFailed, match="mps is not supported"), ExitStack() as claims:
        _layout(tmp_path, config, None, "r", "p", claims)


LAYOUT = Layout(
    home=Path("/srv/smore home"),
    root=Path("/srv/code"),
    redis_url="unix://:r@/srv/redis.sock?db=0",
    postgres_url="postgresql+psycopg://smore:p@/smore?host=/srv",
    gateway_host="127.0.0.1",
    gateway_port=8400,
    metrics_port=8410,
    platform_cores="0",
    partitions=plan_partitions([0, 1]),
)


def test_table_of_processes() -> None:
    table = {process.name: process for process in processes(LAYOUT)}
    assert list(table) == [
        "template",
        "nursery",
        "worker-cpu0",
        "worker-cpu1",
        "gateway",
        "scheduler-0",
        "scheduler-1",
        "control",
    ]
    assert table["nursery"].command[1:] == ("-m", "worker.runner.nursery", "/srv/smore home/run/nursery.sock")
    ports = {
        name: int(dict(process.env)["SMORE_METRICS_PORT"])
        for name, process in table.items()
        if "SMORE_METRICS_PORT" in dict(process.env)
    }
    assert all(of_a_platform(table[name].command) for name in ports), "the owner of a port is known by its module"
    assert ports.pop("gateway") == 0, "it serves its own at /metrics"
    assert sorted(ports.values()) == list(range(8410, 8410 + 2 + METRICS_PORTS)), (
        "one setting says where all of them are"
    )
    assert metrics_ports(list(table.values())) == ports
    assert dict(table["nursery"].env) == {"OMP_NUM_THREADS": "1"}
    assert table["gateway"].listens == ("127.0.0.1", 8400)
    assert table["scheduler-1"].command[1:] == ("-m", "scheduler.worker", "scheduler", "scheduler-1")
    assert [name for name, process in table.items() if process.later] == ["scheduler-1", "control"]
    assert dict(table["worker-cpu1"].env) == {
        "SMORE_METRICS_PORT": "8411",
        "SMORE_WORKER__GPU": "cpu1",
        "SMORE_WORKER__KIND": "cpu",
        "SMORE_WORKER__DEVICE": "1",
        "SMORE_WORKER__SHARE": "0.5",
    }


def test_environment_leads_to_this_home_and_these_servers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYTHONPATH", raising=False)
    given = environment(LAYOUT)
    assert given["SMORE_HOME"] == "/srv/smore home"
    assert given["SMORE_REDIS__URL"] == LAYOUT.redis_url
    assert given["SMORE_POSTGRES__URL"] == LAYOUT.postgres_url
    assert given["PYTHONPATH"] == "/srv/code"
    monkeypatch.setenv("PYTHONPATH", "/home/ada/rules")
    assert environment(LAYOUT)["PYTHONPATH"] == "/srv/code:/home/ada/rules"


def configured(*members: Process) -> RawConfigParser:
    text = supervision.configuration(
        run=Path("/srv/run"),
        logs=Path("/srv/100% logs"),
        root=Path("/srv"),
        password="p%s",
        groups={supervision.SERVERS: members[:1], supervision.PLATFORM: members[1:]},
    )
    parser = RawConfigParser(inline_comment_prefixes=(";", "#"))
    parser.read_string(text)
    return parser


def test_supervisor_configuration() -> None:
    command = ("/bin/echo", "two words", "50%", "it's")
    parser = configured(
        Process(name="redis", command=("redis-server",)),
        Process(name="worker", command=command, env=(("SMORE_WORKER__DEVICE", "1,2"),), stop_wait_s=20),
    )
    worker = parser["program:worker"]
    assert shlex.split(worker["command"].replace("%%", "%")) == list(command)
    assert worker["stdout_logfile"] == "/srv/100%%%% logs/worker.log"
    assert worker["environment"] == 'SMORE_WORKER__DEVICE="1,2"'
    # What outlives its worker must not be in reach of a signal to the worker's group.
    assert (worker["stopasgroup"], worker["killasgroup"]) == ("false", "false")
    assert (worker["autostart"], parser["program:redis"]["autostart"]) == ("false", "true")
    # The servers stop last.
    assert int(parser["group:servers"]["priority"]) < int(parser["group:platform"]["priority"])


def test_the_supervisor_asks_for_a_password_that_lies_beside_its_socket(tmp_path: Path) -> None:
    """A function on a GPU may be a process of the same user, and reach the socket."""
    server = configured()["unix_http_server"]
    assert (server["chmod"], server["username"], server["password"]) == ("0700", "smore", "p%%s")
    password = supervision.make_password(tmp_path)
    (file,) = tmp_path.iterdir()
    assert (file.read_text(), file.stat().st_mode & 0o777) == (password, 0o600)
    transport: Any = supervision.Supervisor(tmp_path)._rpc("transport")
    assert (transport.username, transport.password) == ("smore", password)
    assert supervision.make_password(tmp_path) != password


def test_a_comment_sign_in_a_path_is_refused() -> None:
    with pytest.raises(ValueError, match="cannot hold"):
        configured(Process(name="one", command=("/srv/a ;b",)))


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("redis://:p@host:6379/0", "redis://:p@host:6379/0"),
        ("rediss://host/1", "rediss://host/1"),
        ("unix:///run/redis.sock", "redis+socket:///run/redis.sock?virtual_host=0"),
        ("unix://:p@/run/redis.sock?db=3", "redis+socket://:p@/run/redis.sock?virtual_host=3"),
        ("unix:///run/redis.sock?password=p%2F", "redis+socket://:p%2F@/run/redis.sock?virtual_host=0"),
        ("unix://u:p%40@/a%20b/redis.sock?db=0", "redis+socket://u:p%40@/a%20b/redis.sock?virtual_host=0"),
    ],
)
def test_celery_names_the_same_redis(url: str, expected: str) -> None:
    assert celery_url(url) == expected


def test_unix_url_quotes() -> None:
    assert unix_url("/a b/redis.sock", "p/@") == "unix://:p%2F%40@/a%20b/redis.sock?db=0"
