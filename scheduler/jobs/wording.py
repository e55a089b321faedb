"""What the job scheduler says of trainings, in words: what the rule decides and answers in codes and fields, and what it does."""

from collections.abc import Mapping
from typing import Final, assert_never

from scheduler.policy.jobs.decisions import (
    Doubt,
    Expected,
    Facts,
    Finish,
    GpuPlace,
    JobRefusal,
    Misfit,
    Nearest,
    NotPromised,
    PairRefusal,
    Promised,
    Requeue,
    Start,
    Stop,
    Unfit,
    Unpromised,
    Wait,
)
from scheduler.policy.jobs.events import Ended
from scheduler.policy.jobs.knobs import JobKnobs
from scheduler.policy.jobs.lengths import LengthSource
from scheduler.policy.jobs.spec import Needs
from smore.domain.job import JobPlace, PromiseState
from smore.postgres.jobs import Job

#: How many GPU instances refuse a job, to be read behind their number; of those that are closed, their reports say why.
REFUSED: Final[Mapping[JobRefusal, str]] = {
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
#: The same of one GPU instance, to be read behind its name.
STANDS: Final[Mapping[JobRefusal | None, str]] = {
    None: "is free",
    JobRefusal.LOST: "is silent",
    JobRefusal.CLOSED: "is {seen.closed}",
    JobRefusal.ATTACHED: "has a training that was started elsewhere",
    JobRefusal.BUSY: "trains {trains}",
    JobRefusal.KEPT: "is kept for another job",
    JobRefusal.DEVICE: "is another device: {seen.device}",
    JobRefusal.MEMORY: "has {seen.memory_mib:.0f} MiB",
    JobRefusal.MIG: "is a slice, and slices form no gangs",
    JobRefusal.PINNED: "is none of those that it is pinned to: {pins}",
    JobRefusal.HOME: "is on {seen.node}, and its checkpoint lies on {home}",
}
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
    PairRefusal.SHARE: ("could slow it by more than its owner allows",) * 2,
    PairRefusal.ITS_SHARE: (
        "could be slowed by more than its owner allows",
        "could be slowed by more than their owners allow",
    ),
    PairRefusal.MEMORY_UNKNOWN: ("does not say how much memory it needs", "do not say how much memory they need"),
    PairRefusal.PROMISED: ("would no longer surely end by its promise", "would no longer surely end by their promises"),
    PairRefusal.MEMORY: ("leaves too little memory", "leave too little memory"),
    PairRefusal.LITTLE: ("would do too little together with it",) * 2,
    PairRefusal.WAITING: ("would end with it later on average than if it waited",) * 2,
}
#: The same of the nearest host, to be read behind "because".
BECAUSE: Final[Mapping[PairRefusal, str]] = dict.fromkeys(PairRefusal, "{host} takes nobody now") | {
    PairRefusal.WAITING: "on average both would end later than if it waited",
    PairRefusal.SHARE: "it could take up to {own.most:.2f} times as long, more than its owner allows",
    PairRefusal.ITS_SHARE: "{host} could take up to {its.most:.2f} times as long, more than its owner allows",
    PairRefusal.WORSE: "such a pair was measured to be worse than its owner allows",
    PairRefusal.KEPT: "the GPU instances of {host} are kept for whoever is first",
    PairRefusal.PROMISED: "{host} would no longer surely end by its promise",
    PairRefusal.FEW: "there are too few GPU instances beside {host} and others",
    PairRefusal.MEMORY_UNKNOWN: "{host} does not say how much memory it needs",
}
MISFITS: Final[Mapping[Unfit, str]] = {
    Unfit.LIMIT: "The project may hold {largest:g} GPU instances at a time, and the job asks for {asked}.",
    Unfit.UNSEEN: "No GPU instance {asked} has reported.",
    Unfit.MIG: "MIG instances form no gangs: name one.",
    Unfit.PIN_MEMORY: "One of these GPU instances has {largest:.0f} MiB.",
    Unfit.DEVICE: "No GPU instance{of_kind} has reported.",
    Unfit.MEMORY: "The largest such GPU instance has {largest:.0f} MiB.",
    Unfit.GANG: "There are {largest:g} such GPU instances of one kind that can form a gang.",
}
UNPROMISED: Final[Mapping[Unpromised, str]] = {
    Unpromised.UNKNOWN: "How long it takes is a guess ({source}): say its duration.",
    Unpromised.LENGTH: "By {source} it takes {length.expected_s:.0f} s, and surely no more than {sure_s:.0f} s; until then there"
    " are {left_s:.0f} s.",
    Unpromised.LIMIT: "Promises of its project may be for {most:g} GPU instances at a time, and are for {promised}.",
    Unpromised.OTHERS: "Trainings that run or were promised an end leave it no room until then: {names}.",
    Unpromised.SETTING: "The setting {setting} promises nothing.",
}
SOURCES: Final[Mapping[LengthSource, str]] = {
    LengthSource.MEASURED: "iterations left times their measured time",
    LengthSource.FORMER: "iterations times their time in the last runs of that workload on that device and as many GPU instances",
    LengthSource.PROFILE: "iterations times the profile's time on that device",
    LengthSource.DECLARED: "the duration that its owner said",
    LengthSource.NAME: "the median of the last runs of this name in the project",
    LengthSource.PROJECT: "the median of the project's last runs",
    LengthSource.PLATFORM: "the median of the platform's last runs",
    LengthSource.ASSUMED: "an hour, because nothing is known of it",
}
#: What puts a promise at risk (:class:`~scheduler.policy.jobs.decisions.Pledge`) or breaks it.
RISKS: Final[Mapping[str, str]] = {
    "held": "it is held",
    "beside": "another training beside it slows it",
    "longer": "it takes longer than was sure",
    "closed": "GPU instances are lost, too small, or take no trainings",
    "others": "trainings before it take longer than was sure",
    "host_lost": "a GPU instance that it ran on was lost",
    "failed": "its last attempt failed",
}


# ---- why a job waits -------------------------------------------------------------------------------------------------


def standing(job: Expected, knobs: JobKnobs) -> str:
    """Why a job waits, or how it runs; ``knobs`` of the rule that says so."""
    said = _standing(job)
    if job.doubt is not None:
        said += f" {_beside_nobody(job.doubt, knobs)}"
    elif job.unsaid:
        missing = " and ".join(f"--{name}" for name in job.unsaid)
        said += f" It starts beside nobody, because its owner did not say its {missing}."
    return said


def _standing(job: Expected) -> str:
    facts, needs = job.facts, job.facts.needs
    match job.why:
        case Wait.BUSY:
            return f"It needs {_size(needs)}: {_free(facts)}; {_counted(facts)}."
        case Wait.ORDER if facts.others:
            return f"It waits behind {facts.others[0]}, and in this setting nobody passes."
        case Wait.ORDER:
            return f"It needs {_size(needs)} of one kind and waits for its turn: {_free(facts)}; {_counted(facts)}."
        case Wait.NONE:
            return _runs(facts)
        case Wait.STOPPING:
            return "It is being ended."
        case Wait.HELD:
            return "It is held until somebody releases it."
        case Wait.BACK_OFF:
            return f"Its last attempt ended; it may be started again in {facts.in_s:.0f} s."
        case Wait.LIMIT:
            most = f"{facts.most:g} GPU instance{'' if facts.most == 1 else 's'}"
            return f"Its project may hold {most} and holds {facts.held}; it needs {needs.size}."
        case Wait.PINNED:
            places = "; ".join(f"{place.gpu} {_stands(place)}" for place in facts.places)
            return f"It is pinned to {', '.join(needs.pins)}: {places or 'all of them are free, and it is next'}."
        case Wait.HOME:
            return f"It waits for {needs.home}, where its checkpoint lies: {_counted(facts)}."
        case Wait.TOO_FEW:
            there = _counted(facts) or "none reports"
            return f"It needs {_size(needs)}, and there are not so many that take jobs: {there}."
        case Wait.KEPT:
            kept = sum(count for code, _, count in facts.refused if code is JobRefusal.KEPT)
            return (
                f"{kept} GPU instance{' is' if kept == 1 else 's are'} kept for {facts.others[0]}, which is first and expected"
                f" to start in {facts.in_s:.0f} s; this job may take longer than that ({job.length.most_s:.0f} s in one case of ten)."
            )
        case Wait.PROMISED:
            names = ", ".join(f"that of {name}" if name else "its own" for name in facts.others)
            return f"It needs {_size(needs)}, which are free; if it started now, an end that was promised would not be kept: {names}."
    assert_never(job.why)


def _runs(facts: Facts) -> str:
    if not facts.others:
        return "It runs."
    source = "measured" if facts.measured else "expected"
    held = f", held back to {100 * facts.part:.0f} % of the time" if facts.part < 1 else ""
    return f"It runs beside {', '.join(facts.others)}, at {1 / facts.slowdown:.2f} of its speed ({source}{held})."


def _free(facts: Facts) -> str:
    return f"{facts.free or 'none'} {'is' if facts.free < 2 else 'are'} free"


def _size(needs: Needs) -> str:
    words = f"{needs.size} GPU instance{'s' if needs.size > 1 else ''}"
    if needs.device:
        words += f" of {needs.device}"
    return words + (f" with {needs.memory_mib:.0f} MiB" if needs.memory_mib else "")


def _counted(facts: Facts) -> str:
    return ", ".join([f"{count} {closed or REFUSED[code]}" for code, closed, count in facts.refused])


def job_place(place: GpuPlace) -> JobPlace:
    """A GPU instance for a job that waits, as it is shown."""
    words = f"{_stands(place)}, {place.kept_for}" if place.kept_for else _stands(place)
    return JobPlace(gpu=place.gpu, refused=place.refused, message=words)


def _stands(place: GpuPlace) -> str:
    needs, refused = place.needs, JobRefusal.LOST if place.seen is None else place.refused
    trains, pins = ", ".join(place.trains), ", ".join(needs.pins)
    return STANDS[refused].format(seen=place.seen, trains=trains, pins=pins, home=needs.home)


# ---- beside whom it starts -------------------------------------------------------------------------------------------


def _beside_nobody(doubt: Doubt, knobs: JobKnobs) -> str:
    near = doubt.nearest
    counts = ", ".join(f"{count} {DOUBTS[code][count > 1]}" for code, count in sorted(doubt.refused.items()))
    others = f"Of the {'other ' if near is not None else ''}jobs that run, {counts}." if counts else ""
    if near is None:
        return others or "Nobody runs beside whom it could start."
    host, own, its = near.host, near.own, near.its
    said = (
        f"Beside {host} it would run at {1 / own.expected:.2f} and {host} at"
        f" {1 / its.expected:.2f} of their speeds (in one case of ten below {1 / own.most:.2f} and"
        f" {1 / its.most:.2f}); refused because {_because(near, knobs)}."
    )
    return f"{said} {others}".strip()


def _because(near: Nearest, knobs: JobKnobs) -> str:
    """What stands against a pair, for the owner of its guest."""
    seen, fits = near.seen, near.fits
    match near.why:
        case PairRefusal.MEMORY:
            context = f" and two contexts of {seen.context_mib:.0f} MiB" if seen.context_mib else ""
            way = (
                f" (with --micro-batches 1,{fits.count} it would need {fits.memory_mib:.0f} MiB and fit)"
                if fits
                else ""
            )
            return (
                f"{near.memory_mib:.0f} MiB and {near.host_mib:.0f} MiB do not fit into {seen.memory_mib:.0f} MiB with"
                f" {100 * knobs.spare_part:.0f} %{context} to spare{way}"
            )
        case PairRefusal.LITTLE:
            return (
                f"together they would do {near.gain:.2f} times the work of one, {knobs.least_gain:g} are asked for"
                f" ({knobs.least_gain_alike:g} where nobody would do more with either), and it is not short enough to be"
                f" through within {100 * knobs.part_of(near.gain):.0f} % of its wait"
            )
    return BECAUSE[near.why].format(host=near.host, own=near.own, its=near.its)


def beside(start: Start, jobs: Mapping[str, Job]) -> str:
    """Beside whom a job starts, '' = beside nobody; ``jobs``: all, by id."""
    if not start.beside:
        return ""
    words = []
    for pair in start.beside:
        same = jobs[pair.id].project == jobs[start.id].project
        host = jobs[pair.id].name if same else pair.id
        words.append(
            f"beside {host}, where it is expected to run at {1 / pair.own:.2f} and {host} at {1 / pair.its:.2f} of their speeds"
            f" (in one case of ten below {1 / pair.own_most:.2f} and {1 / pair.its_most:.2f})"
        )
    parts = f"; it runs its batch in {start.parts.count} parts" if start.parts.count > 1 else ""
    return f"It starts {' and '.join(words)}{parts}."


# ---- ends of attempts ------------------------------------------------------------------------------------------------


def stopped(stop: Stop) -> str:
    """Why the ranks of an attempt must end."""
    return f"{stop.gpu} is silent; the attempt is over, its other ranks must end."


def requeued(requeue: Requeue) -> str:
    """Why a job waits again, and until when."""
    if requeue.ended is Ended.OUTGROWN:
        return "It took more memory than was said of it; it is started again with what it took, and alone."
    restart = f"restart {requeue.restarts} of {requeue.allowed} follows after {requeue.pause_s:g} s."
    return _sentence(requeue.ended, restart)


def finished(finish: Finish, knobs: JobKnobs) -> str:
    """Why a job is over; ``knobs`` of the rule that says so."""
    if finish.ended in (Ended.SUCCEEDED, Ended.STOPPED):
        return f"The job {finish.ended}."
    if finish.short_ends >= knobs.short_ends:
        return f"It ended {finish.short_ends} times in a row within {knobs.short_s:g} s of its start: a crash loop."
    if finish.allowed:
        return _sentence(finish.ended, f"all {finish.allowed} restarts that its owner allowed are used.")
    return _sentence(finish.ended, "its owner allowed no restart.")


def _sentence(ended: Ended, text: str) -> str:
    """How an attempt failed, with an exit code or by a signal, the rule is not told: whoever shows this says it."""
    return f"A GPU instance that it ran on was lost: {text}" if ended is Ended.LOST else text[0].upper() + text[1:]


# ---- what cannot be, and promises ------------------------------------------------------------------------------------


def misfit(found: Misfit) -> str:
    """Why a job can never start."""
    return MISFITS[found.why].format(of_kind=f" of {found.asked}" if found.asked else "", **found._asdict())


def unpromised(verdict: NotPromised) -> str:
    """Why an end is not promised."""
    if verdict.others is None:
        return "Too few GPU instances that it could have take trainings."
    source, names = SOURCES[verdict.length.source], ", ".join(verdict.others)
    return UNPROMISED[verdict.why].format(source=source, names=names, **verdict._asdict())


def decided(verdict: Promised | NotPromised) -> str:
    """Whether a job's end is promised."""
    return (
        "Its end is promised." if isinstance(verdict, Promised) else f"Its end is not promised. {unpromised(verdict)}"
    )


def promise(state: PromiseState, risk: str) -> str:
    """What has become of a promise, and by what of :data:`RISKS`."""
    return f"Its promise is {state.value.replace('_', ' ')}{f': {RISKS[risk]}' if risk else ''}."


def costs(wanted: tuple[float, float], said: tuple[float, float]) -> str:
    """What functions, and another training, may cost a job of its iteration time, and what its owner said."""
    return (
        f"Functions may cost it {wanted[0]:.3f} of its iteration time, another training {wanted[1]:.3f}, so that its promise"
        f" is kept; its owner said {said[0]:g} and {said[1]:g}."
    )
