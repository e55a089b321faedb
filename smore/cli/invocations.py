"""``smore invoke``, ``status``, ``result``, ``cancel``, ``explain`` and ``ps``: requests to run a function."""

import json
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from itertools import islice
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from smore.cli.names import functions, states
from smore.cli.terminal import (
    AllProjectsOption,
    Column,
    FunctionName,
    InvocationId,
    Output,
    OutputOption,
    connected,
    fail,
    moment,
    ms,
    percent,
    say,
    say_page,
    show,
    show_value,
    span_s,
    tell,
    write,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from smore_client import Client
    from smore_client.types import Attempt, Decision, DryRun, Explanation, Invocation

#: What makes a terminal empty and begins at its top.
CLEAR: Final = "\x1b[2J\x1b[H"
#: Invocations that one page holds at most.
PAGE: Final = 1000
#: Seconds between two lists of ``ps --watch``.
WATCH_S: Final = 2.0


InputOption = Annotated[str, typer.Option("--input", "-i", help="JSON, @file with JSON, or - for standard input.")]
InputsOption = Annotated[
    str | None,
    typer.Option(
        metavar="FILE",
        help="Many inputs in place of one: a file with a JSON list, or with a JSON value on each line; - for standard"
        " input. Prints a line for each, in their order: its output, or where it has none its state and why.",
    ),
]


def read_input(text: str) -> Any:
    """The value of ``--input``: JSON text, ``@file`` with JSON in it, or ``-`` for JSON on standard input."""
    try:
        if text == "-":
            return json.load(sys.stdin)
        if text.startswith("@"):
            return json.loads(Path(text[1:]).read_text())
        return json.loads(text)
    except (OSError, ValueError) as error:
        raise typer.BadParameter(f"{text[:60]!r} is not JSON: {error}", param_hint="--input") from error


def read_inputs(path: str) -> list[Any]:
    """The values of ``--inputs``: a JSON list, or a JSON value on each line, in a file or on standard input (``-``)."""
    try:
        text = sys.stdin.read() if path == "-" else Path(path).read_text()
        try:
            document = json.loads(text)
        except ValueError:
            document = None
        if isinstance(document, list):
            return document
        return [json.loads(line) for line in text.splitlines() if line.strip()]
    except (OSError, ValueError) as error:
        raise typer.BadParameter(
            f"{path!r} is neither a JSON list nor JSON values line by line: {error}", param_hint="--inputs"
        ) from error


def invoke(
    function: FunctionName,
    input_text: InputOption = "{}",
    inputs: InputsOption = None,
    deadline_ms: Annotated[float | None, typer.Option(min=0, help="From now; instead of the function's own.")] = None,
    work_class: Annotated[
        str | None,
        typer.Option(
            "--class",
            help="batch: it can wait, and runs in what others leave. Without it the function's own; --inputs with a deadline"
            " of more than a minute are batch.",
        ),
    ] = None,
    strict: Annotated[bool, typer.Option("--strict", help="Exit with 1 where it ended after its deadline.")] = False,
    asynchronous: Annotated[bool, typer.Option("--async", help="Print the ids and do not wait.")] = False,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run",
            help="Ask what would become of it, and place nothing; exit with 1 where it would not be in time.",
        ),
    ] = False,
    rows: Annotated[
        int | None, typer.Option(min=1, help="With --dry-run: how many rows it would have, in place of an input.")
    ] = None,
    output: Annotated[
        Output, typer.Option("-o", "--output", help="table: its output alone, as JSON; else all of it.")
    ] = Output.TABLE,
) -> None:
    """Run a function."""
    if inputs is not None:
        if dry_run:
            raise typer.BadParameter("it asks about one invocation: use --input", param_hint="--dry-run")
        _invoke_all(function, read_inputs(inputs), deadline_ms, work_class, asynchronous, strict, output)
        return
    value = read_input(input_text)
    with connected() as client:
        if dry_run:
            answer = client.dry_run(function, None if rows is not None else value, rows=rows, deadline_ms=deadline_ms)
            _show_dry_run(answer, output)
            if not answer.feasible:
                raise typer.Exit(1)
            return
        if asynchronous:
            write(client.submit(function, value, deadline_ms=deadline_ms, work_class=work_class))
            return
        invocation = client.invoke(function, value, deadline_ms=deadline_ms, work_class=work_class)
    if sys.stderr.isatty():
        phases = ", ".join(f"{name} {value:.1f}" for name, value in invocation.timings_ms.items())
        write(f"{invocation.id} {invocation.state}{f' (ms: {phases})' if phases else ''}", error=True)
    _show_output(invocation, output)
    if invocation.late_ms:
        from smore.messages.wording import duration

        write(f"It ended {duration(invocation.late_ms / 1e3)} after its deadline.", error=True)
        if strict:
            raise typer.Exit(1)


def _invoke_all(
    function: str,
    values: list[Any],
    deadline_ms: float | None,
    work_class: str | None,
    asynchronous: bool,
    strict: bool,
    output: Output,
) -> None:
    """
    Run a function on each value and print the results in the order of the values, each as soon as those before it have
    ended. Exits with 1 where one was refused or failed, or with ``--strict`` ended after its deadline.
    """
    with connected() as client:
        submitted = client.submit_all(function, values, deadline_ms=deadline_ms, work_class=work_class)
        if asynchronous:
            for each in submitted:
                write(each.id or "-")
            refused = [each for each in submitted if not each.id]
            if refused:
                write(f"The first that was refused: {refused[0].cause} {refused[0].detail}", error=True)
                write(_by_cause(submitted), error=True)
                raise typer.Exit(1)
            return
        ended = {position: each for position, each in enumerate(submitted) if not each.id}
        positions = {each.id: position for position, each in enumerate(submitted)}
        results = _in_order(ended, output)
        for each in client.as_completed(each.id for each in submitted if each.id):
            ended[positions[each.id]] = each
            results += _in_order(ended, output, len(results))
    if output is not Output.TABLE:
        show_value(results, output)
    failed = [each for each in results if each.state != "succeeded"]
    late = [each for each in results if each.late_ms]
    if failed:
        first = failed[0]
        if first.traceback:
            write(first.traceback.rstrip(), error=True)
        write(f"The first that did not succeed: {first.cause} {first.detail}", error=True)
    write(_by_cause(results), error=True)
    if late:
        write(f"{len(late)} of {len(results)} ended after their deadlines.", error=True)
    if failed or (strict and late):
        raise typer.Exit(1)


def _by_cause(invocations: "Sequence[Invocation]") -> str:
    """``188 succeeded, 12 slo_infeasible``: how many stand how, by cause where they did not succeed."""
    goes_on = ("succeeded", "queued", "dispatched", "running")
    counts = Counter(each.state if each.state in goes_on else each.cause or each.state for each in invocations)
    return ", ".join(f"{count} {what}" for what, count in sorted(counts.items(), key=lambda one: one[0] != "succeeded"))


def _in_order(ended: "dict[int, Invocation]", output: Output, first: int = 0) -> "list[Invocation]":
    """Take the invocations at ``first`` and behind it as far as they have ended; in a table print a line for each."""
    results: list[Invocation] = []
    while first + len(results) in ended:
        results.append(ended.pop(first + len(results)))
        if output is Output.TABLE:
            write(json.dumps(_output_or_why(results[-1]), ensure_ascii=False))
    return results


def _output_or_why(invocation: "Invocation") -> object:
    """The output, or why there is none."""
    if invocation.state == "succeeded":
        return invocation.output
    why: dict[str, object] = {"state": invocation.state, "cause": invocation.cause, "detail": invocation.detail}
    if invocation.earliest_deadline_ms is not None:
        why["earliest_deadline_ms"] = invocation.earliest_deadline_ms
    return why


def _show_output(invocation: "Invocation", output: Output) -> None:
    if output is Output.TABLE:
        write(json.dumps(invocation.output, ensure_ascii=False))
    else:
        show_value(invocation, output)


def status(
    id_: InvocationId,
    wait: Annotated[float | None, typer.Option(min=0, help="Seconds to wait for its end.")] = None,
    output: OutputOption = Output.YAML,
) -> None:
    """How an invocation stands."""
    with connected() as client:
        show_value(client.invocation(id_, wait_s=wait), output)


def result(id_: InvocationId, output: OutputOption = Output.TABLE) -> None:
    """The output of an invocation that has succeeded."""
    with connected() as client:
        invocation = client.result(id_)
    if not invocation.done:
        fail(f"{id_} is {invocation.state}")
    _show_output(invocation, output)


def cancel(id_: InvocationId, output: OutputOption = Output.TABLE) -> None:
    """Cancel an invocation, waiting or running."""
    with connected() as client:
        cancelled = client.cancel(id_)
    tell(cancelled.state, cancelled, output)


def explain(
    id_: InvocationId,
    output: OutputOption = Output.TABLE,
    as_json: Annotated[bool, typer.Option("--json", help="The same as -o json.")] = False,
) -> None:
    """Why an invocation went as it did: what was considered, predicted and measured, and where the time went."""
    with connected() as client:
        explanation = client.explain(id_)
    if as_json or output is not Output.TABLE:
        show_value(explanation, Output.JSON if as_json else output)
        return
    _show_explanation(explanation)
    say_page(client.url, "invocations", explanation.id)


def _show_explanation(explanation: "Explanation") -> None:
    gate = explanation.gate
    incomplete = "" if explanation.complete else " (the history is not complete yet)"
    say(
        f"{explanation.id}  {explanation.function} revision {explanation.revision}  {explanation.state}{incomplete}\n{explanation.summary}"
    )
    needed = "had no prediction" if gate.needed_ms is None else f"predicted at least {gate.needed_ms:.1f} ms"
    now = "" if gate.now_ms is None else f"; for a request that arrives now it predicts {gate.now_ms:.1f} ms"
    say(f"Admission {needed}; the deadline allowed {gate.allowed_ms:.1f} ms{now}.")
    if explanation.waits is not None:
        say(
            f"{explanation.waits.before} invocations of its function have earlier deadlines. {explanation.waits.detail}"
        )
        if explanation.waits.decision is not None:
            _show_decision(explanation.waits.decision)
    for attempt in explanation.attempts:
        _show_attempt(attempt)
    if explanation.traceback:
        write(f"\n{explanation.traceback.rstrip()}")


def _show_attempt(attempt: "Attempt") -> None:
    if attempt.cold is not None:
        start = "cold start" if attempt.cold else "warm"
    else:
        start = (
            "has not ended" if attempt.finished_at is None else f"did not run to its end, {moment(attempt.finished_at)}"
        )
    batch = f", batch of {attempt.batch}" if attempt.batch else ""
    others = [*attempt.co_runners, *(attempt.job_names.get(job, job) for job in attempt.jobs)]
    beside = f", beside {' '.join(others)}" if others else ""
    state = "returned to the queue" if attempt.state == "queued" else attempt.state
    say(f"\nAttempt {attempt.attempt} on {attempt.gpu}: {state} ({attempt.cause or '-'}), {start}{batch}{beside}")
    if attempt.worker_seen_at is not None:
        say(f"The worker of {attempt.gpu} died or was cut off: it reported last at {moment(attempt.worker_seen_at)}.")
    phases = attempt.phases_ms
    took = {name: getattr(phases, name) for name in ("queue", "schedule", "dispatch", "load", "run", "other")}
    say("ms: " + ", ".join(f"{name} {'-' if value is None else f'{value:.1f}'}" for name, value in took.items()))
    if phases.loading:
        say("load, ms: " + ", ".join(f"{name} {value:.1f}" for name, value in phases.loading.items()))
    if attempt.predicted is not None:
        predicted, measured = attempt.predicted, attempt.measured
        lines: list[tuple[str, object, object, object]] = [
            ("run", ms(predicted.run_s), None, ms(measured.run_s)),
            ("finish before deadline", ms(predicted.slack_s), None, ms(measured.slack_s)),
            (
                "function slower by",
                percent(predicted.function_degradation),
                percent(predicted.function_degradation_upper),
                # An assumed time alone is nothing to compare with.
                percent(measured.function_degradation) if predicted.known is not False else "not comparable",
            ),
            (
                "training slower by",
                percent(predicted.training_degradation),
                percent(predicted.training_degradation_upper),
                percent(measured.training_degradation),
            ),
        ]
        headers = ("", "predicted", "90 % bound", "measured")
        columns: list[Column[Any]] = [(header, itemgetter(place)) for place, header in enumerate(headers)]
        show(lines, columns, Output.TABLE)
    if attempt.decision is not None:
        _show_decision(attempt.decision)


def _show_decision(decision: "Decision", said: str = "") -> None:
    """``said``: what was printed before; it is not repeated."""
    from smore.messages.wording import REFUSED, refused_in_words

    shadow = decision.shadow
    beside = "" if shadow is None else f"; the shadow policy {shadow.policy} chose {shadow.gpu or 'nowhere'}"
    priority = "" if decision.priority is None else f", priority {decision.priority:.4g}"
    say(f"Decided by {decision.policy} (seed {decision.seed}, table {decision.table or 'none'}{priority}){beside}")
    columns: list[Column[Any]] = [
        ("gpu", lambda c: c.gpu),
        ("warm", lambda c: c.warm),
        ("finish", lambda c: None if c.finish_at is None else c.finish_at.astimezone().strftime("%H:%M:%S.%f")[:-3]),
        ("alone", lambda c: ms(c.run_s)),
        ("impact", lambda c: c.impact),
        ("function", lambda c: percent(c.function_degradation)),
        ("training", lambda c: percent(c.training_degradation)),
        ("known", lambda c: c.known),
        ("why not", lambda c: None if c.refusal is None else REFUSED.get(c.refusal, (c.refusal, ""))[0]),
    ]
    show(decision.candidates, columns, Output.TABLE)
    words = refused_in_words(decision.refused)
    if words and words not in said:
        say(f"Not chosen: {words}.")


def _show_dry_run(answer: "DryRun", output: Output) -> None:
    if output is not Output.TABLE:
        show_value(answer, output)
        return
    say(f"{answer.outcome}: {answer.detail}")
    if answer.start_at is not None and answer.finish_at is not None:
        say(
            f"It would start at {moment(answer.start_at)} and take"
            f" {ms((answer.finish_at - answer.start_at).total_seconds())}."
        )
    if answer.predicted is not None:
        predicted = answer.predicted
        say(
            f"Slower by: the function {percent(predicted.function)} (90 % bound {percent(predicted.function_upper)}), "
            f"the training there {percent(predicted.training)} (90 % bound {percent(predicted.training_upper)})."
        )
    if answer.earliest_deadline_ms is not None:
        say(f"The earliest deadline that would be accepted is {answer.earliest_deadline_ms:.0f} ms.")
    _show_decision(answer.decision, answer.detail)


def ps(
    function: Annotated[str | None, typer.Option(autocompletion=functions, help="Of this function only.")] = None,
    state: Annotated[
        str | None, typer.Option(autocompletion=states, help="In this state only: queued, running, succeeded…")
    ] = None,
    since: Annotated[str | None, typer.Option(metavar="TIME", help="That came so long ago at most: 30m, 2h.")] = None,
    slow: Annotated[str | None, typer.Option(metavar="TIME", help="That took so long at least: 500ms, 5s.")] = None,
    limit: Annotated[int, typer.Option(min=1, help="As many at most.")] = 20,
    all_projects: AllProjectsOption = False,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Show it again every 2 s, until Ctrl-C.")] = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """Recent invocations, the newest first."""
    since_s = span_s(since) if since is not None else None
    slow_s = span_s(slow) if slow is not None else 0.0
    columns: list[Column[Invocation]] = [
        ("id", lambda i: i.id),
        *([("project", lambda i: i.project)] if all_projects else []),
        ("function", lambda i: i.function),
        ("revision", lambda i: i.revision or None),
        ("state", lambda i: i.state),
        ("took", lambda i: ms(_took_s(i))),
        ("late", lambda i: f"{i.late_ms:.0f} ms" if i.late_ms else None),
        ("cold", lambda i: i.cold),
        ("cause", lambda i: i.cause),
        ("gpu", lambda i: i.gpu),
        ("attempt", lambda i: i.attempt or None),
        ("arrival", lambda i: moment(i.arrival_at)),
    ]
    with connected() as client, suppress(KeyboardInterrupt):
        while True:
            if since is None and slow is None and limit <= PAGE:
                rows = client.invocations(function=function, state=state, limit=limit, all_projects=all_projects).items
            else:
                every = client.each_invocation(function=function, state=state, all_projects=all_projects)
                rows = list(islice(_recent(every, since_s, slow_s), limit))
            if not rows and function is not None and not all_projects:
                # There may be none of that name, which this says.
                client.function(function)
            if watch and sys.stdout.isatty():
                write(end=CLEAR)
            show(rows, columns, output, optional=("revision", "attempt", "cause", "gpu", "arrival"))
            if not watch:
                if output is Output.TABLE:
                    if not all_projects and since is None and slow is None:
                        _say_elsewhere(client, rows, function, state)
                    say_page(client.url, "invocations")
                return
            sys.stdout.flush()
            time.sleep(WATCH_S)


def _say_elsewhere(client: "Client", own: "Sequence[Invocation]", function: str | None, state: str | None) -> None:
    """Say that other projects have such invocations, where the key is an operator's; ``own``: those of its project."""
    from smore_client import ApiError

    with suppress(ApiError):
        every = client.invocations(function=function, state=state, all_projects=True).items
        others = {str(one.project) for one in every if one.project} - {one.project for one in own}
        if others:
            say(f"Other projects have some too ({', '.join(sorted(others))}): smore ps --all-projects")


def _took_s(invocation: "Invocation") -> float | None:
    """Seconds from arrival to end, None while it has not ended."""
    if invocation.arrival_at is None or invocation.finished_at is None:
        return None
    return (invocation.finished_at - invocation.arrival_at).total_seconds()


def _recent(invocations: "Iterable[Invocation]", since_s: float | None, slow_s: float) -> "Iterator[Invocation]":
    """Those of the newest that came within ``since_s`` seconds and took ``slow_s`` at least."""
    earliest = datetime.now(UTC) - timedelta(seconds=since_s) if since_s is not None else None
    for invocation in invocations:
        if earliest is not None and invocation.arrival_at is not None and invocation.arrival_at < earliest:
            return
        if (_took_s(invocation) or 0.0) >= slow_s:
            yield invocation
