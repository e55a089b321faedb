"""Traces: what is read, how it is scaled, and what is refused with file, line and field."""

import gzip
import json
from pathlib import Path

import numpy as np
import pytest

from lab.simulation import traces
from lab.simulation.traces import Trace
from lab.simulation.world import BadWorld, Function, Gpu, World
from smore.traces import public
from smore.traces.recorded import BadTrace

WORLD = World(
    name="w",
    gpus=(Gpu(name="gpu0"),),
    functions=tuple(Function(name=name, model=name) for name in ("segnet", "deepfm", "bert")),
)
DATA = public.BUNDLED


def azure(folder: Path, invocations: str, durations: str, *, packed: bool = False) -> tuple[Path, Path]:
    found = []
    for name, text in (("invocations.csv", invocations), ("durations.csv", durations)):
        path = folder / (f"{name}.gz" if packed else name)
        path.write_bytes(gzip.compress(text.encode()) if packed else text.encode())
        found.append(path)
    return found[0], found[1]


INVOCATIONS = """HashOwner,HashApp,HashFunction,Trigger,7,8,9
o,a,slow,http,0,3,0
o,a,fast,http,6,1,0
o,a,middle,timer,2,0,0
o,a,unknown,http,9,9,9
"""
DURATIONS = "HashOwner,HashApp,HashFunction,Average,Count\no,a,middle,50,1\no,a,slow,900,1\no,a,fast,3,1\n"


@pytest.mark.parametrize("packed", [False, True])
def test_azure_is_read_as_published(tmp_path: Path, packed: bool) -> None:
    source = traces.azure(*azure(tmp_path, INVOCATIONS, DURATIONS, packed=packed))

    assert source.minutes.tolist() == [7, 8, 9]
    assert source.counts.tolist() == [[0, 3, 0], [6, 1, 0], [2, 0, 0]]
    assert source.duration_s.tolist() == [0.9, 0.003, 0.05]


def test_classes_are_of_equal_count_by_duration() -> None:
    assert traces.classes(np.array([5.0, 1.0, 9.0, 2.0, 7.0, 3.0]), 3).tolist() == [1, 0, 2, 0, 2, 1]


def test_a_minute_becomes_a_second_with_its_shares(tmp_path: Path) -> None:
    """A49, A50: 6 and 2 of 8 in the first minute, 3 and 1 of 4 in the next, none in the last; slowest to slowest."""
    source = traces.azure(*azure(tmp_path, INVOCATIONS, DURATIONS))

    trace = traces.scaled(source, WORLD, rate_per_s=4000.0, seconds=3, seed=0)

    counts = np.zeros((3, 3), int)
    np.add.at(counts, (trace.function, trace.arrival_s.astype(int)), 1)
    segnet, deepfm, bert = counts.tolist()
    assert segnet == [0, pytest.approx(3000, abs=300), 0]
    assert deepfm == [pytest.approx(3000, abs=300), pytest.approx(1000, abs=200), 0]
    assert bert == [pytest.approx(1000, abs=200), 0, 0]
    assert trace.name == "azure2019 minutes 7..9 x60 at 240000/min seed 0"
    assert (
        (trace.factor.min() >= 1.0)
        and (trace.factor.max() <= 4.0)
        and trace.factor.mean() == pytest.approx(2.5, abs=0.05)
    )


def test_the_window_is_drawn_or_given(tmp_path: Path) -> None:
    source = traces.azure(*azure(tmp_path, INVOCATIONS, DURATIONS))

    drawn = {
        traces.scaled(source, WORLD, rate_per_s=10.0, seconds=1, seed=seed).name.split(" at ")[0] for seed in range(20)
    }
    assert drawn == {f"azure2019 minutes {minute}..{minute} x60" for minute in (7, 8, 9)}
    assert "8..9" in traces.scaled(source, WORLD, rate_per_s=10.0, seconds=2, seed=0, first=1).name
    for seconds, first, field in ((4, None, "seconds"), (2, 2, "first")):
        with pytest.raises(BadTrace) as refused:
            traces.scaled(source, WORLD, rate_per_s=10.0, seconds=seconds, seed=0, first=first)
        assert refused.value.details["field"] == field


@pytest.mark.parametrize(
    ("invocations", "durations", "where"),
    [
        (
            INVOCATIONS.replace("0,3,0", "0,-3,0"),
            DURATIONS,
            "invocations.csv:2: 8: a number of at least 0 is expected, not '-3'",
        ),
        (INVOCATIONS.replace("6,1,0", "6,x,0"), DURATIONS, "invocations.csv:3: 8: a number is expected, not 'x'"),
        (INVOCATIONS.replace("6,1,0", "6,1"), DURATIONS, "invocations.csv:3: row: 7 columns are expected, not 6"),
        (
            INVOCATIONS,
            DURATIONS.replace("900", "nan"),
            "durations.csv:3: Average: a number of at least 0 is expected, not 'nan'",
        ),
        (INVOCATIONS, DURATIONS.replace("Average", "Mean"), "durations.csv:1: Average: no column of this name"),
        ("HashFunction,Trigger\nslow,http\n", DURATIONS, "invocations.csv:1: minutes: no column is a minute"),
        (INVOCATIONS, "HashFunction,Average\nnobody,1\n", "invocations.csv: HashFunction: no function has a duration"),
        ("", DURATIONS, "invocations.csv:1: HashFunction: no column of this name"),
    ],
)
def test_bad_azure_rows_are_refused(tmp_path: Path, invocations: str, durations: str, where: str) -> None:
    with pytest.raises(BadTrace) as refused:
        traces.azure(*azure(tmp_path, invocations, durations))

    assert str(refused.value) == where


def test_a_cut_archive_is_refused(tmp_path: Path) -> None:
    packed, durations = azure(tmp_path, INVOCATIONS, DURATIONS, packed=True)
    packed.write_bytes(packed.read_bytes()[:-12])

    with pytest.raises(BadTrace, match=r"invocations\.csv\.gz: file: cut or damaged"):
        traces.azure(packed, durations)


def test_the_published_day_is_scaled_to_the_rate() -> None:
    trace = traces.of({"kind": "azure", "rate_per_min": 16000, "seconds": 60}, WORLD, 0)

    assert 60 * trace.rate_per_s == pytest.approx(16000, rel=0.05)
    assert trace.duration_s == 60.0


def test_llm_requests_are_compressed_to_the_rate() -> None:
    trace = traces.of({"kind": "llm", "rate_per_min": 6000, "seconds": 20}, WORLD, 0)

    assert 0.3 < trace.rate_per_s / 100 < 3
    assert trace.name.startswith("azure-llm azure_llm_2023_code x")


def test_bad_llm_rows_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "llm.csv"
    path.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.9799600,10,10\nyesterday,1,1\n")

    with pytest.raises(BadTrace, match=r"llm\.csv:3: TIMESTAMP: a date and time are expected, not 'yesterday'"):
        traces.llm(path, WORLD, rate_per_s=1.0, seconds=1.0, seed=0)


# ---- generators ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["poisson", "gamma", "periodic", "bursty"])
def test_generators_keep_the_mean_rate(kind: str) -> None:
    trace = traces.generated(kind, WORLD, rate_per_s=500.0, seconds=60.0, seed=1)

    assert trace.rate_per_s == pytest.approx(500, rel=0.15)
    assert trace.arrival_s.max() < 60.0


def test_gaps_vary_as_asked() -> None:
    def variation(kind: str, **options: float) -> float:
        gaps = np.diff(traces.generated(kind, WORLD, rate_per_s=500.0, seconds=100.0, seed=2, **options).arrival_s)
        return float(gaps.std() / gaps.mean())

    assert variation("poisson") == pytest.approx(1.0, abs=0.05)
    assert variation("gamma", cv=3.0) == pytest.approx(3.0, rel=0.2)
    assert variation("periodic") == pytest.approx(0.0, abs=1e-6)


def test_bursts_hold_their_share() -> None:
    trace = traces.generated(
        "bursty", WORLD, rate_per_s=500.0, seconds=100.0, seed=3, burst=5.0, burst_s=1.0, period_s=10.0
    )

    assert (trace.arrival_s % 10 < 1).mean() == pytest.approx(0.5, abs=0.02)


@pytest.mark.parametrize(
    ("kind", "options", "field"),
    [
        ("poisson", {"cv": 1.0}, "cv"),
        ("gamma", {"cv": -1.0}, "cv"),
        ("bursty", {"burst": 50.0}, "burst"),
        ("tidal", {}, "kind"),
    ],
)
def test_bad_options_name_the_field(kind: str, options: dict[str, float], field: str) -> None:
    with pytest.raises(BadTrace) as refused:
        traces.generated(kind, WORLD, rate_per_s=10.0, seconds=10.0, seed=0, **options)

    assert refused.value.details["field"] == field


# ---- files -----------------------------------------------------------------------------------------------------------


def test_same_seed_same_bytes(tmp_path: Path) -> None:
    def made(seed: int) -> Trace:
        return traces.generated("gamma", WORLD, rate_per_s=50.0, seconds=4.0, seed=seed)

    made(5).write(tmp_path / "trace.npz")
    again = traces.read(tmp_path / "trace.npz")

    assert made(5).encode() == (tmp_path / "trace.npz").read_bytes() == again.encode()
    assert made(5).encode() != made(6).encode()
    assert again.functions == ("segnet", "deepfm", "bert")


def test_damaged_files_are_refused(tmp_path: Path) -> None:
    good = traces.generated("poisson", WORLD, rate_per_s=50.0, seconds=4.0, seed=0).encode()
    for content in (b"", b"nonsense", good[:-40], good[:200]):
        (tmp_path / "trace.npz").write_bytes(content)
        with pytest.raises(BadTrace, match=r"trace\.npz"):
            traces.read(tmp_path / "trace.npz")


@pytest.mark.parametrize(
    ("changed", "field"),
    [
        ({"arrival_s": np.array([1.0, 0.5])}, "arrival_s"),
        ({"arrival_s": np.array([-1.0, 0.5])}, "arrival_s"),
        ({"factor": np.array([2.0, -1.0])}, "deadline_s"),
        ({"function": np.array([0, 7])}, "function"),
        ({"rows": np.array([0, -1])}, "rows"),
        ({"rows": np.array([0])}, "rows"),
        ({"duration_s": 0.0}, "duration_s"),
    ],
)
def test_a_trace_that_cannot_be_names_the_field(changed: dict[str, object], field: str) -> None:
    values: dict[str, object] = {
        "name": "t",
        "functions": ("bert",),
        "duration_s": 1.0,
        "arrival_s": np.array([0.0, 0.5]),
        "function": np.array([0, 0]),
        "rows": np.array([0, 1]),
        "factor": np.array([2.0, np.nan]),
        "deadline_s": np.array([np.nan, 1.0]),
    }
    Trace(**values)  # type: ignore[arg-type]

    with pytest.raises(BadTrace) as refused:
        Trace(**(values | changed))  # type: ignore[arg-type]

    assert refused.value.details["field"] == field


# ---- history ---------------------------------------------------------------------------------------------------------

ROW = {"function": "bert", "revision": 3, "arrival_at": 1000.5, "deadline_at": 1002.0, "rows": 4}


def history(folder: Path, *rows: dict[str, object], form: str = "jsonl") -> Path:
    path = folder / f"history.{form}"
    if form == "jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    else:
        path.write_text(
            "\n".join(
                [",".join(traces.HISTORY), *(",".join(str(row[name]) for name in traces.HISTORY) for row in rows)]
            )
            + "\n"
        )
    return path


@pytest.mark.parametrize("form", ["jsonl", "csv"])
def test_history_is_a_trace(tmp_path: Path, form: str) -> None:
    trace = traces.history(
        history(tmp_path, ROW, ROW | {"function": "deepfm", "arrival_at": 1000.0, "deadline_at": 1000.25}, form=form)
    )

    assert trace.arrival_s.tolist() == [0.0, 0.5]
    assert [trace.functions[index] for index in trace.function] == ["deepfm", "bert"]
    assert trace.deadline_s.tolist() == [0.25, 1.5]
    assert trace.rows.tolist() == [4, 4]
    assert np.isnan(trace.factor).all()


@pytest.mark.parametrize(
    ("changed", "where"),
    [
        ({"deadline_at": 999.0}, "deadline_at: 999 is not after the arrival at 1000.5"),
        ({"function": "gpt"}, "function: 'gpt' is not known"),
        ({"function": 3}, "function: 3 is not known"),
        ({"rows": 0}, "rows: a number of at least 1 is expected, not 0"),
        ({"rows": 1.5}, "rows: a whole number is expected, not 1.5"),
        ({"arrival_at": "noon"}, "arrival_at: a number is expected, not 'noon'"),
        ({"revision": None}, "revision: a number is expected, not None"),
    ],
)
def test_bad_history_rows_are_refused(tmp_path: Path, changed: dict[str, object], where: str) -> None:
    with pytest.raises(BadTrace) as refused:
        traces.history(history(tmp_path, ROW, ROW | changed), ["bert"])

    assert str(refused.value) == f"history.jsonl:2: {where}"


def test_history_that_is_no_history_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    for text, why in (
        ('{"function": "bert"}\n', "history.jsonl:1: revision: is missing"),
        ("[]\n", "an object"),
        ("{\n", "not JSON"),
        ("", "no row"),
    ):
        path.write_text(text)
        with pytest.raises(BadTrace, match=why):
            traces.history(path)


# ---- a user's own CSV ------------------------------------------------------------------------------------------------

OWN = "function,arrival_s,deadline_s,rows\nbert,1.5,0.25,4\nsegnet,0.5,,\n"


def test_a_csv_of_ones_own_is_a_trace(tmp_path: Path) -> None:
    path = tmp_path / "mine.csv"
    path.write_text(OWN)

    trace = traces.of({"kind": "csv", "path": str(path)}, WORLD, 0)

    assert trace.arrival_s.tolist() == [0.5, 1.5]
    assert [trace.functions[index] for index in trace.function] == ["segnet", "bert"]
    assert trace.rows.tolist() == [0, 4]
    # The deadline that is not given is drawn like those of other traces; the given one is kept.
    assert 1.0 <= trace.factor[0] <= 4.0
    assert np.isnan(trace.deadline_s[0])
    assert np.isnan(trace.factor[1])
    assert trace.deadline_s[1] == 0.25
    assert trace.duration_s == 2.5

    path.write_text("arrival_s,function,note\n0,bert,x\n")
    assert len(traces.own(path, WORLD, 0)) == 1


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("function,arrival\n", "mine.csv:1: arrival_s: no column of this name"),
        (OWN, ""),
        (OWN.replace("bert", "gpt"), "mine.csv:2: function: 'gpt' is none of segnet, deepfm, bert"),
        (OWN.replace("0.5,,", "-1,,"), "mine.csv:3: arrival_s: a number of at least 0 is expected, not '-1'"),
        (OWN.replace("0.5,,", "soon,,"), "mine.csv:3: arrival_s: a number is expected, not 'soon'"),
        (OWN.replace("0.25", "0"), "mine.csv:2: deadline_s: more than 0 seconds after the arrival are expected, not 0"),
        (OWN.replace("0.25,4", "0.25,1.5"), "mine.csv:2: rows: a whole number is expected, not '1.5'"),
        (OWN.replace("0.25,4", "0.25,0"), "mine.csv:2: rows: a number of at least 1 is expected, not '0'"),
        (OWN.replace("0.5,,", "1700000000,,"), "mine.csv:3: arrival_s: seconds from the beginning of the trace are"),
        (OWN.replace("0.25,4", "0.25,100000000"), "mine.csv:2: rows: 100000000 rows would run for"),
        ("function,arrival_s\n", "mine.csv: file: no row"),
    ],
)
def test_bad_rows_of_a_csv_are_refused_by_line(tmp_path: Path, text: str, where: str) -> None:
    path = tmp_path / "mine.csv"
    path.write_text(text)
    if not where:
        assert len(traces.own(path, WORLD, 0)) == 2
        return
    with pytest.raises(BadTrace) as refused:
        traces.own(path, WORLD, 0)
    assert str(refused.value).startswith(where)
    # By the path that was given, where a person gave it.
    with pytest.raises(BadTrace) as refused:
        traces.of({"kind": "csv", "path": str(path)}, WORLD, 0)
    assert str(refused.value).startswith(f"{tmp_path}/{where}")


def test_another_kind_of_trace_drops_the_rate_of_the_preset() -> None:
    preset = {"kind": "azure", "rate_per_min": 12_000, "seconds": 60}
    assert traces.changed(preset, {"seconds": 5}) == preset | {"seconds": 5}
    assert traces.changed(preset, {"kind": "csv", "path": "mine.csv"}) == {"kind": "csv", "path": "mine.csv"}


def test_documents_are_checked(tmp_path: Path) -> None:
    history(tmp_path, ROW)
    found = traces.of({"kind": "history", "path": str(tmp_path / "history.jsonl")}, WORLD, 0)
    assert len(found) == 1

    for document, error, field in (
        ({"kind": "tidal"}, BadWorld, "trace.kind"),
        ({"kind": "poisson", "rate_per_min": -1}, BadWorld, "trace.rate_per_min"),
        ({"kind": "poisson", "speed": 1}, BadWorld, "trace.speed"),
        ({"kind": "azure", "seconds": 1.5}, BadWorld, "trace.seconds"),
        ({"kind": "azure", "folder": "nowhere"}, BadTrace, "file"),
        ({"kind": "csv"}, BadWorld, "trace.path"),
        ({"kind": "csv", "path": "/nowhere/mine.csv"}, BadTrace, "file"),
        ({"kind": "csv", "path": "mine.csv", "rate_per_min": 60}, BadWorld, "trace.rate_per_min"),
    ):
        with pytest.raises(error) as refused:
            traces.of(document, WORLD, 0)
        assert refused.value.details["field"] == field
