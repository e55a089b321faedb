"""What the wheels hold, and what somebody without a checkout is seen to have."""

import os
import subprocess
import sys
import tomllib
from pathlib import Path
from zipfile import ZipFile

from lab.bench.report import ROOT
from tools import walk, wheel
from tools.house import PRODUCT


def test_the_wheel_holds_the_product_under_names_of_its_own(tmp_path: Path) -> None:
    """Every file of the product, scripts and data too, and no package with a generic name at the top."""
    walk.copy(tmp_path / "tree")
    build = f"from setuptools import build_meta; build_meta.build_wheel({str(tmp_path)!r})"
    subprocess.run([sys.executable, "-c", build], cwd=tmp_path / "tree", capture_output=True, check=True)
    with ZipFile(next(tmp_path.glob("smore_platform-*.whl"))) as archive:
        held = {name for name in archive.namelist() if ".dist-info/" not in name}

    listed = subprocess.run(["git", "ls-files", *PRODUCT], cwd=ROOT, capture_output=True, text=True, check=True)
    files = {name for name in listed.stdout.splitlines() if (ROOT / name).is_file()}
    packages = {name for name in files if name.startswith("smore/")}
    client = {name.removeprefix("client/") for name in files if name.startswith("client/smore_client/")}
    others = {f"smore/_tree/{name}" for name in files if not name.startswith(("smore/", "client/"))}
    assert held == packages | client | others


def test_the_laboratory_has_a_wheel_of_the_same_version() -> None:
    platform, laboratory = (tomllib.loads((ROOT / folder / "pyproject.toml").read_text()) for folder in ("", "lab"))
    assert laboratory["project"]["version"] == platform["project"]["version"]
    included = laboratory["tool"]["hatch"]["build"]["targets"]["wheel"]["only-include"]
    assert {*included, "pyproject.toml"} == {
        path.name for path in (ROOT / "lab").iterdir() if not path.name.startswith((".", "__pycache__"))
    }


def test_a_process_that_has_heard_of_the_checkout_is_found(tmp_path: Path) -> None:
    home = {"SMORE_HOME": str(tmp_path), "PATH": os.environ["PATH"]}
    with subprocess.Popen(["cat"], cwd=ROOT, env=home, stdin=subprocess.PIPE) as one:
        told = dict(wheel.processes(tmp_path))
        assert one.stdin is not None
        one.stdin.close()
    assert str(ROOT) in told[str(one.pid)]
