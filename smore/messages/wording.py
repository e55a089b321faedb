"""
Reasons, causes and phases of an invocation, and what is paused, in words: for the API's answers and for people's tools.
"""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

from smore.domain.invocation import Cause, End, EndedFor, State
from smore.domain.override import Pause
from smore.messages.reasons import Reasons

#: What stands against a GPU instance, as the rest of a sentence about one and about several.
REFUSED: Mapping[str, tuple[str, str]] = {
    "gone": ("is silent", "are silent"),
    "paused": ("is paused", "are paused"),
    "drained": ("is drained", "are drained"),
    "no_slot": ("has no free slot", "have no free slot"),
    "quarantined": ("keeps this revision out after crashes", "keep this revision out after crashes"),
    "busy": ("is busy with the function", "are busy with the function"),
    "memory": ("has too little memory", "have too little memory"),
    "sm": ("has too little compute left", "have too little compute left"),
    "beside_training": ("trains, and the policy shares none", "train, and the policy shares none"),
    "budget": ("would cost its training more than its budget", "would cost their training more than its budget"),
    "degradation": ("would slow the function too much", "would slow the function too much"),
    "others_deadline": ("would make others miss their deadlines", "would make others miss their deadlines"),
    "deadline": ("would finish it too late", "would finish it too late"),
    "protected": ("is used by a process that nobody registered", "are used by processes that nobody registered"),
    "yields": ("takes only shorter runs of class batch", "take only shorter runs of class batch"),
    "pinned": (
        "is not one of those that the function is pinned to",
        "are not among those that the function is pinned to",
    ),
}

#: What time or the end of something else does not change: refused for these alone, it is not worth waiting.
HOPELESS = frozenset({"gone", "quarantined", "deadline"})

#: What a person has to change, beside that: refused for these alone, it waits for as long as nobody does.
BY_PEOPLE = frozenset({"paused", "drained", "pinned"})

CAUSES: Mapping[str, str] = {
    Cause.OK: "it ran to its end",
    Cause.HANDLER_ERROR: "the function raised an error",
    Cause.INVALID_INPUT: "its input was not what the function takes",
    Cause.CRASHED: "the process of the function died",
    Cause.CONTEXT_LOST: "an error of its run made its process useless for the GPU",
    Cause.OUT_OF_MEMORY: "the function ran out of memory",
    Cause.TIMED_OUT: "it ran for longer than its revision may",
    Cause.LOAD_FAILED: "the function could not be loaded",
    Cause.BAD_OUTPUT: "what the function returned was not what it declares",
    Cause.RESULT_TOO_LARGE: "what the function returned was larger than a result may be",
    Cause.QUARANTINED: "its revision was kept out after crashes",
    Cause.FUNCTION_DELETED: "the function was deleted",
    Cause.DISPATCH_LIMIT: "it was dispatched as often as allowed, and no worker began",
    Cause.ATTEMPT_LIMIT: "it was started as often as allowed",
    Cause.DEADLINE_EXPIRED: "no GPU instance could finish it before its deadline",
    Cause.INFEASIBLE: "no GPU instance could ever take it",
    Cause.CANCELLED: "it was cancelled",
    Cause.PAYLOAD_LOST: "its input was lost when Redis ended",
    Cause.WORKER_LOST: "its worker was lost while it held it",
    Cause.DISPATCH_LOST: "no worker took it in time",
    Cause.WORKER_BUSY: "the worker had no room for it",
    Cause.DEVICE_FULL: "others had taken the memory of the GPU",
}


_LATE = "No GPU instance could finish it before its deadline"
_ENDED_FOR: Mapping[EndedFor, str] = {
    EndedFor.NO_REVISION: "The revision is not known any more.",
    EndedFor.DELETED: "The function was deleted.",
    EndedFor.NO_DEVICE_HOLDS_IT: "It needs more memory than any GPU instance has.",
    EndedFor.OVER_WARM_LIMIT: "It needs more memory than its project may keep warm.",
    EndedFor.KEPT_OUT: "All GPU instances keep its revision out after crashes.",
    EndedFor.PLATFORM_PAUSED: f"{_LATE}: the whole platform is paused.",
    EndedFor.FUNCTION_PAUSED: f"{_LATE}: its function is paused.",
}


def ended_for(end: End) -> str:
    """Why the scheduler ended an invocation that waited, in a sentence."""
    if end.why is EndedFor.TOO_LATE:
        left = f": it takes {duration(end.least_s)} at least, and {duration(end.left_s)} were left"
        return f"{_LATE}{left if end.left_s > 0 else ', which has passed'}."
    if end.why is not EndedFor.DEVICES_PAUSED:
        return _ENDED_FOR[end.why]
    several, *counts = end.held
    parts = [
        f"{count} {'is' if count == 1 else 'are'} {word}"
        for count, word in zip(counts, ("drained", "paused"), strict=True)
        if count
    ]
    noun = "GPU instance" if several == 1 else "GPU instances"
    return f"{_LATE}: of {several} {noun} that it may use, {' and '.join(parts)}."


def worker_lost(gpu: str, seen_at: float, attempt: int = 0) -> str:
    """
    That the worker of a GPU instance was lost, in a sentence. ``seen_at``: when it had reported last, epoch seconds, 0 =
    not known; ``attempt``: the number of the attempt that it held, 0 = not said.
    """
    when = f", which reported last at {datetime.fromtimestamp(seen_at, UTC):%Y-%m-%d %H:%M:%S} UTC" if seen_at else ""
    which = f"Attempt {attempt}" if attempt else "An attempt"
    return f"{which} was lost with the worker of {gpu}{when}: the worker died, or was cut off."


def refused_in_words(refused: Mapping[str, int]) -> str:
    """
    ``{"busy": 2, "memory": 1}`` to ``2 GPU instances are busy with the function, 1 has too little memory``; '' for
    none.
    """
    parts: list[str] = []
    for code, count in sorted(refused.items(), key=lambda item: (-item[1], item[0])):
        one, several = REFUSED.get(code, (f"was refused ({code})", f"were refused ({code})"))
        noun = "" if parts else " GPU instance" if count == 1 else " GPU instances"
        parts.append(f"{count}{noun} {one if count == 1 else several}")
    return ", ".join(parts)


def why_not_now(reasons: Reasons, paused: str = "", yield_s: float | None = None) -> str:
    """Why nothing is placed at this moment. ``yield_s``: for how long a run of class batch may go on."""
    if paused:
        return "The queue of its function is paused." if paused == "function" else "The whole platform is paused."
    words = refused_in_words(reasons.refused)
    if _open(reasons):
        return "An instance of the function that is busy will be free sooner than another could be loaded."
    if yield_s is not None:
        run_s = next((one.run_s for one in reasons.candidates if one.refusal == "yields" and one.run_s), 0.0)
        words += f" (one input takes {duration(run_s)}, and a run may take {duration(yield_s)} there)"
    return f"{words}." if words else "There is no GPU instance."


def _open(reasons: Reasons) -> bool:
    """Whether a GPU instance was acceptable."""
    return any(candidate.refusal is None for candidate in reasons.candidates)


def obstacle(reasons: Reasons) -> str:
    """
    The one code of :data:`REFUSED` that stands for why nothing is placed: the most frequent one of the GPU instances
    where the function may go at all, ``pinned`` where it may go to none of them.
    """
    if _open(reasons):
        return "busy"
    allowed = {code: count for code, count in reasons.refused.items() if code != "pinned"} or reasons.refused
    return min(allowed, key=lambda code: (-allowed[code], code), default="gone")


def hopeless(reasons: Reasons) -> bool:
    """Whether nothing that could change soon stands against it: all are refused for what waiting does not mend."""
    return set(reasons.refused) <= HOPELESS and not _open(reasons)


def needs_person(reasons: Reasons) -> bool:
    """Whether nothing but a person can change that nothing is placed."""
    refused = set(reasons.refused)
    return bool(refused & BY_PEOPLE) and refused <= BY_PEOPLE | HOPELESS and not _open(reasons)


def duration(seconds: float) -> str:
    """``0.0123`` to ``12.3 ms``, ``0.00001`` to ``0.010 ms``, ``75.3`` to ``75.3 s``."""
    if abs(seconds) < 1:
        return f"{seconds * 1e3:.{1 if not seconds or abs(seconds) >= 1e-4 else 3}f} ms"
    return f"{seconds:.1f} s"


def in_words(
    state: str, cause: str, *, gpu: str = "", attempt: int = 0, slack_s: float | None = None, message: str = ""
) -> str:
    """
    How an invocation stands, in a sentence. ``slack_s``: seconds from its end to its deadline; ``message``: what its
    end said.
    """
    where = f" on {gpu}" if gpu else ""
    times = "" if attempt <= 1 else f" at attempt {attempt}"
    left = "" if slack_s is None else f", {duration(abs(slack_s))} {'before' if slack_s >= 0 else 'after'} its deadline"
    because = message.strip().removesuffix(".") or CAUSES.get(cause, cause or "it is not known why")
    match state:
        case State.SUCCEEDED:
            return f"It succeeded{where}{times}{left}."
        case State.QUEUED:
            return "It waits." if not attempt else f"It waits again after attempt {attempt}."
        case State.DISPATCHED:
            return f"It was sent to {gpu or 'a GPU instance'}{times} and has not begun."
        case State.RUNNING:
            return f"It runs{where}{times}."
        case _:
            said = f"It was {state}" if state in (State.REJECTED, State.CANCELLED) else f"It {state}{where}{times}"
            return f"{said}." if because.casefold() == said.casefold() else f"{said}: {because}."


#: What an invocation does in a phase of :func:`phases_ms`.
_DOES = {
    "queue": "it waited in its queue",
    "schedule": "its place was decided",
    "dispatch": "it was on its way to its worker",
    "load": "its instance was loaded",
    "run": "it ran",
    "other": "it waited for its instance, or its result was on its way",
}


def slowest(attempts: Sequence[Mapping[str, float | None]], predicted_s: float | None) -> str:
    """
    In which phase most of its time went, of an invocation that was late, in a sentence. ``attempts``: as :func:`phases_ms`
    has each; ``predicted_s``: the predicted run of the last one.
    """
    spent = {phase: sum(attempt.get(phase) or 0.0 for attempt in attempts) / 1e3 for phase in _DOES}
    longest = max(spent, key=lambda phase: spent[phase])
    told = f"; {duration(predicted_s)} were predicted" if longest == "run" and predicted_s is not None else ""
    return f"Most of its time {_DOES[longest]}: {duration(spent[longest])}{told}."


def phases_ms(
    *,
    since: float,
    claimed: float | None,
    started: float | None,
    finished: float | None,
    schedule_us: int = 0,
    load_s: Mapping[str, float] | None = None,
    run_s: float | None = None,
) -> dict[str, float | None]:
    """
    Milliseconds of an attempt by phase, as ``Server-Timing`` has them, and ``other``: the wait for an instance and for
    the run gate, and the way of the result. They add up to the whole; None = it has not come to its end, or is not
    known.

    ``since``: when it began to wait, epoch seconds as the other moments; deciding is taken out of the wait. A load that
    was under way already counts with the part that was waited for.
    """
    schedule_s = schedule_us / 1e6
    load = other = None
    if started is not None and finished is not None:
        besides_s = max(0.0, finished - started - (run_s or 0.0))
        load = min(sum((load_s or {}).values()), besides_s)
        other = besides_s - load
    phases = {
        "queue": None if claimed is None else max(0.0, claimed - since - schedule_s),
        "schedule": schedule_s if schedule_us else None,
        "dispatch": None if claimed is None or started is None else max(0.0, started - claimed),
        "load": load,
        "run": run_s,
        "other": other,
    }
    return {name: None if seconds is None else round(seconds * 1e3, 3) for name, seconds in phases.items()}


def beside(windows: Sequence[tuple[float, int, float, int]], least: int = 20) -> float | None:
    """
    What trainings lost to all functions beside them, measured: the worst of (solo_s, solo_count, shared_s,
    shared_count), None = not known.

    ``least`` iterations of either kind are asked for, as by the scheduler.
    """
    return max(
        (
            shared_s / solo_s - 1
            for solo_s, solo_n, shared_s, shared_n in windows
            if solo_n >= least and shared_n >= least and solo_s > 0
        ),
        default=None,
    )


def paused(pauses: Sequence[Pause], *, named: bool = True) -> list[str]:
    """
    What people have paused and drained, a sentence for the platform and for each kind of target. ``named``: False = for
    somebody who may know neither functions nor keys.
    """
    lines = [in_force(pause, named=named) for pause in pauses if pause.scope == "platform"]
    for scope, what, end in (
        ("gpu", "GPU instances", "gpus resume GPU"),
        ("function", "Functions", "queues resume FUNCTION"),
    ):
        for drains in (False, True):
            some = [pause for pause in pauses if pause.scope == scope and pause.drains == drains]
            if some:
                shown = (
                    ", ".join(f"{pause.name}{_since(pause, named)}" for pause in some)
                    if named or scope == "gpu"
                    else str(len(some))
                )
                lines.append(f"{what} {'drained' if drains else 'paused'}: {shown}. `smore {end}` ends it.")
    return lines


def in_force(pause: Pause, *, named: bool = True) -> str:
    """A pause or a drain of the platform or of a function, what it does and what ends it. ``named`` as for :func:`paused`."""
    function = pause.name.rpartition("/")[2]
    what, means = (
        ("drained", "new requests are answered with 503 draining")
        if pause.drains
        else ("paused", "requests wait, and nothing is dispatched")
    )
    end = f"queues resume {function}" if function else "drain --all --end" if pause.drains else "queues resume --all"
    who = f"The function {function}" if function else "The platform"
    return f"{who} is {what}{_since(pause, named)}: {means}. `smore {end}` ends it."


def silent(gpus: Mapping[str, float]) -> list[str]:
    """That GPU instances are silent, in a sentence; ``gpus``: when each reported last, epoch seconds."""
    if not gpus:
        return []
    shown = ", ".join(
        f"{gpu} since {datetime.fromtimestamp(at, UTC):%Y-%m-%d %H:%M:%S} UTC" for gpu, at in gpus.items()
    )
    return [
        f"GPU instances silent: {shown}. Nothing is placed there; the log of its worker says why, and"
        " `smore gpus forget GPU` ends this warning for one that is gone for good."
    ]


def _since(pause: Pause, named: bool) -> str:
    if pause.since is None:
        return ""
    by = f" by key {pause.by}" if named and pause.by else ""
    return f" since {datetime.fromtimestamp(pause.since, UTC):%Y-%m-%d %H:%M:%S} UTC{by}"
