"""
The class a developer writes.

A function's ``entrypoint`` names one (``zoo.resnet50:Function``). The platform makes an instance in a process of its
own (a runner), calls ``load`` once, ``predict`` for every batch, ``unload`` before the process ends. User code never
sees a socket.

There are two kinds of input; ``example`` says which:

* **tensors**: ``example`` is ``{name: numpy array}``; every array has a leading axis of rows. ``predict`` receives the
  same dict with the rows of several invocations concatenated on axis 0 and returns ``{name: array}`` with the same
  number of rows in the same order. An axis may be 0 long. Text and other bytes are arrays of objects: ``bytes`` come
  in, ``bytes`` or ``str`` go out.
* **JSON**: ``example`` is any other JSON value. ``predict`` receives a list of such values, one for each invocation,
  and returns a list of the same length. Annotations may name records: with ``predict(self, inputs: list[Question]) ->
  list[Answer]``, where both are pydantic models, dataclasses, msgspec Structs or TypedDicts, every input is checked and
  converted before ``predict`` gets it, outputs are checked (docs/guides/own-model.md says where), and
  ``/v1/functions/NAME/openapi.json`` describes both. NaN and infinity become ``null``.

``predict`` may be ``async def``. One batch runs at a time, and all batches on the same event loop.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar


class Handler(ABC):
    #: One input, used for the canary runs of a new revision (alone, and twice in one batch where ``batching.max_size``
    #: allows two) and for the first run after every load, at each cold start.
    example: ClassVar[Any]

    def load(self, device: str) -> None:  # noqa: B027 - the default is empty on purpose: a handler without weights
        """
        Prepare to predict on ``device``: ``"cuda"`` on a GPU, unless the function declares ``gpu_memory: 0``;
        otherwise ``"cpu"``.

        Build the model and its weights here, not in ``__init__``.
        """

    @abstractmethod
    def predict(self, inputs: Any) -> Any:
        """
        Answer one batch, or be ``async def`` and do so (see the module's docstring for shapes). An exception fails every
        invocation of the batch.
        """

    def modules(self) -> Sequence[Any]:
        """
        Torch modules whose weights may be moved to host memory and back while no ``predict`` runs; none by
        default.

        Name them only where nothing else points into their memory: a CUDA graph does, a compiled module may.
        """
        return ()

    def unload(self) -> None:  # noqa: B027 - the default is empty on purpose
        """Release files and connections. The process ends afterwards, which frees its memory."""
