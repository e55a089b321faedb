"""
Who is charged for what went wrong on a GPU, with a pool of runners that are no processes and a queue that only listens.
"""

import json
import math
import time
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest
import redis
from structlog.contextvars import get_contextvars

from smore.domain.function import FunctionSpec, OnLate, WorkClass
from smore.domain.invocation import Cause, Encoding
from smore.messages.results import decode_result
from smore.process.settings import WorkerSettings
from smore.redis.catalog import Catalog
from smore.redis.queue import Queue, StartedInvocation
from tests.support.pool_stage import FakeRunner, Stage
from worker.batch import Batch, Member
from worker.batches import LATE_MARGIN_S, Executor
from worker.device.device import Device
from worker.frames import Answer, Item
from worker.outcomes import _measured
from worker.pool.errors import LoadFailed, Unservable
from worker.pool.pool import Seat
from worker.runner.host_memory import HostBound
from worker.runner.runner_handle import Ran, RunnerDied, RunnerFailed, RunnerTimeout
from worker.training.run_gate import RunGate


class Gpu(Stage):
    """A GPU of 300 MiB, of which ``free`` are free, and contexts take nothing."""

    def __init__(self) -> None:
        self.free = 300.0
        self.faults: list[tuple[str, str]] = []
        device = SimpleNamespace(
            handler_device="cuda",
            memory_total_mib=300.0,
            description="",
            sharing_mode="",
            free_mib=lambda: self.free,
            quick_memory_mib=lambda _: None,
            runner_memory_mib=lambda _: None,
            process_memory_mib=lambda _: None,
            health=lambda: "",
            refresh=lambda: None,
            looked_at=math.inf,
        )
        super().__init__(device=device, faulted=lambda *fault: self.faults.append((fault[2], fault[3].value)))
        self.pool._standby.context_mib = 0.0
        #: (cause, ids, refund, alone) of what was given back, (ids) of what ended.
        self.given_back: list[tuple[str, list[str], bool, bool]] = []
        self.ended: list[str] = []
        own = WorkerSettings(kind="cuda")
        self.executor = Executor(
            config=own,
            device=cast(Device, device),
            boot="b",
            queue=cast(Queue, self),
            catalog=cast(Catalog, None),
            pool=self.pool,
            gate=cast(RunGate, None),
            jobs=list,
        )

    # What the executor says to its queue.

    def requeue(
        self,
        function: str,
        cause: Cause,
        attempts: Sequence[tuple[str, int]],
        *,
        refund: bool,
        alone: bool,
        message: str,
        traceback: str = "",
    ) -> list[int]:
        self.given_back.append((cause.value, [id_ for id_, _ in attempts], refund, alone))
        return [1] * len(attempts)

    def finish(self, function: str, meta: str, outcomes: Any, *, drop_late: bool) -> list[bool]:
        self.ended += [one.id for one in outcomes]
        self.drops_late = drop_late
        return [True] * len(outcomes)

    def serve(self, batch: Batch, seat: Seat, spec: FunctionSpec) -> None:
        """A batch that has its seat."""
        run = self.executor._begin(batch, seat, spec)
        if run is not None:
            self.executor._await(batch, run, spec)

    def fail(self, cause: Cause, *ids: str, free: float = 50.0) -> FakeRunner:
        """A batch of these ends so, with so much free; its runner."""
        seat = self.acquire("a")
        runner: FakeRunner = seat.runner
        self.free = free
        batch = Batch("p/a", 1, [Member(id=id_, attempt=1, begun=SimpleNamespace()) for id_ in ids])  # type: ignore[arg-type]
        self.executor._failed(batch, seat, RunnerFailed(cause, "words"))
        self.free = 300.0
        return runner


def _begun(**given: object) -> StartedInvocation:
    usual = {"encoding": Encoding.JSON, "accept": Encoding.JSON, "rows": 1, "payload": b"", "deadline_us": 0}
    return cast(StartedInvocation, SimpleNamespace(**usual | {"bulk": False} | given))


def test_a_lost_context_ends_its_runner_and_is_charged_to_one_that_was_alone_in_a_new_one() -> None:
    stage = Gpu()
    assert stage.fail(Cause.CONTEXT_LOST, "i", "j").ended.is_set()
    assert stage.given_back == [("context_lost", ["i", "j"], True, True)]
    # Alone, in a runner that others had used: what they left there may have been the reason.
    stage.run("a")
    stage.fail(Cause.CONTEXT_LOST, "i")
    assert stage.given_back[1:] == [("context_lost", ["i"], True, True)] and stage.faults == []
    stage.fail(Cause.CONTEXT_LOST, "i")
    assert stage.given_back[2:] == [("context_lost", ["i"], False, False)]
    assert (stage.faults, stage.ended, stage.warm()) == ([("i", "context_lost")], [], [])


def test_who_stood_beside_a_growing_training_is_given_back_and_not_blamed() -> None:
    stage = Gpu()
    assert stage.fail(Cause.DEVICE_FULL, "i", "j").ended.is_set(), "what it holds is training's"
    assert (stage.given_back, stage.faults) == ([("device_full", ["i", "j"], True, False)], [])
    # A runner says that others took the memory, and there is as much of it as it may have.
    stage.fail(Cause.DEVICE_FULL, "i", free=200.0)
    stage.fail(Cause.OUT_OF_MEMORY, "j")
    assert stage.given_back[1:] == [("out_of_memory", ["i"], False, False), ("out_of_memory", ["j"], False, False)]
    assert stage.faults == [("i", "out_of_memory"), ("j", "out_of_memory")]
    stage.fail(Cause.HANDLER_ERROR, "k")
    assert stage.ended == ["k"] and stage.warm() == ["a"]


@pytest.mark.parametrize("evicted", [None, Cause.OUT_OF_MEMORY])
def test_who_is_ended_at_its_bound_of_memory_is_told_which(evicted: Cause | None) -> None:
    """By the kernel, or by the worker, which looks at what instances hold."""
    stage = Gpu()
    told: list[tuple[str, str]] = []

    def requeue(_function: str, cause: Cause, _attempts: object, *, message: str, **_: object) -> list[int]:
        told.append((cause.value, message))
        return [1]

    stage.requeue = requeue  # type: ignore[method-assign, assignment]
    seat = stage.acquire("a")
    seat.runner.ran_out, seat.instance.evicted = evicted is None, evicted
    seat.runner.bound = HostBound(declared_mib=64.0, host_mib=64.0, beyond_mib=384.0)
    batch = Batch("p/a", 1, [Member(id="i", attempt=1, begun=SimpleNamespace())])  # type: ignore[arg-type]
    stage.executor._died(batch, seat, RunnerDied(-9), "")
    expected = (
        "The instance may hold 448 MiB of the machine's memory (`resources.gpu_memory` 64 MiB + 384); it reached that:"
        " raise `resources.gpu_memory`."
    )
    assert told == [("out_of_memory", expected)]


def test_a_load_that_the_kernel_ends_for_memory_says_so() -> None:
    class Ended(FakeRunner):
        def load(self, *_: object) -> Any:
            self.ran_out, self.bound = True, HostBound(declared_mib=64.0, host_mib=64.0, beyond_mib=384.0)
            raise RunnerDied(-9)

    stage = Gpu()
    stage.fork = lambda: Ended(7)
    with pytest.raises(
        LoadFailed, match=r"may hold 448 MiB .* it reached that: raise `resources.gpu_memory`"
    ) as failed:
        stage.acquire("a")
    assert failed.value.cause is Cause.OUT_OF_MEMORY
    assert [cause for _, cause in stage.faults] == ["out_of_memory"]


def test_a_load_that_finds_no_room_is_for_another_worker() -> None:
    stage = Gpu()

    def loads(cause: Cause, free: float = 50.0) -> None:
        class Refused(FakeRunner):
            def load(self, *_: object) -> Any:
                stage.free = free
                raise RunnerFailed(cause, "words")

        stage.fork, stage.free = lambda: Refused(7), 300.0
        stage.acquire("a")

    with pytest.raises(Unservable, match="taken the device's memory"):
        loads(Cause.DEVICE_FULL)
    assert stage.faults == []
    with pytest.raises(LoadFailed):
        loads(Cause.CONTEXT_LOST)
    assert [cause for _, cause in stage.faults] == ["context_lost"]
    with pytest.raises(LoadFailed):
        loads(Cause.DEVICE_FULL, free=200.0)


def test_a_function_without_device_memory_gets_no_device_and_no_context() -> None:
    stage = Gpu()
    stage.pool._standby.runner = FakeRunner(99)  # type: ignore[assignment]
    seat = stage.acquire("echo", memory_mib=0.0)
    assert (seat.runner.pid, seat.runner.loaded.device) == (1, "cpu")
    seat = stage.acquire("a", max_batch=8)
    assert (seat.runner.pid, seat.runner.loaded.device, seat.runner.loaded.max_batch) == (99, "cuda", 8)


@pytest.mark.parametrize("left_s", [-1.0, 30.0])
def test_what_drops_late_is_stopped_at_its_deadline_and_not_begun_behind_it(left_s: float) -> None:
    """Behind a cold start that took all the time the instance stays; a run is ended with its process."""
    stage = Gpu()
    limits: list[float] = []

    def predict(items: object, payloads: object, ids: object, limit_s: float) -> Any:
        limits.append(limit_s)
        raise RunnerTimeout

    seat = stage.acquire("a")
    seat.runner.begin = lambda *given: lambda: predict(*given)
    said: list[str] = []
    stage.executor._tell = lambda _function, _revision, _ids, text: said.append(text)
    begun = _begun(deadline_us=(time.time() + left_s) * 1e6)
    member = Member(id="i", attempt=1, begun=begun)
    batch = Batch("p/a", 1, [member], drop_late=True)
    stage.serve(batch, seat, FunctionSpec(entrypoint="m:C", on_late=OnLate.DROP))
    assert (stage.ended, stage.drops_late) == (["i"], True)
    assert said == ["deadline_expired: It was stopped at its deadline (slo.on_late: drop)."], "in the function's log"
    if left_s < 0:
        assert (limits, stage.warm()) == ([], ["a"])
    else:
        assert limits[0] <= left_s + LATE_MARGIN_S and stage.warm() == []


@pytest.mark.parametrize(
    ("phases_ms", "run_ms"),
    [
        ({"import": 30.0, "first_run": 1.5}, 1.5),
        ({"import": 30.0, "first_run": 400.0}, 102.5),
        ({"host": 3.0}, 102.5),
    ],
)
def test_a_canary_that_was_held_up_is_not_taken_for_the_run_time(phases_ms: dict[str, float], run_ms: float) -> None:
    """The load has run the example too: the shorter of both counts."""
    seat = cast(Seat, SimpleNamespace(instance=SimpleNamespace(phases=phases_ms, runtime=None)))
    described = _measured(
        b'{"inputs":null,"outputs":null,"memory_mib":1.0}', Ran(answers=[], results=[], run_s=0.1025), seat, 0.3
    )
    assert json.loads(described)["run_ms"] == run_ms
    assert json.loads(described)["examples_ms"] == 300.0 + phases_ms.get("first_run", 0.0)


def _canary(max_batch: int, second: Exception | Answer | None) -> tuple[list[list[str]], list[str], list[Any]]:
    """The encodings of each run of a canary, the function's log, and the outcomes; ``second``: what a run of two gives."""
    stage = Gpu()
    runs: list[list[str]] = []
    noted: list[str] = []
    outcomes: list[Any] = []
    described = Answer(form="json", length=1)

    def predict(items: list[Item], *_: object) -> Ran:
        runs.append([item.encoding for item in items])
        if len(items) == 2 and isinstance(second, Exception):
            raise second
        answer = second if len(items) == 2 and isinstance(second, Answer) else described
        body = b'{"inputs":null,"outputs":null,"memory_mib":1.0}'
        return Ran(answers=[answer] * len(items), results=[body] * len(items), run_s=float(len(items)))

    def finish(_function: str, _meta: str, ended: list[Any], **_: bool) -> list[bool]:
        outcomes.extend(ended)
        return [True]

    def requeue(_function: str, cause: Cause, _attempts: object, *, message: str, **_: object) -> list[int]:
        outcomes.append((cause.value, message))
        return [1]

    stage.finish, stage.requeue = finish, requeue  # type: ignore[method-assign, assignment]
    stage.executor._tell = lambda _function, _revision, _ids, text: noted.append(text)
    seat = stage.acquire("a", max_batch=max_batch)
    seat.runner.predict, seat.runner.ran_out = predict, False
    seat.runner.begin = lambda *given: lambda: predict(*given)
    batch = Batch("p/a", 1, [Member(id="i", attempt=1, begun=_begun(encoding=Encoding.CANARY))])
    stage.serve(batch, seat, FunctionSpec(entrypoint="m:C", max_batch=max_batch))
    return runs, noted, outcomes


@pytest.mark.parametrize("max_batch", [1, 8])
def test_a_canary_runs_two_together_where_a_batch_may_have_two(max_batch: int) -> None:
    """What all runs of the example took is told too, beside how long one takes."""
    runs, noted, [outcome] = _canary(max_batch, None)
    assert runs == [["canary"], ["canary", "canary"]][:max_batch]
    assert (outcome.action, noted) == ("succeed", [])
    described = json.loads(decode_result(outcome.result).body)
    assert (described["run_ms"], described["examples_ms"]) == (1000.0, 1000.0 if max_batch == 1 else 3000.0)


@pytest.mark.parametrize(
    ("second", "cause", "message"),
    [
        (RunnerFailed(Cause.HANDLER_ERROR, "IndexError: 1"), "handler_error", "IndexError: 1"),
        (Answer(form="error", cause="bad_output", message="output.x: missing"), "bad_output", "output.x: missing"),
        (RunnerTimeout(), "timed_out", "It ran longer than its limit of 60 s."),
        (RunnerDied(-11), "crashed", "The runner ended by SIGSEGV."),
    ],
)
def test_a_canary_that_fails_with_two_together_says_so(second: Exception | Answer, cause: str, message: str) -> None:
    _, noted, [outcome] = _canary(8, second)
    expected = f"Two inputs in one batch: {message}"
    given = outcome if isinstance(outcome, tuple) else (outcome.cause, decode_result(outcome.result).message)
    assert given == (cause, expected)
    assert noted == ([] if cause == "handler_error" else [f"{cause}: {expected}"])


@pytest.mark.parametrize(("trace", "shown"), [("t1", {"trace": "t1"}), ("", {})])
def test_lines_of_a_batch_name_its_invocations(
    trace: str, shown: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = Gpu()
    seen: list[dict[str, object]] = []
    begun = SimpleNamespace(trace=trace)
    monkeypatch.setattr(stage, "start", lambda *_: [begun, None], raising=False)
    monkeypatch.setattr(stage.executor, "_serve", lambda _batch: seen.append(get_contextvars()))
    stage.executor.run("p/a", 1, [("i", 1), ("gone", 1)])
    assert seen == [{"function": "p/a", "ids": ["i"]} | shown]


def _sent_ahead(stage: Gpu, answer: list[bool] | Exception, *, shut: bool = False) -> list[str]:
    """
    Two invocations that came ahead get the seat that has become free, and Redis answers so to their start; what happened
    in which order.
    """
    happened: list[str] = []
    gate = RunGate(stage.pool.activity)
    gate.protect({"j"})
    if shut:
        gate.shut(math.inf)
    begun = _begun(deadline_us=(time.time() + 60) * 1e6, payload=b"1")

    def begin(*_: object) -> Any:
        happened.append("start sent")
        if isinstance(answer, redis.ConnectionError):
            raise answer

        def read() -> list[bool]:
            happened.append("start answered")
            if isinstance(answer, Exception):
                raise answer
            return answer

        return read

    def send(items: list[Item], *_: object) -> Any:
        assert stage.executor.running() == [], "no report names it before it was begun"
        happened.append("runs")
        answers = [Answer(form="json", length=1)] * len(items)
        return lambda: Ran(answers=answers, results=[b"1"] * len(items), run_s=0.1)

    stage.starting = begin  # type: ignore[attr-defined]
    stage.executor._gate = gate
    stage.run("a")
    stage.made[-1].begin = send  # type: ignore[attr-defined]
    members = [Member(id=id_, attempt=1, begun=begun) for id_ in ("i", "j")]
    batch = Batch("p/a", 1, members, ahead_s=0.1, begun=False)
    stage.executor._batches.add(batch)
    spec = FunctionSpec(entrypoint="m:C", memory_mib=100.0)
    stage.executor.catalog = cast(Catalog, SimpleNamespace(revision=lambda *_: spec))
    stage.executor._serve(batch)
    assert stage.warm() == ["a"] and stage.acquire("a").runner is stage.made[0], "its runner is another's to have"
    return happened


def test_the_runner_is_not_kept_waiting_for_the_answer_to_a_start() -> None:
    stage = Gpu()
    assert _sent_ahead(stage, [True, True]) == ["start sent", "runs", "start answered"]
    assert (stage.ended, stage.given_back) == (["i", "j"], [])


def test_what_redis_does_not_let_begin_is_dropped_with_its_result() -> None:
    stage = Gpu()
    assert _sent_ahead(stage, [False, True]) == ["start sent", "runs", "start answered"]
    assert (stage.ended, stage.given_back) == (["j"], [])


def test_a_start_that_redis_does_not_take_is_no_run_and_one_that_it_does_not_answer_is() -> None:
    stage = Gpu()
    assert _sent_ahead(stage, redis.ConnectionError("away")) == ["start sent"]
    assert (stage.ended, stage.given_back) == ([], []), "their leases give them back"
    stage = Gpu()
    assert _sent_ahead(stage, redis.TimeoutError("away")) == ["start sent", "runs", "start answered"]
    assert (stage.ended, stage.given_back) == (["i", "j"], []), "Redis refuses the results if they were not begun"


def test_nothing_begins_at_a_shut_gate() -> None:
    stage = Gpu()
    assert _sent_ahead(stage, [True, True], shut=True) == []
    assert (stage.ended, stage.given_back) == ([], [("worker_busy", ["i", "j"], True, False)])


@pytest.mark.parametrize(
    ("bulk", "work_class", "device", "encoding", "may_return", "idle"),
    [
        (True, WorkClass.STANDARD, "cpu", Encoding.JSON, True, True),
        (False, WorkClass.BATCH, "cpu", Encoding.JSON, True, False),
        (True, WorkClass.STANDARD, "cpu", Encoding.JSON, False, False),
        (False, WorkClass.BATCH, "cpu", Encoding.JSON, False, True),
        (True, WorkClass.BATCH, "cpu", Encoding.CANARY, True, False),
        (True, WorkClass.BATCH, "cuda", Encoding.JSON, True, False),
    ],
)
def test_bulk_work_runs_on_sched_idle_with_a_longer_limit(
    bulk: bool, work_class: WorkClass, device: str, encoding: Encoding, may_return: bool, idle: bool
) -> None:
    """Whoever may take a runner off it again goes by the invocation; else the class of the function holds for life."""
    stage, happened = Gpu(), list[tuple[str, float]]()
    stage.executor._device.handler_device = device  # type: ignore[misc]
    stage.executor._may_return = may_return

    def begin(items: object, payloads: object, ids: object, limit_s: float) -> Any:
        happened.append(("runs", limit_s))
        return ends

    def ends() -> Ran:
        raise RunnerFailed(Cause.HANDLER_ERROR, "no")

    seat = stage.acquire("a")
    seat.runner.begin, seat.runner.pid = begin, 2**30
    batch = Batch("p/a", 1, [Member(id="i", attempt=1, begun=_begun(encoding=encoding, bulk=bulk))])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("worker.batches.go_idle", lambda pid: happened.append(("idle", pid)))
        patch.setattr("worker.batches.end_idle", lambda pid: happened.append(("back", pid)))
        stage.serve(batch, seat, FunctionSpec(entrypoint="m:C", timeout_s=2.0, work_class=work_class))
    went, came = [("idle", 2**30)] * idle, [("back", 2**30)] * (idle and may_return)
    assert happened == [*went, ("runs", 40.0 if idle else 2.0), *came]
