"""
Environments as pip builds them in its cell, from an index that is a folder: what a hostile package gets at, and what
becomes of it.
"""

import io
import json
import os
import stat
import tarfile
import zipfile
from pathlib import Path

import pytest

from smore.domain.artifact import Artifact
from tests.support.nursery import nursery
from worker import proc
from worker.artifacts.environments import BuildFailed, Environments
from worker.frames import Confinement, Item, Load, Results, packages_of
from worker.runner.zygote_handle import Zygote, setup
from worker.sandbox import landlock

pytestmark = pytest.mark.skipif(landlock.abi() < 6, reason="this kernel's Landlock knows no signals yet")

ARTIFACT = Artifact(code="a" * 64)

#: A build backend of its own, so that nothing else has to be fetched. What it gets at it puts into the wheel.
BACKEND = """
import json, os, pathlib, signal, socket, subprocess, sys, time, zipfile

def tried(do):
    try:
        return repr(do())
    except Exception as error:
        return f"refused: {type(error).__name__}"

def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    print("x" * (8 << 20))
    if "forever" in os.listdir():
        subprocess.Popen(["sleep", "300"])
        time.sleep(300)
    if "filling" in os.listdir():
        block = bytes(1 << 20)
        while True:
            with open(f"{os.environ['TMPDIR']}/fill-{time.monotonic_ns()}", "wb") as file:
                for _ in range(16):
                    file.write(block)
    home, code, elsewhere, parent = json.loads(pathlib.Path("targets.json").read_text())
    found = {
        "key": tried(lambda: pathlib.Path(home, "key").read_text()), "home": tried(lambda: os.listdir(home)),
        "shadow": tried(lambda: pathlib.Path("/etc/shadow").read_text()),
        "code": tried(lambda: pathlib.Path(code, "build").mkdir()), "file": tried(lambda: pathlib.Path(code, "handler.py").write_text("x")),
        "elsewhere": tried(lambda: pathlib.Path(elsewhere, "proof").write_text("x")),
        "platform": tried(lambda: pathlib.Path(json.__file__).write_text("x")),
        "neighbour": tried(lambda: os.listdir(pathlib.Path(home, "cache", "environments"))),
        "signal": tried(lambda: os.kill(parent, signal.SIGTERM)), "environ": tried(lambda: open(f"/proc/{parent}/environ").read()),
        "unix": tried(lambda: socket.socket(socket.AF_UNIX)), "listen": tried(lambda: socket.socket().listen()),
        "session": tried(os.setsid), "names": [name for name in os.environ if name.startswith("SMORE_") or "PASSWORD" in name],
    }
    subprocess.Popen(["sleep", "300"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    name = "hostile-1.0-py3-none-any.whl"
    info = "hostile-1.0.dist-info"
    files = {
        "hostile.json": json.dumps(found),
        # Whoever starts an interpreter in this environment runs it, or one that it brought.
        "hostile.pth": "import os; os.environ['HOSTILE'] = str(os.getpid())\\n",
        "hostile-1.0.data/scripts/python": "#!/bin/false\\n", "hostile-1.0.data/data/pyvenv.cfg": "home = /nowhere\\n",
        info + "/METADATA": "Metadata-Version: 2.1\\nName: hostile\\nVersion: 1.0\\n",
        info + "/WHEEL": "Wheel-Version: 1.0\\nGenerator: tests\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n",
    }
    files[info + "/RECORD"] = "".join(f"{one},,\\n" for one in (*files, info + "/RECORD"))
    with zipfile.ZipFile(os.path.join(wheel_directory, name), "w") as writer:
        for path, content in files.items():
            writer.writestr(path, content)
    return name
"""


class Stage:
    def __init__(self, place: Path, patch: pytest.MonkeyPatch) -> None:
        self.home, self.code, self.elsewhere, self._index = (
            place / name for name in ("home", "code", "elsewhere", "index")
        )
        for folder in (self.home, self.code, self.elsewhere, self._index):
            folder.mkdir()
        self.home.chmod(0o700)
        self.elsewhere.chmod(0o777)
        (self.home / "key").write_text("not for packages")
        (self.code / "handler.py").write_text("")
        for name, value in {
            "PIP_NO_INDEX": "1",
            "PIP_FIND_LINKS": str(self._index),
            "SMORE_X": "x",
            "DATABASE_PASSWORD": "x",
        }.items():
            patch.setenv(name, value)

    def sdist(self, name: str, **files: str) -> None:
        targets = json.dumps([str(self.home), str(self.code), str(self.elsewhere), os.getpid()])
        pyproject = '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'
        files = {"PKG-INFO": f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n", "targets.json": targets} | files
        with tarfile.open(self._index / f"{name}-1.0.tar.gz", "w:gz") as writer:
            for path, content in (files | {"pyproject.toml": pyproject, "backend.py": BACKEND}).items():
                info = tarfile.TarInfo(f"{name}-1.0/{path}")
                info.size = len(content.encode())
                writer.addfile(info, io.BytesIO(content.encode()))

    def environments(
        self, *, sdists: bool = True, build_s: float = 120.0, limit_mib: int = 1024, own_users: bool = True
    ) -> Environments:
        return Environments(
            self.home / "cache" / f"environments{own_users}",
            limit_mib << 20,
            build_s,
            sdists=sdists,
            confinement=Confinement(own_users=own_users, tcp_ports=[443]),
            home=self.home,
            group="smore-test-",
        )


@pytest.fixture
def stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stage:
    # For another user too.
    tmp_path.chmod(0o755)
    return Stage(tmp_path, monkeypatch)


def left(text: str) -> list[int]:
    """Processes with that in their command line."""
    found = []
    for pid in map(int, filter(str.isdigit, os.listdir("/proc"))):
        try:
            if text in Path(f"/proc/{pid}/cmdline").read_text() and proc.start_time(pid) is not None:
                found.append(pid)
        except OSError:
            continue
    return found


@pytest.mark.parametrize("own_users", [True, False])
def test_a_hostile_package_is_built_in_its_cell_and_runs_nowhere_else(stage: Stage, own_users: bool) -> None:
    stage.sdist("hostile")
    with stage.environments(own_users=own_users).take(["hostile"], ARTIFACT, stage.code) as held:
        found = json.loads((packages_of(held.folder) / "hostile.json").read_text())
        assert found.pop("names") == []
        assert {name: what for name, what in found.items() if not what.startswith("refused")} == {}
        assert [path.name for path in stage.code.iterdir()] == ["handler.py"] and not list(stage.elsewhere.iterdir())
        assert left(str(held.folder)) == [], "nothing that the build has started goes on"
        for path in (held.folder, *held.folder.rglob("*")):
            status = path.lstat()
            assert status.st_uid == os.geteuid() and (path.is_symlink() or not stat.S_IMODE(status.st_mode) & 0o222), (
                path
            )
        assert not (held.folder / ".build").exists()

        # What it brought runs in the runner alone, when that is shut in.
        zygote = Zygote(
            nursery=nursery(),
            setup=setup(
                scratch=stage.home / "scratch",
                home=stage.home,
                confinement=Confinement(own_users=own_users, readable=[str(stage.home / "cache")]),
            ),
            record=stage.home / "record",
        )
        try:
            runner = zygote.fork()
            entrypoint = "tests.acceptance.hostile.functions:Hostile"
            results = Results(one=1 << 20, together=1 << 20)
            load = Load(
                entrypoint=entrypoint,
                device="cpu",
                memory_mib=64.0,
                label="f",
                environment=str(held.folder),
                results=results,
            )
            runner.load(load, 60)
            for do, target in (("own_environment", ""), ("write", str(packages_of(held.folder) / "hostile.pth"))):
                body = json.dumps({"do": do, "path": target}).encode()
                item = Item(encoding="json", accept="json", rows=1, length=len(body))
                told = json.loads(runner.predict([item], [body], "", 30).results[0])
                if do == "own_environment":
                    assert (told["got"]["HOSTILE"], told["got"]["VIRTUAL_ENV"]) == (str(runner.pid), str(held.folder))
                else:
                    assert "refused" in told
        finally:
            zygote.close()


def test_without_the_setting_wheels_alone_are_installed(stage: Stage) -> None:
    stage.sdist("hostile")
    with pytest.raises(BuildFailed, match=r"SMORE_WORKER__SDISTS=true[\s\S]*hostile"):
        stage.environments(sdists=False).take(["hostile"], ARTIFACT, stage.code)
    with zipfile.ZipFile(stage.code / "good-1.0-py3-none-any.whl", "w") as writer:
        writer.writestr("good.py", "")
        writer.writestr("good-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: good\nVersion: 1.0\n")
        writer.writestr(
            "good-1.0.dist-info/WHEEL",
            "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        )
        writer.writestr("good-1.0.dist-info/RECORD", "good.py,,\n")
    artifact = Artifact(code="a" * 64, files={"good-1.0-py3-none-any.whl": "b" * 64})
    with stage.environments(sdists=False).take(["./good-1.0-py3-none-any.whl"], artifact, stage.code) as held:
        assert (packages_of(held.folder) / "good.py").exists()


def test_a_build_that_does_not_end_or_fills_the_disk_is_ended_with_all_it_started(stage: Stage) -> None:
    stage.sdist("endless", forever="")
    stage.sdist("large", filling="")
    for environments, name, told in (
        (stage.environments(build_s=6.0), "endless", "took too long"),
        (stage.environments(limit_mib=64), "large", "more than 64 MiB|No space|File too large"),
    ):
        with pytest.raises(BuildFailed, match=told) as failed:
            environments.take([name], ARTIFACT, stage.code)
        assert len(str(failed.value)) < 8000, "of what it printed the end is told"
        assert left(str(stage.home)) == []
        assert {path.suffix for path in environments.cache._root.iterdir()} == {".lock"}
