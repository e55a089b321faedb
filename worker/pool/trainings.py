"""What the pool asks about the trainings of its GPU instance."""

from typing import Protocol


class Trainings(Protocol):
    """Asked with the pool's lock held."""

    def memory_mib(self) -> float:
        """Of the device, held or reserved."""
        ...

    def owed_mib(self) -> float:
        """The part of it that they do not hold yet."""
        ...

    def growing(self) -> str:
        """Why all that the device has left belongs to one for now, '' = it does not."""
        ...
