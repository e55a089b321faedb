"""
Named settings of an engine, and knobs that differ from them: the same for the policy of functions (``knobs.py``) and for
that of trainings (``jobs/knobs.py``). A setting is a frozen dataclass whose fields are the knobs.
"""

from collections.abc import Mapping
from dataclasses import fields, replace
from enum import StrEnum
from typing import Any, ClassVar, Protocol, TypeVar

from smore.domain.spelling import did_you_mean


class _Dataclass(Protocol):
    __dataclass_fields__: ClassVar[dict[str, Any]]


Setting = TypeVar("Setting", bound=_Dataclass)


class UnknownPolicy(ValueError):
    """There is no policy or knob of that name, or its value is out of range."""


def choose(settings: Mapping[str, Setting], name: str, changed: Mapping[str, Any]) -> Setting:
    """The setting ``name`` with the knobs ``changed``. Raises UnknownPolicy, which names what there is."""
    if name not in settings:
        near = did_you_mean(name, settings)
        raise UnknownPolicy(
            f"{name!r} is not a policy{f'{near} There' if near else '; there'} are {', '.join(settings)}"
        )
    setting = settings[name]
    return replace(setting, **{knob: _value(setting, knob, value) for knob, value in changed.items()})


def _value(setting: Any, knob: str, value: Any) -> Any:
    """A knob's value from what JSON can say. Raises UnknownPolicy, which names the knob."""
    names = [field.name for field in fields(setting)]
    if knob not in names:
        near = did_you_mean(knob, names)
        raise UnknownPolicy(f"{knob!r} is not a knob{f'{near} There' if near else '; there'} are {', '.join(names)}")
    kind = type(getattr(setting, knob))
    if issubclass(kind, StrEnum):
        if value in list(kind):
            return kind(value)
    elif kind is tuple and isinstance(value, list | tuple) and all(map(_number, value)):
        return tuple(map(float, value))
    elif kind is float and _number(value):
        return float(value)
    elif isinstance(value, kind) and not (kind is int and isinstance(value, bool)):
        return value
    raise UnknownPolicy(f"{knob}: {value!r} cannot be its value")


def _number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value == value
