"""Sends the blobs of a packed folder, a stretch of bytes with each request, and goes on where a connection broke."""

from collections.abc import Callable
from pathlib import Path
from typing import Final

from smore_client.pack import Packed
from smore_client.transport import ApiError, Call, Flow, Pause, Unreachable, fetch, request
from smore_client.types import BlobState

#: Bytes of one request: the most that is in memory, and that is sent again after a broken connection.
STRETCH_BYTES: Final = 8 << 20
#: Seconds that the gateway may take to answer one: it answers the last when it has read the whole blob again.
ANSWER_S: Final = 120.0
#: Failed attempts in a row without progress before it gives up; seconds of the first pause, which doubles.
TRIES: Final = 6
PAUSE_S: Final = 0.2


def send(packed: Packed, progress: Callable[[int, int], None] | None = None) -> Flow[None]:
    """
    Upload the blobs that the platform lacks; ``progress`` as in :meth:`~smore_client.requests.Requests.deploy`. Raises
    ApiError, Unreachable, OSError.
    """
    sizes = {digest: path.stat().st_size for digest, path in packed.blobs.items()}
    arrived = dict.fromkeys(sizes, 0)

    def note(digest: str, offset: int) -> None:
        arrived[digest] = offset
        if progress is not None:
            progress(sum(arrived.values()), sum(sizes.values()))

    for digest, path in packed.blobs.items():
        yield from _send_blob(digest, path, note)


def _send_blob(digest: str, path: Path, note: Callable[[str, int], None]) -> Flow[None]:
    size, furthest, failures = path.stat().st_size, 0, 0
    # None = the platform must be asked how much of it has arrived.
    state: BlobState | None = None
    with path.open("rb") as file:
        while state is None or not state.complete:
            try:
                if state is None:
                    call = request("GET", "blobs", digest, "state")
                else:
                    file.seek(state.offset)
                    call = _stretch(digest, state.offset, size, file.read(STRETCH_BYTES))
                state = yield from fetch(BlobState, call)
            except (ApiError, Unreachable) as error:
                if isinstance(error, ApiError) and error.status not in (409, 503):
                    raise
                failures += 1
                if failures == TRIES:
                    raise
                yield Pause(seconds=PAUSE_S * 2**failures)
                state = None
                continue
            note(digest, size if state.complete else state.offset)
            if state.offset > furthest:
                furthest, failures = state.offset, 0


def _stretch(digest: str, offset: int, size: int, content: bytes) -> Call:
    query = {"offset": offset, "size": size}
    headers = {"Content-Type": "application/octet-stream"}
    return request("PATCH", "blobs", digest, body=content, query=query, headers=headers, timeout_s=ANSWER_S)
