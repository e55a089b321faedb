"""
VGG-16 (Simonyan & Zisserman 2015, "Very deep convolutional networks for large-scale image recognition",
arXiv:1409.1556, table 1).

Configuration D, without BatchNorm as published. At 224 x 224 with 1000 classes: 138.36 M parameters, 15.47 GMACs.
"""

from dataclasses import dataclass

from torch import Tensor, nn

from zoo.model import ImageSize, ModelFunction, image_card

#: Configuration D: multiples of the first stage's width and numbers of 3x3 convolutions; a max-pool ends each stage.
STAGES = ((1, 2), (2, 2), (4, 3), (8, 3), (8, 3))


@dataclass(frozen=True, slots=True, kw_only=True)
class Size(ImageSize):
    """
    ``width``: channels of the first stage; ``hidden``: width of the classifier's two layers. ``side`` is a multiple of
    32.
    """

    width: int
    hidden: int


SIZES = {
    "paper": Size(side=224, classes=1000, width=64, hidden=4096),
    "cpu": Size(side=64, classes=100, width=24, hidden=512),
}


class Vgg(nn.Module):
    """``image`` [rows, 3, side, side] to logits [rows, classes]."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        channels = 3
        for multiple, convolutions in STAGES:
            out = multiple * size.width
            for _ in range(convolutions):
                layers += [nn.Conv2d(channels, out, 3, padding=1), nn.ReLU(inplace=True)]
                channels = out
            layers.append(nn.MaxPool2d(2))
        self.features = nn.Sequential(*layers)
        left = size.side >> len(STAGES)
        self.classifier = nn.Sequential(
            nn.Linear(channels * left * left, size.hidden),
            nn.ReLU(inplace=True),
            nn.Dropout(0.5),
            nn.Linear(size.hidden, size.hidden),
            nn.ReLU(inplace=True),
            nn.Dropout(0.5),
            nn.Linear(size.hidden, size.classes),
        )

    def forward(self, image: Tensor) -> Tensor:
        logits: Tensor = self.classifier(self.features(image).flatten(1))
        return logits


CARD = image_card(
    name="vgg16",
    network=Vgg,
    sizes=SIZES,
    training_batches={"paper": (16, 32, 64, 128), "cpu": (2, 4, 8, 16)},
    optimizer="sgd",
    learning_rate=0.001,
    input_wait=0.45,
)


class Function(ModelFunction):
    """The cpu preset."""

    card = CARD


class PaperFunction(Function):
    """The published size."""

    preset = "paper"
