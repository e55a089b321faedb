"""When a worker whose heartbeat hangs ends, and when it does not."""

from worker.watchdog import HUNG_S, LOOK_S, Watchdog


def looks(watchdog: Watchdog, since: float, working: int, seconds: float) -> list[bool]:
    return [watchdog.hung(now=since + look * LOOK_S, working=working) for look in range(int(seconds / LOOK_S) + 1)]


def test_a_round_that_does_not_end_ends_the_worker() -> None:
    watchdog = Watchdog()
    assert looks(watchdog, 100.0, 7, HUNG_S) == [False] * int(HUNG_S / LOOK_S) + [True]


def test_rounds_that_end_and_waits_for_redis_do_not() -> None:
    watchdog = Watchdog()
    assert not any(hung for number in range(1, 9) for hung in looks(watchdog, 100.0 * number, number, HUNG_S - LOOK_S))
    assert not any(looks(watchdog, 1000.0, 0, 10 * HUNG_S)), "it waits for Redis, which is away"


def test_a_process_that_was_stopped_has_not_hung() -> None:
    watchdog = Watchdog()
    assert not watchdog.hung(now=100.0, working=7)
    assert not watchdog.hung(now=3700.0, working=7), "an hour of SIGSTOP, or of a machine that slept"
    assert not any(looks(watchdog, 3701.0, 8, HUNG_S - LOOK_S))
