"""The client's types as its users see them: `make check` compares them, for mypy reads this file as strictly as the code."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import assert_type

import smore_client
from smore_client import AsyncClient, Client, admin
from smore_client.types import AuditEntry, Gpu, Invocation, Job, State


def blocking(client: Client) -> None:
    """Never called: each call is checked for the type of its result."""
    assert_type(client.invoke("echo", 1), Invocation)
    assert_type(client.invoke("echo", 1).state, State)
    assert_type(client.invoke("echo", 1).function, str)
    assert_type(client.map("echo", [1]), list[Invocation])
    assert_type(client.as_completed(["a"]), Iterator[Invocation])
    assert_type(client.each_job(), Iterator[Job])
    assert_type(client.gpus(), list[Gpu])
    assert_type(client.carry(admin.purge("echo")), int)
    assert_type(client.stream(admin.each_audit_entry({})), Iterator[AuditEntry])


async def awaited(client: AsyncClient) -> None:
    """The same of the other client."""
    assert_type(await client.invoke("echo", 1), Invocation)
    assert_type(client.each_invocation(), AsyncIterator[Invocation])
    assert_type(await client.carry(admin.purge("echo")), int)


def test_type_checkers_are_told_that_it_is_typed() -> None:
    assert Path(smore_client.__file__).with_name("py.typed").exists()
