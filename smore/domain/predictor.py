"""A predictor's life: it is made as a challenger, and either becomes the champion, whose table is published, or not."""

from enum import StrEnum


class PredictorState(StrEnum):
    """At most one is the champion; ``rejected`` never was, ``retired`` and ``rolled_back`` were."""

    CHALLENGER = "challenger"
    CHAMPION = "champion"
    RETIRED = "retired"
    REJECTED = "rejected"
    ROLLED_BACK = "rolled_back"
