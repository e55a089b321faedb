"""Processes that the template forks, with a real supervisor; the platform's own are stand-ins."""

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from lab.bench.servers import pid_of, supervisor
from smore.local import layout
from smore.local.layout import Layout, Process
from smore.local.machine import down, ends, up
from smore.process.settings import Settings
from tests.support.eventually import eventually

STAND_IN = "tests.support.stand_in"
#: Its import waits until ``one`` runs, so the template must have forked it before.
LATE = "tests.support.late_stand_in"


def stand_ins(_: Layout) -> tuple[Process, ...]:
    return (
        Process(name="template", command=layout.module("smore.local.template", STAND_IN, LATE)),
        Process(name="one", command=layout.module(STAND_IN, "one"), env=(("SMORE_TEST_ROLE", "one"),)),
        Process(name="other", command=layout.module(STAND_IN, "other")),
    )


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    for name in ("SMORE_REDIS__URL", "SMORE_POSTGRES__URL"):
        monkeypatch.delenv(name, raising=False)
    yield tmp_path
    down(tmp_path)


def said(home: Path, name: str, but: int | None = None) -> dict[str, Any]:
    """What the process told of itself, which is not the process ``but``."""

    def read() -> dict[str, Any] | None:
        try:
            found: dict[str, Any] = json.loads((home / f"{name}.json").read_text())
        except FileNotFoundError:
            return None
        return found if found["pid"] == pid_of(home, name) and found["pid"] != but else None

    return eventually(read, what=f"{name} runs")


def is_forked(number: int) -> bool:
    """A process that was forked shows the template's first environment, which has no settings."""
    return "SMORE_REDIS__URL" not in psutil.Process(number).environ()


def test_processes_are_forked_from_the_template_and_survive_its_death(home: Path) -> None:
    supervisor_pid = up(home, config=Settings(), processes=stand_ins, migration=()).supervisor_pid
    one, other = said(home, "one"), said(home, "other")
    template = pid_of(home, "template")
    assert template is not None

    assert is_forked(template) and is_forked(one["pid"]) and is_forked(other["pid"])
    assert psutil.Process(one["pid"]).ppid() == psutil.Process(other["pid"]).ppid() == supervisor_pid
    assert os.getpgid(one["pid"]) == one["pid"] and os.getsid(one["pid"]) == os.getsid(supervisor_pid)
    assert [word for word in psutil.Process(one["pid"]).cmdline() if word][1:] == ["-m", STAND_IN, "one"]
    assert one["words"] == ["one"]
    assert "one runs" in (home / "logs" / "one.log").read_text()
    # Its own settings are its own alone, and those of the platform are not the template's.
    assert one["environment"]["SMORE_TEST_ROLE"] == "one" and "SMORE_TEST_ROLE" not in other["environment"]
    assert one["environment"]["SMORE_REDIS__URL"] == other["environment"]["SMORE_REDIS__URL"]
    assert {name for name in psutil.Process(template).environ() if name.startswith("SMORE_")} == {"SMORE_HOME"}
    descriptors = {os.readlink(f"/proc/{one['pid']}/fd/{number}") for number in os.listdir(f"/proc/{one['pid']}/fd")}
    assert not [place for place in descriptors if place.startswith("socket:")], "none of the template's is left open"

    os.kill(one["pid"], signal.SIGUSR1)
    again = said(home, "one", one["pid"])
    assert is_forked(again["pid"])
    assert "exit status 3" in eventually(lambda: ends(home).get("one"), what="its end is seen").how

    # Without a template a process is started by exec, or by the next template.
    os.kill(template, signal.SIGKILL)
    os.kill(again["pid"], signal.SIGKILL)
    last = said(home, "one", again["pid"])
    assert psutil.Process(last["pid"]).ppid() == supervisor_pid
    assert psutil.pid_exists(other["pid"])
    new = eventually(lambda: (found := pid_of(home, "template")) != template and found, what="a new template")

    # One that does not answer is replaced.
    def forks() -> bool:
        former = said(home, "other")["pid"]
        os.kill(former, signal.SIGKILL)
        return is_forked(said(home, "other", former)["pid"])

    eventually(forks, what="it has imported its modules")
    other = said(home, "other")
    os.kill(new, signal.SIGSTOP)
    os.kill(other["pid"], signal.SIGKILL)
    assert said(home, "other", other["pid"])["environment"]["SMORE_HOME"] == str(home)
    eventually(lambda: pid_of(home, "template") not in (None, new), what="a template that answers")

    supervisor(home).stop("one")
    assert not psutil.pid_exists(last["pid"])
