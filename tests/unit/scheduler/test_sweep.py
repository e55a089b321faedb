"""Which blobs go: those that no revision names and that are old enough."""

import hashlib
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from scheduler.tasks.sweep import sweep
from smore.blobs.store import Blobs


def put(blobs: Blobs, project: str, data: bytes, at: float) -> str:
    digest = hashlib.sha256(data).hexdigest()
    with blobs.upload(project, digest, offset=0, size=len(data), most=100, project_most=1000) as part:
        part.write(data)
        assert part.finish()
    os.utime(blobs._path(project, digest), (at, at))
    return digest


def test_what_no_revision_names_goes_after_its_grace(tmp_path: Path) -> None:
    blobs = Blobs(str(tmp_path), tmp_path)
    named, unnamed = put(blobs, "p", b"named", 0.0), put(blobs, "p", b"unnamed", 0.0)
    young, wanted = put(blobs, "p", b"young", 95.0), put(blobs, "p", b"wanted", 0.0)
    others = put(blobs, "q", b"named", 0.0)
    blobs.keep("p", wanted)
    store: Any = SimpleNamespace(named_blobs=lambda: {("p", named)})

    assert sweep(blobs, store, now=100.0, grace_s=10.0) == 2
    left = {(one.project, one.digest) for one in blobs}
    assert left == {("p", named), ("p", young), ("p", wanted)}
    assert ("p", unnamed) not in left
    assert ("q", others) not in left, "another project names it, not this one"


def test_names_are_not_asked_for_where_nothing_is_old(tmp_path: Path) -> None:
    assert sweep(Blobs(str(tmp_path), tmp_path), SimpleNamespace(), now=1e9, grace_s=0.0) == 0  # type: ignore[arg-type]
