"""
SegNet with task attention for NYUv2 (Liu, Johns and Davison 2019, "End-to-end multi-task learning with attention",
arXiv:1803.10704).

The shared network is SegNet (Badrinarayanan et al. 2017, arXiv:1511.00561): the 13 convolutions of VGG-16 with
BatchNorm, and their mirror, which undoes each max-pooling at the indices it took. For each of three tasks (13 classes,
depth, surface normals) an attention module at each of the ten stages masks the shared features; the 3x3 convolutions
that carry them on are common to the tasks (section 3.2). Published: 1.77 times the parameters of a single-task SegNet,
which the authors' program counts as 24,981,069. Here: 44,229,073, and the shared network with the head of one task has
the same 24,981,069, so 1.7705 times. The authors' program learns three loss weights on top; here the losses weigh the
same. At 288 x 384 a row costs 216.0 GMACs.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from zoo.model import ModelCard, ModelFunction, Preset, Tensors, tensor_spec

#: Convolutions of each stage (VGG-16).
DEPTHS = (2, 2, 3, 3, 3)
#: Channels of the answer: classes, depth, normal vector.
TASKS = (13, 1, 3)
#: NYUv2's depths in metres.
NEAREST, FARTHEST = 0.7, 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """``height`` and ``width`` of the input in pixels, multiples of 32; ``widths``: channels of the five stages."""

    height: int
    width: int
    widths: tuple[int, int, int, int, int]


SIZES = {
    "paper": Size(height=288, width=384, widths=(64, 128, 256, 512, 512)),
    "cpu": Size(height=64, width=64, widths=(8, 16, 32, 64, 64)),
}


def convolution(channels: int, out: int) -> nn.Sequential:
    """3x3 convolution, BatchNorm, ReLU."""
    return nn.Sequential(nn.Conv2d(channels, out, 3, padding=1), nn.BatchNorm2d(out), nn.ReLU(inplace=True))


def attention(channels: int, out: int) -> nn.Sequential:
    """A mask of 0 to 1 for ``out`` shared channels: two 1x1 convolutions."""
    return nn.Sequential(
        nn.Conv2d(channels, out, 1),
        nn.BatchNorm2d(out),
        nn.ReLU(inplace=True),
        nn.Conv2d(out, out, 1),
        nn.BatchNorm2d(out),
        nn.Sigmoid(),
    )


class Stage(nn.Module):
    """The shared convolutions of one stage: gives the features after the first and after the last."""

    def __init__(self, channels: int, out: int, depth: int) -> None:
        super().__init__()
        self.first = convolution(channels, out)
        self.rest = nn.Sequential(*(convolution(out, out) for _ in range(depth - 1)))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        first = self.first(x)
        return first, self.rest(first)


class Attention(nn.Module):
    """The masks of one task, one for each stage; those of the decoder are in the order in which they are used."""

    def __init__(self, widths: tuple[int, ...], unpooled: tuple[int, ...], decoded: tuple[int, ...], out: int) -> None:
        super().__init__()
        self.encoder = nn.ModuleList(
            attention(width if stage == 0 else 2 * width, width) for stage, width in enumerate(widths)
        )
        self.decoder = nn.ModuleList(
            attention(shared + width, width) for shared, width in zip(unpooled, decoded, strict=True)
        )
        self.head = nn.Sequential(nn.Conv2d(decoded[-1], decoded[-1], 3, padding=1), nn.Conv2d(decoded[-1], out, 1))


class SegNet(nn.Module):
    """
    ``image`` [rows, 3, height, width] to maps [rows, 17, height, width].

    The maps are the logits of 13 classes, the depth in metres and the surface normal, of unit length.
    """

    def __init__(self, size: Size) -> None:
        super().__init__()
        widths = size.widths
        unpooled = widths[::-1]
        decoded = (*unpooled[1:], unpooled[-1])
        self.encoder = nn.ModuleList(map(Stage, (3, *widths[:-1]), widths, DEPTHS))
        self.decoder = nn.ModuleList(map(Stage, unpooled, decoded, DEPTHS[::-1]))
        # What carries a task's features to its next attention module, the same for all tasks.
        self.carry_down = nn.ModuleList(map(convolution, widths, (*widths[1:], widths[-1])))
        self.carry_up = nn.ModuleList(map(convolution, unpooled, decoded))
        self.tasks = nn.ModuleList(Attention(widths, unpooled, decoded, out) for out in TASKS)
        self.pool = nn.MaxPool2d(2, return_indices=True)
        self.unpool = nn.MaxUnpool2d(2)
        self.carry_pool = nn.MaxPool2d(2)
        self.enlarge = nn.Upsample(scale_factor=2, mode="bilinear", align_corners=True)

    def forward(self, image: Tensor) -> Tensor:
        x = image
        down: list[tuple[Tensor, Tensor]] = []
        indices: list[Tensor] = []
        for stage in self.encoder:
            first, last = stage(x)
            down.append((first, last))
            x, index = self.pool(last)
            indices.append(index)
        up: list[tuple[Tensor, Tensor]] = []
        for stage in self.decoder:
            unpooled = self.unpool(x, indices.pop())
            x = stage(unpooled)[1]
            up.append((unpooled, x))
        classes, depth, normal = (self._attend(task, down, up) for task in self.tasks)
        return torch.cat([classes, depth, functional.normalize(normal, dim=1)], dim=1)

    def _attend(self, task: nn.Module, down: list[tuple[Tensor, Tensor]], up: list[tuple[Tensor, Tensor]]) -> Tensor:
        """One task's path through the masked features of the stages: pairs of what its mask sees and what is masked."""
        assert isinstance(task, Attention)
        carried: Tensor | None = None
        for (seen, shared), mask, carry in zip(down, task.encoder, self.carry_down, strict=True):
            weight = mask(seen if carried is None else torch.cat([seen, carried], dim=1))
            carried = self.carry_pool(carry(weight * shared))
        for (seen, shared), mask, carry in zip(up, task.decoder, self.carry_up, strict=True):
            carried = mask(torch.cat([seen, carry(self.enlarge(carried))], dim=1)) * shared
        maps: Tensor = task.head(carried)
        return maps


def build(preset: str) -> nn.Module:
    return SegNet(SIZES[preset])


def sample(preset: str, rows: int, generator: torch.Generator) -> Tensors:
    """Normalised images: zero mean, unit variance."""
    size = SIZES[preset]
    return {"image": torch.randn(rows, 3, size.height, size.width, generator=generator)}


def labels(preset: str, rows: int, generator: torch.Generator) -> Tensor:
    """Class, depth in metres and unit normal of each pixel, float [rows, 5, height, width]."""
    size = SIZES[preset]
    shape = (size.height, size.width)
    classes = torch.randint(TASKS[0], (rows, 1, *shape), generator=generator)
    depth = NEAREST + (FARTHEST - NEAREST) * torch.rand(rows, 1, *shape, generator=generator)
    normal = functional.normalize(torch.randn(rows, 3, *shape, generator=generator), dim=1)
    return torch.cat([classes, depth, normal], dim=1)


def loss(maps: Tensor, wanted: Tensor) -> Tensor:
    """
    Cross entropy of the classes + L1 of the depth + (1 - cosine) of the normals, equally weighted means over the pixels
    (3.3).
    """
    classes = TASKS[0]
    segmentation = functional.cross_entropy(maps[:, :classes], wanted[:, 0].long())
    depth = functional.l1_loss(maps[:, classes], wanted[:, 1])
    normals = 1 - (maps[:, classes + 1 :] * wanted[:, 2:]).sum(1).mean()
    return segmentation + depth + normals


def _preset(name: str, training_batches: tuple[int, int, int, int]) -> Preset:
    size = SIZES[name]
    return Preset(inputs=(tensor_spec("image", "FP32", 3, size.height, size.width),), training_batches=training_batches)


CARD = ModelCard(
    name="segnet",
    output="maps",
    presets={"paper": _preset("paper", (2, 4, 8, 16)), "cpu": _preset("cpu", (1, 2, 4, 8))},
    build=build,
    sample=sample,
    labels=labels,
    loss=loss,
    optimizer="adam",
    learning_rate=1e-4,
    input_wait=0.4,
)


class Function(ModelFunction):
    """The cpu preset."""

    card = CARD
    preset = "cpu"


class PaperFunction(ModelFunction):
    """The published size."""

    card = CARD
    preset = "paper"
