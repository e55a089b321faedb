"""
The first hour of a newcomer: ``python -m tools.first_hour --json``.

1. The client's distribution is installed into an empty folder; pip needs an index for that.
2. Every marked block of README.md and of ``docs/`` is run (``tools/walk.py`` explains the marks), each document in a copy
   of the checkout of its own.
3. A platform is started ``--starts`` times with ``make up``, and a function is called at once: every other time in an
   empty home, where the function is deployed before, else in the home of the start before.

Figures:

* ``commands_to_own_function``: commands in the README's quick blocks up to the first answer of one's own function;
  ``seconds_to_own_function``: what these blocks took together, in a copy of their own.
* ``first_call_failures``: calls that were not answered with their result, and starts that failed, of ``first_calls``;
  ``up_s``: median of the starts.
* ``explain_gap``: the largest difference between the phases that ``explain`` shows of such a call, added up, and its
  time from arrival to finish, over that time.
* ``client_install_mb``: megabytes of ``smore-client`` and what it needs; left out where pip fails.
* ``blocks``, ``blocks_failed``: marked blocks; those that failed, or came after one that did.
"""

import argparse
import contextlib
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from lab.bench import report
from smore_client import Client, ClientError
from smore_client.types import Attempt, Explanation
from tools import walk
from tools.walk import Block, Newcomer, Walked

README = "README.md"
UP = "make up"
#: The call of one's own function, which ends the way to it.
CALL = "smore invoke"
#: The function of the first calls.
FUNCTION = {
    "apiVersion": "smore/v1",
    "kind": "Function",
    "metadata": {"name": "first"},
    "spec": {"entrypoint": "zoo.echo:Function"},
}
#: Seconds until the history has all of an invocation.
PATIENCE_S = 30.0


@dataclass(slots=True)
class FirstCalls:
    """The calls right after a start. ``failures``: what each that failed was answered; ``gaps``: of the others."""

    calls: int = 0
    failures: list[str] = field(default_factory=list)
    gaps: list[float] = field(default_factory=list)
    up_s: list[float] = field(default_factory=list)


@contextlib.contextmanager
def newcomer(*, compiled: bool = False) -> Iterator[Newcomer]:
    """A newcomer in a temporary folder, without a running platform; ``compiled`` as of :class:`tools.walk.Newcomer`."""
    with tempfile.TemporaryDirectory(prefix="smore-first-hour-") as folder:
        made = Newcomer(Path(folder), compiled=compiled)
        try:
            yield made
        finally:
            made.close()


def first_calls(person: Newcomer, starts: int) -> FirstCalls:
    """Start the platform so many times and call at once, every other time in an empty home. The last platform goes on."""
    calls = FirstCalls()
    for number in range(starts):
        if number:
            person.close()
        fresh = number % 2 == 0
        if fresh:
            person.remove_home()
        calls.calls += 1
        began = time.monotonic()
        try:
            person.shell(UP)
            calls.up_s.append(time.monotonic() - began)
            calls.gaps.append(gap(call(person, fresh)))
            outcome = "answered"
        except (RuntimeError, ClientError) as error:
            outcome = str(error)
            calls.failures.append(f"start {number + 1}: {error}")
        report.progress(f"start {number + 1} of {starts}: {time.monotonic() - began:.1f} s, {outcome}")
    return calls


def call(person: Newcomer, fresh: bool) -> Explanation:
    """
    Call the function, which is deployed before where the home is ``fresh``; why the call went as it did. Raises
    ClientError, and RuntimeError for another answer.
    """
    with Client(person.url, person.key) as client:
        if fresh:
            client.deploy(FUNCTION)
        invocation = client.invoke("first", 1)
        if invocation.output != 1:
            raise RuntimeError(f"answered {invocation.output!r}")
        return explained(client, invocation.id)


def explained(client: Client, invocation: str) -> Explanation:
    """What ``explain`` says of an invocation once the history has all of it. RuntimeError where that takes too long."""
    until = time.monotonic() + PATIENCE_S
    while not (explanation := client.explain(invocation)).complete:
        if time.monotonic() > until:
            raise RuntimeError(f"the history of {invocation} is not complete: {explanation}")
        time.sleep(0.1)
    return explanation


def gap(explanation: Explanation) -> float:
    """The phases of all attempts less the time from arrival to finish, over that time; without a sign."""
    assert explanation.arrival_at is not None
    assert explanation.finished_at is not None
    total_ms = (explanation.finished_at - explanation.arrival_at).total_seconds() * 1e3
    return abs(sum(map(phases_ms, explanation.attempts)) - total_ms) / total_ms


def phases_ms(attempt: Attempt) -> float:
    """Milliseconds of all phases of an attempt; ``loading``, the parts of a load, is within ``load``."""
    values = msgspec.structs.asdict(attempt.phases_ms).values()
    return sum(float(value) for value in values if isinstance(value, int | float))


def walk_documents(marked: Mapping[str, Sequence[Block]]) -> list[Walked]:
    """Run the blocks of each document, in a copy of the checkout of its own."""
    walked: list[Walked] = []
    for of_document in marked.values():
        with newcomer() as person:
            steps = person.walk(of_document)
        for step in steps:
            report.progress(f"{step.block.name}: {step.seconds:.1f} s {step.problem}")
        walked += steps
    return walked


def to_own_function(marked: Mapping[str, Sequence[Block]]) -> tuple[list[Block], list[str]]:
    """
    The README's quick blocks up to the first call of one's own function, and the commands in them. LookupError where
    none calls it.
    """
    way: list[Block] = []
    typed: list[str] = []
    for block in marked.get(README, ()):
        if block.kind != "quick":
            continue
        way.append(block)
        commands = block.commands()
        called = next((number for number, command in enumerate(commands) if command.startswith(CALL)), None)
        typed += commands if called is None else commands[: called + 1]
        if called is not None:
            return way, typed
    raise LookupError(f"no quick block of {README} has `{CALL}`")


def client_install_mb() -> float:
    """Megabytes that ``pip install`` of the client's distribution takes. CalledProcessError where it fails."""
    with tempfile.TemporaryDirectory(prefix="smore-client-") as folder:
        subprocess.run(
            [
                sys.executable,
                "-m",
                "pip",
                "install",
                "--quiet",
                "--disable-pip-version-check",
                "-c",
                str(report.ROOT / "constraints.txt"),
                "--target",
                folder,
                str(report.ROOT / "client"),
            ],
            check=True,
            stdout=sys.stderr,
        )
        return sum(file.stat().st_size for file in Path(folder).rglob("*") if file.is_file()) / 1e6


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tools.first_hour", description="The first hour of a newcomer; see the docstring."
    )
    parser.add_argument("--json", action="store_true", help="end stdout with one line of JSON")
    parser.add_argument("--starts", type=int, default=20, help="starts of the platform, each with a call at once")
    options = parser.parse_args(arguments)
    # A terminated run still ends the platforms that it started.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    marked = walk.documents()
    figures: dict[str, float] = {}
    with contextlib.suppress(subprocess.CalledProcessError):
        figures["client_install_mb"] = client_install_mb()
    way, commands = to_own_function(marked)
    figures["seconds_to_own_function"] = sum(step.seconds for step in walk_documents({README: way}))
    walked = walk_documents(marked)
    problems = {step.block.name: step.problem for step in walked if step.problem}
    with newcomer() as person:
        calls = first_calls(person, options.starts)
    figures |= {
        "commands_to_own_function": len(commands),
        "blocks": len(walked),
        "blocks_failed": len(problems),
        "first_calls": calls.calls,
        "first_call_failures": len(calls.failures),
    }
    if calls.up_s:
        figures["up_s"] = statistics.median(calls.up_s)
    if calls.gaps:
        figures["explain_gap"] = max(calls.gaps)
    if options.json:
        report.emit("tools.first_hour", figures, commands=commands, problems=problems, failures=calls.failures)
    else:
        for name, value in figures.items():
            print(f"{name:28}{report.rounded(value):>12g}")
        for name, problem in problems.items():
            print(f"{name}: {problem}")
    return 1 if problems or calls.failures else 0


if __name__ == "__main__":
    sys.exit(main())
