"""Whether a Postgres server answers, asked without a driver."""

import asyncio
from pathlib import Path

import pytest

from smore.postgres.answering import answers
from tests.support.eventually import PATIENCE


def asked(folder: Path, byte: bytes) -> bool | None:
    """What is said of a server in ``folder`` that answers the first message with ``byte``."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        assert await reader.readexactly(8) == b"\0\0\0\x08\x04\xd2\x16\x2f"
        writer.write(byte)
        writer.close()

    async def ask() -> bool | None:
        async with await asyncio.start_unix_server(serve, folder / ".s.PGSQL.5433"):
            return await answers(f"postgresql+psycopg://smore:secret@/smore?host={folder}&port=5433", PATIENCE)

    return asyncio.run(ask())


def test_a_server_answers_with_its_byte(tmp_path: Path) -> None:
    assert asked(tmp_path, b"N") is True
    assert asked(tmp_path, b"") is False, "it closed the connection"


def test_nobody_there(tmp_path: Path) -> None:
    assert asyncio.run(answers(f"postgresql://smore@/smore?host={tmp_path}", PATIENCE)) is False


@pytest.mark.parametrize("url", ["postgresql:///smore", "postgresql://a,b/smore", "postgresql://a:x/smore"])
def test_only_the_driver_knows_where(url: str) -> None:
    assert asyncio.run(answers(url, PATIENCE)) is None
