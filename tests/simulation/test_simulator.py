"""Runs whose every time can be worked out by hand, and what must hold of every run."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lab.research.compare.comparison import Plan, run_cell
from lab.simulation import policies, traces
from lab.simulation.counter import read
from lab.simulation.interference import InterferenceModel
from lab.simulation.result import EXPIRED, FAILED, GPU_COLUMNS, REFUSED, SUCCEEDED, Inconsistent, Result
from lab.simulation.simulator import simulate
from lab.simulation.traces import Trace
from lab.simulation.world import Failure, Function, Gpu, Training, World, load
from scheduler.policy.decisions import Decision, FinishBounds, Offload, Prewarm, PublishAdmission, Throttle
from scheduler.policy.engine import Engine
from scheduler.policy.events import AdmissionDue, Event, GpuLost, InvocationArrived, InvocationSettled
from scheduler.policy.knobs import preset
from scheduler.policy.prewarm.fixed import Always
from scheduler.policy.prewarm.prewarmer import Prewarmer, PrewarmKnobs
from smore.domain.invocation import Cause, End, EndedFor
from smore.domain.loss import ClosedWindow, Step, reference
from smore.traces.recorded import BadTrace
from tests.support.policies import AtOnce, Reacting, Reckless, dispatch

PLAIN = replace(InterferenceModel(), noise=0.0, time_sharing=False)


def world(*functions: str, training: Training | None = None, **changed: Any) -> World:
    fields: dict[str, Any] = {
        "name": "hand",
        "gpus": (Gpu(name="gpu0", training=training),),
        "functions": tuple(Function(name=name, model=name) for name in functions),
        "interference_model": PLAIN,
        "warm_share": 1.0,
        "monitor_noise": 0.0,
    }
    return World(**(fields | changed))


def trace(
    *arrivals: tuple[float, str], functions: Sequence[str], deadline_s: float = 100.0, duration_s: float = 1.0
) -> Trace:
    n = len(arrivals)
    return Trace(
        name="hand",
        functions=tuple(functions),
        duration_s=duration_s,
        arrival_s=np.array([at for at, _ in arrivals]),
        function=np.array([functions.index(name) for _, name in arrivals], np.int64),
        rows=np.zeros(n, np.int64),
        factor=np.full(n, np.nan),
        deadline_s=np.full(n, deadline_s),
    )


def run(world_: World, trace_: Trace, policy: object | None = None) -> tuple[Result, AtOnce]:
    chosen = policy or AtOnce()
    return simulate(world_, trace_, lambda _: chosen, seed=0), chosen  # type: ignore[return-value, arg-type]


# ---- processor sharing -----------------------------------------------------------------------------------------------


def test_one_alone_takes_its_time_alone() -> None:
    result, _ = run(world("bert"), trace((0.25, "bert"), functions=["bert"]))

    assert result.run_s.tolist() == pytest.approx([0.037])
    assert result.end_s.tolist() == pytest.approx([0.287])
    assert result.status.tolist() == [SUCCEEDED]


def test_a_second_joins_half_way() -> None:
    """Both have 18.5 ms of work in which they share; the second has the rest to itself."""
    result, _ = run(world("bert", keep_warm=2), trace((0.1, "bert"), (0.1185, "bert"), functions=["bert"]))

    slow = (1 + 0.2 * 0.35 * 0.35) * 1.4**1.3 * 1.01
    together_until = 0.1185 + 0.0185 * slow
    assert result.end_s.tolist() == pytest.approx([together_until, together_until + 0.0185])
    assert not result.cold.any()


def test_functions_of_two_speeds_beside_a_training() -> None:
    result, _ = run(
        world("vgg16", "deepfm", training=Training(model="resnet50", batch=64)),
        trace((0.1, "vgg16"), (0.1, "deepfm"), functions=["vgg16", "deepfm"]),
    )

    total = 0.78 + 0.35 + 0.08
    both = total**1.3 * 1.02
    vgg, deepfm = (1 + 0.2 * 0.30 * (0.50 + 0.10)) * both, (1 + 0.2 * 0.10 * (0.50 + 0.30)) * both
    first = 0.003 * vgg
    alone = (1 + 0.2 * 0.10 * 0.50) * 1.01
    left = 0.008 - first / deepfm
    assert result.run_s.tolist() == pytest.approx([first, first + left * alone])


def test_the_training_is_charged_for_the_time_it_shared() -> None:
    result, _ = run(world("bert", training=Training(model="vgg16", batch=64)), trace((0.5, "bert"), functions=["bert"]))

    training = (1 + 0.2 * 0.45 * 0.35) * 1.25**1.3 * 1.01
    shared = float(result.run_s[0])
    alive, slow, work, busy, function, loaded, executing, solo = result.gpus[0].tolist()
    assert (alive, solo) == (1.0, 0.55)
    assert slow == pytest.approx(1.0 + shared * (training - 1))
    assert work == pytest.approx(1.0 - shared + shared / training)
    assert busy == pytest.approx(0.55 * (1 - shared) + shared)
    assert function == pytest.approx(shared * 0.70 / 1.25)
    assert (loaded, executing) == (pytest.approx(1.0), pytest.approx(shared))


# ---- warm, cold, memory, slots ---------------------------------------------------------------------------------------


def test_without_a_warm_instance_it_waits_for_a_load() -> None:
    result, policy = run(world("bert", keep_warm=0), trace((0.1, "bert"), functions=["bert"]))

    assert result.start_s.tolist() == pytest.approx([0.1 + 2.6])
    assert result.cold.tolist() == [True]
    settled = [event for _, event in policy.heard if isinstance(event, InvocationSettled)]
    assert settled == [InvocationSettled(id="000000000", attempt=1, run_s=None, batch_rows=1)]


def test_a_load_is_reported_while_it_lasts_and_when_it_is_done() -> None:
    _, policy = run(world("bert", keep_warm=0), trace((0.1, "bert"), functions=["bert"]))

    changes = [
        (round(now, 3), list(report.warm), list(report.loading)) for now, report in policy.reports() if report.warm
    ]
    assert changes[0] == (0.13, [("bert", 1, 1)], [("bert", 1, 1)])
    assert (2.73, [("bert", 1, 1)], []) in changes


def test_what_does_not_fit_the_warm_pool_is_passed_over() -> None:
    """
    A function larger than the pool is left out and no other with it: the same instances stand on every GPU instance.
    """
    for name, configuration in load("fig14").worlds.items():
        policy = AtOnce()
        simulate(configuration, trace(functions=["bert"]), lambda _, policy=policy: policy, seed=0)  # type: ignore[misc]
        first = {
            report.gpu: {function for function, _, _ in report.warm} for at, report in policy.reports() if at == 0.0
        }
        for gpu in configuration.gpus:
            left = configuration.warm_share * (gpu.memory_mib - configuration.training_mib(gpu))
            left -= sum(configuration.memory_mib(one) for one in configuration.functions if one.name in first[gpu.name])
            absent = [one for one in configuration.functions if one.name not in first[gpu.name]]
            assert left >= 0 and all(configuration.memory_mib(one) > left for one in absent), (name, gpu)


def test_the_warm_pool_is_sized_by_rate_and_run_time() -> None:
    """
    Assumption A39, Little's law: 60 runs of 37 ms a second and a half more ask for 4 instances, 2 on each GPU instance; one without
    requests has one.
    """
    gpus = (Gpu(name="gpu0"), Gpu(name="gpu1"))
    many = trace(*[(i / 60, "bert") for i in range(60)], functions=["bert", "vgg16"])
    result, _ = run(world("bert", "vgg16", gpus=gpus, burst=1.5), many)
    assert result.meta["warm_at_start"] == [[2, 1], [2, 1]]
    # What is asked for and does not fit is passed over; each function stands somewhere first.
    small = tuple(replace(gpu, memory_mib=1000.0) for gpu in gpus)
    result, _ = run(world("bert", "vgg16", gpus=small, burst=1.5), many)
    assert sorted(result.meta["warm_at_start"]) == [[0, 1], [1, 0]]
    # Where there is no room for one of each, the one with the most work for its memory comes first.
    result, _ = run(world("bert", "vgg16", gpus=small[:1], burst=1.5), many)
    assert result.meta["warm_at_start"] == [[1, 0]]


def test_idle_instances_make_room_least_recently_used_first() -> None:
    """Memory for two instances: the third function drives out the one that was used longer ago."""
    functions = ("vgg16", "deepvit", "resnet50")
    memory = sum(world(*functions).memory_mib(Function(name=name, model=name)) for name in functions[:2]) + 1
    small = world(*functions, gpus=(Gpu(name="gpu0", memory_mib=memory),), keep_warm=0)

    _, policy = run(
        small, trace((0.0, "vgg16"), (3.0, "deepvit"), (6.0, "resnet50"), functions=functions, duration_s=9.0)
    )

    last = policy.reports()[-1][1]
    assert sorted(name for name, _, _ in last.warm) == ["deepvit", "resnet50"]
    assert last.memory_used <= memory


def test_what_finds_no_slot_comes_back_and_fails_after_its_attempts() -> None:
    one = world("bert", gpus=(Gpu(name="gpu0", slots=1),))

    result, policy = run(one, trace((0.1, "bert"), (0.1, "bert"), functions=["bert"]))

    assert result.status.tolist() == [SUCCEEDED, FAILED]
    assert result.attempts.tolist() == [1, 2]
    assert result.meta["refused_dispatches"] == 2
    back = [event for _, event in policy.heard if isinstance(event, InvocationArrived) and event.attempt]
    assert [(event.id, event.attempt) for event in back] == [("000000001", 1)]


def test_an_idle_instance_is_offloaded_after_its_time() -> None:
    short = world("bert", keep_warm=0, functions=(Function(name="bert", model="bert", keep_alive_s=1.0),))

    _, policy = run(short, trace((0.0, "bert"), (9.0, "bert"), functions=["bert"], duration_s=10.0))

    assert any(not report.warm for now, report in policy.reports() if 4.0 < now < 9.0)


def test_invocations_of_one_batch_run_together() -> None:
    class Pairs(AtOnce):
        def react(self, now: float, events: Sequence[Event]) -> list[Decision]:
            arrived = [event for event in events if isinstance(event, InvocationArrived)]
            return [dispatch("bert", "gpu0", [(event.id, 0) for event in arrived])] if arrived else []

    batched = world("bert", functions=(Function(name="bert", model="bert", max_batch=8),))
    result, _ = run(batched, trace((0.1, "bert"), (0.1, "bert"), functions=["bert"]), Pairs())

    # Two rows: demand 0.7 x 2^0.4, and twice the work.
    demand = 0.7 * 2**0.4
    assert result.run_s.tolist() == pytest.approx([0.037 * 2 * 0.7 / demand] * 2)


def test_dispatches_and_reports_can_be_late() -> None:
    late = world("bert", dispatch_s=0.02, monitor_delay_s=0.1)

    result, policy = run(late, trace((0.1, "bert"), functions=["bert"]))

    assert result.start_s.tolist() == pytest.approx([0.12])
    assert {round(now - report.at, 6) for now, report in policy.reports() if now} == {0.1}


# ---- failures --------------------------------------------------------------------------------------------------------


def test_what_ran_on_a_lost_gpu_instance_comes_back_and_runs_again() -> None:
    lossy = world("segnet", failures=(Failure(gpu="gpu0", at_s=0.12, seconds=1.0),), lost_s=2.0)

    result, policy = run(lossy, trace((0.1, "segnet"), functions=["segnet"], duration_s=4.0))

    assert result.attempts.tolist() == [2]
    assert result.start_s.tolist() == pytest.approx([2.12])
    assert result.gpus[0, 0] == pytest.approx(3.0)
    assert not [event for _, event in policy.heard if isinstance(event, GpuLost)]


def test_a_long_loss_is_told_and_dispatches_into_it_are_lost_too() -> None:
    lossy = world("segnet", failures=(Failure(gpu="gpu0", at_s=0.12, seconds=50.0),), lost_s=2.0)

    result, policy = run(lossy, trace((0.1, "segnet"), (1.0, "segnet"), functions=["segnet"], duration_s=4.0))

    assert next((now, event.gpu) for now, event in policy.heard if isinstance(event, GpuLost)) == (
        pytest.approx(2.12),
        "gpu0",
    )
    assert result.status.tolist() == [FAILED, FAILED]


# ---- what a report says ----------------------------------------------------------------------------------------------


def test_reports_say_what_the_monitor_saw() -> None:
    _, policy = run(world("bert", training=Training(model="vgg16", batch=64)), trace((0.6, "bert"), functions=["bert"]))

    training = (1 + 0.2 * 0.45 * 0.35) * 1.25**1.3 * 1.01
    first, second, third = (report for now, report in policy.reports() if now <= 1.0)
    (alone,) = read("training", "vgg16", 64, (0.55,), 0)
    assert alone != 0.55
    assert (first.utilisation, first.function_utilisation, first.job_degradation) == (alone, 0.0, None)
    assert (second.utilisation, second.job_degradation) == (pytest.approx(alone), pytest.approx(0.0))
    busy, share = 0.037 * training, 0.70 / 1.25
    assert third.utilisation == pytest.approx(
        alone + 2 * busy * (share - share * alone / 0.55 + (1 - 0.55) / 0.55 * alone)
    )
    assert third.function_utilisation == pytest.approx(2 * busy * share)
    assert third.job_degradation == pytest.approx(busy * (training - 1))
    assert (third.jobs, third.workloads, third.device) == (1, ["vgg16/paper/training/64"], "simulated RTX 3090")


# ---- what must hold of every run -------------------------------------------------------------------------------------


def busy_world() -> World:
    models = ("vgg16", "bert", "segnet", "deepfm")
    return World(
        name="busy",
        gpus=(
            Gpu(name="gpu0", memory_mib=8_192, slots=3, training=Training(model="mobilenet", batch=16)),
            Gpu(name="gpu1", memory_mib=4_096, slots=2),
            Gpu(name="gpu2", memory_mib=10_240, slots=4, sevenths=3, training=Training(model="roberta", batch=16)),
        ),
        functions=tuple(Function(name=model, model=model) for model in models),
        failures=(Failure(gpu="gpu1", at_s=2.0, seconds=3.0), Failure(gpu="gpu0", at_s=5.0, seconds=1.0)),
        lost_s=1.0,
    )


@pytest.mark.parametrize("seed", range(4))
def test_every_invocation_ends_whatever_a_policy_does(seed: int) -> None:
    """
    Losses, refusals, evictions and a policy without sense: nothing is lost or counted twice, memory and slots hold
    (else it raises).
    """
    place = busy_world()
    generated = traces.generated("bursty", place, rate_per_s=60, seconds=8, seed=seed)

    result = simulate(place, generated, lambda one: Reckless(one), seed=seed)

    assert (result.status >= SUCCEEDED).all()
    ran = result.status == SUCCEEDED
    assert np.isfinite(result.run_s[ran]).all() and np.isnan(result.run_s[~ran]).all()
    assert (result.dispatch_s[ran] >= result.arrival_s[ran]).all()
    assert (result.start_s[ran] >= result.dispatch_s[ran]).all()
    assert (result.end_s[ran] - result.start_s[ran]).tolist() == pytest.approx(result.run_s[ran].tolist())
    assert result.attempts.max() <= 2
    alive = result.gpus[:, 0]
    assert alive.tolist() == pytest.approx([7.0, 5.0, 8.0])
    assert (result.gpus[:, 3] <= alive + 1e-9).all()
    assert (result.gpus[:, 6] <= result.gpus[:, 5] + 1e-9).all()


def test_no_more_batches_run_than_slots_allow() -> None:
    place = busy_world()
    result = simulate(
        place, traces.generated("poisson", place, rate_per_s=80, seconds=6, seed=1), lambda one: Reckless(one), seed=1
    )

    for index, gpu in enumerate(place.gpus):
        here = (result.gpu == index) & (result.status == SUCCEEDED)
        edges = sorted([(at, 1) for at in result.start_s[here]] + [(at, -1) for at in result.end_s[here]])
        level = np.cumsum([step for _, step in edges])
        assert level.max(initial=0) <= gpu.slots


@pytest.mark.parametrize("name", ["reckless", "smore"])
def test_same_seed_same_bytes(name: str) -> None:
    place = busy_world()
    generated = traces.generated("gamma", place, rate_per_s=40, seconds=4, seed=3)
    make = (lambda seed: Reckless(seed)) if name == "reckless" else policies.factory(name)

    one, other = (simulate(place, generated, make, seed=3, name=name).encode() for _ in range(2))

    assert one == other
    assert simulate(place, generated, make, seed=4, name=name).encode() != one


def test_a_result_is_read_back(tmp_path: Path) -> None:
    result, _ = run(world("bert"), trace((0.1, "bert"), functions=["bert"]))

    result.write(tmp_path / "result.npz")
    again = Result.read(tmp_path / "result.npz")

    assert again.encode() == result.encode()
    assert (again.functions, again.meta["policy"]) == (("bert",), "")


def test_the_end_of_what_waits_is_the_policy_s() -> None:
    class Refuses(AtOnce):
        def react(self, now: float, events: Sequence[Event]) -> list[Decision]:
            return [
                End(function="bert", id=event.id, action="expire", cause=Cause.DEADLINE_EXPIRED, why=EndedFor.TOO_LATE)
                for event in events
                if isinstance(event, InvocationArrived)
            ]

    result, _ = run(world("bert"), trace((0.1, "bert"), functions=["bert"]), Refuses())

    assert result.status.tolist() == [EXPIRED]
    assert result.attempts.tolist() == [0]


class Silent(Reacting):
    def react(self, now: float, events: Sequence[Event]) -> list[Decision]:
        return []


class Twice(Reacting):
    def react(self, now: float, events: Sequence[Event]) -> list[Decision]:
        return [
            dispatch("bert", "gpu0", [(event.id, 0)])
            for event in events
            if isinstance(event, InvocationArrived)
            for _ in range(2)
        ]


@pytest.mark.parametrize(
    ("policy", "why"), [(Silent, "left 1 invocations"), (Twice, "was dispatched as attempt 0: it is held")]
)
def test_a_policy_that_contradicts_itself_is_found(policy: type[object], why: str) -> None:
    with pytest.raises(Inconsistent, match=why):
        run(world("bert"), trace((0.1, "bert"), functions=["bert"], deadline_s=1.0), policy())


def test_a_trace_of_unknown_functions_is_refused() -> None:
    with pytest.raises(BadTrace, match="'gpt' is none of the world's functions"):
        run(world("bert"), trace((0.1, "gpt"), functions=["gpt"]))


@pytest.mark.parametrize("seconds", [1.0, 600.0])
def test_an_empty_trace_is_an_exclusive_run(seconds: float) -> None:
    without = trace((0.1, "bert"), functions=["bert"], duration_s=seconds).none()
    result, _ = run(world("bert", training=Training(model="vgg16", batch=64)), without)

    assert (result.gpus[0, :5] / seconds).tolist() == pytest.approx([1.0, 1.0, 1.0, 0.55, 0.0])


# ---- budgets in a closed loop ----------------------------------------------------------------------------------------


class Throttles(AtOnce):
    """Sets the gate as it is told to: time → duty."""

    def __init__(self, duties: dict[float, float]) -> None:
        super().__init__()
        self._duties = duties

    def react(self, now: float, events: Sequence[Event]) -> list[Decision]:
        due = [at for at in self._duties if at <= now]
        steps: list[Decision] = [
            Throttle(gpu="gpu0", step=Step.DUTY_25, duty=self._duties.pop(at), job="job-gpu0", factor=1.0) for at in due
        ]
        return steps + super().react(now, events)


def test_a_throttled_gate_lets_start_in_the_first_part_of_a_second() -> None:
    arrivals = trace(
        (0.1, "deepfm"), (1.1, "deepfm"), (1.5, "deepfm"), (2.3, "deepfm"), functions=["deepfm"], duration_s=6.0
    )

    result, _ = run(world("deepfm"), arrivals, Throttles({0.5: 0.25, 2.0: 0.0, 4.5: 1.0}))

    assert result.start_s.tolist() == pytest.approx([0.1, 1.1, 2.0, 4.5])


def test_offloaded_instances_are_gone() -> None:
    class Offloads(AtOnce):
        def react(self, now: float, events: Sequence[Event]) -> list[Decision]:
            return [Offload(function="deepfm", revision=1, gpu="gpu0")] if now == 0 else super().react(now, events)

    result, policy = run(world("deepfm", keep_warm=0), trace((0.4, "deepfm"), functions=["deepfm"]), Offloads())

    assert result.cold.tolist() == [True]
    assert policy.reports()[0][1].memory_used == 0


def test_prewarms_and_offloads_are_performed_by_their_counts() -> None:
    """
    Two are loaded and kept beyond their keep-alive of 1 s until 15 s; at 5 s an offload leaves one of them; a second
    command to hold two that are there loads nothing.
    """

    class Counts(AtOnce):
        def react(self, now: float, events: Sequence[Event]) -> list[Decision]:
            decisions = super().react(now, events)
            if now in (0, 4.0):
                decisions.append(Prewarm(function="deepfm", revision=1, gpu="gpu0", instances=2, until_at=15.0))
            elif any(isinstance(event, InvocationArrived) for event in events):
                decisions.insert(0, Offload(function="deepfm", revision=1, gpu="gpu0", keep=1))
            return decisions

    brief = world("deepfm", functions=(Function(name="deepfm", model="deepfm", keep_alive_s=1.0),), keep_warm=0)
    result, policy = run(brief, trace((5.0, "deepfm"), functions=["deepfm"], duration_s=20.0), Counts())

    def resident(at: float) -> int:
        counts = [report.warm[0][2] if report.warm else 0 for now, report in policy.reports() if now <= at]
        return int(counts[-1])

    assert [resident(at) for at in (4.9, 5.9, 14.9, 19.0)] == [2, 1, 1, 0]
    assert result.cold.tolist() == [False]


def test_a_prewarmer_is_woken_and_reported_to() -> None:
    """A rule that always wants one instance has it loaded before the only invocation, and kept after its keep-alive."""
    knobs = PrewarmKnobs(rules=lambda mode, demand: Always(), foresees=frozenset(), share=1.0)
    brief = world("deepfm", functions=(Function(name="deepfm", model="deepfm", keep_alive_s=1.0),), keep_warm=0)
    arrivals = trace((200.0, "deepfm"), functions=["deepfm"], duration_s=201.0)
    result, _ = run(brief, arrivals, Engine(preset("smore-product"), prewarmer=Prewarmer(knobs)))

    assert (result.status.tolist(), result.cold.tolist()) == ([SUCCEEDED], [False])
    assert result.gpus[0][GPU_COLUMNS.index("loaded_s")] > 100.0


def test_a_policy_is_told_of_a_training_s_speed_what_was_measured_and_nothing_before() -> None:
    """
    Of closed iterations those of windows alone, which have the noise of their few iterations: a reference that is the
    truth, or that is there from the start, is one that no worker has.
    """
    noisy = replace(PLAIN, noise=0.05)
    gpu = Gpu(name="gpu0", training=Training(model="vgg16", batch=64), budget=0.05)
    place = world("bert", closed_loop=True, probe_share=0.1, interference_model=noisy, gpus=(gpu,))
    _, policy = run(place, trace((0.6, "bert"), functions=["bert"], duration_s=120.0))

    told = [(now, event.losses[0]) for now, event in policy.reports()]
    assert {(loss.id, loss.budget) for _, loss in told} == {("job-gpu0", 0.05)}
    first = next(now for now, loss in told if loss.closed is not None)
    windows: dict[float, ClosedWindow] = {}
    for _, loss in told:
        windows |= {window.start: window for window in loss.windows}
        assert loss.closed == reference(list(windows.values())[-5:])
    assert len(windows) > 5 and first > min(window.end for window in windows.values()) > 20 * 0.1
    truth = place.interference_model.use("vgg16", "training", 64).seconds
    references = [loss.closed.mean for _, loss in told if loss.closed is not None]
    assert truth not in references and references == pytest.approx([truth] * len(references), rel=0.05)
    recent = [loss.recent for _, loss in told if loss.recent is not None]
    assert 0.02 < np.mean([each.sd / each.mean for each in recent[10:]]) < 0.08
    # Where no window is ever closed there is none.
    _, policy = run(replace(place, probe_share=0.0), trace((0.6, "bert"), functions=["bert"], duration_s=20.0))
    assert {event.losses[0].closed for _, event in policy.reports()} == {None}


def test_an_iteration_takes_the_time_that_its_work_takes_beside_what_runs() -> None:
    """Whatever runs for a part of it: the mean of the iterations is the time over the work that was done in it."""
    gpu = Gpu(name="gpu0", training=Training(model="vgg16", batch=64))
    arrivals = [(0.1 * number, "bert") for number in range(50)]
    result, policy = run(
        world("bert", gpus=(gpu,), closed_loop=True), trace(*arrivals, functions=["bert"], duration_s=5.0)
    )

    (loss,) = policy.reports()[-1][1].losses
    alive_s, work_s = (result.gpus[0, GPU_COLUMNS.index(name)] for name in ("alive_s", "work_s"))
    assert loss.recent is not None
    alone = PLAIN.use("vgg16", "training", 64).seconds
    assert loss.recent.mean == pytest.approx(alone * alive_s / work_s, rel=0.02)


def test_a_run_that_outlasts_a_window_stands_still_in_it() -> None:
    """As many seconds as it stands still it ends later, and no iteration of the window met it."""
    gpu = Gpu(name="gpu0", training=Training(model="mobilenet", batch=64))
    long = replace(PLAIN, interference=False)
    place = world("bert", gpus=(gpu,), closed_loop=True, probe_share=0.1, interference_model=long)
    rows = replace(place, functions=(Function(name="bert", model="bert", batch=512),))
    result, policy = run(rows, trace((0.0, "bert"), functions=["bert"], duration_s=60.0))

    windows = {window.start: window for _, event in policy.reports() for window in event.losses[0].windows}
    within = [window for window in windows.values() if window.end < result.end_s[0]]
    assert within
    stood = sum(window.end - window.start for window in within)
    assert result.run_s[0] == pytest.approx(rows.use(rows.functions[0], 512).seconds + stood)


def test_the_gate_refuses_what_would_end_too_late() -> None:
    """
    Two wait already when the gate is told, a third has come since: 0.3 s and 0.1 s more, against a deadline 0.35 s
    away.
    """

    class Full(AtOnce):
        def react(self, now: float, events: Sequence[Event]) -> list[Decision]:
            self.heard += [(now, event) for event in events]
            waiting = [event for now, event in self.heard if isinstance(event, InvocationArrived)]
            if any(isinstance(event, AdmissionDue) for event in events):
                bounds = FinishBounds(0.1 * (len(waiting) + 1), 0.01, 0.1, len(waiting))
                return [PublishAdmission(bounds={"bert": bounds}, priorities={}, pressed=False)]
            return [dispatch("bert", "gpu0", [(event.id, 0)]) for event in waiting] if now == 2.0 else []

    arrivals = trace(*((0.2, "bert"),) * 2, *((1.05, "bert"),) * 3, functions=["bert"])
    given = replace(arrivals, deadline_s=np.array([50.0, 50.0, 0.35, 0.35, 50.0]))
    result, _ = run(world("bert", gate_s=1.0, round_s=0.5), given, Full())

    assert (result.status == REFUSED).tolist() == [False, False, False, True, False]


def test_closed_windows_start_nothing_and_are_told() -> None:
    training = Training(model="mobilenet", batch=64)
    place = world("deepfm", gpus=(Gpu(name="gpu0", training=training),), probe_share=0.3, monitor_s=0.05)
    arrivals = [(1.0 * number, "deepfm") for number in range(100)]
    result, policy = run(place, trace(*arrivals, functions=["deepfm"], deadline_s=1e6, duration_s=100.0))

    told = [(now, report.closed) for now, report in policy.reports()]
    assert 0.15 < np.mean([closed for now, closed in told if now < 100.0]) < 0.45
    assert (result.status == SUCCEEDED).all()
    late = result.start_s > result.dispatch_s + 1e-9
    assert 0.15 < late.mean() < 0.45


def test_closed_windows_show_what_runs_cost() -> None:
    """
    A function that is at work most of the time beside a training: what windows show is what it really lost while they
    were open.
    """
    gpu = Gpu(name="gpu0", training=Training(model="vgg16", batch=64))
    place = world("bert", gpus=(gpu,), probe_share=0.1, closed_loop=True)
    arrivals = [(0.06 * number, "bert") for number in range(3400)]
    result, policy = run(place, trace(*arrivals, functions=["bert"], deadline_s=1e6, duration_s=200.0))

    windows = {
        window.start: window for _, report in policy.reports() for job in report.losses for window in job.windows
    }
    assert len(windows) > 10
    lost = 1.0 - sum(window.closed_s for window in windows.values()) / sum(window.open_s for window in windows.values())
    alive_s, slow_s, work_s = (result.gpus[0, GPU_COLUMNS.index(name)] for name in ("alive_s", "slow_s", "work_s"))
    assert alive_s < slow_s
    assert lost == pytest.approx(1.0 - work_s / alive_s, rel=0.2)


@pytest.mark.parametrize("bias", [0.25, 4.0])
def test_a_predictor_that_errs_is_corrected(bias: float) -> None:
    """
    Predicted losses are a quarter, or four times, of what they are: under overload budgets are kept all the same, and
    made use of.
    """
    trace_ = {"rate_per_min": 6000, "seconds": 80}
    belief = {"kind": "exact", "updates": 0, "bias": bias}
    plan = Plan(preset="overload", policies=("smore-product",), seeds=(0,), predictor=belief, trace=trace_)
    _, row, _ = run_cell(plan, plan.cells()[0])
    assert 0.04 < row["smore-product"]["train_loss"] < 0.1
    assert row["smore-product"]["dsr_accepted"] > 0.92
