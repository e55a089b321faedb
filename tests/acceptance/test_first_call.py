"""``up`` means ready: a call that comes at once is served, after the first start and after another one."""

import socket
from pathlib import Path

import httpx

from smore import local
from smore.process.settings import ApiSettings, Settings
from smore_client import Client
from tests.support.whole_platform import partitions


def test_a_call_right_after_a_start_is_served_and_after_a_restart_too(tmp_path: Path) -> None:
    home = tmp_path / "home"
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    config = Settings(api=ApiSettings(port=port))
    ids = set()
    for start in range(2):
        try:
            reached = local.up(home, config=config, partitions=partitions())
            ready = httpx.get(f"{reached.gateway_url}/readyz", timeout=30)
            assert ready.status_code == 200, ready.text
            ids |= {ready.json()["instance"], reached.instance}
            with Client(reached.gateway_url, (home / "key").read_text().strip()) as client:
                if not start:
                    client.deploy(
                        {
                            "apiVersion": "smore/v1",
                            "kind": "Function",
                            "metadata": {"name": "echo"},
                            "spec": {"entrypoint": "zoo.echo:Function"},
                        }
                    )
                assert client.invoke("echo", {"x": [1]}).output == {"x": [1]}
        finally:
            local.down(home)
    assert len(ids) == 1, "the installation keeps its id"
