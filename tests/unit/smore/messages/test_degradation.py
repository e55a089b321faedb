"""The published table: what a reader gets back, what it refuses, and that it never sees half of one."""

import math
import random
import struct
import threading

import msgspec
import numpy as np
import pytest
import redis

from smore.messages.degradation import (
    FORMAT,
    BadTable,
    PlaceTable,
    Table,
    TrainingPair,
    Weight,
    decode,
    encode,
)
from smore.redis.tables import Tables


def floats(*values: float) -> bytes:
    return struct.pack(f"<{len(values)}d", *values)


def place(**fields: object) -> PlaceTable:
    """Two trainings, three functions; the cell of row r and column c is r.c."""
    values: dict[str, object] = {
        "device": "CPU partition: 1 core",
        "sharing_mode": "time-slice",
        "trainings": ["bert/cpu/training/4", "vgg16/cpu/training/2"],
        "functions": ["deepfm/cpu/function/8", "bert/cpu/function/1", "deepfm/cpu/function/1"],
        "training": floats(0.0, 0.1, 0.2, 1.0, 1.1, 1.2),
        "training_upper": floats(*[2.0] * 6),
        "function": floats(*[3.0] * 6),
        "function_upper": floats(*[4.0] * 6),
        "function_on_function": floats(*[5.0] * 9),
        "function_on_function_upper": floats(*[6.0] * 9),
        "measured": bytes([0, 1, 0, 0, 0, 1]),
        "solo_s": floats(0.01, 0.02, 0.03),
        "usage_gain": floats(0.1, 0.2, 0.3),
        "degradation": floats(1.0, 2.0, 3.0),
        "weights": [Weight(kind="training", k=2, victim="bert", other="deepfm", value=1.5)],
        "training_on_training": floats(0.0, 0.1, 1.0, 1.1),
        "training_on_training_upper": floats(*[7.0] * 4),
        "measured_trainings": bytes([0, 1, 0, 0]),
        "training_solo_s": floats(0.5, 0.25),
    }
    return PlaceTable(**(values | fields))  # type: ignore[arg-type]


#: The matrices of trainings where no two trainings were measured.
NO_PAIRS: dict[str, object] = {
    "training_on_training": b"",
    "training_on_training_upper": b"",
    "measured_trainings": b"",
}


def table(*places: PlaceTable, version: int = 1) -> Table:
    return Table(version=version, source="ours", created_at=1.5, places=list(places))


# ---- reading ---------------------------------------------------------------------------------------------------------


def test_what_is_encoded_is_decoded() -> None:
    other = place(device="NVIDIA H100", weights=[])
    whole = table(place(), other, version=7)

    assert decode(encode(whole)) == whole
    assert decode(encode(table())) == table()


def test_a_cell_needs_no_numpy_and_an_array_no_copy() -> None:
    read = decode(encode(table(place()))).places[0]

    assert read.cell(read.training, 1, 2) == 1.2
    assert np.frombuffer(read.training, "<f8").reshape(2, 3)[1, 2] == 1.2


def test_a_functions_batches_come_smallest_first() -> None:
    assert place().function_rows("deepfm", "cpu") == [(1, 2), (8, 0)]
    assert place().function_rows("deepfm", "paper") == []


def test_a_place_is_found_by_device_and_sharing_mode() -> None:
    whole = table(place(), place(sharing_mode="mps"))

    assert whole.place("CPU partition: 1 core", "mps") is whole.places[1]
    assert whole.place("NVIDIA H100", "mps") is None


def test_a_place_may_have_no_trainings() -> None:
    empty = place(
        trainings=[],
        training=b"",
        training_upper=b"",
        function=b"",
        function_upper=b"",
        measured=b"",
        training_solo_s=b"",
        **NO_PAIRS,
    )

    assert decode(encode(table(empty))).places == [empty]


def test_the_pairs_of_trainings_are_read_in_both_directions() -> None:
    bert, vgg = place().trainings

    assert list(decode(encode(table(place()))).places[0].training_pairs()) == [
        TrainingPair(bert, bert, 0.0, 7.0, False),
        TrainingPair(bert, vgg, 0.1, 7.0, True),
        TrainingPair(vgg, bert, 1.0, 7.0, False),
        TrainingPair(vgg, vgg, 1.1, 7.0, False),
    ]


def test_trainings_are_timed_alone_except_in_a_table_of_an_earlier_release() -> None:
    assert place().alone_s() == {"bert/cpu/training/4": 0.5, "vgg16/cpu/training/2": 0.25}
    [earlier] = decode(encode(table(place(training_solo_s=b"")))).places
    assert earlier.alone_s() == {}


def test_a_place_may_have_no_measured_pair_of_trainings() -> None:
    without = place(**NO_PAIRS)

    assert decode(encode(table(without))).places == [without]
    assert list(without.training_pairs()) == []


def test_a_table_of_format_1_is_one_without_pairs_of_trainings() -> None:
    """Champions that an earlier version has stored are read as they are."""
    document = msgspec.to_builtins(table(place(**NO_PAIRS)), builtin_types=(bytes,)) | {"format": 1}
    for of_place in document["places"]:
        for name in NO_PAIRS:
            del of_place[name]

    read = decode(msgspec.msgpack.encode(document))

    assert read.format == 1
    assert read.places == [place(**NO_PAIRS)]
    assert list(read.places[0].training_pairs()) == []


# ---- refusing --------------------------------------------------------------------------------------------------------


def test_a_cut_blob_is_refused_wherever_it_is_cut() -> None:
    raw = encode(table(place()))

    for length in range(len(raw)):
        with pytest.raises(BadTable):
            decode(raw[:length])


def test_another_format_is_named_whatever_else_it_holds() -> None:
    document = {"format": FORMAT + 1, "version": "seven", "places": 3}

    with pytest.raises(BadTable, match=f"format {FORMAT + 1}, 1 or {FORMAT} is expected"):
        decode(msgspec.msgpack.encode(document))


@pytest.mark.parametrize(
    "raw", [b"", b"\xc1", msgspec.msgpack.encode([1, 2]), msgspec.msgpack.encode({"format": "one"})]
)
def test_what_is_no_table_is_refused(raw: bytes) -> None:
    with pytest.raises(BadTable, match="not a degradation table"):
        decode(raw)


@pytest.mark.parametrize(
    "name",
    [
        "training",
        "training_upper",
        "function",
        "function_upper",
        "function_on_function",
        "function_on_function_upper",
        "solo_s",
        "usage_gain",
        "degradation",
        "training_on_training",
        "training_on_training_upper",
    ],
)
def test_a_matrix_of_another_size_or_with_what_is_no_degradation_is_refused(name: str) -> None:
    good = getattr(place(), name)
    for bad in (good[:-8], good[:-1], good + floats(1.0), b""):
        with pytest.raises(BadTable, match=f"{name} has {len(bad)} bytes"):
            decode(encode(table(place(**{name: bad}))))
    for value in (math.nan, math.inf, -math.inf, -0.1):
        with pytest.raises(BadTable, match=f"{name} holds"):
            decode(encode(table(place(**{name: good[:-8] + floats(value)}))))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"measured": bytes(5)}, "measured has 5 bytes"),
        ({"measured_trainings": bytes(5)}, "measured_trainings has 5 bytes, 4 are expected"),
        (NO_PAIRS | {"measured_trainings": bytes(4)}, "measured_trainings has 4 bytes, 0 are expected"),
        ({"training_solo_s": floats(0.5)}, "training_solo_s has 8 bytes, 16 are expected"),
        ({"training_solo_s": floats(0.5, math.nan)}, "training_solo_s holds"),
        ({"trainings": ["bert/cpu/training/4", "vgg16/cpu/training"]}, "'vgg16/cpu/training' in trainings"),
        ({"trainings": ["bert/cpu/training/4", "vgg16/cpu/function/2"]}, "model/size/training/batch"),
        ({"trainings": ["bert/cpu/training/4"] * 2}, "trainings names a workload twice"),
        ({"functions": ["a/b/c/function/1", "b/cpu/function/1", "c/cpu/function/1"]}, "in functions"),
        ({"functions": ["a/cpu/function/one", "b/cpu/function/1", "c/cpu/function/1"]}, "in functions"),
        ({"weights": [Weight(kind="training", k=0, victim="a", other="b", value=1.0)]}, "not a weight"),
        ({"weights": [Weight(kind="training", k=2, victim="a", other="b", value=math.nan)]}, "not a weight"),
        ({"weights": [Weight(kind="training", k=2, victim="a", other="b", value=-1.0)]}, "not a weight"),
        ({"weights": [Weight(kind="other", k=2, victim="a", other="b", value=1.0)]}, "not a degradation table"),  # type: ignore[arg-type]
    ],
)
def test_parts_that_do_not_fit_are_refused(fields: dict[str, object], message: str) -> None:
    with pytest.raises(BadTable, match=message):
        decode(encode(table(place(**fields))))


def test_a_damaged_blob_is_a_table_or_refused_and_nothing_else() -> None:
    """Names that are no text, lengths that are none: whatever the bytes are, there is one error to catch."""
    raw, generator = encode(table(place())), random.Random(0)
    refused = 0
    for _ in range(5000):
        damaged = bytearray(raw)
        for _ in range(generator.choice((1, 1, 2, 4))):
            damaged[generator.randrange(len(damaged))] = generator.randrange(256)
        try:
            decode(bytes(damaged))
        except BadTable:
            refused += 1

    assert refused > 1000


# ---- publishing ------------------------------------------------------------------------------------------------------


def test_nothing_published_is_nothing(redis_client: "redis.Redis") -> None:
    tables = Tables(redis_client, "smore:")

    assert (tables.version(), tables.current()) == (0, None)


def test_the_last_published_is_current(redis_client: "redis.Redis") -> None:
    tables = Tables(redis_client, "smore:")
    for version in (1, 2):
        tables.publish(table(place(), version=version))

    assert tables.version() == 2
    assert tables.current() == table(place(), version=2)
    assert Tables(redis_client, "other:").current() is None


def test_a_damaged_table_in_redis_is_refused(redis_client: "redis.Redis") -> None:
    tables = Tables(redis_client, "smore:")
    tables.publish(table(place()))
    redis_client.setrange("smore:degradation:table", 40, b"\xff" * 8)

    with pytest.raises(BadTable):
        tables.current()


def test_a_reader_never_sees_a_mixture(redis_client: "redis.Redis") -> None:
    """
    Every number of version v is v: a table with two numbers is one that never was. Versions never go back for a reader.
    """
    tables, stop = Tables(redis_client, "smore:"), threading.Event()

    def of(version: int) -> Table:
        names = [f"m{number}/cpu/function/1" for number in range(40)]
        square, line = floats(*[float(version)] * 1600), floats(*[float(version)] * 40)
        return table(
            place(
                trainings=[name.replace("function", "training") for name in names],
                functions=names,
                training=square,
                training_upper=square,
                function=square,
                function_upper=square,
                function_on_function=square,
                function_on_function_upper=square,
                measured=bytes(1600),
                solo_s=line,
                usage_gain=line,
                degradation=line,
                training_solo_s=line,
                **NO_PAIRS,
            ),
            version=version,
        )

    seen: list[int] = []
    mixed: list[int] = []

    def read() -> None:
        while not stop.is_set():
            announced, found = tables.version(), tables.current()
            assert found is not None
            numbers = {
                number
                for one in found.places
                for raw in (
                    one.training,
                    one.training_upper,
                    one.function,
                    one.function_upper,
                    one.function_on_function,
                    one.solo_s,
                )
                for number in np.unique(np.frombuffer(raw, "<f8")).tolist()
            }
            seen.append(found.version)
            # What the version announces is there to be read: both change in one step.
            if numbers != {float(found.version)} or found.version < announced:
                mixed.append(found.version)

    tables.publish(of(1))
    reader = threading.Thread(target=read)
    reader.start()
    for version in range(2, 2000):
        tables.publish(of(version))
        if version > 50 and len(set(seen)) > 10:
            break
    stop.set()
    reader.join(10)

    assert mixed == []
    assert seen == sorted(seen)
    assert len(set(seen)) > 10
