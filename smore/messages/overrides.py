"""
Overrides of the policy by people: boosts and pins as JSON in the hash ``steering``; pauses and drains as members of the
set ``paused`` (:meth:`smore.redis.fleet.Fleet.pause`), and in the hash ``paused:by`` since when and by whom.
"""

from collections.abc import Iterable, Mapping

import msgspec

from smore.domain.override import Override, Pause

encode_override = msgspec.json.Encoder().encode
decode_override = msgspec.json.Decoder(Override).decode


class Paused(msgspec.Struct, frozen=True, kw_only=True):
    """A value of the hash ``paused:by``. ``at``: epoch seconds; ``by``: id of the API key."""

    at: float
    by: str


encode_paused = msgspec.json.Encoder().encode
_decode_paused = msgspec.json.Decoder(Paused).decode


def pauses(members: Iterable[bytes], by: Mapping[bytes, bytes]) -> list[Pause]:
    """The members of the set ``paused`` with what the hash ``paused:by`` says of them: the platform first."""
    return sorted(
        (_pause(member.decode(), by.get(member)) for member in members),
        key=lambda pause: (pause.scope != "platform", pause.scope, pause.name, pause.drains),
    )


def _pause(member: str, raw: bytes | None) -> Pause:
    target = member.removeprefix("-")
    scope = {"f": "function", "g": "gpu"}.get(target.partition(":")[0], "platform")
    said = _decode_paused(raw) if raw is not None else None
    return Pause(
        scope=scope,
        name=target.partition(":")[2],
        drains=target != member,
        since=said.at if said is not None else None,
        by=said.by if said is not None else "",
    )
