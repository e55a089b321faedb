"""
Sending the blobs of a packed folder: as calls of the client's dialogue, a stretch each, going on where a connection
broke.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec

from smore.blobs.archive import Packed
from smore.client.transport import ApiError, Call, Flow, Pause, Unreachable, exchange

#: Bytes of one call: what is sent again at most when a connection breaks, and all that is in memory.
STRETCH_BYTES: Final = 8 << 20
#: How long the gateway may take to answer one: the last is answered when the whole blob has been read again.
ANSWER_S: Final = 120.0
#: Breaks that are borne before more has arrived, and the pause after the first; it doubles.
TRIES: Final = 6
PAUSE_S: Final = 0.2


class _State(msgspec.Struct):
    complete: bool
    offset: int


def send(packed: Packed) -> Flow[None]:
    """Upload what the platform has not. Raises ApiError, Unreachable, OSError."""
    for digest, path in packed.blobs.items():
        yield from _send_blob(digest, path)


def _send_blob(digest: str, path: Path) -> Flow[None]:
    size, furthest, failures = path.stat().st_size, 0, 0
    #: None: where it stands must be asked.
    state: _State | None = None
    with path.open("rb") as file:
        while state is None or not state.complete:
            try:
                if state is None:
                    answer = yield from exchange(Call(method="GET", path=f"/v1/blobs/{digest}/state"))
                else:
                    file.seek(state.offset)
                    answer = yield from exchange(_stretch(digest, state.offset, size, file.read(STRETCH_BYTES)))
                state = msgspec.json.decode(answer.body, type=_State)
            except (ApiError, Unreachable) as error:
                if isinstance(error, ApiError) and error.status not in (409, 503):
                    raise
                failures += 1
                if failures == TRIES:
                    raise
                yield Pause(seconds=PAUSE_S * 2**failures)
                state = None
                continue
            if state.offset > furthest:
                furthest, failures = state.offset, 0


def _stretch(digest: str, offset: int, size: int, content: bytes) -> Call:
    query = (("offset", str(offset)), ("size", str(size)))
    headers = {"Content-Type": "application/octet-stream"}
    return Call(
        method="PATCH", path=f"/v1/blobs/{digest}", query=query, headers=headers, content=content, timeout_s=ANSWER_S
    )


def read_requirements(folder: Path, given: object) -> object:
    """
    ``requirements`` of a function.yaml as the platform takes it: of the name of a file in the folder, its lines. Raises
    OSError.
    """
    if not isinstance(given, str):
        return given
    return list(_lines((folder / given).read_text()))


def _lines(text: str) -> Iterator[str]:
    for line in text.splitlines():
        stripped = line.strip()
        if stripped and not stripped.startswith("#"):
            yield stripped.partition(" #")[0].strip()
