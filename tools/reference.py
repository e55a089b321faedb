"""
Writes the reference pages in ``docs/reference/`` from the code: ``python -m tools.reference``. With ``--check`` it only
compares them.

Each page is made from the code that the product itself uses: the class of the settings, the parser of function.yaml,
the table of error codes, the commands of the CLI, the metrics, the types of the event stream and
the transition table of an invocation. Nothing is started. ``make fmt`` writes the pages, ``make check`` compares them.
"""

import argparse
import ast
import inspect
import sys
import typing
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import Any, Final

import msgspec
import typer
from prometheus_client import Counter, Gauge, Histogram
from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from api import errors as api_errors
from api.errors import FAILURE, STATUS, Ended, outcome
from lab.bench.report import ROOT
from smore.cli.app import app as cli
from smore.domain import errors as domain_errors
from smore.domain import function, invocation, job
from smore.domain.errors import CallerError, DeadlineExpired, SmoreError
from smore.domain.invocation import Cause, State
from smore.messages import stream
from smore.process import observability, vault
from smore.process.environment import comments, described, nested, type_text
from smore.process.settings import Settings
from tools.markdown import NONE, Incomplete, page, prose, table

FOLDER: Final = Path("docs/reference")

#: What a field of function.yaml means. The fields themselves, their defaults and bounds are read from the parser.
FUNCTION_YAML: Final[Mapping[str, str]] = {
    "spec.entrypoint": "`module:Class`, the handler; required. Found in the uploaded folder, or on the workers' path",
    "spec.class": "`standard`, or `batch` for work that can wait: it runs in what others leave; a call may lower it",
    "spec.artifact": "the uploaded folder, by digests; `smore deploy FOLDER` fills it in",
    "spec.inputs": "a list of tensors, or `json` for JSON values",
    "spec.outputs": "as `inputs`; tensors are held against the outputs of the first run at the deploy, in `smore run` too",
    "spec.inputs[].name": "of the tensor; letters, digits, inner `_ . / -`",
    "spec.inputs[].datatype": "a datatype of the Open Inference Protocol",
    "spec.inputs[].shape": "sizes; the first is -1 (rows), -1 elsewhere is any size",
    "spec.requirements": "packages that the environment gets; uploaded folders only",
    "spec.secrets": "names of the project's secrets that the handler finds in its environment",
    "spec.slo.deadline": "duration from arrival within which an invocation must end",
    "spec.slo.on_late": "what becomes of a run past its deadline: `finish` (it goes on; `late_ms` says how late it was)"
    " or `drop` (it ends as `expired`; where all of its batch is late, its instance ends with it)",
    "spec.slo.precedence": "`true`: it comes before trainings, as far as their budgets go, and pays them for all of its run;"
    " operators alone; on CPU partitions",
    "spec.resources.gpu_memory": "size; memory of one warm instance. On a CPU partition it bounds the process's memory of the"
    " machine, to so much and 128 MiB. 0 = no memory of the GPU",
    "spec.batching.max_size": "invocations that may run together",
    "spec.scaling.min_warm": "instances that stand ready at any time, over all GPU instances",
    "spec.scaling.max_warm": "instances on each GPU instance",
    "spec.scaling.keep_alive": "duration for which an idle instance stays where no rule decides; -1 = for ever",
    "spec.scaling.prewarm": "`auto` (the platform's rule), `off`, or `paper` (LS-LSTM)",
    "spec.retries.max_attempts": "attempts of an invocation",
    "spec.limits.max_pending": "invocations that may wait",
    "spec.limits.timeout": "duration of one run",
    "spec.limits.payload": "size of one input",
    "spec.profile.model": "the profiled model that the function is, `name/size`",
    "spec.profile.run_ms": "rows: milliseconds of a warm run. All are multiplied so that they fit the run of the example at the"
    " deploy; measured runs follow",
    "spec.profile.load_ms": "milliseconds of a load",
    "spec.profile.usage_gain": "share of the device that the function puts to use beside a training",
    "spec.profile.utilisation": "share of the device that it uses alone; 0 = not said",
    "spec.profile.degradation": "what it costs a training, and what a training costs it",
}

#: Modules whose errors a caller may see.
ERRORS: Final = tuple(module.__name__ for module in (api_errors, domain_errors, vault))

#: Codes of answers that the web framework makes without one of our errors, and their titles.
UNRAISED: Final[Mapping[str, str]] = {"method_not_allowed": "Method Not Allowed"}

#: Why an invocation ended as it did, or went back to the queue.
CAUSES: Final[Mapping[invocation.Cause, str]] = {
    invocation.Cause.OK: "it succeeded",
    invocation.Cause.HANDLER_ERROR: "the handler raised an exception",
    invocation.Cause.INVALID_INPUT: "the input is not what the handler takes",
    invocation.Cause.CRASHED: "the runner ended, or broke the protocol, while the invocation ran alone",
    invocation.Cause.CONTEXT_LOST: "the runner lost its CUDA context",
    invocation.Cause.OUT_OF_MEMORY: "the function used more memory than it may",
    invocation.Cause.TIMED_OUT: "the run took longer than `limits.timeout`",
    invocation.Cause.LOAD_FAILED: "the handler could not be loaded",
    invocation.Cause.BAD_OUTPUT: "the output is not what the function declares (tensors, or the record of a handler), or cannot be encoded",
    invocation.Cause.RESULT_TOO_LARGE: "the result is larger than `SMORE_QUEUE__MAX_RESULT_BYTES`",
    invocation.Cause.QUARANTINED: "the revision is kept out after crashes",
    invocation.Cause.FUNCTION_DELETED: "the function was deleted while the invocation waited",
    invocation.Cause.DISPATCH_LIMIT: "too many dispatches were lost before user code began",
    invocation.Cause.ATTEMPT_LIMIT: "all attempts are used",
    invocation.Cause.DEADLINE_EXPIRED: "the deadline passed, or could not be met any more",
    invocation.Cause.INFEASIBLE: "it fits no GPU instance, even an idle one",
    invocation.Cause.CANCELLED: "somebody cancelled it",
    invocation.Cause.PAYLOAD_LOST: "its payload was in memory alone and is gone; the gateway queues it again",
    invocation.Cause.WORKER_LOST: "its worker ended, or the worker's lease of a run ran out; it returned to the queue",
    invocation.Cause.DISPATCH_LOST: "no worker started it in time; it returned to the queue",
    invocation.Cause.WORKER_BUSY: "the worker could not run it in time; it returned to the queue",
    invocation.Cause.DEVICE_FULL: "others took the device's memory; it returned to the queue",
}


#: Which processes serve the families of a registry (smore/process/observability.py: FAMILIES).
METRIC_PROCESSES: Final[Mapping[str, str]] = {
    "gateway": "gateway",
    "scheduler": "leader and standby",
    "worker": "GPU worker",
    "control": "control",
}

#: From when on there is a series of a family with labels, where that is before its first use.
METRIC_FROM: Final[Mapping[str, str]] = {
    "smore_build_info": "start",
    "smore_process_info": "start",
    "smore_paused": "lead (platform)",
    "smore_drained": "lead (platform)",
    "smore_queue_depth": "function",
    "smore_invocations_ended_total": "function",
    "smore_deadline_missed_total": "function",
    "smore_gpu_healthy": "start",
    "smore_gpu_reporting": "lead",
    "smore_jobs_ended_total": "project",
    "smore_job_restarts_total": "lead",
    "smore_job_placements_total": "lead",
    "smore_job_promises_total": "lead",
}

#: Fields with the same meaning in several events of the stream. A comment ``#:`` above a field replaces it.
EVENT_FIELDS: Final[Mapping[str, str]] = {
    "version": "of the entry's format",
    "function": "`project/name`",
    "revision": "number of the function's revision",
    "gpu": "name of the GPU instance",
    "id": "of the invocation",
    "at_us": "when it happened",
    "arrival_us": "when the invocation was accepted",
    "deadline_us": "its deadline",
    "finished_us": "when it ended",
    "rows": "rows of its input",
    "shape": "names, datatypes and sizes of its tensors; only invocations of one shape share a batch",
    "attempt": "number of the attempt, from 1",
    "cause": "one of the [causes](errors.md#causes)",
    "key_id": "of the API key that sent it",
    "trace": "the caller's `traceparent`; '' = none",
    "memory_kib": "memory that it takes, KiB",
}


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:]


def _missing(what: str, code: Iterable[str], described: Iterable[str]) -> None:
    new, gone = sorted(set(code) - set(described)), sorted(set(described) - set(code))
    if new or gone:
        raise Incomplete(f"tools/reference.py: {what}: not described: {new}; described, but not in the code: {gone}")


# ---- pages -----------------------------------------------------------------------------------------------------------


def settings() -> str:
    groups: dict[str, list[tuple[str, str, str, str]]] = {}
    for one in described():
        if not one.meaning:
            raise Incomplete(f"smore/process/settings.py: {one.owner}.{one.path[-1]} has no comment that explains it")
        row = (f"`{one.variable}`", type_text(one.field.annotation), _default(one.field), one.meaning)
        groups.setdefault(one.path[0] if len(one.path) > 1 else "", []).append(row)
    heads = ("variable", "type", "default", "meaning")
    parts = [
        "Every setting is an environment variable: prefix `SMORE_`, `__` between levels. Objects are JSON; a list is JSON"
        " or has commas. `smore settings` shows what they are set to.",
        table(heads, groups.pop("")),
    ]
    for name, rows in groups.items():
        model = nested(Settings.model_fields[name])
        said = model.__doc__ if model is not None and model.__doc__ != BaseModel.__doc__ else ""
        parts += [f"## {name}", prose(said), table(heads, rows)]
    return page("Settings", *parts)


def _default(field: FieldInfo) -> str:
    value = field.default
    if value is PydanticUndefined:
        return "required"
    if value is None or value in ("", (), {}):
        return NONE
    return f"`{value}`"


def function_yaml() -> str:
    fields = dict(_fields())
    _missing("fields of function.yaml", fields, FUNCTION_YAML)
    rows = [(f"`{path}`", *fields[path], meaning) for path, meaning in FUNCTION_YAML.items()]
    return page(
        "function.yaml",
        "A function's description. [Your own model](../guides/own-model.md) has an example. An unknown field is refused with 422 "
        "`invalid_spec`, which names it.",
        "Durations are numbers of seconds or `800ms`, `5s`, `10m`, `1h`, `1d`; sizes are bytes or `200MiB`, `1.2GiB`, `8MB`. Beside "
        "`spec` a file has `apiVersion: smore/v1`, `kind: Function` and `metadata: {name, labels}`.",
        table(("field", "default", "bounds", "meaning"), rows),
    )


def _fields() -> Iterator[tuple[str, tuple[str, str]]]:
    """The fields that the parser of function.yaml reads: path → default and bounds, from its source."""
    tree = ast.parse(inspect.getsource(function))
    prefixes = {
        "parse_spec": "spec",
        "_profile": "spec.profile",
        "_scaling": "spec.scaling",
        "_tensors": "spec.inputs[]",
    }
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and node.name in prefixes:
            sections = {"reader": prefixes[node.name]}
            calls = [call for call in ast.walk(node) if isinstance(call, ast.Call)]
            for statement in ast.walk(node):
                if isinstance(statement, ast.Assign):
                    sections.update(_sections(statement, prefixes[node.name]))
            for call in calls:
                taken = _taken(call, sections)
                if taken:
                    yield taken


def _sections(statement: ast.Assign, prefix: str) -> Iterator[tuple[str, str]]:
    """The sections in an assignment like ``slo = reader.section("slo")``: name of the variable → path."""
    target = statement.targets[0]
    targets = target.elts if isinstance(target, ast.Tuple) else [target]
    values = statement.value.elts if isinstance(statement.value, ast.Tuple) else [statement.value]
    for variable, value in zip(targets, values, strict=False):
        match variable, value:
            case ast.Name(id=name), ast.Call(func=ast.Attribute(attr="section"), args=[ast.Constant(value=str(key))]):
                yield name, f"{prefix}.{key}"


def _taken(call: ast.Call, sections: Mapping[str, str]) -> tuple[str, tuple[str, str]] | None:
    if not isinstance(call.func, ast.Attribute) or not isinstance(call.func.value, ast.Name) or not call.args:
        return None
    section, key = sections.get(call.func.value.id), call.args[0]
    if (
        section is None
        or not isinstance(key, ast.Constant)
        or call.func.attr not in ("take", "number", "whole", "seconds")
    ):
        return None
    default = _value(call.args[1]) if len(call.args) > 1 else None
    bounds = [_value(node) for node in call.args[2:4]]
    unit = " s" if call.func.attr == "seconds" else ""
    allowed = f"{bounds[0]} to {bounds[1]}{unit}" if len(bounds) == 2 else NONE
    shown = NONE if default is None else f"`{default}`" if not unit else f"`{default}` s"
    return f"{section}.{key.value!s}", (shown, allowed)


def _value(node: ast.expr) -> object:
    """The value of a default or bound: a literal, a constant of the parser's module, a shift, or a field of the spec."""
    match node:
        case ast.Name(id=name):
            return getattr(function, name)
        case ast.Attribute(value=ast.Name(id="spec"), attr=name):
            value = getattr(function.FunctionSpec(entrypoint="module:Class"), name)
            return value.value if isinstance(value, Enum) else value
        case ast.BinOp(left=ast.Constant(value=int(left)), op=ast.LShift(), right=ast.Constant(value=int(right))):
            return left << right
    return ast.literal_eval(node)


def errors() -> str:
    seen: dict[str, tuple[str, str]] = {}
    for error in _errors(SmoreError):
        fault = "caller" if issubclass(error, CallerError) else "platform"
        # A subclass that keeps its parent's code says the same.
        seen.setdefault(error.code, (fault, prose(error.__doc__)))
    rows = []
    for code in sorted({*seen, *STATUS} - {SmoreError.code}):
        fault, meaning = seen.get(
            code, ("caller" if STATUS.get(code, 500) < 500 else "platform", UNRAISED.get(code, ""))
        )
        status = STATUS.get(code, 400 if fault == "caller" else 500)
        if code == Ended.code:
            # An answer has the code of the end itself.
            continue
        if code == DeadlineExpired.code:
            status_words = (
                f"{status}, and {outcome(State.EXPIRED, code)[0]} where it was accepted and not finished in time"
            )
        else:
            status_words = str(status)
        rows.append((f"`{code}`", status_words, fault, meaning))
    _missing("causes", [cause.value for cause in invocation.Cause], [cause.value for cause in CAUSES])
    ends = {Cause.DEADLINE_EXPIRED: State.EXPIRED, Cause.INFEASIBLE: State.REJECTED, Cause.CANCELLED: State.CANCELLED}
    statuses = dict(FAILURE) | {cause: outcome(state, cause)[0] for cause, state in ends.items()}
    causes = [
        (f"`{cause.value}`", str(statuses[cause]) if cause in statuses else NONE, _sentence(meaning))
        for cause, meaning in CAUSES.items()
    ]
    return page(
        "Errors and causes",
        "Errors are problem documents (RFC 9457) with a stable `code`. The caller's errors are shown as they are; of the platform's "
        "the caller learns the code alone, and the log has the rest under the same `request_id`.",
        table(("code", "status", "fault", "message where none is more precise"), rows),
        "## Causes",
        "Why an invocation ended as it did, or went back to the queue: `cause` in answers, in the history and in metrics. The status is "
        "that of a synchronous call whose invocation failed for it; none where a call does not end with that cause.",
        table(("cause", "status", "meaning"), causes),
    )


def _errors(error: type[SmoreError]) -> Iterator[type[SmoreError]]:
    yield error
    for subclass in error.__subclasses__():
        # Which others are there depends on what has been imported.
        if subclass.__module__ in ERRORS:
            yield from _errors(subclass)


def commands() -> str:
    root = typer.main.get_command(cli)
    parts = ["`smore --help` and `smore COMMAND --help` say the same. " + " ".join((root.help or "").split())]
    for name, command in sorted(root.commands.items()):  # type: ignore[attr-defined]
        parts += _command(f"smore {name}", command)
    return page("Commands", *parts)


def _command(name: str, command: Any) -> Iterator[str]:
    arguments = [_argument(parameter) for parameter in command.params if parameter.param_type_name == "argument"]
    options = [
        parameter
        for parameter in command.params
        if parameter.param_type_name == "option" and "--help" not in parameter.opts
    ]
    yield f"## {name}"
    yield f"`{' '.join([name, *arguments])}`" if arguments else ""
    yield prose(command.help)
    if options:
        yield table(("option", "meaning"), [(_option(option), option.help or "") for option in options])
    for inner, subcommand in sorted(getattr(command, "commands", {}).items()):
        yield from _command(f"{name} {inner}", subcommand)


def _argument(argument: Any) -> str:
    word = argument.metavar or argument.name.upper()
    word = f"{word}..." if argument.nargs == -1 else word
    return word if argument.required else f"[{word}]"


def _option(option: Any) -> str:
    names = ", ".join(f"`{name}`" for name in [*option.opts, *option.secondary_opts])
    return names if option.is_flag else f"{names} {_words(option)}"


def _words(option: Any) -> str:
    """The value of an option in its usage: the words that it accepts, or a name for the value."""
    hint = option.type_descriptor.annotation
    if isinstance(hint, type) and issubclass(hint, Enum):
        return " or ".join(f"`{choice.value}`" for choice in hint)
    return str(option.metavar or option.name.strip("_").upper())


def metrics() -> str:
    kinds = (Counter, Gauge, Histogram)
    of_all = (observability.BUILD, observability.PROCESS)
    families: dict[Counter | Gauge | Histogram, str] = dict.fromkeys(of_all, "every process")
    families |= {
        metric: METRIC_PROCESSES[name]
        for name, served in observability.FAMILIES.items()
        for metric in vars(observability).values()
        if isinstance(metric, kinds) and metric not in of_all and metric in _members(served)
    }
    _missing(
        "processes with metrics",
        [name for name, metric in vars(observability).items() if isinstance(metric, kinds)],
        [name for name, metric in vars(observability).items() if isinstance(metric, kinds) and metric in families],
    )
    rows = []
    for metric, process in families.items():
        described = next(iter(metric.describe()))
        name = f"{described.name}_total" if described.type == "counter" else described.name
        labels = ", ".join(f"`{label}`" for label in metric._labelnames)
        since = METRIC_FROM.get(name, "use") if labels else "start"
        rows.append((f"`{name}`", described.type, labels or NONE, process, since, described.documentation))
    return page(
        "Metrics",
        "`smore metrics scrape-config` prints what Prometheus needs to read them; "
        "[administration](../guides/administration.md#metrics) says who may. Every process also serves `python_*` and "
        "`process_*` of the Prometheus client. A histogram has the series `_bucket`, `_sum` and `_count`. `function` is "
        "`project/name`. *From*: `start` = the series is there from the start of its process; `lead` = from when its process leads; "
        "`function` = for each deployed function; `project` = for each project; "
        "`use` = once something was counted or measured, so an alert "
        "treats its absence as 0 (`or vector(0)`).",
        table(("metric", "type", "labels", "served by", "from", "meaning"), rows),
    )


def _members(families: observability.Families) -> set[object]:
    return set(families._collector_to_names)


def events() -> str:
    meanings = comments(inspect.getsource(stream))
    parts = [
        "The event stream is a Redis stream (`smore:ev`). An entry is a msgpack array: its tag, its version, its fields in this order. "
        "Lua scripts write entries, the leader and the history read them. Times (`_us`) are integer microseconds: instants of Redis' "
        "clock, or durations.",
    ]
    for event in typing.get_args(stream.Event):
        rows = []
        for field in msgspec.structs.fields(event):
            said = meanings.get((event.__name__, field.name)) or EVENT_FIELDS.get(field.name, "")
            rows.append((f"`{field.name}`", type_text(field.type), _sentence(said).rstrip(".")))
        # A dataclass' or struct's own docstring, not one that is inherited.
        said = prose(event.__dict__.get("__doc__"))
        if not said:
            raise Incomplete(f"smore/messages/stream.py: {event.__name__} has no docstring")
        parts += [f"## {event.__name__} (`{event.__struct_config__.tag}`)", said]
        parts.append(table(("field", "type", "meaning"), rows))
    return page("Events of the stream", *parts)


def _drawing(transitions: Mapping[Any, Mapping[Any, Any]], over: Collection[Any]) -> str:
    """A diagram of the states and transitions in a table."""
    lines = ["stateDiagram-v2", "  [*] --> queued"]
    for action, steps in transitions.items():
        lines += [f"  {before.value} --> {after.value}: {action}" for before, after in steps.items()]
    lines += [f"  {state.value} --> [*]" for state in type(next(iter(over))) if state in over]
    return "```mermaid\n" + "\n".join(lines) + "\n```"


def states() -> str:
    return page(
        "States of an invocation, states of a training",
        "Drawn from `smore/domain/invocation.py: TRANSITIONS`. The Lua scripts that change an invocation get their legal source states "
        "from the same table. The leader claims; the worker starts, succeeds and fails; the worker and the leader's reaper requeue. "
        "Loading happens in `running`.",
        _drawing(invocation.TRANSITIONS, invocation.TERMINAL),
        "## States of a training\n\nDrawn from `smore/domain/job.py: TRANSITIONS`. `Store.jobs.move` is the only writer. The job scheduler "
        "starts and requeues; runs, ends and losses follow from what GPU workers report; the owner holds, releases, stops and restarts. "
        "A training that was attached begins in `starting`.",
        _drawing(job.TRANSITIONS, job.OVER),
    )


PAGES: Final = {
    "settings.md": settings,
    "function-yaml.md": function_yaml,
    "errors.md": errors,
    "cli.md": commands,
    "metrics.md": metrics,
    "events.md": events,
    "states.md": states,
}


def stale(folder: Path) -> list[str]:
    """Names of the pages in ``folder`` that differ from the code, are missing, or are not made from it."""
    written = {path.name for path in folder.glob("*.md")}
    changed = {name for name, made in PAGES.items() if name in written and (folder / name).read_text() != made()}
    return sorted(changed | (written ^ set(PAGES)))


def write(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for path in folder.glob("*.md"):
        if path.name not in PAGES:
            path.unlink()
    for name, made in PAGES.items():
        (folder / name).write_text(made())


def main(words: Sequence[str], folder: Path = ROOT / FOLDER) -> int:
    parser = argparse.ArgumentParser(prog="tools.reference", description="Write the pages of docs/reference.")
    parser.add_argument("--check", action="store_true", help="compare instead, exit status 1 where a page is stale")
    if not parser.parse_args(words).check:
        write(folder)
        return 0
    names = stale(folder)
    if names:
        print(f"{FOLDER}: {', '.join(names)} no longer say what the code says. Run `make fmt` and commit the pages.")
    return 1 if names else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
