"""The numbers of all of Postgres' advisory locks that the platform takes."""

from enum import IntEnum, unique


@unique
class Lock(IntEnum):
    """
    ``RANKS`` is the first key of locks with two keys, which have a space of their own; all others have one key.
    """

    #: While versions of the schema are applied: all processes of a new release may start at the same time.
    MIGRATIONS = 5_303_001
    #: From reading the catalog in Postgres to writing it to Redis (smore/postgres/mirror.py).
    MIRROR = 5_303_002
    #: While the operator's key is searched for and created (migrations/__main__.py).
    BOOTSTRAP_KEY = 5_303_003
    #: While predictors are made, rolled back or published (smore/postgres/predictors.py).
    PREDICTORS = 5_303_004
    #: One for each group of ranks of an attached training (smore/postgres/jobs.py).
    RANKS = 5303
