"""
What the API's description says of a POST of an invocation, of all functions (``/openapi.json``) and of one
(``/v1/functions/{function}/openapi.json``): headers, answers, and why it is refused.
"""

from collections.abc import Mapping
from typing import Any, Final

from smore.domain.function import WorkClass
from smore.domain.invocation import TERMINAL, State
from smore.process.settings import ApiSettings, QueueSettings

_TEXT: Final = {"type": "string"}
_MOMENT: Final = {"type": "string", "format": "date-time"}

#: The longest wait that a caller may ask for.
MAX_WAIT_S: Final = 60.0
#: The longest deadline, as for a function's own.
MAX_DEADLINE_MS: Final = 86_400_000.0
#: A call with ``inputs`` and a later deadline is of class batch where it does not say.
BULK_FROM_S: Final = 60.0
#: The most rows that a dry run may name.
MAX_ROWS: Final = 1 << 16

#: It is made before the settings are known, so it names the default and the setting.
_IDEMPOTENCY: Final = (
    "1 to 255 visible ASCII characters. A later request with the same key and the same body gets the first one's"
    " invocation, with `Idempotency-Replayed: true`, and runs nothing; one with another body is refused (422"
    f" `idempotency_mismatch`, `differs` names its parts). Remembered for {QueueSettings().idempotency_ttl_s / 60:g} minutes, or"
    " as `SMORE_QUEUE__IDEMPOTENCY_TTL_S` says"
)

#: The states in which an invocation has ended, in words.
_FINAL: Final = ", ".join(f"`{state}`" for state in State if state in TERMINAL)

#: What it says of ``inputs``, with the defaults of the settings.
INPUTS: Final = (
    f"Several, in place of `input`: at most {ApiSettings().max_inputs_per_call} where the answer is waited for"
    " (`SMORE_API__MAX_INPUTS_PER_CALL`), with `Prefer: respond-async` as many as may wait on the platform"
    f" ({QueueSettings().max_pending}, `SMORE_QUEUE__MAX_PENDING`). Each may be `rejected` by itself"
)
_MILLISECONDS: Final = {
    "type": "number",
    "exclusiveMinimum": 0,
    "maximum": MAX_DEADLINE_MS,
}
#: Of a body.
DEADLINE: Final = {
    **_MILLISECONDS,
    "type": ["number", "null"],
    "description": "Milliseconds from arrival; without it the function's own. With `inputs` it is that of each",
}


_CLASSES: Final = {"type": "string", "enum": [*WorkClass]}
#: Of a body.
CLASS: Final = {
    **_CLASSES,
    "type": ["string", "null"],
    "enum": [*WorkClass, None],
    "description": "`batch`: work that can wait, which runs in what others leave, and in turn once its deadline is near."
    " Without it the function's own; with `inputs` and a deadline of more than"
    f" {BULK_FROM_S:.0f} s `batch`. A call may lower its function's class, never raise it",
}


def header(name: str, description: str, **bounds: object) -> dict[str, object]:
    """A header of a request: a text, where ``bounds`` say nothing else."""
    schema = {"type": "string", **bounds}
    return {"name": name, "in": "header", "required": False, "schema": schema, "description": description}


def idempotency_key(same: str) -> dict[str, object]:
    """``same``: when two bodies are the same."""
    return header("Idempotency-Key", f"{_IDEMPOTENCY}. {same}", pattern=r"^[\x21-\x7e]{1,255}$")


#: A deadline that stands in no body.
DEADLINES: Final = (
    {
        "name": "deadline_ms",
        "in": "query",
        "required": False,
        "schema": _MILLISECONDS,
        "description": "The deadline, where the body has none: milliseconds from arrival",
    },
    header(
        "Smore-Deadline-Ms",
        "The deadline, where neither the body nor the query has one: milliseconds from arrival",
        **_MILLISECONDS,
    ),
)
SHAPE: Final = header("Smore-Shape", "Raw bodies: `name=d0,d1;…`; needed where axes other than the first are free")
#: The class, where the body has none.
OF_CLASS: Final = header("Smore-Class", "The class, where the body has none: `standard` or `batch`", **_CLASSES)
#: The parameters of the request.
PARAMETERS: Final = (
    header(
        "Prefer",
        "`respond-async`: answer 202 at once. `wait=N`: wait N whole seconds for the end, of which at most"
        f" {MAX_WAIT_S:.0f} are waited; then 202",
    ),
    idempotency_key(
        "JSON bodies are the same where `input` (or `inputs`) and `deadline_ms` are: white space and the order of"
        " an object's members do not count, the way a number is written (1, 1.0) does. Raw bodies are the same where their"
        " bytes and `Smore-Shape` are"
    ),
    *DEADLINES,
    SHAPE,
    OF_CLASS,
    header("traceparent", "W3C trace context, kept with the invocation"),
)

#: Of every answer about an invocation that a request with an Idempotency-Key may have made.
REPLAYED: Final[Mapping[str, Any]] = {
    "Idempotency-Replayed": {
        "schema": _TEXT,
        "description": "`true`: an earlier request with this Idempotency-Key made the invocation; absent otherwise",
    }
}
#: Statuses of the errors that say what became of an invocation.
ENDINGS: Final = frozenset({"404", "409", "410", "422", "429", "502", "503", "504"})
#: Of every answer.
REQUEST_ID: Final[Mapping[str, Any]] = {
    "X-Request-Id": {
        "required": True,
        "schema": _TEXT,
        "description": "The request's own X-Request-Id, else a new one; the gateway's log has it",
    }
}
#: Of an answer about an invocation that has ended.
ENDED_HEADERS: Final[Mapping[str, Any]] = {
    "Server-Timing": {
        "schema": _TEXT,
        "description": "Milliseconds of the phases, `queue;dur=1.2, schedule;dur=…, dispatch;dur=…, load;dur=…, run;dur=…`",
    },
    "Smore-Late-Ms": {
        "schema": {"type": "number"},
        "description": "Milliseconds after its deadline at which it ended; absent where it was in time",
    },
}
#: Of the answer to a call that ran to its end.
HEADERS: Final[Mapping[str, Any]] = {**ENDED_HEADERS, **REPLAYED}
#: Of a raw answer, which has no JSON to say it in.
RAW_HEADERS: Final[Mapping[str, Any]] = {
    "Smore-Outputs": {"schema": _TEXT, "description": "Raw answers: `name:datatype:d0,d1;…`, the tensors in the body"},
    "Smore-Invocation": {"schema": _TEXT, "description": "Raw answers: the invocation's id"},
    "Smore-Function": {"schema": _TEXT, "description": "Raw answers: the function's name"},
    "Smore-Revision": {"schema": {"type": "integer"}, "description": "Raw answers: the revision that ran"},
    "Smore-Run": {
        "schema": _TEXT,
        "description": "Raw answers: `gpu=NAME;attempt=N;arrival=T;deadline=T;finished=T`, moments in microseconds since 1970",
    },
}
#: Of a 429 that may say ``slo_infeasible``.
MAYBE_RETRY_AFTER: Final[Mapping[str, Any]] = {
    "Retry-After": {
        "required": False,
        "schema": {"type": "integer"},
        "description": "Seconds after which the same request may be accepted; absent where waiting helps nothing: the"
        " deadline is shorter than what it takes with nothing before it (a run, and the load where no instance stands ready),"
        " or the function fits no GPU instance",
    }
}
ACCEPTED_HEADERS: Final[Mapping[str, Any]] = {
    "Location": {"schema": _TEXT, "description": "Where to ask for it: `/v1/invocations/ID`; absent with `inputs`"},
    "Preference-Applied": {
        "schema": _TEXT,
        "description": "`respond-async` where the request asked for that; absent with `inputs`",
    },
    **REPLAYED,
}


def _described(schema: Mapping[str, Any], description: str) -> dict[str, Any]:
    return {**schema, "description": description}


#: Members of an answer that says which invocation it is about.
WHICH: Final[Mapping[str, Any]] = {
    "id": _described(_TEXT, "The id of the invocation"),
    "function": _described(_TEXT, "The name of the called function"),
    "revision": _described({"type": "integer"}, "The revision that runs, or ran"),
}
#: Members of the answer to a call that succeeded, but its output.
RESULT: Final[Mapping[str, Any]] = {
    **WHICH,
    "state": {"const": "succeeded", "description": "Always `succeeded`: else the answer is an error"},
    "attempt": _described({"type": "integer"}, "How often it was started"),
    "cause": _described(_TEXT, "Always `ok`, the cause of what succeeded"),
    "gpu": _described(_TEXT, "The GPU instance on which it ran"),
    "cold": _described({"type": "boolean"}, "Whether it had to load the function first"),
    "arrival_at": _described(_MOMENT, "When the request reached the gateway"),
    "deadline_at": _described(_MOMENT, "Until when it had to end"),
    "finished_at": _described(_MOMENT, "When it reached its final state"),
    "late_ms": _described({"type": "number"}, "Milliseconds after its deadline at which it ended; 0 = in time"),
}
_DURABILITY: Final = _described(
    _TEXT, "What survives a machine that fails: `strict` (it is on disk), `standard` (within a second), `none`"
)
#: The body of a 202 about one invocation.
_ACCEPTED: Final[Mapping[str, Any]] = {
    "type": "object",
    "required": ["id", "state", "durability"],
    "properties": {
        **WHICH,
        "state": _described(
            _TEXT, f"`queued`, `dispatched` or `running`: it has not ended. The final states are {_FINAL}"
        ),
        "durability": _DURABILITY,
    },
}


def _input_outcome(output: Mapping[str, Any]) -> dict[str, Any]:
    """What became of one of several inputs; ``output``: the schema of what the function returns."""
    properties = {
        "id": _described(_TEXT, "The invocation's id; '' = the input was refused, so there is no invocation"),
        "function": WHICH["function"],
        "revision": WHICH["revision"],
        "state": _described(_TEXT, f"Its state. {_FINAL} are final; `rejected` without an `id`: it was refused"),
        "status": _described({"type": "integer"}, "The status that a call with this input alone would have had"),
        "code": _described(_TEXT, "The stable code of the error; absent where it succeeded or goes on"),
        "cause": _described(_TEXT, "Why it ended as it did; `ok` = it succeeded, absent = it goes on"),
        "detail": _described(_TEXT, "The error in words; absent where it succeeded or goes on"),
        "traceback": _described(_TEXT, "Where the handler raised an error: the frames of its own code"),
        "field": _described(
            _TEXT,
            "Of `invalid_input`: the first place in the input that is wrong. Of `limit_reached`: the limit of the project that"
            " is reached",
        ),
        "limit": _described(
            {"type": ["number", "string"]},
            "The bound that was reached: of `limit_reached` its value, of `queue_full` its name",
        ),
        "differs": _described(
            {"type": "array", "items": _TEXT}, "Of `idempotency_mismatch`: the parts that differ from the first request"
        ),
        "earliest_deadline_ms": _described(
            {"type": "integer"},
            "Of `slo_infeasible` and `deadline_expired`: the earliest deadline that would be accepted now, milliseconds, as"
            " long as nothing more comes before it; absent where it is no longer than the deadline that was just missed",
        ),
        "earliest_deadline_at": _described(_MOMENT, "`earliest_deadline_ms` as an instant"),
        "earliest": _described(
            _MOMENT,
            "Of a training whose end is not promised: the first moment that would be; absent where there is none",
        ),
        **{
            name: RESULT[name]
            for name in ("attempt", "gpu", "cold", "arrival_at", "deadline_at", "finished_at", "late_ms")
        },
        "output": _described(output, "What the function returned; only where it succeeded"),
    }
    return {
        "type": "object",
        "description": "What became of one of several `inputs`.",
        "required": ["id", "function", "revision", "state", "status"],
        "properties": properties,
    }


def _one_of(one: str, several: str) -> dict[str, Any]:
    return {"oneOf": [{"$ref": f"#/components/schemas/{name}"} for name in (one, several)]}


#: A call, its result, and the body of a 202 to it: of one input, or of several.
CALL: Final = _one_of("Call", "Calls")
CALL_OR_ROWS: Final = _one_of("Call", "Rows")
RESULT_OR_RESULTS: Final = _one_of("Result", "Results")
ACCEPTED_OR_SEVERAL: Final = _one_of("Accepted", "SeveralAccepted")


#: A dry run of no input but the number of its rows.
ROWS: Final[Mapping[str, Any]] = {
    "type": "object",
    "description": "A dry run without the input.",
    "additionalProperties": False,
    "required": ["rows"],
    "properties": {
        "rows": {
            "type": "integer",
            "minimum": 1,
            "maximum": MAX_ROWS,
            "description": "How many rows the input would have; of a function of JSON values 1",
        },
        "deadline_ms": DEADLINE,
    },
}


def call_schemas(given: Mapping[str, Any], output: Mapping[str, Any]) -> dict[str, Any]:
    """
    The schemas of a call and of its answers, by name. ``given``: the schema of one input; ``output``: of what the function
    returns.

    One input and several are two objects each, because a generated client has no type for an object of which one field
    or another is required.
    """
    several = {
        "type": "object",
        "required": ["invocations", "class", "durability"],
        "properties": {
            "class": {**_CLASSES, "description": "The class of its invocations"},
            "invocations": {
                "type": "array",
                "items": {"$ref": "#/components/schemas/InputOutcome"},
                "description": "What became of each input, in their order",
            },
            "durability": _DURABILITY,
        },
    }
    return {
        "Call": {
            "type": "object",
            "description": "A call with one input.",
            "additionalProperties": False,
            "required": ["input"],
            "properties": {
                "input": _described(
                    given, "One input: a JSON value, or `{name: nested lists}` for a function of tensors"
                ),
                "deadline_ms": DEADLINE,
                "class": CLASS,
            },
        },
        "Calls": {
            "type": "object",
            "description": "A call with several inputs.",
            "additionalProperties": False,
            "required": ["inputs"],
            "properties": {
                "inputs": {"type": "array", "minItems": 1, "items": given, "description": INPUTS},
                "deadline_ms": DEADLINE,
                "class": CLASS,
            },
        },
        "Result": {
            "type": "object",
            "description": "The result of a call with one input.",
            "required": ["id", "state", "output"],
            "properties": {
                **RESULT,
                "output": _described(output, "What the function returned"),
            },
        },
        "Results": {**several, "description": "What became of a call with several inputs; all have ended."},
        "Accepted": {**_ACCEPTED, "description": "A call with one input that goes on."},
        "SeveralAccepted": {**several, "description": "A call with several inputs, of which at least one goes on."},
        "InputOutcome": _input_outcome(output),
    }


#: Status → codes of the refusals and failures of a synchronous call, and what they mean.
REFUSALS: Final[Mapping[str, str]] = {
    "400": "`malformed`: the body is not JSON. `deadline_expired`: the deadline has passed",
    "404": "`function_not_found`. `function_deleted`: the function was deleted while the invocation waited",
    "409": "`not_ready`: no revision of the function has passed its first run. `cancelled`: somebody cancelled it",
    "410": "`result_dropped`: the first request with this Idempotency-Key was served, and its result is kept no longer",
    "413": "`payload_too_large`: the body, or the input, is larger than it may be (`limit`)",
    "415": "`unsupported_media_type`: neither JSON nor `application/octet-stream`",
    "422": "`invalid_input`: `field` names the place. `idempotency_mismatch`: `differs` names the parts. `handler_error`: the"
    " function raised it (`traceback`). `result_too_large`",
    "429": "`slo_infeasible`: the deadline cannot be met (`earliest_deadline_ms` could); repeat it only with `Retry-After`, which"
    " is absent where waiting helps nothing. `queue_full`: too much waits (`limit`). `limit_reached`: a limit of the project"
    " (`field`, `limit`)",
    "502": "The invocation failed: `crashed`, `context_lost`, `out_of_memory`, `load_failed`, `bad_output`, `attempt_limit` or"
    " `dispatch_limit`",
    "503": "`no_leader`: nobody schedules now. `draining`: nothing new is taken. `quarantined`: the revision is kept out after"
    " crashes. `payload_lost`. `unavailable` and `writes_refused`: a part of the platform is away, or full",
    "504": "`deadline_expired`: it could not be finished in time (`earliest_deadline_ms`, if it is there, would be accepted now)."
    " `timed_out`: its run"
    " took longer than its revision may",
}
