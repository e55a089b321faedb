"""``smore metrics scrape-config``: what Prometheus needs."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from smore.cli.terminal import EXIT_FAILED
from smore.local import asking, machine
from tests.support.cli import smore


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SMORE_HOME", str(tmp_path))
    monkeypatch.delenv("SMORE_URL", raising=False)
    return tmp_path


def jobs(text: str) -> dict[str, dict[str, Any]]:
    return {job["job_name"]: job for job in yaml.safe_load(text)["scrape_configs"]}


def test_of_the_platform_of_this_machine(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(
        machine,
        "endpoints",
        lambda _: asking.Endpoints(
            home=str(home),
            gateway_url="http://127.0.0.1:8400",
            redis_url="r",
            postgres_url="p",
            supervisor_pid=1,
            metrics_host="10.0.0.7",
            metrics_ports={"worker-cpu0": 8410},
        ),
    )
    assert smore("metrics", "scrape-config") == 0
    text = capsys.readouterr().out
    monkeypatch.setenv("SMORE_URL", "http://127.0.0.1:8400/")
    assert smore("metrics", "scrape-config") == 0
    assert capsys.readouterr().out == text, "the URL is that of this machine's platform"

    printed = jobs(text)
    assert printed["smore-gateway"]["authorization"] == {"credentials_file": str(home / "prometheus-key")}
    assert f"smore keys create prometheus --scope read > {home / 'prometheus-key'}" in text, "not the operator's"
    assert printed["smore-gateway"]["static_configs"] == [
        {"targets": ["127.0.0.1:8400"], "labels": {"process": "gateway"}}
    ]
    assert printed["smore"]["static_configs"] == [{"targets": ["10.0.0.7:8410"], "labels": {"process": "worker-cpu0"}}]


def test_of_a_gateway_elsewhere_and_of_compose(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert smore("metrics", "scrape-config", "--compose", "--workers", "2") == 0
    targets = jobs(capsys.readouterr().out)["smore"]["static_configs"]
    assert [target["targets"][0] for target in targets][-2:] == ["node:8410", "node:8411"]

    monkeypatch.setenv("SMORE_URL", "https://smore.example")
    assert smore("metrics", "scrape-config") == 0
    printed = capsys.readouterr().out
    assert jobs(printed).keys() == {"smore-gateway"}
    assert jobs(printed)["smore-gateway"]["scheme"] == "https"
    assert "--scope read" in printed
    assert printed.startswith("# The gateway at https://smore.example alone.")


def test_without_a_platform(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert smore("metrics", "scrape-config") == EXIT_FAILED
    assert str(home) in capsys.readouterr().err
