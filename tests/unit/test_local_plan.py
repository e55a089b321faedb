"""What smore.local decides before it starts anything."""

import shlex
from configparser import RawConfigParser
from pathlib import Path
from types import SimpleNamespace

import pytest

from smore.local import Layout, Partition, Process, environment, gpu_partitions, layout, plan_partitions, processes, supervision
from smore.redis_url import celery_url, unix_url


def of(*devices: tuple[str, float]) -> tuple[Partition, ...]:
    return tuple(Partition(gpu=f"cpu{i}", kind="cpu", device=device, share=share) for i, (device, share) in enumerate(devices))


@pytest.mark.parametrize(
    ("cores", "count", "expected"),
    [
        pytest.param([0, 1, 2, 3], None, of(("1", 1), ("2", 1), ("3", 1)), id="one per core, the first is the platform's"),
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


class NoDriver(Exception):
    pass


def nvml(gpus: dict[int, list[str] | None]) -> SimpleNamespace:
    """NVML of a machine whose GPUs have these MIG instances (None = MIG is off), with an empty place behind each of them."""

    def mig(gpu: int, place: int) -> str:
        slices = gpus[gpu] or []
        if place >= len(slices):
            raise NoDriver
        return slices[place]

    return SimpleNamespace(
        NVMLError=NoDriver,
        NVML_DEVICE_MIG_ENABLE=1,
        nvmlInit=lambda: None,
        nvmlShutdown=lambda: None,
        nvmlDeviceGetCount=lambda: len(gpus),
        nvmlDeviceGetHandleByIndex=lambda index: index,
        nvmlDeviceGetUUID=lambda handle: f"GPU-{handle}" if isinstance(handle, int) else handle,
        nvmlDeviceGetMigMode=lambda gpu: (int(gpus[gpu] is not None),) * 2,
        nvmlDeviceGetMaxMigDeviceCount=lambda gpu: len(gpus[gpu] or []) + 1,
        nvmlDeviceGetMigDeviceHandleByIndex=mig,
    )


def test_gpus_and_mig_instances(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layout, "pynvml", nvml({0: None, 1: ["MIG-a", "MIG-b"]}))
    assert gpu_partitions() == (
        Partition(gpu="gpu0", kind="cuda", device="GPU-0"),
        Partition(gpu="gpu1-mig0", kind="mig", device="MIG-a"),
        Partition(gpu="gpu1-mig1", kind="mig", device="MIG-b"),
    )


def test_no_driver_is_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent() -> None:
        raise NoDriver

    fake = nvml({})
    fake.nvmlInit = absent
    monkeypatch.setattr(layout, "pynvml", fake)
    assert gpu_partitions() == ()


LAYOUT = Layout(
    home=Path("/srv/smore home"),
    root=Path("/srv/code"),
    redis_url="unix://:r@/srv/redis.sock?db=0",
    postgres_url="postgresql+psycopg://smore:p@/smore?host=/srv",
    gateway_host="127.0.0.1",
    gateway_port=8400,
    platform_cores="0",
    partitions=plan_partitions([0, 1]),
)


def test_table_of_processes() -> None:
    table = {process.name: process for process in processes(LAYOUT)}
    assert list(table) == ["nursery", "worker-cpu0", "worker-cpu1", "gateway", "scheduler-0", "scheduler-1", "beat", "control", "learn"]
    assert table["nursery"].command[1:] == ("-m", "worker.nursery", "/srv/smore home/run/nursery.sock")
    assert dict(table["nursery"].env) == {"OMP_NUM_THREADS": "1"}
    assert table["gateway"].listens == ("127.0.0.1", 8400)
    assert table["scheduler-1"].command[1:] == ("-m", "scheduler.worker", "scheduler", "scheduler-1")
    assert [name for name, process in table.items() if process.later] == ["scheduler-1", "beat", "control", "learn"]
    assert dict(table["worker-cpu1"].env) == {
        "SMORE_METRICS_PORT": "8411",
        "SMORE_WORKER__GPU": "cpu1",
        "SMORE_WORKER__KIND": "cpu",
        "SMORE_WORKER__DEVICE": "1",
        "SMORE_WORKER__SHARE": "0.5",
    }


def test_environment_leads_to_this_home_and_these_servers() -> None:
    given = environment(LAYOUT)
    assert given["SMORE_HOME"] == "/srv/smore home"
    assert given["SMORE_REDIS__URL"] == LAYOUT.redis_url
    assert given["SMORE_POSTGRES__URL"] == LAYOUT.postgres_url
    assert given["PYTHONPATH"] == "/srv/code"


def configured(*members: Process) -> RawConfigParser:
    text = supervision.configuration(
        run=Path("/srv/run"),
        logs=Path("/srv/100% logs"),
        root=Path("/srv"),
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
