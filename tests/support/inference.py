"""One run of a loaded function on a runner."""

from worker.frames import Item
from worker.runner.runner_handle import Runner


def ask(one: Runner, value: bytes) -> bytes:
    """The JSON that its handler answers to this JSON."""
    ran = one.predict([Item(encoding="json", accept="json", rows=1, length=len(value))], [value], "", 60)
    return bytes(ran.results[0])
