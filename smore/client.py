"""The client of the HTTP API, which is a distribution of its own: the package smore_client."""

from smore_client import ApiError, AsyncClient, Client, ClientError, Unreachable

__all__ = ["ApiError", "AsyncClient", "Client", "ClientError", "Unreachable"]
