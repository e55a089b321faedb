"""Recorded arrivals in files: both formats, what is chosen of them, and every row that cannot be used."""

import gzip
from pathlib import Path

import pytest

from smore.traces import public, recorded
from smore.traces.recorded import BadTrace, read_trace

BUNDLED = public.BUNDLED / "azure2019"
PER_MINUTE = (
    "HashOwner,HashApp,HashFunction,Trigger,481,480,482\no,a,f,http,1,0,2\no,a,g,http,0,0,0\no,b,f,timer,4,0,0\n"
)
ARRIVALS = "timestamp,function\n1700000045,a\n2023-11-14T22:14:05Z,b\n1700000160.5,a\n2023-11-14T23:14:06+01:00,b\n"


def written(folder: Path, text: str | bytes, name: str = "t.csv") -> Path:
    path = folder / name
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def test_a_file_per_minute(tmp_path: Path) -> None:
    trace = read_trace(written(tmp_path, PER_MINUTE))
    assert (trace.dated, trace.from_at, trace.minutes, trace.totals) == (False, 480 * 60, 3, {"f": 7, "g": 0})
    assert trace.counts(["g", "f"]) == {"g": [0, 0, 0], "f": [0, 5, 2]}
    assert (trace.busiest(5), trace.busiest(1, without=["f"]), trace.counts([])) == (["f", "g"], ["g"], {})


def test_a_file_of_arrivals(tmp_path: Path) -> None:
    # 1,700,000,045 s is 22:14:05 UTC.
    trace = read_trace(written(tmp_path, "\ufeff" + ARRIVALS))
    assert (trace.dated, trace.from_at, trace.minutes, trace.totals) == (True, 1_700_000_040, 3, {"a": 2, "b": 2})
    assert trace.counts(["a", "b"]) == {"a": [1, 0, 1], "b": [2, 0, 0]}


def test_gzip_is_told_by_its_first_bytes(tmp_path: Path) -> None:
    packed = gzip.compress(PER_MINUTE.encode())
    assert read_trace(written(tmp_path, packed)).totals == {"f": 7, "g": 0}
    with pytest.raises(BadTrace, match=r"t\.csv: file: cut or damaged"):
        read_trace(written(tmp_path, packed[:-12]))


def test_a_part_of_the_real_one() -> None:
    trace = read_trace(BUNDLED / "invocations.csv.gz")
    assert (trace.from_at, trace.minutes, len(trace.totals)) == (480 * 60, 480, 245)
    (name,) = trace.busiest(1)
    counts = trace.counts([name])[name]
    assert (sum(counts), trace.totals[name]) == (max(trace.totals.values()),) * 2


@pytest.mark.parametrize(
    ("text", "where", "field"),
    [
        ("", ":1", "HashFunction"),
        ("HashFunction,Trigger\nf,http\n", ":1", "minutes"),
        ("HashFunction,480,482\nf,1,1\n", ":1", "minutes"),
        ("HashFunction,1\n", "", "file"),
        ("HashFunction,1\nf,1\nf\n", ":3", "row"),
        ("HashFunction,1,2\nf,0,1\ng,3,-1\n", ":3", "2"),
        ("HashFunction,1\nf,1.5\n", ":2", "1"),
        ("HashFunction,1\nf,\n", ":2", "1"),
        ("HashFunction,1\nf,1000001\n", ":2", "1"),
        ("HashFunction,1\nf,\u0663\n", ":2", "1"),
        ("HashFunction,1\n,1\n", ":2", "HashFunction"),
        ("HashFunction,1\na\x00b,1\n", ":2", "HashFunction"),
        ("function\nf\n", ":1", "HashFunction"),
        ("function,timestamp\nf,yesterday\n", ":2", "timestamp"),
        ("function,timestamp\nf,1700000000\nf,2023-11-14T22:14:05\n", ":3", "timestamp"),
        ("function,timestamp\nf,-1\n", ":2", "timestamp"),
        ("function,timestamp\nf,nan\n", ":2", "timestamp"),
        (f"function,timestamp\nf,{'9' * 400}\n", ":2", "timestamp"),
        ("function,timestamp\nf,1700000000\nf,1800000000\n", "", "timestamp"),
        (f"function,timestamp\n{'f' * 300},1700000000\n", ":2", "function"),
        (f"function,timestamp\n{'f' * 200_000},1\n", ":2", "row"),
        (b"function,timestamp\n\xff\xfe,1\n", "", "file"),
    ],
)
def test_what_cannot_be_used_is_refused_with_line_and_field(
    tmp_path: Path, text: str | bytes, where: str, field: str
) -> None:
    with pytest.raises(BadTrace) as caught:
        read_trace(written(tmp_path, text))
    assert str(caught.value).startswith(f"t.csv{where}: {field}: ")
    assert caught.value.details["field"] == field


def test_what_unpacks_to_too_much_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorded, "MOST_CHARACTERS", 100)
    with pytest.raises(BadTrace, match="more than 100 characters, unpacked"):
        read_trace(written(tmp_path, gzip.compress(b"HashFunction,1\n" + b"f,0\n" * 100)))
