"""
``smore …``: the platform from a shell.

What a command needs beyond typer is imported inside it: ``smore --help`` reads neither the HTTP client nor the
settings.
"""

import json
import os
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Any, Final

import typer

from smore.cli import admin, traces
from smore.cli.programs import STARTED
from smore.cli.terminal import EXIT_FAILED as EXIT_FAILED
from smore.cli.terminal import EXIT_UNREACHABLE as EXIT_UNREACHABLE
from smore.cli.terminal import EXIT_USAGE as EXIT_USAGE
from smore.cli.terminal import (
    Column,
    Id,
    Output,
    OutputOption,
    connected,
    fail,
    moment,
    ms,
    percent,
    show,
    show_value,
    span_s,
)

if TYPE_CHECKING:
    from smore.local import Endpoints
    from smore_client.types import Attempt, Decision, DryRun, Explanation, Gpu, Invocation

#: Seconds between two looks at a log that is followed.
FOLLOW_S: Final = 0.2

HELP = """
Deep-learning functions in the idle part of GPUs that are busy training.

The platform of this machine is spoken to, or the one at SMORE_URL with the key in SMORE_API_KEY.

Exit codes: 0 done; 1 the request was refused or failed; 2 wrong usage; 3 the platform cannot be reached.
"""

app = typer.Typer(
    help=HELP,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
functions = typer.Typer(help="Functions and their revisions; alone: list them.", invoke_without_command=True)
gpus = typer.Typer(help="GPU instances; alone: list them.", invoke_without_command=True)
jobs = typer.Typer(help="Serverful jobs; alone: list them.", invoke_without_command=True)
queues = typer.Typer(help="What waits, by function; alone: list it.", invoke_without_command=True)
keys = typer.Typer(help="API keys; alone: list them.", invoke_without_command=True)
profiles = typer.Typer(help="Measured co-locations.", no_args_is_help=True)
predictor = typer.Typer(help="The degradation predictor; alone: the version in force.", invoke_without_command=True)
prewarm = typer.Typer(
    help="How functions are kept ready; alone: as it is now, and what it came to.", invoke_without_command=True
)
app.add_typer(prewarm, name="prewarm")
app.add_typer(traces.traces, name="traces")
app.add_typer(profiles, name="profiles")
app.add_typer(predictor, name="predictor")
app.add_typer(functions, name="functions")
app.add_typer(gpus, name="gpus")
app.add_typer(jobs, name="jobs")
app.add_typer(queues, name="queues")
app.add_typer(keys, name="keys")
secrets = typer.Typer(help="Secrets of functions; alone: list their names.", invoke_without_command=True)
app.add_typer(secrets, name="secrets")


def read_input(text: str) -> Any:
    """The JSON of ``--input``: as it stands, in ``@file``, or on standard input (``-``)."""
    try:
        if text == "-":
            return json.load(sys.stdin)
        if text.startswith("@"):
            return json.loads(Path(text[1:]).read_text())
        return json.loads(text)
    except (OSError, ValueError) as error:
        raise typer.BadParameter(f"{text[:60]!r} is not JSON: {error}", param_hint="--input") from error


# ---- functions -------------------------------------------------------------------------------------------------------


@app.command()
def deploy(
    files: Annotated[list[Path], typer.Argument(help="function.yaml files, or folders that hold one and its code.")],
) -> None:
    """
    Register functions, or new revisions of them; returns when their first run has succeeded.

    A folder's code and weights are uploaded: a key that may do this has a shell on the GPU workers.
    """
    with connected() as client:
        for file in files:
            try:
                done = client.deploy(file)
            except (OSError, ValueError) as error:
                fail(str(error), EXIT_USAGE)
            print(f"{done.name} revision {done.revision}{'' if done.created else ' (as it was)'}")


def _list_functions(output: Output) -> None:
    with connected() as client:
        found = client.functions()
    columns: list[Column[Any]] = [
        ("name", lambda f: f.name),
        ("revision", lambda f: f.revision or None),
        ("entrypoint", lambda f: f.entrypoint),
        ("deadline", lambda f: None if f.deadline_ms is None else f"{f.deadline_ms:g} ms"),
        (
            "inputs",
            lambda f: "json" if f.inputs is None else [f"{t.name}:{t.datatype}{list(t.shape)}" for t in f.inputs],
        ),
    ]
    show(found, columns, output)


@functions.callback()
def functions_(context: typer.Context, output: OutputOption = Output.TABLE) -> None:
    if context.invoked_subcommand is None:
        _list_functions(output)


@functions.command("ls")
def functions_ls(output: OutputOption = Output.TABLE) -> None:
    """List functions."""
    _list_functions(output)


@functions.command("show")
def functions_show(name: str, output: OutputOption = Output.YAML) -> None:
    """Everything about one function."""
    with connected() as client:
        show_value(client.function(name), output)


@functions.command("revisions")
def functions_revisions(name: str, output: OutputOption = Output.TABLE) -> None:
    """A function's revisions."""
    with connected() as client:
        found = client.revisions(name)
    columns: list[Column[Any]] = [
        ("revision", lambda r: r.revision),
        ("state", lambda r: r.state),
        ("entrypoint", lambda r: r.entrypoint),
        ("created", lambda r: moment(r.created_at)),
        # The log follows; -o yaml has it.
        ("error", lambda r: r.error.partition("\n")[0] if r.error else None),
    ]
    show(found, columns, output)


@functions.command("rollback")
def functions_rollback(name: str, revision: int) -> None:
    """Give the traffic to an earlier revision."""
    with connected() as client:
        print(f"{name} revision {client.rollback(name, revision).revision}")


@functions.command("scale")
def functions_scale(
    name: str,
    min_warm: Annotated[
        int | None, typer.Option(help="Instances that stand ready at any time, on all GPU instances together.")
    ] = None,
    max_warm: Annotated[int | None, typer.Option(help="Instances on each GPU instance, at most.")] = None,
    keep_alive: Annotated[
        str | None, typer.Option(help="How long an idle one stays where no rule decides: 10m, 0, or -1 = for ever.")
    ] = None,
    mode: Annotated[str | None, typer.Option("--prewarm", help="Who decides: auto, off, or paper.")] = None,
) -> None:
    """Change how many instances of a function stand ready, until another revision takes its traffic."""
    keep: object = float(keep_alive) if keep_alive is not None and keep_alive.lstrip("-").isdigit() else keep_alive
    named = {"min_warm": min_warm, "max_warm": max_warm, "keep_alive": keep, "prewarm": mode}
    changes = {key: value for key, value in named.items() if value is not None}
    if not changes:
        fail("nothing to change: name one of --min-warm, --max-warm, --keep-alive, --prewarm")
    with connected() as client:
        client.set_scaling(name, changes)


@functions.command("quarantined")
def functions_quarantined(output: OutputOption = Output.TABLE) -> None:
    """List revisions that are shut out everywhere after faults of a device."""
    with connected() as client:
        found = client.quarantined()
    columns: list[Column[Any]] = [
        ("function", lambda q: q.function),
        ("revision", lambda q: q.revision),
        ("last fault", lambda q: q.cause),
        ("gpu", lambda q: q.gpu),
        ("since", lambda q: moment(q.at)),
    ]
    show(found, columns, output)


@functions.command("lift")
def functions_lift(name: str) -> None:
    """Let revisions of a function run again that were shut out."""
    with connected() as client:
        print(f"{name}: revision {', '.join(map(str, client.lift(name)))} may run again")


@functions.command("delete")
def functions_delete(name: str) -> None:
    """Delete a function; what waits for it fails."""
    with connected() as client:
        client.delete(name)


@functions.command("warm")
def functions_warm(
    name: str, gpu: Annotated[str | None, typer.Option(help="On this GPU instance only.")] = None
) -> None:
    """Load a function before it is asked for."""
    with connected() as client:
        print(" ".join(client.warm(name, gpu)))


@functions.command("offload")
def functions_offload(
    name: str, gpu: Annotated[str | None, typer.Option(help="On this GPU instance only.")] = None
) -> None:
    """Unload a function where it is idle."""
    with connected() as client:
        print(" ".join(client.offload(name, gpu)))


# ---- invocations -----------------------------------------------------------------------------------------------------


@app.command()
def invoke(
    function: str,
    given: Annotated[str, typer.Option("--input", "-i", help="JSON, @file with JSON, or - for standard input.")] = "{}",
    deadline_ms: Annotated[float | None, typer.Option(min=0, help="From now; instead of the function's own.")] = None,
    asynchronous: Annotated[bool, typer.Option("--async", help="Print the invocation's id and do not wait.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Ask what would become of it, and place nothing.")] = False,
    rows: Annotated[
        int | None, typer.Option(min=1, help="With --dry-run: how many rows it would have, in place of an input.")
    ] = None,
    output: Annotated[
        Output, typer.Option("-o", "--output", help="table: its output alone, as JSON; else all of it.")
    ] = Output.TABLE,
) -> None:
    """Run a function."""
    value = read_input(given)
    with connected() as client:
        if dry_run:
            asked = client.dry_run(function, None if rows is not None else value, rows=rows, deadline_ms=deadline_ms)
            _show_dry_run(asked, output)
            return
        if asynchronous:
            print(client.submit(function, value, deadline_ms=deadline_ms))
            return
        done = client.invoke(function, value, deadline_ms=deadline_ms)
    if sys.stderr.isatty():
        phases = ", ".join(f"{name} {value:.1f}" for name, value in done.timings_ms.items())
        print(f"{done.id} {done.state}{f' (ms: {phases})' if phases else ''}", file=sys.stderr)
    _show_output(done, output)


def _show_output(done: "Invocation", output: Output) -> None:
    if output is Output.TABLE:
        print(json.dumps(done.output, ensure_ascii=False))
    else:
        show_value(done, output)


@app.command()
def status(
    id_: Id,
    wait: Annotated[float | None, typer.Option(min=0, help="Seconds to wait for its end.")] = None,
    output: OutputOption = Output.YAML,
) -> None:
    """How an invocation stands."""
    with connected() as client:
        show_value(client.invocation(id_, wait_s=wait), output)


@app.command()
def result(id_: Id, output: OutputOption = Output.TABLE) -> None:
    """The output of an invocation that has succeeded."""
    with connected() as client:
        done = client.result(id_)
    if not done.done:
        fail(f"{id_} is {done.state}")
    _show_output(done, output)


@app.command()
def cancel(id_: Id) -> None:
    """Cancel an invocation, waiting or running."""
    with connected() as client:
        print(client.cancel(id_).state)


@app.command()
def explain(
    id_: Id,
    output: OutputOption = Output.TABLE,
    as_json: Annotated[bool, typer.Option("--json", help="The same as -o json.")] = False,
) -> None:
    """Why an invocation went as it did: what was considered, predicted and measured, and where the time went."""
    with connected() as client:
        found = client.explain(id_)
    if as_json or output is not Output.TABLE:
        show_value(found, Output.JSON if as_json else output)
        return
    _show_explanation(found)


def _show_explanation(found: "Explanation") -> None:
    gate, left = found.gate, ("" if found.complete else " (the history does not know all of it yet)")
    print(f"{found.id}  {found.function} revision {found.revision}  {found.state}{left}\n{found.summary}")
    needed = "knew of nothing against it" if gate.needed_ms is None else f"expected {gate.needed_ms:.1f} ms at least"
    now = "" if gate.now_ms is None else f"; of one that came now {gate.now_ms:.1f} ms"
    print(f"The gate {needed}, {gate.allowed_ms:.1f} ms were allowed{now}.")
    if found.waits is not None:
        print(f"{found.waits.before} of its function have earlier deadlines. {found.waits.detail}")
        if found.waits.decision is not None:
            _show_decision(found.waits.decision)
    for attempt in found.attempts:
        _show_attempt(attempt)


def _show_attempt(attempt: "Attempt") -> None:
    start = "cold start" if attempt.cold else "warm" if attempt.cold is not None else "has not ended"
    batch = f", batch of {attempt.batch}" if attempt.batch else ""
    beside = f", beside {' '.join([*attempt.co_runners, *attempt.jobs])}" if attempt.co_runners or attempt.jobs else ""
    print(
        f"\nAttempt {attempt.attempt} on {attempt.gpu}: {attempt.state} ({attempt.cause or '-'}),"
        f" {start}{batch}{beside}"
    )
    phases = attempt.phases_ms
    named = (
        ("queue", phases.queue),
        ("schedule", phases.schedule),
        ("dispatch", phases.dispatch),
        ("load", phases.load),
        ("run", phases.run),
    )
    print("ms: " + ", ".join(f"{name} {'-' if value is None else f'{value:.1f}'}" for name, value in named))
    if attempt.predicted is not None:
        said, was = attempt.predicted, attempt.measured
        lines: list[tuple[str, object, object, object]] = [
            ("run", ms(said.run_s), None, ms(was.run_s)),
            ("finish before deadline", ms(said.slack_s), None, ms(was.slack_s)),
            (
                "function slower by",
                percent(said.function_degradation),
                percent(said.function_degradation_upper),
                percent(was.function_degradation),
            ),
            (
                "training slower by",
                percent(said.training_degradation),
                percent(said.training_degradation_upper),
                percent(was.training_degradation),
            ),
        ]
        columns: list[Column[Any]] = [
            ("", lambda line: line[0]),
            ("predicted", lambda line: line[1]),
            ("90 % bound", lambda line: line[2]),
            ("measured", lambda line: line[3]),
        ]
        show(lines, columns, Output.TABLE)
    if attempt.decision is not None:
        _show_decision(attempt.decision)


def _show_decision(decision: "Decision") -> None:
    from smore.messages.wording import REFUSED, refused_in_words

    shadow = decision.shadow
    beside = "" if shadow is None else f"; {shadow.policy} in its shadow: {shadow.gpu or 'nowhere'}"
    priority = "" if decision.priority is None else f", priority {decision.priority:.4g}"
    print(f"Decided by {decision.policy} (seed {decision.seed}, table {decision.table or 'none'}{priority}){beside}")
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
    if decision.refused:
        print(f"Refused: {refused_in_words(decision.refused)}.")


def _show_dry_run(found: "DryRun", output: Output) -> None:
    if output is not Output.TABLE:
        show_value(found, output)
        return
    print(f"{found.outcome}: {found.detail}")
    if found.start_at is not None and found.finish_at is not None:
        print(
            f"It would start at {moment(found.start_at)} and take"
            f" {ms((found.finish_at - found.start_at).total_seconds())}."
        )
    if found.predicted is not None:
        own, training = found.predicted, found.predicted.training
        print(
            f"Slower by: the function {percent(own.function)} (90 % bound {percent(own.function_upper)}), "
            f"the training there {percent(training)} (90 % bound {percent(own.training_upper)})."
        )
    if found.earliest_deadline_ms is not None:
        print(f"The earliest deadline that would be accepted is {found.earliest_deadline_ms:.0f} ms.")
    _show_decision(found.decision)


@app.command()
def ps(
    function: Annotated[str | None, typer.Option(help="Of this function only.")] = None,
    state: Annotated[str | None, typer.Option(help="In this state only: queued, running, succeeded…")] = None,
    limit: Annotated[int, typer.Option(min=1, max=1000)] = 20,
    output: OutputOption = Output.TABLE,
) -> None:
    """Recent invocations, the newest first."""
    with connected() as client:
        found = client.invocations(function=function, state=state, limit=limit).items
    columns: list[Column[Any]] = [
        ("id", lambda i: i.id),
        ("function", lambda i: i.function),
        ("revision", lambda i: i.revision or None),
        ("state", lambda i: i.state),
        ("cause", lambda i: i.cause),
        ("gpu", lambda i: i.gpu),
        ("attempt", lambda i: i.attempt or None),
        ("arrival", lambda i: moment(i.arrival_at)),
    ]
    show(found, columns, output)


# ---- queues ----------------------------------------------------------------------------------------------------------


def _list_queues(output: Output) -> None:
    with connected() as client:
        found = client.queues()
    columns: list[Column[Any]] = [
        ("function", lambda q: q.function),
        ("waiting", lambda q: q.depth),
        ("oldest", lambda q: f"{q.oldest_wait_s:.2f} s"),
        ("priority", lambda q: q.priority),
        ("paused", lambda q: q.paused),
        ("draining", lambda q: q.draining),
        ("boost", lambda q: None if q.boost == 1.0 else q.boost),
        ("pinned to", lambda q: q.pinned_to),
    ]
    show(found, columns, output)


@queues.callback()
def queues_(context: typer.Context, output: OutputOption = Output.TABLE) -> None:
    if context.invoked_subcommand is None:
        _list_queues(output)


@queues.command("ls")
def queues_ls(output: OutputOption = Output.TABLE) -> None:
    """List what waits."""
    _list_queues(output)


@queues.command("pause")
def queues_pause(function: str) -> None:
    """Stop dispatching; requests go on being accepted and their deadlines run."""
    with connected() as client:
        client.pause(function)


@queues.command("resume")
def queues_resume(function: str) -> None:
    """Dispatch again."""
    with connected() as client:
        client.resume(function)


# ---- GPU instances ---------------------------------------------------------------------------------------------------


def _list_gpus(output: Output) -> None:
    with connected() as client:
        found = client.gpus()
    columns: list[Column[Gpu]] = [
        ("gpu", lambda g: g.id),
        ("kind", lambda g: g.kind),
        ("device", lambda g: g.device),
        ("sharing", lambda g: g.sharing_mode),
        ("used", lambda g: percent(g.utilisation)),
        ("by functions", lambda g: percent(g.function_utilisation)),
        ("memory MiB", lambda g: f"{g.memory_used_mib:.0f}/{g.memory_total_mib:.0f}"),
        ("running", lambda g: f"{g.running}/{g.slots}"),
        ("warm", lambda g: [f"{w.function}:{w.state}" for w in g.warm]),
        ("paused", lambda g: g.paused),
        ("draining", lambda g: "drained" if g.drained else g.draining),
        ("health", lambda g: g.health or "ok"),
        ("strangers", lambda g: [f"{s.pid}:{'allowed' if s.allowed else 'protected'}" for s in g.strangers or ()]),
    ]
    show(found, columns, output)


@gpus.callback()
def gpus_(context: typer.Context, output: OutputOption = Output.TABLE) -> None:
    if context.invoked_subcommand is None:
        _list_gpus(output)


@gpus.command("ls")
def gpus_ls(output: OutputOption = Output.TABLE) -> None:
    """List GPU instances."""
    _list_gpus(output)


@gpus.command("pause")
def gpus_pause(gpu: str) -> None:
    """Place nothing new on a GPU instance."""
    with connected() as client:
        client.pause_gpu(gpu)


@gpus.command("resume")
def gpus_resume(gpu: str) -> None:
    """Place on it again."""
    with connected() as client:
        client.resume_gpu(gpu)


# ---- what was measured, and what is predicted ------------------------------------------------------------------------

Files = Annotated[list[Path], typer.Argument(help="Files of rows, as `python -m ml.profile` writes them.")]
Data = Annotated[
    list[Path] | None,
    typer.Option("--data", help="A file of rows, once for each; without it the rows that come with the platform."),
]
Out = Annotated[Path, typer.Option("--out", help="Folder for the pictures and report.md.")]


def learn(name: str, *words: str) -> None:
    """Run a program of :data:`smore.cli.programs.STARTED`, with this machine's platform in its environment."""
    import subprocess

    from smore import local

    environment = dict(os.environ)
    reached = local.endpoints(_home())
    if reached is not None:
        environment.setdefault("SMORE_REDIS__URL", reached.redis_url)
        environment.setdefault("SMORE_POSTGRES__URL", reached.postgres_url)
    root = Path(__file__).parents[2]
    if not (root / "ml").is_dir():
        fail("this is done where the platform runs: its checkout or image holds the folder ml")
    environment["PYTHONPATH"] = str(root)
    code = subprocess.run([sys.executable, "-m", STARTED[name], *words], env=environment, check=False).returncode
    if code:
        raise typer.Exit(code)


def _report(kind: str, data: list[Path] | None, out: Path) -> None:
    learn("report", kind, *(["--data", *map(str, data)] if data else []), "--out", str(out))


@profiles.command("import")
def profiles_import(files: Files) -> None:
    """Take measured rows in; the same row twice counts once. The next retraining uses them."""
    learn("learning", "import", *map(str, files))


@profiles.command("report")
def profiles_report(data: Data = None, out: Out = Path("profiles-report")) -> None:
    """The paper's figures 1 to 3 and table II from measured rows, and whether its observations hold there."""
    _report("profiles", data, out)


def _show_predictor(output: Output) -> None:
    with connected() as client:
        found = client.predictor()
    if output is not Output.TABLE:
        show_value(found, output)
        return
    print(
        f"version {found.version}"
        + (f" of {found.created_at:%Y-%m-%d %H:%M:%S %Z}: {found.reason}" if found.created_at else ": none yet")
    )
    columns: list[Column[Any]] = [
        ("device", lambda p: p.device),
        ("sharing", lambda p: p.sharing_mode),
        ("trainings", lambda p: len(p.trainings)),
        ("functions", lambda p: len(p.functions)),
        ("measured", lambda p: f"{p.measured} of {len(p.trainings) * len(p.functions)}"),
        ("weights", lambda p: p.weights),
    ]
    show(found.places, columns, output)


@predictor.callback()
def predictor_(context: typer.Context, output: OutputOption = Output.TABLE) -> None:
    if context.invoked_subcommand is None:
        _show_predictor(output)


@predictor.command("show")
def predictor_show(output: OutputOption = Output.TABLE) -> None:
    """The version in force: where it holds, and with -o yaml what it rests on and how far it errs."""
    _show_predictor(output)


@predictor.command("ask")
def predictor_ask(
    job: Annotated[str, typer.Argument(help="A job's id, or a workload such as resnet50/cpu/training/8.")],
    function: Annotated[str, typer.Argument(help="A function's name, or a model such as bert/cpu.")],
    k: Annotated[int, typer.Option("-k", min=1, max=8, help="Invocations at a time.")] = 1,
    output: OutputOption = Output.TABLE,
) -> None:
    """What a function and a training would cost each other."""
    with connected() as client:
        found = client.predictions(job, function, k)
    columns: list[Column[Any]] = [
        ("device", lambda p: p.device),
        ("sharing", lambda p: p.sharing_mode),
        ("function", lambda p: p.function),
        (
            "training loses",
            lambda p: f"{percent(p.training_degradation)} (90 %: {percent(p.training_degradation_upper)})",
        ),
        (
            "function loses",
            lambda p: f"{percent(p.function_degradation)} (90 %: {percent(p.function_degradation_upper)})",
        ),
        ("from", lambda p: "a measurement" if p.measured else "the predictor" if p.known else "the conservative rule"),
    ]
    show(found, columns, output)


@predictor.command("report")
def predictor_report(data: Data = None, out: Out = Path("predictor-report")) -> None:
    """Predicted against observed degradation, out of fold, as pictures and figures."""
    _report("predictor", data, out)


@predictor.command("retrain")
def predictor_retrain() -> None:
    """Fit a challenger on all rows now; it is published if it is better."""
    learn("learning", "retrain")


@predictor.command("rollback")
def predictor_rollback() -> None:
    """Put the version before in force again, as a new version."""
    learn("learning", "rollback")


Since = Annotated[str, typer.Option(help="How far back is counted: 90s, 30m, 24h.")]


def _show_prewarm(since: str, output: Output) -> None:
    with connected() as client:
        found = client.prewarm(span_s(since))
    if output is not Output.TABLE:
        show_value(found, output)
        return
    counts = found.counts
    print(
        (f"rule {found.rule}" if found.on else "switched off")
        + (f", forecasts {found.forecasts or 'none'}" if found.leading else ", no leader")
        + f"; in {since}: {counts.cold} of {counts.invocations} cold, {counts.saved} saved, {counts.idle_gb_s:.1f} GB s"
        " idle" + (f", {counts.host_loads} loads out of host memory" if counts.host_loads else "")
    )
    columns: list[Column[Any]] = [
        ("function", lambda f: f.function),
        ("mode", lambda f: f.mode),
        ("follows", lambda f: f.source + (f" ({f.silence})" if f.silence else "")),
        (
            "ready",
            lambda f: (
                f"{f.loaded} of {f.wanted}"
                + (" (no room)" if f.unmet else "")
                + (f", {f.parked} parked" if f.parked else "")
            ),
        ),
        ("hit", lambda f: f.counts.hits),
        ("late", lambda f: f.counts.late),
        ("wasted", lambda f: f.counts.wasted),
        ("failed", lambda f: f.counts.failed),
        ("saved", lambda f: f.counts.saved),
        ("cold", lambda f: f"{f.counts.cold} of {f.counts.invocations}"),
        (
            "because",
            lambda f: ", ".join(
                f"{reason} {count}" for reason, count in sorted(f.counts.unforeseen.items(), key=lambda i: -i[1])
            ),
        ),
        ("GB s idle", lambda f: f"{f.counts.idle_gb_s:.1f}"),
    ]
    show(found.functions, columns, output)


@prewarm.callback()
def prewarm_(context: typer.Context, since: Since = "24h", output: OutputOption = Output.TABLE) -> None:
    if context.invoked_subcommand is None:
        _show_prewarm(since, output)


@prewarm.command(
    "report", context_settings={"ignore_unknown_options": True, "allow_extra_args": True, "help_option_names": []}
)
def prewarm_report(context: typer.Context) -> None:
    """
    A page: what keeping ready came to, and what other rules would have made of it: smore prewarm report --since 24h
    --out page.
    """
    learn("prewarm", *context.args)


# ---- what would be ---------------------------------------------------------------------------------------------------

#: The program behind says itself what it takes.
PASSED_ON: Final = {"ignore_unknown_options": True, "allow_extra_args": True, "help_option_names": []}


@app.command(context_settings=PASSED_ON)
def compare(context: typer.Context) -> None:
    """Policies on a simulated cluster, with intervals and a page of figures: smore compare --preset fig14 --seeds 10 --out page.

    With --live on the devices at hand, through REST, and in the simulator beside it: smore compare --live --repeats 3 --out page.
    """
    if "--live" in context.args:
        learn("live", *(word for word in context.args if word != "--live"))
    else:
        learn("compare", "compare", *context.args)


@app.command(context_settings=PASSED_ON)
def replay(context: typer.Context) -> None:
    """
    What another policy would have done with what really came: smore replay --since 24h --policy edf-util --gpus +1.
    """
    learn("replay", *context.args)


# ---- jobs ------------------------------------------------------------------------------------------------------------


def _became(job: Any) -> str:
    """Its state, and how it ended."""
    if job.suspended:
        return f"{job.state}, suspended by a signal: no steps"
    match job.outcome:
        case None:
            return str(job.state)
        case "killed":
            return f"{job.state}: killed by {job.signal}"
        case "failed":
            return f"{job.state}: failed, exit code {job.exit_code}"
        case "refused" | "detached":
            return f"{job.state}: {job.outcome}, {job.reason}"
        case "stopped":
            return f"{job.state}: stopped by its owner"
        case _:
            return f"{job.state}: {job.outcome}"


def _list_jobs(output: Output) -> None:
    with connected() as client:
        found = client.jobs()
    columns: list[Column[Any]] = [
        ("id", lambda j: j.id),
        ("name", lambda j: j.name),
        ("state", _became),
        ("gpus", lambda j: j.gpus),
        ("iterations", lambda j: j.iterations),
        ("alone", lambda j: ms(j.solo_s)),
        ("shared", lambda j: ms(j.shared_s)),
        ("degradation", lambda j: percent(j.degradation) if j.measured else "unmeasured"),
        ("loss", lambda j: percent(j.loss)),
        ("budget", lambda j: percent(j.budget)),
        ("source", lambda j: j.source),
        ("command", lambda j: j.argv),
    ]
    show(found, columns, output)


@jobs.callback()
def jobs_(context: typer.Context, output: OutputOption = Output.TABLE) -> None:
    if context.invoked_subcommand is None:
        _list_jobs(output)


@jobs.command("ls")
def jobs_ls(output: OutputOption = Output.TABLE) -> None:
    """List serverful jobs."""
    _list_jobs(output)


@jobs.command("start", context_settings={"ignore_unknown_options": True})
def jobs_start(
    name: str,
    argv: Annotated[list[str], typer.Argument(help="After --: an allowed module and its arguments.")],
    gpu: Annotated[
        list[str] | None, typer.Option(help="GPU instance, once for each; without it the least loaded one.")
    ] = None,
    workload: Annotated[
        str | None, typer.Option(help="Which profiled training it is: model/size/training/batch.")
    ] = None,
    budget: Annotated[
        float | None, typer.Option(help="What it may lose to functions at most, 0.01 to 1; without it 0.1.")
    ] = None,
    memory: Annotated[
        str | None, typer.Option(help="Kept for it on each GPU instance, such as 12GiB; else what it was seen to hold.")
    ] = None,
) -> None:
    """Start a training job, for example: smore jobs start night -- zoo.train --model resnet50."""
    with connected() as client:
        print(client.start_job(name, argv, gpu, workload=workload, budget=budget, memory=memory).id)


@jobs.command("show")
def jobs_show(id_: Id, output: OutputOption = Output.YAML) -> None:
    """Everything about one job."""
    with connected() as client:
        show_value(client.job(id_), output)


@jobs.command("statement")
def jobs_statement(id_: Id, output: OutputOption = Output.TABLE) -> None:
    """What functions have got beside a job, and what it has lost to them."""
    with connected() as client:
        found = client.statement(id_)
    if output is Output.TABLE:
        print(found.summary)
        for step in found.steps[:10]:
            print(
                f"{moment(step.at)}  {step.gpu}  {step.step}  (duty {step.duty:.0%}, predictions x {step.factor:.2f})"
            )
    else:
        show_value(found, output)


@jobs.command("stop")
def jobs_stop(id_: Id) -> None:
    """End a job. One that runs elsewhere is let go: it trains on, and is not followed any more."""
    with connected() as client:
        stopped = client.stop_job(id_)
    if stopped.source == "started" or stopped.state != "stopping":
        print(f"{stopped.name} is {stopped.state}")
    else:
        print(f"{stopped.name} is let go; it runs elsewhere and trains on")


# ---- keys ------------------------------------------------------------------------------------------------------------


def _list_keys(output: Output) -> None:
    with connected() as client:
        found = client.keys()
    columns: list[Column[Any]] = [
        ("id", lambda k: k.id),
        ("name", lambda k: k.name),
        ("project", lambda k: k.project),
        ("scopes", lambda k: k.scopes),
        ("created", lambda k: moment(k.created_at)),
    ]
    show(found, columns, output)


@keys.callback()
def keys_(context: typer.Context, output: OutputOption = Output.TABLE) -> None:
    if context.invoked_subcommand is None:
        _list_keys(output)


@keys.command("ls")
def keys_ls(output: OutputOption = Output.TABLE) -> None:
    """List API keys."""
    _list_keys(output)


@keys.command("create")
def keys_create(
    name: str,
    scope: Annotated[
        list[str] | None, typer.Option(help="invoke, read, deploy, jobs or admin, once for each; else invoke, read.")
    ] = None,
    project: Annotated[str | None, typer.Option(help="Of this project; default: that of your key.")] = None,
) -> None:
    """Create an API key and print it. It is shown this once."""
    with connected() as client:
        made = client.create_key(name, scope or ["invoke", "read"], project)
    print(made.key)


@keys.command("revoke")
def keys_revoke(id_: Id) -> None:
    """Make a key worthless."""
    with connected() as client:
        client.revoke_key(id_)


# ---- secrets ---------------------------------------------------------------------------------------------------------


def _list_secrets(output: Output) -> None:
    with connected() as client:
        found = client.secrets()
    columns: list[Column[Any]] = [("name", lambda s: s.name), ("set", lambda s: moment(s.updated_at))]
    show(found, columns, output)


@secrets.callback()
def secrets_(context: typer.Context, output: OutputOption = Output.TABLE) -> None:
    if context.invoked_subcommand is None:
        _list_secrets(output)


@secrets.command("list")
def secrets_list(output: OutputOption = Output.TABLE) -> None:
    """List the names of secrets; nobody is told their values."""
    _list_secrets(output)


@secrets.command("set")
def secrets_set(
    name: str,
    file: Annotated[typer.FileText | None, typer.Option("--file", "-f", help="Read the value from here.")] = None,
) -> None:
    """
    Set a secret, or replace it. The value is read from a file, a pipe or the terminal: a command line is there for all
    to see.
    """
    if file is None and sys.stdin.isatty():
        value = typer.prompt(f"value of {name}", hide_input=True)
    else:
        value = (file or sys.stdin).read().removesuffix("\n")
    with connected() as client:
        client.set_secret(name, value)


@secrets.command("rm")
def secrets_rm(name: str) -> None:
    """Delete a secret. What has it loaded keeps it until it is offloaded."""
    with connected() as client:
        client.delete_secret(name)


# ---- this machine's platform -----------------------------------------------------------------------------------------


def _home() -> Path:
    from smore.process.settings import Settings

    return Settings().home


@app.command()
def up(
    foreground: Annotated[
        bool, typer.Option("--foreground", "-F", help="Stay, and stop everything on Ctrl-C.")
    ] = False,
) -> None:
    """Start the whole platform on this machine; where it runs already, say where."""
    from smore import local

    home = _home()
    try:
        if foreground:
            local.run_foreground(home, started=lambda reached: print(greeting(reached, home), flush=True))
        else:
            print(greeting(local.up(home), home))
    except (local.ServerMissing, local.StartFailed) as error:
        fail(str(error))


def greeting(reached: "Endpoints", home: Path) -> str:
    """What ``up`` tells: where the platform is, the key, three calls to paste."""
    file = home / "key"
    try:
        key = file.read_text().strip()
    except OSError:
        key = "(not there yet)"
    call = f'curl -sS -H "Authorization: Bearer $(cat {file})" -H "Content-Type: application/json"'
    functions_url = f"{reached.gateway_url}/v1/functions/echo"
    document = {
        "apiVersion": "smore/v1",
        "kind": "Function",
        "metadata": {"name": "echo"},
        "spec": {"entrypoint": "zoo.echo:Function"},
    }
    return f"""\
SMore is up: {reached.gateway_url}   (API document: {reached.gateway_url}/docs)
API key:     {key}   (in {file})

Deploy a function:
  {call} -X PUT {functions_url} -d '{json.dumps(document)}'
Run it:
  {call} {functions_url}/invocations -d '{{"input": {{"x": [1, 2, 3]}}}}'
See the GPU instances:
  smore gpus

`smore down` ends it, `smore logs -f` shows what it does."""


@app.command()
def down(jobs: Annotated[bool, typer.Option("--jobs", help="End training jobs too.")] = False) -> None:
    """Stop the platform of this machine; what is queued stays on disk, and training goes on unless --jobs is given."""
    from smore import local
    from smore_client import Client, ClientError

    training = []
    if local.endpoints(_home()) is not None:
        with suppress(ClientError), Client() as client:
            training = [job for job in client.jobs() if job.state in ("starting", "running", "stopping")]
            until = time.monotonic() + 20
            for job in training if jobs else ():
                client.stop_job(job.id)
            while jobs and training and time.monotonic() < until:
                time.sleep(0.1)
                training = [job for job in training if client.job(job.id).state not in ("ended", "lost")]
    local.down(_home())
    for job in training:
        print(f"training goes on: {job.name} ({job.id}) on {', '.join(job.gpus)}; the next `smore up` adopts it")


@app.command()
def health() -> None:
    """Whether the platform can do work, and this machine's processes."""
    from smore import local

    for process in local.status(_home()):
        print(f"{process.name:<24} {process.state:<10} {process.pid or '-'}")
    if (left := local.abandoned(_home())) is not None:
        print(f"warning: the supervisor (process {left[0]}) was killed; `smore up` takes over", file=sys.stderr)
    with connected() as client:
        client.healthy()
        print(json.dumps(client.ready()))


@app.command()
def version() -> None:
    """The version of this program."""
    from importlib.metadata import PackageNotFoundError
    from importlib.metadata import version as installed

    try:
        print(installed("smore-platform"))
    except PackageNotFoundError:
        print("unknown: not installed")


@app.command()
def logs(
    process: Annotated[str | None, typer.Argument(help="gateway, worker-cpu0, redis…; without it all of them.")] = None,
    follow: Annotated[bool, typer.Option("-f", "--follow", help="Go on as they grow, until Ctrl-C.")] = False,
    lines: Annotated[int, typer.Option("-n", "--lines", min=0, help="Lines of each to begin with.")] = 20,
) -> None:
    """The logs of this machine's processes."""
    folder = _home() / "logs"
    files = sorted(folder.glob("*.log"))
    if process is not None:
        files = [file for file in files if file.stem == process]
        if not files:
            known = ", ".join(sorted(file.stem for file in folder.glob("*.log"))) or "none"
            fail(f"there is no log of {process} in {folder} (there are: {known})")
    tails = [Tail(file, "" if process else f"{file.stem} | ", lines) for file in files]
    try:
        for tail in tails:
            tail.copy(sys.stdout)
        while follow:
            sys.stdout.flush()
            time.sleep(FOLLOW_S)
            for tail in tails:
                tail.copy(sys.stdout)
    except KeyboardInterrupt:
        pass


class Tail:
    """The end of a growing text file; one that was cut or replaced is read from its beginning again."""

    def __init__(self, path: Path, prefix: str, lines: int) -> None:
        self._path = path
        self._prefix = prefix
        # Held open: the rest of a file that is rotated away is still read, and its inode number cannot come back for
        # the new one.
        self._file = path.open("rb")
        data = self._file.read()
        # Whole lines only: what is still being written comes with the next look.
        end = data.rfind(b"\n") + 1
        kept = data[:end].splitlines(keepends=True)[-lines:] if lines else []
        self._at = end - sum(map(len, kept))

    def copy(self, out: IO[str]) -> None:
        """Write the lines that came since the last time."""
        self._read(out)
        try:
            replaced = not os.path.samestat(self._path.stat(), os.fstat(self._file.fileno()))
        except FileNotFoundError:
            return  # between two files of a rotation
        if replaced:
            self._file.close()
            self._file, self._at = self._path.open("rb"), 0
            self._read(out)

    def _read(self, out: IO[str]) -> None:
        if os.fstat(self._file.fileno()).st_size < self._at:
            self._at = 0
        self._file.seek(self._at)
        data = self._file.read()
        end = data.rfind(b"\n") + 1
        self._at += end
        for line in data[:end].decode(errors="replace").splitlines():
            print(f"{self._prefix}{line}", file=out)


admin.add_to(app, queues=queues, gpus=gpus, jobs=jobs)


def main() -> None:
    """The entry point of ``smore``."""
    app(prog_name="smore")


if __name__ == "__main__":
    main()
