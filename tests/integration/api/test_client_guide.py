"""The examples of docs/guides/client.md, run as they stand against a gateway with a scripted platform behind it."""

import re
from pathlib import Path

import pytest
import redis
import structlog

from api.app import Application
from smore.domain.access import Scope
from smore.domain.function import FunctionSpec, TensorSpec
from smore.postgres.catalog import Store
from smore.process.settings import Settings
from smore.redis.catalog import Catalog, FunctionEntry
from smore.redis.queue import Queue
from smore_client import ApiError, Client
from tests.support.eventually import eventually
from tests.support.fake_platform import FakePlatform
from tests.support.gateway import Served, add_key

GUIDE = Path(__file__).resolve().parents[3] / "docs" / "guides" / "client.md"
FUNCTIONS = {
    "echo": FunctionSpec(entrypoint="a:B", deadline_s=60.0),
    "double": FunctionSpec(
        entrypoint="a:B", deadline_s=60.0, inputs=(TensorSpec(name="x", datatype="FP32", shape=(-1, 3)),)
    ),
}


def examples() -> dict[str, tuple[list[str], str]]:
    """By heading: the blocks of code, and what each of them prints."""
    sections = re.split(r"^## ", GUIDE.read_text(), flags=re.MULTILINE)[1:]
    blocks: dict[str, tuple[list[str], str]] = {}
    for section in sections:
        [printed] = re.findall(r"^```text\n(.*?)^```", section, flags=re.DOTALL | re.MULTILINE)
        code = re.findall(r"^```python\n(.*?)^```", section, flags=re.DOTALL | re.MULTILINE)
        blocks[section.partition("\n")[0]] = code, printed
    return blocks


def test_every_example_prints_what_the_guide_says(
    config: Settings,
    application: Application,
    redis_client: "redis.Redis",
    catalog: Catalog,
    store: Store,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name, spec in FUNCTIONS.items():
        catalog.put_revision(f"default/{name}", 1, spec)
        catalog.put_function(FunctionEntry(project="default", name=name, revision=1))
    queue = Queue(redis_client, config.redis.prefix, config.queue)
    found = examples()
    assert len(found) == 10
    with FakePlatform(redis_client, queue), Served(application) as served:
        monkeypatch.setenv("SMORE_URL", served.url)
        monkeypatch.setenv("SMORE_API_KEY", add_key(catalog, *Scope))
        with Client() as client:

            def ready() -> bool:
                try:
                    return len(client.functions()) == 2
                except ApiError:
                    return False

            eventually(ready, what="the key and the functions")
        for heading, (blocks, printed) in found.items():
            kinds = ["AsyncClient" if "AsyncClient" in block else "Client" for block in blocks]
            assert kinds == ["Client", "AsyncClient"], heading
            for block in blocks:
                capsys.readouterr()
                # The gateway of this process logs on standard output.
                with structlog.testing.capture_logs():
                    exec(compile(block, heading, "exec"), {})
                assert capsys.readouterr().out == printed, heading
