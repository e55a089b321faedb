"""
``smore.track`` for the training loops of Hugging Face's Trainer and of Lightning.

``Trainer(callbacks=[smore.callbacks.HuggingFace()])``, ``Trainer(callbacks=[smore.callbacks.Lightning()])``: the
framework is imported when its class is first used.
"""

from typing import Any

from smore.tracking.ring import Tracker
from smore.tracking.track import track


class _Steps:
    """Begins and ends a tracker with each training, in the process that trains."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self._options = options
        self._tracker: Tracker | None = None

    def _begin(self) -> None:
        self._end()
        self._tracker = track(**self._options).__enter__()

    def _step(self) -> None:
        if self._tracker is not None:
            self._tracker.step()

    def _end(self) -> None:
        if self._tracker is not None:
            self._tracker.close()
            self._tracker = None


def _hugging_face() -> type:
    from transformers import TrainerCallback

    class HuggingFace(_Steps, TrainerCallback):  # type: ignore[misc]  # without the framework it is Any
        """Reports every optimiser step. It takes the arguments of :func:`smore.tracking.track`."""

        def on_train_begin(self, *_: Any, **__: Any) -> None:
            self._begin()

        def on_step_end(self, *_: Any, **__: Any) -> None:
            self._step()

        def on_train_end(self, *_: Any, **__: Any) -> None:
            self._end()

    return HuggingFace


def _lightning() -> type:
    try:
        from lightning.pytorch.callbacks import Callback
    except ModuleNotFoundError:
        from pytorch_lightning.callbacks import Callback

    class Lightning(_Steps, Callback):  # type: ignore[misc]  # without the framework it is Any
        """Reports every training batch. It takes the arguments of :func:`smore.tracking.track`."""

        def on_train_start(self, *_: Any, **__: Any) -> None:
            self._begin()

        def on_train_batch_end(self, *_: Any, **__: Any) -> None:
            self._step()

        def on_train_end(self, *_: Any, **__: Any) -> None:
            self._end()

        def on_exception(self, *_: Any, **__: Any) -> None:
            self._end()

    return Lightning


_MAKERS = {"HuggingFace": _hugging_face, "Lightning": _lightning}


def __getattr__(name: str) -> type:
    """A callback class, created at its first use. Raises ModuleNotFoundError that names the missing framework."""
    maker = _MAKERS.get(name)
    if maker is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return maker()
