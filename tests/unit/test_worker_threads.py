"""The worker's threads: each message wakes one, no more than allowed run at once, and a stop waits for what runs."""

import threading
from collections.abc import Callable

from tests.eventually import eventually
from worker.threads import Threads


def test_the_thread_that_rested_last_is_taken_again() -> None:
    pool = Threads(limit=4)
    seen: list[str] = []
    for number in range(20):
        pool.apply_async(lambda: seen.append(threading.current_thread().name))
        eventually(lambda: len(seen) > number and len(pool._resting) == 1, 10, "its end")  # noqa: B023 - waited for here
    pool.stop()
    assert seen == ["batch-0"] * 20


def test_no_more_than_the_limit_run_and_the_rest_follow_in_order() -> None:
    pool = Threads(limit=2)
    gates = [threading.Event() for _ in range(5)]
    began: list[int] = []

    def serve(number: int) -> None:
        began.append(number)
        assert gates[number].wait(10)

    for number in range(5):
        pool.apply_async(serve, (number,))
    eventually(lambda: sorted(began) == [0, 1], 10, "two that run")
    for number in range(3):
        gates[number].set()
        eventually(lambda: number + 2 in began, 10, "the next")  # noqa: B023 - waited for here
    assert began[2:] == [2, 3, 4]
    for gate in gates:
        gate.set()
    pool.stop()


def test_a_stop_waits_for_what_runs_and_forgets_what_has_not_begun() -> None:
    pool, gate, began, ended = Threads(limit=1), threading.Event(), threading.Event(), threading.Event()

    def serve() -> None:
        began.set()
        assert gate.wait(10)
        ended.set()

    def never(called: Callable[[], None]) -> None:
        called()

    late = threading.Event()
    pool.apply_async(serve)
    assert began.wait(10)
    pool.apply_async(never, (late.set,))
    stopping = threading.Thread(target=pool.stop)
    stopping.start()
    eventually(lambda: pool._ending, 10, "the stop's begin")
    assert stopping.is_alive(), "it waits"
    gate.set()
    stopping.join(10)
    assert ended.is_set()
    assert not late.is_set()
    pool.apply_async(never, (late.set,))
    assert not late.is_set()
