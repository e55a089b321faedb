"""The comparison with servers of models: its ratios, and a peer that cannot be installed."""

from pathlib import Path

import pytest

from lab.bench.peers.__main__ import Absent, Kind, python_of, ratios
from lab.bench.sides import Point


def point(side: str, load: str, connections: int, rps: float) -> Point:
    return Point(
        side=side,
        load=load,
        connections=connections,
        rps=rps,
        p50_ms=1e3 / rps,
        p99_ms=1.0,
        cpu_us=10.0,
        cores=1.0,
        bad=0,
    )


def test_a_ratio_is_ours_over_the_peers_of_the_same_turn() -> None:
    points = (
        point("smore", "echo", 64, 300.0),
        point("smore", "echo1", 64, 100.0),
        point("mosec", "echo", 64, 400.0),
        point("mosec", "echo32", 64, 600.0),
    )
    figures = ratios({(each.side, each.load, each.connections): each for each in points})
    assert {name: value for name, value in figures.items() if name.startswith("rps")} == {
        "rps_ratio_mosec_c64": 0.75,
        "rps_ratio_mosec_c64_single": 0.25,
        "rps_ratio_mosec_c64_batched": 0.5,
    }


def test_a_peer_that_cannot_be_installed_is_named(tmp_path: Path) -> None:
    no_folder = tmp_path / "file"
    no_folder.touch()
    with pytest.raises(Absent, match=r"^none==1 cannot be installed: .*file"):
        python_of(Kind(name="none", requirement="none==1"), no_folder)
