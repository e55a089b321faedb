"""
Whether a Postgres server answers, asked without its driver: a gateway that has not needed the catalog loads none, for
its memory's sake (api/errors.py: away).
"""

import asyncio
import struct
from typing import Final
from urllib.parse import parse_qs, urlsplit

#: The first message of the protocol: may the connection be encrypted? A server answers with one byte before anybody
#: authenticates, and writes nothing to its log where the client leaves then.
_SSL_REQUEST: Final = struct.pack("!ii", 8, 80877103)
_ANSWERS: Final = (b"S", b"N")


async def answers(url: str, patience_s: float) -> bool | None:
    """
    Whether the server of a URL answers within ``patience_s`` seconds. None = the URL names no host, several, or a port
    that is none: only the driver knows where to ask.
    """
    parts = urlsplit(url)
    query = parse_qs(parts.query)
    try:
        host, port = parts.hostname or query.get("host", [""])[0], parts.port or int(query.get("port", ["5432"])[0])
    except ValueError:
        return None
    if not host or "," in host:
        return None
    try:
        async with asyncio.timeout(patience_s):
            opened = (
                asyncio.open_unix_connection(f"{host}/.s.PGSQL.{port}")
                if host.startswith("/")
                else asyncio.open_connection(host, port)
            )
            reader, writer = await opened
            try:
                writer.write(_SSL_REQUEST)
                return await reader.read(1) in _ANSWERS
            finally:
                writer.close()
    except OSError:
        return False
