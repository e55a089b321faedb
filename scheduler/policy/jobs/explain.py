"""Why a job waits, in words."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final, assert_never

from scheduler.policy.jobs.decisions import JobRefusal, PairRefusal, Wait
from scheduler.policy.jobs.fleet import Fleet, Gpu, Needs
from scheduler.policy.jobs.job import Job, Phase
from scheduler.policy.jobs.knobs import JobKnobs
from scheduler.policy.jobs.plan import Reservation
from scheduler.policy.jobs.projects import Projects
from scheduler.policy.jobs.sharing import Candidate, Doubt, room_mib
from smore.domain.job import JobPlace

_WORDS: Final[Mapping[JobRefusal, str]] = {
    JobRefusal.LOST: "silent",
    JobRefusal.ATTACHED: "with a training that was started elsewhere",
    JobRefusal.BUSY: "busy",
    JobRefusal.KEPT: "free but kept",
    JobRefusal.DEVICE: "of another kind",
    JobRefusal.MEMORY: "with too little memory",
    JobRefusal.MIG: "slices, which form no gangs",
    JobRefusal.PINNED: "not among those it is pinned to",
    JobRefusal.HOME: "on other nodes than its checkpoint",
}
#: How many GPU instances refuse a job for what, and that in words, by what it needs and whether some are kept for
#: another one.
Refused = dict[tuple[Needs, bool], tuple[Counter[JobRefusal], str]]


def why(
    fleet: Fleet,
    projects: Projects,
    kept: Reservation | None,
    job: Job,
    jobs: Mapping[str, Job],
    at: float,
    counted: Refused,
    *,
    in_order: bool,
) -> tuple[Wait, str]:
    """
    The first reason that stands against a job, and a sentence for its owner; ``jobs``: all, by id. Times in words are from
    ``at`` on.
    ``counted`` saves counting twice; it is good for one moment. ``in_order``: nobody passes whoever is first.
    """
    needs = job.needs
    if job.phase is Phase.HELD:
        return Wait.HELD, "It is held until somebody releases it."
    if job.phase is Phase.RESTING:
        pause_s = max(0.0, job.not_before - at)
        return Wait.BACK_OFF, f"Its last attempt ended; it may be started again in {pause_s:.0f} s."
    most = projects.most(job.spec.project)
    if projects.room(job.spec.project) < needs.size:
        have = projects.held[job.spec.project]
        held = f"{most:g} GPU instance{'' if most == 1 else 's'}"
        return Wait.LIMIT, f"Its project may hold {held} and holds {have}; it needs {needs.size}."
    others = kept.gpus if kept is not None and kept.id != job.spec.id else frozenset[str]()
    if (needs, bool(others)) not in counted:
        refused = fleet.refused(needs, others)
        counted[needs, bool(others)] = refused, _counted(refused, fleet, needs, others)
    refused, counts = counted[needs, bool(others)]
    if needs.pins:
        return Wait.PINNED, f"It is pinned to {', '.join(needs.pins)}: {_pins(fleet, job, jobs, others)}."
    free = len(fleet.gpus) - sum(refused.values())
    able = free + refused[JobRefusal.BUSY] + refused[JobRefusal.KEPT]
    if needs.home and able < needs.size:
        return Wait.HOME, f"It waits for {needs.home}, where its checkpoint lies: {counts}."
    if able < needs.size or not any(pool.open >= needs.size for _, pool in fleet.pools_for(needs)):
        return (
            Wait.TOO_FEW,
            f"It needs {_size(job)}, and there are not so many that take jobs: {counts or 'none reports'}.",
        )
    if in_order and kept is not None and kept.id != job.spec.id:
        return Wait.ORDER, f"It waits behind {_name(job, jobs, kept.id)}, and in this setting nobody passes."
    if kept is not None and refused[JobRefusal.KEPT] and free + refused[JobRefusal.KEPT] >= needs.size > free:
        until = max(0.0, kept.at - at)
        return Wait.KEPT, (
            f"{refused[JobRefusal.KEPT]} GPU instances are kept for {_name(job, jobs, kept.id)}, which is first and expected"
            f" to start in {until:.0f} s; this job may take longer than that ({job.length.most_s:.0f} s in one case of ten)."
        )
    if free < needs.size:
        return Wait.BUSY, f"It needs {_size(job)}: {_count(free)} free; {counts}."
    return Wait.ORDER, f"It needs {_size(job)} of one kind and waits for its turn: {_count(free)} free; {counts}."


def _count(free: int) -> str:
    return f"{free or 'none'} {'is' if free < 2 else 'are'}"


def _size(job: Job) -> str:
    needs = job.needs
    words = f"{needs.size} GPU instance{'s' if needs.size > 1 else ''}"
    if needs.device:
        words += f" of {needs.device}"
    return words + (f" with {needs.memory_mib:.0f} MiB" if needs.memory_mib else "")


def _counted(refused: Mapping[JobRefusal, int], fleet: Fleet, needs: Needs, kept: frozenset[str]) -> str:
    """``refused`` in words; of those that are closed, why (:class:`~scheduler.policy.jobs.events.GpuSeen`)."""
    words: list[str] = []
    for code, count in sorted(refused.items()):
        if code is JobRefusal.CLOSED:
            closed = Counter(
                gpu.seen.closed
                for gpu in fleet.gpus.values()
                if gpu.seen is not None and fleet.refusal(gpu, needs, kept) is code
            )
            words += [f"{n} {why}" for why, n in sorted(closed.items())]
        elif count:
            words.append(f"{count} {_WORDS[code]}")
    return ", ".join(words)


def _pins(fleet: Fleet, job: Job, jobs: Mapping[str, Job], kept: frozenset[str]) -> str:
    """What stands against each GPU instance that a job is pinned to."""
    parts = []
    for name in job.needs.pins:
        gpu = fleet.gpus.get(name) or Gpu(name)
        code = fleet.refusal(gpu, job.needs, kept)
        if code is not None:
            parts.append(f"{name} {_stands(gpu, job, jobs, code)}")
    return "; ".join(parts) or "all of them are free, and it is next"


def places(fleet: Fleet, kept: Reservation | None, job: Job, jobs: Mapping[str, Job]) -> tuple[JobPlace, ...]:
    """What stands against a job that waits on each GPU instance; ``jobs``: all, by id."""
    others = kept.gpus if kept is not None and kept.id != job.spec.id else frozenset[str]()
    answers = []
    for name, gpu in sorted(fleet.gpus.items()):
        code = fleet.refusal(gpu, job.needs, others)
        message = _stands(gpu, job, jobs, code) if code is not None else "is free"
        if code is JobRefusal.KEPT and kept is not None:
            message += f", {_name(job, jobs, kept.id)}"
        answers.append(JobPlace(gpu=name, refused=code, message=message))
    return tuple(answers)


def _stands(gpu: Gpu, job: Job, jobs: Mapping[str, Job], code: JobRefusal) -> str:
    """Why a GPU instance does not take a job, to be read behind its name."""
    seen, needs = gpu.seen, job.needs
    if seen is None:
        return "is silent"
    match code:
        case JobRefusal.CLOSED:
            return f"is {seen.closed}"
        case JobRefusal.ATTACHED:
            return "has a training that was started elsewhere"
        case JobRefusal.BUSY:
            return f"trains {', '.join(_name(job, jobs, id_) for id_ in gpu.jobs)}"
        case JobRefusal.MEMORY:
            return f"has {seen.memory_mib:.0f} MiB"
        case JobRefusal.KEPT:
            return "is kept for another job"
        case JobRefusal.DEVICE:
            return f"is another device: {seen.device}"
        case JobRefusal.MIG:
            return "is a slice, and slices form no gangs"
        case JobRefusal.PINNED:
            return f"is none of those that it is pinned to: {', '.join(needs.pins)}"
        case JobRefusal.HOME:
            return f"is on {seen.node}, and its checkpoint lies on {needs.home}"
        case JobRefusal.LOST:
            return "is silent"
    assert_never(code)


#: What stands against one job that runs as a host, and against several.
DOUBTS: Final[Mapping[PairRefusal, tuple[str, str]]] = {
    PairRefusal.STOPPING: ("is about to end", "are about to end"),
    PairRefusal.FULL: ("has no room for another one", "have no room for another one"),
    PairRefusal.FEW: ("has too few GPU instances for it", "have too few GPU instances for it"),
    PairRefusal.KEPT: ("is on GPU instances that are kept", "are on GPU instances that are kept"),
    PairRefusal.UNWILLING: ("admits nobody beside it", "admit nobody beside them"),
    PairRefusal.UNPROFILED: ("was never profiled beside it", "were never profiled beside it"),
    PairRefusal.WORSE: (
        "was much worse beside its kind than predicted",
        "were much worse beside its kind than predicted",
    ),
    PairRefusal.SHARE: ("could slow it by more than its owner allows", "could slow it by more than its owner allows"),
    PairRefusal.ITS_SHARE: (
        "could be slowed by more than its owner allows",
        "could be slowed by more than their owners allow",
    ),
    PairRefusal.MEMORY_UNKNOWN: ("does not say how much memory it needs", "do not say how much memory they need"),
    PairRefusal.PROMISED: ("would no longer surely end by its promise", "would no longer surely end by their promises"),
    PairRefusal.MEMORY: ("leaves too little memory", "leave too little memory"),
    PairRefusal.LITTLE: ("would do too little together with it", "would do too little together with it"),
    PairRefusal.WAITING: (
        "would end with it later on average than if it waited",
        "would end with it later on average than if it waited",
    ),
}


def called(job: Job, other: Job) -> str:
    """What the owner of ``job`` calls another one: those of other projects have no name."""
    same = other.spec.project == job.spec.project and other.spec.name
    return other.spec.name if same else other.spec.id


def _name(job: Job, jobs: Mapping[str, Job], id_: str) -> str:
    """What the owner of ``job`` calls the one of this id."""
    return called(job, jobs[id_]) if id_ in jobs else id_


def runs(job: Job, others: Sequence[Job]) -> str:
    """What a running job does, ``others`` beside it."""
    if not others:
        return "It runs."
    names = ", ".join(sorted(called(job, other) for other in others))
    source = "measured" if job.measured else "expected"
    held = f", held back to {100 * job.part:.0f} % of the time" if job.part < 1 else ""
    return f"It runs beside {names}, at {1 / job.slowdown:.2f} of its speed ({source}{held})."


def promised_to(job: Job, others: Sequence[Job]) -> str:
    """For whom free GPU instances stay free."""
    names = ", ".join(sorted("its own" if other is job else f"that of {called(job, other)}" for other in others))
    return f"It needs {_size(job)}, which are free; if it started now, an end that was promised would not be kept: {names}."


def unable_to_share(job: Job) -> str:
    """What its owner left out, so that it starts beside nobody, though that is allowed."""
    missing = [
        word
        for word, said in (("--workload", job.spec.request.workload), ("--memory", job.spec.memory_mib))
        if not said
    ]
    return f"It starts beside nobody, because its owner did not say its {' and '.join(missing)}."


def beside_nobody(knobs: JobKnobs, fleet: Fleet, job: Job, doubt: Doubt) -> str:
    """Why a job that may share starts beside nobody."""
    if not doubt.refused:
        words = ""
    else:
        counts = ", ".join(f"{count} {DOUBTS[code][count > 1]}" for code, count in sorted(doubt.refused.items()))
        words = f" Of the {'other ' if doubt.best is not None else ''}jobs that run, {counts}."
    best = doubt.best
    if best is None or doubt.why is None:
        return words.strip() or "Nobody runs beside whom it could start."
    own, its, host = best.own, best.its, called(job, best.host)
    return (
        f"Beside {host} it would run at {1 / own.expected:.2f} and {host} at"
        f" {1 / its.expected:.2f} of their speeds (in one case of ten below {1 / own.most:.2f} and"
        f" {1 / its.most:.2f}); refused because {_because(knobs, fleet, job, doubt, best, doubt.why)}.{words}"
    )


def _because(knobs: JobKnobs, fleet: Fleet, job: Job, doubt: Doubt, best: Candidate, why: PairRefusal) -> str:
    """What stands against a pair, for the job's owner."""
    host = called(job, best.host)
    match why:
        case PairRefusal.MEMORY:
            seen = fleet.gpus[best.names[0]].seen
            there = seen.memory_mib if seen is not None else 0.0
            context = (
                f" and two contexts of {seen.context_mib:.0f} MiB" if seen is not None and seen.context_mib else ""
            )
            most_mib = room_mib(knobs, seen) - best.host.occupied_mib
            fits = next((way for way in job.spec.not_allowed if way.memory_mib <= most_mib), None)
            hint = (
                f" (with --micro-batches 1,{fits.count} it would need {fits.memory_mib:.0f} MiB and fit)"
                if fits
                else ""
            )
            return (
                f"{doubt.parts.memory_mib:.0f} MiB and {best.host.occupied_mib:.0f} MiB do not fit into {there:.0f} MiB with"
                f" {100 * knobs.spare_part:.0f} %{context} to spare{hint}"
            )
        case PairRefusal.LITTLE:
            part = knobs.even_part if best.gain >= 1 else knobs.short_part
            return (
                f"together they would do {best.gain:.2f} times the work of one, {knobs.least_gain:g} are asked for"
                f" ({knobs.least_gain_alike:g} where nobody would do more with either), and it is not short enough to be"
                f" through within {100 * part:.0f} % of its wait"
            )
        case PairRefusal.WAITING:
            return "on average both would end later than if it waited"
        case PairRefusal.SHARE:
            return f"it could take up to {best.own.most:.2f} times as long, more than its owner allows"
        case PairRefusal.ITS_SHARE:
            return f"{host} could take up to {best.its.most:.2f} times as long, more than its owner allows"
        case PairRefusal.WORSE:
            return "such a pair was measured to be worse than its owner allows"
        case PairRefusal.KEPT:
            return f"the GPU instances of {host} are kept for whoever is first"
        case PairRefusal.PROMISED:
            return f"{host} would no longer surely end by its promise"
        case PairRefusal.FEW:
            return f"there are too few GPU instances beside {host} and others"
        case PairRefusal.MEMORY_UNKNOWN:
            return f"{host} does not say how much memory it needs"
    return f"{host} takes nobody now"
