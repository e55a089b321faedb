"""Which rule may lead the live queue of trainings, and what is recorded of it."""

from pathlib import Path

import pytest

from scheduler.jobs.recording import Recording, replay
from scheduler.policy.jobs.core import JobPolicy
from scheduler.policy.jobs.events import Event, GpuSeen, JobSubmitted
from scheduler.policy.jobs.spec import JobSpec
from scheduler.tasks.jobs import live_setting
from smore.process.settings import JobsSettings, Settings


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"policy": "tiresias"}, "tiresias"),
        ({"policy": "fastest"}, "smore-jobs"),
        ({"knobs": {"back_off": 1}}, "back_off"),
        ({"knobs": {"back_off_s": -1}}, "back_off_s"),
    ],
)
def test_a_rule_that_may_not_lead_is_refused_in_one_line(
    settings: dict[str, object], named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        live_setting(Settings(jobs=JobsSettings.model_validate(settings)))
    [line] = capsys.readouterr().err.splitlines()
    assert (ended.value.code, named in line) == (2, True)


def test_a_record_is_told_again_from_where_each_leader_began(tmp_path: Path) -> None:
    path = tmp_path / "record"
    for number in range(2):
        record, policy = Recording(path, "smore-jobs", {"back_off_s": 1.0}), JobPolicy()
        events: list[Event] = [
            GpuSeen(gpu="a", node="n", device="d", memory_mib=1.0),
            JobSubmitted(spec=JobSpec(id=f"j{number}", project="p"), submitted_at=1.0),
        ]
        record.note(2.0, events, policy.decide(2.0, events).decisions)
        with path.open("ab") as file:
            file.write(b'{"now": 3.0, "events": [["GpuSe')
    assert [placed for placed, again in replay(path) if placed == again] == [
        [("j0", 1, ("a",))],
        [("j1", 1, ("a",))],
    ]
