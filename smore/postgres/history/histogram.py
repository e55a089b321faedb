"""
Histograms of times in SQL: an array of integers, one for each bucket that is not empty, in the order of the buckets.

A bucket is the range from :data:`LEAST_S` x 2^(b / 4) to 2^(1/4) times that; the first and the last one hold what is beyond.
Its geometric middle is at most 9.1 % off any time in it. An integer is ``count << 7 | bucket``: 4 bytes a bucket, so that the
times of one minute, which lie within a factor of a thousand, take at most 184 bytes.
"""

from typing import Final

LEAST_S: Final = 1e-4
#: Buckets; the last one begins after ten hours.
BUCKETS: Final = 128
_BITS: Final = 7
_PER_OCTAVE: Final = 4


def one(seconds: str) -> str:
    """SQL: the histogram's integer of a single time."""
    octaves = f"ln(greatest({seconds}, {LEAST_S}::float8) / {LEAST_S}::float8) / ln(2.0::float8)"
    return f"({1 << _BITS} | least({BUCKETS - 1}, floor({octaves} * {_PER_OCTAVE}))::int)"


def merged(integers: str) -> str:
    """SQL: the histogram of an array of integers of several ones."""
    total = f"(sum(v >> {_BITS}) << {_BITS} | (v & {BUCKETS - 1}))::int"
    bucket = f"v & {BUCKETS - 1}"
    return f"ARRAY(SELECT {total} FROM unnest({integers}) AS v GROUP BY {bucket} ORDER BY {bucket})"  # noqa: S608


def count(integer: str) -> str:
    """SQL: how many times an integer stands for."""
    return f"({integer} >> {_BITS})"


def bucket(integer: str) -> str:
    """SQL: the bucket of an integer."""
    return f"({integer} & {BUCKETS - 1})"


def middle(number: str) -> str:
    """SQL: the geometric middle of a bucket, seconds."""
    return f"({LEAST_S}::float8 * 2.0::float8 ^ (({number} + 0.5) / {_PER_OCTAVE}))"
