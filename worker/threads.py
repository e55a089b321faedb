"""The threads that serve messages: a pool for Celery that wakes one thread for one message."""

import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from celery.concurrency.base import BasePool

Work = Callable[[], None]


class _Hand:
    """A thread of the pool, and what it is to do next (None = end) once ``awake`` is let go of."""

    __slots__ = ("awake", "work")

    def __init__(self, work: Work) -> None:
        self.awake = threading.Lock()
        self.awake.acquire()
        self.work: Work | None = work


class Threads(BasePool):
    """
    At most ``limit`` threads, made when needed; the one that came to rest last is taken first.

    Celery's own pool of threads (``concurrent.futures``) has all that rest wait at one lock, so that each message wakes a second one in
    vain, and makes a future that nobody asks; both cost as much as the rest of the message's way through the consumer.
    ``stop`` waits for what runs and forgets what has not begun. What is given to it must not raise.
    """

    body_can_be_buffer = True
    signal_safe = False

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._lock = threading.Lock()
        self._resting: list[_Hand] = []
        self._backlog: deque[Work] = deque()
        self._threads: list[threading.Thread] = []
        self._ending = False

    def on_apply(self, target: Callable[..., None], args: Sequence[Any] = (), *_: Any, **__: Any) -> None:
        def work() -> None:
            target(*args)

        with self._lock:
            if self._ending:
                return
            if self._resting:
                hand = self._resting.pop()
                hand.work = work
                hand.awake.release()
            elif len(self._threads) < self.limit:
                thread = threading.Thread(target=self._serve, args=(_Hand(work),), name=f"batch-{len(self._threads)}", daemon=True)
                self._threads.append(thread)
                thread.start()
            else:
                self._backlog.append(work)

    def _serve(self, hand: _Hand) -> None:
        while (work := hand.work) is not None:
            work()
            with self._lock:
                if self._backlog:
                    hand.work = self._backlog.popleft()
                    continue
                if self._ending:
                    return
                self._resting.append(hand)
            hand.awake.acquire()

    def on_stop(self) -> None:
        with self._lock:
            self._ending = True
            self._backlog.clear()
            for hand in self._resting:
                hand.work = None
                hand.awake.release()
            self._resting.clear()
        for thread in self._threads:
            thread.join()
