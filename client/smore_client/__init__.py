"""
The Python client of SMore's HTTP API.

>>> from smore_client import Client
>>> with Client("http://127.0.0.1:8400", "smk_...") as client:
...     client.invoke("echo", {"x": [1, 2]}).output
{'x': [1, 2]}

Both clients have the operations of :class:`~smore_client.requests.Requests`: :class:`Client` blocks,
:class:`AsyncClient` is awaited. What they return is in :mod:`smore_client.types`, what administrators ask in
:mod:`smore_client.admin`. Both raise :class:`ApiError` where the platform refuses and :class:`Unreachable` where it does
not answer.
"""

from smore_client.aio import AsyncClient
from smore_client.sync import Client
from smore_client.transport import ApiError, ClientError, Unreachable

__all__ = ["ApiError", "AsyncClient", "Client", "ClientError", "Unreachable"]
