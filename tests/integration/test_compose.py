"""The compose files without a Docker engine: what they say, and every service's command with its environment until it is healthy."""

import os
import re
import secrets
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import redis
import yaml
from sqlalchemy import Engine

from smore import alive
from smore.local import layout
from smore.settings import ApiSettings, NodeSettings, Settings
from tests.eventually import eventually

ROOT = Path(__file__).resolve().parents[2]
OURS = ("migrate", "gateway", "beat", "scheduler-0", "scheduler-1", "control", "learn", "node")
GIVEN = {"SMORE_REDIS_PASSWORD": "r", "SMORE_POSTGRES_PASSWORD": "p"}


class Loader(yaml.SafeLoader):
    """With Compose's own tag: what it stands at is taken away."""


Loader.add_constructor("!reset", lambda _loader, _node: None)


def interpolated(value: Any) -> Any:
    """``${NAME}``, ``${NAME:-default}`` and ``${NAME:?error}`` as Compose reads them; ``$$`` is a dollar."""
    match value:
        case dict():
            return {name: interpolated(one) for name, one in value.items()}
        case list():
            return [interpolated(one) for one in value]
        case str():
            found = re.sub(r"\$\{(\w+)(?::[-?]([^}]*))?\}", lambda m: GIVEN.get(m[1]) or m[2] or "", value)
            return found.replace("$$", "$")
        case _:
            return value


def composed(*overlays: str) -> dict[str, Any]:
    """The services, overlays laid on as Compose does: maps are joined, everything else is replaced, null is taken away."""
    services: dict[str, Any] = interpolated(yaml.load((ROOT / "docker-compose.yml").read_text(), Loader))["services"]
    for overlay in overlays:
        for name, changed in interpolated(yaml.load((ROOT / overlay).read_text(), Loader))["services"].items():
            for key, value in changed.items():
                if value is None:
                    services[name].pop(key)
                else:
                    services[name][key] = {**services[name][key], **value} if isinstance(value, dict) else value
    return services


def test_every_service_is_hardened_and_checked() -> None:
    whole = yaml.load((ROOT / "docker-compose.yml").read_text(), Loader)
    services = composed()
    assert set(services) == {"redis", "postgres", *OURS}
    for name, service in services.items():
        assert service["cap_drop"] == ["ALL"], name
        assert service["security_opt"] == ["no-new-privileges:true"], name
        assert "privileged" not in service, name
        assert "cap_add" not in service, name
        assert service["stop_grace_period"], name
        assert "inside" in service["networks"], name
        assert ("healthcheck" in service) == (name != "migrate"), name
        assert service["restart"] == ("no" if name == "migrate" else "unless-stopped"), name
    assert whole["networks"]["inside"] == {"internal": True}
    assert [name for name, service in services.items() if "ports" in service or "outside" in service["networks"]] == ["gateway"]
    redis_command = " ".join(services["redis"]["command"])
    for wanted in ("--appendonly yes", "--maxmemory-policy noeviction", "--requirepass r"):
        assert wanted in redis_command
    (devices,) = services["node"]["deploy"]["resources"]["reservations"]["devices"]
    assert devices == {"driver": "nvidia", "count": "all", "capabilities": ["gpu"]}
    assert services["node"]["pid"] == "host"
    for name in OURS[1:]:
        assert services[name]["env_file"] == [{"path": ".env", "required": False}], name
        assert services[name]["depends_on"]["migrate"] == {"condition": "service_completed_successfully"}, name


def test_passwords_have_no_default() -> None:
    text = (ROOT / "docker-compose.yml").read_text()
    assert "${SMORE_REDIS_PASSWORD:?" in text
    assert "${SMORE_POSTGRES_PASSWORD:?" in text


def test_a_further_host_runs_the_same_node() -> None:
    node, alone = composed()["node"], yaml.safe_load((ROOT / "docker-compose.node.yml").read_text())["services"]["node"]
    for same in ("command", "restart", "init", "stop_grace_period", "security_opt", "cap_drop", "pid", "shm_size", "deploy", "healthcheck"):
        assert alone[same] == node[same], same
    assert "ports" not in alone
    assert set(alone["environment"]) == set(node["environment"]) - {"SMORE_POSTGRES__URL", "SMORE_API__HOST", "SMORE_API__PORT"}


def test_without_gpus_the_node_asks_for_none() -> None:
    node = composed("docker-compose.cpu.yml")["node"]
    assert "deploy" not in node
    assert "pid" not in node
    assert node["environment"]["SMORE_NODE__KIND"] == "cpu"
    assert node["command"] == composed()["node"]["command"]


@pytest.mark.timeout(900)
def test_every_command_becomes_healthy(config: Settings, engine: Engine, redis_client: "redis.Redis", tmp_path: Path) -> None:
    assert config.redis.url is not None
    assert config.postgres.url is not None
    services = composed("docker-compose.cpu.yml")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    local = {
        # Where the names inside the network would lead.
        "SMORE_REDIS__URL": config.redis.url, "SMORE_POSTGRES__URL": config.postgres.url, "SMORE_HOME": str(tmp_path),
        "SMORE_API__PORT": str(port), "SMORE_NODE__PARTITIONS": "1", "SMORE_NODE__METRICS_PORT": "0", "PYTHONPATH": str(ROOT),
    }  # fmt: skip
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("SMORE_")}

    def run(name: str, words: list[str]) -> "subprocess.Popen[bytes]":
        command = [sys.executable if word == "python" else word.replace("/data", str(tmp_path)) for word in words]
        with open(tmp_path / f"{name}.log", "ab") as log:
            return subprocess.Popen(
                command, env=inherited | services[name]["environment"] | local, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )  # fmt: skip

    here = config.model_copy(
        update={"api": ApiSettings(port=port), "node": NodeSettings(kind="cpu", partitions=1), "home": tmp_path},
    )  # fmt: skip

    def healthy(name: str) -> bool:
        """What the healthcheck would say, without a new process at every look."""
        assert started[name].poll() is None, (tmp_path / f"{name}.log").read_text()
        try:
            return not alive.alive(name, here)
        except OSError:
            return False

    assert run("migrate", services["migrate"]["command"]).wait(60) == 0, (tmp_path / "migrate.log").read_text()
    assert (tmp_path / "key").stat().st_mode & 0o777 == 0o600
    started = {name: run(name, services[name]["command"]) for name in OURS[1:]}
    try:
        for name in started:
            eventually(lambda name=name: healthy(name), within_s=90, what=f"{name} healthy")  # type: ignore[misc]
        checks = {name: run(name, services[name]["healthcheck"]["test"][1:]) for name in started}
        assert {services[name]["healthcheck"]["test"][0] for name in started} == {"CMD"}
        assert {name: check.wait(60) for name, check in checks.items()} == dict.fromkeys(checks, 0)
        workers = [one["name"] for one in redis_client.client_list() if one["name"].startswith("smore-worker")]
        assert workers, "the node's worker is there"
        started["beat"].send_signal(signal.SIGKILL)
        started["beat"].wait()
        eventually(lambda: alive.alive("beat", here), what="a dead beat noticed")
        assert run("beat", services["beat"]["healthcheck"]["test"][1:]).wait(30) == 1
    finally:
        for process in reversed(started.values()):
            process.terminate()
        for name, process in started.items():
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
                pytest.fail(f"{name} did not end:\n{(tmp_path / f'{name}.log').read_text()}")
    assert not [one for one in redis_client.client_list() if one["name"].startswith("smore-worker")], "the node took its workers with it"


def test_who_is_not_there_is_not_alive(config: Settings, redis_client: "redis.Redis") -> None:
    assert alive.alive("beat", config) == "beat of this machine is not connected to Redis"
    here = config.model_copy(update={"node": NodeSettings(kind="cpu", partitions=1, name="x")})
    assert alive.alive("node", here) == "no report of x-cpu0"
    with redis.from_url(str(config.redis.url), client_name=f"smore-beat:{socket.gethostname()}:1") as beat:
        beat.ping()
        assert alive.alive("beat", config) == ""


def test_names_of_gpu_instances_are_one_for_the_platform(monkeypatch: pytest.MonkeyPatch) -> None:
    assert [part.gpu for part in layout.node_partitions(NodeSettings(kind="cpu", partitions=2, name="h1"), [0, 1, 2])] == [
        "h1-cpu0",
        "h1-cpu1",
    ]
    uuid = f"GPU-{secrets.token_hex(4)}"
    monkeypatch.setattr(layout, "gpu_partitions", lambda: (layout.Partition(gpu="gpu0", kind="cuda", device=uuid),))
    (part,) = layout.node_partitions(NodeSettings(), [0])
    assert (part.gpu, part.device, part.kind) == (uuid, uuid, "cuda")
    monkeypatch.setattr(layout, "gpu_partitions", lambda: ())
    with pytest.raises(ValueError, match="NVML shows no GPU"):
        layout.node_partitions(NodeSettings(), [0])
