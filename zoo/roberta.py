"""
RoBERTa with a span head (Liu et al. 2019, "RoBERTa: a robustly optimized BERT pretraining approach", arXiv:1907.11692).

The encoder is BERT's; what differs are the vocabulary, one segment, no pooler, and positions that are counted over the
tokens that are not padding, from 2 on. The paper preset is roberta-base: 124,055,040 parameters, and 1538 of the head.
The data set of table I is SQuAD: the answer is where a span of the context starts and ends.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional

from zoo.bert import Encoder, Size, text_card, token_rows
from zoo.model import ModelFunction, Tensors

#: Tokens of the vocabulary: <s>, <pad>, </s>. Positions count from the one after ``PAD``.
START, PAD, END = 0, 1, 2

SIZES = {
    "paper": Size(
        hidden=768,
        layers=12,
        heads=12,
        tokens=128,
        vocabulary=50_265,
        positions=514,
        segments=1,
        epsilon=1e-5,
        padding=PAD,
    ),
    "cpu": Size(
        hidden=256, layers=6, heads=4, tokens=48, vocabulary=4096, positions=130, segments=1, epsilon=1e-5, padding=PAD
    ),
}


class Roberta(Encoder):
    """
    ``input_ids`` and ``attention_mask`` (1 = token, 0 = padding) int64 [rows, tokens] to logits [rows, tokens, 2].

    The two are of the span's start and end. A padded token is read as <pad>, whatever stands in its place. ValueError
    for more tokens than there are positions.
    """

    def __init__(self, size: Size) -> None:
        super().__init__(size)
        self.head = nn.Linear(size.hidden, 2)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        tokens, most = input_ids.shape[1], self.positions.num_embeddings - PAD - 1
        if tokens > most:
            raise ValueError(f"{tokens} tokens: the model has {most} positions")
        visible = attention_mask != 0
        words = input_ids.masked_fill(~visible, PAD)
        positions = visible.cumsum(1) * visible + PAD
        logits: Tensor = self.head(self.encode(words, self.positions(positions), attention_mask))
        return logits


def build(preset: str) -> nn.Module:
    return Roberta(SIZES[preset])


def _context(size: Size) -> int:
    """Where the context starts: after <s>, a question of an eighth of the tokens, and two </s>."""
    return size.tokens // 8 + 3


def sample(preset: str, rows: int, generator: torch.Generator) -> Tensors:
    """Sequences of half to full length: <s> question </s></s> context </s>, padded with <pad>."""
    size = SIZES[preset]
    words, mask, lengths = token_rows(size, rows, END + 1, generator)
    words.masked_fill_(~mask, PAD)
    context = _context(size)
    words[:, 0] = START
    words[:, context - 2 : context] = END
    words.scatter_(1, lengths - 1, END)
    return {"input_ids": words, "attention_mask": mask.long()}


def labels(preset: str, rows: int, generator: torch.Generator) -> Tensor:
    """First and last token of a span in the part of the context that every sequence has, int64 [rows, 2]."""
    size = SIZES[preset]
    return torch.randint(_context(size), size.tokens // 2 - 1, (rows, 2), generator=generator).sort(1).values


def loss(logits: Tensor, spans: Tensor) -> Tensor:
    """The mean of the cross entropies of start and end over the tokens."""
    return functional.cross_entropy(logits, spans)


CARD = text_card(name="roberta", sizes=SIZES, build=build, sample=sample, labels=labels, loss=loss)


class Function(ModelFunction):
    """The cpu preset."""

    card = CARD
    preset = "cpu"


class PaperFunction(ModelFunction):
    """roberta-base, 128 tokens."""

    card = CARD
    preset = "paper"
