"""smore.track outside the platform: what is told, what is kept when nobody listens, and that the loop never notices."""

import logging
import os
import sys
import threading
import types
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from email.message import Message
from io import BytesIO
from typing import Any

import pytest

import smore
from smore.tracking import remote
from smore.tracking.remote import RemoteTracker, StepsRefused, TooMany, Unknown
from smore.tracking.ring import CAPACITY, Tracker
from tests.support.eventually import eventually
from worker import proc
from worker.heartbeat import Heartbeat

Answer = Callable[[str, dict[str, Any]], dict[str, Any]]


class Told(RemoteTracker):
    """One whose gateway is a function."""

    def __init__(self, answer: Answer) -> None:
        self.answer = answer
        self.calls: list[tuple[str, dict[str, Any]]] = []
        super().__init__("http://test", "k", {"name": "n"})

    def _post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        found = self.answer(path, body)
        self.calls.append((path, body))
        return found

    @property
    def steps(self) -> list[float]:
        """Durations as a worker would put them together: by their numbers."""
        known: dict[int, float] = {}
        for path, body in list(self.calls):
            if path.endswith("/steps"):
                known |= {body["first"] + place: duration for place, (_, duration) in enumerate(body["steps"])}
        return [known[number] for number in sorted(known)]


def good(path: str, _body: dict[str, Any]) -> dict[str, Any]:
    return {"id": "j1", "gpu": "g"} if path.endswith("/attach") else {}


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("REPORT_S", "FIRST_PAUSE_S", "LONGEST_PAUSE_S"):
        monkeypatch.setattr(remote, name, 0.005)


@pytest.fixture
def made() -> Iterator[list[Told]]:
    found: list[Told] = []
    yield found
    for one in found:
        one.answer = good
        one.close()


def test_every_step_is_told_once_and_in_order(made: list[Told], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "STEPS_AT_ONCE", 7)
    tracker = Told(good)
    made.append(tracker)
    for _ in range(100):
        tracker.step()
    tracker.close()
    assert len(tracker.steps) == 100
    path, last = tracker.calls[-1]
    assert (path, last["gpu"], last["ended"] or last["first"] + len(last["steps"]) < 100) == (
        "/v1/jobs/j1/steps",
        "g",
        True,
    )
    assert not tracker.active


def test_what_nobody_hears_is_kept_and_told_later(made: list[Told], caplog: pytest.LogCaptureFixture) -> None:
    def away(_path: str, _body: dict[str, Any]) -> dict[str, Any]:
        tried.append(1)
        raise OSError("connection refused")

    tried: list[int] = []
    with caplog.at_level(logging.WARNING):
        tracker = Told(away)
        made.append(tracker)
        for _ in range(10):
            tracker.step()
        eventually(lambda: len(tried) > 3, what="some attempts")
    assert len(caplog.records) == 1, "it is said once"
    tracker.answer = good
    eventually(lambda: len(tracker.steps) == 10, what="all steps")


def test_where_too_many_are_told_the_newest_and_the_end_come_through(
    made: list[Told], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(remote, "STEPS_AT_ONCE", 7)
    full = True

    def answer(path: str, body: dict[str, Any]) -> dict[str, Any]:
        if full and body.get("steps"):
            raise TooMany
        return good(path, body)

    with caplog.at_level(logging.WARNING):
        tracker = Told(answer)
        made.append(tracker)
        for _ in range(100):
            tracker.step()
        eventually(lambda: len(tracker._steps) == 7, what="the oldest are left out")
        full = False
        eventually(lambda: len(tracker.steps) == 7, what="the newest are told")
        assert tracker.calls[-1][1]["first"] == 93, "by their numbers"
        full = True
        tracker.step()
        tracker.close()
    assert (tracker.calls[-1][1]["ended"], tracker.calls[-1][1]["steps"]) == (True, [])
    assert len(caplog.records) == 1, "it is said once"


def test_a_full_buffer_gives_up_its_oldest_steps(made: list[Told]) -> None:
    def away(_path: str, _body: dict[str, Any]) -> dict[str, Any]:
        raise OSError("away")

    tracker = Told(away)
    made.append(tracker)
    for _ in range(CAPACITY + 5):
        tracker.step()
    tracker.answer = good
    eventually(lambda: tracker.calls and not tracker._steps, what="an empty buffer")
    assert next(body["first"] for path, body in tracker.calls if path.endswith("/steps")) == 5
    assert len(tracker.steps) == CAPACITY


def test_a_job_that_the_platform_has_lost_is_registered_anew(made: list[Told]) -> None:
    def forgetful(path: str, body: dict[str, Any]) -> dict[str, Any]:
        if path == "/v1/jobs/j1/steps":
            raise Unknown
        return {"id": "j2" if body.get("former") == "j1" else "j1", "gpu": "g"} if path.endswith("/attach") else {}

    tracker = Told(forgetful)
    made.append(tracker)
    tracker.step()
    eventually(lambda: len(tracker.steps) == 1, what="the step")
    assert tracker.job == "j2"


def test_one_that_is_refused_is_left_alone(made: list[Told], caplog: pytest.LogCaptureFixture) -> None:
    def no(_path: str, _body: dict[str, Any]) -> dict[str, Any]:
        raise StepsRefused("403 no")

    with caplog.at_level(logging.WARNING):
        tracker = Told(no)
        made.append(tracker)
        eventually(lambda: not tracker.active, what="giving up")
    tracker.step()
    assert "403 no" in caplog.text


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (401, StepsRefused),
        (410, StepsRefused),
        (422, StepsRefused),
        (409, StepsRefused),
        (429, urllib.error.HTTPError),
        (503, urllib.error.HTTPError),
    ],
)
def test_answers_by_status(
    monkeypatch: pytest.MonkeyPatch, made: list[Told], status: int, kind: type[Exception]
) -> None:
    def answer(request: Any, timeout: float) -> Any:
        assert request.get_header("Authorization") == "Bearer k"
        raise urllib.error.HTTPError(request.full_url, status, "x", Message(), BytesIO(b"why"))

    monkeypatch.setattr(urllib.request, "urlopen", answer)
    tracker = Told(good)
    made.append(tracker)
    with pytest.raises(kind):
        RemoteTracker._post(tracker, "/v1/jobs/attach", {})


def test_where_it_is_told_follows_from_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    assert type(smore.track()) is Tracker
    monkeypatch.setenv("SMORE_URL", "http://127.0.0.1:1")
    assert type(smore.track()) is Tracker, "without a key"
    monkeypatch.setenv("SMORE_API_KEY", "k")
    with smore.track(str(tmp_path / "file")) as tracker:
        assert type(tracker) is Tracker, "a file comes first"
    with smore.track(name="x") as tracker:
        assert isinstance(tracker, RemoteTracker)
        tracker.step()


def test_what_a_registration_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SMORE_GPU", "gpu1")
    body = remote.registration(name="night", gpu=None, workload=None, budget=0.05)
    assert (body["name"], body["gpu"], body["budget"], body["tracked"]) == ("night", "gpu1", 0.05, True)
    assert (body["boot"], body["start"]) == (proc.boot_id(), proc.start_time(int(str(body["pid"]))))
    assert "group" not in body


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, None),
        ({"WORLD_SIZE": "1", "MASTER_ADDR": "h"}, None),
        ({"WORLD_SIZE": "4", "MASTER_ADDR": "h", "MASTER_PORT": "29500"}, "h:29500"),
        ({"SMORE_JOB_GROUP": "mine", "WORLD_SIZE": "4", "MASTER_ADDR": "h"}, "mine"),
    ],
)
def test_ranks_have_a_group(environ: dict[str, str], expected: str | None) -> None:
    assert remote.group(environ) == expected


def test_a_forked_child_does_not_end_its_parents_report(made: list[Told], monkeypatch: pytest.MonkeyPatch) -> None:
    tracker = Told(good)
    made.append(tracker)
    with monkeypatch.context() as patch:
        patch.setattr(os, "getpid", lambda: -1)
        tracker.close()
    assert tracker.active


# ---- frameworks ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "module", "base", "hooks"),
    [
        ("HuggingFace", "transformers", "TrainerCallback", ("on_train_begin", "on_step_end", "on_train_end")),
        (
            "Lightning",
            "lightning.pytorch.callbacks",
            "Callback",
            ("on_train_start", "on_train_batch_end", "on_train_end"),
        ),
        (
            "Lightning",
            "pytorch_lightning.callbacks",
            "Callback",
            ("on_train_start", "on_train_batch_end", "on_exception"),
        ),
    ],
)
def test_callbacks_report_every_step(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any, name: str, module: str, base: str, hooks: tuple[str, str, str]
) -> None:
    """The base classes are stand-ins by their names: what is held is that these hooks suffice, with any arguments."""
    from smore import callbacks
    from smore.tracking.ring import TrackReader

    parts = module.split(".")
    for depth in range(1, len(parts) + 1):
        monkeypatch.setitem(sys.modules, ".".join(parts[:depth]), types.ModuleType(".".join(parts[:depth])))
    setattr(sys.modules[module], base, type(base, (), {}))
    if module.startswith("pytorch"):
        monkeypatch.setitem(sys.modules, "lightning", None)
    callback = getattr(callbacks, name)(path=str(tmp_path / "track"))
    begin, step, end = (getattr(callback, hook) for hook in hooks)
    step(1, key=2)
    begin(1, key=2)
    for _ in range(3):
        step(1, key=2)
    end(1, key=2)
    assert TrackReader(str(tmp_path / "track")).count == 3


def test_a_missing_framework_is_named() -> None:
    from smore import callbacks

    with pytest.raises(ModuleNotFoundError, match="transformers"):
        _ = callbacks.HuggingFace
    with pytest.raises(AttributeError):
        _ = callbacks.Keras


# ---- strangers -------------------------------------------------------------------------------------------------------


class Listing:
    """A device that lists who computes on it."""

    def __init__(self, computing: dict[int, float] | None) -> None:
        self._computing = computing

    def computing(self) -> dict[int, float] | None:
        return self._computing


class Held:
    def __init__(self, *pids: int) -> None:
        self._pids = pids

    def runners(self) -> list[int]:
        return list(self._pids)

    def pids(self) -> list[int]:
        return list(self._pids)


@pytest.mark.parametrize(("computing", "expected"), [(None, None), ({}, []), ({11: 5.0, 22: 6.0, 33: 7.0}, [33])])
def test_who_is_neither_ours_nor_a_jobs_is_a_stranger(
    monkeypatch: pytest.MonkeyPatch, computing: dict[int, float] | None, expected: list[int] | None
) -> None:
    monkeypatch.setattr(proc, "tree", lambda pid: [pid])
    beat = Heartbeat.__new__(Heartbeat)
    beat._device = Listing(computing)  # type: ignore[assignment]
    beat._jobs = types.SimpleNamespace(ranks=Held(22))  # type: ignore[assignment]
    beat._pool = types.SimpleNamespace(status=Held(11))  # type: ignore[assignment]
    beat._zygotes = lambda: [44]
    found = beat._unregistered()
    assert (found if found is None else [one.pid for one in found]) == expected


def test_no_thread_is_left() -> None:
    eventually(
        lambda: not [one for one in threading.enumerate() if one.name == "smore-track"], what="the end of all threads"
    )
