"""
Events and result records: what goes through comes back, what is newer or foreign is told apart. Frames of replies too.
"""

from typing import Any, get_args

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from smore.messages import stream
from smore.messages.commands import AnyCommand, Cancel
from smore.messages.results import Result, decode_result, encode_result, error_result
from smore.redis.records import Reply, parse_replies


@pytest.mark.parametrize("kind", get_args(stream.Event))
def test_every_event_has_a_tag_of_its_own_and_goes_through(kind: type[stream.Entry]) -> None:
    samples: dict[object, Any] = {
        str: "text",
        int: 1_795_250_080_380_382,
        float: 0.75,
        list[tuple[str, int]]: [("a" * 32, 3)],
    }
    hints = {field.name: samples[field.type] for field in msgspec.structs.fields(kind)}
    event = kind(**{**hints, "version": stream.VERSION})
    raw = msgspec.msgpack.decode(stream.encode(event))
    assert raw[0] == kind.__struct_config__.tag
    assert raw[1] == stream.VERSION
    assert stream.decode(stream.encode(event)) == event


def test_tags_differ() -> None:
    tags = [kind.__struct_config__.tag for kind in get_args(stream.Event)]
    assert len(set(tags)) == len(tags)


def test_a_field_that_a_newer_writer_appends_is_passed_over() -> None:
    raw = msgspec.msgpack.encode(["c", 1, "default/echo", 5, "new"])
    assert stream.decode(raw) == stream.CatalogChanged(version=1, function="default/echo", at_us=5)


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"\x00",
        msgspec.msgpack.encode(["?", 1]),
        msgspec.msgpack.encode(["c", 1]),
        msgspec.msgpack.encode({"t": 1}),
    ],
)
def test_what_is_no_event_is_refused(raw: bytes) -> None:
    with pytest.raises(msgspec.DecodeError):
        stream.decode(raw)


RESULTS = st.builds(
    Result,
    form=st.sampled_from(("json", "raw", "error")),
    load_us=st.integers(0, 2**53),
    run_us=st.integers(0, 2**53),
    cold=st.booleans(),
    body=st.binary(max_size=64),
    message=st.text(max_size=16),
    shapes=st.text(max_size=16),
)


@given(RESULTS)
def test_results_go_through(result: Result) -> None:
    assert decode_result(encode_result(result)) == result


def test_an_error_says_what_happened_but_not_without_end() -> None:
    result = decode_result(error_result("x" * 10_000))
    assert (result.form, result.message, result.body) == ("error", "x" * 4096, b"")


def frame(reply: Reply) -> bytes:
    head = "|".join(
        str(value)
        for value in (
            reply.id,
            reply.state,
            reply.cause,
            reply.attempt,
            reply.arrival_us,
            reply.claimed_us,
            reply.started_us,
            reply.finished_us,
            reply.gpu,
            reply.schedule_us,
            reply.deadline_us,
        )
    )
    body = head.encode() + b"\n" + reply.result
    return b"%010d" % len(body) + body


REPLIES = st.builds(
    Reply,
    id=st.text("0123456789abcdef", min_size=32, max_size=32),
    state=st.just("succeeded"),
    cause=st.sampled_from(("ok", "handler_error")),
    attempt=st.integers(0, 9),
    arrival_us=st.integers(0, 2**53),
    claimed_us=st.integers(0, 2**53),
    started_us=st.integers(0, 2**53),
    finished_us=st.integers(0, 2**53),
    gpu=st.sampled_from(("", "cpu0", "MIG-1/0")),
    schedule_us=st.integers(0, 10**6),
    deadline_us=st.integers(0, 2**53),
    result=st.binary(max_size=200),
)


@given(st.lists(REPLIES, max_size=5))
def test_frames_are_parted_again_whatever_is_in_them(replies: list[Reply]) -> None:
    assert parse_replies(b"".join(map(frame, replies))) == replies


def test_the_cancel_that_lua_packs_is_a_command() -> None:
    raw = msgspec.msgpack.encode(["cancel", 1, "default/echo", "a" * 32, 2])
    assert msgspec.msgpack.decode(raw, type=AnyCommand) == Cancel(
        version=1, function="default/echo", id="a" * 32, attempt=2
    )
