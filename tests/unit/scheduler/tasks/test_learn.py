"""What control starts a child for, and how many at a time."""

import threading
from collections.abc import Callable
from typing import Any, cast

import pytest
from sqlalchemy import Engine
from sqlalchemy.exc import OperationalError

from scheduler.tasks import learn
from scheduler.tasks.learn import AT_ONCE, Children, register_learn
from smore.process.settings import RedisSettings, Settings
from smore.redis.celery import REFIT, RETRAIN, make_app

Tasks = dict[str, Callable[..., None]]


class Asked:
    """Postgres and Redis as far as control asks them; each answer can be changed."""

    def __init__(self) -> None:
        self.news_since: list[float] = []
        self.due, self.away = False, False

    def news(self, since: float) -> bool:
        if self.away:
            raise OperationalError("SELECT", {}, Exception("away"))
        self.news_since.append(since)
        return self.due

    def fit_due(self, now: float, old_s: float) -> bool:
        return self.due

    def model(self) -> int:
        return 3

    def version(self) -> int:
        return 7


@pytest.fixture
def asked() -> Asked:
    return Asked()


@pytest.fixture
def started(asked: Asked, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, ...]]:
    """The words of the children that were started."""
    words: list[tuple[str, ...]] = []

    def run(_: Children, *said: str, **__: Any) -> bool:
        words.append(said)
        return True

    monkeypatch.setattr(Children, "run", run)
    for name in ("Profiles", "ArrivalStore", "Tables", "PublishedForecasts"):
        monkeypatch.setattr(learn, name, lambda *_: asked)
    return words


@pytest.fixture
def tasks(started: list[tuple[str, ...]]) -> Tasks:
    config = Settings(redis=RedisSettings(url="redis://127.0.0.1:1/0"))
    app = make_app("control", config, ["learn"])
    register_learn(app, config, cast(Engine, None))
    return cast("Tasks", app.tasks)


def test_a_child_looks_at_the_history_once_and_then_where_something_is_new(
    tasks: Tasks, asked: Asked, started: list[tuple[str, ...]]
) -> None:
    tasks[RETRAIN]()
    assert started == [("retrain", "--if-due")], "the files of the checkout may be others"
    tasks[RETRAIN]()
    assert len(started) == 1 and len(asked.news_since) == 1
    asked.due = True
    tasks[RETRAIN]()
    assert len(started) == 2
    asked.away = True
    tasks[RETRAIN]()
    assert len(started) == 2, "a Postgres that is away is asked again later"
    tasks[RETRAIN](True)
    assert started[-1] == ("retrain",)

    started.clear()
    asked.due = False
    tasks[REFIT]()
    assert started == []
    asked.due = True
    tasks[REFIT]()
    assert started == [("fit", "--if-due")]


def test_so_many_at_a_time_and_who_asks_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    children, go, running = Children(), threading.Event(), threading.Semaphore(0)

    def held(_: Children, words: tuple[str, ...], module: str) -> bool:
        running.release()
        assert go.wait(30)
        return True

    monkeypatch.setattr(Children, "_run", held)
    done: list[bool] = []
    threads = [threading.Thread(target=lambda: done.append(children.run("fit"))) for _ in range(AT_ONCE)]
    for thread in threads:
        thread.start()
        assert running.acquire(timeout=30)
    assert not children.run("fit"), "beat asks again"
    threads.append(threading.Thread(target=lambda: done.append(children.run("fit", asked=True))))
    threads[-1].start()
    go.set()
    for thread in threads:
        thread.join(30)
    assert done == [True] * (AT_ONCE + 1)
