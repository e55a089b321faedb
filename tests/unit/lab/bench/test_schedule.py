"""A scheduled load against a tiny server in the same process: each request at its time, with its own deadline."""

import asyncio
import json

from lab.bench import load
from lab.bench.overload.client import DEADLINE, Load, Sent, _Drive

#: (seconds from the beginning, function, seconds to the deadline).
SCHEDULE = ((0.0, 1, 0.25), (0.01, 0, 1.5), (0.01, 1, 12.0), (0.03, 0, 0.001))


async def serve(bodies: list[dict[str, float]]) -> Sent:
    ended: list[asyncio.Event] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        over = asyncio.Event()
        ended.append(over)
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = int(head.partition(b"Content-Length: ")[2].split(b"\r\n")[0])
                bodies.append(json.loads(await reader.readexactly(length)))
                writer.write(b"HTTP/1.1 200 OK\r\nserver-timing: run;dur=2.5\r\ncontent-length: 2\r\n\r\n{}")
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()
            over.set()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    requests = [
        load.request_bytes(
            host="h",
            path="/",
            body=json.dumps({"function": function, "deadline_ms": 0}).encode().replace(b"0}", DEADLINE + b"}"),
        )
        for function in (0, 1)
    ]
    sent = await _Drive(Load(host="127.0.0.1", port=port, requests=requests, seconds=0.05, schedule=SCHEDULE)).run()
    await asyncio.gather(*(over.wait() for over in ended))
    server.close()
    return sent


def test_each_request_goes_at_its_time_with_its_own_deadline() -> None:
    bodies: list[dict[str, float]] = []

    sent = asyncio.run(serve(bodies))

    assert sent.function.tolist() == [function for _, function, _ in SCHEDULE]
    assert sent.status.tolist() == [200] * len(SCHEDULE)
    # Requests of one instant may overtake one another.
    assert sorted((body["function"], body["deadline_ms"]) for body in bodies) == sorted(
        (function, 1e3 * s) for _, function, s in SCHEDULE
    )
    assert [round(due - sent.due[0], 6) for due in sent.due] == [at for at, _, _ in SCHEDULE]
    assert sent.run.tolist() == [0.0025] * len(SCHEDULE)
