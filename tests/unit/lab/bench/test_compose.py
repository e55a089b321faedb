"""The benchmark of the compose files where there is no engine, and the function that it looks for passwords with."""

import glob
import json
import socket
import sys
from pathlib import Path

import pytest

from lab.bench.compose import engine, run, spy


def test_without_an_engine_it_says_so_and_has_no_figures(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["lab.bench.compose", "--json"])
    monkeypatch.setenv("PATH", "")
    run.main()
    said = json.loads(capsys.readouterr().out)
    assert (said["figures"], said["skipped"]) == ({}, "there is no command docker")


def test_an_engine_without_start_interval_is_too_old(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    docker = tmp_path / "docker"
    docker.write_text("#!/bin/sh\necho 24.0.7\n")
    docker.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    assert engine.no_engine() == "Docker 24.0.7 is older than 25"


def test_the_spy_finds_what_is_on_a_command_line(monkeypatch: pytest.MonkeyPatch) -> None:
    # This process stands for all: others of the machine are none of a test's business.
    monkeypatch.setattr(
        glob, "glob", lambda pattern: ["/proc/self/cmdline"] if pattern.endswith("[0-9]*/cmdline") else []
    )
    word = Path(sys.argv[0]).name
    said = spy.Spy().look([Path("/proc/self/cmdline").read_text().split("\0")[0], f"not {word}"], 0.0)
    (found,) = said["found"]
    assert found.startswith("word 0 in /proc/self/cmdline")
    assert said["seen"] == 1


def test_the_spy_names_what_nothing_kept_it_from(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        host, port = server.getsockname()
        done = spy.escapes([(host, port)], [str(tmp_path), str(tmp_path / "missing")])
    assert done[:2] == [f"connected to {host}:{port}", f"wrote in {tmp_path}"]
    assert "signalled its parent" in done
    assert not list(tmp_path.iterdir())
