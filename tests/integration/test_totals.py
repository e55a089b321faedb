"""Sums over the history, as the statistics of the Open Inference Protocol tell them."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import Engine
from sqlalchemy.orm import Session

from smore.db import ExecutionRow, InvocationRow
from smore.domain.invocation import State
from smore.history import BatchTotal, Reader

T0 = datetime(2026, 1, 1, tzinfo=UTC)


def at(seconds: float) -> datetime:
    return T0 + timedelta(seconds=seconds)


def ended(session: Session, id_: str, state: State = State.SUCCEEDED, *, rows: int = 1, function: str = "f", **more: Any) -> None:
    """Arrived at 0, started at 1, ended at 3 seconds."""
    fields: dict[str, Any] = {
        "id": id_, "project": "default", "function": function, "revision": 1, "state": state, "cause": "", "attempt": 1, "starts": 1,
        "arrival_at": T0, "deadline_at": at(9), "claimed_at": at(0.5), "started_at": at(1), "finished_at": at(3), "gpu": "cpu0",
        "rows": rows, "key_id": "", "trace": "", "gate_s": None,
    }  # fmt: skip
    session.add(InvocationRow(**fields | more))


def ran(session: Session, id_: str, *, run_s: float | None, batch: int, rows: int, attempt: int = 1, function: str = "f") -> None:
    session.add(
        ExecutionRow(
            invocation=id_, attempt=attempt, project="default", function=function, gpu="cpu0", state=State.SUCCEEDED, cause="", run_s=run_s,
            batch=batch, rows=rows,
        )
    )  # fmt: skip


def test_totals_count_each_batch_once_and_each_invocation_once(engine: Engine) -> None:
    with Session(engine) as session:
        # Two in one batch of three rows, then one alone, which had failed an attempt before.
        for id_, rows in (("a", 1), ("b", 2)):
            ended(session, id_, rows=rows)
            ran(session, id_, run_s=0.5, batch=2, rows=3)
        ended(session, "c", attempt=2, finished_at=at(4))
        ran(session, "c", run_s=0.125, batch=1, rows=1, attempt=1)
        ran(session, "c", run_s=0.25, batch=1, rows=1, attempt=2)
        # Ended without a run, still running, another revision, another function, another project.
        ended(session, "d", State.EXPIRED, started_at=None)
        ended(session, "e", State.RUNNING, finished_at=None)
        ended(session, "f", revision=2)
        ended(session, "g", function="g")
        ended(session, "h", project="other")
        session.commit()

    first, second = Reader(engine).totals("default", "f")

    assert (first.revision, first.succeeded, first.failed, first.rows) == (1, 3, 1, 4)
    assert (first.total_s, first.failed_s, first.wait_s) == pytest.approx((10.0, 3.0, 3.0))
    assert first.run_s == pytest.approx(1.25)
    assert first.batches == (BatchTotal(rows=1, batches=1, run_s=0.25), BatchTotal(rows=3, batches=1, run_s=0.5))
    assert first.last_at == at(4).timestamp()
    assert (second.revision, second.succeeded, second.run_s, second.batches) == (2, 1, 0.0, ())
    assert [one.function for one in Reader(engine).totals("default")] == ["f", "f", "g"]
    assert Reader(engine).totals("nobody") == []
