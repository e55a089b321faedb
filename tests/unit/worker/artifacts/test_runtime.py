"""
What an uploaded function needs on a node: folders made once and shared, removed when unused, failures told;
environments.
"""

import contextlib
import fcntl
import hashlib
import os
import socket
import stat
import subprocess
import sys
import threading
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from smore.blobs.store import CHUNK, SourceAway
from smore.domain.artifact import Artifact
from smore.domain.errors import BlobNotFound, InvalidArtifact, WrongDigest
from smore.domain.function import FunctionSpec
from smore.redis.catalog import Catalog, FunctionEntry
from smore.testing import ManualClock
from smore_client.pack import pack
from tests.support.eventually import eventually
from worker import proc
from worker.artifacts.builder import Failed, check_wheel, named, pip_settings
from worker.artifacts.cache import ArtifactCache
from worker.artifacts.environments import BuildEnded, BuildFailed, Environments, environment_key
from worker.artifacts.folders import Artifacts
from worker.artifacts.runtime import (
    FAILURE_S,
    PREPARE_AGAIN_S,
    RuntimeEnvironment,
    RuntimeFailed,
    RuntimeProvider,
    RuntimeUnavailable,
)
from worker.frames import Confinement, packages_of
from worker.runner.runner import _enter


def make(content: str, made: list[str]) -> Any:
    def fill(folder: Path, lock: int) -> None:
        made.append(content)
        (folder / "sub").mkdir()
        (folder / "sub" / "file").write_text(content)

    return fill


class TestArtifactCache:
    def test_made_once_and_read_only(self, tmp_path: Path) -> None:
        cache, made = ArtifactCache(tmp_path / "s", 1000), list[str]()
        for _ in range(2):
            with cache.take("a", make("x", made)) as held:
                assert (held.folder / "sub" / "file").read_text() == "x"
        assert made == ["x"]
        for path in (held.folder, held.folder / "sub", held.folder / "sub" / "file"):
            assert not path.stat().st_mode & (stat.S_IWUSR | stat.S_IWGRP | stat.S_IWOTH)

    def test_made_once_by_many_at_once(self, tmp_path: Path) -> None:
        made, ready = list[str](), threading.Barrier(4)

        def take() -> None:
            ready.wait()
            ArtifactCache(tmp_path, 1000).take("a", make("x", made)).close()

        threads = [threading.Thread(target=take) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert made == ["x"]

    def test_what_fails_leaves_nothing_and_is_tried_again(self, tmp_path: Path) -> None:
        def broken(folder: Path, lock: int) -> None:
            (folder / "half").write_text("x")
            raise OSError("disk full")

        cache = ArtifactCache(tmp_path, 1000)
        with pytest.raises(OSError, match="disk full"):
            cache.take("a", broken)
        assert not (tmp_path / "a").exists()
        assert cache.take("a", make("x", [])).folder == tmp_path / "a"

    def test_the_rest_of_a_maker_that_died_is_made_anew(self, tmp_path: Path) -> None:
        (tmp_path / "a").mkdir()
        (tmp_path / "a" / "half").write_text("x")
        with ArtifactCache(tmp_path, 1000).take("a", make("x", [])) as held:
            assert sorted(path.name for path in held.folder.iterdir()) == ["sub"]

    def test_a_child_keeps_others_away_when_its_maker_was_killed(self, tmp_path: Path) -> None:
        """As pip does that builds on: nobody else may touch the folder until it has ended, too."""
        code = (
            "import os, subprocess, sys; from pathlib import Path; from worker.artifacts.cache import ArtifactCache\n"
            "def fill(folder, lock):\n"
            "    subprocess.Popen(['cat'], pass_fds=[lock])\n"
            "    os._exit(9)\n"
            "ArtifactCache(Path(sys.argv[1]), 1000).take('a', fill)\n"
        )
        ours, theirs = os.pipe()
        subprocess.run([sys.executable, "-c", code, str(tmp_path)], stdin=ours, stdout=subprocess.DEVNULL, check=False)
        os.close(ours)
        with (tmp_path / "a.lock").open() as lock:
            with pytest.raises(BlockingIOError):
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.close(theirs)  # cat ends
            fcntl.flock(lock, fcntl.LOCK_EX)
        ArtifactCache(tmp_path, 1000).take("a", make("x", [])).close()

    def test_what_a_maker_has_left_running_keeps_nobody_away(self, tmp_path: Path) -> None:
        kept = []
        cache = ArtifactCache(tmp_path, 1000)
        cache.take("a", lambda folder, lock: kept.append(os.dup(lock))).close()
        assert cache.sweep(set()) == ["a"]
        os.close(kept[0])

    def test_the_least_recently_used_goes_but_nothing_that_is_held(self, tmp_path: Path) -> None:
        cache = ArtifactCache(tmp_path, 20)
        for number, key in enumerate("abc"):
            cache.take(key, make("x" * 10, [])).close()
            os.utime(tmp_path / f"{key}.json", (number, number))
        held = cache.take("a", make("", []))
        os.utime(tmp_path / "a.json", (0, 0))
        assert cache.sweep() == ["b"]
        assert cache.sweep() == []
        held.close()
        assert cache.sweep(set("c")) == ["a"]
        assert sorted(path.name for path in tmp_path.iterdir()) == ["c", "c.json", "c.lock"]

    def test_what_nobody_wants_goes_before_what_was_used_earlier(self, tmp_path: Path) -> None:
        cache = ArtifactCache(tmp_path, 20)
        for number, key in enumerate("abc"):
            cache.take(key, make("x" * 10, [])).close()
            os.utime(tmp_path / f"{key}.json", (number, number))
        assert cache.sweep(set("ac")) == ["b"]


# ---- folders ---------------------------------------------------------------------------------------------------------


@dataclass
class Store:
    """Blobs by digest, in the place of a gateway or a folder."""

    blobs: dict[str, bytes] = field(default_factory=dict)
    reads: list[str] = field(default_factory=list)
    error: Exception | None = None

    def put(self, data: bytes) -> str:
        digest = hashlib.sha256(data).hexdigest()
        self.blobs[digest] = data
        return digest

    def read(self, project: str, digest: str, offset: int = 0) -> Iterator[bytes]:
        self.reads.append(digest)
        if self.error is not None:
            raise self.error
        if digest not in self.blobs:
            raise BlobNotFound
        return iter([self.blobs[digest][offset:]])


def upload(store: Store, tmp_path: Path, **files: str | bytes) -> Artifact:
    folder = tmp_path / f"up-{len(store.blobs)}"
    folder.mkdir()
    for name, content in files.items():
        (folder / name.replace("_", ".")).write_bytes(content if isinstance(content, bytes) else content.encode())
    packed = pack(folder, tmp_path)
    assert packed is not None
    for path in packed.blobs.values():
        store.put(path.read_bytes())
    return Artifact(code=packed.code, files=packed.files)


@pytest.fixture
def store() -> Store:
    return Store()


@pytest.fixture
def artifacts(tmp_path: Path, store: Store) -> Artifacts:
    return Artifacts(tmp_path / "cache", lambda: store, 1 << 30)


class TestArtifacts:
    def test_revisions_share_their_weights(self, tmp_path: Path, store: Store, artifacts: Artifacts) -> None:
        weights = os.urandom(CHUNK)
        first = upload(store, tmp_path, handler_py="one", weights_bin=weights)
        second = upload(store, tmp_path, handler_py="two", weights_bin=weights)
        with artifacts.take("p", first) as one, artifacts.take("p", second) as two, artifacts.take("p", first) as again:
            assert (one.folder / "handler.py").read_text() == "one"
            assert (two.folder / "handler.py").read_text() == "two"
            assert again.folder == one.folder != two.folder
            assert (one.folder / "weights.bin").read_bytes() == weights
            assert (one.folder / "weights.bin").samefile(two.folder / "weights.bin")
        assert sorted(store.reads) == sorted([first.code, second.code, first.files["weights.bin"]])

    def test_what_does_not_fit_its_digest_is_not_unpacked(
        self, tmp_path: Path, store: Store, artifacts: Artifacts
    ) -> None:
        artifact = upload(store, tmp_path, handler_py="one", weights_bin=os.urandom(CHUNK))
        for digest in (artifact.code, artifact.files["weights.bin"]):
            kept, store.blobs[digest] = store.blobs[digest], b"other"
            with pytest.raises(WrongDigest, match=digest):
                artifacts.take("p", artifact)
            store.blobs[digest] = kept
        artifacts.take("p", artifact).close()

    def test_an_archive_that_leads_out_is_refused_here_too(self, store: Store, artifacts: Artifacts) -> None:
        with pytest.raises(InvalidArtifact):
            artifacts.take("p", Artifact(code=store.put(b"no zip")))

    def test_files_of_no_folder_are_removed(self, tmp_path: Path, store: Store, artifacts: Artifacts) -> None:
        artifact = upload(store, tmp_path, handler_py="one", weights_bin=os.urandom(CHUNK))
        artifacts.take("p", artifact).close()
        (file,) = (tmp_path / "cache" / "files").iterdir()
        artifacts.sweep(set())
        assert file.exists(), "it is young: somebody may be about to link it"
        os.utime(file, (0, 0))
        artifacts.sweep(set())
        assert not file.exists()


# ---- environments ----------------------------------------------------------------------------------------------------


Built = Callable[..., Environments]
WHEEL = "w-1-py3-none-any.whl"
METADATA = "Metadata-Version: 2.1\nName: w\nVersion: 1\n"


def wheel(path: Path, files: dict[str, str | bytes]) -> None:
    """``files``: of its .dist-info folder."""
    with zipfile.ZipFile(path, "w") as writer:
        writer.writestr("w.py", "")
        for name, content in {
            "WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
            "RECORD": "",
            **files,
        }.items():
            writer.writestr(name.removeprefix("../") if name.startswith("../") else f"w-1.dist-info/{name}", content)


@pytest.fixture
def built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Built:
    """Environments for which pip looks nowhere."""
    monkeypatch.setenv("PIP_NO_INDEX", "1")

    def make(*, build_s: float = 60.0) -> Environments:
        return Environments(
            tmp_path / "e",
            1 << 30,
            build_s,
            sdists=False,
            confinement=Confinement(tcp_ports=None),
            home=tmp_path / "home",
            group="smore-test-",
        )

    return make


class TestEnvironments:
    def test_what_names_one(self) -> None:
        base = Artifact(code="a" * 64, files={"w.whl": "b" * 64})
        key = environment_key(["x==1", "./w.whl"], base)
        assert environment_key(["./w.whl", "x==1"], base) == key
        assert environment_key(["x==1", "./w.whl"], Artifact(code="c" * 64, files=base.files)) == key, (
            "other code needs no other one"
        )
        assert environment_key(["x==1", "./w.whl"], Artifact(code="a" * 64, files={"w.whl": "c" * 64})) != key
        assert environment_key(["x==2", "./w.whl"], base) != key

    def test_a_build_that_fails_tells_its_log(self, built: Built, tmp_path: Path) -> None:
        environments = built()
        with pytest.raises(BuildFailed, match=r"pip ended with status[\s\S]*Its log:[\s\S]*no-such-package"):
            environments.take(["no-such-package"], Artifact(code="a" * 64), tmp_path)
        assert [path.suffix for path in (tmp_path / "e").iterdir()] == [".lock"]

    def test_a_wheel_that_requires_a_url_is_refused_before_pip_reads_it(self, built: Built, tmp_path: Path) -> None:
        with socket.create_server(("127.0.0.1", 0)) as server:
            url = f"http://127.0.0.1:{server.getsockname()[1]}/evil-1.0.tar.gz"
            wheel(tmp_path / WHEEL, {"METADATA": f"{METADATA}Requires-Dist: evil @ {url}\n"})
            with pytest.raises(BuildFailed) as failed:
                built().take([f"./{WHEEL}"], Artifact(code="a" * 64, files={WHEEL: "b" * 64}), tmp_path)
            assert str(failed.value).startswith(f"./{WHEEL} requires 'evil @ {url}', a URL: ")
            server.setblocking(False)
            with pytest.raises(BlockingIOError):
                server.accept()
        assert [path.suffix for path in (tmp_path / "e").iterdir()] == [".lock"]

    @pytest.mark.parametrize(
        ("files", "told"),
        [
            (
                {
                    "METADATA": (
                        f"{METADATA}Requires-Dist: x\nrequires-dist: evil@git+http://127.0.0.1/e ; extra == 'e'\n"
                    )
                },
                "a URL",
            ),
            ({"METADATA": f"{METADATA}Requires-Dist: evil @\n https://e.example/e.whl\n"}, "not a requirement"),
            ({"METADATA": f"{METADATA}Requires-Dist: ../evil\n"}, "not a requirement"),
            ({"METADATA": f"{METADATA}Requires-Dist: x;{'(' * 10_000}\n"}, "not a requirement"),
            # What pip reads where METADATA is empty, or names no requirement.
            ({"METADATA": "", "PKG-INFO": f"{METADATA}Requires-Dist: evil @ http://e.example\n"}, "PKG-INFO"),
            ({"METADATA": METADATA, "requires.txt": "evil @ http://e.example\n"}, "requires.txt"),
            ({"METADATA": METADATA, "./requires.txt": "evil @ http://e.example\n"}, "requires.txt"),
            (
                {"METADATA": METADATA, "/METADATA": f"{METADATA}Requires-Dist: evil @ http://e.example\n"},
                "one METADATA",
            ),
            ({"METADATA": ""}, "is empty"),
            ({}, "one METADATA"),
            ({"METADATA": METADATA, "../other-1.dist-info/METADATA": METADATA}, "one .dist-info"),
            ({"METADATA": METADATA + "x" * (1 << 20)}, "more than 1 MiB"),
            ({"METADATA": b"\xff"}, "cannot be read"),
        ],
    )
    def test_what_a_wheel_may_not_require(self, tmp_path: Path, files: dict[str, str | bytes], told: str) -> None:
        wheel(tmp_path / WHEEL, files)
        with contextlib.chdir(tmp_path), pytest.raises(Failed, match=f"^./{WHEEL}.*{told}"):
            check_wheel(f"./{WHEEL}")

    def test_what_a_wheel_may_require(self, tmp_path: Path) -> None:
        wheel(
            tmp_path / WHEEL,
            {
                "METADATA": (
                    f"{METADATA}Requires-Dist: x[y] (>=1) ; extra == '@'\n\nRequires-Dist: of the text @ http://x\n"
                )
            },
        )
        (tmp_path / "no.whl").write_bytes(b"no wheel")
        with contextlib.chdir(tmp_path):
            check_wheel(f"./{WHEEL}")
            with pytest.raises(Failed, match=r"^\./no\.whl cannot be read"):
                check_wheel("./no.whl")

    def test_a_worker_that_ends_takes_its_builds_with_it(self, built: Built, tmp_path: Path) -> None:
        environments = built()
        raised: list[BaseException] = []

        def build() -> None:
            try:
                environments.take(["x"], Artifact(code="a" * 64), tmp_path)
            except BuildEnded as error:
                raised.append(error)

        thread = threading.Thread(target=build)
        thread.start()
        (process,) = eventually(lambda: list(environments._running), what="the build has begun")
        environments.end()
        thread.join()
        assert (len(raised), process.poll() is not None) == (1, True)
        assert proc.session_members(process.pid) == []
        with pytest.raises(BuildEnded):
            environments.take(["x"], Artifact(code="a" * 64), tmp_path)

    def test_a_build_that_takes_too_long_is_ended(self, built: Built, tmp_path: Path) -> None:
        with pytest.raises(BuildFailed, match="took too long"):
            built(build_s=0.0).take(["x"], Artifact(code="a" * 64), tmp_path)

    def test_a_requirement_of_an_older_gateway_is_looked_at_again(self, built: Built, tmp_path: Path) -> None:
        with pytest.raises(BuildFailed, match=r"'\.' is not a requirement"):
            built().take(["."], Artifact(code="a" * 64), tmp_path)

    def test_what_pip_is_told(self) -> None:
        listing = "\n".join(
            (
                "global.index-url='https://user:word@index.example:8443/simple'",
                "global.cert='/etc/own.pem'",
                "global.timeout='3'",
                "install.timeout='4'",
                "install.find-links='/wheels\\nfile:///more%20wheels'",
                "global.cache-dir='/root/.cache'",
                ":env:.timeout='5'",
                ":env:.config-file='/root/pip.conf'",
                "list.format='json'",
                "global.proxy='http://proxy.example'",
            ),
        )
        settings = pip_settings(listing)
        assert settings == {
            "PIP_INDEX_URL": "https://user:word@index.example:8443/simple",
            "PIP_CERT": "/etc/own.pem",
            "PIP_TIMEOUT": "5",
            "PIP_FIND_LINKS": "/wheels\nfile:///more%20wheels",
            "PIP_PROXY": "http://proxy.example",
        }
        paths, ports = named(settings.values())
        assert (sorted(paths), sorted(ports)) == (["/etc/own.pem", "/more wheels", "/wheels"], [80, 8443])


# ---- both together ---------------------------------------------------------------------------------------------------


class FakeEnvironments:
    def __init__(self, root: Path) -> None:
        self.cache = ArtifactCache(root, 1 << 30)
        self.error: Exception | None = None
        self.asked = 0

    def take(self, requirements: tuple[str, ...], artifact: Artifact, code: Path) -> Any:
        self.asked += 1
        if self.error is not None:
            raise self.error
        return self.cache.take(environment_key(requirements, artifact), make("env", []))


class Stage:
    def __init__(self, tmp_path: Path, store: Store, artifacts: Artifacts) -> None:
        self.clock = ManualClock()
        #: By revision, from 1.
        self.specs: list[FunctionSpec] = []
        self.functions: dict[str, FunctionEntry] = {}
        self.environments = FakeEnvironments(tmp_path / "environments")
        self.provider = RuntimeProvider(
            artifacts=artifacts,
            environments=cast(Environments, self.environments),
            catalog=cast(
                Catalog,
                SimpleNamespace(
                    specs=lambda: self.specs,
                    functions=lambda: self.functions,
                    revision=lambda _, revision: self.specs[revision - 1],
                ),
            ),
            clock=self.clock,
        )
        self.artifact = upload(store, tmp_path, handler_py="x")

    def take(self, *requirements: str) -> Any:
        return self.provider.provide(
            "p/f", FunctionSpec(entrypoint="handler:F", artifact=self.artifact, requirements=requirements)
        )


@pytest.fixture
def stage(tmp_path: Path, store: Store, artifacts: Artifacts) -> Stage:
    return Stage(tmp_path, store, artifacts)


class TestRuntimeProvider:
    def test_without_requirements_the_platforms_packages_will_do(self, stage: Stage) -> None:
        supply = stage.take()
        assert (supply.environment, set(supply.phases), stage.environments.asked) == (None, {"fetch"}, 0)
        assert (supply.folder / "handler.py").read_text() == "x"

    def test_one_environment_for_the_same_requirements(self, stage: Stage) -> None:
        first, second, other = stage.take("x"), stage.take("x"), stage.take("y")
        assert first.environment == second.environment != other.environment
        assert set(first.phases) == {"fetch", "environment"}

    def test_a_failure_is_told_again_for_a_while_without_another_try(self, stage: Stage) -> None:
        stage.environments.error = BuildFailed("no such package\nthe log")
        for _ in range(3):
            with pytest.raises(RuntimeFailed, match="the log"):
                stage.take("x")
        assert stage.environments.asked == 1
        with pytest.raises(RuntimeFailed):
            stage.take("y")
        stage.clock.advance(FAILURE_S)
        stage.environments.error = None
        stage.take("x")

    def test_what_is_away_is_no_failure(self, stage: Stage, store: Store) -> None:
        store.error = SourceAway("refused")
        with pytest.raises(RuntimeUnavailable):
            stage.take()
        store.error = None
        stage.take()

    def test_what_is_missing_fails(self, stage: Stage, store: Store) -> None:
        store.blobs.clear()
        with pytest.raises(RuntimeFailed, match="no such blob"):
            stage.take()

    def test_what_takes_the_traffic_is_prepared_once_and_a_failure_is_tried_again_later(self, stage: Stage) -> None:
        """No cold start then waits for a folder or an environment."""

        def in_force(revision: int) -> None:
            stage.functions = {"p/f": FunctionEntry(project="p", name="f", revision=revision)}

        stage.specs = [
            FunctionSpec(entrypoint="handler:F", artifact=stage.artifact, requirements=(name,)) for name in "xy"
        ]
        in_force(0)
        stage.provider.prepare()
        assert stage.environments.asked == 0, "its first canary has not passed"
        in_force(1)
        stage.provider.prepare()
        stage.provider.prepare()
        assert stage.environments.asked == 1
        stage.environments.error = BuildFailed("no such package")
        in_force(2)
        for _ in range(3):
            stage.provider.prepare()
            stage.clock.advance(FAILURE_S)
        assert stage.environments.asked == 2
        stage.environments.error = None
        stage.clock.advance(PREPARE_AGAIN_S)
        stage.provider.prepare()
        stage.provider.prepare()
        assert stage.environments.asked == 3

    def test_what_no_revision_names_is_removed_unless_it_is_used(self, stage: Stage) -> None:
        used, unused = stage.take("used"), stage.take("unused")
        unused.close()
        stage.provider.sweep()
        assert len(list((stage.environments.cache._root).glob("*.json"))) == 2, "an empty mirror names nothing"
        stage.specs = [FunctionSpec(entrypoint="zoo.echo:Function")]
        stage.provider.sweep()
        assert [path.stem for path in stage.environments.cache._root.glob("*.json")] == [
            environment_key(["used"], stage.artifact)
        ]
        assert used.folder.exists()
        used.close()
        stage.provider.sweep()
        assert not used.folder.exists()


# ---- in the runner ---------------------------------------------------------------------------------------------------


def test_the_versions_that_pip_has_chosen_are_told(tmp_path: Path) -> None:
    """Of what was left open; what is pinned, a wheel, or the platform's own is known already."""
    for name in ("Einops-0.8.1", "ruamel.yaml-0.18", "pinned-1.0", "own-2.0", "other-3.0"):
        (packages_of(tmp_path) / f"{name}.dist-info").mkdir(parents=True)
    wanted = ["einops", "ruamel-yaml>=0.17", "pinned==1.0", "./own-2.0-py3-none-any.whl", "torch"]
    runtime = RuntimeEnvironment(tmp_path, tmp_path, {})
    assert runtime.chosen(wanted) == ["einops==0.8.1", "ruamel-yaml==0.18"]
    assert RuntimeEnvironment(tmp_path, None, {}).chosen(wanted) == []


def test_a_handler_is_imported_from_its_folder_alone(tmp_path: Path) -> None:
    """Two functions may both have a handler.py; nothing is written into the folder."""
    for name in "ab":
        (tmp_path / name).mkdir()
        (tmp_path / name / "handler.py").write_text(f"import other\nWHO = '{name}' + other.WHO\n")
        (tmp_path / name / "other.py").write_text(f"WHO = '{name}'\n")
        code = (
            "import sys, pathlib, worker.runner.runner as r; r._enter(pathlib.Path(sys.argv[1])); import handler;"
            " print(handler.WHO)"
        )
        found = subprocess.run(
            [sys.executable, "-c", code, str(tmp_path / name)], capture_output=True, text=True, check=True
        )
        assert found.stdout == f"{name}{name}\n"
        assert sorted(path.name for path in (tmp_path / name).iterdir()) == ["handler.py", "other.py"]


@pytest.mark.parametrize("name", ["smore/__init__.py", "numpy.py", "worker/__init__.py"])
def test_a_name_that_is_taken_is_said(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    path.write_text("")
    (tmp_path / "json").mkdir()  # data, no module
    (tmp_path / "__main__.py").write_text("")
    with pytest.raises(ImportError, match="loaded already"):
        _enter(tmp_path)
