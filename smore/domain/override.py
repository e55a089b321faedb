"""Overrides of the policy by people: a boost or a pin of a function for a time, a pause, a drain."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Override:
    """
    P (Eq. 5) of a function is multiplied by ``boost``, and it runs only on the GPU instances ``gpus`` (empty = on all).
    ``*_until``: epoch seconds, None = until it is changed.
    """

    function: str
    boost: float = 1.0
    boost_until: float | None = None
    gpus: tuple[str, ...] = ()
    pin_until: float | None = None

    def left(self, at: float) -> "Override":
        """The override without the parts that have ended at this instant."""
        boosted = self.boost_until is None or at < self.boost_until
        pinned = self.pin_until is None or at < self.pin_until
        return Override(
            function=self.function,
            boost=self.boost if boosted else 1.0,
            boost_until=self.boost_until if boosted else None,
            gpus=self.gpus if pinned else (),
            pin_until=self.pin_until if pinned else None,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Pause:
    """
    A pause or a drain. ``scope``: "platform", "function" or "gpu"; ``name``: the function's as project/name, the GPU
    instance's, "" = the platform. ``since``: epoch seconds, None = not known; ``by``: id of the API key, "" = not known.
    """

    scope: str
    name: str
    drains: bool
    since: float | None = None
    by: str = ""
