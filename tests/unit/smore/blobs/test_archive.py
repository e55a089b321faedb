"""The code archive of an uploaded folder: what checking refuses, what unpacking makes."""

import contextlib
import io
import os
import stat
import zipfile
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from smore.blobs import archive
from smore.definition.requirements import check_requirements
from smore.domain.artifact import Artifact, check_path, parse_artifact, parse_requirements
from smore.domain.errors import InvalidArtifact, InvalidSpec

CODE = "a" * 64


def zipped(*entries: tuple[str | zipfile.ZipInfo, bytes], method: int = zipfile.ZIP_DEFLATED) -> io.BytesIO:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", method) as writer:
        for name, content in entries:
            writer.writestr(name, content, method)
    return made


def entry(name: str, mode: int) -> zipfile.ZipInfo:
    info = zipfile.ZipInfo(name)
    info.create_system = 3
    info.external_attr = mode << 16
    return info


def overlong() -> io.BytesIO:
    return zipped(*((f"{number}.py", b"") for number in range(archive.MAX_ENTRIES + 1)))


def lying() -> io.BytesIO:
    """The list says one byte, there are a thousand."""
    made = zipped(("a.py", b"x" * 1000), method=zipfile.ZIP_STORED).getvalue()
    return io.BytesIO(made.replace((1000).to_bytes(4, "little"), (1).to_bytes(4, "little")))


def spoiled(method: int) -> io.BytesIO:
    """One byte of the content is another."""
    made = bytearray(zipped(("a.py", os.urandom(99)), method=method).getvalue())
    made[60] ^= 0xFF
    return io.BytesIO(bytes(made))


def encrypted() -> io.BytesIO:
    made = bytearray(zipped(("a.py", b"x")).getvalue())
    made[made.index(b"PK\x01\x02") + 8] |= 1
    return io.BytesIO(bytes(made))


@pytest.mark.parametrize(
    ("made", "says"),
    [
        (lambda: zipped(("../../etc/cron.d/x", b"")), "leads out"),
        (lambda: zipped(("a/../../x", b"")), "leads out"),
        (lambda: zipped(("a//x", b"")), "empty part"),
        (lambda: zipped(("/etc/passwd", b"")), "not a relative path"),
        (lambda: zipped(("C:\\x", b"")), "character"),
        (lambda: zipped(("a\nb", b"")), "character"),
        (lambda: zipped(("x" * 300, b"")), "too long"),
        (lambda: zipped((entry("passwd", stat.S_IFLNK | 0o777), b"/etc/passwd")), "a link, a device"),
        (lambda: zipped((entry("null", stat.S_IFCHR | 0o666), b"")), "a link, a device"),
        (lambda: zipped((entry("disk", stat.S_IFBLK | 0o666), b"")), "a link, a device"),
        (lambda: zipped((entry("pipe", stat.S_IFIFO | 0o666), b"")), "a link, a device"),
        (lambda: zipped((entry("sock", stat.S_IFSOCK | 0o666), b"")), "a link, a device"),
        (lambda: zipped((entry("dir", stat.S_IFDIR | 0o755), b"")), "a link, a device"),
        (lambda: zipped(("a.py", b"1"), ("A.py", b"2")), "twice"),
        (lambda: zipped(("a", b"1"), ("a/b", b"2")), "both a file and a folder"),
        (lambda: zipped(("bomb", bytes(8 << 20))), "grows to more than 100 times"),
        (overlong, "20001 entries"),
        (encrypted, "encrypted"),
        (lambda: zipped(("a.py", b"x"), method=zipfile.ZIP_BZIP2), "encrypted or uses another method"),
        (lambda: io.BytesIO(b"no zip at all"), "no readable zip"),
        (lambda: io.BytesIO(b""), "no readable zip"),
    ],
)
@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_what_is_refused_before_anything_is_written(made: Callable[[], io.BytesIO], says: str, tmp_path: Path) -> None:
    archived, target = tmp_path / "a.zip", tmp_path / "out"
    archived.write_bytes(made().getvalue())
    target.mkdir()
    with pytest.raises(InvalidArtifact, match=says):
        archive.unpack(archived, target)
    assert list(target.iterdir()) == []
    assert {path.name for path in tmp_path.iterdir()} == {"a.zip", "out"}


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_the_same_name_twice_is_refused() -> None:
    with pytest.raises(InvalidArtifact, match="twice"):
        archive.check(zipped(("handler.py", b"good"), ("handler.py", b"evil")))


def test_a_declared_size_beyond_the_limit_is_refused_unread() -> None:
    made = bytearray(zipped(("a", b"x" * 10)).getvalue())
    at = made.index(b"PK\x01\x02") + 24
    made[at : at + 4] = (archive.MAX_UNPACKED_BYTES + 1).to_bytes(4, "little")
    with pytest.raises(InvalidArtifact, match="unpacked"):
        archive.check(io.BytesIO(bytes(made)))


@pytest.mark.parametrize("made", [lying, lambda: spoiled(zipfile.ZIP_STORED), lambda: spoiled(zipfile.ZIP_DEFLATED)])
def test_content_that_is_not_what_the_list_says_is_refused(made: Callable[[], io.BytesIO], tmp_path: Path) -> None:
    archived, target = tmp_path / "a.zip", tmp_path / "out"
    archived.write_bytes(made().getvalue())
    target.mkdir()
    with pytest.raises(InvalidArtifact):
        archive.unpack(archived, target)


WHOLE = zipped(
    ("handler.py", b"code" * 50), ("pkg/a.py", b"x"), (entry("pkg/b/c.py", stat.S_IFREG | 0o644), b"")
).getvalue()


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, len(WHOLE) - 1), st.integers(0, 255)), min_size=1, max_size=6),
    st.integers(0, len(WHOLE)),
)
def test_whatever_an_archive_holds_it_is_refused_or_stays_inside(changes: list[tuple[int, int]], end: int) -> None:
    made = bytearray(WHOLE)
    for at, value in changes:
        made[at] = value
    with TemporaryDirectory() as place:
        target = Path(place, "out")
        target.mkdir()
        Path(place, "a.zip").write_bytes(made if end % 4 else made[:end])
        with contextlib.suppress(InvalidArtifact):
            archive.unpack(Path(place, "a.zip"), target)
        assert sorted(path.name for path in Path(place).iterdir()) == ["a.zip", "out"]
        assert all(path.is_dir() or stat.S_ISREG(path.lstat().st_mode) for path in target.rglob("*"))


class TestPaths:
    @pytest.mark.parametrize(
        "path", ["a", "a/b.py", "weights/model-00001-of-00002.safetensors", "ä/ö.py", "..a", "a..", ".hidden"]
    )
    def test_good(self, path: str) -> None:
        assert check_path(path) == path

    @pytest.mark.parametrize(
        "path",
        ["", "/", "/a", "..", ".", "a/..", "./a", "a/", "a//b", "a\\b", "a\0b", "a:b", "\udcff", "a/" * 600 + "a"],
    )
    def test_bad(self, path: str) -> None:
        with pytest.raises(ValueError, match=r"path|part|character|Unicode|long"):
            check_path(path)


GOOD_REQUIREMENTS = ["einops", "einops==0.8.1", "Torch-Vision[extra,more] >=0.1, <2 ; python_version > '3'", "./w.whl"]


class TestSpec:
    def test_reads_back(self) -> None:
        artifact = parse_artifact({"code": CODE, "files": {"w.whl": "b" * 64}}, "spec.artifact")
        assert artifact == Artifact(code=CODE, files={"w.whl": "b" * 64})
        assert parse_requirements(["einops==0.8.1", "./w.whl"], artifact, "r") == ("einops==0.8.1", "./w.whl")
        assert parse_artifact(None, "spec.artifact") is None
        assert parse_requirements(None, None, "r") == ()

    @pytest.mark.parametrize(
        "raw",
        [
            "x",
            {"code": "A" * 64},
            {"code": CODE[1:]},
            {"files": {}},
            {"code": CODE, "more": 1},
            {"code": CODE, "files": {"../x": CODE}},
            {"code": CODE, "files": {"x": "y"}},
            {"code": CODE, "files": {1: CODE}},
            {"code": CODE, "files": {str(n): CODE for n in range(1001)}},
        ],
    )
    def test_what_is_no_artifact(self, raw: object) -> None:
        with pytest.raises(InvalidSpec, match=r"spec\.artifact"):
            parse_artifact(raw, "spec.artifact")

    @pytest.mark.parametrize(
        "raw",
        [
            "einops",
            [""],
            [1],
            ["-r other.txt"],
            ["--index-url=http://evil"],
            ["a\nb"],
            ["./missing.whl"],
            ["./w.py"],
            ["w.whl"],
            ["/tmp/x"],
            ["../w.whl"],
            ["x"] * 101,
        ],
    )
    def test_what_is_no_requirement(self, raw: object) -> None:
        with pytest.raises(InvalidSpec, match=r"^r: "):
            parse_requirements(raw, Artifact(code=CODE, files={"w.whl": CODE, "w.py": CODE}), "r")

    @pytest.mark.parametrize(
        "text",
        [
            ".",
            "file:.",
            "file:///etc/passwd",
            "x @ file:///etc/passwd",
            "x@https://example.org/x-1-py3-none-any.whl",
            "git+https://example.org/x",
            "x @ git+https://example.org/x",
            'six;python_version>"3" --global-option=x',
            "six \\",
            "six\\",
            "six --hash=sha256:00",
            "six # comment",
            "six==${HOME}",
            "six, seven",
            "six==1.*.*",
        ],
    )
    def test_what_pip_would_read_as_more_than_a_name_and_versions(self, text: str) -> None:
        with pytest.raises(InvalidSpec) as caught:
            check_requirements([*GOOD_REQUIREMENTS, text])
        assert repr(text) in str(caught.value)
        check_requirements(GOOD_REQUIREMENTS)

    def test_only_what_was_uploaded_has_requirements(self) -> None:
        with pytest.raises(InvalidSpec, match="uploaded"):
            parse_requirements(["einops"], None, "r")
