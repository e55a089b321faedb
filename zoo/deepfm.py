"""
DeepFM for Criteo (Guo et al. 2017, "DeepFM: a factorization-machine based neural network for CTR prediction",
arXiv:1703.04247).

Thirteen dense and 26 categorical fields share latent vectors of size 10 between the factorization machine (Eq. 2) and
the deep part, three layers with dropout 0.5 (section 3.1). A dense field's vector is scaled by its value.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from zoo.model import ModelCard, ModelFunction, Preset, Tensors, tensor_spec

DENSE = 13
#: Distinct values of the 26 categorical fields in the Criteo Display Advertising Challenge (33.8 M together).
CARDINALITIES = (
    1460,
    583,
    10_131_227,
    2_202_608,
    305,
    24,
    12_517,
    633,
    3,
    93_145,
    5683,
    8_351_593,
    3194,
    27,
    14_992,
    5_461_306,
    10,
    5652,
    2173,
    4,
    7_046_547,
    18,
    15,
    286_181,
    105,
    142_572,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """
    ``buckets``: a field with more values is hashed to this number, as is usual where the full tables (338 M weights) do not
    fit; ``deep``: widths of the deep part.
    """

    buckets: int
    deep: tuple[int, ...]
    latent: int = 10

    @property
    def fields(self) -> tuple[int, ...]:
        """Rows of each categorical field's table."""
        return tuple(min(count, self.buckets) for count in CARDINALITIES)


SIZES = {
    # The published deep part on about a million table rows.
    "paper": Size(buckets=100_000, deep=(400, 400, 400)),
    # Smaller tables but a wider deep part: at the published width a row takes a third of a millisecond on a core, in
    # which neither side of a co-location would notice the other. So it is bound by memory, as the large tables make it
    # on a GPU.
    "cpu": Size(buckets=10_000, deep=(2560, 2560, 2560)),
}


class DeepFm(nn.Module):
    """
    ``dense`` float [rows, 13] and ``sparse`` int64 [rows, 26] (each taken modulo its field's table) to logits [rows].
    """

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.fields = size.fields
        self.linear = nn.Embedding(sum(self.fields), 1)
        self.latent = nn.Embedding(sum(self.fields), size.latent)
        self.dense_linear = nn.Linear(DENSE, 1)
        self.dense_latent = nn.Embedding(DENSE, size.latent)
        layers: list[nn.Module] = []
        width = (DENSE + len(self.fields)) * size.latent
        for out in size.deep:
            layers += [nn.Linear(width, out), nn.ReLU(), nn.Dropout(0.5)]
            width = out
        self.deep = nn.Sequential(*layers, nn.Linear(width, 1))

    def forward(self, dense: Tensor, sparse: Tensor) -> Tensor:
        rows_of = torch.tensor(self.fields, device=sparse.device)
        index = sparse % rows_of + (rows_of.cumsum(0) - rows_of)
        vectors = torch.cat(
            [self.dense_latent.weight * dense.unsqueeze(-1), self.latent(index)], dim=1
        )  # [rows, 39, latent]
        first: Tensor = self.dense_linear(dense).squeeze(-1) + self.linear(index).sum((1, 2))
        # Sum over pairs of inner products = (square of the sum - sum of the squares) / 2 (Rendle 2010).
        pairs = 0.5 * (vectors.sum(1).square() - vectors.square().sum(1)).sum(-1)
        logits: Tensor = first + pairs + self.deep(vectors.flatten(1)).squeeze(-1)
        return logits


def build(preset: str) -> nn.Module:
    return DeepFm(SIZES[preset])


def sample(preset: str, rows: int, generator: torch.Generator) -> Tensors:
    """
    Dense values in 0..1 (counts after logarithm and scaling); categories skewed towards the small indices, as clicks
    are.
    """
    fields = torch.tensor(SIZES[preset].fields)
    skewed = torch.rand(rows, len(fields), generator=generator).square()
    return {"dense": torch.rand(rows, DENSE, generator=generator), "sparse": (skewed * fields).long()}


def labels(preset: str, rows: int, generator: torch.Generator) -> Tensor:  # noqa: ARG001 - the signature of every card
    """Clicked or not, float [rows]: about a quarter of Criteo's rows are clicks."""
    return (torch.rand(rows, generator=generator) < 0.25).float()


INPUTS = (tensor_spec("dense", "FP32", DENSE), tensor_spec("sparse", "INT64", len(CARDINALITIES)))

CARD = ModelCard(
    name="deepfm",
    output="probability",
    presets={
        "paper": Preset(inputs=INPUTS, training_batches=(1024, 2048, 4096, 8192)),
        "cpu": Preset(inputs=INPUTS, training_batches=(16, 32, 64, 128)),
    },
    build=build,
    sample=sample,
    labels=labels,
    loss=functional.binary_cross_entropy_with_logits,
    optimizer="adam",
    learning_rate=1e-3,
    input_wait=0.75,
)


class Function(ModelFunction):
    """The cpu preset; answers the probability of a click, FP32 [rows]."""

    card = CARD
    preset = "cpu"

    def answer(self, output: Tensor) -> Tensor:
        return output.sigmoid()


class PaperFunction(Function):
    """The published deep part."""

    preset = "paper"
