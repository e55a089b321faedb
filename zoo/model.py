"""
What every model of the zoo has: a card that describes it, weights made from a seed, and the handler that serves it.
"""

import importlib
import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, TypeVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from smore.domain.function import TensorSpec
from smore.handler import Handler
from zoo.options import NAMES

Arrays = dict[str, np.ndarray[Any, np.dtype[Any]]]
Tensors = dict[str, Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class Preset:
    """
    One size of a model.

    ``inputs`` are the tensors of ``forward``, by parameter name. ``limits`` bounds the values of index inputs
    (exclusive): an index out of range ends a CUDA context, so it is refused before it gets there. The batches are the
    four sizes that the profiler pairs.
    """

    inputs: tuple[TensorSpec, ...]
    limits: Mapping[str, int] = field(default_factory=dict)
    training_batches: tuple[int, int, int, int]
    function_batches: tuple[int, int, int, int] = (1, 2, 4, 8)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelCard:
    """
    One architecture with its sizes.

    ``build(preset)`` gives the module on the current default device. ``sample(preset, rows, generator)`` draws inputs
    in the shapes of the data set and ``labels(preset, rows, generator)`` their targets. ``loss`` takes the module's
    output and the labels. ``output`` names the answer of the function; ``weight_std`` is the published deviation of the
    initial weights, None = He et al. 2015 by fan-in. ``input_wait`` is the share of an undisturbed training iteration
    spent waiting for input, 0 to <1: a stand-in for the data pipeline on a CPU partition, set so that the busy share
    lies in the band of the paper's figure 1 (section II-B, Observation I).
    """

    name: str
    output: str
    presets: Mapping[str, Preset]
    build: Callable[[str], nn.Module]
    sample: Callable[[str, int, torch.Generator], Tensors]
    labels: Callable[[str, int, torch.Generator], Tensor]
    loss: Callable[[Tensor, Tensor], Tensor]
    optimizer: Literal["sgd", "adam"]
    learning_rate: float
    weight_std: float | None = None
    input_wait: float = 0.0

    def assemble(self, preset: str, *, device: str = "cpu", seed: int = 0) -> nn.Module:
        """The module with weights from ``seed``, in training mode."""
        with Blank(), torch.device(device):
            module = self.build(preset)
        fill(module, seed=seed, weight_std=self.weight_std)
        return module


def card(name: str) -> ModelCard:
    """The card of one of :data:`NAMES`; KeyError for another name."""
    if name not in NAMES:
        raise KeyError(name)
    found = importlib.import_module(f"zoo.{name}").CARD
    assert isinstance(found, ModelCard)
    return found


_INITIALISERS = {torch.Tensor.uniform_, torch.Tensor.normal_, torch.Tensor.fill_, torch.Tensor.zero_}


class Blank(TorchFunctionMode):
    """
    A context in which modules get memory but no values: :func:`fill` sets them once, where torch would have set them
    before.

    Building on the meta device and ``to_empty`` does the same, but the random initialisers of that device import
    torch's compiler, which takes about a second of a cold start.
    """

    def __torch_function__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        return args[0] if function in _INITIALISERS else function(*args, **(kwargs or {}))


# A prime, so that the noise never repeats in step with the rows of a weight matrix. 1 MB: it stays in a core's cache.
_NOISE_LENGTH = 262_139


@torch.no_grad()
def fill(module: nn.Module, *, seed: int, weight_std: float | None = None) -> None:
    """
    Give every parameter and buffer of ``module`` its first value, the same for the same seed on every device.

    Weights are uniform noise of the deviation ``weight_std``, or sqrt(2 / fan-in) (He et al. 2015, arXiv:1502.01852).
    One short run of noise is repeated over all of them, each from another offset: that is bound by memory bandwidth
    where a fresh draw for each weight is bound by the generator, and weights that no training has touched need no
    better randomness. The time is a cold start's.
    """
    noise = (torch.rand(_NOISE_LENGTH, generator=torch.Generator().manual_seed(seed)) * 2 - 1) * math.sqrt(3)
    noises: dict[torch.device, Tensor] = {}
    offset = 0
    for part in module.modules():
        for name, tensor in part.named_parameters(recurse=False):
            if name == "bias" or isinstance(part, nn.BatchNorm2d | nn.LayerNorm):
                tensor.fill_(0.0 if name == "bias" else 1.0)
                continue
            fan_in = tensor[0].numel() if isinstance(part, nn.Linear | nn.Conv2d) else 0
            deviation = weight_std or (math.sqrt(2 / fan_in) if fan_in else 0.02)
            local = noises.setdefault(tensor.device, noise.to(tensor.device))
            offset = _repeat(local, tensor.view(-1), offset, deviation)
        for name, buffer in part.named_buffers(recurse=False):
            if not isinstance(part, nn.BatchNorm2d):
                raise TypeError(f"the buffer {name} of {type(part).__name__} has no rule here")
            buffer.fill_(1 if name == "running_var" else 0)


def _repeat(noise: Tensor, target: Tensor, offset: int, deviation: float) -> int:
    """
    Write ``noise`` times ``deviation`` over ``target`` again and again, from ``offset`` on; returns where it stopped.
    """
    done = 0
    while done < target.numel():
        size = min(target.numel() - done, noise.numel() - offset)
        torch.mul(noise[offset : offset + size], deviation, out=target[done : done + size])
        done += size
        offset = (offset + size) % noise.numel()
    return offset


def tensor_spec(name: str, datatype: str, *shape: int) -> TensorSpec:
    """An input with one row's ``shape``; the axis of rows comes before it."""
    return TensorSpec(name=name, datatype=datatype, shape=(-1, *shape))


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageSize:
    """What the sizes of an image classifier have in common; ``side``: pixels of the square input."""

    side: int
    classes: int


SizeT = TypeVar("SizeT", bound=ImageSize)


def image_card(
    *,
    name: str,
    network: Callable[[SizeT], nn.Module],
    sizes: Mapping[str, SizeT],
    training_batches: Mapping[str, tuple[int, int, int, int]],
    optimizer: Literal["sgd", "adam"],
    learning_rate: float,
    input_wait: float,
    weight_std: float | None = None,
) -> ModelCard:
    """
    The card of an image classifier: ``image`` [rows, 3, side, side] to ``logits`` [rows, classes].

    ``network(size)`` makes the module; ``sizes`` and ``training_batches`` go by preset. Samples are normalised images
    (zero mean, unit variance), labels a class for each image, int64 [rows].
    """

    def build(preset: str) -> nn.Module:
        return network(sizes[preset])

    def sample(preset: str, rows: int, generator: torch.Generator) -> Tensors:
        side = sizes[preset].side
        return {"image": torch.randn(rows, 3, side, side, generator=generator)}

    def labels(preset: str, rows: int, generator: torch.Generator) -> Tensor:
        return torch.randint(sizes[preset].classes, (rows,), generator=generator)

    return ModelCard(
        name=name,
        output="logits",
        presets={
            preset: Preset(
                inputs=(tensor_spec("image", "FP32", 3, size.side, size.side),),
                training_batches=training_batches[preset],
            )
            for preset, size in sizes.items()
        },
        build=build,
        sample=sample,
        labels=labels,
        loss=functional.cross_entropy,
        optimizer=optimizer,
        learning_rate=learning_rate,
        weight_std=weight_std,
        input_wait=input_wait,
    )


class ModelFunction(Handler):
    """
    Serves a card's model: ``{input: [rows, ...]}`` to ``{card.output: [rows, ...]}`` in FP32.

    A subclass names the card, and the preset where it is not the small one.
    """

    card: ClassVar[ModelCard]
    preset: ClassVar[str] = "cpu"
    seed: ClassVar[int] = 0

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        with torch.device("cpu"):  # whatever the importer's default device is
            drawn = cls.card.sample(cls.preset, 1, torch.Generator().manual_seed(0))
        cls.example = {name: tensor.numpy() for name, tensor in drawn.items()}

    def load(self, device: str) -> None:
        # Inputs may lie in memory that is not ours to write (a received body). Nothing here writes to them; torch
        # cannot know it.
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        self._module = self.card.assemble(self.preset, device=device, seed=self.seed).eval()
        self._device = torch.device(device)

    @property
    def module(self) -> nn.Module:
        return self._module

    def modules(self) -> Sequence[nn.Module]:
        return (self._module,)

    def predict(self, inputs: Arrays) -> Arrays:
        with torch.inference_mode():
            tensors = {name: torch.from_numpy(array).to(self._device) for name, array in self._checked(inputs).items()}
            return {self.card.output: self.answer(self._module(**tensors)).float().cpu().numpy()}

    def answer(self, output: Tensor) -> Tensor:
        """What the module's output is turned into for the caller; as it is unless a model overrides this."""
        return output

    def _checked(self, inputs: Arrays) -> Arrays:
        """The inputs of the preset; ValueError for one that is missing or holds an index out of range."""
        preset = self.card.presets[self.preset]
        for spec in preset.inputs:
            if spec.name not in inputs:
                raise ValueError(f"input {spec.name!r} is missing")
        for name, limit in preset.limits.items():
            if inputs[name].size and not 0 <= inputs[name].min() <= inputs[name].max() < limit:
                raise ValueError(f"input {name!r}: indices must be within 0..{limit - 1}")
        return {spec.name: inputs[spec.name] for spec in preset.inputs}
