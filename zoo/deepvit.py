"""
DeepViT (Zhou et al. 2021, "DeepViT: towards deeper vision transformer", arXiv:2103.11886): a ViT with re-attention.

The paper preset is DeepViT-S: 16 blocks and a convolutional patch embedding, which the authors' code gives as two
convolutions before the projection. Published as 27 M parameters and 6.2 GMACs; here 27.31 M and 6.42, of which the
products of attention and re-attention are 0.58. Without dropout, the default of the authors' code.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from zoo.model import ImageSize, ModelFunction, image_card

EPSILON = 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class Size(ImageSize):
    """
    ``patch``: pixels of a patch's side, even; ``stem``: channels before it is projected; the feed-forward is 3 x
    ``hidden``.
    """

    patch: int
    stem: int
    hidden: int
    layers: int
    heads: int
    feed_forward: int = 3

    @property
    def tokens(self) -> int:
        """Patches and the class token."""
        return (self.side // self.patch) ** 2 + 1


SIZES = {
    "paper": Size(side=224, classes=1000, patch=16, stem=64, hidden=396, layers=16, heads=12),
    "cpu": Size(side=64, classes=100, patch=8, stem=16, hidden=192, layers=6, heads=6),
}


class ReAttention(nn.Module):
    """
    Self-attention whose maps are mixed among the heads before they meet the values: Norm(theta^T softmax(q k^T /
    sqrt(d))) v (Eq. 3); x [rows, tokens, hidden].

    The learnable theta is a 1x1 convolution over heads, the norm a BatchNorm by head. The mixing needs the maps
    themselves, so no fused kernel can take this.
    """

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.heads = size.heads
        self.scale = (size.hidden // size.heads) ** -0.5
        self.qkv = nn.Linear(size.hidden, 3 * size.hidden)
        self.softmax = nn.Softmax(dim=-1)
        self.mix = nn.Conv2d(size.heads, size.heads, 1)
        self.mix_norm = nn.BatchNorm2d(size.heads)
        self.output = nn.Linear(size.hidden, size.hidden)

    def forward(self, x: Tensor) -> Tensor:
        rows, tokens, hidden = x.shape
        query, key, value = self.qkv(x).view(rows, tokens, 3, self.heads, hidden // self.heads).permute(2, 0, 3, 1, 4)
        maps = self.mix_norm(self.mix(self.softmax(query * self.scale @ key.transpose(-2, -1))))
        attended: Tensor = self.output((maps @ value).transpose(1, 2).reshape(rows, tokens, hidden))
        return attended


class Block(nn.Module):
    """Re-attention and feed-forward, each with LayerNorm before and its residual around; x [rows, tokens, hidden]."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        hidden, inner = size.hidden, size.feed_forward * size.hidden
        self.attention_norm = nn.LayerNorm(hidden, eps=EPSILON)
        self.attention = ReAttention(size)
        self.norm = nn.LayerNorm(hidden, eps=EPSILON)
        self.feed_forward = nn.Sequential(nn.Linear(hidden, inner), nn.GELU(), nn.Linear(inner, hidden))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.attention_norm(x))
        fed: Tensor = x + self.feed_forward(self.norm(x))
        return fed


class DeepVit(nn.Module):
    """``image`` [rows, 3, side, side] to logits [rows, classes]."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        stem, half = size.stem, size.patch // 2
        self.patches = nn.Sequential(
            nn.Conv2d(3, stem, 7, 2, 3, bias=False),
            nn.BatchNorm2d(stem),
            nn.ReLU(inplace=True),
            nn.Conv2d(stem, stem, 3, padding=1, bias=False),
            nn.BatchNorm2d(stem),
            nn.ReLU(inplace=True),
            nn.Conv2d(stem, size.hidden, half, half),
        )
        self.class_token = nn.Parameter(torch.empty(1, 1, size.hidden))
        self.positions = nn.Parameter(torch.empty(1, size.tokens, size.hidden))
        self.blocks = nn.Sequential(*(Block(size) for _ in range(size.layers)))
        self.norm = nn.LayerNorm(size.hidden, eps=EPSILON)
        self.head = nn.Linear(size.hidden, size.classes)

    def forward(self, image: Tensor) -> Tensor:
        patches = self.patches(image).flatten(2).transpose(1, 2)
        x = torch.cat([self.class_token.expand(len(image), -1, -1), patches], dim=1) + self.positions
        logits: Tensor = self.head(self.norm(self.blocks(x))[:, 0])
        return logits


CARD = image_card(
    name="deepvit",
    network=DeepVit,
    sizes=SIZES,
    training_batches={"paper": (16, 32, 64, 128), "cpu": (2, 4, 8, 16)},
    optimizer="adam",
    learning_rate=5e-4,
    weight_std=0.02,
    input_wait=0.25,
)


class Function(ModelFunction):
    """The cpu preset."""

    card = CARD


class PaperFunction(Function):
    """The published size."""

    preset = "paper"
