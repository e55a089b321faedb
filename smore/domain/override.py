"""Overrides of the policy by people: a boost or a pin of a function, for a time."""

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
