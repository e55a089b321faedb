"""What is recorded of the rule that leads the live queue of trainings."""

from pathlib import Path

from lab.bench.told_again import replay
from scheduler.jobs.recording import Recording
from scheduler.policy.jobs.core import JobPolicy
from scheduler.policy.jobs.events import Event, GpuSeen, JobSubmitted
from scheduler.policy.jobs.spec import JobSpec
from smore.domain.job import JobRequest


def test_a_recording_is_replayed_from_where_each_leader_began(tmp_path: Path) -> None:
    path = tmp_path / "record"
    for number in range(2):
        record, policy = Recording(path, "smore-jobs", {"back_off_s": 1.0}), JobPolicy()
        events: list[Event] = [
            GpuSeen(gpu="a", node="n", device="d", memory_mib=1.0),
            JobSubmitted(spec=JobSpec(id=f"j{number}", project="p", request=JobRequest()), submitted_at=1.0),
        ]
        record.note(2.0, events, policy.decide(2.0, events).decisions)
        with path.open("ab") as file:
            file.write(b'{"now": 3.0, "events": [["GpuSe')
    assert [placed for placed, again in replay(path) if placed == again] == [
        [("j0", 1, ("a",))],
        [("j1", 1, ("a",))],
    ]
