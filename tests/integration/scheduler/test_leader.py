"""The live leader on a real Redis: it places, hands over, is fenced, and gives back what got lost."""

import asyncio
import base64
import json
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any, cast

import pytest
import redis
import redis.asyncio
from structlog.testing import capture_logs

from scheduler.leader.leader import Leader
from scheduler.policy.engine import Engine
from scheduler.policy.knobs import PRESETS, preset
from smore.domain.function import FunctionSpec, Profile
from smore.domain.ids import new_id
from smore.domain.invocation import Cause
from smore.domain.learned import LearnedCost
from smore.domain.override import Override
from smore.domain.placement_rule import Offer, WaitingBatch
from smore.messages.degradation import Table
from smore.messages.reasons import DryRunAnswer, decode_answer
from smore.messages.reports import JobReport, Report, UnregisteredProcess, WarmInstance, WarmState, encode_report
from smore.messages.results import Execution, Result, encode_execution, encode_result
from smore.messages.stream import Asked, Dispatched, decode
from smore.process import observability as metrics
from smore.process.settings import QueueSettings, SchedulerSettings, Settings
from smore.redis.catalog import Catalog, FunctionEntry
from smore.redis.fleet import Fleet
from smore.redis.gateway_queue import AdmissionCheck, GatewayQueue, Question
from smore.redis.learned import LearnedRecords
from smore.redis.queue import Claim, Queue, RunOutcome
from smore.redis.submission import Submission
from smore.redis.tables import Tables
from tests.support.eventually import eventually
from tests.support.tables import place

PREFIX = "smore:"
CONFIG = Settings(scheduler=SchedulerSettings(dispatch_lease_s=0.3, lease_s=1.0, tick_s=0.02))


def ticking(tick_s: float) -> Settings:
    return CONFIG.model_copy(update={"scheduler": CONFIG.scheduler.model_copy(update={"tick_s": tick_s})})


@pytest.fixture
def queue(redis_client: "redis.Redis") -> Queue:
    spec = FunctionSpec(entrypoint="m:C", max_batch=4, profile=Profile(run_s={1: 0.001, 4: 0.002}, load_s=0.1))
    catalog = Catalog(redis_client, PREFIX)
    catalog.put_revision("default/echo", 1, spec)
    catalog.put_function(FunctionEntry(project="default", name="echo", revision=1))
    return Queue(redis_client, PREFIX, QueueSettings())


@pytest.fixture
def lead(redis_client: "redis.Redis", queue: Queue) -> Iterator[Callable[..., threading.Event]]:
    """Start a leader in a thread, with other settings where some are given; returns the event that stops it."""
    running: list[tuple[threading.Thread, threading.Event]] = []

    def start(config: Settings = CONFIG, ahead_s: float = 0.0) -> threading.Event:
        stop, knobs = threading.Event(), preset("smore-product", ahead_s=ahead_s)

        def loop() -> None:
            while not stop.is_set():
                Leader(redis_client, config, stop, lambda: Engine(knobs), knobs, prewarms=False).lead()
                stop.wait(0.02)

        thread = threading.Thread(target=loop, daemon=True)
        thread.start()
        running.append((thread, stop))
        return stop

    yield start
    for thread, stop in running:
        stop.set()
        thread.join(5)
        assert not thread.is_alive()


def heartbeat(
    queue: Queue,
    gpu: str = "cpu0",
    strangers: Sequence[UnregisteredProcess] | None = None,
    jobs: Sequence[JobReport] = (),
    closed: bool = False,
    counter: str = "cpu-time",
    boot: str = "b",
) -> None:
    report = Report(
        gpu=gpu,
        boot=boot,
        at=time.time(),
        kind="cpu",
        device="d",
        sharing_mode="time-slice",
        slots=2,
        memory_total_mib=1000,
        memory_used_mib=10,
        utilisation=0.0,
        utilisation_counter=counter,
        function_utilisation=0.0,
        running=0,
        strangers=strangers,
        jobs=jobs,
        closed=closed,
        warm=[WarmInstance(function="default/echo", revision=1, state=WarmState.IDLE, memory_mib=10, pid=1)],
    )
    queue.report(gpu, encode_report(report), ttl_s=60, lease_s=2, cursor="", running=[])


def submit(queue: Queue, **fields: object) -> str:
    id_ = new_id()
    fields = {"slo_us": 20_000_000, **fields}
    admission = queue.enqueue(Submission(id=id_, function="default/echo", revision=1, payload=b"1", **fields))  # type: ignore[arg-type]
    assert admission.status == "ok", admission
    return id_


def message(client: "redis.Redis", queue: Queue, gpu: str = "cpu0") -> list[list[object]]:
    """The attempts of the next Celery message on a GPU queue, with heartbeats while it is awaited."""

    def pop() -> bytes | None:
        heartbeat(queue, gpu)
        found = client.rpop(f"{PREFIX}gpu.{gpu}")
        assert found is None or isinstance(found, bytes)
        return found

    body = json.loads(base64.b64decode(json.loads(eventually(pop, what="a message"))["body"]))
    attempts: list[list[object]] = body[0][2]
    return attempts


def finish(queue: Queue, id_: str, attempt: int, run_ms: float | None = None) -> None:
    (begun,) = queue.start("default/echo", "cpu0", 2, [(id_, attempt)])
    assert begun is not None
    outcome = RunOutcome(
        id=id_, attempt=attempt, action="succeed", cause=Cause.OK, result=encode_result(Result(form="json", body=b"1"))
    )
    meta = "" if run_ms is None else encode_execution(Execution(run_ms=run_ms, batch=1, rows=1)).decode()
    assert queue.finish("default/echo", meta, [outcome]) == [True]


def test_places_what_waited_before_it_led(
    redis_client: "redis.Redis", queue: Queue, lead: Callable[[], threading.Event]
) -> None:
    """A stale queue does not sleep: a leader that starts serves what is there already."""
    id_ = submit(queue)
    heartbeat(queue)
    lead()

    assert [[id_, 1]] == message(redis_client, queue)
    finish(queue, id_, 1)


def test_a_policy_that_checks_sms_does_not_lead_where_no_counter_tells_them(
    redis_client: "redis.Redis", queue: Queue
) -> None:
    knobs = PRESETS["smore"]
    leader = Leader(redis_client, CONFIG, threading.Event(), lambda: Engine(knobs), knobs, prewarms=False)
    thread = threading.Thread(target=leader.lead, daemon=True)
    heartbeat(queue, counter="gpm-sm-util")
    thread.start()
    eventually(lambda: redis_client.get(f"{PREFIX}leader"), what="a leader")
    # A GPU before Hopper joins.
    heartbeat(queue, counter="nvml-utilization")
    eventually(lambda: not thread.is_alive(), what="its end")
    assert redis_client.get(f"{PREFIX}leader") is None, "the lease is given back"
    refused = redis_client.get(f"{PREFIX}leader:refused")
    assert (
        refused == b"the policy smore checks SMs (sm_rule=total), and no counter tells those of cpu0 (nvml-utilization)"
    )
    leader.lead()
    assert redis_client.get(f"{PREFIX}leader") is None, "nor does it take it again"


class Broken:
    """A placement rule that cannot choose."""

    def order(self, now: float, batch: WaitingBatch) -> float:
        del now
        return batch.deadline_at

    def choose(self, now: float, batch: WaitingBatch, offers: Sequence[Offer]) -> Offer | None:
        del now, batch, offers
        raise KeyError("nothing is known")


def test_the_platforms_own_rule_goes_on_where_an_operators_fails(redis_client: "redis.Redis", queue: Queue) -> None:
    heartbeat(queue)
    id_ = submit(queue)
    knobs = replace(PRESETS["smore-product"], name="mine:Broken", rule=Broken())
    before, stop = failures(), threading.Event()
    leader = Leader(redis_client, CONFIG, stop, lambda: Engine(knobs), knobs, prewarms=False, without_rule=Engine)
    thread = threading.Thread(target=leader.lead, daemon=True)
    thread.start()
    assert message(redis_client, queue) == [[id_, 1]]
    stop.set()
    thread.join(5)
    assert not thread.is_alive()
    assert failures() == before + 1


def failures() -> float:
    value = metrics.SCHEDULER.get_sample_value("smore_placement_rule_failures_total")
    assert value is not None
    return value


def test_standby_takes_over(redis_client: "redis.Redis", queue: Queue, lead: Callable[[], threading.Event]) -> None:
    """One leads; when it stops the other goes on with what waits, under a higher token."""
    first = lead()
    eventually(lambda: redis_client.get(f"{PREFIX}leader"))
    token = redis_client.get(f"{PREFIX}leader")
    lead()
    first.set()
    eventually(lambda: redis_client.get(f"{PREFIX}leader") not in (None, token), 5, "a new leader")

    id_ = submit(queue)
    assert [[id_, 1]] == message(redis_client, queue)


def test_a_new_degradation_table_is_taken_up_and_a_bad_one_is_not(
    redis_client: "redis.Redis", queue: Queue, lead: Callable[[], threading.Event], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a restart; what cannot be read leaves the last good table in force."""
    tables = Tables(redis_client, PREFIX)
    looked, current = list[int](), Tables.current

    def spied(self: Tables) -> Table | None:
        looked.append(self.version())
        return current(self)

    monkeypatch.setattr(Tables, "current", spied)

    def publish(version: int) -> None:
        tables.publish(
            Table(version=version, source="test", created_at=0.0, places=[place([[0.1]], [[0.3]], [[0.5]], device="d")])
        )

    def version_of_a_decision() -> int:
        id_ = submit(queue)
        finish(queue, id_, int(message(redis_client, queue)[0][1]))  # type: ignore[call-overload]
        decisions = [event for _, raw in queue.events("0-0") if isinstance(event := decode(raw), Dispatched)]
        return int(json.loads(decisions[-1].decision)["table"])

    publish(1)
    heartbeat(queue)
    lead()
    assert version_of_a_decision() == 1
    publish(2)
    eventually(lambda: version_of_a_decision() == 2, 5, "the new table")
    redis_client.set(f"{PREFIX}degradation:table", b"cut")
    redis_client.set(f"{PREFIX}degradation:version", 3)
    eventually(lambda: 3 in looked, 5, "a look at the bad table")
    assert version_of_a_decision() == 2
    publish(4)
    eventually(lambda: version_of_a_decision() == 4, 5, "the table after the bad one")


def test_former_leader_is_fenced(redis_client: "redis.Redis", queue: Queue) -> None:
    """A token that is not the present one claims nothing, ends nothing, reaps nothing."""
    old = queue.lead("", 10)
    redis_client.delete(f"{PREFIX}leader")
    assert int(queue.lead("", 10)) > int(old)
    id_ = submit(queue)
    claim = Claim(
        function="default/echo",
        gpu="cpu0",
        celery_list="x",
        message=b"m",
        decision="",
        schedule_us=0,
        attempts=[(id_, 0)],
    )

    assert queue.claim(old, 2, [claim]) == [None]
    assert queue.reap(old) == -1
    assert redis_client.llen("x") == 0


def test_a_leader_whose_lease_ran_out_takes_it_again_at_once(
    redis_client: "redis.Redis", queue: Queue, monkeypatch: pytest.MonkeyPatch, lead: Callable[..., threading.Event]
) -> None:
    """It found its own gone and took the next: nobody waits for the end of that one, which is long here."""
    rebuild = Leader._rebuild
    rebuilt: list[Leader] = []

    def stalled(self: Leader) -> Any:
        events = rebuild(self)
        if not rebuilt:
            redis_client.delete(f"{PREFIX}leader")
        rebuilt.append(self)
        return events

    monkeypatch.setattr(Leader, "_rebuild", stalled)
    lead(CONFIG.model_copy(update={"scheduler": CONFIG.scheduler.model_copy(update={"lease_s": 300.0})}))
    id_ = submit(queue)
    assert [[id_, 1]] == message(redis_client, queue)
    assert len(rebuilt) == 2


def test_lost_dispatch_comes_back_as_another_attempt(
    redis_client: "redis.Redis", queue: Queue, lead: Callable[[], threading.Event]
) -> None:
    """
    Nobody starts it within the dispatch lease: it is dispatched again, and the first message has no power any more.
    """
    lead()
    id_ = submit(queue)
    assert [[id_, 1]] == message(redis_client, queue)

    assert [[id_, 2]] == message(redis_client, queue)
    assert queue.start("default/echo", "cpu0", 2, [(id_, 1)]) == [None]
    finish(queue, id_, 2)


def test_a_worker_that_began_anew_is_in_the_log(queue: Queue, lead: Callable[..., threading.Event]) -> None:
    """With how long it was silent, also where the leader had given it up meanwhile."""

    def said(event: str) -> list[Any]:
        return [line for line in logged if line["event"].startswith(event)]

    with capture_logs() as logged:
        lead(CONFIG.model_copy(update={"worker": CONFIG.worker.model_copy(update={"heartbeat_s": 0.02})}))
        heartbeat(queue, boot=new_id())
        eventually(lambda: said("GPU instance lost"), what="the loss")
        heartbeat(queue, boot=new_id())
        first, *_ = eventually(lambda: said("GPU worker began anew"), what="the line")
    assert (first["gpu"], first["log_level"]) == ("cpu0", "warning")
    assert first["silent_s"] >= 0.08


def test_slots_are_credits(redis_client: "redis.Redis", queue: Queue, lead: Callable[[], threading.Event]) -> None:
    """One resident instance takes one batch at a time: the rest waits where it can still be reordered."""
    lead()
    heartbeat(queue)
    first = submit(queue)
    assert [[first, 1]] == message(redis_client, queue)
    queue.start("default/echo", "cpu0", 60, [(first, 1)])
    others = [submit(queue) for _ in range(3)]
    eventually(lambda: redis_client.zcard(f"{PREFIX}q:default/echo") == 3)
    assert redis_client.llen(f"{PREFIX}gpu.cpu0") == 0

    outcome = RunOutcome(
        id=first, attempt=1, action="succeed", cause=Cause.OK, result=encode_result(Result(form="json", body=b"1"))
    )
    queue.finish("default/echo", "", [outcome])
    assert [[id_, 1] for id_ in others] == message(redis_client, queue)


def test_one_is_sent_ahead_and_a_new_leader_takes_over_both(
    redis_client: "redis.Redis", queue: Queue, lead: Callable[..., threading.Event]
) -> None:
    spec = FunctionSpec(entrypoint="m:C", profile=Profile(run_s={1: 1.0}, load_s=0.1))
    Catalog(redis_client, PREFIX).put_revision("default/echo", 1, spec)
    config = ticking(0.02)
    config.scheduler.dispatch_lease_s = 10.0
    stop = lead(config, 0.1)
    first = submit(queue)
    assert [[first, 1]] == message(redis_client, queue)
    queue.start("default/echo", "cpu0", 60, [(first, 1)])
    second = submit(queue)
    raw = eventually(lambda: redis_client.rpop(f"{PREFIX}gpu.cpu0"), what="one is sent ahead")
    args, options, *_ = json.loads(base64.b64decode(json.loads(cast(bytes, raw))["body"]))
    assert args == ["default/echo", 1, [[second, 1]]] and 0.5 <= options["ahead_s"] <= 0.7
    third = submit(queue)

    stop.set()
    eventually(lambda: not redis_client.exists(f"{PREFIX}leader"), what="it has resigned")
    lead(config, 0.1)
    eventually(lambda: redis_client.exists(f"{PREFIX}leader"), what="another leads")
    heartbeat(queue)
    time.sleep(0.2)
    assert redis_client.llen(f"{PREFIX}gpu.cpu0") == 0, "one runs and one is ahead: there is no place for a third"
    outcome = RunOutcome(
        id=first, attempt=1, action="succeed", cause=Cause.OK, result=encode_result(Result(form="json", body=b"1"))
    )
    assert queue.finish("default/echo", "", [outcome]) == [True]
    finish(queue, second, 1)
    assert [[third, 1]] == message(redis_client, queue)
    finish(queue, third, 1)


def test_pause_and_resume(
    redis_client: "redis.Redis",
    queue: Queue,
    lead: Callable[[], threading.Event],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("scheduler.leader.leader.WAITS_S", 0.0)
    lead()
    fleet = Fleet(redis_client, PREFIX)
    fleet.pause("f:default/echo")
    with capture_logs() as lines:
        id_ = submit(queue)
        heartbeat(queue)
        eventually(lambda: redis_client.zcard(f"{PREFIX}q:default/echo") == 1)
        assert redis_client.llen(f"{PREFIX}gpu.cpu0") == 0
        fleet.pause("g:cpu0")

        def refusals() -> list[tuple[str, str | None]]:
            heartbeat(queue)
            said = [one for one in lines if one["event"] == "waits"]
            return [(one["gpu"], one["refusal"]) for one in said[-1]["candidates"]] if said else []

        eventually(lambda: refusals() == [("cpu0", "paused")], what="the line of what waits")
        fleet.resume("g:cpu0")
        fleet.resume("f:default/echo")
        assert [[id_, 1]] == message(redis_client, queue)
        line = eventually(lambda: next((one for one in lines if one["event"] == "dispatch"), None), what="its line")
    assert (line["log_level"], line["ids"], line["gpu"]) == ("debug", [id_], "cpu0")
    assert [(one["gpu"], one["refusal"]) for one in line["candidates"]] == [("cpu0", None)]
    fleet.pause("f:default/echo")
    fleet.pause("-*")

    def gauge(name: str, scope: str, target: str) -> float | None:
        return metrics.SCHEDULER.get_sample_value(name, {"scope": scope, "name": target})

    eventually(lambda: gauge("smore_drained", "platform", "") == 1, what="the gauge of the drain")
    assert (gauge("smore_paused", "function", "default/echo"), gauge("smore_paused", "platform", "")) == (1, 0)
    redis_client.hset(f"{PREFIX}seen", "gone", int((time.time() - 60) * 1e6))

    def reporting(gpu: str) -> float | None:
        heartbeat(queue)
        return metrics.SCHEDULER.get_sample_value("smore_gpu_reporting", {"gpu_instance": gpu})

    eventually(lambda: (reporting("cpu0"), reporting("gone")) == (1, 0), what="the gauge of who reports")
    fleet.forget("gone")
    eventually(lambda: reporting("gone") is None, what="the end of its series")
    fleet.resume("-*")
    fleet.resume("f:default/echo")
    eventually(lambda: gauge("smore_paused", "function", "default/echo") is None, what="the gauge of the end")
    assert gauge("smore_drained", "platform", "") == 0


def ask(config: Settings, question: Question) -> tuple[AdmissionCheck, DryRunAnswer | None]:
    """As a gateway does."""

    async def put() -> tuple[AdmissionCheck, DryRunAnswer | None]:
        assert config.redis.url is not None
        async with redis.asyncio.from_url(config.redis.url) as client:
            queue = GatewayQueue(client, PREFIX, config.queue)
            gate = await queue.ask(question)
            raw = await queue.answer(question.id, 5) if gate.leader == "asked" else None
            await queue.close()
            return gate, None if raw is None else decode_answer(raw)

    return asyncio.run(put())


def test_what_people_set_reaches_the_policy(
    redis_client: "redis.Redis", queue: Queue, lead: Callable[[], threading.Event]
) -> None:
    """Pins, drains and strangers hold at a leader that runs, and at one that begins anew."""
    fleet, stranger = Fleet(redis_client, PREFIX), UnregisteredProcess(pid=7, start=1, memory_mib=1.0)
    fleet.set_override(Override(function="default/echo", gpus=("cpu1",)))
    heartbeat(queue)
    stop = lead()
    pinned = submit(queue)
    assert message(redis_client, queue, "cpu1") == [[pinned, 1]]
    fleet.set_override(Override(function="default/echo"))
    fleet.pause("-g:cpu1")

    def commanded() -> bool:
        heartbeat(queue, "cpu1")
        return bool(fleet.commands("cpu1", "0-0", 0.01))

    eventually(commanded, what="the idle instance told to go")
    drained = submit(queue)
    assert message(redis_client, queue) == [[drained, 1]]
    stop.set()
    lead()
    heartbeat(queue, "cpu0", strangers=[stranger])
    protected = submit(queue)
    eventually(lambda: redis_client.get(f"{PREFIX}leader"))
    assert not redis_client.llen(f"{PREFIX}gpu.cpu0")
    fleet.allow("cpu0", stranger)

    def pop() -> bytes | None:
        heartbeat(queue, "cpu0", strangers=[stranger])
        found = redis_client.rpop(f"{PREFIX}gpu.cpu0")
        assert found is None or isinstance(found, bytes)
        return found

    assert protected in base64.b64decode(json.loads(eventually(pop, what="a message"))["body"]).decode()


def test_a_question_is_answered_and_places_nothing(
    config: Settings, redis_client: "redis.Redis", queue: Queue, lead: Callable[[], threading.Event]
) -> None:
    question = Question(id=new_id(), function="default/echo", revision=1, rows=3, slo_us=5_000_000)
    assert ask(config, question)[0].leader == "alone"
    lead()
    eventually(lambda: redis_client.get(f"{PREFIX}leader"))
    gate, answer = ask(config, question)
    assert answer is not None
    assert (answer.gpu, answer.reasons.candidates, answer.reasons.refused) == (None, [], {})

    heartbeat(queue)
    eventually(lambda: redis_client.hget(f"{PREFIX}feasible", "default/echo"), what="what the gate is told")
    gate, answer = ask(config, replace(question, id=new_id()))
    assert answer is not None
    assert (gate.feasible, answer.gpu, answer.cold, answer.reasons.policy) == (True, "cpu0", False, "smore-product")
    assert answer.finish_at is not None
    assert answer.at < answer.finish_at <= gate.deadline_us / 1e6
    assert (answer.reasons.candidates[0].gpu, answer.reasons.candidates[0].refusal) == ("cpu0", None)
    assert redis_client.llen(f"{PREFIX}gpu.cpu0") == 0
    assert redis_client.pttl(f"{PREFIX}asks") <= 1000

    gate, answer = ask(config, replace(question, id=new_id(), revision=7))
    assert answer is not None and not answer.known
    gate, answer = ask(config, replace(question, id=new_id(), slo_us=100))
    assert answer is not None and answer.earliest_deadline_at is not None
    assert (gate.feasible, answer.gpu, answer.reasons.refused) == (False, None, {"deadline": 1})
    assert answer.earliest_deadline_at > gate.deadline_us / 1e6


def test_the_next_leader_goes_on_with_what_was_learned(
    config: Settings, redis_client: "redis.Redis", queue: Queue, lead: Callable[[], threading.Event]
) -> None:
    """Runs of 0.2 ms where 1 ms was declared; a record that cannot be read is passed over."""
    records = f"{PREFIX}learned"
    redis_client.hset(records, mapping={"default/gone": b"{}", b"\xff": b"junk"})

    def run_s() -> float | None:
        heartbeat(queue)
        question = Question(id=new_id(), function="default/echo", revision=1, slo_us=5_000_000)
        answer = ask(config, question)[1]
        return answer.reasons.candidates[0].run_s if answer is not None and answer.gpu is not None else None

    def led() -> threading.Event:
        """By a leader that has read its snapshot: what is asked before is not answered."""
        redis_client.delete(f"{PREFIX}feasible")
        stop = lead()
        eventually(lambda: redis_client.hexists(f"{PREFIX}feasible", "default/echo"), what="a word to the gate")
        return stop

    first = led()
    eventually(lambda: run_s() == 0.001, what="what was declared")
    for _ in range(5):
        id_ = submit(queue)
        finish(queue, id_, int(message(redis_client, queue)[0][1]), 0.2)  # type: ignore[call-overload]
    eventually(lambda: b'"lessons":5' in (redis_client.hget(records, "default/echo") or b""), what="a record")
    learned = eventually(run_s, what="what was learned")
    assert learned < 0.0008
    first.set()
    eventually(lambda: redis_client.get(f"{PREFIX}leader") is None, what="the end of the first leader")
    led()
    assert eventually(run_s, what="a word of the second leader") == learned
    Catalog(redis_client, PREFIX).remove_function("default/echo")
    eventually(lambda: not redis_client.hexists(records, "default/echo"), what="a record less")


def test_what_functions_cost_a_training_is_kept_while_it_runs(
    redis_client: "redis.Redis", queue: Queue, lead: Callable[[], threading.Event]
) -> None:
    cost = LearnedCost(factor=2.0, error=0.1, seen=1.0, lost=0.4, charged=0.2, noise=0.01)
    records = LearnedRecords(redis_client, PREFIX)
    records.keep({}, {"cpu0": {"j": cost}})
    job = JobReport(id="j", project="default", state="running", pid=1, memory_mib=1.0, iterations=9)
    factor = metrics.BUDGET_FACTOR.labels("cpu0")

    def corrects() -> bool:
        heartbeat(queue, jobs=[job])
        return float(factor._value.get()) > 1.5

    def forgets() -> bool:
        heartbeat(queue)
        return not records.costs()

    heartbeat(queue, jobs=[job])
    lead()
    eventually(corrects, what="what the former leader learned")
    assert records.costs() == {"cpu0": {"j": cost}}
    eventually(forgets, what="a record less")


def test_questions_are_bounded(config: Settings, redis_client: "redis.Redis", queue: Queue) -> None:
    """Over all who ask: no more within a second reach the stream, and so the leader."""
    assert queue.lead("", 10)
    few = config.model_copy(update={"queue": QueueSettings(asks_per_s=3, max_pending=0)})
    question = Question(id="q", function="default/echo", revision=1, slo_us=1000)

    async def put() -> list[AdmissionCheck]:
        assert config.redis.url is not None
        async with redis.asyncio.from_url(config.redis.url) as client:
            asking = GatewayQueue(client, PREFIX, few.queue)
            found = [await asking.ask(question) for _ in range(5)]
            await asking.close()
            return found

    found = asyncio.run(put())
    assert [gate.leader for gate in found] == ["asked"] * 3 + ["many"] * 2
    assert found[0].full == "pending"
    assert sum(isinstance(decode(raw), Asked) for _, raw in queue.events("0-0")) == 3


def test_expired_and_deleted_are_ended(
    redis_client: "redis.Redis", queue: Queue, lead: Callable[[], threading.Event]
) -> None:
    lead()
    late = submit(queue, slo_us=50_000)
    eventually(lambda: (record := queue.record("default", late)) is not None and record.state == "expired")
    waiting = submit(queue)
    Catalog(redis_client, PREFIX).remove_function("default/echo")
    eventually(lambda: (record := queue.record("default", waiting)) is not None and record.cause == "function_deleted")


def test_the_gate_hears_often_of_functions_that_want_what_budgets_leave(
    redis_client: "redis.Redis", queue: Queue, lead: Callable[..., threading.Event]
) -> None:
    """Between two ticks it is told again and again while one waits."""
    submit(queue)
    job = JobReport(id="j", project="default", state="running", pid=1, memory_mib=1.0, iterations=9)
    heartbeat(queue, jobs=[job], closed=True)
    lead(ticking(1.0))

    stamps: list[int] = []

    def often() -> bool:
        told = redis_client.hget(f"{PREFIX}feasible", "default/echo")
        if isinstance(told, bytes) and (stamp := int(told.partition(b":")[0])) not in stamps:
            stamps.append(stamp)
        return any(later - earlier < 500_000 for earlier, later in pairwise(stamps))

    eventually(often, what="two words to the gate within half a tick")


def test_the_gate_hears_at_ticks_alone_where_no_budget_limits(
    config: Settings, redis_client: "redis.Redis", queue: Queue, lead: Callable[..., threading.Event]
) -> None:
    """
    Between two ticks every round would tell it: the first tick is the only one, and the time between two words is next
    to nothing.
    """
    submit(queue)
    heartbeat(queue)
    scheduler = CONFIG.scheduler.model_copy(update={"tick_s": 600.0, "gate_s": 1e-6})
    stop = lead(CONFIG.model_copy(update={"scheduler": scheduler}))
    first = eventually(lambda: redis_client.hget(f"{PREFIX}feasible", "default/echo"), what="a word to the gate")
    submit(queue)
    question = Question(id="", function="default/echo", revision=1, slo_us=5_000_000)
    # A question is answered before the end of a round, where the gate is told: the second answer shows that the first
    # round has ended.
    assert all(ask(config, replace(question, id=new_id()))[1] is not None for _ in range(2))
    told = redis_client.hget(f"{PREFIX}feasible", "default/echo")
    stop.set()
    submit(queue)  # rings the bell at which the leader waits
    assert told == first
