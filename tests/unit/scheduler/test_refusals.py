"""What the processes that decide refuse to start with."""

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from scheduler import refusals
from smore.local import machine, started_settings
from smore.process.environment import InvalidSetting
from smore.process.settings import JobsSettings, PolicySettings, PrewarmSettings, Settings


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"policy": PolicySettings(name="psychic")}, "SMORE_POLICY__NAME: 'psychic' is not a policy"),
        (
            {"policy": PolicySettings(name="no_such_module:Rule")},
            "SMORE_POLICY__NAME: no_such_module:Rule: there is no module 'no_such_module'",
        ),
        ({"policy": PolicySettings(knobs={"psychic": 1})}, "SMORE_POLICY__KNOBS: 'psychic' is not a knob"),
        (
            {"policy": PolicySettings(shadow="./no.py:Rule")},
            "SMORE_POLICY__SHADOW: ./no.py:Rule: there is no file no.py",
        ),
        ({"prewarm": PrewarmSettings(rule="psychic")}, "SMORE_PREWARM__RULE: "),
        ({"prewarm": PrewarmSettings(knobs={"psychic": 1})}, "SMORE_PREWARM__KNOBS: "),
        ({"jobs": JobsSettings(policy="tiresias")}, "SMORE_JOBS__POLICY: tiresias stops running trainings"),
        ({"jobs": JobsSettings(policy="pollux-style")}, "SMORE_JOBS__POLICY: pollux-style stops running trainings"),
        (
            {"jobs": JobsSettings(policy="fastest")},
            "SMORE_JOBS__POLICY: 'fastest' is not a policy; there are smore-jobs",
        ),
        ({"jobs": JobsSettings(knobs={"back_off": 1})}, "SMORE_JOBS__KNOBS: 'back_off' is not a knob"),
        ({"jobs": JobsSettings(knobs={"back_off_s": -1})}, "SMORE_JOBS__KNOBS: back_off_s"),
    ],
)
def test_what_cannot_decide_is_refused_in_one_line_with_its_setting(settings: dict[str, Any], why: str) -> None:
    (reason,) = refusals.of(Settings(**settings))
    assert reason.startswith(why) and "\n" not in reason


def test_a_rule_of_ones_own_and_the_product_with_knobs_are_taken(tmp_path: Path) -> None:
    rule = tmp_path / "mine.py"
    rule.write_text(
        "class Mine:\n    def order(self, now, batch): ...\n    def choose(self, now, batch, offers): ...\n"
    )
    assert refusals.of_policy(PolicySettings(name=f"{rule}:Mine", shadow="edf-util")) == ""
    assert refusals.of_policy(PolicySettings(knobs={"tau_training": 0.05})) == ""
    assert refusals.of(Settings(jobs=JobsSettings(policy="fifo", knobs={"back_off_s": 1}))) == []


def test_up_refuses_before_anything_is_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SMORE_JOBS__POLICY", "fastest")
    home = tmp_path / "home"
    with pytest.raises(InvalidSetting, match="SMORE_JOBS__POLICY: 'fastest' is not a policy"):
        machine.up(home)
    assert not (home / "logs").exists()
    command = machine.refusals_command()
    ended = subprocess.run(command, env=os.environ | {"SMORE_JOBS__POLICY": "fifo"}, capture_output=True, check=False)
    assert (ended.returncode, ended.stdout) == (0, b"")


def test_what_the_running_platform_was_started_with_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = tmp_path / "home"
    (home / "run").mkdir(parents=True)
    assert started_settings.changed_settings(home, Settings()) == {}
    monkeypatch.setattr("smore.local.supervision.running", lambda _run: object())
    assert started_settings.running_settings(home) is None, "started by an older version"
    started_settings.note_settings(home, Settings(jobs=JobsSettings(policy="fifo"), home=home))
    assert started_settings.changed_settings(home, Settings()) == {"SMORE_JOBS__POLICY": ("fifo", "smore-jobs")}
