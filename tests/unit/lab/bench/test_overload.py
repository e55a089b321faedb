"""What the overload benchmark waits for before it reads the trainings' windows and the ends of invocations."""

from types import SimpleNamespace
from typing import Any

import pytest

from lab.bench.overload import rig, run
from lab.bench.overload.rig import Rig, Witness
from smore.domain.loss import ClosedWindow


def window(start: float) -> ClosedWindow:
    return ClosedWindow(
        start=start,
        end=start + 1.0,
        before_s=0.1,
        before_n=4,
        closed_s=0.1,
        closed_n=4,
        closed_sd=0.01,
        after_s=0.1,
        after_n=4,
    )


def test_windows_within_a_time_and_those_after_it() -> None:
    witness = Witness("redis://nowhere", "smore:")
    witness.windows["j"] = {start: window(start) for start in (1.0, 5.0, 9.5)}
    assert [found.start for found in witness.within("j", 1.0, 10.0)] == [1.0, 5.0]
    assert witness.reported_after("j", 9.0)
    assert not witness.reported_after("j", 9.5)
    assert not witness.reported_after("another", 0.0)


def test_entries_of_the_stream_are_ordered_by_number() -> None:
    assert sorted(["12-0", "2-10", "", "2-9"], key=rig._entry) == ["", "2-9", "2-10", "12-0"]


def test_the_event_stream_is_read_up_to_its_newest_entry(monkeypatch: pytest.MonkeyPatch) -> None:
    witness = SimpleNamespace(cursor="7-0")
    monkeypatch.setattr(rig.time, "sleep", lambda _: setattr(witness, "cursor", "8-1"))  # type: ignore[attr-defined]
    platform: Any = SimpleNamespace(
        redis=SimpleNamespace(xrevrange=lambda *_, **__: [(b"8-1", {})]), prefix="smore:", witness=witness
    )
    platform.patiently = lambda what, met: Rig.patiently(platform, what, met)
    Rig.read_events(platform)
    assert witness.cursor == "8-1"


@pytest.mark.parametrize(("in_each", "loads"), [(8, 0), (4, 1), (2, 3)])
def test_too_few_windows_let_the_load_go_on_and_the_last_ones_are_waited_for(in_each: int, loads: int) -> None:
    reported: list[float] = []
    sent: list[float] = []

    def within(job: str, begin: float, end: float) -> list[ClosedWindow]:
        # One more is there once somebody has waited for it.
        return [window(begin)] * (in_each + bool(reported and begin))

    platform: Any = SimpleNamespace(
        jobs={"train": "j"}, witness=SimpleNamespace(within=within), report_windows=lambda until: reported.append(until)
    )
    (windows,) = run.enough_windows(platform, (0.0, 10.0), sent.append, 2).values()
    assert sent == [5.0] * min(loads, 2)
    assert (len(windows), len(reported)) == ((8, 0) if loads < 3 else (8, 1))


def test_without_a_loss_nobody_waits_for_windows() -> None:
    def refused(seconds: float) -> None:
        raise AssertionError("nothing is sent or waited for")

    platform: Any = SimpleNamespace(
        jobs={"train": "j"}, witness=SimpleNamespace(within=lambda *_: [window(0.0)]), report_windows=refused
    )
    (windows,) = run.enough_windows(platform, (0.0, 10.0), refused, 0).values()
    assert len(windows) == 1
