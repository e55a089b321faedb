"""
What the environment sets: the settings of this process, their names and meanings, one line for a value that is wrong,
names that nobody reads.
"""

import ast
import inspect
import json
import os
import re
import sys
import types
import typing
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import Any, Final

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from pydantic_settings import SettingsError

from smore.process import settings as module
from smore.process.settings import Settings

PREFIX: Final = "SMORE_"
#: Variables that are no settings of the platform: its clients, trainings, the Compose files and tests read them.
OTHERS: Final = frozenset(
    {
        *("SMORE_URL", "SMORE_API_KEY"),
        *("SMORE_TRACK", "SMORE_JOB", "SMORE_JOB_GROUP", "SMORE_JOB_TOKEN", "SMORE_GPU"),
        *("SMORE_POSTGRES_PASSWORD", "SMORE_REDIS_PASSWORD", "SMORE_TRAININGS_MEMORY", "SMORE_NODE_MEMORY"),
    }
)
#: The same, by what they begin with.
_FAMILIES: Final = ("SMORE_TEST_", "SMORE_BENCH_", "SMORE_DEMO_")


class InvalidSetting(ValueError):
    """A variable whose value cannot be used: one line with the variable, its value and what is expected."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Described:
    """A setting. ``path``: attributes from :class:`Settings` to it; ``owner``: the class that declares it."""

    variable: str
    path: tuple[str, ...]
    owner: str
    field: FieldInfo

    @property
    def meaning(self) -> str:
        """'' where no comment explains it."""
        return _meanings().get((self.owner, self.path[-1]), "")


def described() -> Iterator[Described]:
    """Every setting, in the order of the file."""

    def of(model: type[BaseModel], path: tuple[str, ...]) -> Iterator[Described]:
        for name, field in model.model_fields.items():
            if nested(field) is None:
                variable = PREFIX + "__".join((*path, name)).upper()
                yield Described(variable=variable, path=(*path, name), owner=model.__name__, field=field)

    yield from of(Settings, ())
    for name, field in Settings.model_fields.items():
        if (model := nested(field)) is not None:
            yield from of(model, (name,))


def load() -> Settings:
    """The settings of this environment. Raises InvalidSetting."""
    try:
        return Settings()
    except ValidationError as error:
        first = error.errors()[0]
        # What a list or an object holds is behind the setting's own name.
        path = tuple(str(part) for part in first["loc"])
        why = str(first["msg"]).removeprefix("Value error, ")
        setting = next((one for one in described() if path[: len(one.path)] == one.path), None)
        if setting is None:
            group = PREFIX + "__".join(path).upper()
            raise InvalidSetting(f"{group} is a group of settings; one of them is {group}__…") from error
        raise InvalidSetting(_invalid(setting, os.environ.get(setting.variable, first["input"]), why)) from error
    except SettingsError as error:
        name = re.search(r'field "(\w+)"', str(error))
        wrong = [one for one in described() if one.variable in os.environ and _is_no_json(one)]
        chosen = next((one for one in wrong if name is None or name[1] in one.path), None)
        if chosen is None:
            raise InvalidSetting(str(error)) from error
        raise InvalidSetting(_invalid(chosen, os.environ[chosen.variable], "it is not JSON")) from error


@cache
def settings() -> Settings:
    """
    The process's settings, read once. Only composition roots (``*/app.py``, ``tasks.py``) call it. A value that cannot
    be used ends the process with exit code 2; names that nobody reads are reported on standard error.
    """
    try:
        config = load()
    except InvalidSetting as error:
        print(f"smore: {error}", file=sys.stderr)
        raise SystemExit(2) from None
    for line in warnings(os.environ):
        print(f"smore: {line}", file=sys.stderr)
    return config


def unknown(environment: Mapping[str, str]) -> dict[str, str | None]:
    """Variables that look like settings and that nobody reads → the nearest name, None = none is near."""
    names = {one.variable for one in described()} | OTHERS
    strange = sorted(
        name for name in environment if name.startswith(PREFIX) and name not in names and not name.startswith(_FAMILIES)
    )

    def nearest(name: str) -> str | None:
        # What all of them begin with says nothing.
        near = get_close_matches(name.removeprefix(PREFIX), [known.removeprefix(PREFIX) for known in sorted(names)], 1)
        return PREFIX + near[0] if near else None

    return {name: nearest(name) for name in strange}


def warnings(environment: Mapping[str, str]) -> list[str]:
    """A line for each variable of :func:`unknown`."""
    return [
        f"{name} is no setting and nobody reads it" + (f"; did you mean {nearest}?" if nearest else "")
        for name, nearest in unknown(environment).items()
    ]


def value_of(config: Settings, setting: Described) -> Any:
    """What a setting is set to."""
    value: Any = config
    for name in setting.path:
        value = getattr(value, name)
    return value


def shown(value: object) -> str:
    """A value as text; passwords of URLs are hidden."""
    match value:
        case None | "" | () | {}:
            return "-"
        case tuple():
            return ",".join(map(str, value))
        case dict():
            return json.dumps(value)
        case _:
            return re.sub(r"(://[^:/@]*):[^@]*@", r"\1:***@", str(value))


def type_text(hint: object) -> str:
    """A type in words."""
    if isinstance(hint, type) and not typing.get_args(hint):
        return {Path: "a path", type(None): "none"}.get(hint, hint.__name__)
    if typing.get_origin(hint) is typing.Literal:
        return ", ".join(f"`{value}`" for value in typing.get_args(hint))
    if typing.get_origin(hint) in (types.UnionType, typing.Union):
        return " or ".join(type_text(part) for part in typing.get_args(hint))
    if typing.get_origin(hint) is typing.Annotated:
        return type_text(typing.get_args(hint)[0])
    name = getattr(typing.get_origin(hint), "__name__", str(hint))
    inner = [type_text(part) for part in typing.get_args(hint) if part is not Ellipsis]
    return f"{name} of {', '.join(inner)}" if inner else name


def nested(field: FieldInfo) -> type[BaseModel] | None:
    """The class of a group of settings, None for a setting."""
    hint = field.annotation
    return hint if isinstance(hint, type) and issubclass(hint, BaseModel) else None


@cache
def _meanings() -> Mapping[tuple[str, str], str]:
    return comments(inspect.getsource(module))


def comments(source: str) -> dict[tuple[str, str], str]:
    """(class, field) → the comment ``#:`` above the field."""
    lines, said = source.split("\n"), {}
    for node in ast.parse(source).body:
        if not isinstance(node, ast.ClassDef):
            continue
        for item in node.body:
            if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name):
                above = item.lineno - 1
                while lines[above - 1].strip().startswith("#:"):
                    above -= 1
                text = " ".join(line.strip().removeprefix("#:").strip() for line in lines[above : item.lineno - 1])
                if text:
                    said[node.name, item.target.id] = text.replace("``", "`")
    return said


def _invalid(setting: Described, value: object, why: str) -> str:
    expected = type_text(setting.field.annotation).replace("`", "")
    if expected.startswith("tuple"):
        expected = f"a list ({expected.removeprefix('tuple of ')}): a,b or JSON"
    elif expected.startswith("dict"):
        expected = "a JSON object"
    return f"{setting.variable}={shown(value)}: {why}; expected: {expected}"


def _is_no_json(setting: Described) -> bool:
    try:
        json.loads(os.environ[setting.variable])
    except ValueError:
        return True
    return False
