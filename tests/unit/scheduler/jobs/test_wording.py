"""
What is said of trainings, word for word: wording.txt has a sentence for every code of the rule. After a change of words, look
at what ``git diff`` says of it once it is written anew:
``python -c "from tests.unit.scheduler.jobs.test_wording import *; GOLDEN.write_text(text())"``.
"""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from scheduler.jobs import wording
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
    Stop,
    Unfit,
    Unpromised,
    Wait,
)
from scheduler.policy.jobs.events import Ended, GpuSeen
from scheduler.policy.jobs.knobs import JobKnobs
from scheduler.policy.jobs.lengths import Length, LengthSource
from scheduler.policy.jobs.pairs import Slowdown
from scheduler.policy.jobs.spec import MicroBatches, Needs
from smore.domain.job import PromiseState

GOLDEN = Path(__file__).with_name("wording.txt")
KNOBS = JobKnobs()
LENGTH = Length(3600.0, 7200.0, 9000.0, LengthSource.DECLARED)
NEEDS = Needs(2, ("a0", "a1"), "H100", 1024.0, "node-a")
SEEN = GpuSeen(gpu="a0", node="node-b", device="A100", memory_mib=80_000.0, closed="drained", context_mib=500.0)
FITS = MicroBatches(count=4, memory_mib=9000.0)
NEAR = Nearest(
    host="day",
    why=PairRefusal.FEW,
    own=Slowdown(1.25, 1.6),
    its=Slowdown(1.1, 1.2),
    gain=0.9,
    memory_mib=36_000.0,
    host_mib=50_000.0,
    seen=SEEN,
    fits=FITS,
)
PLACES = [GpuPlace("a0", NEEDS, code, SEEN, ["day", "night"]) for code in (JobRefusal.CLOSED, JobRefusal.BUSY)]
REFUSED = [(code, "", number) for number, code in enumerate(sorted(set(JobRefusal) - {JobRefusal.CLOSED}), 1)]
FACTS = Facts(
    NEEDS,
    free=1,
    refused=[*REFUSED, (JobRefusal.CLOSED, "drained", 1), (JobRefusal.CLOSED, "paused", 2)],
    places=PLACES,
    most=4,
    held=3,
    others=["", "nightly"],
    in_s=90.0,
    slowdown=1.25,
    part=0.25,
)


def job(why: Wait, facts: Facts = FACTS, doubt: Doubt | None = None, unsaid: tuple[str, ...] = ()) -> str:
    asked = Expected("j", 1, (), None, None, LENGTH, 0.0, why, facts, doubt, unsaid)
    return wording.standing(asked, KNOBS)


def said() -> Iterator[tuple[str, str]]:
    """A name and a sentence."""
    for wait in Wait:
        yield f"wait {wait}", job(wait, FACTS._replace(others=["nightly"]) if wait is not Wait.PROMISED else FACTS)
    one = Facts(Needs(1, (), "", 0.0, ""), most=1)
    for wait in (Wait.NONE, Wait.LIMIT, Wait.TOO_FEW, Wait.ORDER):
        yield f"wait {wait}, one", job(wait, one)
    yield "wait pinned, free", job(Wait.PINNED, Facts(NEEDS))
    yield "wait none, measured", job(Wait.NONE, FACTS._replace(others=["day", "night"], measured=True, part=1.0))
    for why in PairRefusal:
        yield f"beside nobody {why}", job(Wait.HELD, doubt=Doubt({}, NEAR._replace(why=why)))
    for count in (1, 2):
        yield f"beside nobody, {count} of each", job(Wait.HELD, doubt=Doubt(dict.fromkeys(PairRefusal, count), None))
    yield "beside nobody, others", job(Wait.HELD, doubt=Doubt({PairRefusal.FULL: 2}, NEAR))
    yield "beside nobody, nobody runs", job(Wait.HELD, doubt=Doubt({}, None))
    roomy = NEAR._replace(why=PairRefusal.MEMORY, seen=replace(SEEN, context_mib=0.0), fits=None)
    yield "beside nobody, nothing fits", job(Wait.HELD, doubt=Doubt({}, roomy))
    yield "beside nobody, unsaid", job(Wait.HELD, unsaid=("workload", "memory"))
    for refused in (*JobRefusal, None):
        kept_for = "nightly" if refused is JobRefusal.KEPT else ""
        place = wording.job_place(GpuPlace("a0", NEEDS, refused, SEEN, ["day", "night"], kept_for))
        yield f"place {place.refused}", place.message
    yield "place never seen", wording.job_place(GpuPlace("a0", NEEDS, JobRefusal.LOST, None)).message
    for unfit in Unfit:
        yield f"misfit {unfit}", wording.misfit(Misfit(unfit, "count", 2, "a7"))
    for source in LengthSource:
        verdict = NotPromised("j", Unpromised.UNKNOWN, LENGTH._replace(source=source))
        yield f"length {source}", wording.unpromised(verdict)
    for why_not in Unpromised:
        verdict = NotPromised("j", why_not, LENGTH, None, "fifo", 9270.0, 600.0, 4, 3, ["j1", "j2"])
        yield f"unpromised {why_not}", wording.decided(verdict)
    yield "unpromised, nowhere", wording.decided(NotPromised("j", Unpromised.OTHERS, LENGTH, others=None))
    yield "promised", wording.decided(Promised("j", 1.0, 0.0))
    for risk in ("", *wording.RISKS):
        yield f"risk {risk}", wording.promise(PromiseState.AT_RISK, risk)
    yield "costs", wording.costs((0.01, 0.5), (0.05, 1.0))
    yield "stop", wording.stopped(Stop(id="j", attempt=1, ended=Ended.LOST, gpu="a0"))
    for ended in (Ended.FAILED, Ended.LOST, Ended.OUTGROWN):
        waits = Requeue(
            id="j", attempt=1, ended=ended, not_before=0.0, pause_s=20.0, restarts=2, allowed=9, short_ends=0
        )
        yield f"requeue {ended}", wording.requeued(waits)
    for ended in (Ended.SUCCEEDED, Ended.STOPPED, Ended.FAILED, Ended.LOST):
        for allowed, short_ends in ((0, 0), (2, 0), (2, 3)):
            over = Finish(id="j", ended=ended, allowed=allowed, short_ends=short_ends, seconds=0.0, ratios={})
            yield f"finish {ended} {allowed} {short_ends}", wording.finished(over, KNOBS)


def text() -> str:
    return "".join(f"{name}: {sentence}\n" for name, sentence in said())


def test_every_code_has_its_words() -> None:
    assert text() == GOLDEN.read_text()
