"""Overrides of the policy by people, as JSON in the hash ``steering``: a boost or a pin of a function, for a time."""

import msgspec


class Override(msgspec.Struct, frozen=True, kw_only=True):
    """
    What people want of a function for a time: its priority times ``boost``, only the GPU instances ``gpus`` (empty =
    all). Until: epoch seconds, None = until it is changed.
    """

    function: str
    boost: float = 1.0
    boost_until: float | None = None
    gpus: tuple[str, ...] = ()
    pin_until: float | None = None

    def left(self, at: float) -> "Override":
        """The same without what is over at an instant."""
        boosted = self.boost_until is None or at < self.boost_until
        pinned = self.pin_until is None or at < self.pin_until
        return Override(
            function=self.function,
            boost=self.boost if boosted else 1.0,
            boost_until=self.boost_until if boosted else None,
            gpus=self.gpus if pinned else (),
            pin_until=self.pin_until if pinned else None,
        )


encode_override = msgspec.json.Encoder().encode
decode_override = msgspec.json.Decoder(Override).decode
