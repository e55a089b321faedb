"""``up`` waits until its own gateway is ready, and knows it from a stranger."""

import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import start_http_server

from smore.local import doctor, ports, scrape
from smore.local.asking import Endpoints, await_rest
from smore.local.embedded import StartFailed
from smore.local.findings import Finding, Grade, Site
from smore.local.layout import Process
from smore.local.machine import _await_ready, _layout
from smore.local.started_settings import note_metrics_port
from smore.local.supervision import ProcessStatus
from smore.process import observability
from smore.process.instance import instance_id
from smore.process.settings import NodeSettings, Settings


class Supervised:
    """A supervisor whose processes all have the same state."""

    def __init__(self, state: str = "RUNNING") -> None:
        self._status = ProcessStatus(name="scheduler-0", state=state, pid=None)

    def status(self) -> tuple[ProcessStatus, ...]:
        return (self._status,)


class Answers(HTTPServer):
    """One answer after the other, the last of them for ever."""

    left: list[tuple[int, dict[str, Any]]]


class Handler(BaseHTTPRequestHandler):
    server: Answers

    def do_GET(self) -> None:
        status, body = self.server.left[0] if len(self.server.left) == 1 else self.server.left.pop(0)
        content = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def gateway() -> Iterator[Answers]:
    server = Answers(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def answer(instance: str, *gpus: str, leader: bool = True) -> tuple[int, dict[str, Any]]:
    checks = {"leader": {"ok": leader, "detail": "" if leader else "no scheduler holds the lease"}}
    return (200 if leader else 503), {"instance": instance, "gpus": gpus, "checks": checks}


def wait(gateway: Answers, supervisor: object, logs: Path) -> list[str]:
    said: list[str] = []
    process = Process(name="gateway", command=(), listens=("127.0.0.1", gateway.server_port), ready="/readyz")
    _await_ready(process, "mine", {"cpu0", "cpu1"}, supervisor, logs, said.append)  # type: ignore[arg-type]
    return said


def test_it_waits_for_the_leader_and_for_every_device(gateway: Answers, tmp_path: Path) -> None:
    gateway.left = [
        answer("mine", leader=False),
        answer("mine", "cpu0"),
        answer("mine", "cpu0"),
        answer("mine", "cpu0", "cpu1"),
    ]
    assert wait(gateway, Supervised(), tmp_path) == [
        "leader: no scheduler holds the lease; no report of cpu0, cpu1 yet",
        "no report of cpu1 yet",
    ]


@pytest.mark.parametrize("body", [answer("another", "cpu0", "cpu1"), (404, {})])
def test_a_stranger_on_the_port_is_named(gateway: Answers, tmp_path: Path, body: tuple[int, dict[str, Any]]) -> None:
    gateway.left = [body]
    with pytest.raises(StartFailed, match=r"answered by process \d+ .*, not by this platform.*SMORE_API__PORT"):
        wait(gateway, Supervised(), tmp_path)


def test_a_process_that_goes_on_failing_ends_the_start(
    gateway: Answers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("smore.local.machine._FAILING_S", 0.0)
    (tmp_path / "scheduler-0.log").write_text("no module named numba\n")
    gateway.left = [answer("mine", leader=False)]
    with pytest.raises(StartFailed, match=r"(?s)scheduler-0 does not stay up.*no module named numba"):
        wait(gateway, Supervised("BACKOFF"), tmp_path)


class Restarted(Supervised):
    """Its process runs whenever somebody looks, each time another one."""

    def status(self) -> tuple[ProcessStatus, ...]:
        self._status = replace(self._status, pid=(self._status.pid or 100) + 1)
        return (self._status,)


def test_a_process_that_ends_after_each_start_ends_the_start(gateway: Answers, tmp_path: Path) -> None:
    (tmp_path / "scheduler-0.log").write_text("The policy cannot be used\n")
    gateway.left = [answer("mine", leader=False)]
    with pytest.raises(StartFailed, match=r"(?s)scheduler-0 does not stay up.*The policy cannot be used"):
        wait(gateway, Restarted(), tmp_path)


def test_the_id_of_an_installation_stays(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        with ThreadPoolExecutor(8) as pool:
            ids = set(pool.map(instance_id, [tmp_path] * 16))
    finally:
        os.umask(before)
    assert len(ids) == 1 and ids == {instance_id(tmp_path)}, "they start together"
    assert instance_id(tmp_path / "missing") not in ids
    assert [path.name for path in tmp_path.iterdir()] == ["instance"]
    assert (tmp_path / "instance").stat().st_mode & 0o777 == 0o644, "services of one folder have users of their own"


def test_a_block_of_ports_that_is_taken_is_passed_over(gateway: Answers) -> None:
    taken = gateway.server_port
    first = ports.free_block("127.0.0.1", taken - 1, 3, ())
    assert first > taken and (first - taken + 1) % 3 == 0
    assert ports.free_block("127.0.0.1", first, 3, {first + 1}) > first + 1, "the gateway's own port stays free"


def test_ports_that_a_platform_has_chosen_are_given_to_no_other(gateway: Answers) -> None:
    """Two platforms that start together both find the ports free, for neither listens yet."""
    first = ports.free_block("127.0.0.1", 20_000, 3, ())
    with ports.claimed_block("127.0.0.1", first, 3, ()) as mine:
        assert mine == first
        with ports.claimed_block("127.0.0.1", first + 1, 2, ()) as other:
            assert other >= first + 3
    with ports.claimed_block("127.0.0.1", first, 3, ()) as again:
        assert again == first, "the claim ends with the start"
    with pytest.raises(OSError, match="no 6 ports in a row are free from 65530 on"):
        ports.claimed_block("127.0.0.1", 65_530, 6, ()).__enter__()


def test_a_platform_takes_the_ports_for_metrics_that_it_had_last(tmp_path: Path) -> None:
    lowest = ports.free_block("127.0.0.1", 20_000, 6, ())
    before = ports.free_block("127.0.0.1", lowest + 300, 6, ())
    config = Settings(node=NodeSettings(metrics_port=lowest))
    note_metrics_port(tmp_path, config, before)

    def chosen(config: Settings) -> int:
        with ExitStack() as claims:
            return _layout(tmp_path, config, 1, "r", "p", claims).metrics_port

    assert chosen(config) == before, "though the lower ones are free"
    with ports.claimed_block("127.0.0.1", before, 1, ()):
        assert chosen(config) not in range(before, before + 1), "another platform has them now"
    other = Settings(node=NodeSettings(metrics_port=lowest + 60))
    assert chosen(other) != before, "an operator has set others"
    (tmp_path / "metrics-port.json").write_text("{")
    assert chosen(config) != before


def test_a_start_without_ports_for_metrics_is_refused(tmp_path: Path) -> None:
    config = Settings(node=NodeSettings(metrics_port=65_000), metrics_host="192.0.2.1")
    with ExitStack() as claims, pytest.raises(StartFailed, match=r"no port for metrics on 192\.0\.2\.1 from 65000 on"):
        _layout(tmp_path, config, 1, "r", "p", claims)


@pytest.fixture
def scraped() -> Iterator[int]:
    """The port of a process of the platform ``own`` that serves its metrics as ``scheduler-0``."""
    server, thread = start_http_server(0, addr="127.0.0.1", registry=observability.OTHERS)
    observability.PROCESS.labels("own", "scheduler-0").set(1)
    yield server.server_port
    observability.PROCESS.clear()
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.parametrize(("module", "of_the_platform"), [("api.app", True), ("server", False)])
def test_the_owner_of_a_port_is_of_a_platform_by_what_it_runs(
    module: str, of_the_platform: bool, tmp_path: Path
) -> None:
    """Whatever a shell that knows a platform starts has its SMORE_HOME."""
    (tmp_path / "api").mkdir()
    code = "import socket; s = socket.create_server(('127.0.0.1', 0)); print(s.getsockname()[1], flush=True); input()"
    (tmp_path / "api" / "__init__.py").touch()
    for path in ("api/app.py", "server.py"):
        (tmp_path / path).write_text(code)
    with subprocess.Popen(
        [sys.executable, "-m", module],
        cwd=tmp_path,
        env={"SMORE_HOME": "/srv/other"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        said = ports.owner(int(process.stdout.readline()))
        process.communicate(b"\n")
    assert said.startswith(f"process {process.pid} (") and f"-m {module}" in said
    assert said.endswith(" of the platform in /srv/other") is of_the_platform


def test_a_process_whose_port_another_one_has_is_named(scraped: int, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        nobody = free.getsockname()[1]
    where = {"scheduler-0": scraped, "control": scraped, "scheduler-1": nobody}
    silent = scrape.silent("127.0.0.1", where, "own")
    assert silent.keys() == {"control", "scheduler-1"}
    assert f"has port {scraped}" in silent["control"] and str(os.getpid()) in silent["control"]
    assert silent["scheduler-1"] == f"nobody answers on port {nobody} of 127.0.0.1"
    assert "scheduler-0" in scrape.silent("127.0.0.1", where, "another platform")

    place = Site(
        config=Settings(home=tmp_path),
        redis_url=None,
        postgres_url=None,
        processes={"control": 17},
        instance="own",
        metrics_ports=where,
    )
    findings = {each.name: each for each in doctor.examine(place)}
    assert findings["metrics"].found == f"scheduler-0 {scraped} of 127.0.0.1"
    assert findings["metrics of control"].verdict is Grade.WARNING and "kill 17" in findings["metrics of control"].fix
    assert findings["folder"].found == f"{tmp_path}, logs in {tmp_path / 'logs'}"


def test_it_waits_for_the_leader_of_trainings_and_for_the_metrics(
    gateway: Answers, scraped: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ends(**metrics_ports: int) -> Endpoints:
        return Endpoints(
            home="h",
            gateway_url=f"http://127.0.0.1:{gateway.server_port}",
            redis_url="r",
            postgres_url="p",
            supervisor_pid=1,
            instance="own",
            metrics_ports=metrics_ports,
        )

    said: list[str] = []
    gateway.left = [(200, {"job_leader": ""}), (200, {"job_leader": "host:1:a"})]
    assert await_rest(ends(**{"scheduler-0": scraped}), said.append) == []
    assert said == ["nobody leads the queue of trainings yet"]
    monkeypatch.setattr("smore.local.asking.REST_S", 0.0)
    ((process, fault),) = await_rest(ends(**{"scheduler-1": scraped}), said.append)
    assert said[1:] == ["no metrics of scheduler-1 yet"], "the wait is bounded"
    assert (
        process == "scheduler-1"
        and fault.startswith("scheduler-1 serves no metrics: ")
        and f"has port {scraped}" in fault
    )
    gateway.left = [(200, {"job_leader": ""})]
    ((process, fault),) = await_rest(ends(**{"scheduler-0": scraped}), said.append)
    assert process == "control" and "nobody leads the queue of trainings: no training starts" in fault


def test_the_doctor_names_the_folder_and_the_url_of_the_platform_that_answers(gateway: Answers, tmp_path: Path) -> None:
    url = f"http://127.0.0.1:{gateway.server_port}"
    place = Site(
        config=Settings(home=tmp_path),
        redis_url=None,
        postgres_url=None,
        processes={},
        gateway_url=url,
        instance="own",
    )

    def looked(place: Site) -> Finding:
        (finding,) = (each for each in doctor.examine(place) if each.name == "gateway")
        return finding

    gateway.left = [(200, {"status": "ok", "instance": "own"})]
    assert (looked(place).verdict, looked(place).found) == (Grade.OK, f"{url}, of the platform in {tmp_path}")
    gateway.left = [(200, {"status": "ok", "instance": "stranger"})]
    assert (looked(place).verdict, "another platform answers" in looked(place).found) == (Grade.BROKEN, True)
    silent = looked(replace(place, gateway_url=f"http://127.0.0.1:{ports.free_block('127.0.0.1', 20_000, 1, ())}"))
    assert (silent.verdict, silent.fix) == (Grade.BROKEN, "`smore logs gateway` says why it does not serve")
