"""
The compose files without a Docker engine: what they say, and every service's command with its environment until it is
healthy.
"""

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
from smore.process.settings import ApiSettings, NodeSettings, RedisSettings, Settings
from tests.support.eventually import eventually

ROOT = Path(__file__).resolve().parents[2]
OURS = ("migrate", "gateway", "scheduler-0", "scheduler-1", "control", "node", "trainings")
WATCHING = ("prometheus", "grafana")
GIVEN = {"SMORE_REDIS_PASSWORD": "redis-secret", "SMORE_POSTGRES_PASSWORD": "postgres-secret"}


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
    """
    The services, overlays laid on as Compose does: maps are joined, everything else is replaced, null is taken away.
    """
    services: dict[str, Any] = interpolated(yaml.load((ROOT / "docker-compose.yml").read_text(), Loader))["services"]
    for overlay in overlays:
        for name, changed in interpolated(yaml.load((ROOT / overlay).read_text(), Loader))["services"].items():
            for key, value in changed.items():
                if value is None:
                    services[name].pop(key)
                else:
                    services[name][key] = {**services[name][key], **value} if isinstance(value, dict) else value
    return services


def test_every_service_is_hardened_bounded_and_checked() -> None:
    whole = yaml.load((ROOT / "docker-compose.yml").read_text(), Loader)
    services = composed()
    assert set(services) == {"redis", "postgres", *OURS, *WATCHING}
    for name, service in services.items():
        assert service["cap_drop"] == ["ALL"], name
        assert service["security_opt"] == ["no-new-privileges:true"], name
        assert "privileged" not in service, name
        assert "cap_add" not in service, name
        assert service["stop_grace_period"], name
        assert "inside" in service["networks"], name
        assert ("healthcheck" in service) == (name != "migrate"), name
        assert service["restart"] == ("no" if name == "migrate" else "unless-stopped"), name
        assert service["logging"] == {"driver": "local", "options": {"max-size": "20m", "max-file": "5"}}, name
        assert service["pids_limit"], name
        # What functions and trainings may take is the operator's to say.
        assert (service["mem_limit"] == "0") == (name in ("node", "trainings")), name
    assert whole["networks"]["inside"] == {"internal": True}
    assert [name for name, service in services.items() if "ports" in service or "outside" in service["networks"]] == [
        "gateway",
        *WATCHING,
    ]
    (devices,) = services["node"]["deploy"]["resources"]["reservations"]["devices"]
    assert devices == {"driver": "nvidia", "count": "all", "capabilities": ["gpu"]}
    for name in (one for one in OURS[1:] if one != "trainings"):
        assert services[name]["env_file"] == [{"path": ".env", "required": False}], name
        # As under `make up`: what the first answer needs waits for the servers and the schema by itself.
        first = name in ("gateway", "scheduler-0", "node")
        assert services[name]["depends_on"].get("migrate") == (
            None if first else {"condition": "service_completed_successfully"}
        ), name
        if name != "gateway":
            assert services[name]["environment"]["SMORE_METRICS_HOST"] == "0.0.0.0", name


def test_prometheus_and_grafana_start_when_asked_for_with_what_lies_in_observability() -> None:
    services = composed()
    assert [name for name, service in services.items() if "profiles" in service] == list(WATCHING)
    mounted = []
    for name in WATCHING:
        service = services[name]
        assert service["profiles"] == ["observability"]
        assert re.search(r":v?\d+\.\d+\.\d+$", service["image"])
        assert all(port.startswith("127.0.0.1:") for port in service["ports"]), "on this host alone"
        mounted += [one.split(":") for one in service["volumes"] if isinstance(one, str) and one.startswith("./")]
    assert all(how == "ro" and (ROOT / here).exists() for here, _, how in mounted)
    read = yaml.safe_load((ROOT / "observability" / "prometheus.yml").read_text())
    targets = [
        one["target"] if isinstance(one, dict) else one.split(":")[1] for one in services["prometheus"]["volumes"]
    ]
    assert {f"/etc/prometheus/{name}" for name in (*read["rule_files"], *read["scrape_config_files"])} < set(targets)
    provided = yaml.safe_load((ROOT / "observability" / "grafana" / "dashboards" / "boards.yml").read_text())
    assert provided["providers"][0]["options"]["path"] in [there for _, there, _ in mounted]
    # Without a password it would have a known one.
    refused = subprocess.run(services["grafana"]["entrypoint"], capture_output=True, text=True)
    assert refused.returncode and "set SMORE_GRAFANA_PASSWORD" in refused.stdout


def test_one_service_builds_the_image() -> None:
    """
    Services that build one tag side by side fail where images lie in containerd, and nobody may pull a stranger's image
    of that name.
    """
    services = composed()
    assert [name for name, service in services.items() if "build" in service] == ["migrate"]
    assert services["migrate"]["pull_policy"] == "build"
    images = {name: (services[name]["image"], services[name]["pull_policy"]) for name in OURS[1:]}
    assert set(images.values()) == {(services["migrate"]["image"], "never"), ("smore-platform:trainings", "never")}
    assert [name for name, (image, _) in images.items() if image.endswith(":trainings")] == ["trainings"]


def test_no_password_is_on_a_command_line_or_in_the_image() -> None:
    text = (ROOT / "docker-compose.yml").read_text()
    for variable in GIVEN:
        assert f"${{{variable}:?" in text, "a password has no default"
        assert f"\n{variable}=\n" in (ROOT / ".env.example").read_text(), "nor a placeholder, which somebody would keep"
    for name, service in composed().items():
        said = f"{service.get('command')} {service.get('healthcheck')}"
        assert not [secret for secret in GIVEN.values() if secret in said], name
    redis_command = composed()["redis"]["command"][-1]
    for wanted in ("valkey-server - --appendonly yes", "--maxmemory-policy noeviction", 'requirepass "$REDISCLI_AUTH"'):
        assert wanted in redis_command
    ignored = (ROOT / ".dockerignore").read_text().splitlines()
    assert ignored.index(".env") < ignored.index(".env.*") < ignored.index("!.env.example")


def test_the_image_runs_as_a_user_of_its_own_who_finds_the_compiled_policy() -> None:
    lines = [line for line in (ROOT / "Dockerfile").read_text().splitlines() if not line.startswith("#")]
    user = next(number for number, line in enumerate(lines) if "useradd --uid 10001" in line)
    assert user < lines.index("COPY . .") < lines.index("USER smore") < lines.index("RUN python -m scheduler.policy")
    assert any("chmod -R a+rX ." in line for line in lines)
    # What is installed depends on two pyproject.toml and the constraints alone: other changes leave that layer as it is.
    install = next(number for number, line in enumerate(lines) if "pip install" in line)
    copied = {word for line in lines[:install] if line.startswith("COPY") for word in line.split()[1:-1]}
    assert copied == {"pyproject.toml", "constraints.txt", "client/pyproject.toml"}


def test_trainings_have_a_container_that_an_update_leaves_alone() -> None:
    """By an image under a name of its own; in the PID namespace of the node, and with its home and its GPUs."""
    services = composed()
    node, trainings = services["node"], services["trainings"]
    for same in ("pid", "volumes", "deploy"):
        assert node[same] == trainings[same], same
    assert node["pid"] == "host"
    assert node["environment"]["SMORE_WORKER__KEEPER"] == "true"
    assert node["depends_on"]["trainings"] == {"condition": "service_started"}
    # What it does not name cannot change it: neither .env, nor what the other services have in common.
    text = (ROOT / "docker-compose.yml").read_text()
    own = text[text.index("\n  trainings:\n") : text.index("\n  prometheus:\n")]
    assert re.findall(r"<<: \*(\w+)", own) == ["check"]
    assert re.findall(r"\$\{(\w+)", own) == ["SMORE_TRAININGS_MEMORY"]
    assert set(trainings["environment"]) == {"SMORE_HOME", "CUDA_DEVICE_ORDER"}
    assert trainings["shm_size"] == "16gb"


@pytest.mark.parametrize("page", ["gpu-host-with-compose.md", "second-host.md"])
def test_a_guide_names_the_files_and_the_image_of_the_trainings_before_the_first_up(page: str) -> None:
    """Without the tag ``up`` fails; with ``-f`` in one command, the next one without it would start another platform."""
    text = (ROOT / "docs" / "guides" / page).read_text()
    tagged = text.index("docker tag smore-platform:0.2.0 smore-platform:trainings")
    assert text.index("docker compose build\n") < tagged < text.index("docker compose up -d --wait\n")
    assert "docker compose -f" not in text
    for line in re.findall(r"COMPOSE_FILE=(\S+?)[`\n]", text + (ROOT / ".env.example").read_text()):
        assert all((ROOT / file).is_file() for file in line.split(":")), line


def test_no_service_has_a_name_of_its_own_and_the_hosts_at_once() -> None:
    """An engine refuses to start such a container."""
    for overlays in ((), ("docker-compose.cpu.yml",)):
        for name, service in composed(*overlays).items():
            assert not {"hostname", "uts"} <= set(service), name


def test_the_node_knows_no_password_of_postgres() -> None:
    environment = composed()["node"]["environment"]
    assert "SMORE_POSTGRES__URL" not in environment
    assert environment["SMORE_POSTGRES_PASSWORD"] == "", "not even out of .env"


def test_a_further_host_runs_the_same_node() -> None:
    here, alone = composed(), yaml.safe_load((ROOT / "docker-compose.node.yml").read_text())["services"]
    assert set(alone) == {"node", "trainings"}
    for name, service in alone.items():
        assert "ports" not in service
        for same in set(here[name]) - {"networks", "depends_on", "environment", "mem_limit", "pull_policy"}:
            assert service[same] == here[name][same], f"{name}: {same}"
    assert alone["node"]["build"] == "."
    assert alone["trainings"]["environment"] == here["trainings"]["environment"]
    assert alone["trainings"]["networks"] == ["inside"]
    assert set(alone["node"]["environment"]) == set(here["node"]["environment"]) - {"SMORE_POSTGRES_PASSWORD"} | {
        "SMORE_BLOBS__URL"
    }


def test_without_gpus_the_node_asks_for_none() -> None:
    services = composed("docker-compose.cpu.yml")
    assert "deploy" not in services["node"]
    assert "deploy" not in services["trainings"]
    assert services["node"]["environment"]["SMORE_NODE__KIND"] == "cpu"
    assert services["node"]["command"] == composed()["node"]["command"]


@pytest.mark.timeout(900)
def test_every_command_becomes_healthy(
    config: Settings, engine: Engine, redis_client: "redis.Redis", tmp_path: Path
) -> None:
    assert config.redis.url is not None
    assert config.postgres.url is not None
    services = composed("docker-compose.cpu.yml")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    local = {
        # Where the names inside the network would lead.
        "SMORE_REDIS__URL": config.redis.url,
        "SMORE_POSTGRES__URL": config.postgres.url,
        "SMORE_HOME": str(tmp_path),
        "SMORE_API__PORT": str(port),
        "SMORE_NODE__PARTITIONS": "1",
        "SMORE_NODE__METRICS_PORT": "0",
        "SMORE_METRICS_PORT": "0",
        "PYTHONPATH": str(ROOT),
    }
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("SMORE_")}

    def run(name: str, words: list[str]) -> "subprocess.Popen[bytes]":
        command = [sys.executable if word == "python" else word.replace("/data", str(tmp_path)) for word in words]
        with open(tmp_path / f"{name}.log", "ab") as log:
            return subprocess.Popen(
                command,
                env=inherited | services[name]["environment"] | local,
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def healthy(name: str) -> bool:
        """What the healthcheck would say, without a new process at every look."""
        assert started[name].poll() is None, (tmp_path / f"{name}.log").read_text()
        try:
            return not alive.alive(name, local)
        except (OSError, alive.Refused):
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
        started["control"].send_signal(signal.SIGKILL)
        started["control"].wait()
        eventually(lambda: alive.alive("control", local), what="a dead control noticed")
        assert run("control", services["control"]["healthcheck"]["test"][1:]).wait(30) == 1
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
    assert not [one for one in redis_client.client_list() if one["name"].startswith("smore-worker")], (
        "the node took its workers with it"
    )


def test_who_is_not_there_is_not_alive(config: Settings, redis_client: "redis.Redis", tmp_path: Path) -> None:
    url, prefix = str(config.redis.url), config.redis.prefix
    given = {"SMORE_REDIS__URL": url, "SMORE_HOME": str(tmp_path)}
    assert alive.alive("control", given) == "control of this machine is not connected to Redis"
    assert alive.alive("node", given) == "no node has started here"
    names = alive.names_file(tmp_path / "run")
    names.parent.mkdir()
    names.write_text("x-cpu0\nx-cpu1\n")
    redis_client.set(f"{prefix}gpu:x-cpu1", b"a report")
    assert alive.alive("node", given) == "no report of x-cpu0"
    with redis.from_url(url, client_name=f"smore-control:{socket.gethostname()}:1") as control:
        control.ping()
        assert alive.alive("control", given) == ""
    with redis.from_url(url, client_name=f"smore-scheduler-0:{socket.gethostname()}:1") as scheduler:
        scheduler.ping()
        assert alive.alive("scheduler-0", given) == "no scheduler leads"
        redis_client.set(f"{prefix}leader", b"scheduler-1")
        assert alive.alive("scheduler-0", given) == ""
    with pytest.raises(alive.Refused, match="WRONGPASS"):
        alive.alive("control", given | {"SMORE_REDIS__URL": url.replace("@", "x@", 1)})


def test_the_check_knows_the_settings_defaults() -> None:
    """It reads the environment by itself, to import little."""
    assert (ApiSettings().host, ApiSettings().port) == ("127.0.0.1", 8400)
    assert (Settings.model_fields["home"].default, RedisSettings().prefix) == (Path(".smore"), "smore:")
    text = Path(alive.__file__).read_text()
    for default in ('"127.0.0.1"', '"8400"', '".smore"', '"smore:"'):
        assert default in text
    found = subprocess.run(
        [sys.executable, "-c", "import sys, smore.alive; print(*sys.modules)"], cwd=ROOT, capture_output=True, text=True
    )
    assert {"redis", "pydantic", "urllib.request"}.isdisjoint(found.stdout.split())


def test_names_of_gpu_instances_are_one_for_the_platform(monkeypatch: pytest.MonkeyPatch) -> None:
    assert [
        part.gpu for part in layout.node_partitions(NodeSettings(kind="cpu", partitions=2, name="h1"), [0, 1, 2])
    ] == [
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
