"""``up`` means ready: a call that comes at once is served, after the first start and after another one."""

import socket
from functools import partial
from pathlib import Path

import httpx
import pytest

from smore import local
from smore.process.settings import ApiSettings, Settings
from smore_client import Client
from smore_client.types import Attempt
from tests.support.eventually import eventually
from tests.support.whole_platform import partitions

#: A placement rule of one's own (docs/guides/own-policy.md): the last of what is offered.
RULE = """
class Last:
    def order(self, now, batch):
        return batch.deadline_at

    def choose(self, now, batch, offers):
        return offers[-1]
"""


def attempts(client: Client, id_: str) -> list[Attempt]:
    return [attempt for attempt in client.explain(id_).attempts if attempt.decision is not None]


def test_a_call_right_after_a_start_is_served_and_after_a_restart_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second start has a placement rule of one's own."""
    home, rule = tmp_path / "home", tmp_path / "last_of_all.py"
    rule.write_text(RULE)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    config = Settings(api=ApiSettings(port=port))
    ids = set()
    for start in range(2):
        if start:
            monkeypatch.setenv("PYTHONPATH", str(tmp_path))
            monkeypatch.setenv("SMORE_POLICY__NAME", "last_of_all:Last")
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
                invocation = client.invoke("echo", {"x": [1]})
                assert invocation.output == {"x": [1]}
                # The history is a moment behind.
                (attempt,) = eventually(
                    partial(attempts, client, invocation.id), what="the decision of the first invocation"
                )
                assert attempt.decision is not None
                assert attempt.decision.policy == ("last_of_all:Last" if start else "smore-product")
        finally:
            local.down(home)
    assert len(ids) == 1, "the installation keeps its id"
