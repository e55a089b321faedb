"""
Why an invocation was placed where it was, in numbers (smore/messages/wording.py says it in words).

The leader writes the reasons of every decision as JSON (:class:`Reasons`) and answers what would become of an
invocation that nobody has sent yet (:class:`DryRunAnswer`). Gateways and people's tools read both. A field that is
missing or not finite is None, so that an old decision is still shown.
"""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any, Final

import msgspec

from smore.domain.candidate import Candidate, Shadow

_FIELDS: Final = tuple(field.name for field in fields(Candidate))


class Reasons(msgspec.Struct, frozen=True):
    """A decision's: the best candidates, the chosen one first, and how many GPU instances were refused for what."""

    v: int = 1
    policy: str = ""
    table: int = 0
    seed: int = 0
    priority: float | None = None
    #: How long deciding took, microseconds; 0 = not written down.
    schedule_us: int = 0
    candidates: list[Candidate] = []
    refused: dict[str, int] = {}
    shadow: Shadow | None = None
    #: Of a cold start, why no instance stood ready.
    unforeseen: str | msgspec.UnsetType = msgspec.UNSET
    #: ``batch`` or ``urgent`` where it is bulk work.
    work_class: str | msgspec.UnsetType = msgspec.UNSET


class DryRunAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """
    The leader's answer to a question (smore/messages/stream.py: Asked). Nothing was placed.

    ``known`` false: it does not know the revision. ``gpu`` None = nowhere at this moment; ``start_at`` and
    ``finish_at`` (epoch seconds) hold there. ``earliest_deadline_at``: the earliest deadline with which it would be
    placed now, None = time is not what stands against it. ``finish_s``: seconds in which one that waits its turn could
    be done. ``budget_s``: seconds until the budgets of trainings allow it, None = never, or not said. ``yield_s``: for
    how long a run of class batch may go on where only that stands against it, None = nowhere.
    """

    version: int = 1
    known: bool = True
    at: float = 0.0
    gpu: str | None = None
    cold: bool = False
    start_at: float | None = None
    finish_at: float | None = None
    earliest_deadline_at: float | None = None
    finish_s: float | None = None
    reasons: Reasons = Reasons()
    budget_s: float | None = None
    yield_s: float | None = None


def pack_reasons(reasons: Mapping[str, Any]) -> dict[str, Any]:
    """
    A decision as the history keeps it: nothing that is null or empty, and of each candidate the values in the order of
    the fields of :class:`Candidate`; their names would be most of the bytes. So that order must not change; what is new
    comes last.
    """
    kept = {name: value for name, value in reasons.items() if value or value not in (None, {}, [], "")}
    if "candidates" in kept:
        kept["candidates"] = [list(map(candidate.get, _FIELDS)) for candidate in kept["candidates"]]
    return kept


def unpack_reasons(kept: Mapping[str, Any]) -> dict[str, Any]:
    """
    A decision as it was packed, without what was null. Rows from before candidates were packed hold names already.
    """
    candidates = [
        (
            {name: value for name, value in zip(_FIELDS, candidate, strict=False) if value is not None}
            if isinstance(candidate, list)
            else candidate
        )
        for candidate in kept.get("candidates", [])
    ]
    return {**kept, "candidates": candidates}


encode_reasons = encode_answer = msgspec.json.Encoder().encode
decode_answer = msgspec.json.Decoder(DryRunAnswer).decode


def reasons(document: Mapping[str, Any] | None) -> Reasons | None:
    """The reasons of a decision from the history; None where they cannot be read."""
    if not document:
        return None
    try:
        return msgspec.convert(document, Reasons)
    except msgspec.ValidationError:
        return None
