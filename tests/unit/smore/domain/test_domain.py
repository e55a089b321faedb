"""The nouns: the table of an invocation's life, a function's description and its errors, names, durations, sizes."""

from collections.abc import Iterable
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from smore.domain import errors
from smore.domain.artifact import Artifact
from smore.domain.errors import CallerError, InvalidSpec, PlatformError, SmoreError
from smore.domain.function import (
    FunctionSpec,
    Prewarming,
    Profile,
    TensorSpec,
    duration_s,
    parse_name,
    parse_spec,
    size_bytes,
)
from smore.domain.invocation import TERMINAL, TRANSITIONS, State
from smore.domain.tensors import DATATYPES
from smore.messages.specs import decode_spec, encode_spec, pack_spec, unpack_spec

# The table.


def moves() -> set[tuple[State, State]]:
    return {(before, after) for table in TRANSITIONS.values() for before, after in table.items()}


def test_every_state_is_reached_and_only_the_terminal_ones_are_never_left() -> None:
    left, reached = {before for before, _ in moves()}, {after for _, after in moves()}
    assert left == set(State) - TERMINAL
    assert reached == set(State), "queued is reached by a requeue, and by arriving"


def test_every_life_can_end() -> None:
    ending = set(TERMINAL)
    while grown := {before for before, after in moves() if after in ending} - ending:
        ending |= grown
    assert ending == set(State)


def test_every_live_state_has_a_way_back_or_an_end_for_each_failure() -> None:
    for state in set(State) - TERMINAL:
        assert state in TRANSITIONS["cancel"], "whatever lives can be cancelled"
        assert state in TRANSITIONS["fail"], "whatever lives can fail"
    assert set(TRANSITIONS["requeue"]) == {State.DISPATCHED, State.RUNNING}, "whatever is leased can be lost"
    assert set(TRANSITIONS["succeed"]) == {State.RUNNING}, "only user code succeeds"


def test_the_table_cannot_be_changed() -> None:
    with pytest.raises(TypeError):
        TRANSITIONS["claim"] = {}  # type: ignore[index]


# Errors.


def every_error(root: type[SmoreError] = SmoreError) -> Iterable[type[SmoreError]]:
    yield root
    for child in root.__subclasses__():
        yield from every_error(child)


def test_errors_have_one_fault_one_code_and_a_message() -> None:
    known = [error for error in every_error() if error.__module__ == errors.__name__]
    codes = [error.code for error in known]
    assert len(set(codes)) == len(codes)
    for error in known:
        assert str(error()) == (error.__doc__ or "").strip() != ""
        if error is not SmoreError:
            assert issubclass(error, CallerError) != issubclass(error, PlatformError)
    assert str(InvalidSpec("so", field="spec.slo")) == "so"
    assert InvalidSpec("so", field="spec.slo").details == {"field": "spec.slo"}


# Descriptions.

TENSOR = {"name": "x", "datatype": "FP32", "shape": [-1, 3]}


def spec(**fields: Any) -> dict[str, Any]:
    return {"entrypoint": "zoo.echo:Echo", **fields}


def test_a_function_may_declare_that_it_uses_no_gpu() -> None:
    """To the policy it is a small one all the same: nothing is divided by nothing."""
    for none in (0, "0MiB"):
        parsed = parse_spec(spec(resources={"gpu_memory": none}))
        assert (parsed.memory_mib, parsed.profile.memory_mib) == (0.0, 1.0)


def test_a_whole_description() -> None:
    parsed = parse_spec(
        spec(
            inputs=[TENSOR, {"name": "y.0/b", "datatype": "INT8", "shape": [-1, -1]}],
            outputs="json",
            slo={"deadline": "800ms"},
            resources={"gpu_memory": "1.5GiB"},
            batching={"max_size": 16},
            scaling={"max_warm": 2, "keep_alive": -1, "min_warm": 1, "prewarm": "paper"},
            retries={"max_attempts": 1},
            limits={"max_pending": 0, "timeout": "2m", "payload": "1MB"},
            profile={"run_ms": {1: 10, "8": 40.0}, "load_ms": 2500, "usage_gain": 0.3, "degradation": 0},
        )
    )
    assert parsed == FunctionSpec(
        entrypoint="zoo.echo:Echo",
        inputs=(
            TensorSpec(name="x", datatype="FP32", shape=(-1, 3)),
            TensorSpec(name="y.0/b", datatype="INT8", shape=(-1, -1)),
        ),
        deadline_s=0.8,
        memory_mib=1536,
        max_batch=16,
        max_warm=2,
        keep_alive_s=-1,
        min_warm=1,
        prewarm=Prewarming.PAPER,
        max_attempts=1,
        max_pending=0,
        timeout_s=120,
        payload_bytes=1_000_000,
        profile=Profile(run_s={1: 0.01, 8: 0.04}, load_s=2.5, memory_mib=1536, usage_gain=0.3, degradation=0),
    )


def test_an_entrypoint_is_enough() -> None:
    assert parse_spec(spec()) == FunctionSpec(entrypoint="zoo.echo:Echo")
    assert parse_spec(spec(slo=None, limits={}, inputs=None)) == FunctionSpec(entrypoint="zoo.echo:Echo")


@pytest.mark.parametrize(
    ("raw", "field"),
    [
        (None, "spec"),
        ([], "spec"),
        ("zoo.echo:Echo", "spec"),
        ({}, "spec.entrypoint"),
        ({"entrypoint": 3}, "spec.entrypoint"),
        ({"entrypoint": "zoo.echo"}, "spec.entrypoint"),
        ({"entrypoint": "zoo..echo:Echo"}, "spec.entrypoint"),
        ({"entrypoint": "zoo.echo:Echo.inner"}, "spec.entrypoint"),
        ({"entrypoint": "zoo.echo:Echo\n"}, "spec.entrypoint"),
        (spec(sloo={}), "spec.sloo"),
        (spec(slo={"deadlines": 1}), "spec.slo.deadlines"),
        (spec(slo=[]), "spec.slo"),
        (spec(slo="fast"), "spec.slo"),
        (spec(slo=0), "spec.slo"),
        (spec(slo={"deadline": "soon"}), "spec.slo.deadline"),
        (spec(slo={"precedence": 1}), "spec.slo.precedence"),
        (spec(slo={"deadline": 0}), "spec.slo.deadline"),
        (spec(slo={"deadline": "25h"}), "spec.slo.deadline"),
        (spec(slo={"deadline": True}), "spec.slo.deadline"),
        (spec(slo={"deadline": float("nan")}), "spec.slo.deadline"),
        (spec(slo={"deadline": float("inf")}), "spec.slo.deadline"),
        (spec(slo={"deadline": 10**400}), "spec.slo.deadline"),
        (spec(slo={"deadline": "9" * 400 + "h"}), "spec.slo.deadline"),
        (spec(resources={"gpu_memory": "lots"}), "spec.resources.gpu_memory"),
        (spec(resources={"gpu_memory": "1KiB"}), "spec.resources.gpu_memory"),
        (spec(resources={"gpu_memory": "2000GiB"}), "spec.resources.gpu_memory"),
        (spec(resources={"gpu_memory": "9" * 400 + "GiB"}), "spec.resources.gpu_memory"),
        (spec(resources={"gpu_memory": 1.5}), "spec.resources.gpu_memory"),
        (spec(resources={"cpu": 1}), "spec.resources.cpu"),
        (spec(batching={"max_size": 0}), "spec.batching.max_size"),
        (spec(batching={"max_size": 1.5}), "spec.batching.max_size"),
        (spec(batching={"max_size": True}), "spec.batching.max_size"),
        (spec(batching={"max_size": "4"}), "spec.batching.max_size"),
        (spec(batching={"max_size": float("nan")}), "spec.batching.max_size"),
        (spec(scaling={"max_warm": 65}), "spec.scaling.max_warm"),
        (spec(scaling={"min_warm": -1}), "spec.scaling.min_warm"),
        (spec(scaling={"min_warm": 65}), "spec.scaling.min_warm"),
        (spec(scaling={"prewarm": "later"}), "spec.scaling.prewarm"),
        (spec(scaling={"prewarm": True}), "spec.scaling.prewarm"),
        (spec(scaling={"prewarm": None}), "spec.scaling.prewarm"),
        (spec(scaling={"prewarms": "auto"}), "spec.scaling.prewarms"),
        (spec(scaling={"keep_alive": -5}), "spec.scaling.keep_alive"),
        (spec(scaling={"keep_alive": float("inf")}), "spec.scaling.keep_alive"),
        (spec(scaling={"keep_alive": "for ever"}), "spec.scaling.keep_alive"),
        (spec(retries={"max_attempts": 0}), "spec.retries.max_attempts"),
        (spec(limits={"max_pending": -1}), "spec.limits.max_pending"),
        (spec(limits={"timeout": 0}), "spec.limits.timeout"),
        (spec(limits={"payload": 0}), "spec.limits.payload"),
        (spec(limits={"payload": "2GiB"}), "spec.limits.payload"),
        (spec(inputs=[]), "spec.inputs"),
        (spec(inputs="text"), "spec.inputs"),
        (spec(inputs=["x"]), "spec.inputs[0]"),
        (spec(inputs=[TENSOR, TENSOR]), "spec.inputs"),
        (spec(inputs=[TENSOR, {**TENSOR, "name": ""}]), "spec.inputs[1].name"),
        (spec(inputs=[{**TENSOR, "name": "a:b"}]), "spec.inputs[0].name"),
        (spec(inputs=[{**TENSOR, "name": "a;b"}]), "spec.inputs[0].name"),
        (spec(inputs=[{**TENSOR, "name": "x" * 129}]), "spec.inputs[0].name"),
        (spec(inputs=[{**TENSOR, "unit": "m"}]), "spec.inputs[0].unit"),
        (spec(outputs=[{**TENSOR, "datatype": "FP8"}]), "spec.outputs[0].datatype"),
        (spec(outputs=[{**TENSOR, "datatype": ["FP32"]}]), "spec.outputs[0].datatype"),
        (spec(outputs=[{**TENSOR, "datatype": "bytes"}]), "spec.outputs[0].datatype"),
        (spec(outputs=[{**TENSOR, "shape": []}]), "spec.outputs[0].shape"),
        (spec(outputs=[{**TENSOR, "shape": [3, 3]}]), "spec.outputs[0].shape"),
        (spec(outputs=[{**TENSOR, "shape": [-1, 0]}]), "spec.outputs[0].shape"),
        (spec(outputs=[{**TENSOR, "shape": [-1, True]}]), "spec.outputs[0].shape"),
        (spec(outputs=[{**TENSOR, "shape": [-1, 2**70]}]), "spec.outputs[0].shape"),
        (spec(outputs=[{**TENSOR, "shape": "-1"}]), "spec.outputs[0].shape"),
        (spec(profile={"run_ms": {}}), "spec.profile.run_ms"),
        (spec(profile={"run_ms": 10}), "spec.profile.run_ms"),
        (spec(profile={"run_ms": {0: 10}}), "spec.profile.run_ms"),
        (spec(profile={"run_ms": {"²": 10}}), "spec.profile.run_ms"),
        (spec(profile={"run_ms": {"9" * 5000: 10}}), "spec.profile.run_ms"),
        (spec(profile={"run_ms": {1: 0}}), "spec.profile.run_ms"),
        (spec(profile={"run_ms": {1: "10"}}), "spec.profile.run_ms"),
        (spec(profile={"load_ms": -1}), "spec.profile.load_ms"),
        (spec(profile={"usage_gain": 1.1}), "spec.profile.usage_gain"),
        (spec(profile={"sm": 1}), "spec.profile.sm"),
    ],
)
def test_what_is_wrong_is_named(raw: object, field: str) -> None:
    with pytest.raises(InvalidSpec) as caught:
        parse_spec(raw)
    assert caught.value.details["field"] == field
    assert str(caught.value).startswith(field)


@pytest.mark.parametrize(
    ("raw", "said"),
    [
        (spec(batchign={}), "spec.batchign: unknown field; did you mean batching?"),
        (spec(batching={"maxsize": 2}), "spec.batching.maxsize: unknown field; did you mean max_size?"),
        (spec(limits={"time_out": 2}), "spec.limits.time_out: unknown field; did you mean timeout?"),
        (spec(slo={"x": 2}), "spec.slo.x: unknown field"),
        (spec(slo={3: 2}), "spec.slo.3: unknown field"),
    ],
)
def test_a_misspelt_field_gets_the_name_that_was_meant(raw: object, said: str) -> None:
    with pytest.raises(InvalidSpec) as caught:
        parse_spec(raw)
    assert str(caught.value) == said


def test_a_bare_off_in_yaml_is_off() -> None:
    assert parse_spec(spec(scaling={"prewarm": False})).prewarm is Prewarming.OFF


#: A short alphabet: units, marks and digits that are none.
TEXT = st.text("19²٣mshMBi.:-/ é\n", max_size=6)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=6,
)
PARTS = st.sampled_from(
    (
        "entrypoint",
        "inputs",
        "outputs",
        "slo",
        "resources",
        "batching",
        "scaling",
        "retries",
        "limits",
        "profile",
        "other",
    ),
)
SECTION = st.dictionaries(
    st.sampled_from(
        (
            "deadline",
            "gpu_memory",
            "max_size",
            "max_warm",
            "min_warm",
            "prewarm",
            "keep_alive",
            "max_attempts",
            "max_pending",
            "timeout",
            "payload",
            "run_ms",
            "load_ms",
            "usage_gain",
            "degradation",
        )
    ),
    JSON,
    max_size=3,
)


@given(st.dictionaries(PARTS, JSON | SECTION, max_size=4))
def test_any_description_is_read_or_refused_and_never_worse(raw: dict[str, object]) -> None:
    try:
        parsed = parse_spec({"entrypoint": "m:C", **raw})
    except InvalidSpec as error:
        assert str(error.details["field"]).startswith("spec")  # noqa: PT017 - either outcome is right
    else:
        assert decode_spec(encode_spec(parsed)) == parsed


POSITIVE = st.floats(0.001, 1e6, allow_nan=False)
TENSORS = st.none() | st.lists(
    st.builds(
        TensorSpec,
        name=st.text("abc_.-/09", min_size=1, max_size=8),
        datatype=st.sampled_from(sorted(DATATYPES)),
        shape=st.lists(st.integers(-1, 4096), max_size=3).map(lambda rest: (-1, *rest)),
    ),
    min_size=1,
    max_size=3,
).map(tuple)
SPECS = st.builds(
    FunctionSpec,
    entrypoint=st.just("zoo.echo:Echo"),
    inputs=TENSORS,
    outputs=TENSORS,
    deadline_s=POSITIVE,
    memory_mib=POSITIVE,
    max_batch=st.integers(1, 1024),
    keep_alive_s=POSITIVE | st.just(-1.0),
    min_warm=st.integers(0, 64),
    prewarm=st.sampled_from(Prewarming),
    profile=st.builds(
        Profile,
        run_s=st.dictionaries(st.integers(1, 1024), POSITIVE, min_size=1),
        load_s=POSITIVE,
        memory_mib=POSITIVE,
        usage_gain=POSITIVE,
        degradation=POSITIVE,
    ),
    artifact=st.none()
    | st.builds(Artifact, code=st.just("a" * 64), files=st.dictionaries(st.text(min_size=1), st.just("b" * 64))),
    requirements=st.lists(st.text(min_size=1)).map(tuple),
)


@given(SPECS)
def test_a_spec_goes_through_json_and_back(original: FunctionSpec) -> None:
    assert unpack_spec(msgspec.json.decode(encode_spec(original))) == original


def test_a_newer_writers_spec_is_read() -> None:
    raw = pack_spec(FunctionSpec(entrypoint="m:C"))
    raw |= {"colour": "blue", "profile": raw["profile"] | {"sm": 0.5}}
    assert unpack_spec(raw) == FunctionSpec(entrypoint="m:C")
    assert unpack_spec({"entrypoint": "m:C"}) == FunctionSpec(entrypoint="m:C"), "an older writer's too"


# Profiles and tensors.


@pytest.mark.parametrize(
    ("rows", "seconds"), [(1, 0.01), (3, 0.02), (8, 0.045), (9, 0.045 * 9 / 8), (16, 0.09), (0, 0.01)]
)
def test_run_time_lies_on_a_line_between_sizes_and_grows_in_proportion_beyond_them(rows: int, seconds: float) -> None:
    assert Profile(run_s={8: 0.045, 1: 0.01}).run_time_s(rows) == pytest.approx(seconds)


@given(st.dictionaries(st.integers(1, 64), POSITIVE, min_size=1), st.integers(1, 200))
def test_run_time_is_within_the_profiled_ones_or_more_than_the_largest(run_s: dict[int, float], rows: int) -> None:
    seconds = Profile(run_s=run_s).run_time_s(rows)
    if rows > max(run_s):
        assert seconds > run_s[max(run_s)]
    else:
        assert min(run_s.values()) <= seconds * (1 + 1e-9)
        assert seconds <= max(run_s.values()) * (1 + 1e-9)


@pytest.mark.parametrize(
    ("datatype", "shape", "expected"),
    [
        ("FP32", (-1,), 4),
        ("FP32", (-1, 3, 224, 224), 602_112),
        ("INT8", (-1, -1), None),
        ("FP16", (-1, 0), 0),
        ("BYTES", (-1,), None),
    ],
)
def test_row_bytes(datatype: str, shape: tuple[int, ...], expected: int | None) -> None:
    assert TensorSpec(name="x", datatype=datatype, shape=shape).row_bytes() == expected


# Names, durations, sizes.


@pytest.mark.parametrize("name", ["a", "0", "a-b", "a--b", "x" * 63])
def test_names(name: str) -> None:
    assert parse_name(name) == name


@pytest.mark.parametrize("name", ["", "-a", "a-", "A", "a_b", "a/b", "a|b", "ä", "a\n", "x" * 64, None, 3, ["a"]])
def test_what_is_no_name(name: object) -> None:
    with pytest.raises(InvalidSpec) as caught:
        parse_name(name, "metadata.name")
    assert caught.value.details == {"field": "metadata.name"}


@pytest.mark.parametrize(
    ("written", "seconds"),
    [("800ms", 0.8), ("5s", 5), (" 1.5 m ", 90), ("2h", 7200), (3, 3), (0.25, 0.25), (-1, -1)],
)
def test_durations(written: object, seconds: float) -> None:
    assert duration_s(written, "f") == pytest.approx(seconds)


@pytest.mark.parametrize("written", ["", "5", "s", "5 days", "-5s", "5S", "1e3s", None, True, [], {}])
def test_what_is_no_duration(written: object) -> None:
    with pytest.raises(InvalidSpec) as caught:
        duration_s(written, "spec.slo.deadline")
    assert caught.value.details == {"field": "spec.slo.deadline"}


@pytest.mark.parametrize(
    ("written", "size"),
    [
        ("1KiB", 1024),
        ("1.5MiB", 1_572_864),
        ("2GiB", 2 << 30),
        ("3KB", 3000),
        ("8MB", 8_000_000),
        ("1GB", 10**9),
        ("7B", 7),
        (12, 12),
    ],
)
def test_sizes(written: object, size: int) -> None:
    assert size_bytes(written, "f") == size


@pytest.mark.parametrize("written", ["", "1", "1kib", "MiB", "-1MiB", "1TiB", 1.5, None, True, []])
def test_what_is_no_size(written: object) -> None:
    with pytest.raises(InvalidSpec) as caught:
        size_bytes(written, "spec.limits.payload")
    assert caught.value.details == {"field": "spec.limits.payload"}
