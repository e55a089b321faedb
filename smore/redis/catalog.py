"""
The mirror of the catalog in Redis: functions, revisions, API keys, limits, secrets. Every hot path reads it.

Postgres is the truth: ``smore/postgres/catalog.py`` writes there and then refreshes this mirror. With the mirror gateway,
leader and workers go on while Postgres is away, and need no SQLAlchemy. A change is announced on the channel
``<prefix>catalog``.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import cast

import msgspec
import redis
import redis.asyncio

from smore.domain.function import FunctionSpec
from smore.domain.limits import NO_LIMITS, Limits
from smore.messages.specs import decode_spec, encode_spec


class FunctionEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A function. ``revision`` takes the traffic; 0 = none yet, because no canary has passed."""

    project: str
    name: str
    revision: int
    #: Overrides the revision's deadline where set, seconds.
    deadline_s: float | None = None

    @property
    def key(self) -> str:
        return f"{self.project}/{self.name}"


class KeyEntry(msgspec.Struct, frozen=True, kw_only=True):
    """
    An API key. ``digest``: the SHA-256 of its secret, which has 256 random bits, so no slow hash is needed.
    """

    id: str
    project: str
    digest: str
    scopes: list[str]
    #: For people.
    name: str = ""


class ProjectEntry(msgspec.Struct, frozen=True, kw_only=True):
    """What a project may use."""

    name: str
    limits: Limits = NO_LIMITS


_decode_function = msgspec.json.Decoder(FunctionEntry).decode
_decode_project = msgspec.json.Decoder(ProjectEntry).decode
_decode_key = msgspec.json.Decoder(KeyEntry).decode
_encode = msgspec.json.Encoder().encode


def _names(prefix: str) -> tuple[str, str, str, str, str]:
    return (
        f"{prefix}catalog:functions",
        f"{prefix}catalog:revisions",
        f"{prefix}catalog:keys",
        f"{prefix}catalog:projects",
        f"{prefix}catalog",
    )


class Catalog:
    """The mirror for the leader and the workers, which read it, and for ``smore/postgres/mirror.py``, which writes it."""

    def __init__(self, client: "redis.Redis", prefix: str) -> None:
        self._redis = client
        self._prefix = prefix
        self._functions, self._revisions, self._keys, self._projects, self._channel = _names(prefix)
        self._secrets = f"{prefix}catalog:secrets"
        self._specs: dict[tuple[str, int], FunctionSpec] = {}

    def revision(self, function: str, revision: int) -> FunctionSpec | None:
        """A revision's spec; None where it is not mirrored. It is kept once it was read: see :meth:`forget`."""
        spec = self._specs.get((function, revision))
        if spec is None:
            raw = cast("bytes | None", self._redis.hget(self._revisions, f"{function}@{revision}"))
            if raw is None:
                return None
            spec = self._specs[function, revision] = decode_spec(raw)
        return spec

    def specs(self) -> list[FunctionSpec]:
        """The specs of all mirrored revisions: those that may run, and some that failed."""
        raw = cast("dict[bytes, bytes]", self._redis.hgetall(self._revisions))
        return [decode_spec(value) for value in raw.values()]

    def put_revision(self, function: str, revision: int, spec: FunctionSpec) -> None:
        self._specs.pop((function, revision), None)
        self._redis.hset(self._revisions, f"{function}@{revision}", encode_spec(spec))

    def put_function(self, entry: FunctionEntry) -> None:
        self._redis.hset(self._functions, entry.key, _encode(entry))
        self._announce(f"f:{entry.key}", entry.key)

    def remove_function(self, function: str) -> None:
        self._redis.hdel(self._functions, function)
        self._announce(f"f:{function}", function)

    def put_key(self, entry: KeyEntry) -> None:
        self._redis.hset(self._keys, entry.id, _encode(entry))
        self._redis.publish(self._channel, f"k:{entry.id}")

    def remove_key(self, id_: str) -> None:
        self._redis.hdel(self._keys, id_)
        self._redis.publish(self._channel, f"k:{id_}")

    def put_project(self, entry: ProjectEntry) -> None:
        """Mirror a project's limits; a project without limits has no entry."""
        if entry.limits == NO_LIMITS:
            self._redis.hdel(self._projects, entry.name)
        else:
            self._redis.hset(self._projects, entry.name, _encode(entry))
        self._announce(f"p:{entry.name}", "")

    def limits(self) -> dict[str, Limits]:
        """Limits by project; a project that is missing has none."""
        raw = cast("dict[bytes, bytes]", self._redis.hgetall(self._projects))
        return {name.decode(): _decode_project(value).limits for name, value in raw.items()}

    def put_secret(self, key: str, sealed: bytes | None) -> None:
        """``key``: ``<project>/<name>``; None deletes it."""
        if sealed is None:
            self._redis.hdel(self._secrets, key)
        else:
            self._redis.hset(self._secrets, key, sealed)

    def secrets(self, project: str, names: Sequence[str]) -> dict[str, bytes]:
        """Sealed values by name, of those that exist. They are read each time, because a secret may be replaced."""
        raw = cast("list[bytes | None]", self._redis.hmget(self._secrets, [f"{project}/{name}" for name in names]))
        return {name: sealed for name, sealed in zip(names, raw, strict=True) if sealed is not None}

    def replace_secrets(self, wanted: Mapping[str, bytes]) -> int:
        """Make the mirror's secrets equal to ``wanted``. Returns how many differed."""
        present = {
            field.decode(): value
            for field, value in cast("dict[bytes, bytes]", self._redis.hgetall(self._secrets)).items()
        }
        differing = [key for key in wanted.keys() | present.keys() if wanted.get(key) != present.get(key)]
        for key in differing:
            self.put_secret(key, wanted.get(key))
        return len(differing)

    def forget(self, function: str) -> None:
        """Read a function's revisions again: one that becomes active gets the inputs and times of its canary."""
        for revision in [revision for revision in self._specs if revision[0] == function]:
            del self._specs[revision]

    def replace(
        self,
        functions: Iterable[FunctionEntry],
        revisions: Mapping[tuple[str, int], FunctionSpec],
        keys: Iterable[KeyEntry],
        projects: Iterable[ProjectEntry],
    ) -> int:
        """Make the mirror equal to the arguments, and announce what differed. Returns how many entries did."""
        wanted = {
            self._revisions: {
                f"{function}@{revision}": encode_spec(spec) for (function, revision), spec in revisions.items()
            },
            self._functions: {entry.key: _encode(entry) for entry in functions},
            self._keys: {entry.id: _encode(entry) for entry in keys},
            self._projects: {entry.name: _encode(entry) for entry in projects},
        }
        self._specs.clear()
        changed = 0
        for name, entries in wanted.items():
            present = {
                field.decode(): value for field, value in cast("dict[bytes, bytes]", self._redis.hgetall(name)).items()
            }
            put = {field: value for field, value in entries.items() if present.get(field) != value}
            gone = present.keys() - entries.keys()
            if put:
                self._redis.hset(name, items=[part for pair in put.items() for part in pair])
            if gone:
                self._redis.hdel(name, *gone)
            changed += len(put) + len(gone)
            for field in sorted(put.keys() | gone):
                if name == self._keys:
                    self._redis.publish(self._channel, f"k:{field}")
                elif name == self._projects:
                    self._announce(f"p:{field}", "")
                else:
                    function = field.partition("@")[0]
                    self._announce(f"f:{function}", function)
        return changed

    def functions(self) -> dict[str, FunctionEntry]:
        raw = cast("dict[bytes, bytes]", self._redis.hgetall(self._functions))
        return {key.decode(): _decode_function(value) for key, value in raw.items()}

    def _announce(self, message: str, function: str) -> None:
        self._redis.publish(self._channel, message)
        self._redis.xadd(f"{self._prefix}ev", {"e": msgspec.msgpack.encode(["c", 1, function, 0])})


class AsyncCatalog:
    """The mirror for gateways: all of it in memory, refreshed when a change is announced."""

    def __init__(self, client: "redis.asyncio.Redis", prefix: str) -> None:
        self._redis = client
        self._paused = f"{prefix}paused"
        self._functions, self._revisions, self._keys, self._projects, self.channel = _names(prefix)
        self.functions: dict[str, FunctionEntry] = {}
        self.keys: dict[str, KeyEntry] = {}
        self.limits: dict[str, Limits] = {}
        #: What is paused and drained (smore/redis/fleet.py).
        self.paused: frozenset[str] = frozenset()
        self._specs: dict[tuple[str, int], FunctionSpec] = {}

    async def load(self) -> None:
        """
        Read all functions, keys and limits. Called at the start and after a reconnect.
        """
        pipe = self._redis.pipeline(transaction=False)
        pipe.hgetall(self._functions)
        pipe.hgetall(self._keys)
        pipe.hgetall(self._projects)
        pipe.smembers(self._paused)
        functions, keys, projects, paused = await pipe.execute()
        self.functions = {key.decode(): _decode_function(value) for key, value in functions.items()}
        self.keys = {key.decode(): _decode_key(value) for key, value in keys.items()}
        self.limits = {name.decode(): _decode_project(value).limits for name, value in projects.items()}
        self.paused = frozenset(member.decode() for member in paused)

    async def changed(self, message: str) -> None:
        """
        Apply one announcement: ``f:<function>``, ``k:<key id>``, ``p:<project>`` (its limits) or ``s:`` (what is
        paused).
        """
        kind, _, name = message.partition(":")
        if kind == "f":
            # A revision that becomes active gets the inputs and times of its canary.
            for revision in [revision for revision in self._specs if revision[0] == name]:
                del self._specs[revision]
            raw = cast("bytes | None", await self._redis.hget(self._functions, name))
            if raw is None:
                self.functions.pop(name, None)
            else:
                self.functions[name] = _decode_function(raw)
        elif kind == "p":
            raw = cast("bytes | None", await self._redis.hget(self._projects, name))
            if raw is None:
                self.limits.pop(name, None)
            else:
                self.limits[name] = _decode_project(raw).limits
        elif kind == "s":
            self.paused = frozenset(
                member.decode() for member in cast("set[bytes]", await self._redis.smembers(self._paused))
            )
        else:
            raw = cast("bytes | None", await self._redis.hget(self._keys, name))
            if raw is None:
                self.keys.pop(name, None)
            else:
                self.keys[name] = _decode_key(raw)

    async def revision(self, function: str, revision: int) -> FunctionSpec | None:
        spec = self._specs.get((function, revision))
        if spec is None:
            raw = cast("bytes | None", await self._redis.hget(self._revisions, f"{function}@{revision}"))
            if raw is None:
                return None
            spec = self._specs[function, revision] = decode_spec(raw)
        return spec
