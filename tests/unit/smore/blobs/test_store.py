"""Blobs: uploads that break and go on, wrong digests, limits, two backends; and a client that is cut off."""

import hashlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from smore.blobs.store import ABANDONED_S, CHUNK, Blobs, GatewayBlobs, SourceAway
from smore.domain.errors import BlobNotFound, Conflict, PayloadTooLarge, StorageFull, WrongDigest
from smore_client import upload
from smore_client.function_file import read_source
from smore_client.pack import Packed
from smore_client.requests import Requests
from smore_client.transport import Answer, ApiError, Broken, Call, Unreachable

DATA = os.urandom(3 * CHUNK + 17)
DIGEST = hashlib.sha256(DATA).hexdigest()
BIG = 1 << 40


@pytest.fixture(params=["folder", "memory"])
def blobs(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Blobs]:
    if request.param == "folder":
        yield Blobs(str(tmp_path / "blobs"), tmp_path / "unused")
        return
    from fsspec.implementations.memory import MemoryFileSystem

    yield Blobs("memory://blobs", tmp_path / "staging")
    MemoryFileSystem.store.clear()


def write(
    blobs: Blobs, offset: int, end: int, *, digest: str = DIGEST, project: str = "p", size: int = len(DATA)
) -> bool:
    with blobs.upload(project, digest, offset=offset, size=size, most=BIG, project_most=BIG) as part:
        part.write(DATA[offset:end])
        return part.finish()


def test_an_upload_that_broke_goes_on(blobs: Blobs) -> None:
    assert blobs.size("p", DIGEST) is None
    assert not write(blobs, 0, 100)
    assert (blobs.offset("p", DIGEST), blobs.size("p", DIGEST)) == (100, None)
    with pytest.raises(BlobNotFound):
        blobs.read("p", DIGEST)
    assert write(blobs, 100, len(DATA))
    assert (blobs.offset("p", DIGEST), blobs.size("p", DIGEST)) == (0, len(DATA))
    assert b"".join(blobs.read("p", DIGEST)) == DATA
    assert b"".join(blobs.read("p", DIGEST, 2 * CHUNK)) == DATA[2 * CHUNK :]
    assert all(len(piece) <= CHUNK for piece in blobs.read("p", DIGEST))


def test_another_offset_is_told_where_it_stands(blobs: Blobs) -> None:
    write(blobs, 0, 100)
    for offset in (0, 50, 101):
        with pytest.raises(Conflict) as caught:
            write(blobs, offset, 200)
        assert caught.value.details["offset"] == 100
    assert blobs.offset("p", DIGEST) == 100


def test_two_writers_of_one_blob(blobs: Blobs) -> None:
    with (
        blobs.upload("p", DIGEST, offset=0, size=len(DATA), most=BIG, project_most=BIG),
        pytest.raises(Conflict, match="Somebody else"),
    ):
        write(blobs, 0, 100)
    assert write(blobs, 0, len(DATA))


def test_a_wrong_digest_leaves_nothing(blobs: Blobs) -> None:
    with pytest.raises(WrongDigest):
        write(blobs, 0, len(DATA), digest="0" * 64)
    assert (blobs.offset("p", "0" * 64), blobs.size("p", "0" * 64)) == (0, None)


def test_limits(blobs: Blobs) -> None:
    with pytest.raises(PayloadTooLarge):
        blobs.upload("p", DIGEST, offset=0, size=11, most=10, project_most=BIG)
    write(blobs, 0, len(DATA))
    with pytest.raises(StorageFull):
        blobs.upload("p", "0" * 64, offset=0, size=11, most=BIG, project_most=len(DATA) + 10)
    with pytest.raises(StorageFull, match="disk"):
        blobs.upload("p", "0" * 64, offset=0, size=1 << 55, most=1 << 60, project_most=1 << 60)
    with (
        blobs.upload("p", "0" * 64, offset=0, size=5, most=BIG, project_most=BIG) as part,
        pytest.raises(PayloadTooLarge),
    ):
        part.write(b"123456")
    assert blobs.offset("p", "0" * 64) == 0


def test_projects_share_nothing(blobs: Blobs) -> None:
    write(blobs, 0, len(DATA))
    assert blobs.size("q", DIGEST) is None
    assert (blobs.used("p"), blobs.used("q")) == (len(DATA), 0)
    write(blobs, 0, len(DATA), project="q")
    assert sorted((one.project, one.digest, one.size) for one in blobs) == [
        ("p", DIGEST, len(DATA)),
        ("q", DIGEST, len(DATA)),
    ]
    blobs.remove("p", DIGEST)
    blobs.remove("p", DIGEST)
    assert [one.project for one in blobs] == ["q"]


def test_abandoned_uploads_are_dropped(blobs: Blobs) -> None:
    write(blobs, 0, 100)
    at = max(one.stat().st_mtime for one in blobs._staging.iterdir())
    assert blobs.drop_abandoned(at + ABANDONED_S - 1) == 0
    assert blobs.drop_abandoned(at + ABANDONED_S + 1) == 1
    assert blobs.offset("p", DIGEST) == 0


def test_an_empty_store_is_empty(blobs: Blobs) -> None:
    assert (list(blobs), blobs.used("p"), blobs.drop_abandoned(0.0)) == ([], 0, 0)


# ---- the client's side -----------------------------------------------------------------------------------------------


class Server:
    """The gateway's part over a :class:`Blobs`, which breaks where it is told to."""

    def __init__(self, blobs: Blobs, breaks: dict[int, str]) -> None:
        self.blobs = blobs
        self.breaks = breaks
        self.calls = 0
        self.sent = 0

    def answer(self, call: Call) -> Answer | Broken:
        self.calls += 1
        self.sent += len(call.content)
        how = self.breaks.get(self.calls)
        if how == "before":
            return Broken(reason="gone")
        digest = call.path.split("/")[3]
        if call.method == "GET":
            size = self.blobs.size("p", digest)
            state = {
                "digest": digest,
                "complete": size is not None,
                "offset": size if size is not None else self.blobs.offset("p", digest),
            }
            return Answer(status=200, headers={}, body=json.dumps(state).encode())
        query = dict(call.query)
        content = call.content[:1000] if how == "during" else call.content
        try:
            with self.blobs.upload(
                "p", digest, offset=int(query["offset"]), size=int(query["size"]), most=BIG, project_most=BIG
            ) as part:
                part.write(content)
                complete = part.finish()
        except Conflict as error:
            return Answer(status=409, headers={}, body=json.dumps({"code": "conflict", **error.details}).encode())
        except WrongDigest:
            return Answer(status=422, headers={}, body=b'{"code": "wrong_digest"}')
        if how is not None:
            return Broken(reason="gone")
        return Answer(
            status=200,
            headers={},
            body=json.dumps({"digest": digest, "complete": complete, "offset": part.offset}).encode(),
        )


def send(server: Server, path: Path, digest: str) -> None:
    flow = upload.send(Packed(code=digest, files={}, blobs={digest: path}))
    got: Any = None
    while True:
        try:
            step = flow.send(got)
        except StopIteration:
            return
        got = server.answer(step) if isinstance(step, Call) else None


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(upload, "STRETCH_BYTES", CHUNK)
    path = tmp_path / "file"
    path.write_bytes(DATA)
    return path


@pytest.mark.parametrize(
    "breaks",
    [
        {},
        {3: "before"},
        {3: "during"},
        {3: "after"},
        {2: "during", 4: "before", 6: "after"},
        {5: "after"},
        dict.fromkeys(range(4, 12), "before"),
    ],
)
def test_what_breaks_is_gone_on_with(blobs: Blobs, file: Path, breaks: dict[int, str]) -> None:
    server = Server(blobs, breaks)
    send(server, file, DIGEST)
    assert b"".join(blobs.read("p", DIGEST)) == DATA
    # No stretch that has arrived is sent again.
    assert server.sent <= len(DATA) + CHUNK * sum(how != "after" for how in breaks.values())
    before = server.sent
    send(server, file, DIGEST)
    assert server.sent == before


def test_a_server_that_stays_away_is_told(blobs: Blobs, file: Path) -> None:
    with pytest.raises(Unreachable):
        send(Server(blobs, dict.fromkeys(range(3, 100), "before")), file, DIGEST)


def test_a_wrong_digest_is_told(blobs: Blobs, file: Path) -> None:
    with pytest.raises(ApiError, match="wrong_digest"):
        send(Server(blobs, {}), file, "0" * 64)


def test_requirements_may_stand_in_a_file(tmp_path: Path) -> None:
    folder, into = tmp_path / "folder", tmp_path / "into"
    folder.mkdir()
    into.mkdir()
    (folder / "requirements.txt").write_text("# all of them\neinops==0.8.1  # small\n\n./w.whl\n")
    for given, read in (("requirements.txt", ["einops==0.8.1", "./w.whl"]), ("[a]", ["a"])):
        (folder / "function.yaml").write_text(f"spec: {{requirements: {given}}}")
        document, packed = read_source(folder, into)
        assert document["spec"]["requirements"] == read
        assert packed is not None and document["spec"]["artifact"] == {"code": packed.code, "files": {}}


def test_a_folder_is_deployed_with_its_blobs(tmp_path: Path) -> None:
    folder = tmp_path / "f"
    folder.mkdir()
    (folder / "function.yaml").write_text(
        "metadata: {name: own}\nspec: {entrypoint: 'handler:F', requirements: r.txt}\n"
    )
    (folder / "handler.py").write_text("class F: ...\n")
    (folder / "r.txt").write_text("einops\n")
    server = Server(Blobs(str(tmp_path / "blobs"), tmp_path), {})
    flow = Requests.deploy(Requests(), folder)
    got: Any = None
    calls = []
    while True:
        try:
            step = flow.send(got)
        except StopIteration:
            break
        assert isinstance(step, Call)
        calls.append(step)
        got = (
            server.answer(step)
            if step.path.startswith("/v1/blobs")
            else Answer(status=201, headers={}, body=b'{"name": "own"}')
        )
    sent = json.loads(calls[-1].content)["spec"]
    assert (calls[-1].method, calls[-1].path, sent["requirements"]) == ("PUT", "/v1/functions/own", ["einops"])
    assert server.blobs.size("p", sent["artifact"]["code"]) is not None


# ---- from another host -----------------------------------------------------------------------------------------------


class _Tickets:
    def __init__(self) -> None:
        self.given: list[str] = []

    def set(self, name: str, value: str, ex: int) -> None:
        assert ex > 0
        self.given.append(f"{name} {value}")


def _serve(monkeypatch: pytest.MonkeyPatch, handler: Any) -> None:
    client = httpx.Client(transport=httpx.MockTransport(handler))
    monkeypatch.setattr(httpx, "stream", client.stream)


class _Broken(httpx.SyncByteStream):
    def __init__(self, data: bytes) -> None:
        self._data = data

    def __iter__(self) -> Iterator[bytes]:
        yield self._data
        raise httpx.ReadError("reset")


def test_a_read_that_breaks_goes_on_where_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def handler(request: httpx.Request) -> httpx.Response:
        first = int(request.headers["range"].removeprefix("bytes=").removesuffix("-"))
        asked.append(first)
        if len(asked) < 3:
            return httpx.Response(206, stream=_Broken(DATA[first : first + CHUNK]))
        return httpx.Response(206, stream=httpx.ByteStream(DATA[first:]))

    _serve(monkeypatch, handler)
    tickets: Any = _Tickets()
    assert b"".join(GatewayBlobs("http://gateway/", tickets, "smore:").read("p", DIGEST)) == DATA
    assert asked == [0, CHUNK, 2 * CHUNK]
    assert len({one.split()[0] for one in tickets.given}) == 3, "a ticket for each"
    assert all(one.endswith(f" p/{DIGEST}") for one in tickets.given)


def test_what_is_not_there_or_away_is_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("smore.blobs.store.time.sleep", lambda _: None)
    tickets: Any = _Tickets()
    source = GatewayBlobs("http://gateway", tickets, "smore:")
    _serve(monkeypatch, lambda request: httpx.Response(404))
    with pytest.raises(BlobNotFound):
        list(source.read("p", DIGEST))
    _serve(monkeypatch, lambda request: httpx.Response(503))
    with pytest.raises(SourceAway, match="503"):
        list(source.read("p", DIGEST))

    def refused(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("refused")

    _serve(monkeypatch, refused)
    with pytest.raises(SourceAway, match="breaks off"):
        list(source.read("p", DIGEST))
