"""
What the operations return. The structs of the API are generated (smore_client/generated.py); :class:`Invocation` and
its page add what the client knows beyond the JSON body.
"""

from typing import Any, Final

import msgspec

from smore_client import generated

# The star re-exports the generated names, for type checkers too.
from smore_client.generated import *  # noqa: F403

#: States that do not change any more.
_TERMINAL: Final = (
    generated.State.SUCCEEDED,
    generated.State.FAILED,
    generated.State.REJECTED,
    generated.State.EXPIRED,
    generated.State.CANCELLED,
)


class Invocation(generated.InvocationRecord, frozen=True, kw_only=True):
    """
    One invocation, as far as the platform has told.

    ``output`` once it has succeeded: a JSON value, or ``{name: numpy array}`` where arrays were sent. An input of
    :meth:`~smore_client.requests.Requests.map` or ``submit_all`` that was refused has the ``id`` '';
    ``earliest_deadline_ms``: the earliest deadline that it would have been accepted with, from its arrival, None = not
    known, or its deadline was not the reason. ``durability``: how the platform keeps an accepted invocation.
    ``timings_ms``: milliseconds of the phases queue, schedule, dispatch, load and run; ``load`` above 0 = a cold start.
    ``replayed``: of ``invoke``, an earlier request with the same ``idempotency_key`` made this invocation.

    >>> invocation = client.invoke("echo", {"x": [1, 2]})
    >>> invocation.state, invocation.output, invocation.timings_ms["run"]
    (<State.SUCCEEDED: 'succeeded'>, {'x': [1, 2]}, 0.4)
    """

    state: generated.State
    id: str = ""
    durability: str = ""
    earliest_deadline_ms: float | None = None
    replayed: bool = False
    timings_ms: dict[str, float] = msgspec.field(default_factory=dict)

    @property
    def done(self) -> bool:
        """Whether it has ended, in whatever way."""
        return self.state in _TERMINAL or self.finished_at is not None


class LiveChange(msgspec.Struct, frozen=True, kw_only=True):
    """The rows of a topic that have changed, all of them where it is ``whole``, and what identifies those that are ``gone``."""

    topic: str
    rows: list[dict[str, Any]] = []
    gone: list[str] = []
    whole: bool = False


class InvocationPage(msgspec.Struct, frozen=True, kw_only=True):
    """Invocations, the newest first; ``cursor`` asks for the next page, None = this is the last."""

    items: list[Invocation]
    cursor: str | None = None
