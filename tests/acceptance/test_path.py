"""One invocation's whole way on real parts, as a client that knows only HTTP sees it."""

from collections.abc import Callable

import httpx
import numpy as np
import pytest

from smore.messages.reports import WarmState
from smore_client import ApiError
from smore_client.types import PrewarmFunction
from tests.support.eventually import eventually
from tests.support.whole_platform import ROOT, STRICT, Platform

pytestmark = pytest.mark.acceptance

ENVIRONMENT = STRICT


@pytest.fixture(scope="module")
def http(platform: Platform) -> httpx.Client:
    platform.client.deploy(ROOT / "zoo/functions/echo.yaml")
    return httpx.Client(base_url=platform.url, headers={"Authorization": f"Bearer {platform.key}"}, timeout=30)


def test_echo_goes_round(http: httpx.Client) -> None:
    answer = http.post("/v1/functions/echo/invocations", json={"input": {"x": [1, 2], "id": "abc"}})

    assert answer.status_code == 200, answer.text
    assert answer.json()["output"] == {"x": [1, 2], "id": "abc"}
    assert answer.json()["state"] == "succeeded"
    assert [part.split(";")[0].strip() for part in answer.headers["server-timing"].split(",")] == [
        "queue",
        "schedule",
        "dispatch",
        "load",
        "run",
    ]


def test_asynchronous_and_long_poll(http: httpx.Client) -> None:
    answer = http.post("/v1/functions/echo/invocations", json={"input": 7}, headers={"Prefer": "respond-async"})
    assert answer.status_code == 202
    assert answer.json()["durability"] == "strict"

    polled = http.get(answer.headers["location"], params={"wait": 10})
    assert polled.json()["state"] == "succeeded"
    assert http.get(answer.headers["location"] + "/result").json()["output"] == 7


def test_idempotency_key_makes_it_one(http: httpx.Client) -> None:
    first = http.post("/v1/functions/echo/invocations", json={"input": 1}, headers={"Idempotency-Key": "one"})
    again = http.post("/v1/functions/echo/invocations", json={"input": 1}, headers={"Idempotency-Key": "one"})
    other = http.post("/v1/functions/echo/invocations", json={"input": 2}, headers={"Idempotency-Key": "one"})

    assert first.json()["id"] == again.json()["id"]
    assert again.headers["idempotency-replayed"] == "true"
    assert (other.status_code, other.json()["code"]) == (422, "idempotency_mismatch")


def test_several_inputs_in_one_call(platform: Platform, http: httpx.Client) -> None:
    outputs = [one.output for one in platform.client.map("echo", [{"n": n} for n in range(20)])]

    assert [{"n": n} for n in range(20)] == outputs


def test_refusals_name_the_field_before_anything_is_queued(http: httpx.Client) -> None:
    unknown = http.post("/v1/functions/nobody/invocations", json={"input": 1})
    assert (unknown.status_code, unknown.json()["code"]) == (404, "function_not_found")
    keyless = httpx.post(f"{http.base_url}/v1/functions/echo/invocations", json={"input": 1}, timeout=30)
    assert keyless.status_code == 401


def test_real_model_by_json_and_by_raw_tensors(platform: Platform) -> None:
    """The same image as nested lists and as bytes gives the same logits; rows of one call stay in their order."""
    platform.client.deploy(ROOT / "zoo/functions/mobilenet.yaml")
    (declared,) = platform.client.function("mobilenet").inputs or []
    name = declared.name
    images = np.random.default_rng(0).standard_normal((2, *declared.shape[1:]), np.float32)

    raw = platform.client.invoke("mobilenet", {name: images}).output
    told = platform.client.invoke("mobilenet", {name: images.tolist()}).output
    output = next(iter(raw))
    np.testing.assert_allclose(np.asarray(told[output], np.float32), raw[output], rtol=1e-4, atol=1e-5)
    assert len(raw[output]) == 2

    with pytest.raises(ApiError) as refused:
        platform.client.invoke("mobilenet", {name: images[:, :, :-1].tolist()})
    assert (refused.value.status, refused.value.code) == (422, "invalid_input")
    assert name in refused.value.detail

    def impossible() -> tuple[int, str]:
        with pytest.raises(ApiError) as refused:
            platform.client.invoke("mobilenet", {name: images}, deadline_ms=0.1)
        return refused.value.status, refused.value.code

    # The leader publishes every second what is possible; until it has, the policy ends what is not (504).
    eventually(lambda: impossible() == (429, "slo_infeasible"), 10, "the refusal at the gate")


def test_canary_that_fails_leaves_the_old_revision(platform: Platform, http: httpx.Client) -> None:
    before = platform.client.function("echo").revision
    with pytest.raises(ApiError) as refused:
        platform.deploy("echo", "zoo.echo:NoSuchClass")

    assert (refused.value.status, refused.value.code) == (422, "canary_failed")
    assert refused.value.detail.startswith("spec.entrypoint: there is no class NoSuchClass in the module zoo.echo;")
    assert before == platform.client.function("echo").revision
    assert platform.client.invoke("echo", 5).output == 5


def test_handler_error_is_the_functions_own(platform: Platform) -> None:
    platform.client.deploy(ROOT / "zoo/functions/misbehave-raise.yaml")
    with pytest.raises(ApiError) as failed:
        platform.client.invoke("misbehave-raise", {"message": "no such colour"})

    assert failed.value.code == "handler_error"
    assert "no such colour" in failed.value.detail


def test_cancel_a_running_one(platform: Platform) -> None:
    platform.client.deploy(ROOT / "zoo/functions/misbehave-sleep.yaml")
    id_ = platform.client.submit("misbehave-sleep", {"s": 25}, deadline_ms=60_000)
    eventually(lambda: platform.client.invocation(id_).state == "running", 20, "running")
    platform.client.cancel(id_)

    assert platform.client.invocation(id_, wait_s=5).state == "cancelled"
    # Its runner was killed: the instance is free for the next one at once.
    assert platform.client.invoke("misbehave-sleep", {"s": 0}, deadline_ms=20_000).output == {"s": 0}


def test_pause_holds_back_and_resume_lets_go(platform: Platform, http: httpx.Client) -> None:
    platform.client.pause("echo")
    id_ = platform.client.submit("echo", 1, deadline_ms=60_000)
    assert platform.client.invocation(id_).state == "queued"
    eventually(
        lambda: any(
            queue.function == "echo" and queue.depth == 1 and queue.paused for queue in platform.client.queues()
        )
    )
    platform.client.resume("echo")

    assert platform.client.invocation(id_, wait_s=10).state == "succeeded"


def test_history_reaches_postgres(platform: Platform, http: httpx.Client) -> None:
    id_ = http.post("/v1/functions/echo/invocations", json={"input": "remember"}).json()["id"]

    def listed() -> bool:
        page = http.get("/v1/invocations", params={"function": "echo", "limit": 100}).json()
        return any(one["id"] == id_ and one["state"] == "succeeded" for one in page["invocations"])

    eventually(listed, 15, "the invocation in the history")


def _named_deadline_is_met(platform: Platform) -> bool:
    """Whether who is refused and sends again at once with the deadline that was named is let in, and served."""
    image = np.zeros((1, 3, 96, 96), np.float32)
    with pytest.raises(ApiError) as refused:
        platform.client.invoke("mobilenet", {"image": image}, deadline_ms=0.1)
    named_ms = refused.value.body["earliest_deadline_ms"]
    try:
        return platform.client.invoke("mobilenet", {"image": image}, deadline_ms=named_ms).state == "succeeded"
    except ApiError:
        return False


def test_asked_before_and_explained_after(platform: Platform, http: httpx.Client) -> None:
    """What the platform says would become of an invocation, and what it says became of it, are of one piece."""
    platform.client.invoke("echo", 0)
    eventually(lambda: platform.redis.hexists("smore:feasible", "default/echo"), what="what the gate is told")
    expected = eventually(
        lambda: (trial := platform.client.dry_run("echo", 1, deadline_ms=5000)).outcome == "placed" and trial,
        10,
        "room",
    )
    assert (
        expected.feasible
        and expected.start_at is not None
        and expected.finish_at is not None
        and expected.deadline_at is not None
    )
    assert expected.finish_at <= expected.deadline_at
    # Echo itself may take a microsecond.
    platform.client.deploy(ROOT / "zoo/functions/mobilenet.yaml")
    eventually(lambda: platform.redis.hexists("smore:feasible", "default/mobilenet"), what="what the gate is told")
    too_soon = platform.client.dry_run("mobilenet", rows=1, deadline_ms=0.1)
    assert (too_soon.outcome, too_soon.feasible) == ("refused", False)
    assert too_soon.earliest_deadline_ms is not None and 0 < too_soon.earliest_deadline_ms < 5000

    assert any(_named_deadline_is_met(platform) for _ in range(5)), "a busy machine may be late once"

    id_ = http.post("/v1/functions/echo/invocations", json={"input": 1, "deadline_ms": 5000}).json()["id"]
    explanation = platform.client.explain(id_)
    assert (explanation.state, explanation.complete, explanation.waits) == ("succeeded", True, None)
    (attempt,) = explanation.attempts
    assert (attempt.gpu, attempt.cold) == (expected.gpu, expected.cold)
    assert attempt.decision is not None and attempt.decision.policy == expected.decision.policy
    assert attempt.decision.candidates[0].gpu == attempt.gpu
    assert attempt.predicted is not None and attempt.predicted.run_s is not None and attempt.measured.run_s is not None
    assert explanation.slack_s is not None and explanation.slack_s > 0
    phases = attempt.phases_ms
    assert all(value is not None for value in (phases.queue, phases.schedule, phases.dispatch, phases.load, phases.run))
    assert explanation.gate.needed_ms is not None and explanation.gate.needed_ms < explanation.gate.allowed_ms

    platform.client.pause("echo")
    assert platform.client.dry_run("echo", 1, deadline_ms=5000).outcome == "waits"
    waiting = platform.client.submit("echo", 1, deadline_ms=60_000)
    waits = platform.client.explain(waiting).waits
    assert waits is not None and waits.detail == "The queue of its function is paused."
    platform.client.resume("echo")
    assert platform.client.invocation(waiting, wait_s=10).state == "succeeded"


def test_a_job_trains_and_is_measured(platform: Platform, http: httpx.Client) -> None:
    argv = [
        "zoo.train",
        "--model",
        "deepfm",
        "--preset",
        "cpu",
        "--batch",
        "16",
        "--input-wait",
        "0.4",
        "--seconds",
        "600",
    ]
    job = platform.client.start_job("train", argv)
    eventually(
        lambda: any(one.iterations > 5 for report in platform.reports() for one in report.jobs), 40, "iterations"
    )
    for n in range(20):
        platform.client.invoke("echo", n)
    assert platform.client.job(job.id).state == "running"

    key = http.post("/v1/keys", json={"name": "owner", "scopes": ["jobs"]}).json()["key"]
    evil = {"name": "evil", "argv": ["os", "-c", "x"]}
    refused = http.post("/v1/jobs", json=evil, headers={"Authorization": f"Bearer {key}"})
    assert refused.status_code in (400, 403, 422), refused.text
    platform.client.stop_job(job.id)
    eventually(lambda: platform.client.job(job.id).state in ("ended", "lost"), 20, "the job ended")


def test_an_instance_is_kept_ready_and_accounted_for(platform: Platform, http: httpx.Client) -> None:
    """Its idle instances go at once and nobody foresees anything, until one is to stand ready."""
    name = "kept"
    platform.deploy(
        name, "zoo.echo:Function", scaling={"keep_alive": 0, "prewarm": "off"}, resources={"gpu_memory": "64MiB"}
    )

    def eventually_status(holds: Callable[[PrewarmFunction], bool], what: str) -> PrewarmFunction:
        def look() -> PrewarmFunction | None:
            status = next((one for one in platform.client.prewarm().functions if one.function == name), None)
            return status if status is not None and holds(status) else None

        return eventually(look, 20, what)

    # The canary's. Once it is recorded, reports are newer than its instance.
    status = eventually_status(lambda one: one.counts.cold == 1 and one.mode == "off", "a cold start")
    assert (status.silence, status.wanted, status.counts.hits) == ("off", 0, 0)
    assert sum(status.counts.unforeseen.values()) == 1
    eventually(lambda: not platform.runner_pids(name), what="the end of its instance")

    answer = http.patch(f"/v1/functions/{name}", json={"scaling": {"prewarm": "later"}})
    assert (answer.status_code, answer.json()["field"]) == (422, "scaling.prewarm")
    platform.client.set_scaling(name, {"min_warm": 1})

    def idle() -> list[int]:
        warm = [one for report in platform.reports() for one in report.warm if one.function == f"default/{name}"]
        return [one.pid for one in warm if one.state is WarmState.IDLE]

    (pid,) = eventually(idle, what="an instance that stands ready")
    for _ in range(3):
        assert platform.client.invoke(name, {"x": 1}).timings_ms["load"] == 0
    # The leader says every other second what it holds.
    status = eventually_status(lambda one: (one.counts.hits, one.wanted, one.loaded) == (1, 1, 1), "the hit")
    assert (status.counts.cold, status.unmet) == (1, False)
    assert platform.runner_pids(name) == [pid]

    platform.client.delete(name)
    eventually(lambda: not platform.runner_pids(name), what="the end of the instance")
