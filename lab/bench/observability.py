"""
The alert rules and boards of ``observability/``, held against a platform that Prometheus reads.

``python -m lab.bench.observability --json`` starts a throw-away platform with one CPU partition, a function that is called
and a training, and Prometheus with what ``smore metrics scrape-config`` prints, read every second. Prometheus is the
machine's own, or Debian's package, which is unpacked into a temporary folder (``apt-get download prometheus``).

Figures:

* ``rules_failed``: rules that Prometheus could not evaluate, and 1 where ``promtool test rules`` fails (0).
* ``boards_unknown_metrics``: metrics that a rule or a board names and no process of the platform has (0).
* ``expressions_empty``: expressions of boards without an answer though each of their metrics has a series (0);
  ``expressions``: all that were asked, without those of other programs' metrics.
* ``alerts_fired``: of four that were provoked, with their ``for`` cut to a second: a pause, a training that fails, a GPU
  worker that stands still, both schedulers that stand still (4).
* ``spans_missing``: invocations with a trace of which the receiver has no span (0); ``echo_p50_ratio``: the median of such
  calls over that of others by turns (1.02).

Ends with status 1 where a figure is not as it must be.
"""

import argparse
import json
import os
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

import httpx
import yaml
from prometheus_client import CollectorRegistry

from lab.bench.otlp import Receiver
from lab.bench.ports import free_port
from lab.bench.report import ROOT, emit, end_on_sigterm, progress
from lab.bench.uploads import eventually
from smore.local import asking, machine
from smore.process.observability import FAMILIES
from smore.process.settings import Settings
from smore_client import Client

FOLDER: Final = ROOT / "observability"
BARS: Final = {
    "rules_failed": 0,
    "boards_unknown_metrics": 0,
    "expressions_empty": 0,
    "alerts_fired": 4,
    "spans_missing": 0,
}
#: Calls with and without a trace, by turns of so many.
TRACED: Final = 1000
TURN: Final = 200
#: Seconds between two calls; for which Prometheus reads the platform before the boards are asked, and the most until an alert.
PAUSE_S: Final = 0.3
READ_S: Final = 60.0
PATIENCE_S: Final = 60.0
_NAME: Final = re.compile(r"\b(?:smore|process|python)_\w+")
_SAMPLE: Final = re.compile(r"^(\w+)[{ ]", re.MULTILINE)


def named(expression: str) -> set[str]:
    """The platform's metrics that an expression of PromQL names; of a label nothing, because none begins so."""
    return set(_NAME.findall(expression))


def rules() -> list[str]:
    groups = yaml.safe_load((FOLDER / "rules.yml").read_text())["groups"]
    return [rule["expr"] for group in groups for rule in group["rules"]]


def boards() -> list[str]:
    found = [json.loads(path.read_text()) for path in sorted((FOLDER / "boards").glob("*.json"))]
    return [target["expr"] for board in found for panel in board["panels"] for target in panel["targets"]]


def known() -> set[str]:
    """The names of the series that the platform's processes may have, those with no sample yet too."""
    ends = {"histogram": ("_bucket", "_sum", "_count"), "counter": ("_total",)}
    families = {
        family.name: family.type for registry in FAMILIES.values() for family in CollectorRegistry.collect(registry)
    }
    return {name + end for name, kind in families.items() for end in ends.get(kind, ("",))}


@contextmanager
def prometheus(tools: Path, folder: Path, jobs: list[dict[str, Any]]) -> Iterator[httpx.Client]:
    """A Prometheus that reads these jobs every second, with the rules, whose alerts wait for a second alone."""
    (folder / "rules.yml").write_text(re.sub(r"for: \w+", "for: 1s", (FOLDER / "rules.yml").read_text()))
    often = {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"}
    config = {"global": often, "rule_files": ["rules.yml"], "scrape_configs": jobs}
    (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
    address = f"127.0.0.1:{free_port()}"
    command: list[str | Path] = [
        tools / "prometheus",
        f"--config.file={folder}/prometheus.yml",
        f"--storage.tsdb.path={folder}/data",
    ]
    started = subprocess.Popen([*command, f"--web.listen-address={address}", "--log.level=warn"])
    try:
        with httpx.Client(base_url=f"http://{address}", timeout=30) as http:
            eventually(lambda: _ready(http), PATIENCE_S, "Prometheus")
            yield http
    finally:
        started.terminate()
        started.wait()


def _tools(folder: Path) -> Path:
    if found := shutil.which("prometheus"):
        return Path(found).parent
    progress("prometheus is not installed: Debian's is unpacked")
    subprocess.run(["apt-get", "download", "-qq", "prometheus"], cwd=folder, check=True)
    (package,) = folder.glob("prometheus_*.deb")
    subprocess.run(["dpkg", "-x", package, folder], check=True)
    return folder / "usr" / "bin"


def _ready(http: httpx.Client) -> bool:
    try:
        return http.get("/-/ready").status_code == 200
    except httpx.ConnectError:
        return False


def _asked(http: httpx.Client, expression: str) -> list[Any]:
    answer = http.get("/api/v1/query", params={"query": expression.replace("$__rate_interval", "1m")}).json()
    if answer["status"] != "success":
        raise ValueError(f"{expression}: {answer['error']}")
    found: list[Any] = answer["data"]["result"]
    return found


def looked_up(http: httpx.Client, texts: AbstractSet[str]) -> dict[str, float]:
    """What boards and rules name, against ``texts``: what each process serves."""
    present = {name for text in texts for name in _SAMPLE.findall(text)}
    unknown = {name for expression in (*rules(), *boards()) for name in named(expression)} - known()
    asked = [expression for expression in boards() if named(expression)]
    # What has never happened has no series.
    empty = [each for each in asked if named(each) <= present and not _asked(http, each)]
    groups = http.get("/api/v1/rules").json()["data"]["groups"]
    failed = [rule for group in groups for rule in group["rules"] if rule["health"] != "ok"]
    for each in (*unknown, *empty, *failed):
        progress(f"not as it must be: {each}")
    return {
        "boards_unknown_metrics": len(unknown),
        "expressions": len(asked),
        "expressions_empty": len(empty),
        "rules_failed": len(failed),
    }


def traced(url: str, key: str, receiver: Receiver) -> dict[str, float]:
    """What it costs and brings that a caller traces."""
    took: dict[bool, list[float]] = {True: [], False: []}
    sent = set()
    with httpx.Client(base_url=url, headers={"X-API-Key": key}, timeout=30) as http:
        for number in range(2 * TRACED):
            traces, headers = number // TURN % 2 == 0, {}
            if traces:
                sent.add(trace := f"{number + 1:032x}")
                headers = {"traceparent": f"00-{trace}-{number + 1:016x}-01"}
            began = time.perf_counter()
            http.post("/v1/functions/echo/invocations", json={"input": {"x": 1}}, headers=headers).raise_for_status()
            took[traces].append(time.perf_counter() - began)
    with suppress(TimeoutError):
        eventually(lambda: sent <= _told(receiver), PATIENCE_S, "the spans")
    return {
        "spans_missing": len(sent - _told(receiver)),
        "echo_p50_ratio": statistics.median(took[True]) / statistics.median(took[False]),
    }


def _told(receiver: Receiver) -> set[str]:
    return {span["traceId"] for span in receiver.spans if span["name"] == "invocation"}


def _served(end: asking.Endpoints, key: str) -> set[str]:
    addresses = [f"http://{end.metrics_host}:{port}/metrics" for port in end.metrics_ports.values()]
    gateway = httpx.get(f"{end.gateway_url}/metrics", headers={"X-API-Key": key}, timeout=30)
    return {gateway.text, *(httpx.get(address, timeout=30).text for address in addresses)}


def provoked(http: httpx.Client, client: Client, home: Path) -> int:
    """How many of four alerts come, each with its cause."""
    client.pause("echo")
    # It has the place in which the other one is to fail.
    client.stop_job("train")
    client.start_job("fails", [sys.executable, "-c", "raise SystemExit(3)"])
    fired = _fires(http, "Paused") + _fires(http, "TrainingFailed")
    for alert, part in (("GpuSilent", "worker-"), ("NobodyLeads", "scheduler-")):
        pids = [each.pid for each in machine.status(home) if each.name.startswith(part) and each.pid]
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        try:
            fired += _fires(http, alert)
        finally:
            for pid in pids:
                os.kill(pid, signal.SIGCONT)
    return fired


def _fires(http: httpx.Client, alert: str) -> bool:
    def there() -> bool:
        alerts = http.get("/api/v1/alerts").json()["data"]["alerts"]
        return any(each["labels"]["alertname"] == alert and each["state"] == "firing" for each in alerts)

    with suppress(TimeoutError):
        return eventually(there, PATIENCE_S, alert)
    progress(f"{alert} did not fire")
    return False


def run(folder: Path, receiver: Receiver) -> dict[str, float]:
    tools, home = _tools(folder), folder / "home"
    tested = subprocess.run([tools / "promtool", "test", "rules", FOLDER / "rules_test.yml"], check=False)
    os.environ |= {"SMORE_API__PORT": str(free_port()), "SMORE_HOME": str(home), "SMORE_OTEL__ENDPOINT": receiver.url}
    end = machine.up(home, config=Settings(), partitions=1)
    try:
        key = (home / "key").read_text().strip()
        (home / "prometheus-key").write_text(key)
        printed = subprocess.check_output([sys.executable, "-m", "smore.cli", "metrics", "scrape-config"], text=True)
        jobs = yaml.safe_load(printed)["scrape_configs"]
        with Client(end.gateway_url, key) as client, prometheus(tools, folder, jobs) as http:
            client.start_job(
                "train", ["zoo.train", "--model", "deepfm", "--preset", "cpu", "--input-wait", "0.2"], budget=19
            )
            document = {"metadata": {"name": "echo"}, "spec": {"entrypoint": "zoo.echo:Function"}}
            client.deploy({"apiVersion": "smore/v1", "kind": "Function", **document})
            until = time.monotonic() + READ_S
            while time.monotonic() < until:
                client.invoke("echo", {"x": 1}, deadline_ms=60_000)
                time.sleep(PAUSE_S)
            figures = looked_up(http, _served(end, key))
            figures |= traced(end.gateway_url, key, receiver)
            progress(str(figures))
            figures["alerts_fired"] = provoked(http, client, home)
    finally:
        machine.down(home)
    figures["rules_failed"] += tested.returncode != 0
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description="Alert rules and boards, on a platform that Prometheus reads.")
    parser.add_argument("--json", action="store_true", help="end with one line of JSON")
    parser.parse_args()
    end_on_sigterm()
    with tempfile.TemporaryDirectory(prefix="smore-") as folder, Receiver() as receiver:
        figures = run(Path(folder), receiver)
    emit("lab.bench.observability", figures)
    sys.exit(any(figures[name] != must for name, must in BARS.items()))


if __name__ == "__main__":
    main()
