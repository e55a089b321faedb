"""States of a predictor: it begins as a challenger and becomes the champion, whose table is published, or is rejected."""

from enum import StrEnum


class PredictorState(StrEnum):
    """At most one is the champion; ``rejected`` never was, ``retired`` and ``rolled_back`` were."""

    CHALLENGER = "challenger"
    CHAMPION = "champion"
    RETIRED = "retired"
    REJECTED = "rejected"
    ROLLED_BACK = "rolled_back"
