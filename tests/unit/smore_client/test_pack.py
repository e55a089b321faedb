"""Packing a folder: what is left out, what is refused before it is sent, and that the platform takes what is sent."""

import os
import zipfile
from pathlib import Path

import pytest

from smore.blobs import archive
from smore.domain import artifact
from smore.domain.artifact import Artifact
from smore_client import pack as packing
from smore_client.pack import LARGE_BYTES, Packed, pack


def folder(place: Path, **files: bytes | str) -> Path:
    root = place / "f"
    for name, content in files.items():
        path = root / name.replace("__", "/").replace("_py", ".py").replace("_yaml", ".yaml")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return root


def artifact_of(packed: Packed) -> Artifact:
    return Artifact(code=packed.code, files=packed.files)


def test_goes_round(tmp_path: Path) -> None:
    root = folder(tmp_path, function_yaml="x", handler_py="code", pkg__a_py="a", big_py=b"w" * LARGE_BYTES)
    (root / "w.whl").write_bytes(b"wheel")
    packed = pack(root, tmp_path)
    assert packed is not None
    assert set(packed.files) == {"big.py", "w.whl"}
    assert artifact_of(packed).blobs == packed.blobs.keys()

    target = tmp_path / "out"
    target.mkdir()
    archive.unpack(packed.blobs[packed.code], target)
    assert {path.relative_to(target).as_posix(): path.read_text() for path in target.rglob("*.py")} == {
        "handler.py": "code",
        "pkg/a.py": "a",
    }


def test_equal_folders_are_equal_and_the_description_is_no_part(tmp_path: Path) -> None:
    found = []
    for number in range(2):
        root = folder(tmp_path / str(number), function_yaml=str(number), handler_py="code", z_py="z")
        os.utime(root / "z.py", (number, number))
        (root / "handler.py").chmod(0o600 + number)
        packed = pack(root, tmp_path / str(number))
        assert packed is not None
        found.append(artifact_of(packed))
    assert found[0] == found[1]
    assert found[0].digest == found[1].digest


def test_hidden_files_and_caches_stay_at_home(tmp_path: Path) -> None:
    root = folder(tmp_path, handler_py="c", __pycache____x="c")
    for name in (".env", "x.pyc"):
        (root / name).write_text("secret")
    (root / ".git").mkdir()
    (root / ".git" / "config").write_text("secret")
    packed = pack(root, tmp_path)
    assert packed is not None
    with zipfile.ZipFile(packed.blobs[packed.code]) as reader:
        assert reader.namelist() == ["handler.py"]


def test_a_description_alone_is_no_upload(tmp_path: Path) -> None:
    assert pack(folder(tmp_path, function_yaml="x"), tmp_path) is None


def test_links_inside_are_followed_and_links_out_refused(tmp_path: Path) -> None:
    root = folder(tmp_path, handler_py="c")
    (root / "same.py").symlink_to("handler.py")
    packed = pack(root, tmp_path)
    assert packed is not None
    (root / "out").symlink_to("/etc/passwd")
    with pytest.raises(ValueError, match=r"out: a link may only lead to a file inside"):
        pack(root, tmp_path)
    (root / "out").unlink()
    (root / "dir").symlink_to("/etc")
    with pytest.raises(ValueError, match=r"dir: a link"):
        pack(root, tmp_path)


def test_what_the_platform_would_refuse_is_told_before_it_is_sent(tmp_path: Path) -> None:
    root = folder(tmp_path, handler_py="c")
    (root / "Handler.py").write_text("c")
    with pytest.raises(ValueError, match="twice"):
        pack(root, tmp_path)


def test_a_pipe_is_refused(tmp_path: Path) -> None:
    root = folder(tmp_path, handler_py="c")
    os.mkfifo(root / "pipe")
    with pytest.raises(ValueError, match="neither a file nor a folder"):
        pack(root, tmp_path)


@pytest.mark.parametrize(
    ("name", "refusal"), [("a:b.py", "no file's name"), ("a\nb.py", "no file's name"), ("\udcff.py", "not Unicode")]
)
def test_a_name_that_the_platform_refuses(tmp_path: Path, name: str, refusal: str) -> None:
    root = folder(tmp_path, handler_py="c")
    (root / name).write_text("c")
    with pytest.raises(ValueError, match=refusal):
        pack(root, tmp_path)
    with pytest.raises(ValueError, match=refusal.replace("no file's", "no file's")):
        artifact.check_path(name)


def test_code_that_the_platform_takes_for_a_bomb(tmp_path: Path) -> None:
    parts = {f"{number}_py": b"\0" * (LARGE_BYTES - 1) for number in range(5)}
    with pytest.raises(ValueError, match="shrinks to less"):
        pack(folder(tmp_path, **parts), tmp_path)


def test_the_bounds_are_the_platforms() -> None:
    for name in ("MAX_ENTRIES", "MAX_ARCHIVE_BYTES", "MAX_UNPACKED_BYTES", "MAX_RATIO", "RATIO_FREE_BYTES"):
        assert getattr(packing, name) == getattr(archive, name)
    for name in ("MAX_FILES", "MAX_PATH_BYTES", "MAX_PART_BYTES"):
        assert getattr(packing, name) == getattr(artifact, name)
