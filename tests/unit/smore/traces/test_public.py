"""Public traces: which file is taken, and what becomes of a data set that is fetched from a server of our own."""

import hashlib
import io
import re
import tarfile
import threading
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from typer.testing import CliRunner

from lab.simulation.rows import locate
from smore.cli.app import app
from smore.domain.errors import NotFound
from smore.traces import public

#: Names of files in the archive as the publisher has them, and one that is not kept.
MEMBERS = {
    "data/invocations_per_function_md.anon.d03.csv": b"HashFunction,1\na,5\n",
    "function_durations_percentiles.anon.d03.csv": b"HashFunction,Average\na,3\n",
    "../app_memory_percentiles.anon.d03.csv": b"HashApp,AverageAllocatedMb\na,3\n",
    "notes.txt": b"not kept",
}


def archive(members: dict[str, bytes]) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:xz") as tar:
        for name, content in members.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
        link = tarfile.TarInfo("invocations_per_function_md.anon.d04.csv")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        tar.addfile(link)
    return packed.getvalue()


def described(content: bytes) -> public.DataSet:
    return replace(public.AZURE2019, bytes=len(content), sha256=hashlib.sha256(content).hexdigest())


@pytest.fixture
def server(tmp_path: Path) -> Iterator[str]:
    """The address of a server of the files in tmp_path / "served"."""

    class Silent(SimpleHTTPRequestHandler):
        def log_message(self, format: str, *args: object) -> None: ...  # noqa: A002 - the base's name

    folder = tmp_path / "served"
    folder.mkdir()
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Silent, directory=str(folder))) as running:
        thread = threading.Thread(target=running.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{running.server_port}"
        running.shutdown()
        thread.join()


def test_a_data_set_is_fetched_checked_and_unpacked(tmp_path: Path, server: str) -> None:
    content = archive(MEMBERS)
    (tmp_path / "served" / "all.tar.xz").write_bytes(content)
    seen: list[tuple[int, int]] = []

    files = public.fetch(
        described(content), tmp_path / "data", url=f"{server}/all.tar.xz", progress=lambda *step: seen.append(step)
    )

    day = tmp_path / "data" / "azure2019" / "d03"
    assert files == [day / "app_memory.csv", day / "durations.csv", day / "invocations.csv"]
    assert (day / "invocations.csv").read_bytes() == b"HashFunction,1\na,5\n"
    # Neither the archive, nor what no pattern names, nor a link.
    assert {path for path in (tmp_path / "data").rglob("*") if not path.is_dir()} == set(files)
    assert seen[-1] == (len(content), len(content))


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"sha256": "0" * 64}, "its SHA-256 is [0-9a-f]{64}, not 0{64}: nothing of it was kept"),
        ({"bytes": 1_000_000}, r"[0-9,]+ of 1,000,000 bytes came"),
        ({"bytes": 10}, "more than 10 bytes came"),
    ],
)
def test_another_archive_than_the_expected_one_leaves_nothing(
    tmp_path: Path, server: str, change: dict[str, object], why: str
) -> None:
    content = archive(MEMBERS)
    (tmp_path / "served" / "all.tar.xz").write_bytes(content)
    data_set = replace(described(content), **change)  # type: ignore[arg-type]
    with pytest.raises(public.BadDownload, match=why):
        public.fetch(data_set, tmp_path / "data", url=f"{server}/all.tar.xz", progress=lambda *_: None)
    assert not [path for path in (tmp_path / "data").rglob("*") if path.is_file()]


def test_what_is_no_archive_or_not_there_says_so(tmp_path: Path, server: str) -> None:
    (tmp_path / "served" / "all.tar.xz").write_bytes(b"no archive")
    for data_set, url, why in (
        (described(b"no archive"), f"{server}/all.tar.xz", "the archive of azure2019 cannot be read"),
        (public.AZURE2019, f"{server}/nothing", "File not found"),
        (public.AZURE2019, "file:///etc/passwd", "an http address is expected"),
    ):
        with pytest.raises(public.BadDownload, match=why):
            public.fetch(data_set, tmp_path / "data", url=url, progress=lambda *_: None)


def test_the_command_fetches_lists_and_refuses(tmp_path: Path, server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    content = archive(MEMBERS)
    (tmp_path / "served" / "all.tar.xz").write_bytes(content)
    monkeypatch.setitem(public.DATA_SETS, "azure2019", described(content))
    monkeypatch.setenv("SMORE_HOME", str(tmp_path / "home"))
    run = partial(CliRunner().invoke, app)

    good = run(["data", "fetch", "azure2019", "--url", f"{server}/all.tar.xz"])
    assert good.exit_code == 0, good.output
    assert "--trace folder=azure2019/d03" in good.output
    listed = run(["data"]).output
    assert run(["data", "ls"]).output == listed
    assert "Did you mean 'ls'?" in run(["data", "list"]).output
    assert "azure2019/invocations.csv.gz" in listed
    assert "data/azure2019, d03 to d03" in listed
    bad = run(["data", "fetch", "azure2019", "--url", f"{server}/nothing"])
    assert bad.exit_code == 1
    assert "File not found" in bad.output
    unknown = run(["data", "fetch", "azure2020"])
    assert unknown.exit_code == 2
    assert "there are azure2019" in unknown.output


def test_what_was_fetched_goes_before_what_is_bundled(tmp_path: Path) -> None:
    among = public.folders(tmp_path)
    assert locate("azure2019/invocations.csv", among) == public.BUNDLED / "azure2019" / "invocations.csv.gz"
    fetched = tmp_path / "data" / "azure2019" / "invocations.csv"
    fetched.parent.mkdir(parents=True)
    fetched.write_text("")
    assert locate("azure2019/invocations.csv", among) == fetched
    with pytest.raises(NotFound, match=re.escape("`smore data fetch azure2019` brings all of it")):
        locate("azure2019/d01/invocations.csv", among)
    # A folder that the user names is the only one.
    with pytest.raises(NotFound, match=re.escape(f"no azure2019/memory.csv in {tmp_path}") + "$"):
        locate("azure2019/memory.csv", public.folders(tmp_path, tmp_path))


def test_the_bundled_excerpt_is_small_and_names_its_licence() -> None:
    assert sum(path.stat().st_size for path in public.BUNDLED.rglob("*") if path.is_file()) < 1_000_000
    card = (public.BUNDLED / "README.md").read_text()
    for path in public.BUNDLED.rglob("*.gz"):
        assert str(path.relative_to(public.BUNDLED)) in card
    rows = [line for line in card.splitlines() if line.startswith("| `")]
    assert rows and all(
        "CC BY 4.0" in row or "Apache 2.0" in row or "MIT" in row or "the same |" in row for row in rows
    )
