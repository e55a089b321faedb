"""Faults of devices, counted over all workers."""

import pytest
import redis

from smore.redis import quarantine
from smore.redis.quarantine import FAULTS, Faults


def note(counted: Faults, culprit: str, function: str = "p/f", revision: int = 1) -> bool:
    return counted.note(function, revision, culprit, cause="out_of_memory", gpu="g1")


def test_different_culprits_shut_a_revision_out_until_it_is_lifted(redis_client: "redis.Redis") -> None:
    here, there = Faults(redis_client, "smore:"), Faults(redis_client, "smore:")
    assert not any(note(here, "the same") for _ in range(10)), "one invocation, tried again and again"
    told = [note(one, f"i{number}") for number, one in enumerate((there, here, there, here))]
    assert told == [False, True, False, False], "wherever they happened; it is told once"
    assert list(here.quarantined()) == [("p/f", 1)]
    verdict = here.quarantined()["p/f", 1]
    assert (verdict.cause, verdict.gpu) == ("out_of_memory", "g1")
    assert there.lift("p/other") == [] and there.lift("p/f") == [1] and here.quarantined() == {}
    assert not any(note(here, f"new{number}") for number in range(FAULTS - 1)), "it counts from nothing again"


def test_old_faults_do_not_count(redis_client: "redis.Redis", monkeypatch: pytest.MonkeyPatch) -> None:
    counted = Faults(redis_client, "smore:")
    now = 1000.0
    monkeypatch.setattr("smore.redis.quarantine.time.time", lambda: now)
    note(counted, "a")
    note(counted, "b")
    now += quarantine.WINDOW_S + 1
    assert not note(counted, "c")
    note(counted, "d")
    assert note(counted, "e")
