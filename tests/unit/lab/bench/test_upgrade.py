"""What an upgrade is judged by: what counts as lost, doubled, restarted or unread."""

from dataclasses import replace

import pytest

from lab.bench.upgrade import JobRecord, Left, Seen, figures, whole

JOB = {"id": "j", "name": "running", "argv": ["zoo.train"], "gpus": ["cpu0"], "state": "running", "iterations": 5}
LEFT = Left(
    rows={"executions": 3, "jobs": 1},
    profiles=2,
    waiting={"a": 0, "b": 1},
    finished=["f"],
    jobs=[JOB],
    training=JobRecord(id="j", pid=7, start=1),
)
SEEN = Seen(
    outputs={"a": {"x": 0}, "b": {"x": 1}},
    ends={"a": 1, "b": 1},
    adopted=True,
    rows={"executions": 5, "jobs": 1, "a_new_table": 1},
    profiles=2,
    jobs=[JOB | {"iterations": 9}],
    finished=["f"],
)


def test_an_upgrade_that_loses_nothing() -> None:
    found = figures(LEFT, SEEN)
    assert (found["lost"], found["doubled"], found["training_adopted"]) == (0, 0, 1)
    assert (found["rows_before"], found["rows_read"]) == (4, 4)
    assert whole(found)


@pytest.mark.parametrize(
    ("changes", "name", "value"),
    [
        ({"outputs": {"a": {"x": 0}}}, "lost", 1),
        ({"outputs": {"a": {"x": 0}, "b": {"x": 0}}}, "lost", 1),
        ({"ends": {"a": 1, "b": 2}}, "doubled", 1),
        ({"adopted": False}, "training_adopted", 0),
        ({"rows": {"executions": 2, "jobs": 1}}, "rows_read", 3),
        ({"rows": {"executions": 3}}, "rows_read", 3),
        ({"profiles": 1}, "profiles_read", 1),
        ({"jobs": []}, "job_records_read", 0),
        ({"jobs": [JOB | {"state": "lost"}]}, "job_records_read", 0),
        ({"finished": []}, "history_read", 0),
    ],
)
def test_whatever_is_missing_shows(changes: dict[str, object], name: str, value: float) -> None:
    found = figures(LEFT, replace(SEEN, **changes))  # type: ignore[arg-type]
    assert found[name] == value
    assert not whole(found)
