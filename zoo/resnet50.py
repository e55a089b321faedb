"""
ResNet-50 for ImageNet (He et al. 2016, "Deep residual learning for image recognition", arXiv:1512.03385, table 1).

The stride of a bottleneck is in its 3x3 convolution, as every present framework has it ("v1.5": 4.09 GMACs at 224 x
224).
"""

from dataclasses import dataclass

from torch import Tensor, nn

from zoo.model import ImageSize, ModelFunction, image_card

EXPANSION = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Size(ImageSize):
    """``width``: channels of the stem; ``blocks``: bottlenecks in each of four stages."""

    width: int
    blocks: tuple[int, int, int, int] = (3, 4, 6, 3)


SIZES = {
    "paper": Size(side=224, classes=1000, width=64),
    "cpu": Size(side=96, classes=100, width=24),
}


class Bottleneck(nn.Module):
    """1x1 reduce, 3x3, 1x1 expand, each with BatchNorm, around an identity or a projection."""

    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        out = width * EXPANSION
        self.conv1 = nn.Conv2d(channels, width, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, out, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(out)
        self.relu = nn.ReLU(inplace=True)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or channels != out:
            self.shortcut = nn.Sequential(nn.Conv2d(channels, out, 1, stride, bias=False), nn.BatchNorm2d(out))

    def forward(self, x: Tensor) -> Tensor:
        y = self.relu(self.bn1(self.conv1(x)))
        y = self.relu(self.bn2(self.conv2(y)))
        activated: Tensor = self.relu(self.bn3(self.conv3(y)) + self.shortcut(x))
        return activated


class ResNet(nn.Module):
    """``image`` [rows, 3, side, side] to logits [rows, classes]."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        width = size.width
        self.stem = nn.Sequential(
            nn.Conv2d(3, width, 7, 2, 3, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(3, 2, 1),
        )
        channels = width
        blocks: list[nn.Module] = []
        for stage, count in enumerate(size.blocks):
            for block in range(count):
                stride = 2 if block == 0 and stage > 0 else 1
                blocks.append(Bottleneck(channels, width << stage, stride))
                channels = (width << stage) * EXPANSION
        self.blocks = nn.Sequential(*blocks)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.head = nn.Linear(channels, size.classes)

    def forward(self, image: Tensor) -> Tensor:
        logits: Tensor = self.head(self.pool(self.blocks(self.stem(image))).flatten(1))
        return logits


CARD = image_card(
    name="resnet50",
    network=ResNet,
    sizes=SIZES,
    training_batches={"paper": (16, 32, 64, 128), "cpu": (2, 4, 8, 16)},
    optimizer="sgd",
    learning_rate=0.1,
    input_wait=0.25,
)


class Function(ModelFunction):
    """The cpu preset."""

    card = CARD


class PaperFunction(Function):
    """The published size."""

    preset = "paper"
