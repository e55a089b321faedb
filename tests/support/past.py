"""Entries of the event stream, of whatever moment, out of which the recorder makes a past."""

from collections.abc import Sequence

import msgspec
import redis

from smore.domain.loss import ClosedWindow
from smore.messages import stream
from smore.messages.reports import JobReport, Report, encode_report
from smore.messages.stream import encode

PREFIX = "smore:"


def reported(
    at: float, gpu: str = "cpu0", utilisation: float = 0.5, windows: Sequence[ClosedWindow] = ()
) -> stream.Event:
    job = JobReport(id="j1", project="default", state="running", pid=1, memory_mib=1.0, iterations=9, windows=windows)
    report = Report(
        gpu=gpu,
        boot="b",
        at=at,
        kind="cpu",
        device="a device",
        sharing_mode="time-slice",
        slots=2,
        memory_total_mib=1000.0,
        memory_used_mib=1000 * utilisation,
        utilisation=utilisation,
        utilisation_counter="cpu-time",
        function_utilisation=utilisation / 2,
        running=1,
        jobs=[job] if windows else [],
    )
    return stream.Reported(1, gpu, int(at * 1e6), encode_report(report).decode())


def closed_window(start: float, before_s: float = 0.11) -> ClosedWindow:
    return ClosedWindow(
        start=start,
        end=start + 1,
        before_s=before_s,
        before_n=6,
        closed_s=0.1,
        closed_n=6,
        closed_sd=0.003,
        after_s=0.12,
        after_n=6,
    )


def ended(
    id_: str,
    at: float,
    whole_s: float = 0.02,
    *,
    state: str = "succeeded",
    jobs: Sequence[str] = (),
    cold: bool = False,
) -> stream.Event:
    finished = int(at * 1e6)
    arrival = finished - int(whole_s * 1e6)
    meta = msgspec.json.encode(
        {
            "cold": cold,
            "load_ms": {"weights": 80.0} if cold else {},
            "run_ms": 10.0,
            "batch": 1,
            "rows": 1,
            "jobs": jobs,
        }
    )
    return stream.Settled(
        1,
        "default/echo",
        2,
        id_,
        1,
        1,
        state,
        "ok",
        "cpu0",
        arrival,
        finished + 1_000_000,
        arrival,
        arrival + 1000,
        finished,
        1,
        "key1",
        "",
        80,
        meta.decode(),
    )


def emit(client: "redis.Redis", *events: stream.Event) -> None:
    for event in events:
        client.xadd(f"{PREFIX}ev", {"e": encode(event)})
