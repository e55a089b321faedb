"""
The queue's Lua scripts: their arguments and answers by name, their texts, and how they are called.

The scripts (``lua/*.lua``) are the only writers of the queue. What is positional on the wire (ARGV, answers, replies,
events) is named in the tables of this module, of smore/redis/records.py and of smore/messages: :func:`pack` puts
arguments in their order, and :func:`script_sources` puts the same names into Lua (lua/common.lua lists them).
Queue and GatewayQueue both call through :class:`Scripts`.
"""

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from types import MappingProxyType
from typing import Any, Final

import hiredis
import msgspec
from redis.exceptions import NoScriptError

from smore.domain.invocation import TRANSITIONS
from smore.messages.commands import Cancel
from smore.messages.results import error_result
from smore.messages.stream import Arrived, Asked, Dispatched, Reported, Returned, Settled, Wanted
from smore.process.settings import QueueSettings
from smore.redis import records

#: One argument of a command.
Arg = bytes | str | int | float

#: Bytes from which on an argument is sent without another copy.
LARGE: Final = 32 << 10

#: Results of invocations that ended without a run, or too late.
EXPIRED: Final = error_result("The deadline passed before a GPU instance could start it.")
LATE: Final = error_result("It ran past its deadline, and its function drops what is late (slo.on_late: drop).")
LOST: Final = error_result("Its input was lost on the way; send it again.")
#: The result of an invocation that a limit of attempts ends.
TOO_OFTEN: Final = error_result("It was started or dispatched as often as allowed.")


@dataclass(frozen=True, slots=True)
class Shape:
    """The arguments of a script after the key prefix, in order; then ``items``, a group that may be repeated."""

    arguments: Sequence[str]
    items: Sequence[str] = ()


#: Limits of a project (smore/domain/limits.py), '' = none.
_LIMITS: Final = ("rate_per_s", "burst", "depth", "concurrency")
#: Bounds at which ``enqueue`` refuses.
_BOUNDS: Final = (
    "max_function_pending",
    "max_pending",
    "max_payload_bytes",
    "max_result_bytes",
    "max_events",
    "max_keys",
)
_ATTEMPT: Final = ("id", "attempt")

SHAPES: Final[Mapping[str, Shape]] = MappingProxyType(
    {
        "enqueue": Shape(
            ("function", "revision", "idempotency_ttl_s", "led", *_BOUNDS, *_LIMITS),
            (
                *("id", "slo_us", "deadline_us", "channel", "encoding", "accept", "rows", "shape", "sync", "trace"),
                *("key_id", "idempotency_key", "request_hash", "request_parts", "max_attempts", "payload"),
                *("volatile", "size", "bulk"),
            ),
        ),
        "ask": Shape(
            (
                *("id", "function", "revision", "rows", "slo_us", "deadline_us", "size", "max_asks_per_s", "bulk"),
                *(*_BOUNDS, *_LIMITS),
            )
        ),
        "queues": Shape(("looked_at",), ("function",)),
        "claim": Shape(
            (
                *("token", "function", "gpu", "lease_us", "celery_list", "message", "decision", "schedule_us"),
                *("cursor", "urgent"),
            ),
            _ATTEMPT,
        ),
        "start": Shape(("function", "gpu", "lease_us", "how"), _ATTEMPT),
        "finish": Shape(("function", "meta", "drop_late"), (*_ATTEMPT, "action", "cause", "result")),
        "requeue": Shape(("function", "cause", "refund", "alone", "result"), _ATTEMPT),
        "reap": Shape(("token", "at_most", "result")),
        "release": Shape(("gpu", "result")),
        "settle": Shape(("token",), ("function", "id", "action", "cause", "result")),
        "cancel": Shape(("project", "id", "result", "only_waiting")),
        "keep": Shape(("project", "id")),
        "sweep": Shape(("at_most",)),
        "report": Shape(("gpu", "report", "ttl_ms", "lease_us", "cursor"), ("function", *_ATTEMPT)),
        "lead": Shape(("token", "lease_ms")),
        "snapshot": Shape(()),
    }
)

#: Answers of ``enqueue``, ``ask`` and ``start`` (one for each invocation); what is missing is ''.
ACCEPTED: Final = ("status", "arrival_us", "deadline_us", "earliest_us")
#: Of an invocation that is not accepted; it begins as :data:`ACCEPTED`.
ADMISSION: Final = (
    *(*ACCEPTED, "known_id", "limit", "bound", "after_us", "now_us"),
    *("known_parts", "floor_us", "cold_us", "alone_us"),
)
CHECK: Final = (
    *("now_us", "deadline_us", "needed_us", "promised_us", "full", "paused", "leader", "limited", "bound", "after_us"),
    *("floor_us", "quarantined"),
)
STARTED: Final = ("payload", "encoding", "accept", "rows", "deadline_us", "trace", "alone", "payload_bytes", "bulk")

#: Lists that scripts make out of named values (``list.<name>`` in Lua).
_LISTS: Final[Mapping[str, Sequence[str]]] = {
    "accepted": ACCEPTED,
    "admission": ADMISSION,
    "check": CHECK,
    "started": STARTED,
    "queued": records.QUEUED,
    "leased": records.LEASED,
    "reply": records.REPLY,
}
#: Messages that scripts write, each under its class's name.
_MESSAGES: Final[Sequence[type[msgspec.Struct]]] = (
    Arrived,
    Asked,
    Cancel,
    Dispatched,
    Reported,
    Returned,
    Settled,
    Wanted,
)


@dataclass(frozen=True, slots=True)
class Call:
    """One call of a script: arguments and items by name."""

    script: str
    arguments: Mapping[str, Arg]
    items: Iterable[Mapping[str, Arg]] = ()


def pack(call: Call) -> list[Arg]:
    """The arguments of a call in the order in which its script reads them. Raises KeyError for one that is missing."""
    shape = SHAPES[call.script]
    packed: list[Arg] = [call.arguments[name] for name in shape.arguments]
    for item in call.items:
        packed += [item[name] for name in shape.items]
    return packed


def _lua_text(value: bytes) -> str:
    return '"' + "".join(f"\\{byte:03d}" for byte in value) + '"'


def _lua_name(name: str) -> str:
    """``function`` is a reserved word of Lua."""
    return "fk" if name == "function" else name


#: Fields of an invocation's HASH by their names in Lua.
_FIELDS: Final = {_lua_name(name): field for name, field in records.FIELDS.items()}
#: A string or a comment of a whole line: what stands there is no name.
_NO_CODE: Final = re.compile(r"'[^']*'|\"[^\"]*\"|^ *--.*$", re.MULTILINE)
#: ``read(<key>, '<name>', ...)`` of lua/common.lua.
_READ: Final = re.compile(r"\bread\(((?:[^(),]|\([^()]*\))+),\s*('\w+'(?:,\s*'\w+')*)\)")


def _definitions(text: str) -> list[tuple[str, str]]:
    """Top-level definitions of lua/common.lua, (names, text) each, in their order."""
    parts = re.split(r"^(?=local )", re.sub(r"^ *--.*\n", "", text, flags=re.MULTILINE), flags=re.MULTILINE)[1:]
    return [(re.sub(r"^local (?:function )?|\s*[(=\n].*", "", part, flags=re.DOTALL), part) for part in parts]


def _maker(name: str, values: Sequence[str]) -> tuple[str, str]:
    return f"list_{name}", f"local function list_{name}(v) return {{ {', '.join(values)} }} end\n"


def _lists() -> list[tuple[str, str]]:
    # A nil would end the list in Redis' answer.
    made = [_maker(name, [f"v.{_lua_name(field)} or ''" for field in names]) for name, names in _LISTS.items()]
    for kind in _MESSAGES:
        first, *names = (field.name for field in msgspec.structs.fields(kind))
        assert first == "version", kind
        tag = f"'{kind.__struct_config__.tag}'"
        made.append(_maker(kind.__name__, [tag, "1", *(f"v.{_lua_name(field)}" for field in names)]))
    return made


def _constants(bounds: QueueSettings) -> list[tuple[str, str]]:
    numbers = {
        "TTL_RESULT": int(bounds.result_ttl_s * 1e6),
        "TTL_SYNC": int(bounds.sync_result_ttl_s * 1e6),
        "MAX_LOST": bounds.max_lost,
    }
    blobs = {"BLOB_EXPIRED": EXPIRED, "BLOB_LATE": LATE, "BLOB_LOST": LOST}
    values = {name: str(number) for name, number in numbers.items()}
    values |= {name: _lua_text(blob) for name, blob in blobs.items()}
    moves = {
        str(action): f"{{ {', '.join(f'{state} = true' for state in states)} }}"
        for action, states in TRANSITIONS.items()
    }
    values |= {f"FROM_{action}": states for action, states in moves.items()}
    values["FROM"] = f"{{ {', '.join(f'{action} = {states}' for action, states in moves.items())} }}"
    return [(name, f"local {name} = {value}\n") for name, value in values.items()]


def _written_out(text: str, readers: dict[str, str]) -> str:
    """
    Lua with fields of an invocation and names of tables written out, so that a call of the script makes no table for
    them. ``readers``: the body of a function for each list of fields that is read, and its name.
    """

    def read(match: re.Match[str]) -> str:
        names = re.findall(r"\w+", match[2])
        asked = ", ".join(f"'{_FIELDS[name]}'" for name in names)
        values = ", ".join(f"{name} = v[{place}]" for place, name in enumerate(names, 1))
        body = f"local v = redis.call('HMGET', key, {asked}) return {{ {values} }}"
        return f"{readers.setdefault(body, f'read_{len(readers)}')}({match[1]})"

    text = re.sub(r"\bF\.(\w+)", lambda match: f"'{_FIELDS[match[1]]}'", _READ.sub(read, text))
    return re.sub(r"\b(list|FROM)\.", r"\1_", text)


def _reader(made: tuple[str, str]) -> tuple[str, str]:
    body, name = made
    return name, f"local function {name}(key) {body} end\n"


def _arguments(shape: Shape, script: str) -> str:
    """A script with its arguments by name: ``arg`` is a table only where the script hands it on as a whole."""
    # ARGV[1] is the prefix.
    places = {_lua_name(name): f"ARGV[{place}]" for place, name in enumerate(shape.arguments, start=2)}
    text = ""
    if re.search(r"\barg\b(?!\.)", _NO_CODE.sub("", script)):
        text += f"local arg = {{ {', '.join(f'{name} = {place}' for name, place in places.items())} }}\n"
    else:
        script = re.sub(r"\barg\.(\w+)", lambda match: places[match[1]], script)
    if shape.items:
        first = len(shape.arguments) + 2
        fields = ", ".join(f"{_lua_name(name)} = ARGV[i + {offset}]" for offset, name in enumerate(shape.items))
        text += (
            "local items = {}\n"
            f"for i = {first}, #ARGV, {len(shape.items)} do items[#items + 1] = {{ {fields} }} end\n"
        )
    return text + script


def script_sources(bounds: QueueSettings) -> Mapping[str, str]:
    """
    Each script's whole text: the shared definitions that it uses and no others, because all of them are made anew at
    each call; its arguments by name; the script.
    """
    return _sources(tuple(_constants(bounds)))


@cache
def _sources(constants: tuple[tuple[str, str], ...]) -> Mapping[str, str]:
    folder = resources.files("smore.redis") / "lua"
    readers: dict[str, str] = {}
    scripts = {name: _written_out((folder / f"{name}.lua").read_text(), readers) for name in SHAPES}
    prelude = _definitions(_written_out((folder / "common.lua").read_text(), readers))
    shared = [*constants, *_lists(), *map(_reader, readers.items()), *prelude]
    return MappingProxyType(
        {
            name: "local P = ARGV[1]\n" + _used(shared, scripts[name]) + _arguments(shape, scripts[name])
            for name, shape in SHAPES.items()
        }
    )


def _used(shared: Sequence[tuple[str, str]], script: str) -> str:
    """The definitions that a script names, and those that these name."""
    wanted, text = set[int](), script
    while True:
        words = set(re.findall(r"(?<![\w.])\w+", _NO_CODE.sub("", text)))
        found = {place for place, (names, _) in enumerate(shared) if words & set(names.split(", "))}
        if found == wanted:
            return "".join(shared[place][1] for place in sorted(wanted))
        wanted = found
        text = script + "".join(shared[place][1] for place in wanted)


class Scripts:
    """The scripts for one key prefix: their texts, and the commands that call and load them."""

    def __init__(self, prefix: str, bounds: QueueSettings) -> None:
        self._prefix = prefix
        self._source = script_sources(bounds)
        self._digest = {
            name: hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest() for name, text in self._source.items()
        }

    def command(self, call: Call) -> tuple[Arg, ...]:
        return ("EVALSHA", self._digest[call.script], 0, self._prefix, *pack(call))

    def loading(self, names: Iterable[str]) -> list[tuple[Arg, ...]]:
        """The commands that give these scripts to a server that has lost them (a restart)."""
        return [("SCRIPT", "LOAD", self._source[name]) for name in sorted(set(names))]


def missing(answers: Sequence[Any]) -> list[int]:
    """Positions of the answers that say that the server does not have the script."""
    return [position for position, answer in enumerate(answers) if isinstance(answer, NoScriptError)]


def packed(command: Sequence[Arg]) -> list[bytes]:
    """
    A command in Redis' protocol, in pieces. Packing in C is fast for small arguments, but copies a large one several
    times, so large arguments are pieces of their own.
    """
    if all(not isinstance(arg, bytes) or len(arg) < LARGE for arg in command):
        return [hiredis.pack_command(tuple(command))]  # type: ignore[arg-type]  # its stub means one-tuples
    pieces: list[bytes] = []
    small = [b"*%d\r\n" % len(command)]
    for arg in command:
        data = arg if isinstance(arg, bytes) else str(arg).encode()
        small.append(b"$%d\r\n" % len(data))
        if len(data) < LARGE:
            small.append(data)
        else:
            pieces += [b"".join(small), data]
            small = []
        small.append(b"\r\n")
    return [*pieces, b"".join(small)]
