"""The client of the HTTP API: :class:`Client` and :class:`AsyncClient` (smore/client/clients.py)."""

from smore.client.clients import AsyncClient, Client
from smore.client.transport import ApiError, ClientError, Unreachable

__all__ = ["ApiError", "AsyncClient", "Client", "ClientError", "Unreachable"]
