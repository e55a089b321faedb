"""Crash loops and their quarantine."""

from worker.pool.quarantine import CRASHES, FIRST_S, LONGEST_S, WINDOW_S, Quarantine

KEY = ("p/f", 1)


def crash(quarantine: Quarantine, count: int, now: float) -> bool:
    return [quarantine.crashed(KEY, f"{now}-{n}", now) for n in range(count)][-1]


def test_three_crashes_within_the_window() -> None:
    quarantine = Quarantine()
    assert not crash(quarantine, CRASHES - 1, 0.0)
    assert not quarantine.crashed(KEY, "late", WINDOW_S + 1), "the first two are too old"
    assert not quarantine.holds(KEY, WINDOW_S + 1)
    assert crash(quarantine, 2, WINDOW_S + 2)
    assert quarantine.holds(KEY, WINDOW_S + 2) == FIRST_S
    assert list(quarantine.all(WINDOW_S + 2)) == [KEY]
    assert quarantine.holds(("p/f", 2), WINDOW_S + 2) == 0


def test_one_input_alone_condemns_nobody() -> None:
    quarantine = Quarantine()
    assert not any(quarantine.crashed(KEY, "same", float(n)) for n in range(10))


def test_a_success_between_wipes_the_slate() -> None:
    quarantine = Quarantine()
    crash(quarantine, CRASHES - 1, 0.0)
    quarantine.succeeded(KEY)
    assert not crash(quarantine, CRASHES - 1, 1.0)


def test_it_doubles_up_to_a_limit() -> None:
    quarantine = Quarantine()
    now, lengths = 0.0, []
    for _ in range(6):
        crash(quarantine, CRASHES, now)
        lengths.append(quarantine.holds(KEY, now))
        now += lengths[-1]
        assert quarantine.holds(KEY, now) == 0
    assert lengths == [60, 120, 240, 480, 600, LONGEST_S]
