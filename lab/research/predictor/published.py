"""What the paper publishes of its models, and how models, directions and numbers are written in reports."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from ml.predict.samples import Direction
from ml.rows import Row


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """A model in tables I and II: its name, the warm run in milliseconds and the cold start in seconds (RTX 3090)."""

    title: str
    warm_ms: float
    cold_s: float


#: In the order of table I.
PUBLISHED: Final[Mapping[str, Published]] = {
    "vgg16": Published(title="VGG-16", warm_ms=3, cold_s=1.2),
    "mobilenet": Published(title="MobileNet", warm_ms=9, cold_s=1.0),
    "deepvit": Published(title="DeepViT", warm_ms=11, cold_s=2.4),
    "resnet50": Published(title="ResNet-50", warm_ms=13, cold_s=1.5),
    "bert": Published(title="BERT", warm_ms=37, cold_s=2.6),
    "roberta": Published(title="RoBERTa", warm_ms=10, cold_s=5.2),
    "deepfm": Published(title="DeepFM", warm_ms=8, cold_s=0.6),
    "segnet": Published(title="SegNet", warm_ms=50, cold_s=1.6),
}
DIRECTION_TITLES: Final[Mapping[Direction, str]] = {
    "training": "training slowed by a function",
    "function": "function slowed by a training",
    "functions": "function slowed by a function",
    "trainings": "training slowed by a training",
}
PHASES: Final = {"import": "imports", "context": "device context", "weights": "weights", "first_run": "first run"}


def title(model: str) -> str:
    """A model's name as the paper writes it."""
    return PUBLISHED[model].title if model in PUBLISHED else model


def percent(value: float) -> str:
    """A fraction in per cent, with one decimal below 10 %."""
    return f"{100 * value:.1f} %" if abs(value) < 0.0995 else f"{100 * value:.0f} %"


def ordered(models: Iterable[str]) -> list[str]:
    """Models in the order of table I; others follow by name."""
    published_models = list(PUBLISHED)
    return sorted(
        set(models),
        key=lambda model: (
            published_models.index(model) if model in published_models else len(published_models),
            model,
        ),
    )


def when(rows: Iterable[Row]) -> str:
    """The day of the rows, or the first and the last day."""
    days = sorted({row.at[:10] for row in rows})
    return days[0] if len(days) == 1 else f"{days[0]} to {days[-1]}" if days else "no rows"


def counted(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
