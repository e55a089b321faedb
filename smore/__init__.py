"""SMore: serverless deep-learning functions in the idle part of busy GPUs."""

from typing import TYPE_CHECKING

# Bound here and not by the module __getattr__ below: importing the submodule smore.track from anywhere would otherwise
# bind the module to the very name that the function has. It is standard library only, so `import smore` stays light.
from smore.tracking.track import track

if TYPE_CHECKING:
    from smore.handler import Handler
    from smore.tracking.checkpoint import checkpoint, last_checkpoint
    from smore_client import AsyncClient, Client

__all__ = ["AsyncClient", "Client", "Handler", "checkpoint", "last_checkpoint", "track"]

_HOMES = {
    "AsyncClient": "smore_client",
    "Client": "smore_client",
    "Handler": "smore.handler",
    "checkpoint": "smore.tracking.checkpoint",
    "last_checkpoint": "smore.tracking.checkpoint",
}


def __getattr__(name: str) -> object:
    """
    The rest of the public face, imported when it is asked for: a training loop that only tracks its steps needs no HTTP
    client.
    """
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(home), name)
