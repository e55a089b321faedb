"""
BERT with a classification head (Devlin et al. 2019, "BERT: pre-training of deep bidirectional transformers",
arXiv:1810.04805).

The paper preset is BERT-base-uncased: 109.48 M parameters with its pooler. The data set of table I is CSL: two classes.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from zoo.model import ModelCard, ModelFunction, Preset, Tensors, tensor_spec

DROPOUT = 0.1
#: Tokens of the vocabulary that every sequence has: [CLS], [SEP].
CLS, SEP = 101, 102


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """
    ``tokens``: length of a sampled sequence (the model takes up to ``positions``); the feed-forward is 4 x ``hidden``.

    ``epsilon`` is LayerNorm's; ``padding``: the index whose rows of the word and position tables are not trained, if
    any.
    """

    hidden: int
    layers: int
    heads: int
    tokens: int
    vocabulary: int = 30_522
    positions: int = 512
    segments: int = 2
    epsilon: float = 1e-12
    padding: int | None = None
    classes: int = 2


SIZES = {
    "paper": Size(hidden=768, layers=12, heads=12, tokens=128),
    "cpu": Size(hidden=320, layers=4, heads=5, tokens=64, vocabulary=8192, positions=128),
}


class Layer(nn.Module):
    """Self-attention and feed-forward, each with its residual and LayerNorm after it; x [rows, tokens, hidden]."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        hidden = size.hidden
        self.heads = size.heads
        self.query = nn.Linear(hidden, hidden)
        self.key = nn.Linear(hidden, hidden)
        self.value = nn.Linear(hidden, hidden)
        self.attention_dropout = nn.Dropout(DROPOUT)
        self.attention_output = nn.Linear(hidden, hidden)
        self.attention_output_dropout = nn.Dropout(DROPOUT)
        self.attention_norm = nn.LayerNorm(hidden, eps=size.epsilon)
        self.intermediate = nn.Linear(hidden, 4 * hidden)
        self.activation = nn.GELU()
        self.output = nn.Linear(4 * hidden, hidden)
        self.output_dropout = nn.Dropout(DROPOUT)
        self.output_norm = nn.LayerNorm(hidden, eps=size.epsilon)

    def forward(self, x: Tensor, visible: Tensor) -> Tensor:
        rows, tokens, hidden = x.shape

        def split(projected: Tensor) -> Tensor:
            return projected.view(rows, tokens, self.heads, hidden // self.heads).transpose(1, 2)

        attended = functional.scaled_dot_product_attention(
            split(self.query(x)),
            split(self.key(x)),
            split(self.value(x)),
            attn_mask=visible,
            dropout_p=self.attention_dropout.p if self.training else 0.0,
        )
        joined = attended.transpose(1, 2).reshape(rows, tokens, hidden)
        x = self.attention_norm(x + self.attention_output_dropout(self.attention_output(joined)))
        fed: Tensor = self.output_norm(x + self.output_dropout(self.output(self.activation(self.intermediate(x)))))
        return fed


class Encoder(nn.Module):
    """Embeddings and layers, what BERT and its descendants share; a subclass puts its head on top."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.words = nn.Embedding(size.vocabulary, size.hidden, padding_idx=size.padding)
        self.positions = nn.Embedding(size.positions, size.hidden, padding_idx=size.padding)
        self.segments = nn.Embedding(size.segments, size.hidden)
        self.norm = nn.LayerNorm(size.hidden, eps=size.epsilon)
        self.dropout = nn.Dropout(DROPOUT)
        self.layers = nn.ModuleList(Layer(size) for _ in range(size.layers))

    def encode(self, words: Tensor, positions: Tensor, attention_mask: Tensor) -> Tensor:
        """
        ``words`` int64 [rows, tokens] to [rows, tokens, hidden].

        ``positions`` are position embeddings that broadcast to that; tokens whose ``attention_mask`` [rows, tokens]
        is 0 get no attention.
        """
        # One segment: its embedding is the same row for every token.
        embedded = self.words(words) + positions + self.segments.weight[0]
        x: Tensor = self.dropout(self.norm(embedded))
        visible = attention_mask[:, None, None, :].bool()
        for layer in self.layers:
            x = layer(x, visible)
        return x


class Bert(Encoder):
    """``input_ids`` and ``attention_mask`` (1 = token, 0 = padding) int64 [rows, tokens] to logits [rows, classes]."""

    def __init__(self, size: Size) -> None:
        super().__init__(size)
        self.pooler = nn.Linear(size.hidden, size.hidden)
        self.tanh = nn.Tanh()
        self.head = nn.Linear(size.hidden, size.classes)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        x = self.encode(input_ids, self.positions.weight[: input_ids.shape[1]], attention_mask)
        logits: Tensor = self.head(self.dropout(self.tanh(self.pooler(x[:, 0]))))
        return logits


def build(preset: str) -> nn.Module:
    return Bert(SIZES[preset])


def token_rows(size: Size, rows: int, first: int, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
    """Rows of half to full length: words from ``first`` on and mask, [rows, tokens], and lengths [rows, 1]."""
    lengths = torch.randint(size.tokens // 2, size.tokens + 1, (rows, 1), generator=generator)
    mask = torch.arange(size.tokens).expand(rows, -1) < lengths
    return torch.randint(first, size.vocabulary, (rows, size.tokens), generator=generator), mask, lengths


def sample(preset: str, rows: int, generator: torch.Generator) -> Tensors:
    """Sequences of half to full length, [CLS] ... [SEP], padded with 0."""
    words, mask, lengths = token_rows(SIZES[preset], rows, SEP + 1, generator)
    words *= mask
    words[:, 0] = CLS
    words.scatter_(1, lengths - 1, SEP)
    return {"input_ids": words, "attention_mask": mask.long()}


def labels(preset: str, rows: int, generator: torch.Generator) -> Tensor:
    """A class for each sequence, int64 [rows]."""
    return torch.randint(SIZES[preset].classes, (rows,), generator=generator)


def text_card(
    *,
    name: str,
    sizes: Mapping[str, Size],
    build: Callable[[str], nn.Module],
    sample: Callable[[str, int, torch.Generator], Tensors],
    labels: Callable[[str, int, torch.Generator], Tensor],
    loss: Callable[[Tensor, Tensor], Tensor],
) -> ModelCard:
    """
    The card of a model on this encoder: ``input_ids`` and ``attention_mask`` [rows, tokens] to ``logits``; the sizes go
    by preset.
    """
    batches = {"paper": (8, 16, 32, 64), "cpu": (1, 2, 4, 8)}
    return ModelCard(
        name=name,
        output="logits",
        presets={
            preset: Preset(
                inputs=(
                    tensor_spec("input_ids", "INT64", size.tokens),
                    tensor_spec("attention_mask", "INT64", size.tokens),
                ),
                limits={"input_ids": size.vocabulary},
                training_batches=batches[preset],
            )
            for preset, size in sizes.items()
        },
        build=build,
        sample=sample,
        labels=labels,
        loss=loss,
        optimizer="adam",
        learning_rate=1e-4,
        weight_std=0.02,
        input_wait=0.2,
    )


CARD = text_card(name="bert", sizes=SIZES, build=build, sample=sample, labels=labels, loss=functional.cross_entropy)


class Function(ModelFunction):
    """The cpu preset."""

    card = CARD
    preset = "cpu"


class PaperFunction(ModelFunction):
    """BERT-base-uncased, 128 tokens."""

    card = CARD
    preset = "paper"
