"""A result's JSON, and the bounds that are known of it before it is encoded."""

import dataclasses
import datetime
import enum
import math
import subprocess
import sys
import uuid
from typing import Any

import numpy as np
import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from worker.runner import encoding
from worker.runner.encoding import ResultTooLarge

OPTIONS = orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_NON_STR_KEYS
ALL = 1 << 30


class Colour(enum.Enum):
    RED = "red"


@dataclasses.dataclass
class Pair:
    left: Any
    right: Any
    _own: int = 0


texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=30) | st.sampled_from(
    ["\1" * 30, "\U0001f600" * 20, '"\\' * 20]
)
plain = st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | texts
others = (
    st.datetimes(timezones=st.just(datetime.UTC))
    | st.uuids()
    | st.just(Colour.RED)
    | arrays.arrays(
        st.sampled_from([np.float32, np.float64, np.int64, np.bool_]),
        arrays.array_shapes(min_dims=0, min_side=0, max_dims=4),
    )
)
values = st.recursive(
    plain | others,
    lambda inner: (
        st.lists(inner, max_size=5)
        | st.lists(st.lists(st.floats() | st.integers(0, 9), max_size=4), max_size=4)
        | st.tuples(inner, inner)
        | st.dictionaries(texts | st.integers(-(2**63), 2**63), inner, max_size=4)
        | st.builds(Pair, inner, inner)
    ),
    max_leaves=20,
)


@settings(deadline=None)
@given(values)
def test_the_bounds_hold_and_nothing_is_changed(value: object) -> None:
    try:
        wanted = orjson.dumps(value, option=OPTIONS)
    except TypeError:
        with pytest.raises(TypeError):
            encoding.json(value, ALL)
        return
    seen = encoding._Seen(ALL)
    assert seen.through(value) is not None or value is None
    assert seen.least <= len(wanted) <= seen.most
    assert encoding.json(value, len(wanted)) == wanted
    with pytest.raises(ResultTooLarge):
        encoding.json(value, len(wanted) - 1)


@pytest.mark.parametrize("text", ["x" * 300_000, "\1" * 100_000, "\u00e9\U0001f600" * 50_000, '"' * 70_000])
def test_long_texts_are_encoded_in_parts(text: str) -> None:
    for value in (text, [1, text], ("a", [text]), {"a": {"b": text}, text[:10]: 1}, Pair(text, 1), {text: text}):
        wanted = orjson.dumps(value, option=OPTIONS)
        assert encoding.json(value, ALL) == wanted
        seen = encoding._Seen(ALL, in_parts=True)
        assert orjson.dumps(seen.through(value), option=OPTIONS) == wanted
        assert seen.least <= len(wanted) <= seen.most


@pytest.mark.parametrize(
    "value",
    [
        list(range(10_000)),
        [0.1] * 5000,
        [[number] for number in range(9000)],
        [[1.5] * 6000, [2] * 3],
        tuple(range(5000)),
        [None, "x"] * 4000,
        {str(number): number for number in range(10_000)},
        {number: [number] for number in range(5000)},
        [{"a": list(range(5000))}, "y" * 70_000],
    ],
    ids=range(9),
)
def test_long_lists_and_dicts_are_encoded_in_parts(value: object) -> None:
    wanted = orjson.dumps(value, option=OPTIONS)
    seen = encoding._Seen(ALL, in_parts=True)
    assert orjson.dumps(seen.through(value), option=OPTIONS) == wanted
    assert seen.least <= len(wanted) <= seen.most
    assert encoding.json(value, ALL) == wanted
    with pytest.raises(ResultTooLarge):
        encoding._Seen(len(wanted) // 2, in_parts=True).through(value)


#: Encodes large values with so much memory left, more and more; its parent sees whether it lives.
_LIMITED = """
import resource
import numpy as np
from worker.runner import encoding

count = 300_000
values = {
    "list": [7] * count, "floats": [0.12345678901234567] * count, "lists": [[7]] * count, "rows": [[1] * 1000] * 300,
    "dict": {str(number): number for number in range(count)}, "text": "x" * (8 * count), "array": np.ones(count),
}
encoding.json([0] * 5000, 1 << 20)
status = open("/proc/self/status").read()
now = int(status.split("VmData:")[1].split()[0]) << 10
for left_mib in (1, 4, 16, 40, 90, 200):
    limit = now + (left_mib << 20)
    resource.setrlimit(resource.RLIMIT_DATA, (limit, resource.RLIM_INFINITY))
    told = {}
    for name, value in values.items():
        try:
            told[name] = len(encoding.json(value, 1 << 30))
        except (encoding.ResultTooLarge, MemoryError) as error:
            told[name] = type(error).__name__
    print(left_mib, told, flush=True)
"""


def test_what_memory_there_is_not_is_refused_and_the_process_lives() -> None:
    ran = subprocess.run([sys.executable, "-c", _LIMITED], capture_output=True, text=True, timeout=120, check=False)
    assert ran.returncode == 0, (ran.returncode, ran.stdout, ran.stderr)
    last = ran.stdout.splitlines()[-1]
    assert "TooLarge" not in last and "Memory" not in last, last


@pytest.mark.parametrize(
    "value", ["\ud800", "\ud800" * 100_000, {1, 2}, b"bytes", [object()], 2**64, np.zeros(2, complex)]
)
def test_what_is_no_json_stays_none(value: object) -> None:
    with pytest.raises(TypeError):
        encoding.json(value, ALL)


def test_what_has_no_end_is_refused_at_once() -> None:
    endless: list[object] = []
    endless += [endless, endless]
    with pytest.raises(TypeError):
        encoding.json(endless, ALL)
    shared: list[object] = [0]
    for _ in range(60):
        shared = [shared, shared]
    with pytest.raises(ResultTooLarge):
        encoding.json(shared, 1 << 16)


def test_the_size_is_in_the_message() -> None:
    with pytest.raises(ResultTooLarge, match=r"^a result may take 24 MiB, this one takes more$"):
        encoding.json(["x" * (25 << 20)], 24 << 20)
    assert encoding.json([math.nan, uuid.UUID(int=0)], 100) == b'[null,"00000000-0000-0000-0000-000000000000"]'
