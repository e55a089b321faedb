"""
``smore.track`` for training loops that somebody else writes: Hugging Face's Trainer and Lightning.

``Trainer(callbacks=[smore.callbacks.HuggingFace()])``, ``Trainer(callbacks=[smore.callbacks.Lightning()])``: the
framework is imported when its class is asked for, and not before.
"""

from typing import Any

from smore.tracking.ring import Tracker
from smore.tracking.track import track


class _Steps:
    """Begins and ends the tracker with the training; one tracker for each run, on the process that trains."""

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
        """Reports every optimiser step. Takes what :func:`smore.tracking.track` takes."""

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
        """Reports every training batch. Takes what :func:`smore.tracking.track` takes."""

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
    """A class of this module, made when it is asked for. ModuleNotFoundError names the framework that is missing."""
    maker = _MAKERS.get(name)
    if maker is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return maker()
