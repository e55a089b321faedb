"""
Whether long runs obey: ``python -m lab.bench.long_runs --json``.

A CPU partition of one core trains, and somebody always wants to run a function beside it that keeps the core busy for 0.1, 5,
20 or 60 s a run. No policy holds functions back (``budget_rule`` none): the worker's run gate alone does, which is told a duty
of 0.1 and then of 0.25 by the command with which the leader throttles. A tenth of the time is closed in windows. Each case is
measured from the end of one run to the end of a later one, over a minute or one run and the debt after it. ``--quick``: runs of
20 s at a duty of 0.25; about three minutes. The whole takes about 25: the case of 60 s at 0.1 alone takes 11.

Figures:

* ``throttle_error``: the part of the time in which functions ran over the one that was asked, in the worst case;
  ``throttle_error.<run>.<duty>``.
* ``windows_quiet``: closed windows that told a loss, over all that were begun (a run that cannot be held gives none).
* ``worst_job_loss``: what functions cost the training in the case in which it lost most, ``worst_job_loss_low`` and ``_high``
  its 95 % interval; cases with fewer than eight windows are left out, ``judged`` counts the others.
"""

import argparse
import math
import sys
import tempfile
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Final

from lab.bench.overload.rig import Rig, Trained, one_core_partitions
from lab.bench.report import emit, end_on_sigterm, progress
from smore.domain.loss import PROBE_MAX_S, Loss, estimate
from smore.messages.commands import Throttle
from smore.messages.results import decode_execution
from smore.messages.stream import Settled
from smore.redis.fleet import Fleet

RUNS_S: Final = (0.1, 5.0, 20.0, 60.0)
DUTIES: Final = (0.25, 0.1)
QUICK_RUNS_S: Final = (20.0,)
QUICK_DUTIES: Final = (0.25,)
#: The shortest measurement of a case, seconds.
LEAST_S: Final = 60.0
#: Invocations that wait or run.
PENDING: Final = 3
TRAINING: Final = Trained(model="vgg16", batch=2)
#: The windows of the last seconds may still want iterations after them.
UNSETTLED_S: Final = 30.0
_LOOK_S: Final = 0.2
SPEC: Final = {
    "entrypoint": "lab.bench.tally:Work",
    "slo": {"deadline": "1h"},
    "resources": {"gpu_memory": "64MiB"},
    "scaling": {"max_warm": 1, "keep_alive": -1},
    "limits": {"timeout": "5m"},
}


class Case:
    """One length of run at one duty."""

    def __init__(self, rig: Rig, gpu: str, run_s: float, duty: float) -> None:
        self._rig, self._gpu, self._fleet = rig, gpu, Fleet(rig.redis, rig.prefix)
        self._run_s, self._duty = run_s, duty
        self._ids: list[str] = []

    def measure(self) -> tuple[float, Loss | None]:
        """The part of the time in which runs were over the one that was asked, and what the training lost meanwhile."""
        begin = time.time()
        # What was owed before is forgotten without a throttle.
        for duty in (1.0, self._duty):
            self._throttle(duty)
        wanted = 1 + max(1, math.ceil(LEAST_S * self._duty / self._run_s))
        until = time.monotonic() + 3 * wanted * self._run_s / self._duty + 60
        while len(ended := self._ended()) < wanted:
            if time.monotonic() > until:
                raise RuntimeError(
                    f"{len(ended)} of {wanted} runs of {self._run_s:g} s ended at a duty of {self._duty:g}"
                )
            while len(self._ids) - len(ended) < PENDING:
                self._ids.append(self._rig.client.submit("work", {"s": self._run_s}))
                ended = self._ended()
            time.sleep(_LOOK_S)
        ran_s = sum((decode_execution(each.meta.encode()).run_ms or 0.0) / 1e3 for each in ended[1:])
        lasted_s = (ended[-1].finished_us - ended[0].finished_us) / 1e6
        loss = estimate(self._rig.witness.within(self._rig.jobs[f"train-{TRAINING.model}"], begin, time.time()))
        for id_ in self._ids[len(ended) :]:
            self._rig.client.cancel(id_)
        error = ran_s / lasted_s / self._duty
        lost = "too few windows" if loss is None else f"{loss.mean:.1%} ({loss.low:.1%} to {loss.high:.1%}) lost"
        progress(f"runs of {self._run_s:g} s at {self._duty:g}: {error:.2f} times what was asked, {lost}")
        return error, loss

    def _throttle(self, duty: float) -> None:
        self._fleet.send(self._gpu, Throttle(version=1, duty=duty))
        self._rig.patiently(f"a duty of {duty:g}", lambda: self._rig.witness.reports[self._gpu][-1][1].duty == duty)

    def _ended(self) -> list[Settled]:
        ids = set(self._ids)
        ended = [each for each in self._rig.witness.settled if each.id in ids]
        for each in ended:
            if each.state != "succeeded":
                raise RuntimeError(f"an invocation {each.state}: {each.cause}")
        return sorted(ended, key=lambda each: each.finished_us)


def quiet(rig: Rig, gpu: str, begin: float, end: float) -> tuple[int, int]:
    """Windows that told a loss, and those that were begun, between two epoch seconds."""
    told = rig.witness.within(rig.jobs[f"train-{TRAINING.model}"], begin, end)
    begun = {
        round(report.closed_until, 3)
        for at, report in rig.witness.reports[gpu]
        if report.closed and begin <= report.closed_until - PROBE_MAX_S and at <= end
    }
    return len(told), len(begun)


def main(words: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m lab.bench.long_runs", description="Whether long runs obey.")
    parser.add_argument("--quick", action="store_true", help="one case in about three minutes")
    parser.add_argument("--json", action="store_true", help="end stdout with one line of JSON")
    asked = parser.parse_args(words)
    runs_s, duties = (QUICK_RUNS_S, QUICK_DUTIES) if asked.quick else (RUNS_S, DUTIES)
    end_on_sigterm()
    (partition, *_) = reversed(one_core_partitions())
    environment = {"SMORE_POLICY__KNOBS": '{"budget_rule": "none", "closed_loop": false}'}
    figures: dict[str, float] = {}
    losses: list[Loss] = []
    with (
        tempfile.TemporaryDirectory(prefix="smore-long-runs-") as folder,
        Rig(Path(folder, "home"), [partition], functions=(), environment=environment) as rig,
    ):
        rig.prepare(table=False)
        rig.client.deploy({"apiVersion": "smore/v1", "kind": "Function", "metadata": {"name": "work"}, "spec": SPEC})
        rig.patiently("the function", partial(_active, rig))
        rig.train([TRAINING], budget=None, lasting_s=3600)
        begin = time.time()
        for run_s in runs_s:
            for duty in duties:
                error, loss = Case(rig, partition.gpu, run_s, duty).measure()
                figures[f"throttle_error.{run_s:g}.{duty:g}"] = error
                losses += [loss] if loss is not None else []
        told, begun = quiet(rig, partition.gpu, begin, time.time() - UNSETTLED_S)
    figures["throttle_error"] = max(figures.values())
    figures |= {"windows": begun, "judged": len(losses)}
    if begun:
        figures["windows_quiet"] = min(1.0, told / begun)
    if losses:
        worst = max(losses, key=lambda each: each.mean)
        figures |= {"worst_job_loss": worst.mean, "worst_job_loss_low": worst.low, "worst_job_loss_high": worst.high}
    for name, value in figures.items():
        progress(f"{name:28} {value:8.3f}")
    if asked.json:
        emit(f"python -m lab.bench.long_runs{' --quick' if asked.quick else ''}", figures)


def _active(rig: Rig) -> bool:
    return rig.client.function("work").revision > 0


if __name__ == "__main__":
    main(sys.argv[1:])
