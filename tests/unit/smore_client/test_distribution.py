"""The client needs httpx and msgspec alone: it calls a server from an interpreter that has nothing else."""

import json
import os
import shutil
import subprocess
import sys
import threading
import tomllib
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from importlib.metadata import distribution
from pathlib import Path
from zipfile import ZipFile

import pytest
from packaging.requirements import Requirement

CLIENT = Path(__file__).resolve().parents[3] / "client"
#: It may not import the platform, nor the extras, before somebody asks for them.
CALLS = """
import asyncio, sys
sys.path.append(sys.argv[1])
from smore_client import ApiError, AsyncClient, Client, admin

with Client(sys.argv[2], "k") as client:
    assert client.invoke("echo", {"x": 1}).output == {"x": 1}
    assert client.deploy({"metadata": {"name": "echo"}}).name == "echo"
    assert client.carry(admin.traces()) == []
    try:
        client.deploy("function.yaml")
    except ImportError as error:
        assert "smore-client[deploy]" in str(error)

async def main():
    async with AsyncClient(sys.argv[2], "k") as client:
        assert (await client.invoke("echo", {"x": 1})).output == {"x": 1}

asyncio.run(main())
assert not {"smore", "numpy", "yaml"} & set(sys.modules)
print("called")
"""


class Handler(BaseHTTPRequestHandler):
    def _answer(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        body = json.dumps({"id": "i1", "name": "echo", "state": "succeeded", "output": {"x": 1}, "traces": []}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_GET = do_POST = do_PUT = _answer

    def log_message(self, *args: object) -> None:
        """Say nothing."""


@pytest.fixture
def server() -> Iterator[str]:
    with HTTPServer(("127.0.0.1", 0), Handler) as listening:
        thread = threading.Thread(target=listening.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"http://127.0.0.1:{listening.server_port}"
        listening.shutdown()
        thread.join()


def needed(names: list[str]) -> set[str]:
    """Distributions that these need in this interpreter, and they themselves; no extras."""
    every: set[str] = set()
    while names:
        requirement = Requirement(names.pop())
        if requirement.name not in every and (requirement.marker is None or requirement.marker.evaluate({"extra": ""})):
            every.add(requirement.name)
            names += distribution(requirement.name).requires or []
    return every


def test_it_calls_a_server_with_its_dependencies_alone(server: str, tmp_path: Path) -> None:
    dependencies = tomllib.loads((CLIENT / "pyproject.toml").read_text())["project"]["dependencies"]
    assert {Requirement(each).name for each in dependencies} == {"httpx", "msgspec"}
    (tmp_path / "smore_client").symlink_to(CLIENT / "smore_client")
    for name in needed(dependencies):
        installed = distribution(name)
        for top in {file.parts[0] for file in installed.files or [] if file.parts[0] != ".."}:
            if not (tmp_path / top).exists():
                (tmp_path / top).symlink_to(Path(str(installed.locate_file(top))))
    command = [sys.executable, "-I", "-S", "-c", CALLS, str(tmp_path), server]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False)
    assert done.stdout == "called\n", done.stderr


def test_its_dependencies_are_the_platforms_too() -> None:
    platform = tomllib.loads((CLIENT.parent / "pyproject.toml").read_text())["project"]
    client = tomllib.loads((CLIENT / "pyproject.toml").read_text())["project"]
    assert set(client["dependencies"]) <= set(platform["dependencies"])
    assert client["version"] == platform["version"]


@pytest.mark.parametrize(("project", "package"), [(CLIENT.parent, "smore"), (CLIENT, "smore_client")])
def test_a_script_beside_a_clone_imports_the_package(tmp_path: Path, project: Path, package: str) -> None:
    """An editable install of a clone whose folder has the package's name, and a script in the folder that holds it."""
    clone, installed = tmp_path / package, tmp_path / "installed"
    (clone / package).mkdir(parents=True)
    (clone / package / "__init__.py").write_text("HERE = True\n")
    for name in ("pyproject.toml", "README.md"):
        shutil.copy(project / name, clone / name)
    build = f"from setuptools import build_meta; print(build_meta.build_editable({str(tmp_path)!r}))"
    subprocess.run([sys.executable, "-c", build], cwd=clone, capture_output=True, check=True)
    [wheel] = tmp_path.glob("*.whl")
    with ZipFile(wheel) as archive:
        archive.extractall(installed)
    script = tmp_path / "script.py"
    script.write_text(f"import site; site.addsitedir({str(installed)!r})\nimport {package}\nprint({package}.HERE)\n")
    plain = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run([sys.executable, "-S", str(script)], capture_output=True, text=True, env=plain, check=False)
    assert done.stdout == "True\n", done.stderr
