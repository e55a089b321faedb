"""Postgres' advisory locks that the platform takes: every number of them stands here."""

from enum import IntEnum, unique


@unique
class Lock(IntEnum):
    """
    ``RANKS`` is the first half of two-part locks, which are a space of their own; all others are locks of one part.
    """

    #: While versions of the schema are applied: every process of a new release may start at once.
    MIGRATIONS = 5_303_001
    #: From reading the catalog in Postgres to writing it to Redis (smore/postgres/mirror.py).
    MIRROR = 5_303_002
    #: While the operator's key is looked for and made (migrations/__main__.py).
    BOOTSTRAP_KEY = 5_303_003
    #: Of whoever makes, takes back or publishes predictors (smore/postgres/predictors.py).
    PREDICTORS = 5_303_004
    #: One for each group of ranks of an attached training (smore/postgres/jobs.py).
    RANKS = 5303
