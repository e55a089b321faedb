"""
What an uploaded function costs: the upload, the build of its environment, its cold starts.

``python -m lab.bench.uploads --json`` starts a platform of its own in a temporary home, with one CPU partition, and deploys
folders to it. ``--pypi`` takes the requirement (einops) from PyPI and needs a network; otherwise it is a wheel that the
benchmark makes.

Figures:

* ``upload_mib_s``: a folder with weights, from packing to stored and checked blobs. ``upload_ratio``: its time over
  that of copying the file and hashing it twice in one process, which is the least that two ends have to do.
* ``gateway_growth_mib``: peak resident memory of the gateway beyond what it had before the upload.
* ``resend_s``: deploying the same folder with another line of code.
* ``build_s``: fetching and building the environment at the first deploy of a function with a requirement;
  ``deploy_s``: all of that deploy.
* ``cold_ms``, ``cold_own_ms``: the phases of a load added up, median of seven: in the platform's environment, and in an
  environment of the function's own that is built already.
"""

import argparse
import json
import os
import shutil
import statistics
import tempfile
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import httpx
import psutil

from lab.bench.ports import free_port
from lab.bench.report import emit, end_on_sigterm, progress, rounded
from lab.bench.servers import pid_of
from smore.local import machine
from smore.process.settings import Settings
from smore_client import Client, upload
from smore_client.pack import digest_of, pack

ROUNDS = 7
MEBIBYTE = 1 << 20

T = TypeVar("T")

HANDLER = """
import smore
{imports}

class Own(smore.Handler):
    example = {{"x": 1}}

    def predict(self, inputs):
        return inputs
"""


def folder(place: Path, name: str, *, imports: str = "", requirements: str = "") -> Path:
    """Write a function's ``function.yaml`` and ``handler.py`` into ``place``."""
    place.mkdir(exist_ok=True)
    (place / "function.yaml").write_text(
        f"apiVersion: smore/v1\nkind: Function\nmetadata: {{name: {name}}}\n"
        f"spec:\n  entrypoint: handler:Own\n  slo: {{deadline: 60s}}\n  requirements: [{requirements}]\n"
    )
    (place / "handler.py").write_text(HANDLER.format(imports=imports))
    return place


def wheel(place: Path) -> str:
    """Make the wheel of an empty module in ``place``; the requirement that names it."""
    info = "tinywheel-1.0.dist-info"
    with zipfile.ZipFile(place / "tinywheel-1.0-py3-none-any.whl", "w") as writer:
        writer.writestr("tinywheel.py", "")
        writer.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: tinywheel\nVersion: 1.0\n")
        writer.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: bench\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        writer.writestr(f"{info}/RECORD", f"tinywheel.py,,\n{info}/METADATA,,\n{info}/WHEEL,,\n{info}/RECORD,,\n")
    return "./tinywheel-1.0-py3-none-any.whl"


def eventually(look: Callable[[], T], within_s: float, what: str) -> T:
    """The first true value of ``look``. Raises TimeoutError(what) where none comes in time."""
    until = time.monotonic() + within_s
    while not (value := look()):
        if time.monotonic() > until:
            raise TimeoutError(what)
        time.sleep(0.02)
    return value


def peak_mib(pid: int) -> float:
    """The most memory of a process that was ever resident (VmHWM), MiB."""
    line = next(line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) / 1024


class Stage:
    """A platform, a client of it, and the folder for the functions."""

    def __init__(self, place: Path, home: Path, client: Client) -> None:
        self.place = place
        self.home = home
        self.client = client

    def upload(self, mib: int) -> dict[str, float]:
        """The figures of an upload with ``mib`` MiB of weights."""
        place = folder(self.place / "big", "big")
        weights = place / "weights.bin"
        with weights.open("wb") as sink:
            for _ in range(mib):
                sink.write(os.urandom(MEBIBYTE))
        began = time.perf_counter()
        for _ in range(2):
            digest_of(weights)
        shutil.copyfile(weights, self.place / "copy.bin")
        least_s = time.perf_counter() - began
        gateway = pid_of(self.home, "gateway")
        assert gateway is not None
        before = psutil.Process(gateway).memory_info().rss / MEBIBYTE
        with tempfile.TemporaryDirectory() as packing:
            began = time.perf_counter()
            packed = pack(place, Path(packing))
            assert packed is not None
            self.client.carry(upload.send(packed))
            sent_s = time.perf_counter() - began
        growth = peak_mib(gateway) - before
        self.client.deploy(place)
        (place / "handler.py").write_text(HANDLER.format(imports="# another line"))
        again = time.perf_counter()
        self.client.deploy(place)
        return {
            "upload_mib_s": mib / sent_s,
            "upload_ratio": sent_s / least_s,
            "gateway_growth_mib": growth,
            "resend_s": time.perf_counter() - again,
        }

    def cold_ms(self, name: str) -> dict[str, float]:
        """Milliseconds of one load, by phase."""
        self.client.offload(name)
        eventually(
            lambda: all(instance.function != f"default/{name}" for gpu in self.client.gpus() for instance in gpu.warm),
            30,
            "unloaded",
        )
        done = self.client.invoke(name, {"x": 1}, deadline_ms=60_000)
        load: dict[str, float] = eventually(lambda: self._loading(done.id), 30, "the history")
        return load

    def _loading(self, id_: str) -> dict[str, float]:
        attempts = self.client.explain(id_).attempts
        return attempts[-1].phases_ms.loading if attempts else {}


def run(mib: int, pypi: bool) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="smore-uploads-") as temporary:
        place, home = Path(temporary), Path(temporary, "home")
        os.environ["SMORE_API__PORT"] = str(free_port())
        end = machine.up(home, config=Settings(), partitions=1)
        try:
            with Client(end.gateway_url, (home / "key").read_text().strip()) as client:
                eventually(lambda: httpx.get(f"{end.gateway_url}/readyz").status_code == 200, 120, "readiness")
                stage = Stage(place, home, client)
                figures: dict[str, Any] = stage.upload(mib)
                progress(f"uploaded: {figures}")
                client.deploy(folder(place / "plain", "plain"))
                own = place / "own"
                own.mkdir()
                requirement, imports = ("einops==0.8.1", "import einops") if pypi else (wheel(own), "import tinywheel")
                began = time.perf_counter()
                client.deploy(folder(own, "own", imports=imports, requirements=requirement))
                figures["deploy_s"] = time.perf_counter() - began
                (first,) = client.invocations(function="own", state=None, limit=1).items
                phases: dict[str, float] = eventually(lambda: stage._loading(first.id), 30, "the history")
                figures["build_s"] = (phases["fetch"] + phases["environment"]) / 1e3
                for name, figure in (("plain", "cold_ms"), ("own", "cold_own_ms")):
                    loads = [sum(stage.cold_ms(name).values()) for _ in range(ROUNDS)]
                    figures[figure] = statistics.median(loads)
                    progress(f"{name}: {loads}")
                return {name: rounded(value) for name, value in figures.items()}
        finally:
            machine.down(home)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="end with one line of JSON")
    parser.add_argument("--mib", type=int, default=512, help="size of the weights")
    parser.add_argument("--pypi", action="store_true", help="take the requirement from PyPI")
    options = parser.parse_args()
    end_on_sigterm()
    figures = run(options.mib, options.pypi)
    if options.json:
        emit("lab.bench.uploads", figures)
    else:
        print(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
