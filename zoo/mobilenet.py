"""
MobileNetV2 (Sandler et al. 2018, "MobileNetV2: inverted residuals and linear bottlenecks", arXiv:1801.04381, table 2).

At 224 x 224 with 1000 classes: 3.505 M parameters, 0.30 GMACs.
"""

from dataclasses import dataclass

from torch import Tensor, nn

from zoo.model import ImageSize, ModelFunction, image_card

#: Table 2: expansion, output channels, repeats, stride of the first.
STAGES = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1))


@dataclass(frozen=True, slots=True, kw_only=True)
class Size(ImageSize):
    """``multiplier``: the paper's width multiplier."""

    multiplier: float

    def channels(self, published: int) -> int:
        """The published width times the multiplier, to the nearest multiple of 8 that loses at most a tenth."""
        wanted = published * self.multiplier
        rounded = max(8, int(wanted + 4) // 8 * 8)
        return rounded + 8 if rounded < 0.9 * wanted else rounded


SIZES = {
    "paper": Size(side=224, classes=1000, multiplier=1.0),
    "cpu": Size(side=96, classes=100, multiplier=0.5),
}


def convolution(channels: int, out: int, kernel: int, stride: int = 1, groups: int = 1) -> nn.Sequential:
    """Convolution, BatchNorm, ReLU6."""
    return nn.Sequential(
        nn.Conv2d(channels, out, kernel, stride, kernel // 2, groups=groups, bias=False),
        nn.BatchNorm2d(out),
        nn.ReLU6(inplace=True),
    )


class InvertedResidual(nn.Module):
    """1x1 expand, 3x3 depthwise, linear 1x1 project; the input is added where shapes agree."""

    def __init__(self, channels: int, out: int, expansion: int, stride: int) -> None:
        super().__init__()
        hidden = channels * expansion
        self.residual = stride == 1 and channels == out
        self.body = nn.Sequential(
            *([convolution(channels, hidden, 1)] if expansion != 1 else []),
            convolution(hidden, hidden, 3, stride, groups=hidden),
            nn.Conv2d(hidden, out, 1, bias=False),
            nn.BatchNorm2d(out),
        )

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.body(x)
        return x + y if self.residual else y


class MobileNet(nn.Module):
    """``image`` [rows, 3, side, side] to logits [rows, classes]."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        channels = size.channels(32)
        layers: list[nn.Module] = [convolution(3, channels, 3, 2)]
        for expansion, published, repeats, first_stride in STAGES:
            out = size.channels(published)
            for repeat in range(repeats):
                layers.append(InvertedResidual(channels, out, expansion, first_stride if repeat == 0 else 1))
                channels = out
        # A multiplier below 1 leaves the last convolution as it is (section 4).
        last = size.channels(1280) if size.multiplier > 1 else 1280
        layers.append(convolution(channels, last, 1))
        self.layers = nn.Sequential(*layers)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.dropout = nn.Dropout(0.2)
        self.head = nn.Linear(last, size.classes)

    def forward(self, image: Tensor) -> Tensor:
        logits: Tensor = self.head(self.dropout(self.pool(self.layers(image)).flatten(1)))
        return logits


CARD = image_card(
    name="mobilenet",
    network=MobileNet,
    sizes=SIZES,
    training_batches={"paper": (32, 64, 128, 256), "cpu": (4, 8, 16, 32)},
    optimizer="sgd",
    learning_rate=0.05,
    input_wait=0.7,
)


class Function(ModelFunction):
    """The cpu preset."""

    card = CARD


class PaperFunction(Function):
    """The published size."""

    preset = "paper"
